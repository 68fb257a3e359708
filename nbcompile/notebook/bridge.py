"""The kernel's side of the JupyterLab extension: a comm that the front end opens, with questions and answers.

A question is ``{id, method, params}``, its answer ``{id, result}`` or ``{id, error}`` with one sentence. Unasked come
``{target, event: "status", status}`` once ``watch`` was asked for; they name the target, as a page that is loaded again
knows it from them before it has a comm of its own. JupyterLab 4.4 and newer send questions over a subshell, so
they come on a thread of their own while the main thread runs a cell; from a kernel without subshells they come once it
has ended. What is answered at once reads plain data (:mod:`.status`); what needs torch or the user's variables is done
on the main thread, in the context of the user's cells, like the work of a panel's buttons.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

from .. import __version__, ongoing
from ..errors import UsageError
from ..progress import Progress
from ..render.units import clean
from .cancel import cancel
from .choices import DYNAMIC, Choices, offers_for, tree_of
from .inventory import entry, inventory, model_named
from .main_thread import MainThread
from .panel import PREPARED, carry_out, failure_in_words, restored
from .status import Cells, status
from .watch import Watch

TARGET = "nbcompile"
#: Of questions and answers; a front end of another version says so instead of guessing.
PROTOCOL = 1

_LONGEST = 400  # characters of a word that a front end sends, and of what is told of it

_bridge: Bridge | None = None


def load(shell: Any) -> None:
    """Let front ends open the comm, if ``shell`` is a kernel's."""
    global _bridge
    manager = getattr(getattr(shell, "kernel", None), "comm_manager", None)
    if manager is not None:
        unload()
        _bridge = Bridge(shell, manager)


def unload() -> None:
    """Undo :func:`load`."""
    global _bridge
    if _bridge is not None:
        _bridge.end()
        _bridge = None


