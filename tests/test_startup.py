"""The compiler's start-up beside its first trace, each time in a process of its own."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch

import nbcompile
from nbcompile import events, startup

ROOT = Path(__file__).resolve().parents[1]
BEGINNING = """
    import threading, torch
    import nbcompile
    from nbcompile import startup
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(2)])
    started = lambda: [thread.name for thread in threading.enumerate() if thread.name.startswith("nbcompile")]
"""


def told(code: str, folder: Path) -> list[str]:
    """What a program prints that ran in a fresh process with an empty cache."""
    source = textwrap.dedent(BEGINNING) + textwrap.dedent(code)
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="it is begun on Linux alone")
def test_the_first_compile_finds_it_done(tmp_path: Path) -> None:
    # GIVEN a process in which a model is about to be compiled
    # THEN the start-up goes on in a thread; it leaves in the process what inductor looks for, and compiles no kernel
    lines = told(
        """
        from pathlib import Path
        import os
        nbcompile.compile_regions(model)
        print(started())
        print(startup.wait() > 0)
        from torch._inductor import codecache, cpu_vec_isa
        print(cpu_vec_isa.valid_vec_isa_list.cache_info().currsize, codecache._precompile_header.cache_info().misses)
        with torch.no_grad():
            model(torch.ones(2, 8))
        print(codecache._precompile_header.cache_info().misses, cpu_vec_isa.valid_vec_isa_list.cache_info().misses)
        group = nbcompile.report(model).groups[0]
        print(group.compiled, group.eager)
        """,
        tmp_path,
    )
    assert lines == ["['nbcompile-start-up']", "True", "1 1", "1 1", "2 0"]


@pytest.mark.skipif(sys.platform != "linux", reason="it is begun on Linux alone")
def test_an_interrupt_meanwhile_does_not_cost_the_vector_instructions(tmp_path: Path) -> None:
    # GIVEN a kernel's own process group, in which the start-up is trying vector instructions in processes of its own
    # WHEN the user interrupts, which a kernel's front end sends to the whole group, until it has ended
    # THEN as many are found as in a process that was left in peace, and the main thread gets its interrupts
    code = """
        import os, signal, time
        os.setpgid(0, 0)
        interrupts = 0
        startup.begin("inductor", torch.device("cpu"))
        while startup._thread.is_alive():
            try:
                if INTERRUPTED:
                    os.killpg(0, signal.SIGINT)
                time.sleep(0.05)
            except KeyboardInterrupt:
                interrupts += 1
        from torch._inductor import cpu_vec_isa
        print([str(kind) for kind in cpu_vec_isa.valid_vec_isa_list()])
        print(interrupts > 5)
    """
    in_peace, interrupted = (
        told(code.replace("INTERRUPTED", str(value)), tmp_path / str(value)) for value in (False, True)
    )
    assert in_peace == [interrupted[0], "False"]
    assert interrupted[1] == "True"


AHEAD = """
    import collections, sys
    commands = []
    sys.addaudithook(lambda event, args: event == "subprocess.Popen" and commands.append(list(args[1] or ())))
    built = lambda: sum(str(part).endswith(".main.cpp") for command in commands for part in command)
    import torch._dynamo.utils
    counters = lambda: {name: dict(counts) for name, counts in torch._dynamo.utils.counters.items() if counts}
    torch._dynamo.utils.counters["mine"]["kept"] = 3
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the part in a thread is begun on Linux alone")
def test_a_process_does_its_own_part_ahead_and_leaves_no_trace(tmp_path: Path) -> None:
    # GIVEN a start-up ahead, in another process WHEN this process has done its own part
    # THEN no kernel was compiled for that, and the compiler's counts and the user's settings are as they were
    lines = told(
        textwrap.dedent(AHEAD)
        + textwrap.dedent("""
        torch.set_default_dtype(torch.float64)
        torch._dynamo.config.recompile_limit = 77
        if torch.__version__ >= "2.12":  # before, settings are the process's and no context's
            torch._inductor.config.cpp.simdlen = 1  # no vectors: other kernels, which nobody has compiled ahead
        begun = nbcompile.warm_up()
        begun.wait()
        commands.clear()
        before = counters()
        nbcompile.warm_up(wait=True)
        print(begun.state, built(), counters() == before, startup.ahead().state, startup.ahead().step())
        print(torch._dynamo.config.recompile_limit, torch.is_grad_enabled(), torch.get_default_dtype())
        torch._inductor.config.cpp.simdlen = None
        commands.clear()
        model.double()
        nbcompile.compile_regions(model)
        print(startup.wait() < 0.1)
        model(torch.ones(2, 8))
        print(built() > 0, len(commands) == built())  # nothing is probed again
        """),
        tmp_path,
    )
    assert lines == ["done 0 True done False", "77 True torch.float64", "True", "True True"]


