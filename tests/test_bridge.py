"""The kernel's side of the lab extension: a real kernel, asked over a subshell as JupyterLab does, and without one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbcompile.notebook import bridge
from tests.front import FrontEnd

pytestmark = [pytest.mark.slow]

SETUP = """\
import threading, time, torch
import nbcompile
%load_ext nbcompile
from tests.blocks import Block, NumberedBlock, net, ran_eager, rows

model, x = net(12, NumberedBlock).requires_grad_(False), rows()
eager, inductor = "eager", "inductor"

@torch._dynamo.register_backend
def slow(graph, inputs):
    if len(inputs) > 1:  # not the trivial function of the start-up
        time.sleep(1.5)
    return graph.forward

def step():
    return model(x)

def threads():
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("nbcompile"))
"""

MAGIC = "%%compile_regional model --backend {backend} -n 1 -r 1\ny = model(x)"
PLAIN = 'r = nbcompile.compare(model, step, ["regional"], backend={backend}, rounds=1, calls=1)'
CALL = "nbcompile.compile_regions(model, backend={backend}); y = model(x)"
CELLS = {"magic": MAGIC, "plain": PLAIN, "call": CALL}
EAGER = "print(ran_eager(model, x), threads())"

BACKENDS = ["slow", pytest.param("inductor", marks=pytest.mark.inductor)]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontEnd]:
    """A kernel with the extension loaded, and models and backends in it."""
    front = FrontEnd(tmp_path_factory.mktemp("kernel"))
    try:
        front.run(SETUP + "slow_name = 'slow'")
        yield front
    finally:
        front.stop()


@pytest.fixture
def front(kernel: FrontEnd) -> Iterator[FrontEnd]:
    """That kernel, with the comm opened over a subshell, and everything as it was before at the end."""
    kernel.open()
    kernel.events.clear()
    yield kernel
    kernel.run("nbcompile.restore(model); torch._dynamo.reset(); import gc; gc.collect()")
    # a test that lets a compile come to its end leaves nothing for the next one to interrupt
    kernel.run("import torch._inductor.codecache as codecache; codecache.FxGraphCache.clear()")


def in_code(backend: str, cell: str) -> str:
    """A cell's source for a backend, which the magic takes as it is and Python in quotes."""
    return cell.format(backend=backend if cell is MAGIC else repr(backend))


def wait_for_phase(front: FrontEnd, phases: tuple[str, ...], seconds: float = 60) -> dict[str, Any]:
    """Ask until the compiler is in one of these phases of a region; the state."""
    end = time.monotonic() + seconds
    while True:
        state: dict[str, Any] = front.ask("status")
        work = state["work"] or {}
        if work.get("phase") in phases and work["region"].startswith("layers."):
            return state
        assert time.monotonic() < end, state
        time.sleep(0.1)


