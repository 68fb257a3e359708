"""The panel without a kernel: its settings and the code they stand for, its ranking, and its controls, pressed."""

from __future__ import annotations

import ast
import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.manager import KernelManager
from torch import nn

import nbcompile
from nbcompile import compiler
from nbcompile.notebook.choices import Choices, Names, offers_for, tree_of
from nbcompile.notebook.controls import Panel
from nbcompile.notebook.main_thread import MainThread
from nbcompile.notebook.verdict import verdict
from nbcompile.report import MIME_TYPE, Report, Strategy
from tests.blocks import BreakingBlock, net, ran_eager, rows
from tests.fake_device import fake_device
from tests.models import module_dict

WANTED = Choices(backend="eager", compare=("regional",))


@pytest.fixture
def shell(bare_shell: InteractiveShell) -> Iterator[InteractiveShell]:
    """A shell with a model of four blocks, an input and a step."""
    shell, model, x = bare_shell, net(), rows()
    shell.push({"nbcompile": nbcompile, "model": model, "x": x, "step": lambda: model(x)})
    yield shell
    nbcompile.restore(model)


@pytest.fixture
def panel(shell: InteractiveShell) -> Iterator[Panel]:
    """A panel of that model, shown, with the quickest backend chosen."""
    panel = nbcompile.panel(shell.user_ns["model"], shell.user_ns["step"])
    panel._ipython_display_()
    panel.backend.value = "eager"
    yield panel
    panel.close()


def said(panel: Panel) -> str:
    """The panel's message."""
    return str(panel.message.value)


# -- a device that records ---------------------------------------------------------------------------------------------


def test_a_cuda_graph_can_be_chosen_only_where_one_can_be_recorded(shell: InteractiveShell) -> None:
    # GIVEN no such device THEN there is no box for it
    model, step = shell.user_ns["model"], shell.user_ns["step"]
    panel = nbcompile.panel(model, step)
    settings = panel.widget.children[1].children
    assert panel.cuda_graph not in settings
    panel.close()
    # GIVEN one THEN there is, and what it means is in the code and done
    with fake_device() as fake, torch.no_grad():
        panel = nbcompile.panel(model, step)
        panel.backend.value = "eager"
        assert panel.cuda_graph in panel.widget.children[1].children
        panel.cuda_graph.value = True
        assert panel.code("compile").splitlines()[1] == (
            "nbcompile.compile_regions(model, backend='eager', cuda_graph=True)"
        )
        assert "cuda_graph=True" in panel.code("compare")
        panel.buttons["compile"].click()
        for _ in range(3):
            step()
        assert len(fake.graphs) == 1
        # AND with a mode that records graphs itself nothing can be pressed, and it says why
        panel.backend.value = "inductor"
        panel.choices = Choices(mode="reduce-overhead", cuda_graph=True)
        panel._refresh()
        assert panel.buttons["compile"].disabled
        assert "which cannot hold others" in panel.buttons["compile"].tooltip
        # AND it is no setting of full compilation
        assert "cuda_graph" not in Choices(strategy="full", cuda_graph=True).code("compile", panel.tree, panel.names)
        panel.close()


# -- settings and code -----------------------------------------------------------------------------------------------


def test_unchecked_blocks_become_regions() -> None:
    # GIVEN a model with two groups
    model = nn.Module()
    model.encoder, model.decoder = net(3).layers, net(2).layers
    tree = tree_of(model)
    assert [branch.label for branch in tree.branches] == ["encoder: 3 x Block", "decoder: 2 x Block"]
    # WHEN nothing is left out THEN regions stays at its default
    assert tree.regions([]) is None
    # WHEN a block is THEN its group is listed block by block, and the other by its container
    assert tree.regions(["encoder.1"]) == ["encoder.0", "encoder.2", "decoder"]
    # AND both mean what was checked
    plan = nbcompile.plan_regions(model, regions=tree.regions(["encoder.1"]))
    assert [path for group in plan.groups for path in group.blocks] == [
        "encoder.0",
        "encoder.2",
        "decoder.0",
        "decoder.1",
    ]
    # AND with nothing checked nothing can be compiled, which is told
    assert "no block is chosen" in Choices(left_out=frozenset(tree.blocks)).obstacle("compile", tree)


