"""Compiled in the background: eager at once, compiled code when it is there, and whatever may happen to the helper."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("cloudpickle")

import nbcompile
from nbcompile import background, helper, helperprocess, remembered, waiting, warmup
from nbcompile.background import Beside
from nbcompile.compiler import current
from tests import models
from tests.blocks import WIDTH, Block, BreakingBlock, Net, NumberedBlock

pytestmark = [pytest.mark.inductor, pytest.mark.slow]

_SECONDS = 240.0


def _net(kind: Callable[..., nn.Module] = Block, blocks: int = 3) -> Net:
    torch.manual_seed(0)
    return Net([kind(number) for number in range(blocks)])


def _beside(model: nn.Module) -> Beside:
    compilation = current(model)
    assert compilation is not None
    assert compilation.beside is not None
    return compilation.beside


def _compiled(model: nn.Module) -> tuple[int, int]:
    groups = nbcompile.report(model).groups
    return sum(group.compiled for group in groups), sum(group.instances for group in groups)


def _step_until_compiled(model: nn.Module, step: Callable[[], torch.Tensor], expected: torch.Tensor) -> int:
    """Steps until all blocks run compiled, each of which must give what is expected."""
    end, steps = time.monotonic() + _SECONDS, 0
    while time.monotonic() < end:
        torch.testing.assert_close(step(), expected)
        steps += 1
        compiled, instances = _compiled(model)
        if compiled == instances:
            return steps
        if compiled == 0:
            _beside(model).wait(_SECONDS)
    pytest.fail(f"{_beside(model).state}: {_beside(model).told()}")


def _gone(pid: int) -> bool:
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


@pytest.fixture(autouse=True)
def _nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In this process nothing is remembered of other tests, whose blocks are the same."""
    monkeypatch.setattr(remembered, "anything_of", lambda class_names: False)
    monkeypatch.setattr(remembered.Place, "find", lambda self, block: None)
    yield
    pids = [beside.pid for beside in list(background._all)]
    for beside in list(background._all):
        beside.stop()
    assert all(pid is None or _gone(pid) for pid in pids)
    for _ in range(100):  # another thread may be at it
        left = list(Path(tempfile.gettempdir()).glob(f"nbcompile-helper-{os.getpid()}-*"))
        if not left:
            break
        time.sleep(0.1)
    assert not left


def test_the_first_step_runs_eager_and_a_later_one_compiled_with_nothing_left_to_compile() -> None:
    model, x = _net(), torch.randn(4, WIDTH)
    with torch.no_grad():
        expected = model(x)
        assert nbcompile.compile_regions(model, background=True) is model
        torch.testing.assert_close(model(x), expected)
        assert _compiled(model) == (0, 3)
        assert waiting.WAITING in (nbcompile.report(model).groups[0].eager_reason or "")
        _step_until_compiled(model, lambda: model(x), expected)
    (need,) = _beside(model).groups[0].needs
    assert (need.state, need.misses) == ("open", 0)
    report = nbcompile.report(model)
    assert report.settings["background"] is True
    assert any("compiled in the background for 1 kind(s) of call" in note for note in report.notes)


def test_blocks_that_need_a_graph_each_get_one_each() -> None:
    model, x = _net(NumberedBlock), torch.randn(4, WIDTH)
    with torch.no_grad():
        expected = model(x)
        nbcompile.compile_regions(model, background=True)
        _step_until_compiled(model, lambda: model(x), expected)
    needs = _beside(model).groups[0].needs
    assert len(needs) == 3
    assert sum(need.misses for need in needs) == 0


def test_an_answer_that_arrives_while_a_step_begins_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = _net(), torch.randn(4, WIDTH)

    class Ahead:
        def step(self) -> bool:  # a step that waits for the code finds it waiting, and ready when it goes on
            assert "ready" in _beside(model).wait(_SECONDS)
            return False

    with torch.no_grad():
        nbcompile.compile_regions(model, background=True)
        model(x)
        monkeypatch.setattr(waiting.startup, "ahead", Ahead)
        model(x)
        model(x)
    assert _compiled(model) == (3, 3)


def test_other_sizes_run_eager_until_they_are_compiled_and_then_any_size_does() -> None:
    model = _net()
    with torch.no_grad():
        expected = {size: model(torch.ones(size, WIDTH)) for size in (4, 6, 7, 9)}
        nbcompile.compile_regions(model, background=True)
        for size in (4, 6):
            _step_until_compiled(model, lambda size=size: model(torch.ones(size, WIDTH)), expected[size])
        for size in (7, 9):  # the second version takes any size
            torch.testing.assert_close(model(torch.ones(size, WIDTH)), expected[size])
            assert _compiled(model) == (3, 3)
    assert sum(need.misses for need in _beside(model).groups[0].needs) == 0


