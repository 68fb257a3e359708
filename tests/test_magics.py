"""The magics, in a real shell with a publisher that keeps what is shown, and in a real kernel."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
import torch
from IPython.core.error import UsageError as MagicUsageError
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from torch import nn

import nbcompile
from nbcompile.notebook.step import Step
from nbcompile.report import MIME_TYPE, Report
from tests.fake_device import fake_device
from tests.models import module_dict

FAST = "--backend eager -n 1 -r 1"


@pytest.fixture
def shell(bare_shell: InteractiveShell) -> Iterator[InteractiveShell]:
    """A shell with the extension loaded, a small model and its inputs."""
    shell = bare_shell
    shell.run_line_magic("load_ext", "nbcompile")
    model, inputs = module_dict(2)
    shell.push({"torch": torch, "nn": nn, "model": model, "inputs": inputs})
    yield shell
    nbcompile.restore(model)


@dataclass
class Ran:
    """What running a cell gave."""

    result: ExecutionResult
    shown: list[dict[str, Any]]
    out: str
    err: str

    @property
    def text(self) -> str:
        """What was printed on either stream, without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.out + self.err)


@pytest.fixture
def run(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> Any:
    def run_cell(source: str) -> Ran:
        shell.display_pub.outputs.clear()
        capsys.readouterr()
        result = shell.run_cell(source, store_history=True)
        captured = capsys.readouterr()
        return Ran(result, list(shell.display_pub.outputs), captured.out, captured.err)

    return run_cell


def usage_error(ran: Ran) -> str:
    """The message of a usage error, after checking that it is one line without a traceback and that nothing shows."""
    assert isinstance(ran.result.error_in_exec, MagicUsageError), ran.text
    assert "Traceback" not in ran.text
    assert "nbcompile/" not in ran.text
    assert ran.err.startswith("UsageError: ")
    return ran.err


# -- the cell magic ------------------------------------------------------------------------------------------------


def test_cell_is_measured_and_shown_in_one_output(run: Any, shell: InteractiveShell) -> None:
    # GIVEN a shell with a model that was never compiled
    # WHEN a cell that calls it is compiled
    ran = run(f"%%compile_regional model {FAST}\nwith torch.no_grad():\n    y = model(**inputs)")
    # THEN nothing failed, and what the cell assigned is there
    assert ran.result.success, ran.text
    assert shell.user_ns["y"].shape == (2, 16, 4)
    # AND there is one output, which told of the progress and has become the report
    assert len({output["transient"]["display_id"] for output in ran.shown}) == 1
    assert [output["update"] for output in ran.shown] == [False] + [True] * (len(ran.shown) - 1)
    assert len(ran.shown) > 1
    assert set(ran.shown[0]["data"]) == {"text/plain"}
    data = ran.shown[-1]["data"]
    assert {MIME_TYPE, "text/html", "text/plain"} <= set(data)
    report = Report.from_dict(data[MIME_TYPE])
    assert set(report.strategies) == {"eager", "regional"}
    assert report.groups[0].instances == 2
    # AND the model is left compiled
    assert nbcompile.report(shell.user_ns["model"]).groups[0].compiled == 2


def test_regions_are_checked_on_request(run: Any) -> None:
    # GIVEN a model WHEN a cell is compiled with a check of its regions
    ran = run(f"%%compile_regional model {FAST} --check regions\ny = model(**inputs)")
    # THEN the report has one for each block, and shows them
    assert ran.result.success, ran.text
    data = ran.shown[-1]["data"]
    checks = Report.from_dict(data[MIME_TYPE]).strategies["regional"].checks
    assert [(check.block, check.drifts, check.max_abs_diff) for check in checks] == [
        ("blocks.block_0", False, 0.0),
        ("blocks.block_1", False, 0.0),
    ]
    assert "Checked region by region" in data["text/html"]
    # AND a check that does not exist is refused
    assert "invalid choice: 'region'" in usage_error(run(f"%%compile_regional model {FAST} --check region\ny = 1"))


def test_the_step_is_recorded_as_a_cuda_graph_on_request(run: Any, shell: InteractiveShell) -> None:
    # GIVEN a device that records WHEN a cell is compiled with --cuda-graph
    with fake_device() as fake:
        ran = run(f"%%compile_regional model {FAST} --cuda-graph\nwith torch.no_grad():\n    y = model(**inputs)")
        # THEN its timed rounds replayed what was recorded before them, and the report says so
        assert ran.result.success, ran.text
        report = Report.from_dict(ran.shown[-1]["data"][MIME_TYPE])
        assert report.settings["cuda_graph"] is True
        assert report.strategies["regional"].max_abs_diff == 0.0
        assert (len(fake.graphs), fake.graphs[0].replays > 1) == (1, True)
        assert any("calls replayed" in note for note in report.notes)
        # AND the model stays so
        before = fake.graphs[0].replays
        run("with torch.no_grad():\n    y = model(**inputs)")
        assert fake.graphs[0].replays == before + 1
    # AND without such a device the report says why there is none
    ran = run(f"%%compile_regional model {FAST} --cuda-graph\nwith torch.no_grad():\n    y = model(**inputs)")
    report = Report.from_dict(ran.shown[-1]["data"][MIME_TYPE])
    assert "CUDA graph: the model is on cpu, where there are no CUDA graphs" in report.notes
    # AND what excludes it is refused before anything is measured
    ran = run("%%compile_regional model --cuda-graph --mode reduce-overhead\ny = 1")
    assert "cuda_graph=True one for the whole step" in usage_error(ran)


def test_nothing_is_left_in_the_namespace(run: Any, shell: InteractiveShell) -> None:
    # GIVEN the names that the user has
    before = set(shell.user_ns)
    # WHEN a cell is compiled
    run(f"%%compile_regional model {FAST}\ny = model(**inputs)")
    # THEN only what the cell assigned was added, and what IPython keeps of each cell
    assert {name for name in set(shell.user_ns) - before if not re.fullmatch(r"_i*\d*", name)} == {"y"}


@pytest.mark.parametrize(
    "setup",
    [
        "loss = nn.CrossEntropyLoss(); net = model; del model",  # the cell's body reads a loss function as well
        "net = model; other = nn.Linear(2, 2)",  # a name for the same model, and a model that the body does not read
    ],
)
def test_model_may_be_left_out(setup: str, run: Any, shell: InteractiveShell) -> None:
    # GIVEN a model under some name, and other modules
    run(setup)
    # WHEN the cell names no model, and its body reads one
    ran = run(
        f"%%compile_regional {FAST}\n"
        "y = net(**inputs)\n"
        "value = loss(y.flatten(0, 1), torch.zeros(32, dtype=torch.long)) if 'loss' in globals() else y"
    )
    # THEN that is the one
    assert ran.result.success, ran.text
    assert nbcompile.report(shell.user_ns["net"]).groups[0].compiled == 2


@pytest.mark.parametrize(
    ("line", "body", "told"),
    [
        ("", "y = 1", ["uses no variable that is a torch.nn.Module", "model (ModuleDictModel)"]),
        ("", "model(**inputs); other(x)", ["more than one model", "model (ModuleDictModel), other (Linear)"]),
        ("modle", "model(**inputs)", ["NameError", "Did you mean model?", "other (Linear)"]),
        ("inputs", "model(**inputs)", ["'inputs' is a dict", "torch.nn.Module is needed"]),
        ("nn.Linear", "model(**inputs)", ["the class Linear, not an instance"]),
        ("model[", "model(**inputs)", ["SyntaxError"]),
        ("model --nonsense", "model(**inputs)", ["--nonsense", "%%compile_regional? shows"]),
        ("model --dynamic maybe", "model(**inputs)", ["invalid choice", "auto", "true", "false"]),
        ("model --rest all", "model(**inputs)", ["invalid choice", "auto", "compile", "eager"]),
        ("model -n 0", "model(**inputs)", ["-n takes a number of calls"]),
        ("model -r 0", "model(**inputs)", ["-r takes a number of rounds"]),
        ("model -n many", "model(**inputs)", ["invalid int value: 'many'"]),
        ("model --options '{1'", "model(**inputs)", ["--options takes a dictionary", "'{1'"]),
        ("model --options 3", "model(**inputs)", ["--options takes a dictionary"]),
        ("model --options '{\"a", "model(**inputs)", ["No closing quotation"]),
        ("model --backend no_such", "model(**inputs)", ["no backend 'no_such'", "Those that exist"]),
        ("model --compare egaer", "model(**inputs)", ["egaer", "eager", "full"]),
        ("model --html /no/such/folder/page.html", "model(**inputs)", ["there is no folder"]),
        ("model", "# model(**inputs)", ["the cell's body is empty"]),
        ("model", "await model(**inputs)", ["line 2 of the cell awaits"]),
        ("model", "\nvalues = [x async for x in model]", ["line 3 of the cell awaits"]),
        ("other", "other(x)", ["Linear has no repeated blocks"]),
    ],
)
def test_mistakes_are_told_in_one_line(
    line: str, body: str, told: list[str], run: Any, shell: InteractiveShell
) -> None:
    # GIVEN two models, neither compiled
    shell.push({"other": nn.Linear(2, 2), "x": torch.ones(1, 2)})
    # WHEN a cell is compiled with a mistake in its first line or its body
    message = usage_error(run(f"%%compile_regional {line}\n{body}"))
    # THEN the message says what is wrong and what exists
    for part in told:
        assert part in message
    # AND nothing was compiled
    with pytest.raises(nbcompile.UsageError):
        nbcompile.report(shell.user_ns["model"])


def test_cell_that_never_calls_the_model(run: Any) -> None:
    # GIVEN a cell that names a model and calls another function
    # WHEN it is compiled THEN the message says so
    assert "call" in usage_error(run(f"%%compile_regional model {FAST}\ny = 1 + 1"))


def test_no_model_before_torch_is_imported(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a kernel in which torch was never imported
    import sys

    monkeypatch.delitem(sys.modules, "torch")
    # WHEN a cell is compiled THEN that is no reason to import it
    assert "No variable here is a torch.nn.Module" in usage_error(run("%%compile_regional\ny = 1"))
    assert "torch" not in sys.modules


def test_options_reach_the_core(run: Any, shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a core that tells what it was asked for
    import importlib

    asked: dict[str, Any] = {}

    def compare(model: Any, step: Any, strategies: Any, **keywords: Any) -> Report:
        asked.update(keywords, model=model, strategies=tuple(strategies), value=step())
        return Report()

    monkeypatch.setattr(importlib.import_module("nbcompile.compare"), "compare", compare)
    shell.push(
        {"choices": {"b": 2}, "models": {"my model": shell.user_ns["model"]}, "mine": lambda graph, inputs: graph}
    )
    # WHEN every option is given
    run(
        """%%compile_regional "models['my model']" --backend mine --fullgraph --dynamic true --rest eager -n 7 -r 3 """
        """--options '{"a": True, "x": [1.5]}' --compare full,eager\n3"""
    )
    # THEN each is handed on
    assert asked.pop("progress")
    assert asked == {
        "model": shell.user_ns["model"],
        "strategies": ("eager", "regional", "full"),
        "value": 3,
        "backend": shell.user_ns["mine"],
        "fullgraph": True,
        "dynamic": True,
        "rest": "eager",
        "calls": 7,
        "rounds": 3,
        "options": {"a": True, "x": [1.5]},
        "keep": "regional",
        "check": None,
    }
    # AND WHEN options are JSON, or a variable THEN they are read as such; nothing else is compared if asked so
    run("""%%compile_regional model --options '{"a": true, "b": null}' --compare none\n3""")
    assert asked["options"] == {"a": True, "b": None}
    assert asked["strategies"] == ("regional",)
    run("%%compile_regional model --options choices --mode max-autotune --dynamic false\n3")
    assert (asked["options"], asked["mode"], asked["dynamic"]) == ({"b": 2}, "max-autotune", False)
    # AND WHEN none is given THEN the core's own defaults hold
    asked.clear()
    run("%%compile_regional model\n3")
    assert {name for name in ("backend", "mode", "options") if name in asked} == set()
    assert asked["strategies"] == ("eager", "regional")
    assert (asked["calls"], asked["rounds"], asked["dynamic"]) == (None, None, None)


def test_braces_and_dollars_are_not_expanded(run: Any, shell: InteractiveShell) -> None:
    # GIVEN a variable whose name stands in braces on the first line
    shell.push({"a": "expanded"})
    # WHEN the line is read THEN it is what was written
    assert "'{a}'" in usage_error(run("%%compile_regional model --options '{a}'\nmodel(**inputs)"))


def test_quiet_and_output(run: Any, shell: InteractiveShell) -> None:
    # GIVEN a model
    # WHEN the cell is quiet THEN nothing shows, and there is no result
    ran = run(f"%%compile_regional model {FAST} -q -v\nmodel(**inputs)")
    assert (ran.shown, ran.out, ran.result.result) == ([], "", None)
    # AND WHEN it returns its report THEN that is the cell's result, and is shown as that alone
    ran = run(f"%%compile_regional model {FAST} -o\nmodel(**inputs)")
    assert isinstance(ran.result.result, Report)
    assert shell.user_ns["_"] is ran.result.result
    assert set(ran.shown[-1]["data"]) == {"text/plain"}
    # AND WHEN both are asked for THEN it is returned and nothing else shows
    ran = run(f"%%compile_regional model {FAST} -q -o\nmodel(**inputs)")
    assert isinstance(ran.result.result, Report)
    assert ran.shown == []


def test_verbose_prints_the_tables(run: Any, shell: InteractiveShell) -> None:
    # GIVEN a front end that shows HTML
    # WHEN more is asked for THEN all tables are printed below
    ran = run(f"%%compile_regional model {FAST} -v\nmodel(**inputs)")
    assert ran.out.strip() == ran.shown[-1]["data"]["text/plain"].strip()
    # AND WHEN it is a terminal, which has shown the tables THEN they are not printed again
    shell.display_formatter.active_types = ["text/plain"]
    assert run(f"%%compile_regional model {FAST} -v\nmodel(**inputs)").out == ""


def test_page_is_written_and_never_replaces_a_file(run: Any, shell: InteractiveShell, tmp_path: Path) -> None:
    # GIVEN a name for a web page
    page = tmp_path / "my page.html"
    # WHEN the report is to be written there THEN it is
    assert run(f"%%compile_regional model {FAST} --html '{page}'\nmodel(**inputs)").result.success
    assert "ModuleDictModel" in page.read_text()
    # AND WHEN the file exists THEN it is kept, and the cell is refused before it runs
    page.write_text("mine")
    message = usage_error(run(f"%%compile_regional model {FAST} --html '{page}'\nran = True; model(**inputs)"))
    assert "--overwrite" in message
    assert page.read_text() == "mine"
    assert "ran" not in shell.user_ns
    # AND WHEN it may be replaced THEN it is
    assert run(f"%%compile_regional model {FAST} --html '{page}' --overwrite\nmodel(**inputs)").result.success
    assert page.read_text() != "mine"


def test_page_that_cannot_be_written(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a disk that is full
    def refuse(*args: Any, **keywords: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Report, "to_html", refuse)
    # WHEN the page is to be written THEN that is told in one line, and the report has been shown before
    ran = run(f"%%compile_regional model {FAST} --html {tmp_path}/page.html\nmodel(**inputs)")
    assert "No space left on device" in usage_error(ran)
    assert MIME_TYPE in ran.shown[-1]["data"]


def test_error_in_the_cell_shows_its_own_line(run: Any, shell: InteractiveShell) -> None:
    # GIVEN a cell whose third line fails
    # WHEN it is compiled
    ran = run(f"%%compile_regional model {FAST}\nbefore = model(**inputs)\n1 / 0\nafter = 1")
    # THEN the error is the user's own, with the cell's line and its number, and without this package's frames
    assert isinstance(ran.result.error_in_exec, ZeroDivisionError)
    assert "----> 3 1 / 0" in ran.text
    assert "nbcompile/" not in ran.text
    # AND what had been assigned is kept, and the model runs
    assert "before" in shell.user_ns
    assert "after" not in shell.user_ns
    assert run("model(**inputs)").result.success
    # AND no progress is left standing
    assert "measuring" not in ran.shown[-1]["data"]["text/plain"]


def test_error_in_the_cell_shows_the_report_of_what_it_compiled(run: Any, shell: InteractiveShell) -> None:
    # GIVEN a cell that fails once everything is compiled
    run("import itertools; turns = itertools.count()")
    body = "model(**inputs)\nif next(turns) == 6:\n    raise KeyError('batch')"
    # WHEN it runs
    ran = run(f"%%compile_regional model {FAST} -n 3\n{body}")
    # THEN the error is the user's, the output is the report of what is compiled, and it is compiled still
    assert isinstance(ran.result.error_in_exec, KeyError)
    assert "raise KeyError('batch')" in ran.text
    report = Report.from_dict(ran.shown[-1]["data"][MIME_TYPE])
    assert report.groups[0].compiled > 0
    assert nbcompile.report(shell.user_ns["model"]).settings["strategy"] == "regional"


def test_error_in_the_cell_never_shows_an_earlier_cells_report(run: Any, shell: InteractiveShell) -> None:
    # GIVEN a model that an earlier cell has compiled
    run("import nbcompile; nbcompile.compile_regions(model, backend='eager'); y = model(**inputs)")
    # WHEN a cell fails before it has compiled anything
    ran = run(f"%%compile_regional model {FAST}\nmodel(**inputs)\nraise KeyError('batch')")
    # THEN the error shows, no report does, and the model is compiled as it was
    assert isinstance(ran.result.error_in_exec, KeyError)
    assert "----> 3 raise KeyError('batch')" in ran.text
    assert all(MIME_TYPE not in shown["data"] for shown in ran.shown)
    assert nbcompile.report(shell.user_ns["model"]).groups[0].compiled > 0


def test_broken_report_does_not_hide_the_users_error(
    run: Any, shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a report that cannot be made
    import importlib

    def fail(model: Any) -> Report:
        raise RuntimeError("no report")

    monkeypatch.setattr(importlib.import_module("nbcompile.compiler"), "report", fail)
    # WHEN a cell fails THEN its own error is told
    ran = run(f"%%compile_regional model {FAST}\nmodel(**inputs)\nraise KeyError('batch')")
    assert isinstance(ran.result.error_in_exec, KeyError)


def test_an_interrupt_that_python_drops_ends_the_cell_all_the_same(run: Any) -> None:
    # GIVEN a step that is interrupted in the callback of a weak reference, where Python ignores what is raised
    run(
        """
import gc, os, signal, time, weakref

class Dropped: pass

def interrupted():
    gone = Dropped()
    reference = weakref.ref(gone, lambda _: os.kill(os.getpid(), signal.SIGINT))
    del gone
    gc.collect()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        time.sleep(0.01)
"""
    )
    # WHEN the cell runs THEN the interrupt ends it, and the next cell works
    ran = run(f"%%compile_regional model {FAST}\ninterrupted()\nmodel(**inputs)")
    assert isinstance(ran.result.error_in_exec, KeyboardInterrupt)
    assert run("y = model(**inputs)").result.success


def test_interrupt_leaves_the_model_runnable(run: Any) -> None:
    # GIVEN a cell that is interrupted
    # WHEN it is compiled
    ran = run(f"%%compile_regional model {FAST}\nmodel(**inputs)\nraise KeyboardInterrupt")
    # THEN the interrupt is told and the next cell works
    assert "KeyboardInterrupt" in ran.text
    assert run("y = model(**inputs)").result.success


def test_syntax_error_is_the_users_own(run: Any, shell: InteractiveShell) -> None:
    # GIVEN a cell whose third line is no Python
    # WHEN it is compiled THEN nothing runs, and the error shows the line
    ran = run(f"%%compile_regional model {FAST}\nran = model(**inputs)\nx = = 2")
    assert isinstance(ran.result.error_in_exec, SyntaxError)
    assert "line 3" in ran.text
    assert "x = = 2" in ran.text
    assert "ran" not in shell.user_ns
    assert ran.shown == []


def test_other_magics_work_in_the_body(run: Any, shell: InteractiveShell) -> None:
    # GIVEN a body with a magic of its own, which hides the model's name
    # WHEN the model is named
    ran = run(f"%%compile_regional model {FAST}\n%time y = model(**inputs)")
    # THEN it runs as in any cell
    assert ran.result.success, ran.text
    assert "Wall time" in ran.out
    assert "y" in shell.user_ns


def test_manual_names_every_option(run: Any, shell: InteractiveShell) -> None:
    # GIVEN the magics
    # WHEN their manuals are read
    manual = shell.find_cell_magic("compile_regional").__doc__
    # THEN the options and what they take are there
    assert "%%compile_regional [" in manual
    for option in (
        "--backend",
        "--mode",
        "--dynamic",
        "--options",
        "--rest",
        "--compare",
        "-n",
        "-r",
        "-q",
        "-o",
        "-v",
        "--html",
    ):
        assert f"\n  {option}" in manual
    assert "%nbcompile plan MODEL" in shell.find_line_magic("nbcompile").__doc__


# -- the body as a step --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("1 + 1", 2),
        ("a = 3", 3),
        ("a, b = 3, 4", (3, 4)),
        ("a = b = 5", 5),
        ("a: int = 6", 6),
        ("total = 10\ntotal += 2", 2),  # what was added: a sum would grow from call to call
        ("loss = 7\nprint('x')", 7),  # a call for its effect gives None, which cannot be compared
        ("with torch.no_grad():\n    a = 8", 8),
        ("for i in range(3):\n    i * 2", 4),
        ("if True:\n    9\nelse:\n    10", 9),
        ("try:\n    11\nfinally:\n    pass", 11),
        ("a = 12\ndef function():\n    b = 13\n    return b\nclass Class:\n    c = 14\nfunction() and None", 12),
        ("'a string that is no result'", None),
        ("a = lambda: 15\na()", 15),
        ("\n\n16", 16),
        ("%timeit -n1 -r1 -q pass\n17", 17),
    ],
)
def test_value_of_a_step(body: str, value: object, shell: InteractiveShell) -> None:
    # GIVEN a cell's body
    # WHEN it is called, twice
    step = Step(shell, body)
    # THEN each call gives the last value that is not None
    assert (step(), step()) == (value, value)


def test_step_within_a_step(shell: InteractiveShell) -> None:
    # GIVEN a body that runs another body
    shell.push({"inner": Step(shell, "a = 1")})
    # WHEN it is called THEN its own value counts, and no helper is left in the namespace
    assert Step(shell, "inner()\nb = 2")() == 2
    assert not [name for name in shell.user_ns if "nbcompile_" in name]


def test_names_that_a_step_reads(shell: InteractiveShell) -> None:
    # GIVEN a body that reads, assigns and calls
    body = "y = model.generate(x)\nself.net(y)\nf = lambda: other(1)\nmodel.eval()"
    # WHEN its names are asked for THEN they are those read, in their order, each once
    assert Step(shell, body).names == ["model", "x", "self", "y", "other"]


# -- the line magic ------------------------------------------------------------------------------------------------


def test_bare_line_magic_prints_help(run: Any) -> None:
    # GIVEN no command WHEN the magic is run THEN its commands are listed
    out = run("%nbcompile").out
    for command in ("plan", "report", "restore", "doctor"):
        assert f"%nbcompile {command}" in out


def test_unknown_command(run: Any) -> None:
    # GIVEN a command that does not exist WHEN it is run THEN those that exist are named
    message = usage_error(run("%nbcompile paln model"))
    assert "'paln'" in message
    assert "plan, report, restore, marks, doctor" in message


def test_plan(run: Any, shell: InteractiveShell) -> None:
    # GIVEN one model and no name
    # WHEN the plan is asked for THEN it shows as a table, and nothing was compiled
    (output,) = run("%nbcompile plan").shown
    assert output["data"]["text/plain"].startswith("Regions of ModuleDictModel\n")
    assert "ResidualBlock" in output["data"]["text/html"]
    with pytest.raises(nbcompile.UsageError):
        nbcompile.report(shell.user_ns["model"])


def test_report_and_restore_prefer_what_was_compiled(run: Any, shell: InteractiveShell) -> None:
    # GIVEN two models of which one is compiled and has run
    shell.push({"other": module_dict(2)[0]})
    run("import nbcompile; nbcompile.compile_regions(other, backend='eager'); y = other(**inputs)")
    # WHEN the report is asked for THEN it is that model's
    (output,) = run("%nbcompile report").shown
    assert Report.from_dict(output["data"][MIME_TYPE]).groups[0].compiled == 2
    # AND WHEN the compiling is taken back THEN it is that model's
    assert "uncompiled" in run("%nbcompile restore").out
    with pytest.raises(nbcompile.UsageError):
        nbcompile.report(shell.user_ns["other"])
    # AND WHEN neither is compiled THEN both are named
    assert "model (ModuleDictModel), other (ModuleDictModel)" in usage_error(run("%nbcompile report"))


def test_report_of_a_model_that_was_not_compiled(run: Any) -> None:
    # GIVEN a model that was never compiled WHEN its report is asked for THEN that is told
    assert "has not compiled" in usage_error(run("%nbcompile report model"))


def test_line_magic_without_a_model(run: Any) -> None:
    # GIVEN no model at all
    run("del model")
    # WHEN a plan is asked for THEN it is said what to do
    assert "%nbcompile plan MODEL" in usage_error(run("%nbcompile plan"))


def test_doctor(run: Any) -> None:
    # GIVEN the environment of the tests WHEN it is checked THEN the checks show as text and as a table
    (output,) = run("%nbcompile doctor").shown
    assert "C++ compiler" in output["data"]["text/plain"]
    assert "<table>" in output["data"]["text/html"]
    assert "leave 'model' out" in usage_error(run("%nbcompile doctor model"))


# -- loading and unloading -----------------------------------------------------------------------------------------


def test_extension_can_be_reloaded_and_unloaded(run: Any, shell: InteractiveShell) -> None:
    # GIVEN the extension, loaded
    # WHEN it is loaded again THEN its magics work
    run("%reload_ext nbcompile")
    assert run(f"%%compile_regional model {FAST} -q\nmodel(**inputs)").result.success
    # AND WHEN it is unloaded THEN they are gone, the model stays compiled, and loading brings them back
    run("%unload_ext nbcompile")
    assert shell.find_cell_magic("compile_regional") is None
    assert shell.find_line_magic("nbcompile") is None
    assert nbcompile.report(shell.user_ns["model"])
    run("%load_ext nbcompile")
    assert run("%nbcompile").out


def test_unloading_spares_a_magic_of_the_users_own(run: Any, shell: InteractiveShell) -> None:
    # GIVEN a magic that the user has put in place of one of ours
    shell.register_magic_function(lambda line: "mine", "line", "nbcompile")
    # WHEN the extension is unloaded THEN it is still there
    run("%unload_ext nbcompile")
    assert run("%nbcompile").result.result == "mine"


# -- a real kernel -------------------------------------------------------------------------------------------------

SETUP = """\
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, x):
        return x + self.down(self.up(x).relu())
model, x = nn.Sequential(*[Block() for _ in range(3)]), torch.ones(2, 8)
%load_ext nbcompile"""


@pytest.mark.slow
def test_saved_notebook_carries_the_report() -> None:
    # GIVEN a notebook with a model, a cell to compile, a mistake, and an error of the cell's own
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(SETUP),
            nbformat.v4.new_code_cell("%%compile_regional --backend aot_eager -n 1 -r 2\ny = model(x)"),
            nbformat.v4.new_code_cell("%%compile_regional modle\ny = model(x)"),
            nbformat.v4.new_code_cell("%%compile_regional --backend eager -n 1 -r 1\nmodel(x)\nraise KeyError('mine')"),
            nbformat.v4.new_code_cell("print(model(x).shape, y.shape)"),
        ]
    )
    # WHEN it is run by a real kernel
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", allow_errors=True).execute()
    setup, compiled, mistake, failed, after = (cell.outputs for cell in notebook.cells)
    assert setup == []
    # THEN the cell has one output, the report in every form, and the file is small
    (output,) = compiled
    assert output.output_type == "display_data"
    assert {MIME_TYPE, "text/html", "text/plain"} <= set(output.data)
    report = Report.from_dict(output.data[MIME_TYPE])
    assert (report.groups[0].compiled, report.groups[0].eager) == (3, 0)
    assert "<script" not in output.data["text/html"]
    assert len(nbformat.writes(notebook)) < 500_000
    # AND the mistake is one line, without a traceback
    assert [part.output_type for part in mistake if part.output_type != "error"] == ["stream"]
    assert mistake[0].text.startswith("UsageError: the model 'modle'")
    # AND the cell's own error is shown as such
    assert failed[-1].ename == "KeyError"
    assert "----> 3 raise KeyError('mine')" in re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(failed[-1].traceback))
    # AND the next cell works
    assert after[0].text == "torch.Size([2, 8]) torch.Size([2, 8])\n"