def test_container_that_holds_more_than_the_blocks_does_not_stand_for_them() -> None:
    # GIVEN blocks that are attributes of a module which holds other parts too
    model = nn.Module()
    model.body = nn.Module()
    model.body.first, model.body.second, model.body.last = *net(2).layers, nn.Linear(16, 16)
    # WHEN a group is chosen by hand beside another THEN its blocks are listed one by one
    (branch,) = tree_of(model).branches
    assert branch.whole == ""


@pytest.mark.parametrize(
    ("choices", "action"),
    [
        (WANTED, "compile"),
        (Choices(strategy="full", backend="eager", dynamic=False, fullgraph=True), "compile"),
        (Choices(backend="eager", left_out=frozenset({"layers.1"}), rest="eager"), "compile"),
        (Choices(strategy="hierarchical", backend="eager"), "compile"),
        (WANTED, "compare"),
        (WANTED, "restore"),
    ],
)
def test_code_runs_and_does_what_the_button_does(choices: Choices, action: str) -> None:
    # GIVEN a model, and the code that the panel shows
    model, x = net(), rows()
    code = choices.code(action, tree_of(model), Names("model", "step"))
    namespace: dict[str, Any] = {"model": model, "step": lambda: model(x)}
    # WHEN it is run as it stands
    exec(code, namespace)
    # THEN the model is compiled with those settings, or measured, or as it was
    compilation = compiler.current(model)
    if action != "compile":
        assert compilation is None
        assert ("report" in namespace) == (action == "compare")
        return
    assert compilation is not None
    assert compilation.strategy == choices.strategy
    plugin = compilation.plugin
    assert (plugin.backend, plugin.dynamic, plugin.fullgraph) == ("eager", choices.dynamic, choices.fullgraph)
    assert ran_eager(model, x) == len(choices.left_out)


def test_code_of_many_blocks_stays_readable() -> None:
    # GIVEN a hundred blocks of which one is left out
    model = net(100)
    # WHEN its code is written THEN no line is long, and it is the same call
    code = Choices(left_out=frozenset({"layers.7"})).code("compile", tree_of(model), Names())
    assert max(map(len, code.splitlines())) <= 100
    call = ast.parse(code).body[1].value  # type: ignore[attr-defined]
    assert len(ast.literal_eval(call.keywords[0].value)) == 99


def test_environment_sets_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a default from the environment WHEN another value is chosen THEN the code names it, though it is torch's own
    tree = tree_of(net())
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "aot_eager")
    assert Choices.default().backend == "aot_eager"
    assert Choices(backend="inductor").keywords("compile", tree) == {"backend": "inductor"}
    assert Choices.default().keywords("compile", tree) == {}


def test_what_this_machine_cannot_do_is_offered_with_the_reason() -> None:
    # GIVEN a model on the CPU WHEN its offers are read THEN what needs CUDA says so
    model = net()
    offers = offers_for(model, tree_of(model))
    without = "the model is on the cpu" if torch.cuda.is_available() else "no CUDA device"
    assert offers.refusal("modes", "reduce-overhead") == f"gains nothing, {without}"
    assert offers.refusal("modes", "max-autotune") == ""
    assert offers.refusal("backends", "cudagraphs") == without
    assert offers.refusal("backends", "aot_eager") == ""
    # AND of a model with nothing to repeat, block by block is what cannot be had
    single = nn.Sequential(nn.Linear(2, 2))
    for strategy in ("regional", "hierarchical"):
        assert offers_for(single, tree_of(single)).refusal("strategies", strategy) == "no repeated blocks"


def test_backend_that_needs_a_missing_package_or_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # GIVEN no C++ compiler to be found WHEN the offers are read THEN inductor says what to install
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    offers = offers_for(net(), tree_of(net()))
    if not torch.cuda.is_available():
        assert "no C++ compiler" in offers.refusal("backends", "inductor")
    assert "torch_xla is not installed" in offers.refusal("backends", "openxla")


# -- ranking -----------------------------------------------------------------------------------------------------------


def compared(**strategies: tuple[float, float, float]) -> Report:
    """A report of strategies with a cold start, a steady time and its spread each, in seconds."""
    return Report(
        strategies={
            name: Strategy(cold_seconds=cold, steady_seconds=steady, steady_spread=spread)
            for name, (cold, steady, spread) in strategies.items()
        }
    )