def test_a_graph_break_is_no_obstacle() -> None:
    model, x = _net(BreakingBlock), torch.randn(4, WIDTH)
    with torch.no_grad():
        expected = model(x)
        nbcompile.compile_regions(model, background=True)
        _step_until_compiled(model, lambda: model(x), expected)


def test_losses_of_a_training_are_eagers_across_the_switch() -> None:
    def train(model: nn.Module, steps: int, wait_at: int) -> list[float]:
        torch.manual_seed(1)
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
        for number in range(steps):
            loss = model(torch.randn(4, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if number == wait_at:
                _beside(model).wait(_SECONDS)
        return losses

    expected = train(_net().train(), 50, -1)
    model = _net().train()
    nbcompile.compile_regions(model, background=True)
    torch.testing.assert_close(train(model, 50, 20), expected, rtol=1e-4, atol=1e-6)
    assert _compiled(model) == (3, 3)
    assert sum(need.misses for need in _beside(model).groups[0].needs) == 0  # backward, too


def test_gradients_under_checkpointing_are_eagers_and_nothing_switches() -> None:
    from torch.utils.checkpoint import checkpoint

    model, x = _net().train(), torch.randn(4, WIDTH, requires_grad=True)

    def forward() -> torch.Tensor:
        h = x
        for layer in model.layers:
            h = checkpoint(layer, h, use_reentrant=False)
        return h

    def gradients(loss: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(loss, list(model.parameters())))

    expected = gradients(forward().sum())
    nbcompile.compile_regions(model, background=True)
    for _ in range(3):
        for one, other in zip(gradients(forward().sum()), expected, strict=True):
            torch.testing.assert_close(one, other)
    (group,) = nbcompile.report(model).groups
    assert (group.compiled, group.eager) == (0, 3)
    assert waiting.CHECKPOINTED in group.eager_reason


def test_what_the_block_does_to_itself_is_not_done_twice() -> None:
    class Counting(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.fc, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.dropout(self.norm(self.fc(x)), 0.5, True)

    def run(model: nn.Module, wait: bool) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(3)
        with torch.no_grad():
            for _ in range(3):
                model(torch.ones(4, WIDTH))
                if wait:
                    _beside(model).wait(_SECONDS)
        return model.layers[0].norm.num_batches_tracked.clone(), torch.rand(1)

    torch.manual_seed(0)
    model = Net([Counting(number) for number in range(2)]).train()
    nbcompile.compile_regions(model, background=True)
    batches, after = run(model, True)
    assert batches.item() == 3
    assert all(layer.norm.weight.grad is None for layer in model.layers)
    assert _compiled(model) == (2, 2)
    del after


def test_a_helper_that_is_killed_at_any_moment_is_told_and_the_model_goes_on() -> None:
    random.seed(0)
    for number, moment in enumerate((0.0, *(random.uniform(0, 8) for _ in range(9)))):
        x = torch.randn(20 + number, WIDTH)  # of a size that is not in the cache yet
        model = _net()
        with torch.no_grad(), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            expected = model(x)
            nbcompile.compile_regions(model, background=True)
            model(x)
            end = time.monotonic() + moment
            while time.monotonic() < end or _beside(model).pid is None:
                torch.testing.assert_close(model(x), expected)
                time.sleep(0.01)
            pid = _beside(model).pid
            if pid is not None:
                os.killpg(pid, signal.SIGKILL)
                assert _gone(pid)
            _beside(model).wait(_SECONDS)
            for _ in range(3):
                torch.testing.assert_close(model(x), expected)
        if _compiled(model) == (0, 3):
            assert any("was ended by the signal SIGKILL" in str(w.message) for w in told)
            assert any("SIGKILL" in note for note in nbcompile.report(model).notes)
        nbcompile.restore(model)
    with torch.no_grad():  # the next compile works
        nbcompile.compile_regions(model, background=True)
        _step_until_compiled(model, lambda: model(x), expected)


def test_tokens_of_generate_are_eagers_across_the_switch() -> None:
    model = models.llama(layers=3)[0].eval()
    prompt = torch.arange(2, 9)[None]

    def generate() -> torch.Tensor:
        tokens: torch.Tensor = model.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)
        return tokens

    with torch.no_grad():
        expected = generate()
        nbcompile.compile_regions(model, background=True)
        _step_until_compiled(model, generate, expected)
        torch.testing.assert_close(generate(), expected)


def test_an_adapter_that_is_put_in_meanwhile_takes_part() -> None:
    class Adapted(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner, self.down, self.up = inner, nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.inner(x) + self.up(self.down(x))
            return result

    model, x = _net(), torch.randn(4, WIDTH)
    with torch.no_grad():
        nbcompile.compile_regions(model, background=True)
        model(x)
        for layer in model.layers:
            layer.fc = Adapted(layer.fc)
        with nbcompile.eager(model):
            expected = model(x)
        _step_until_compiled(model, lambda: model(x), expected)


def test_short_steps_rest_so_that_the_helper_gets_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Beside, "_start", lambda beside: None)
    monkeypatch.setattr(waiting.cores, "usable", torch.get_num_threads)
    if torch.get_num_threads() < 2:
        pytest.skip("with one thread no core is kept busy by threads that wait")
    rests: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, perf_counter=time.perf_counter, sleep=rests.append)
    monkeypatch.setattr(background, "time", clock)
    model, x = _net(), torch.ones(2, WIDTH)
    nbcompile.compile_regions(model, background=True)
    with torch.no_grad():
        model(x)
        _beside(model).busy = True
        for _ in range(3):
            model(x)
        assert rests == [background._REST]  # not at each step
        _beside(model).busy = False
        model(x)
        assert len(rests) == 1


def test_two_kernels_share_a_folder(tmp_path: Path) -> None:
    with _program(tmp_path, "stay") as one, _program(tmp_path, "stay") as other:
        for process in (one, other):
            out, _ = process.communicate(timeout=500)
            answer = json.loads(out.splitlines()[-1])
            assert (answer["same"], answer["compiled"], answer["reason"]) == (True, 3, "")


def test_some_blocks_leave_a_core_to_the_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Telling(Block):
        def work(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_compiling():
                seen.append(torch.get_num_threads())
            return super().work(x)

    monkeypatch.setattr(Beside, "_start", lambda beside: None)
    before = torch.get_num_threads()
    try:
        for threads, cores, expected in ((2, 2, [1, 1, 2, 2]), (4, 4, [3, 3, 3, 3]), (2, 3, [2, 2, 2, 2])):
            torch.set_num_threads(threads)
            monkeypatch.setattr(waiting.cores, "usable", lambda cores=cores: cores)
            model = _net(Telling, 4)
            nbcompile.compile_regions(model, background=True)
            for busy, told in ((True, expected), (False, [threads] * 4)):
                _beside(model).busy = busy
                _beside(model).groups[0].at_step()  # the first step is not slowed down
                seen.clear()
                model(torch.ones(2, WIDTH))
                assert (seen, torch.get_num_threads()) == (told, threads)
            nbcompile.restore(model)
    finally:
        torch.set_num_threads(before)


def test_a_helper_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helperprocess, "PATIENCE", 3.0)
    model, x = _net(), torch.randn(4, WIDTH)
    with torch.no_grad(), pytest.warns(nbcompile.CompilationWarning, match="it hung for"):
        nbcompile.compile_regions(model, background=True)
        model(x)
        while (pid := _beside(model).pid) is None:
            time.sleep(0.01)
        os.killpg(pid, signal.SIGSTOP)
        _beside(model).wait(60)
        model(x)
    assert _gone(pid)
    assert _compiled(model) == (0, 3)


def test_without_a_compiler_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")

    class Another(Block):
        def work(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.fc(x)).exp()

    model, x = _net(Another), torch.randn(4, WIDTH)
    with torch.no_grad(), pytest.warns(nbcompile.CompilationWarning, match=r"C\+\+ compiler"):
        expected = model(x)
        nbcompile.compile_regions(model, background=True)
        model(x)
        _beside(model).wait(_SECONDS)
        torch.testing.assert_close(model(x), expected)
    assert _compiled(model) == (0, 3)


def test_a_model_that_is_changed_meanwhile_is_compiled_as_it_is_then() -> None:
    model, x = _net(), torch.randn(4, WIDTH)
    with torch.no_grad():
        nbcompile.compile_regions(model, background=True)
        model(x)
        model.double()
        expected = Net.forward(model, x.double())
        _step_until_compiled(model, lambda: model(x.double()), expected)
    assert all(need.misses == 0 for need in _beside(model).groups[0].needs)


def test_a_model_that_is_deleted_or_restored_takes_its_helper_along() -> None:
    for how in ("restored", "deleted"):
        model = _net()
        nbcompile.compile_regions(model, background=True)
        model(torch.ones(2, WIDTH))
        while (pid := _beside(model).pid) is None:
            time.sleep(0.01)
        if how == "restored":
            nbcompile.restore(model)
        del model
        gc.collect()
        assert _gone(pid)


_NOTEBOOK = """
import json, os, sys, time
import torch, nbcompile
from torch import nn
from nbcompile.compiler import current
class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 16)
    def forward(self, x):
        return helper_function(self.fc(x)) + x
def helper_function(x):
    return torch.sigmoid(x) * 3
model = nn.Sequential(*[Mine() for _ in range(3)])
x = torch.ones(2, 16)
with torch.no_grad():
    expected = model(x)
    nbcompile.compile_regions(model, background=True)
    model(x)
    beside = current(model).beside
    if sys.argv[1] == "leave":
        while beside.pid is None:
            time.sleep(0.01)
        print(json.dumps(beside.pid), flush=True)
        time.sleep(60)
    beside.wait(200)
    model(x)
    same = torch.allclose(model(x), expected)
group = nbcompile.report(model).groups[0]
need = beside.groups[0].needs[0]
print(json.dumps({"same": same, "compiled": group.compiled, "misses": need.misses, "reason": need.reason,
                  "helpers": beside._helpers, "told": beside.told()}))
"""


def _program(tmp_path: Path, *arguments: str, source: str = _NOTEBOOK) -> subprocess.Popen[str]:
    """A kernel's program with a cache folder that it shares with all programs of this path."""
    file = tmp_path / "notebook.py"
    file.write_text(textwrap.dedent(source))
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, str(file), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    with process:
        out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])  # type: ignore[no-any-return]


