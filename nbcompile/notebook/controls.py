"""A panel of controls for one model: choose settings, compile, compare, tune, take it back.

The controls are ipywidgets' own. The report is no widget: it is an ordinary output of the cell that shows the panel,
replaced in place, because a saved notebook keeps outputs and loses widgets. A figure inside a widget would need the
widgets' state in the file (megabytes for one figure) and a kernel to be seen.
"""

from __future__ import annotations

import dataclasses
import html
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from ..errors import UsageError
from ..ongoing import working
from ..render.units import escape_html, seconds
from .choices import ACTIONS, DYNAMIC, Choices, Names, Offer, offers_for, rest_of, takes_modes, tree_of
from .live import Live
from .main_thread import MainThread
from .output import CellOutput
from .panel import PREPARED, carry_out, failure_in_words, known_report, restored
from .tree import RegionTree
from .verdict import Verdict, verdict

if TYPE_CHECKING:
    from torch import nn

    from ..report import Report

_TITLES = {"compile": "Compile", "compare": "Compare", "tune": "Tune", "restore": "Restore"}
_TIPS = {
    "compile": "Compile the model in place with these settings, and run the step if there is one",
    "compare": "Measure eager beside the checked strategies; what was compiled is put back afterwards",
    "tune": "Try settings within the time given and recommend the best for N calls",
    "restore": "As if the model had never been compiled",
}
_MOST_DETAILS = 4000  # characters of a compiler's message

_PLACE = "The report of what the panel does will be shown here."
#: A front end forgets which output to replace when its page is loaded again; controls it asks the kernel for.
_BELOW = "The report is below; once the page was loaded again, run this cell anew to see it."
_NO_VERDICT = "Compare or tune first: the slider then ranks what was measured for N calls, without measuring again."

_STYLE = """<style>
.nbc-panel{max-width:960px}
.nbc-panel .widget-html-content{line-height:1.45;overflow-wrap:anywhere}
.nbc-panel .nbc-row{flex-flow:row wrap;align-items:center}
.nbc-panel .nbc-faint{opacity:.75;font-size:12px}
.nbc-panel .nbc-message{padding:4px 10px;border-left:4px solid rgba(128,128,128,.6)}
.nbc-panel .nbc-working{border-left-color:#0072B2;background:rgba(0,114,178,.12)}
.nbc-panel .nbc-done{border-left-color:#009E73;background:rgba(0,158,115,.12)}
.nbc-panel .nbc-error{border-left-color:#D55E00;background:rgba(213,94,0,.13)}
.nbc-panel .nbc-message pre{white-space:pre-wrap;max-height:16em;overflow:auto;font-size:12px;color:inherit;\
background:transparent}
.nbc-panel .nbc-verdict p{margin:2px 0}
.nbc-panel .nbc-verdict table{border-collapse:collapse;font-size:12px;margin:4px 0}
.nbc-panel .nbc-verdict th,.nbc-panel .nbc-verdict td{padding:2px 12px 2px 0;text-align:left;\
border-bottom:1px solid rgba(128,128,128,.3);font-variant-numeric:tabular-nums}
.nbc-panel .nbc-verdict .nbc-best td{font-weight:600}
.nbc-panel textarea{font-family:var(--jp-code-font-family,monospace);font-size:12px}
</style>"""

_open: weakref.WeakSet[Panel] = weakref.WeakSet()