def test_ranking_for_so_many_calls() -> None:
    # GIVEN strategies whose lines cross: eager and regional where 10 + 0.5 (n-1) = n, regional and full later
    report = compared(eager=(1.0, 1.0, 0.01), regional=(10.0, 0.5, 0.01), full=(60.0, 0.25, 0.01))
    # WHEN they are ranked for few, some and many calls THEN each is the best once
    found = {calls: verdict(report, calls) for calls in (1, 19, 20, 201, 202, 1000)}
    assert {calls: ranked.best for calls, ranked in found.items() if ranked} == {
        1: "eager",
        19: "eager",
        20: "regional",
        201: "regional",
        202: "full",
        1000: "full",
    }
    # AND the crossing points are where that changes
    ranked = found[1000]
    assert ranked is not None
    assert ranked.spans == ((1, "eager"), (20, "regional"), (202, "full"))
    assert "regional from 20 calls on, full from 202 calls on" in ranked.to_html()
    assert ranked.rows[0].total == pytest.approx(60 + 999 * 0.25)
    assert "For 1,000 calls: full is the best, 310 s in all." in ranked.to_html()
    assert found[1] is not None
    assert "do not compile" in found[1].sentence


def test_gain_within_the_spread_is_none() -> None:
    # GIVEN a strategy that is faster, but by less than the times vary
    ranked = verdict(compared(eager=(1.0, 1.0, 0.2), regional=(2.0, 0.9, 0.01)), 10**6)
    # WHEN it is ranked THEN it is never the best
    assert ranked is not None
    assert (ranked.best, ranked.spans) == ("eager", ((1, "eager"),))
    # AND it is said why
    assert "What regional would gain is within the spread, which counts as none." in ranked.to_html()
    # AND of one that is slower nothing is said
    slower = verdict(compared(eager=(1.0, 1.0, 0.2), regional=(2.0, 1.1, 0.01)), 10**6)
    assert slower is not None
    assert "within the spread" not in slower.to_html()


def test_nothing_measured_is_not_ranked() -> None:
    # GIVEN a report without figures, and one with a failure WHEN they are ranked THEN what failed is never the answer
    assert verdict(Report(), 10) is None
    report = compared(eager=(1.0, 1.0, 0.0))
    report.strategies["full"] = Strategy(failure="<b>boom</b>")
    ranked = verdict(report, 10)
    assert ranked is not None
    assert ranked.best == "eager"
    assert "failed" in ranked.to_html()


# -- the main thread -----------------------------------------------------------------------------------------------


def test_work_has_the_settings_that_cells_made(shell: InteractiveShell) -> None:
    # GIVEN a cell that changes the compiler's settings after the panel was made
    main, seen = MainThread(shell), []
    limit = torch._dynamo.config.recompile_limit
    try:
        shell.run_cell(f"import torch; torch._dynamo.config.recompile_limit = {limit + 69}")
        # WHEN work is run THEN it sees them
        main.run(lambda: seen.append(torch._dynamo.config.recompile_limit), seen.append)
        assert seen == [limit + 69, None]
    finally:
        torch._dynamo.config.recompile_limit = limit
        main.forget()


def test_interrupt_ends_the_work_and_nothing_else(shell: InteractiveShell) -> None:
    # GIVEN a handler of interrupts, and work that is interrupted twice
    main, ended = MainThread(shell), []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a kernel between cells
    try:
        # WHEN it runs
        main.run(lambda: os.kill(os.getpid(), signal.SIGINT), lambda e: (os.kill(os.getpid(), 2), ended.append(e)))
        # THEN the first interrupt is told, the second ignored, and the handler is the one from before
        assert [type(error) for error in ended] == [KeyboardInterrupt]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
        main.forget()


def test_interrupt_that_python_drops_is_delivered_again(shell: InteractiveShell) -> None:
    # GIVEN work that is interrupted in the callback of a weak reference, where Python ignores what is raised
    main, ended = MainThread(shell), []
    hook, threads = sys.unraisablehook, threading.active_count()

    def work() -> None:
        model = net()
        reference = weakref.ref(model, lambda _: os.kill(os.getpid(), signal.SIGINT))
        del model
        gc.collect()
        end = time.monotonic() + 20
        while time.monotonic() < end:
            time.sleep(0.01)
        assert reference

    # WHEN it runs THEN it is stopped all the same, and no thread and no hook is left
    try:
        main.run(work, ended.append)
        assert [type(error) for error in ended] == [KeyboardInterrupt]
        assert sys.unraisablehook is hook
        assert threading.active_count() == threads
    finally:
        main.forget()