# -- %%tune --------------------------------------------------------------------------------------------------------

TUNED = """--budget 3 --space '{"strategy": ["regional", "full"], "backend": ["eager"]}'"""


def test_cell_is_tuned_and_shown_in_one_output(run: Any, shell: InteractiveShell) -> None:
    # GIVEN a model WHEN a cell is tuned with it
    ran = run(f"%%tune model --calls 50 {TUNED}\nwith torch.no_grad():\n    y = model(**inputs)")
    # THEN there is one output, which has become the report, with a recommendation
    assert ran.result.success, ran.text
    assert len({output["transient"]["display_id"] for output in ran.shown}) == 1
    data = ran.shown[-1]["data"]
    report = Report.from_dict(data[MIME_TYPE])
    assert [trial.settings["strategy"] for trial in report.tuning] == ["eager", "regional", "full"]
    assert report.settings == {"calls": 50, "budget": 3.0}
    assert "For 50 calls: " in data["text/html"]
    # AND the model is left as it was, and the report is there again
    assert nbcompile.report(shell.user_ns["model"]).tuning == report.tuning
    assert "For 50 calls: " in run("%nbcompile report model").shown[-1]["data"]["text/plain"]
    # AND it can be returned, applied and gone on with
    ran = run(f"%%tune model --resume --apply -o -q {TUNED}\nwith torch.no_grad():\n    y = model(**inputs)")
    assert ran.result.success, ran.text
    assert isinstance(ran.result.result, Report)
    assert ran.result.result.settings["calls"] == 1000