def test_nothing_is_compiled_ahead_where_someone_looks_at_all_that_is_compiled(tmp_path: Path) -> None:
    lines = told(
        textwrap.dedent(AHEAD)
        + textwrap.dedent("""
        import os
        os.environ["TORCH_LOGS"] = "recompiles"
        own = startup.ahead()
        own.finish()
        print(own.state, torch._dynamo.utils.counters["frames"]["total"])
        """),
        tmp_path,
    )
    assert lines == ["done: modules imported 0"]


def test_fewer_collections_for_a_compile_and_then_as_before() -> None:
    before = gc.get_threshold()
    seen = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        seen.append(gc.get_threshold()[0])
        return graph.forward

    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(2)])
    nbcompile.compile_regions(model, backend=backend)
    with torch.no_grad():
        model(torch.ones(2, 8))
    assert seen == [100_000]
    assert gc.get_threshold() == before


def test_compiles_in_several_threads_put_the_collector_back_once_the_last_has_ended() -> None:
    before = gc.get_threshold()
    inside, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with startup.fewer_collections:
            inside.set()
            go_on.wait(30)

    thread = threading.Thread(target=other)
    with startup.fewer_collections:
        thread.start()
        assert inside.wait(30)
    assert gc.get_threshold()[0] == 100_000
    go_on.set()
    thread.join()
    assert gc.get_threshold() == before
    # AND what the user has set stays: none at all, or another threshold set meanwhile
    try:
        gc.set_threshold(0)
        with startup.fewer_collections:
            assert gc.get_threshold()[0] == 0
        gc.set_threshold(*before)
        with startup.fewer_collections:
            gc.set_threshold(5_000, 20, 20)
        assert gc.get_threshold() == (5_000, 20, 20)
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("how", ["backend='eager'", "backend='aot_eager'"])
def test_other_backends_begin_nothing(how: str, tmp_path: Path) -> None:
    lines = told(f"import sys; nbcompile.compile_regions(model, {how}); print(started())", tmp_path)
    assert lines == ["[]"]


def test_a_start_up_that_fails_leaves_the_first_compile_as_it_was(tmp_path: Path) -> None:
    lines = told(
        """
        from torch._inductor import codecache
        del codecache.CppPythonBindingsCodeCache.load_pybinding_async  # as in a torch that has it no longer
        nbcompile.compile_regions(model, backend="inductor")
        startup.wait()
        model.eval()
        print(started(), "inductor" in str(nbcompile.report(model).settings))
        """,
        tmp_path,
    )
    assert lines == ["[] True"]


def test_what_was_waited_is_no_phase_of_the_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Record:
        start_time_us, end_time_us, is_forward = 0, 10_000_000, True
        dynamo_cumulative_compile_time_us = 10_000_000
        aot_autograd_cumulative_compile_time_us = 8_000_000
        inductor_cumulative_compile_time_us = 2_000_000
        fail_type = fail_reason = recompile_reason = None
        graph_op_count = 3

    phases = events._compile(Record(), "layers.0", 5.0).phases
    assert phases == pytest.approx({"dynamo": 2.0, "aot_autograd": 1.0, "inductor": 2.0, "other": 5.0})
    assert sum(phases.values()) == pytest.approx(10.0)
    assert events._compile(Record(), "layers.0").phases["aot_autograd"] == pytest.approx(6.0)


@pytest.mark.skipif(sys.platform != "linux", reason="it is begun on Linux alone")
@pytest.mark.parametrize(("backend", "threads"), [("inductor", 1), ("no", 0)])
def test_an_accelerator_that_will_compile_begins_it(tmp_path: Path, backend: str, threads: int) -> None:
    # GIVEN an accelerator WHEN it is made THEN the start-up begins, before there is a model, if it is going to compile
    code = f"""
        nbcompile.Accelerator(cpu=True, dynamo_plugin=nbcompile.TorchDynamoPlugin(backend={backend!r}))
        print(len(started()))
    """
    assert told(code, tmp_path)[-1] == str(threads)