def test_tune_from_the_panel(panel: Panel) -> None:
    # GIVEN a panel with a backend and a budget chosen WHEN Tune is pressed
    panel.budget.value = 4
    panel.buttons["tune"].click()
    # THEN settings with that backend were tried, the slider ranks them, and the code shown does the same
    assert "Tuned" in said(panel)
    assert panel.report is not None
    tried = [trial for trial in panel.report.tuning if trial.settings["strategy"] != "eager"]
    assert {trial.settings["backend"] for trial in tried} == {"eager"}
    assert any(trial.figures.steady_repeats for trial in tried)
    assert "For 1,000 calls" in panel.ranking.value
    assert "space={'backend': ['eager']}" in panel.code("tune")
    # AND the model is as it was before
    assert "runs eager" in panel.title.value


def test_interrupted_tuning_is_kept_and_continued(panel: Panel, shell: InteractiveShell) -> None:
    # GIVEN a tuning that is interrupted while the second compiled setting is being compiled
    panel.budget.value = 30
    stages: list[str] = []

    def stage(change: dict[str, Any]) -> None:
        stages.append(str(change["new"]))
        if sum("cold start" in text for text in stages) == 2 and not any("was interrupted" in text for text in stages):
            signal.raise_signal(signal.SIGINT)

    panel.message.observe(stage, "value")
    panel.buttons["tune"].click()
    assert "Tune was interrupted. The model is as it was before. What was measured is kept" in said(panel)
    # THEN what it measured is shown and ranked
    assert panel.report is not None
    measured = {trial.name for trial in panel.report.tuning if trial.figures.steady_repeats >= 2}
    assert len(measured) == 2
    assert "For 1,000 calls" in panel.ranking.value
    # AND WHEN Tune is pressed again THEN it compiles only what was missing
    before = len(stages)
    panel.buttons["tune"].click()
    assert "Tuned" in said(panel)
    again = {text.partition(": cold start")[0].rpartition(">")[2] for text in stages[before:] if "cold start" in text}
    assert again
    # unless the machine has become faster or slower meanwhile, which the report then says
    anew = any("all was measured anew" in note for note in panel.report.notes)
    assert anew or not again & measured
    assert anew or any("those of an earlier tuning" in note for note in panel.report.notes)
    # AND WHEN it is pressed once more THEN nothing is taken over: that one had come to its end
    panel.budget.value = 4
    panel.buttons["tune"].click()
    assert not any("those of an earlier tuning" in note for note in panel.report.notes)


def test_what_a_cell_has_measured_is_ranked_at_once(shell: InteractiveShell) -> None:
    # GIVEN a model that a cell has compared, and left compiled
    model, step = shell.user_ns["model"], shell.user_ns["step"]
    nbcompile.compare(model, step, ["eager", "regional"], backend="eager", rounds=2, calls=1, keep="regional")
    # WHEN a panel is made for it THEN the slider ranks what is known
    panel = nbcompile.panel(model, step)
    assert "For 1,000 calls" in panel.ranking.value
    panel.close()
    # AND of a model that was only compiled nothing is ranked
    nbcompile.compile_regions(model, backend="eager")
    panel = nbcompile.panel(model, step)
    assert "For 1,000 calls" not in panel.ranking.value
    panel.close()


def test_another_thread_without_a_kernel_is_refused(panel: Panel) -> None:
    # GIVEN a shell that has no loop WHEN a button is pressed on another thread THEN that is told, and it can be used
    thread = threading.Thread(target=panel.buttons["compile"].click)
    thread.start()
    thread.join()
    assert "no loop" in said(panel)
    panel.buttons["compile"].click()
    assert "Compiled in" in said(panel)


# -- the controls ----------------------------------------------------------------------------------------------------