class Bridge:
    """Answers the questions of every front end of a kernel, and says ``{target, event: "gone"}`` at its end.

    Make it in a cell, or as the kernel starts.
    """

    def __init__(self, shell: Any, manager: Any) -> None:
        self._shell, self._manager = shell, manager
        self._main = MainThread(shell)
        self._cells = Cells(shell, running=bool(_message_type(shell) == "execute_request"))
        self._cells.changed = self._changed  # type: ignore[method-assign]
        self._watch = Watch(self._state)
        self._comms: dict[str, Any] = {}
        self._models: dict[str, Any] = {"models": [], "more": 0}
        self._waiting: list[_Job] = []
        self._done = 0
        self._methods: dict[str, Callable[[_Question], None]] = {
            "hello": self._hello,
            "status": self._status,
            "watch": self._watched,
            "models": self._list_models,
            "compile": self._compile,
            "restore": self._restore,
            "cancel": self._cancel,
        }
        manager.register_target(TARGET, self._opened)
        ongoing.listen(self._changed)

    def end(self) -> None:
        """Answer nothing any more, and leave the kernel as it was before."""
        ongoing.listen_no_more(self._changed)
        self._watch.end()
        self._cells.forget()
        self._main.forget()
        if self._manager.targets.get(TARGET) == self._opened:
            self._manager.unregister_target(TARGET, self._opened)
        for comm in list(self._comms.values()):
            comm.send(data={"target": TARGET, "event": "gone"})
            self._manager.comms.pop(comm.comm_id, None)
        self._comms.clear()

    # -- the comm --------------------------------------------------------------------------------------------------

    def _opened(self, comm: Any, message: object) -> None:
        self._comms[comm.comm_id] = comm
        # Not by `on_msg`: then each message triggers `post_execute`, on whatever thread, upon which matplotlib's inline
        # backend shows and closes the figures that the running cell has begun.
        comm.handle_msg = partial(self._asked, comm)
        # Its destructor closes it too, as when the kernel ends; and a page that was loaded again since, and so does not
        # know the comm, reports that as an error.
        comm.close = _leave_open
        comm.on_close(lambda _: self._closed(comm))

    def _closed(self, comm: Any) -> None:
        self._comms.pop(comm.comm_id, None)
        self._watch.remove(comm.comm_id)

    def _asked(self, comm: Any, message: dict[str, Any]) -> None:
        question = _Question(comm, message.get("content", {}).get("data"))
        try:
            self._methods[question.method(self._methods)](question)
        except Exception as error:  # whatever it is, the front end waits for an answer
            question.fail(error)

    # -- what is answered at once ------------------------------------------------------------------------------------

    def _hello(self, question: _Question) -> None:
        question.takes()
        question.answer({"protocol": PROTOCOL, "version": __version__, "status": self._state()})

    def _status(self, question: _Question) -> None:
        question.takes()
        question.answer(self._state())

    def _watched(self, question: _Question) -> None:
        question.takes()
        comm = question.comm
        self._watch.add(
            comm.comm_id,
            question.context,
            lambda state: comm.send(data={"target": TARGET, "event": "status", "status": state}),
        )
        question.answer(self._state())

    def _cancel(self, question: _Question) -> None:
        question.takes()
        waiting = [job for job in list(self._waiting) if job.drop()]
        try:
            told = cancel()
        except UsageError as error:
            if not waiting:
                question.answer({"cancelled": False, "message": str(error)})
                return
            told = ""
        parts = [
            told,
            *(f"{job.title} of {job.name}, which waited for the running cell, was dropped" for job in waiting),
        ]
        question.answer({"cancelled": True, "message": "; ".join(part for part in parts if part)})

    def _state(self) -> dict[str, Any]:
        """The state, with a number that changes whenever other models may be there or be compiled."""
        return {
            **status(self._cells),
            "waiting": [f"{job.title} of {job.name}" for job in list(self._waiting) if not job.dropped],
            "revision": self._cells.ended + self._done,
        }

    def _changed(self) -> None:
        self._watch.wake()

    # -- what is done on the main thread -----------------------------------------------------------------------------

    def _list_models(self, question: _Question) -> None:
        question.takes()
        if self._cells.running or ongoing.work() is not None:
            question.answer({**self._models, "stale": True})
            return

        def look() -> None:
            self._models = inventory(self._shell.user_ns)

        self._main.run(look, lambda error: question.finish(error, lambda: {**self._models, "stale": False}))

    def _compile(self, question: _Question) -> None:
        words = question.takes("name", optional=("strategy", "backend", "mode", "dynamic", "rest"))

        def work() -> str:
            model = model_named(self._shell.user_ns, words["name"])
            tree = tree_of(model)
            choices = _chosen(words)
            offers = offers_for(model, tree)
            for setting, offered in (
                ("strategies", "strategy"),
                ("backends", "backend"),
                ("modes", "mode"),
                ("rest", "rest"),
            ):
                value = getattr(choices, offered)
                known = [offer.value for offer in getattr(offers, setting)]
                if value not in known:
                    raise UsageError(f"there is no {offered} {value!r}; those that exist: {', '.join(known)}")
                if reason := offers.refusal(setting, value):
                    raise UsageError(f"{offered} {value} cannot be had here: {reason}")
            if reason := choices.obstacle("compile", tree):
                raise UsageError(reason)
            progress = Progress()
            with ongoing.working("compile", progress):
                carry_out("compile", model, choices, tree, None, progress)
            return PREPARED

        self._run(_Job("Compile", words["name"], work, question))

    def _restore(self, question: _Question) -> None:
        words = question.takes("name")

        def work() -> str:
            model = model_named(self._shell.user_ns, words["name"])
            carry_out("restore", model, Choices(), tree_of(model), None, Progress())
            return restored(type(model).__name__)

        self._run(_Job("Restore", words["name"], work, question))

    def _run(self, job: _Job) -> None:
        """Do a job on the main thread, now or once it is free, and answer."""
        self._waiting.append(job)
        self._changed()
        self._main.run(partial(self._begin, job), partial(self._finish, job))

    def _begin(self, job: _Job) -> None:
        self._waiting.remove(job)
        job.do()

    def _finish(self, job: _Job, error: BaseException | None) -> None:
        controls = sys.modules.get("nbcompile.notebook.controls")
        if controls is not None:
            controls.refresh_all()
        self._done += 1
        self._changed()

        def told() -> dict[str, Any]:
            model = self._shell.user_ns[job.name]
            return {"message": job.told, "model": entry(job.name, model)}

        job.question.finish(error, told, title=job.title)


