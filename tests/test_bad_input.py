"""Bad input and a bad environment: one clear message, the model still runs in eager, and the next call works."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nbcompile
from nbcompile import NoRepeatedBlocksError, UsageError
from tests.blocks import WIDTH, net, ran_eager, rows

BACKEND = "aot_eager"


def still_works(model: nn.Module, expected: torch.Tensor) -> None:
    """The model runs, and can be compiled."""
    with torch.no_grad():
        torch.testing.assert_close(model(rows()), expected)
        nbcompile.compile_regions(model, backend=BACKEND)
        assert ran_eager(model, rows()) == 0
        torch.testing.assert_close(model(rows()), expected)


def test_a_model_without_repeated_blocks() -> None:
    # GIVEN a model in which nothing repeats
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, WIDTH))
    expected = model(rows())
    # WHEN it is to be compiled by blocks, THEN the message says what was seen and what to do
    with pytest.raises(NoRepeatedBlocksError, match=r"Linear x2, ReLU.*compile_model.*regions=\["):
        nbcompile.compile_regions(model, backend=BACKEND)
    torch.testing.assert_close(model(rows()), expected)
    torch.testing.assert_close(nbcompile.compile_model(model, backend=BACKEND)(rows()), expected)


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        ("gpt2", "expected a torch.nn.Module, got str: 'gpt2'"),
        (None, "got NoneType"),
        (nn.Linear, "Linear is a class; create the model first"),
        (lambda: torch.compile(net(), backend="eager"), r"model\._orig_mod"),
    ],
    ids=["text", "None", "class", "torch.compile's wrapper"],
)
@pytest.mark.parametrize("name", ["compile_regions", "compile_model", "restore", "report", "plan_regions"])
def test_no_model(thing: Any, message: str, name: str) -> None:
    if callable(thing) and not isinstance(thing, type):
        thing = thing()
    with pytest.raises(UsageError, match=message):
        getattr(nbcompile, name)(thing)


def test_a_root_with_an_accelerate_hook_compiles_and_says_so() -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    # GIVEN a model whose root carries a hook of accelerate
    model = net()
    with torch.no_grad():
        expected = model(rows())
        hooks.add_hook_to_module(model, hooks.ModelHook())
        # WHEN it is compiled, THEN its blocks run compiled, and the report tells of the hook
        nbcompile.compile_regions(model, backend=BACKEND)
        assert ran_eager(model, rows()) == 0
        torch.testing.assert_close(model(rows()), expected)
        assert any("ModelHook" in note for note in nbcompile.report(model).notes)
        hooks.remove_hook_from_module(model)
    still_works(model, expected)


@pytest.mark.parametrize("compile_it", [nbcompile.compile_regions, nbcompile.compile_model])
def test_offloaded_weights_are_refused(compile_it: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = net()
    with torch.no_grad():
        expected = model(rows())
        accelerate.cpu_offload(model)
        with pytest.raises(UsageError, match=r"layers\.0\.fc is offloaded.*remove_hook_from_submodules"):
            compile_it(model, backend=BACKEND)
        for _ in range(2):
            torch.testing.assert_close(model(rows()), expected)
            assert {p.device.type for p in model.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "inductr"}, "Did you mean 'inductor'.*aot_eager"),
        ({"mode": "fast"}, "no mode 'fast'.*max-autotune"),
        ({"options": {"max_autotun": True}}, "no option 'max_autotun'. Did you mean 'max_autotune'"),
        ({"options": {"max_autotune": "yes"}}, "'max_autotune' takes bool"),
        ({"mode": "max-autotune", "options": {"max_autotune": True}}, "mode or options, not both"),
        ({"backend": "eager", "options": {"x": 1}}, "'eager' takes no options"),
        ({"rest": "some"}, "rest takes 'auto', 'compile', 'eager'"),
        ({"regions": ["layers.9"]}, "'layers.9' is neither"),
    ],
)
def test_settings_that_do_not_exist_are_refused_before_anything_changes(settings: dict[str, Any], message: str) -> None:
    # GIVEN a compiled model
    model = net()
    expected = model(rows())
    nbcompile.compile_regions(model, backend=BACKEND)
    # WHEN it is compiled with settings that do not exist, THEN they are refused, and the model is as it was
    with pytest.raises(UsageError, match=message):
        nbcompile.compile_regions(model, **settings)
    assert ran_eager(model, rows()) == 0
    still_works(model, expected)


def test_a_step_that_raises() -> None:
    model = net()
    expected = model(rows())

    def step() -> None:
        model(rows())
        raise KeyError("no such batch")

    with pytest.raises(KeyError, match="no such batch"):
        nbcompile.compare(model, step, ["eager", "regional"], backend=BACKEND)
    still_works(model, expected)


def test_a_step_that_never_calls_the_model() -> None:
    model = net()
    with pytest.raises(UsageError, match="the step never called the model"):
        nbcompile.compare(model, lambda: net(2)(rows()), ["eager", "regional"], backend=BACKEND)
    still_works(model, model(rows()))


# -- a bad environment, each in a process of its own ------------------------------------------------------------------

PROGRAM = """
import warnings
import torch
from torch import nn
import nbcompile

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))

    def forward(self, x):
        return x + torch.sin(x * self.weight) * torch.sigmoid(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

model, x = Net().eval(), torch.randn(2, 16)
with torch.no_grad():
    want = model(x)
    nbcompile.compile_regions(model)
{body}
    torch.testing.assert_close(model(x), want)
    nbcompile.compile_regions(model, backend="aot_eager")
    torch.testing.assert_close(model(x), want)
    (group,) = nbcompile.report(model).groups
    assert (group.instances, group.compiled, group.eager) == (3, 3, 0), group
    print("fine")
"""

CALL = """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(model(x), want)
        model(x)
    told = [str(w.message) for w in caught if issubclass(w.category, nbcompile.CompilationWarning)]
    assert len(told) == 1, told
    print(told[0])
    (group,) = nbcompile.report(model).groups
    assert (group.compiled, group.eager) == (0, 3), group
    assert group.failure
"""


def run(body: str, environment: dict[str, str]) -> str:
    """Run :data:`PROGRAM` in a process of its own; what it printed."""
    told = execute(textwrap.dedent(PROGRAM).format(body=body), environment)
    assert told.endswith("fine\n")
    return told


def execute(program: str, environment: dict[str, str]) -> str:
    """Run a program in a process of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(nbcompile.__file__).parents[1]), **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_no_cpp_compiler(tmp_path: Path) -> None:
    missing = "there-is-no-such-compiler"
    told = run(CALL, {"PATH": str(tmp_path), "CXX": missing, "CC": missing, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)})
    assert "no working C++ compiler was found" in told
    assert "Install g++ or clang++" in told