def test_compile_slide_and_restore(panel: Panel, shell: InteractiveShell) -> None:
    # GIVEN a panel WHEN Compile is pressed THEN the model runs compiled, and the report is an output of the cell
    model, x = shell.user_ns["model"], shell.user_ns["x"]
    panel.buttons["compile"].click()
    assert "Compiled in" in said(panel)
    assert ran_eager(model, x) == 0
    assert "is compiled: regional" in panel.title.value
    outputs = shell.display_pub.outputs
    assert Report.from_dict(outputs[-1]["data"][MIME_TYPE]).groups[0].compiled == 4
    assert {o["transient"]["display_id"] for o in outputs if o.get("update")} == {
        outputs[-1]["transient"]["display_id"]
    }
    # WHEN the strategies are compared THEN what was compiled is there again
    panel.compared["full"].value = False
    panel.buttons["compare"].click()
    assert "Compared" in said(panel)
    assert list(panel.report.strategies) == ["eager", "regional"]  # type: ignore[union-attr]
    assert ran_eager(model, x) == 0
    # AND WHEN the slider is moved THEN it is ranked anew, and nothing is shown or measured
    shown = len(outputs)
    panel.calls.value = 10.0
    assert "For 10 calls:" in panel.ranking.value
    panel.calls.value = 100_000.0
    assert "For 100,000 calls:" in panel.ranking.value
    assert len(outputs) == shown
    # AND WHEN Restore is pressed THEN the model is as it was
    panel.buttons["restore"].click()
    assert "runs eager" in panel.title.value
    assert compiler.current(model) is None


def test_what_cannot_be_had_is_refused(panel: Panel) -> None:
    # GIVEN a panel WHEN a mode without use here is chosen THEN the old one stays, with the reason
    panel.backend.value = "inductor"
    panel.mode.value = "reduce-overhead"
    assert panel.mode.value == panel.choices.mode == "default"
    assert "gains nothing" in said(panel)
    # AND a mode that works is taken, until a backend without modes is chosen
    panel.mode.value = "max-autotune"
    assert "mode='max-autotune'" in panel.code("compile")
    panel.backend.value = "aot_eager"
    assert panel.mode.disabled
    assert "mode=" not in panel.code("compile")


def test_tree_of_check_boxes(panel: Panel) -> None:
    # GIVEN the tree, closed: no box for each block yet
    (branch,) = panel.regions.branches
    assert not branch.boxes
    branch.opener.value = True
    # WHEN a block is unchecked THEN the code says which are left
    branch.boxes["layers.2"].value = False
    assert "regions=['layers.0', 'layers.1', 'layers.3']" in panel.code_text.value
    assert "3 chosen" in branch.all.description
    # WHEN the whole group is unchecked THEN there is nothing to compile, and the reason is shown
    branch.all.value = False
    assert not any(box.value for box in branch.boxes.values())
    assert panel.buttons["compile"].disabled
    assert "no block is chosen" in panel.hint.value
    # AND WHEN it is checked again THEN all are
    branch.all.value = True
    assert "regions=" not in panel.code_text.value
    assert not panel.buttons["compile"].disabled


def test_panel_without_a_step(shell: InteractiveShell) -> None:
    # GIVEN a panel without a step THEN what needs one is disabled, with the reason
    panel = nbcompile.panel(shell.user_ns["model"])
    assert panel.buttons["compare"].disabled
    assert panel.buttons["tune"].disabled
    assert "Compare: needs a step" in panel.hint.value
    # AND WHEN Compile is pressed THEN the model compiles at its next call
    panel.backend.value = "eager"
    panel.buttons["compile"].click()
    assert "at its next call" in said(panel)
    assert ran_eager(shell.user_ns["model"], shell.user_ns["x"]) == 0
    panel.close()


def test_failure_is_told_in_words_and_leaves_what_was_there(shell: InteractiveShell) -> None:
    # GIVEN a model that is compiled, and a setting with which its blocks cannot be
    model, x = net(block=BreakingBlock), rows()
    nbcompile.compile_regions(model, backend="eager")
    before = model(x)
    panel = nbcompile.panel(model, lambda: model(x))
    earlier = compiler.current(model)
    panel.backend.value, panel.fullgraph.value = "eager", True
    # WHEN Compile is pressed
    panel.buttons["compile"].click()
    # THEN the message says so in words
    assert "Compile failed" in said(panel)
    assert "Traceback" not in said(panel)
    # AND the model is compiled as it was before, and runs
    assert compiler.current(model) is earlier
    assert torch.equal(model(x), before)
    panel.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("<script>\n" + "x" * 3000), SystemExit(1)])
