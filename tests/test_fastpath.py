"""Compiled code that is called directly: it is used, and no change of anything it relies on gives a stale result."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import guards

import nbcompile
from nbcompile import compiler, fastpath, variants
from nbcompile.border import region_of

from . import models

#: Global names that the blocks read.
GAIN = 1.0
SHIFTS = [0.5]


def bend(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("offset", torch.zeros(4))
        self.flag = True
        self.steps = [1, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc(x) + self.offset
        return x * len(self.steps) if self.flag else -x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.drop = nn.Dropout(0.5)
        self.power = 2

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 1.5) -> torch.Tensor:
        y = bend(self.drop(self.inner(x))) * GAIN + SHIFTS[0]
        y = y * scale**self.power
        return x + (y if mask is None else y * mask)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.between: Callable[[], object] = lambda: None

    def forward(self, x: torch.Tensor, **keywords: Any) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, **keywords)
            self.between()
        return x


X = torch.linspace(-1, 1, 8).reshape(2, 4)


@pytest.fixture
def model(taken: list[fastpath.FastPath]) -> nn.Module:
    """A model whose blocks are called directly: the latest step has shown it."""
    torch.manual_seed(0)
    model = nbcompile.compile_regions(Model().eval(), backend="eager")
    with torch.no_grad():
        model(X), model(X)
        taken.clear()
        model(X)
    assert len(taken) == 3, "the blocks were not called directly"
    taken.clear()
    return model


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[fastpath.FastPath]:
    """The direct calls that were made."""
    made: list[fastpath.FastPath] = []
    begin = fastpath.FastPath.__init__

    def noting(path: fastpath.FastPath, *args: Any) -> None:
        begin(path, *args)
        run = path.run

        def noted(*given: Any) -> Any:
            made.append(path)
            return run(*given)

        path.run = noted

    monkeypatch.setattr(fastpath.FastPath, "__init__", noting)
    return made


@pytest.fixture(autouse=True)
def _names() -> Iterator[None]:
    """The global names as they were."""
    saved = {name: globals()[name] for name in ("GAIN", "bend")}
    shifts = list(SHIFTS)
    yield
    globals().update(saved)
    SHIFTS[:] = shifts


def agrees(model: nn.Module, x: torch.Tensor = X, **keywords: Any) -> None:
    """The model's result is eager's."""
    with nbcompile.eager(model):
        expected = model(x, **keywords)
    actual = model(x, **keywords)
    torch.testing.assert_close(actual, expected)
    assert actual.dtype == expected.dtype
    assert actual.requires_grad == expected.requires_grad


CHANGES: dict[str, Callable[[Any], object]] = {
    "a number of the block": lambda m: setattr(m.layers[1], "power", 3),
    "a flag of a part": lambda m: setattr(m.layers[2].inner, "flag", False),
    "a list of a part": lambda m: m.layers[1].inner.steps.append(3),
    "a list of a part by another of one length": lambda m: setattr(m.layers[1].inner, "steps", [1]),
    "a weight by another": lambda m: setattr(m.layers[1].inner.fc, "weight", nn.Parameter(torch.ones(4, 4))),
    "a weight in place": lambda m: m.layers[1].inner.fc.weight.data.add_(1.0),
    "a weight's data": lambda m: setattr(m.layers[1].inner.fc.weight, "data", torch.ones(4, 4)),
    "a weight behind the module's back": lambda m: m.layers[1].inner.fc._parameters.update(
        weight=nn.Parameter(torch.ones(4, 4))
    ),
    "a bias taken away": lambda m: setattr(m.layers[1].inner.fc, "bias", None),
    "a buffer": lambda m: setattr(m.layers[0].inner, "offset", torch.ones(4)),
    "a buffer of another shape": lambda m: setattr(m.layers[0].inner, "offset", torch.ones(1, 4)),
    "a part by another": lambda m: setattr(m.layers[0].inner, "fc", nn.Linear(4, 4)),
    "a part by one of another class": lambda m: setattr(m.layers[0].inner, "fc", nn.Identity()),
    "a part by another, behind the module's back": lambda m: m.layers[0].inner._modules.update(fc=nn.Identity()),
    "a method of an instance": lambda m: setattr(m.layers[2].inner, "forward", lambda x: x + 7),
    "a hook on a block": lambda m: m.layers[1].register_forward_hook(lambda *a: a[2] + 1),
    "a hook on a part": lambda m: m.layers[1].inner.fc.register_forward_hook(lambda *a: a[2] + 1),
    "a pre-hook on a part": lambda m: m.layers[1].inner.fc.register_forward_pre_hook(lambda _, a: (a[0] + 1,)),
    "a global number": lambda m: globals().update(GAIN=3.0),
    "a global list": lambda m: SHIFTS.__setitem__(0, 9.0),
    "a global function": lambda m: globals().update(bend=torch.sigmoid),
    "a library's function": lambda m: pytest.MonkeyPatch.context().__enter__().setattr(torch, "relu", torch.sigmoid),
    "blocks in another order": lambda m: setattr(m, "layers", nn.ModuleList(reversed(m.layers))),
    "a block by another": lambda m: m.layers.__setitem__(1, Block().eval()),
    "the dtype of the model": lambda m: m.to(torch.float64).register_forward_pre_hook(lambda _, a: (a[0].double(),)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_the_model_or_the_process_is_seen(
    model: nn.Module, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "relu", torch.relu)  # whatever is put in its place is taken back
    with torch.no_grad():
        before = model(X)
        CHANGES[what](model)
        for _ in range(3):
            agrees(model)
        assert what == "blocks in another order" or not torch.equal(model(X).float(), before), "it changed nothing"


INPUTS: dict[str, tuple[torch.Tensor, dict[str, Any]]] = {
    "another shape": (torch.ones(5, 4), {}),
    "another rank": (torch.ones(3, 2, 4), {}),
    "another stride": (torch.arange(8.0).reshape(4, 2).t(), {}),
    "one row": (torch.ones(1, 4), {}),
    "a view with an offset": (torch.arange(12.0).reshape(3, 4)[1:], {}),
    "a keyword": (X, {"scale": 2.0}),
    "a mask": (X, {"mask": torch.zeros(2, 4)}),
    "a mask that is the input": (X, {"mask": X}),
    "a subclass": (nn.Parameter(X.clone(), requires_grad=False), {}),
}


@pytest.mark.parametrize("what", INPUTS)
def test_other_arguments_are_seen(model: nn.Module, what: str) -> None:
    x, keywords = INPUTS[what]
    with torch.no_grad():
        for _ in range(3):
            agrees(model, x, **keywords)
            agrees(model)


def test_gradients_come_and_go(model: nn.Module) -> None:
    with torch.no_grad():
        agrees(model)
    agrees(model)
    x = X.clone().requires_grad_()
    for _ in range(3):
        agrees(model, x)
        model.zero_grad()
        model(x).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    with torch.inference_mode():
        agrees(model)
    with torch.no_grad():
        agrees(model)


def test_gradients_of_a_direct_call_are_eagers(model: nn.Module, taken: list[fastpath.FastPath]) -> None:
    for _ in range(3):
        model(X).sum().backward()
    taken.clear()
    model.zero_grad()
    model(X).sum().backward()
    assert len(taken) == 3
    actual = [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]
    model.zero_grad()
    with nbcompile.eager(model):
        model(X).sum().backward()
    torch.testing.assert_close(actual, [parameter.grad for parameter in model.parameters()])


def test_training_and_freezing_are_seen(model: nn.Module) -> None:
    with torch.no_grad():
        model.train()
        torch.manual_seed(1)
        first = model(X)
        assert not torch.equal(first, model(X)), "dropout was not at work"
        model.eval()
        agrees(model)
        model.layers[1].drop.train()  # type: ignore[union-attr, operator]
        assert not torch.equal(model(X), model(X))
        model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    agrees(model)
    assert not model(X).requires_grad


def test_the_state_of_the_process_is_seen(model: nn.Module) -> None:
    with torch.no_grad():
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                agrees(model)
            agrees(model)
        for enabled in (True, False):
            torch.use_deterministic_algorithms(enabled)
            agrees(model)


def test_autocast_is_not_run_by_code_without(model: nn.Module) -> None:
    class Doubling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.eye(4)

    doubled = nbcompile.compile_regions(nn.Sequential(Doubling(), Doubling()), backend="eager", regions=[Doubling])
    with torch.no_grad():
        for _ in range(3):
            assert doubled(X).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert doubled(X).dtype == torch.bfloat16
        assert doubled(X).dtype == torch.float32


def test_a_global_value_that_changes_within_a_step_is_seen(model: Any) -> None:
    """Names of functions and modules are looked at once a step, values at every block."""

    def grow() -> None:
        globals()["GAIN"] += 1.0

    model.between = grow
    with torch.no_grad():
        for _ in range(2):
            globals()["GAIN"] = 1.0
            with nbcompile.eager(model):
                expected = model(X)
            globals()["GAIN"] = 1.0
            torch.testing.assert_close(model(X), expected)


def test_a_global_function_exchanged_between_steps_is_seen_by_every_block(model: nn.Module) -> None:
    with torch.no_grad():
        for function in (torch.sigmoid, torch.tanh, torch.relu, torch.sigmoid, torch.tanh):
            globals()["bend"] = function
            agrees(model)


def test_stances_are_heeded(model: nn.Module, taken: list[fastpath.FastPath]) -> None:
    def blocks_compiled() -> int:
        return nbcompile.report(model).groups[0].compiled

    with torch.no_grad():
        with torch.compiler.set_stance("force_eager"):
            model(X)
            assert not taken
            assert blocks_compiled() == 0
        model(X)
        assert len(taken) == 3
        assert blocks_compiled() == 3
        with torch.compiler.set_stance("fail_on_recompile"):
            model(X)
        torch.compiler.set_stance("default")
        taken.clear()
        model(X)
        assert len(taken) == 3


def test_a_reset_of_the_compiler_ends_the_direct_way(model: nn.Module, taken: list[fastpath.FastPath]) -> None:
    with torch.no_grad():
        model(X)
        before = set(map(id, taken))
        torch._dynamo.reset()
        for _ in range(3):
            agrees(model)
        kept = list(taken)  # so that no id is used again
    assert len(before) == 1
    assert before.isdisjoint(map(id, kept[3:]))
    assert len(kept) > 3


def test_code_that_the_compiler_has_dropped_is_not_run(model: nn.Module) -> None:
    """A guard that knew an object by its id is of no use once the object is gone and another may have the id."""
    region = region_of(model.layers[0].__dict__[compiler.SLOT])  # type: ignore[union-attr, operator, index]
    assert region is not None
    path = region.fast[0][0]
    assert path.alive
    manager = path._manager
    manager.extra_state.invalidate(manager.cache_entry, guards.DeletedGuardManagerWrapper("an object is gone"))
    assert not path.alive
    with torch.no_grad():
        agrees(model)


def test_a_few_shapes_keep_their_ways(model: nn.Module, taken: list[fastpath.FastPath]) -> None:
    shapes = [torch.ones(rows, 4) for rows in (2, 3, 5)]
    torch._dynamo.config.automatic_dynamic_shapes = False
    try:
        with torch.no_grad():
            for _ in range(2):
                for x in shapes:
                    model(x)
            taken.clear()
            for x in shapes:
                agrees(model, x)
        assert len(taken) == 9
    finally:
        torch._dynamo.config.automatic_dynamic_shapes = True


def test_what_was_compiled_ends_with_the_model(model: nn.Module) -> None:
    region = region_of(model.layers[0].__dict__[compiler.SLOT])  # type: ignore[union-attr, operator, index]
    assert region is not None
    assert region.fast
    nbcompile.restore(model)
    with torch.no_grad():
        expected = model(X)
        again = nbcompile.compile_regions(model, backend="eager")
        torch.testing.assert_close(again(X), expected)
    assert not hasattr(copy.deepcopy(again).layers[0], "region")


def test_no_direct_way_past_a_graph_break(taken: list[fastpath.FastPath]) -> None:
    class Breaking(Block):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 1.5) -> torch.Tensor:
            x = super().forward(x)
            torch._dynamo.graph_break()
            return x * 2

    broken = Model().eval()
    broken.layers = nn.ModuleList(Breaking().eval() for _ in range(3))
    nbcompile.compile_regions(broken, backend="eager")
    with torch.no_grad():
        for _ in range(3):
            agrees(broken)
    assert not taken


@pytest.mark.parametrize(
    ("mode", "options", "expected"),
    [
        (None, None, True),
        ("default", None, True),
        ("max-autotune-no-cudagraphs", None, True),
        ("reduce-overhead", None, False),
        ("max-autotune", None, False),
        (None, {"triton.cudagraphs": True}, False),
        ("default", {"triton.cudagraphs": False}, True),
    ],
)
def test_recorded_graphs_are_left_to_the_compilers_entry(
    mode: str | None, options: dict[str, Any] | None, expected: bool
) -> None:
    assert fastpath.usable(mode, options) is expected


def test_without_what_it_needs_of_torch_everything_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastpath, "available", lambda: False)
    model = nbcompile.compile_regions(Model().eval(), backend="eager")
    with torch.no_grad():
        for _ in range(3):
            agrees(model)
    assert nbcompile.report(model).groups[0].compiled == 3


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma3", "bert", "qwen3_moe", "whisper", "vit"])
def test_real_architectures_take_it_and_give_the_same(family: str, taken: list[fastpath.FastPath]) -> None:
    model, inputs = getattr(models, family)()
    with torch.no_grad():
        expected = model(**inputs)
        nbcompile.compile_regions(model, backend="eager")
        for _ in range(3):
            taken.clear()
            actual = model(**inputs)
        torch.testing.assert_close(actual[0], expected[0])
    assert len(taken) >= nbcompile.report(model).groups[0].instances


def test_generate_takes_it_and_gives_the_same_tokens(taken: list[fastpath.FastPath]) -> None:
    model, inputs = models.llama()
    ids = inputs["input_ids"][:1, :6]
    settings = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    expected = model.generate(ids, **settings)  # type: ignore[operator]
    nbcompile.compile_regions(model, backend="eager")
    for _ in range(2):
        taken.clear()
        assert torch.equal(model.generate(ids, **settings), expected)  # type: ignore[operator]
    assert len(taken) >= 4 * 10, "decoding steps went the compiler's own way"


def test_variants_share_what_they_know() -> None:
    """Each version of the code is looked at once, not once for each block."""
    model = nbcompile.compile_regions(Model().eval(), backend="eager")
    with torch.no_grad():
        model(X), model(X)
    regions = [region_of(layer.__dict__[compiler.SLOT]) for layer in model.layers]  # type: ignore[union-attr]
    assert len({id(region.fast[0][0]) for region in regions if region is not None}) == 1
    assert isinstance(next(iter(regions[0].table.values())), variants.Variant)  # type: ignore[union-attr]