CACHE = """
import os, torch, nbcompile
from tests.blocks import net, rows
model = net()
want = model(rows())
try:
    nbcompile.compile_regions(model, backend="aot_eager")
except nbcompile.UsageError as error:
    print(error)
torch.testing.assert_close(model(rows()), want)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["GOOD_FOLDER"]
nbcompile.compile_regions(model, backend="aot_eager")
torch.testing.assert_close(model(rows()), want)
print(nbcompile.report(model).groups[0].compiled, "blocks")
"""


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["below a file", "/proc/sys"])  # in the latter not even root can write
def test_a_cache_folder_that_cannot_be_used_is_refused_before_it_does_harm(folder: str, tmp_path: Path) -> None:
    # GIVEN a cache folder that cannot be created or written: importing torch's compiler would fail half way for good
    if folder == "below a file":
        (tmp_path / "file").write_text("")
        folder = str(tmp_path / "file" / "cache")
    # WHEN a model is to be compiled, and again once the folder has been mended
    done = execute(CACHE, {"TORCHINDUCTOR_CACHE_DIR": folder, "GOOD_FOLDER": str(tmp_path / "good")})
    # THEN the message says what is wrong and what to do, and the second call works
    assert "the compiler's cache folder" in done
    assert "Set TORCHINDUCTOR_CACHE_DIR" in done
    assert done.endswith("4 blocks\n")


FULL = """
    import os
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = "/proc/sys"
"""


@pytest.mark.slow
def test_a_cache_folder_that_fails_later_is_told_and_survived() -> None:
    told = run(FULL + CALL, {})
    assert "the compiler cannot use its cache folder" in told
    assert "set TORCHINDUCTOR_CACHE_DIR" in told


INTERRUPT = """
    import os, signal, threading
    # the interrupt comes while the compiler is at work: its first compile takes seconds
    threading.Timer({after}, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        model(x)
        print("was not interrupted")
    except KeyboardInterrupt:
        print("interrupted")
    torch.testing.assert_close(model(x), want)
    (group,) = nbcompile.report(model).groups
    assert (group.compiled, group.eager) == (3, 0), group
"""


@pytest.mark.slow
@pytest.mark.inductor
@pytest.mark.parametrize("after", [0.3, 2.0])
def test_an_interrupt_in_the_middle_of_a_real_compile(after: float, tmp_path: Path) -> None:
    told = run(INTERRUPT.format(after=after), {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)})
    assert "was not interrupted" not in told
    assert "interrupted" in told