def test_classes_of_the_main_module_are_compiled_and_a_restarted_kernel_needs_no_helper(tmp_path: Path) -> None:
    # GIVEN a kernel in which a cell's classes were compiled in the background
    first = _answer(_program(tmp_path, "stay"))
    told = first.pop("told")
    assert first == {"same": True, "compiled": 3, "misses": 0, "reason": "", "helpers": 1}
    assert "compiled in the background for 1 kind(s) of call, in" in told[0]
    # WHEN the same is done in a kernel after it THEN the code is found, and no helper is started
    again = _answer(_program(tmp_path, "stay"))
    told = again.pop("told")
    assert again == {"same": True, "compiled": 3, "misses": 0, "reason": "", "helpers": 0}
    assert "by an earlier process" in told[0]
    # AND other code of the class is compiled by a helper as before
    other = _answer(_program(tmp_path, "stay", source=_NOTEBOOK.replace("self.fc(x)) + x", "self.fc(x)) - x")))
    assert (other["same"], other["compiled"], other["misses"], other["helpers"]) == (True, 3, 0, 1)
    # AND where the code is gone but word of it is left, the switch compiles it, and that is told
    for folder in ("fxgraph", "aotautograd"):
        shutil.rmtree(tmp_path / "cache" / folder)
    gone = _answer(_program(tmp_path, "stay"))
    assert (gone["same"], gone["compiled"], gone["misses"] > 0, gone["helpers"]) == (True, 3, True, 0)
    assert "not found in the cache and compiled at the switch" in gone["told"][0]