class Panel:
    """The controls for one model. :func:`nbcompile.panel` makes one.

    Attributes:
        step: what runs the model once, ``None`` if there is nothing.
        choices: the settings as they are chosen.
        report: what was compiled or measured last, ``None`` if nothing was yet.
        widget: the controls.
    """

    def __init__(self, model: nn.Module, step: Callable[[], Any] | None, names: Names, shell: Any) -> None:
        self._shell = shell
        self._model = weakref.ref(model)  # front ends keep widgets for ever; they should not keep the model too
        self._class_name = type(model).__name__
        self.step = step
        self.names = names
        self.tree = tree_of(model)
        self.offers = offers_for(model, self.tree)
        self.choices = self._possible(Choices.default())
        self.report: Report | None = None
        self._reported_at = 0.0
        self._measured: Report | None = None  # what the slider ranks: the latest report that has figures for it
        self._unfinished: Report | None = None  # of a tuning that was interrupted, to be continued
        self._busy = threading.Lock()
        self._lock = threading.RLock()  # a change may come on one thread while work on another ends
        self._setting = False
        self._planned: tuple[Any, ...] = ()
        self._outputs: list[CellOutput] = []
        self._closed = False
        self._main = MainThread(self._shell)
        self._take_reports(model)
        self._build()
        self._shell.events.register("post_run_cell", self._after_cell)
        _open.add(self)

    def _take_reports(self, model: nn.Module) -> None:
        """Go on from what is known of the model already, so that nothing need be measured twice.

        That is what the latest panel of the same model showed, else what a cell compared or tuned.
        """
        others = [other for other in list(_open) if other._model() is model and other.report is not None]
        if others:
            latest = max(others, key=lambda other: other._reported_at)
            self.report, self._measured = latest.report, latest._measured
            self._reported_at, self._unfinished = latest._reported_at, latest._unfinished
        elif (known := known_report(model)) is not None and verdict(known, 1) is not None:
            self._measured = known

    def close(self) -> None:
        """Take the controls away. Work that waits is dropped; what was compiled stays, and so does the report."""
        self._closed = True
        _open.discard(self)
        self._main.forget()
        if self._after_cell in self._shell.events.callbacks["post_run_cell"]:
            self._shell.events.unregister("post_run_cell", self._after_cell)
        for part in (*_parts(self.widget), self.cuda_graph):
            part.close()

    def code(self, action: str) -> str:
        """Lines of Python that do the same as the button for ``action``: compile, compare, tune or restore."""
        return self.choices.code(action, self.tree, self.names)

    def _ipython_display_(self) -> None:
        data = dict(self.widget._repr_mimebundle_())
        data["text/plain"] = f"{self!r}: its controls need a running kernel; its report is below"
        self._shell.display_pub.publish(data=data, metadata={})
        output = CellOutput(self._shell)
        output.line(_PLACE)
        if self.report is not None:
            output.report(self.report)
        self._outputs.append(output)

    def __repr__(self) -> str:
        return f"<nbcompile panel of {self._class_name}>"

    # -- what the controls show ------------------------------------------------------------------------------------

    def _build(self) -> None:
        offers, choices = self.offers, self.choices
        self.title = widgets.HTML()
        self.strategy = _dropdown("strategy", offers.strategies, choices.strategy)
        self.backend = _dropdown("backend", offers.backends, choices.backend)
        self.mode = _dropdown("mode", offers.modes, choices.mode, width="290px")
        self.dynamic = _dropdown("dynamic", offers.dynamic, _word(choices.dynamic))
        self.rest = _dropdown("rest", offers.rest, choices.rest)
        self.fullgraph = widgets.Checkbox(
            choices.fullgraph, description="fullgraph", indent=False, layout=_width("auto")
        )
        self.cuda_graph = widgets.Checkbox(
            choices.cuda_graph, description="cuda_graph", indent=False, layout=_width("auto"),
            tooltip="Record the whole step as a CUDA graph: for calls without gradients whose shapes come again",
        )  # fmt: skip
        self.background = widgets.Checkbox(
            choices.background, description="background", indent=False, layout=_width("auto"),
            tooltip="Compile: run eager at once, and compile beside it in a process of its own",
        )  # fmt: skip
        self.hint = widgets.HTML()
        self.regions = RegionTree(self.tree, self._regions_chosen)
        self.buttons = {action: _button(action) for action in ACTIONS}
        self.compared = {
            offer.value: widgets.Checkbox(
                not offer.reason and offer.value in choices.compare,
                description=offer.text,
                disabled=bool(offer.reason),
                indent=False,
                layout=_width("auto"),
            )
            for offer in offers.strategies
        }
        self.budget = widgets.BoundedFloatText(choices.budget, min=1, max=86400, step=10, layout=_width("90px"))
        self.message = widgets.HTML()
        self.calls = widgets.FloatLogSlider(
            choices.calls, base=10, min=0, max=6, step=0.05, readout_format=",.0f", description="N calls",
            layout=_width("min(100%, 460px)"),
        )  # fmt: skip
        self.take = widgets.Button(description="Compile with the best", layout=_width("auto"))
        self.ranking = widgets.HTML()
        self.code_of = widgets.Dropdown(
            options=[(f"Code of {_TITLES[action]}", action) for action in ACTIONS], layout=_width("180px")
        )
        self.code_text = widgets.Textarea(layout=widgets.Layout(width="calc(100% - 4px)", height="6.5em"))
        self.widget = widgets.VBox(
            [
                self.title,
                _row(
                    *(self.strategy, self.backend, self.mode, self.dynamic, self.rest, self.fullgraph),
                    *([self.cuda_graph] if offers.cuda_graph else []),
                    self.background,
                ),
                self.hint,
                self.regions.widget,
                _row(self.buttons["compile"], self.buttons["restore"]),
                _row(self.buttons["compare"], widgets.Label("eager with"), *self.compared.values()),
                _row(self.buttons["tune"], widgets.Label("for N calls, within"), self.budget, widgets.Label("seconds")),
                self.message,
                _row(self.calls, self.take),
                self.ranking,
                self.code_of,
                self.code_text,
            ]
        )
        self.widget.add_class("nbc-panel")
        for name in (
            "strategy",
            "backend",
            "mode",
            "dynamic",
            "rest",
            "fullgraph",
            "cuda_graph",
            "background",
            "budget",
        ):
            getattr(self, name).observe(self._setting_chosen, "value")
        for box in self.compared.values():
            box.observe(self._setting_chosen, "value")
        self.calls.observe(self._setting_chosen, "value")
        self.code_of.observe(lambda change: self._refresh(), "value")
        for action, button in self.buttons.items():
            button.on_click(lambda _, action=action: self._start(action))
        self.take.on_click(lambda _: self._take_best())
        self._refresh()

    def _possible(self, choices: Choices) -> Choices:
        """Choices with a strategy and a mode that can be had here."""
        if self.offers.refusal("strategies", choices.strategy):
            choices = dataclasses.replace(choices, strategy=_first(self.offers.strategies))
        if self.offers.refusal("modes", choices.mode) or not takes_modes(choices.backend):
            choices = dataclasses.replace(choices, mode="default")
        compare = tuple(o.value for o in self.offers.strategies if not o.reason and o.value in choices.compare)
        return dataclasses.replace(choices, compare=compare)

    def _setting_chosen(self, change: dict[str, Any]) -> None:
        """Take over what a control says now, or put it back with the reason if that cannot be had here."""
        with self._lock:
            if not self._setting:
                self._take_over(change)

    def _take_over(self, change: dict[str, Any]) -> None:
        setting = {"strategy": "strategies", "backend": "backends", "mode": "modes"}.get(self._name_of(change["owner"]))
        reason = self.offers.refusal(setting, change["new"]) if setting else ""
        if reason:
            with self._unobserved():
                change["owner"].value = change["old"]
            self._tell("error", f"{change['new']} cannot be chosen here: {reason}. {change['old']} stays chosen.")
            return
        mode = self.mode.value if takes_modes(self.backend.value) else "default"
        self.choices = dataclasses.replace(
            self.choices,
            strategy=self.strategy.value,
            backend=self.backend.value,
            mode=mode,
            dynamic=DYNAMIC[self.dynamic.value],
            rest=self.rest.value,
            fullgraph=self.fullgraph.value,
            cuda_graph=self.cuda_graph.value,
            background=self.background.value,
            compare=tuple(name for name, box in self.compared.items() if box.value),
            calls=max(1, round(self.calls.value)),
            budget=self.budget.value,
        )
        self._refresh()

    def _name_of(self, owner: object) -> str:
        return next((name for name in ("strategy", "backend", "mode") if getattr(self, name) is owner), "")

    def _regions_chosen(self, left_out: frozenset[str]) -> None:
        self.choices = dataclasses.replace(self.choices, left_out=left_out)
        self._refresh()

    @contextmanager
    def _unobserved(self) -> Iterator[None]:
        self._setting = True
        try:
            yield
        finally:
            self._setting = False

    def _refresh(self) -> None:
        """Let every control show the choices, and what can be done with them. Cheap, and right on any thread."""
        if self._closed:
            return
        with self._lock:
            self._show_choices()
            self._show_verdict()

    def _show_choices(self) -> None:
        choices, model = self.choices, self._model()
        with self._unobserved():
            for name in ("strategy", "backend", "mode", "rest", "fullgraph", "cuda_graph", "background"):
                getattr(self, name).value = getattr(choices, name)
            self.dynamic.value = _word(choices.dynamic)
        self.title.value = _STYLE + self._state(model)
        self.mode.disabled = not takes_modes(choices.backend)
        regional = choices.strategy == "regional" or "regional" in choices.compare
        self.rest.disabled = self.cuda_graph.disabled = not regional
        self.background.disabled = choices.strategy != "regional"
        self.hint.value = self._hints()
        self.code_text.value = self.code(self.code_of.value)
        if model is not None and self._planned != (choices.rest, choices.left_out):
            self._planned = (choices.rest, choices.left_out)
            self.regions.show_rest(rest_of(model, choices, self.tree))
        for action, button in self.buttons.items():
            why = self._obstacle(action)
            button.disabled = self._busy.locked() or bool(why)
            button.tooltip = why or _TIPS[action]

    def _show_verdict(self) -> None:
        found = self._verdict()
        self.ranking.value = found.to_html() if found is not None else _faint(_NO_VERDICT)
        self.take.disabled = self._busy.locked() or found is None
        self.take.tooltip = "Compile with what the ranking recommends" if found else "nothing is ranked yet"

    def _verdict(self) -> Verdict | None:
        return None if self._measured is None else verdict(self._measured, self.choices.calls)

    def _state(self, model: nn.Module | None) -> str:
        from ..compiler import current

        name = f"<b>{escape_html(self.names.model, 60)}</b> ({escape_html(self._class_name, 60)})"
        if model is None:
            return f"{name}: the model is gone. Make a panel for the new one."
        compilation = current(model)
        if compilation is None:
            return f"{name} runs eager: not compiled."
        settings = ", ".join(f"{key}={value!r}" for key, value in compilation.plugin.to_kwargs().items())
        return f"{name} is compiled: {escape_html(compilation.strategy)}{', ' * bool(settings)}{escape_html(settings)}."

    def _hints(self) -> str:
        """What cannot be had here, each with its reason."""
        lines = []
        if not takes_modes(self.choices.backend):
            lines.append(f"mode: the backend {self.choices.backend} has no modes; inductor has")
        lines += [f"{_TITLES[action]}: {why}" for action in ACTIONS if (why := self._obstacle(action))]
        return _faint(*lines) if lines else ""

    def _obstacle(self, action: str) -> str:
        """Why a button cannot be pressed, ``""`` if it can."""
        if action in ("compare", "tune") and self.step is None:
            return "needs a step, a function that runs the model once: nbcompile.panel(model, step)"
        return self.choices.obstacle(action, self.tree)

    def _tell(self, kind: str, text: str, details: str = "") -> None:
        """Show a message: of kind working, done or error."""
        more = (
            f"<details><summary>the whole message</summary><pre>{html.escape(details[:_MOST_DETAILS])}</pre></details>"
            if details
            else ""
        )
        role = "alert" if kind == "error" else "status"
        self.message.value = f'<div class="nbc-message nbc-{kind}" role="{role}">{escape_html(text, 900)}{more}</div>'

    # -- what the buttons do -----------------------------------------------------------------------------------------

    def _take_best(self) -> None:
        found = self._verdict()
        if found is None or self._busy.locked():
            return
        if found.settings["strategy"] == "eager":
            self._start("restore")
            return
        self.choices = self.choices.with_setting(found.settings)
        self._start("compile")

    def _start(self, action: str) -> None:
        """Begin the work of a button, from whatever thread the click came on."""
        if self._closed or self._obstacle(action) or not self._busy.acquire(blocking=False):
            return
        choices = self.choices  # as they are now, whatever is chosen while the work waits
        self._refresh()
        self._tell("working", f"{_TITLES[action]}: {'begins' if self._main.here else 'waits for the running cell'} …")
        try:
            self._main.run(lambda: self._work(action, choices), lambda error: self._finish(action, error))
        except UsageError as error:
            self._finish(action, error)

    def _work(self, action: str, choices: Choices) -> None:
        """The work of a button, on the main thread."""
        from ..compiler import latest_tuning

        if self._closed:
            return
        model = self._model()
        if model is None:
            raise UsageError("the model that this panel was made for is gone; make a panel for the new one")
        before = latest_tuning(model)
        shown = self._outputs[-1] if self._outputs else None
        live = Live(self._shell, quiet=shown is None, output=shown, on_stage=self._say)
        try:
            with live.working, working(action, live.progress):
                report = carry_out(action, model, choices, self.tree, self.step, live.progress, self._unfinished)
        except KeyboardInterrupt:
            kept = latest_tuning(model)
            if kept is not None and kept is not before:
                self._unfinished = kept
                self._take_report(kept)
            raise
        finally:
            live.stop()
        if action in ("tune", "restore"):
            self._unfinished = None
        if report is not None:
            self._take_report(report)
            for output in self._outputs:
                output.report(report)

    def _take_report(self, report: Report) -> None:
        self.report, self._reported_at = report, time.monotonic()
        if verdict(report, 1) is not None:
            self._measured = report

    def _finish(self, action: str, error: BaseException | None) -> None:
        """Say how it went, and let every panel show the state of its model."""
        if error is None:
            self._tell("done", self._told(action))
        else:
            self._show_error(action, error)
            for output in self._outputs:  # a line of progress would otherwise stand there for ever
                output.end(_PLACE) if self.report is None else output.report(self.report)
        self._busy.release()
        refresh_all()

    def _told(self, action: str) -> str:
        if action == "restore":
            return restored(self._class_name)
        if action == "compile":
            if self.step is None or self.report is None:
                return PREPARED
            if self.choices.background and self.choices.strategy == "regional":
                return f"The model runs eager while a process compiles beside it. {_BELOW}"
            taken = sum(part.compile_seconds or 0.0 for part in self.report.groups)  # None: part of another's
            taken += sum(part.compile_seconds for part in self.report.rest)
            return f"Compiled in {seconds(taken)}. {_BELOW}"
        done = "Compared" if action == "compare" else "Tuned"
        return f"{done}; the model is as it was before. The slider ranks the settings for N calls. {_BELOW}"

    def _say(self, line: str) -> None:
        self._tell("working", line)

    def _show_error(self, action: str, error: BaseException) -> None:
        text, details = failure_in_words(_TITLES[action], error)
        if action == "tune" and isinstance(error, KeyboardInterrupt) and self._unfinished is not None:
            text += " What was measured is kept; Tune goes on from there."
        self._tell("error", text, details)

    def _after_cell(self, result: object = None) -> None:
        """A cell may have compiled or restored the model."""
        self._refresh()