def test_an_interrupted_tuning_is_shown_as_far_as_it_came(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a cell that is interrupted at its tenth run, and rounds that take less time than the budget gives them
    monkeypatch.setattr(sys.modules["nbcompile.tune"], "_ROUND_SECONDS", 0.03)
    run("n = 0")
    ran = run(f"%%tune model {TUNED}\nn += 1\ny = model(**inputs)\nif n == 10:\n    raise KeyboardInterrupt")
    # THEN the interrupt is told, and the report so far is what the output shows
    assert "KeyboardInterrupt" in ran.text
    report = Report.from_dict(ran.shown[-1]["data"][MIME_TYPE])
    assert report.tuning[0].figures.cold_seconds is not None
    assert any("stopped by KeyboardInterrupt" in note for note in report.notes)
    # AND the next cell works, and goes on from there
    assert run("y = model(**inputs)").result.success
    ran = run(f"%%tune model --resume {TUNED} --budget 60\ny = model(**inputs)")
    assert ran.result.success, ran.text
    assert {t.outcome for t in Report.from_dict(ran.shown[-1]["data"][MIME_TYPE]).tuning} <= {"measured", "stopped"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--resume", "there is no tuning of this model to go on with"),
        ("--calls 0", "calls takes a whole number"),
        ("--budget 0", "budget takes seconds"),
        ("--space 3", "--space takes a dictionary"),
        ("""--space '{"modes": ["default"]}'""", "no axis 'modes'"),
        ("--call five", "%%tune? shows the options"),
    ],
)
def test_a_tuning_that_cannot_be_is_refused_in_one_line(run: Any, options: str, message: str) -> None:
    assert message in usage_error(run(f"%%tune model {options}\ny = model(**inputs)"))