def test_a_step_does_not_fail_for_want_of_memory_of_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("nothing can be remembered")

    monkeypatch.setattr(remembered.Place, "__init__", fails)
    model, x = _net(), torch.randn(4, WIDTH)
    with torch.no_grad():
        expected = model(x)
        nbcompile.compile_regions(model, background=True)
        _step_until_compiled(model, lambda: model(x), expected)


@pytest.mark.parametrize("content", ["", "[", "7", '[{"sources": 3}]', "[[]]", '{"a": 1}', "null"])
def test_damaged_word_of_an_earlier_process_is_no_word(content: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    block = Block(0)
    place = remembered.Place("Block", block, None, "rest")
    known = remembered.Known(["block.training"], False)
    place.note(block, known)
    assert place.find(block) == known
    assert remembered.anything_of(["Block"])
    assert remembered.Place("Block", block, None, "other").find(block) is None
    block.eval()
    assert place.find(block) is None
    place._file.write_text(content)
    assert place.find(block) is None
    place.note(block, known)
    assert place.find(block) == known


def test_a_start_up_that_stands_by_goes_on_as_the_helper(tmp_path: Path) -> None:
    # GIVEN a program whose start-up is done, and whose first module with torch is its own
    (tmp_path / "first.py").write_text("import torch\n")
    source = f"""\
import sys
sys.path.insert(0, {str(tmp_path)!r})
import first
import nbcompile
begun = nbcompile.warm_up(wait=True)
pid = begun._process.pid
assert "stands by" in str(begun), begun
{_NOTEBOOK}
assert beside.pid == pid and "stands by" not in str(begun)
begun.stop()
assert beside.pid == pid
"""
    # WHEN it compiles in the background THEN that process does it, and the code is found
    answer = _answer(_program(tmp_path, "stay", source=source))
    assert (answer["same"], answer["compiled"], answer["misses"], answer["helpers"]) == (True, 3, 0, 1)


@pytest.mark.alone  # the start-up, at the lowest priority, gets next to nothing beside the other processes
@pytest.mark.parametrize("why", ["other settings", "it has ended"])
def test_a_start_up_that_cannot_go_on_is_left_alone(why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a start-up that has ended since, or began with other settings in the environment
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(warmup, "_latest", None)
    monkeypatch.setattr(warmup, "STAND_BY", 1.0 if why == "it has ended" else 60.0)
    begun = nbcompile.warm_up()
    assert begun.wait(120) == "done"
    assert begun._process is not None
    if why == "it has ended":
        assert begun._process.wait(20) == 0
        assert "stands by" not in str(begun)
    else:
        monkeypatch.setenv("TORCH_LOGS", "-dynamo")
    pid = begun._process.pid
    # WHEN something is compiled in the background THEN that has a helper of its own
    model, x = _net(), torch.randn(4, WIDTH)
    with torch.no_grad():
        expected = model(x)
        nbcompile.compile_regions(model, background=True)
        _step_until_compiled(model, lambda: model(x), expected)
    assert _beside(model).pid not in (None, pid)
    begun.stop()
    assert _gone(pid)


def test_what_a_helper_left_behind_that_was_killed_with_its_kernel_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    old, names = time.time() - 7200, {}
    for name, pid, touched in (("left", gone.pid, old), ("used", os.getppid(), old), ("new", gone.pid, time.time())):
        names[name] = tmp_path / f"nbcompile-helper-{pid}-{name}"
        names[name].mkdir()
        (names[name] / "file").touch()
        os.utime(names[name], (touched, touched))
    (tmp_path / "nbcompile-helper-of-mine").mkdir()
    assert helper.remove_left_behind() == 1
    assert not names["left"].exists()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_kernel_that_dies_leaves_no_helper(tmp_path: Path) -> None:
    with _program(tmp_path, "leave") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        process.wait()
    assert _gone(pid)


@pytest.mark.alone  # beside others the helper, at the lowest priority, may not come to the folder in time
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting takes root")
@pytest.mark.parametrize(
    ("options", "words"), [("size=64k", ("full", "No space left", "written")), ("ro", ("written", "Read-only"))]
)
def test_a_full_disk_and_a_folder_that_cannot_be_written_to_are_told(
    tmp_path: Path, options: str, words: tuple[str, ...]
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)}
        file = tmp_path / "notebook.py"
        file.write_text(textwrap.dedent(_NOTEBOOK))
        done = subprocess.run(
            [sys.executable, str(file), "stay"], env=environment, capture_output=True, text=True, timeout=300
        )
        answer = json.loads(done.stdout.splitlines()[-1])
        assert (answer["same"], answer["compiled"]) == (True, 0)
        assert any(word in answer["reason"] for word in words), answer
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"backend": "eager"}, "compiles with the backend 'inductor'"),
        ({"guard_collectives": True}, "do not go together"),
    ],
)
def test_what_does_not_go_with_it_is_refused(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(nbcompile.UsageError, match=words):
        nbcompile.compile_regions(_net(), background=True, **keywords)


def test_a_kernel_that_was_cut_off_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    program = """
        import sys, torch, nbcompile
        from tests.blocks import Block, Net, WIDTH
        torch.manual_seed(0)
        model = Net([Block(0), Block(1)])
        with torch.no_grad():
            expected = model(torch.ones(2, WIDTH))
            nbcompile.compile_regions(model)
            torch.testing.assert_close(model(torch.ones(2, WIDTH)), expected)
        assert nbcompile.report(model).groups[0].compiled == 2
    """
    run = [sys.executable, "-c", textwrap.dedent(program)]
    subprocess.run(run, check=True, timeout=300)
    libraries = list(tmp_path.rglob("*.main.so"))  # kernels; the others are trials of vector instructions
    assert libraries
    for library in libraries:
        library.write_bytes(library.read_bytes()[:20])  # less than a header: more of it ends the process in the loader
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(run, check=True, timeout=300)