# -- what is answered while the main thread compiles -------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CELLS)
def test_status_is_answered_and_sent_while_the_main_thread_compiles(front: FrontEnd, name: str, backend: str) -> None:
    # GIVEN a front end that watches, and a cell that compiles twelve blocks
    assert front.ask("watch")["busy"] is False
    cell = front.start(in_code(backend, CELLS[name]))
    front.until(lambda: bool(front.events and front.events[-1][1]["status"]["busy"]), 20)
    # WHEN it is asked four times a second
    asked, waits = [], []
    while front.running(cell) and sum(bool(s["work"] and s["work"]["region"]) for _, s in asked) < 24:
        before = time.monotonic()
        state = front.ask("status", seconds=5)
        waits.append(time.monotonic() - before)
        asked.append((before, state))
        time.sleep(0.25)
    # THEN it is answered each time, at once, also while a compiler keeps the interpreter for itself
    compiling = [(at, s["work"]) for at, s in asked if s["work"] and s["work"]["region"].startswith("layers.")]
    assert len(compiling) >= 5
    assert sorted(waits)[len(waits) // 2] < 1.0  # 0.02 s on a machine that has nothing else to do
    assert max(waits) < 5.0
    # AND what it says goes on: the time passes, the regions come one after another
    assert len({work["elapsed_seconds"] for _, work in compiling}) == len(compiling)
    assert len({work["region"] for _, work in compiling}) >= 2
    assert {work["kind"] for _, work in compiling} == {{"magic": "compile", "plain": "compare", "call": "call"}[name]}
    assert {work["strategy"] for _, work in compiling} == {"regional"}
    models = [s["model"] for _, s in asked if s["work"] and s["work"]["region"].startswith("layers.")]
    assert {(m["strategy"], m["backend"], m["regions"]) for m in models} == {("regional", backend, 12)}
    done = [m["compiled"] for m in models]
    assert done == sorted(done)
    assert done[-1] > done[0]
    # AND what comes unasked changes at least once a second: five times where nothing else runs
    begun, over = compiling[0][0], compiling[-1][0]
    unasked = [at for at, event in front.events if begun <= at <= over and event["status"]["work"]]
    assert len(unasked) >= (over - begun) - 1
    if front.running(cell):
        assert front.ask("cancel")["cancelled"] is True
        front.ended(cell, 60)


@pytest.mark.alone  # rounds that lack the cores are taken again, and do not count as done
def test_status_is_answered_while_rounds_are_timed(front: FrontEnd) -> None:
    # GIVEN rounds that take some seconds, during which no onlooker is to draw
    front.ask("watch")
    cell = front.start(
        "def step():\n    time.sleep(0.2)\n    return model(x)\n"
        'r = nbcompile.compare(model, step, ["eager"], rounds=8, calls=1)'
    )
    front.until(lambda: any(event["status"]["timing"] for _, event in front.events), 20)
    # WHEN the state is asked for THEN it is told at once, and that rounds are timed
    seen = []
    for _ in range(4):
        before = time.monotonic()
        seen.append(front.ask("status"))
        assert time.monotonic() - before < 1.5  # four rounds of a strategy take as long
        time.sleep(0.5)
    assert {state["timing"] for state in seen} == {True}
    assert {state["work"]["unit"] for state in seen} == {"rounds"}
    done = [state["work"]["done"] for state in seen]
    assert done == sorted(done)
    assert done[-1] > done[0]
    assert {state["work"]["expected"] for state in seen} == {8}
    front.ended(cell, 30)
    # AND what came unasked came seldom
    timed = [at for at, event in front.events if event["status"]["timing"]]
    assert len(timed) <= timed[-1] - timed[0] + 2


# -- cancel ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CELLS)
def test_cancel_stops_what_compiles(front: FrontEnd, name: str, backend: str) -> None:
    # GIVEN a cell that compiles
    cell = front.start(in_code(backend, CELLS[name]))
    wait_for_phase(front, ("backend",) if backend == "slow" else ("inductor", "codegen", "kernels"))
    # WHEN it is cancelled
    before = time.monotonic()
    answer = front.ask("cancel")
    # THEN it is told what was stopped, and the cell ends within three seconds
    assert answer["cancelled"] is True
    assert "was interrupted" in answer["message"]
    assert front.ended(cell, 10) == "KeyboardInterrupt"
    assert time.monotonic() - before < 10
    # AND nothing goes on, the next cell works, and no thread of it is left
    assert front.ask("status")["work"] is None
    if name == "call":  # the user compiled it, the user takes it back
        front.ask("restore", name="model")
    front.until(lambda: "cancel" not in front.run("print(threads())"), 10)
    assert front.run(EAGER).startswith("12 ")


def test_cancel_stops_what_a_panel_does(front: FrontEnd) -> None:
    # GIVEN a panel whose button was pressed, so that no cell runs
    front.run("panel = nbcompile.panel(model, step); panel.backend.value = 'slow'")
    front.run("thread = threading.Thread(target=panel.buttons['compile'].click); thread.start(); thread.join()")
    state = wait_for_phase(front, ("backend",))
    assert (state["busy"], state["work"]["kind"]) == (True, "compile")
    # WHEN it is cancelled
    before = time.monotonic()
    assert front.ask("cancel")["cancelled"] is True
    # THEN the panel says so and its model is as it was
    assert "Compile was interrupted. The model is as it was before." in front.run("print(panel.message.value)")
    assert time.monotonic() - before < 10
    assert front.run(EAGER).startswith("12 ")
    front.run("panel.close()")


@pytest.mark.parametrize(
    "code", ["time.sleep(2)", "end = time.time() + 2\nwhile time.time() < end: pass", "model(x); time.sleep(2)"]
)
def test_cancel_leaves_the_users_own_cell_alone(front: FrontEnd, code: str) -> None:
    # GIVEN a compiled model and a cell that does something of its own
    front.run("nbcompile.compile_regions(model, backend='eager'); model(x)")
    cell = front.start(code)
    front.until(lambda: bool(front.ask("status")["busy"]), 5)
    time.sleep(0.5)
    # WHEN there is nothing to cancel THEN that is told, and the cell goes on to its end
    answer = front.ask("cancel")
    assert answer["cancelled"] is False
    assert "nothing of nbcompile goes on" in answer["message"]
    assert front.running(cell)
    assert front.ended(cell, 10) == "ok"


def test_cancel_leaves_a_users_own_compile_alone(front: FrontEnd) -> None:
    # GIVEN a model that is compiled by this package, and another that is compiled by torch alone
    front.run("nbcompile.compile_regions(model, backend='eager'); model(x)")
    cell = front.start("y = torch.compile(net(), backend='slow')(x)")
    time.sleep(0.7)
    # WHEN the latter compiles THEN it is none of this package's
    assert front.ask("cancel")["cancelled"] is False
    assert front.ended(cell, 20) == "ok"


# -- models, compile, restore ------------------------------------------------------------------------------------------


def test_models_are_listed_with_what_could_be_compiled(front: FrontEnd) -> None:
    # GIVEN two names of one model, one without anything that repeats, a loss, and values that watch who looks at them
    front.run(
        """
class Nosy:
    looked = []
    def __getattribute__(self, name):
        Nosy.looked.append(name)
        raise RuntimeError(name)
class Meta(type):
    def __getattribute__(cls, name):
        Nosy.looked.append(name)
        return type.__getattribute__(cls, name)
class Odd(metaclass=Meta):
    __class__ = property(lambda self: Nosy.looked.append("class"))
nosy, odd, alias, loss = Nosy(), Odd(), model, torch.nn.CrossEntropyLoss()
single = torch.nn.Sequential(torch.nn.Linear(2, 2))
broken = torch.nn.Module.__new__(torch.nn.Module)
Nosy.looked.clear()
for number in range(5000): globals()[f"value_{number}"] = number
"""
    )
    # WHEN the models are asked for
    before = time.monotonic()
    answer = front.ask("models")
    # THEN each is there once, soon, with its plan
    assert time.monotonic() - before < 10
    assert answer["stale"] is False
    found = {each["name"]: each for each in answer["models"]}
    assert list(found) == ["model", "single"]
    assert (found["model"]["class_name"], found["model"]["parameters"]) == ("Net", 12 * (16 * 16 + 16))
    assert found["model"]["groups"] == [{"path": "layers", "class_name": "NumberedBlock", "count": 12}]
    assert found["model"]["compiled"] is None
    assert "no repeated blocks" in str(found["single"]["offers"]["strategies"])
    # AND nothing of the user's has run
    assert front.run("print(Nosy.looked)") == "[]\n"
    # WHEN a cell runs THEN the list is the one from before, and says so
    cell = front.start("second = net(); time.sleep(1)")
    front.until(lambda: bool(front.ask("status")["busy"]), 5)
    old = front.ask("models")
    assert old == {**answer, "stale": True}
    # AND once it has ended, the revision is another, and so is the list
    revision = front.ask("status")["revision"]
    assert front.ended(cell, 10) == "ok"
    front.until(lambda: front.ask("status")["revision"] > revision, 5)
    assert "second" in [each["name"] for each in front.ask("models")["models"]]
    front.run("del nosy, odd, alias, single, broken, second, Nosy, Odd, Meta")


def test_compile_and_restore(front: FrontEnd) -> None:
    # GIVEN settings that cells have made
    front.run("torch._dynamo.config.recompile_limit = 77; seen = []")
    front.run(
        "@torch._dynamo.register_backend\ndef noting(graph, inputs):\n"
        "    main = threading.current_thread() is threading.main_thread()\n"
        "    seen.append((main, torch._dynamo.config.recompile_limit))\n"
        "    return graph.forward"
    )
    # WHEN a model is compiled from the side bar THEN it is prepared, and that is told
    answer = front.ask("compile", name="model", strategy="full", backend="noting", dynamic="false")
    assert answer["message"] == "The model is prepared; it compiles at its next call."
    assert (answer["model"]["compiled"]["strategy"], answer["model"]["compiled"]["dynamic"]) == ("full", False)
    state = front.ask("status")["model"]
    assert (state["strategy"], state["backend"], state["pending"]) == ("full", "noting", 1)
    # AND it compiles at the next call, with the user's settings
    assert front.run("y = model(x); print(seen)") == "[(True, 77)]\n"
    state = front.ask("status")["model"]
    assert (state["compiled"], state["pending"], state["recompiles"]) == (1, 0, 0)
    assert state["seconds"] > 0
    # AND WHEN it is restored THEN it runs eager
    assert "runs eager again" in front.ask("restore", name="model")["message"]
    assert front.run(EAGER).startswith("12 ")
    assert front.ask("status")["model"] is None
    front.run("torch._dynamo.config.recompile_limit = 8")


def test_compile_waits_for_the_cell_and_its_answer_blocks_no_later_question(front: FrontEnd) -> None:
    # GIVEN a cell that runs, and a compile that is asked for meanwhile
    cell = front.start("time.sleep(1.5); order = ['cell']")
    front.until(lambda: bool(front.ask("status")["busy"]), 5)
    question = front.question("compile", name="model", backend="eager")
    front.until(lambda: front.ask("status")["waiting"] == ["Compile of model"], 2)
    # WHEN the cell ends THEN it is done
    assert front.ended(cell, 10) == "ok"
    assert front.answer(question, 10)["result"]["model"]["compiled"]["backend"] == "eager"
    # AND the answer, which came from the main thread, has not sent later questions there
    cell = front.start("time.sleep(3)")
    time.sleep(0.5)
    assert front.ask("status", seconds=1)["waiting"] == []
    assert front.running(cell)
    # AND one that still waits can be cancelled
    question = front.question("restore", name="model")
    front.until(lambda: front.ask("status")["waiting"] == ["Restore of model"], 2)
    assert "Restore of model, which waited for the running cell, was dropped" in front.ask("cancel")["message"]
    assert front.ended(cell, 10) == "ok"
    assert "dropped before it began" in front.answer(question, 10)["error"]
    assert front.ask("models")["models"][0]["compiled"]["backend"] == "eager"


def test_what_cannot_be_had_is_refused(front: FrontEnd) -> None:
    # GIVEN what a page could send WHEN it is wrong THEN a sentence says what is, and what there is
    front.run("single = torch.nn.Sequential(torch.nn.Linear(2, 2))")
    for told, params in {
        "'nothing' does not exist in this kernel; models that exist: model": {"name": "nothing"},
        "'x' is no torch.nn.Module": {"name": "x"},
        "'().__class__' does not exist": {"name": "().__class__"},
        "no backend 'gcc'; those that exist: inductor": {"name": "model", "backend": "gcc"},
        "no strategy 'eager'": {"name": "model", "strategy": "eager"},
        "mode reduce-overhead cannot be had here": {"name": "model", "mode": "reduce-overhead"},
        "no dynamic 'yes'; those that exist: auto, true, false": {"name": "model", "dynamic": "yes"},
        "strategy regional cannot be had here: no repeated blocks": {"name": "single"},
        "the param name is missing": {},
        "the param name is a word, not of the kind list": {"name": ["model"]},
        "the param name is a word": {"name": "m" * 1000},
        "no param 'options'": {"name": "model", "options": "x"},
    }.items():
        error = front.refused("compile", **params)
        assert told in error
        assert "\n" not in error
    assert "no method 'eval'; those that exist: hello, status" in front.refused("eval")
    # AND what is no question at all ends nothing
    for data in (None, [], "x", {"id": {}}, {"id": 1, "method": {}}, {"id": 2, "method": "status", "params": [1]}):
        front.send(data)
    assert front.ask("hello")["protocol"] == 1
    assert front.run("print(nbcompile.compiler.current(model))") == "None\n"
    front.run("del single")


# -- kernels of other kinds, loading and unloading -----------------------------------------------------------------


def test_without_subshells_questions_wait_and_the_state_comes_all_the_same(front: FrontEnd) -> None:
    # GIVEN a front end on the main shell
    front.open(subshell=False)
    # WHEN the kernel is idle THEN it is answered, also what is done on the main thread
    assert front.ask("hello")["status"]["busy"] is False
    assert [each["name"] for each in front.ask("models")["models"]] == ["model"]
    assert "is prepared" in front.ask("compile", name="model", backend="slow")["message"]
    front.ask("watch")
    front.events.clear()
    # WHEN a cell compiles THEN a question waits, and the state comes all the same
    cell = front.start("y = net(2, NumberedBlock)(x); nbcompile.compile_regions(model, backend='slow'); z = model(x)")
    question = front.question("status")
    front.until(lambda: any((e["status"]["work"] or {}).get("region") == "layers.2" for _, e in front.events), 20)
    assert not front.answered(question)
    # AND the kernel's own interrupt ends it, and then the question is answered
    front.manager.interrupt_kernel()
    assert front.ended(cell, 10) == "KeyboardInterrupt"
    assert front.answer(question, 10)["result"]["work"] is None
    assert "runs eager again" in front.ask("restore", name="model")["message"]


def test_questions_touch_nothing_of_the_users(front: FrontEnd) -> None:
    # GIVEN a callback as matplotlib has one, which shows and closes the figures of the running cell
    front.run("shown = []; get_ipython().events.register('post_execute', shown_by := lambda: shown.append(1))")
    cell = front.start("shown.clear(); time.sleep(1); print(shown)")
    # WHEN questions are asked while a cell runs THEN it is not called
    for _ in range(5):
        front.ask("status")
    assert front.ended(cell, 10) == "ok"
    assert "[]" in front._printed[cell]
    front.run("get_ipython().events.unregister('post_execute', shown_by)")


def test_unload_closes_and_load_opens_again(front: FrontEnd) -> None:
    # GIVEN an open comm that is watched WHEN the extension is unloaded
    front.ask("watch")
    assert "nbcompile-watch" in front.run("print(threads())")
    before = front.run("print({name: len(calls) for name, calls in get_ipython().events.callbacks.items()})")
    front.run("%unload_ext nbcompile")
    # THEN the front end is told, a new comm is refused, and nothing is left
    assert front.closed
    front.open()
    front.until(lambda: front.closed, 10)
    front.until(lambda: "watch" not in front.run("print(threads())"), 10)
    after = front.run("print({name: len(calls) for name, calls in get_ipython().events.callbacks.items()})")
    assert after != before
    # AND WHEN it is loaded again THEN it answers, and no callback is there twice
    front.run("%load_ext nbcompile")
    front.open()
    assert front.ask("hello")["version"]
    assert front.run("print({name: len(calls) for name, calls in get_ipython().events.callbacks.items()})") == before


def test_front_ends_that_went_without_leave_are_forgotten(front: FrontEnd) -> None:
    # GIVEN more front ends than are kept, of which each page that was loaded again is one
    for _ in range(20):
        front.open(subshell=False)
        front.ask("watch")
    # WHEN the state changes THEN the newest is told
    front.events.clear()
    front.run("pass")
    front.until(lambda: bool(front.events), 5)
    assert front.run("from nbcompile.notebook import bridge; print(len(bridge._bridge._watch._watchers))") == "16\n"


def test_shell_without_a_kernel_has_no_bridge(bare_shell: InteractiveShell) -> None:
    # GIVEN a terminal's shell WHEN the extension is loaded THEN there is nothing that a front end could open
    callbacks = {name: list(known) for name, known in bare_shell.events.callbacks.items()}
    bare_shell.run_line_magic("load_ext", "nbcompile")
    assert bridge._bridge is None
    assert bare_shell.events.callbacks == callbacks


def test_loading_it_as_the_kernel_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a profile that loads the extension before the kernel has its loop, and before any cell
    folder = tmp_path / "profile_default"
    folder.mkdir()
    (folder / "ipython_kernel_config.py").write_text("c.InteractiveShellApp.extensions = ['nbcompile']")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    front = FrontEnd(tmp_path)
    try:
        # WHEN a front end comes THEN it is answered, and work is done on the main thread
        front.open()
        assert front.ask("hello")["status"]["busy"] is False
        assert front.ask("models") == {"models": [], "more": 0, "stale": False}
        front.run("from tests.blocks import net; model = net()")
        assert front.ask("compile", name="model", backend="eager")["model"]["compiled"]["backend"] == "eager"
    finally:
        front.stop()