def test_the_model_to_tune_is_found_in_the_body(run: Any) -> None:
    assert "%%tune MODEL" in usage_error(run("%%tune\ny = 1"))


@pytest.mark.inductor
@pytest.mark.slow
def test_a_cell_may_be_compiled_in_the_background(run: Any, shell: InteractiveShell) -> None:
    # GIVEN a model WHEN a cell is compiled in the background
    pytest.importorskip("cloudpickle")
    from nbcompile.compiler import current

    ran = run("%%compile_regional model --background\nwith torch.no_grad():\n    y = model(**inputs)")
    # THEN it ran once, eager, and the report says that code is on the way
    assert ran.result.success, ran.text
    report = Report.from_dict(ran.shown[-1]["data"][MIME_TYPE])
    assert report.settings["background"] is True
    assert report.groups[0].compiled == 0
    assert not report.strategies
    assert any("compiled beside it" in note for note in report.notes)
    # AND cells that follow run compiled when it is there
    model = shell.user_ns["model"]
    compilation = current(model)
    assert compilation is not None
    assert compilation.beside is not None
    compilation.beside.wait(240)
    for _ in range(3):
        assert run("with torch.no_grad():\n    z = model(**inputs)").result.success
    assert nbcompile.report(model).groups[0].compiled == 2
    torch.testing.assert_close(shell.user_ns["z"], shell.user_ns["y"])


def test_what_cannot_be_compiled_in_the_background_is_refused(run: Any) -> None:
    ran = run("%%compile_regional model --background --backend eager\ny = model(**inputs)")
    assert "compiles with the backend 'inductor'" in usage_error(ran)