def refresh_all() -> None:
    """Let every open panel show the state of its model."""
    for panel in list(_open):
        panel._refresh()


def _parts(widget: Any) -> Iterator[Any]:
    for child in getattr(widget, "children", ()):
        yield from _parts(child)
    yield widget


def _first(offers: tuple[Offer, ...]) -> str:
    return str(next((offer.value for offer in offers if not offer.reason), offers[0].value))


def _dropdown(name: str, offers: tuple[Offer, ...], value: Any, width: str = "230px") -> Any:
    return widgets.Dropdown(
        options=[(offer.text, offer.value) for offer in offers],
        value=value,
        description=name,
        layout=_width(width),
        style={"description_width": "64px"},
    )


def _button(action: str) -> Any:
    style = "primary" if action == "compile" else ""
    return widgets.Button(description=_TITLES[action], button_style=style, layout=_width("100px"))


def _row(*children: Any) -> Any:
    row = widgets.HBox(list(children))
    row.add_class("nbc-row")
    return row


def _width(width: str) -> Any:
    return widgets.Layout(width=width)


def _word(dynamic: bool | None) -> str:
    return next(word for word, value in DYNAMIC.items() if value is dynamic)


def _faint(*lines: str) -> str:
    return f'<div class="nbc-faint">{"<br>".join(escape_html(line, 900) for line in lines)}</div>'