def test_step_that_raises(error: BaseException, shell: InteractiveShell) -> None:
    # GIVEN a step that raises, whatever it is
    model = net()

    def step() -> None:
        raise error

    panel = nbcompile.panel(model, step)
    panel.backend.value = "eager"
    for action in ("compile", "compare"):
        # WHEN a button is pressed THEN it is told, nothing is raised, and the model is as before
        panel.buttons[action].click()
        assert "The model is as it was before" in said(panel)
        assert "<script>" not in said(panel)
        assert compiler.current(model) is None
        assert not panel.buttons[action].disabled
    panel.close()


def test_two_panels_show_one_state(panel: Panel, shell: InteractiveShell) -> None:
    # GIVEN two panels of one model WHEN one compiles THEN the other shows it too
    other = nbcompile.panel(shell.user_ns["model"], shell.user_ns["step"])
    panel.buttons["compile"].click()
    assert "is compiled" in other.title.value
    # AND WHEN a cell restores it THEN both do
    shell.run_cell("nbcompile.restore(model);")
    assert "runs eager" in other.title.value
    assert "runs eager" in panel.title.value
    # AND WHEN one is closed THEN the other works, and the closed one does nothing
    other.close()
    panel.buttons["compile"].click()
    assert "is compiled" in panel.title.value
    other._start("restore")
    assert compiler.current(shell.user_ns["model"]) is not None


def test_cell_that_is_run_again_keeps_the_report(panel: Panel, shell: InteractiveShell) -> None:
    # GIVEN a panel that has measured, and then compiled
    panel.compared["full"].value = False
    panel.buttons["compare"].click()
    panel.buttons["compile"].click()
    # WHEN another is made for the same model, as by running the cell again THEN it shows the report, and ranks
    again = nbcompile.panel(shell.user_ns["model"], shell.user_ns["step"])
    again._ipython_display_()
    assert shell.display_pub.outputs[-1]["data"][MIME_TYPE] == panel.report.to_dict()  # type: ignore[union-attr]
    assert "For 1,000 calls:" in again.ranking.value
    # AND one for another model does not
    other = nbcompile.panel(net(), None)
    assert other.report is None
    again.close()
    other.close()


def test_closed_panels_leave_nothing(shell: InteractiveShell) -> None:
    # GIVEN the shell's callbacks WHEN a panel is made and closed THEN they are as before
    before = list(shell.events.callbacks["post_run_cell"])
    panel = nbcompile.panel(shell.user_ns["model"])
    assert len(shell.events.callbacks["post_run_cell"]) > len(before)
    panel.close()
    panel.close()
    assert shell.events.callbacks["post_run_cell"] == before


def test_panel_does_not_keep_the_model(shell: InteractiveShell) -> None:
    # GIVEN a panel of a model that the user lets go
    model = net()
    gone = weakref.ref(model)
    panel = nbcompile.panel(model)
    del model
    gc.collect()
    # THEN it is freed, and the panel says so
    assert gone() is None
    panel.buttons["compile"].click()
    assert "is gone" in said(panel)
    panel.close()


def test_wrong_arguments() -> None:
    # GIVEN no notebook, no model, no step that can be called WHEN a panel is made THEN each is told
    InteractiveShell.clear_instance()
    with pytest.raises(nbcompile.UsageError, match=r"torch\.nn\.Module"):
        nbcompile.panel(3)  # type: ignore[arg-type]
    with pytest.raises(nbcompile.UsageError, match="step is to be a function"):
        nbcompile.panel(net(), rows())  # type: ignore[arg-type]