class _Job:
    """A compile or restore that a front end asked for."""

    def __init__(self, title: str, name: str, work: Callable[[], str], question: _Question) -> None:
        self.title, self.name, self.question = title, name, question
        self.told = ""
        self._work = work
        self._lock = threading.Lock()
        self._begun = self.dropped = False

    def do(self) -> None:
        with self._lock:
            self._begun = True
            if self.dropped:
                raise UsageError("it was dropped before it began")
        self.told = self._work()

    def drop(self) -> bool:
        """Do it no more, if it has not begun; whether that was so."""
        with self._lock:
            first, self.dropped = not self._begun and not self.dropped, True
            return first


class _Question:
    """A front end's question: its parts are checked here, as a page can send anything; and the way back for the answer.

    Attributes:
        context: that in which the question came. What is sent in it names the question, and with it the subshell that
            the front end's next messages are to come on: an answer sent in a cell's context would have ipykernel 7.4
            hold them all until the cell has ended.
    """

    def __init__(self, comm: Any, data: object) -> None:
        self.comm, self.context = comm, copy_context()
        self._data: dict[Any, Any] = data if isinstance(data, dict) else {}
        given = self._data.get("id")
        self._id = given if type(given) is int or (isinstance(given, str) and len(given) <= _LONGEST) else None

    def method(self, known: dict[str, Any]) -> str:
        """The method's name."""
        name = self._data.get("method")
        if isinstance(name, str) and name in known:
            return name
        raise UsageError(f"there is no method {_shown(name)}; those that exist: {', '.join(known)}")

    def takes(self, *needed: str, optional: tuple[str, ...] = ()) -> dict[str, str]:
        """The params, each a word, after checking that they are those that the method takes."""
        params = self._data.get("params") or {}
        if not isinstance(params, dict):
            raise UsageError(f"params is an object with {', '.join((*needed, *optional)) or 'nothing in it'}")
        taken = (*needed, *optional)
        for name, value in params.items():
            if name not in taken:
                raise UsageError(f"there is no param {_shown(name)}; those that exist: {', '.join(taken) or 'none'}")
            if not isinstance(value, str) or not 0 < len(value) <= _LONGEST:
                raise UsageError(f"the param {name} is a word, not {_shown(value)}")
        for name in needed:
            if name not in params:
                raise UsageError(f"the param {name} is missing")
        return params

    def answer(self, result: dict[str, Any]) -> None:
        self._send({"id": self._id, "result": result})

    def fail(self, error: BaseException, title: str = "") -> None:
        """Answer with what went wrong, in a sentence; ``title`` is the work that was to be done."""
        if title:
            told, _ = failure_in_words(title, error)
        elif isinstance(error, UsageError):
            told = str(error)
        else:
            told = clean(f"{type(error).__name__}: {error}", _LONGEST)
        self._send({"id": self._id, "error": told})

    def finish(self, error: BaseException | None, result: Callable[[], dict[str, Any]], title: str = "") -> None:
        """Answer with a result or with what came in between."""
        try:
            if error is not None:
                raise error
            found = result()
        except BaseException as raised:
            self.fail(raised, title)
        else:
            self.answer(found)

    def _send(self, data: dict[str, Any]) -> None:
        try:
            self.context.copy().run(partial(self.comm.send, data=data))
        except Exception:  # the front end is gone
            logging.getLogger("nbcompile").debug("an answer could not be sent", exc_info=True)


def _chosen(words: dict[str, str]) -> Choices:
    """The choices that a front end's words stand for; what it leaves out is at its default."""
    dynamic = words.get("dynamic", "auto")
    if dynamic not in DYNAMIC:
        raise UsageError(f"there is no dynamic {dynamic!r}; those that exist: {', '.join(DYNAMIC)}")
    usual = Choices.default()
    return Choices(
        strategy=words.get("strategy", usual.strategy),
        backend=words.get("backend", usual.backend),
        mode=words.get("mode", usual.mode),
        dynamic=DYNAMIC[dynamic],
        rest=words.get("rest", usual.rest),
    )


def _leave_open(*args: object, **keywords: object) -> None:
    """Stands in for a comm's ``close``."""


def _shown(value: object) -> str:
    return repr(clean(value, 60)) if isinstance(value, str) else f"of the kind {type(value).__name__}"


def _message_type(shell: Any) -> str:
    """The type of the message that the kernel handles, as it makes this."""
    parent = shell.get_parent() if hasattr(shell, "get_parent") else None
    return str((parent or {}).get("header", {}).get("msg_type", ""))