def test_magic(shell: InteractiveShell) -> None:
    # GIVEN the magics, a model under a name and a step
    shell.run_line_magic("load_ext", "nbcompile")
    model, inputs = module_dict(2)
    shell.push({"net": model, "once": lambda: model(**inputs)})
    # WHEN a panel is asked for by name THEN its controls and the place of its report are shown
    shell.display_pub.outputs.clear()
    assert shell.run_cell("%nbcompile panel net once").success
    controls, place = shell.display_pub.outputs
    assert "application/vnd.jupyter.widget-view+json" in controls["data"]
    assert "need a running kernel" in controls["data"]["text/plain"]
    assert place["transient"]["display_id"]
    # AND a step that does not exist, or a step for another command, is told
    for line, told in (
        ("panel net twice", "the step 'twice' cannot be evaluated"),
        ("panel net x", "the step 'x' is a Tensor, which cannot be called"),
        ("restore net once", "takes one model"),
    ):
        result = shell.run_cell(f"%nbcompile {line}")
        assert told in str(result.error_in_exec), line


# -- a real kernel -----------------------------------------------------------------------------------------------------

SETUP = """\
import threading, time, torch
from pathlib import Path
import nbcompile
from tests.blocks import net, rows
model, x = net(), rows()
ran_on = []
def step():
    ran_on.append((threading.current_thread() is threading.main_thread(), torch._dynamo.config.recompile_limit))
    return model(x)
@torch._dynamo.register_backend
def slow(graph, inputs):
    Path("compiling").touch()
    time.sleep(600)
    return graph.forward
torch._dynamo.config.recompile_limit = 77
panel = nbcompile.panel(model, step)
display(panel)
def click(backend):
    panel.backend.value = backend
    thread = threading.Thread(target=panel.buttons["compile"].click)
    thread.start()
    thread.join()
    print(panel.message.value, len(ran_on))"""


class Kernel:
    """A kernel of its own, in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager(kernel_name="python3")
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        self.manager.start_kernel(cwd=str(folder), env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)})
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str) -> str:
        """Run a cell; what it prints."""
        printed: list[str] = []

        def keep(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])

        reply = self.client.execute_interactive(code, timeout=120, output_hook=keep)
        assert reply["content"]["status"] == "ok", "".join(reply["content"].get("traceback", printed))
        return "".join(printed)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_click_on_another_thread_is_done_on_the_main_one_after_the_cell(kernel: Kernel) -> None:
    # GIVEN a kernel, and a click that comes on another thread while a cell runs, as from a subshell
    kernel.run(SETUP)
    # WHEN the cell goes on THEN nothing has been done yet, and the panel says for what it waits
    told = kernel.run("click('eager')")
    assert "Compile: waits for the running cell" in told
    assert told.endswith(" 0\n")
    # AND once it has ended the work is done, on the main thread and with the settings of the user's cells
    assert "Compiled in" in kernel.run("print(panel.message.value)")
    assert kernel.run("print(set(ran_on))") == "{(True, 77)}\n"


@pytest.mark.slow
def test_interrupt_of_work_in_the_kernels_loop(kernel: Kernel, tmp_path: Path) -> None:
    # GIVEN work that was handed to the main thread, and compiles for ten minutes: no cell runs
    kernel.run(SETUP)
    threads = kernel.run("print(threading.active_count())")
    for _ in range(3):
        kernel.run("click('slow')")
        end = time.monotonic() + 60
        while not (tmp_path / "compiling").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        (tmp_path / "compiling").unlink()
        # WHEN the kernel is interrupted THEN the panel says so, and the next cell works
        kernel.manager.interrupt_kernel()
        assert "Compile was interrupted. The model is as it was before." in kernel.run("print(panel.message.value)")
    # AND the model runs, no thread is left, and the panel works
    assert kernel.run("print(model(x).shape)") == "torch.Size([2, 16])\n"
    assert kernel.run("print(threading.active_count())") == threads
    kernel.run("click('eager')")
    assert "Compiled in" in kernel.run("print(panel.message.value)")


def test_the_background_is_chosen_by_a_switch_and_told_in_the_code(panel: Panel) -> None:
    # GIVEN a panel WHEN its switch for the background is set
    pytest.importorskip("cloudpickle")
    panel.backend.value = "inductor"
    panel.background.value = True
    # THEN the code says so, and that nothing waits
    assert "background=True" in panel.code("compile")
    assert "background" not in panel.code("compare")
    # AND what does not go with it is an obstacle with its reason
    panel.backend.value = "eager"
    assert panel.buttons["compile"].disabled
    assert "the backend 'inductor'" in panel.buttons["compile"].tooltip
    panel.background.value = False
    assert not panel.buttons["compile"].disabled
