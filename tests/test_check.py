"""Regions held against eager one by one: the wrong one is named, the others are not, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import nbcompile
from nbcompile import TorchDynamoPlugin, UsageError, plan_regions
from nbcompile.check import check_regions
from nbcompile.compiler import SLOT, Compilation
from nbcompile.measure import tensor_drifts
from nbcompile.report import RegionCheck, Report, Strategy
from tests.blocks import WIDTH, Block, DirectNet, Net, NumberedBlock, net, ran_eager, rows
from tests.models import llama, t5

BACKEND = "aot_eager"
Graph = torch.fx.GraphModule


def right(graph: Graph, inputs: Any) -> Callable[..., Any]:
    return graph.forward


def for_block(number: int, change: Callable[..., Any]) -> Callable[..., Any]:
    """A backend whose results are changed for the :class:`NumberedBlock` of that number, and right for all others."""

    def backend(graph: Graph, inputs: Any) -> Callable[..., Any]:
        if not any(number + 2 in node.args for node in graph.graph.nodes):
            return graph.forward
        return lambda *args: tuple(change(output) for output in graph.forward(*args))

    return backend


def compare(model: nn.Module, step: Any = None, strategies: Any = ("eager", "regional"), **more: Any) -> Report:
    """A comparison with a check that takes little time."""
    step = step or (lambda: model(rows()))
    settings = {"backend": BACKEND, "rounds": 1, "calls": 1, "check": "regions"}
    return nbcompile.compare(model, step, strategies, **{**settings, **more})


def check(model: nn.Module, step: Callable[[], Any], backend: Any = BACKEND, plan: Any = ...) -> list[RegionCheck]:
    """The check alone, after two steps compiled."""
    return check_regions(compiled(model, step, backend, plan), step)[0]


def compiled(model: nn.Module, step: Callable[[], Any], backend: Any = BACKEND, plan: Any = ...) -> Compilation:
    plan = plan_regions(model) if plan is ... else plan
    strategy = "regional" if plan is not None else "full"
    compilation = Compilation(model, TorchDynamoPlugin(backend=backend), strategy=strategy, plan=plan)
    compilation.install()
    step()
    step()
    compilation.uninstall()
    return compilation


def figures(checks: list[RegionCheck]) -> list[tuple[float | None, float | None, bool, str]]:
    return [(c.max_abs_diff, c.max_abs_grad_diff, c.drifts, c.note) for c in checks]


def training(model: nn.Module) -> nn.Module:
    return model.train()


@pytest.fixture
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


# -- what is found -----------------------------------------------------------------------------------------------------


def test_the_one_region_that_is_wrong_is_named() -> None:
    # GIVEN a compiler that is wrong for the second of four blocks
    model = net(4, NumberedBlock)
    # WHEN strategies are compared with a check
    report = compare(model, backend=for_block(1, lambda output: output + 0.1))
    # THEN that block drifts, and those after it, fed with right inputs, do not
    regional = report.strategies["regional"]
    assert regional.first_drift == "layers.1"
    assert [c.block for c in regional.checks] == [f"layers.{i}" for i in range(4)]
    assert [c.drifts for c in regional.checks] == [False, True, False, False]
    assert [c.max_abs_diff for c in regional.checks] == [0.0, pytest.approx(0.1), 0.0, 0.0]
    assert [c.max_abs_grad_diff for c in regional.checks] == [0.0] * 4
    assert all(c.class_name == "NumberedBlock" and c.largest is not None and c.largest > 0.1 for c in regional.checks)
    # and every picture of the report says so
    assert "regional: layers.1 is the first region that differs" in report.to_text()
    assert "drifts, the first to do so" in report.to_text()
    assert "layers.1 is the first region that differs" in report.to_html()
    # and it survives being written and read
    assert Report.from_json(report.to_json()) == report


def test_a_compiler_that_is_right_drifts_nowhere() -> None:
    report = compare(net())
    regional = report.strategies["regional"]
    assert figures(regional.checks) == [(0.0, 0.0, False, "")] * 4
    assert regional.first_drift == ""
    assert report.strategies["eager"].checks == []
    assert "Checked region by region" in report.to_text()
    assert "is the first region" not in report.to_text()


def test_nothing_is_checked_unasked() -> None:
    report = compare(net(), check=None)
    assert report.strategies["regional"].checks == []
    assert "Checked" not in report.to_text()


class _Steeper(torch.autograd.Function):
    """The identity, with a gradient that is half as large again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return 1.5 * gradients[0]


def test_a_gradient_alone_can_drift() -> None:
    # GIVEN a compiler whose forward is right everywhere and whose backward is wrong for the third block
    model = net(4, NumberedBlock)
    # WHEN it is checked
    report = compare(model, backend=for_block(2, _Steeper.apply))
    # THEN that block drifts by its gradient
    regional = report.strategies["regional"]
    assert regional.first_drift == "layers.2"
    assert [c.max_abs_diff for c in regional.checks] == [0.0] * 4
    assert [bool(c.max_abs_grad_diff) for c in regional.checks] == [False, False, True, False]


def test_the_gradient_of_a_normalised_output_is_not_zero() -> None:
    # GIVEN blocks that end in a normalisation, whose plain sum has no gradient, and a wrong backward
    class PostNorm(NumberedBlock):
        def __init__(self, number: float = 0) -> None:
            super().__init__(number)
            self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(super().forward(x))

    model = net(2, PostNorm)
    report = compare(model, backend=for_block(1, _Steeper.apply))
    # THEN it shows
    assert report.strategies["regional"].first_drift == "layers.1"


@pytest.mark.usefixtures("no_grad")
def test_without_gradients_there_is_no_gradient_difference() -> None:
    report = compare(net())
    assert figures(report.strategies["regional"].checks) == [(0.0, None, False, "")] * 4
    assert "gradient difference" not in report.to_text()


def test_the_whole_model_is_one_region() -> None:
    report = compare(net(2, NumberedBlock), strategies=["eager", "full"], backend=for_block(1, lambda out: out + 0.1))
    (whole,) = report.strategies["full"].checks
    assert (whole.block, whole.class_name, whole.drifts) == ("(whole model)", "Net", True)
    assert report.strategies["full"].first_drift == "(whole model)"


def test_several_strategies_share_a_table() -> None:
    text = compare(net(2), strategies=["eager", "regional", "full"]).to_text()
    table = text.partition("Checked region by region\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[:2] for line in table[:4]] == [
        ["strategy", "block"],
        ["regional", "layers.0"],
        ["regional", "layers.1"],
        ["full", "(whole"],
    ]


def test_every_call_of_a_block_counts() -> None:
    # GIVEN a step that calls the model twice, and a compiler that is wrong only for the larger input
    model = net(2)

    def backend(graph: Graph, inputs: Any) -> Callable[..., Any]:
        return lambda *args: tuple(out + (0.1 if len(out) == 3 else 0.0) for out in graph.forward(*args))

    def step() -> None:
        model(rows(2))
        model(rows(3))

    # THEN each block is one check, with the larger difference
    checks, first_drift = check_regions(compiled(model, step, backend), step)
    assert [c.max_abs_diff for c in checks] == [pytest.approx(0.1)] * 2
    assert all(c.drifts for c in checks)
    # and the first that drifts is the one that was called first
    assert first_drift == "layers.0"


def test_what_a_block_writes_into_its_arguments_counts() -> None:
    # GIVEN blocks that write into a store they are handed, and a compiler that writes something else
    class Writing(Block):
        def forward(self, x: torch.Tensor, store: torch.Tensor) -> torch.Tensor:
            y = x + self.work(x)
            store.copy_(y)
            return y

    class Stored(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x, torch.zeros_like(x))
            return x

    def backend(graph: Graph, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            results = graph.forward(*args)
            for arg in args:
                if not isinstance(arg, nn.Parameter) and arg.shape == (2, WIDTH) and arg is not args[0]:
                    arg.add_(0.5)
            return tuple(result.clone() for result in results)

        return run

    with torch.no_grad():
        model = net(2, Writing, Stored)
        checks = check(model, lambda: model(rows()), backend)
    # THEN that is a difference
    assert all(c.drifts and c.max_abs_diff >= 0.5 for c in checks), checks


# -- what cannot be checked --------------------------------------------------------------------------------------------


def test_random_numbers_of_another_generator_are_no_drift() -> None:
    # GIVEN blocks with dropout in training
    class Dropping(Block):
        def work(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(self.fc(x), 0.5, self.training)

    model = training(net(3, Dropping))

    def step() -> torch.Tensor:
        return model(rows())

    # WHEN the compiler draws the same numbers THEN they are compared
    assert figures(check(model, step)) == [(0.0, 0.0, False, "")] * 3

    # WHEN it draws others
    def backend(graph: Graph, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            torch.rand(7)
            return graph.forward(*args)

        return run

    # THEN that is told, and is no drift
    expected = (None, None, False, "not comparable: it draws random numbers")
    assert figures(check(model, step, backend)) == [expected] * 3
    # and in eval mode nothing is drawn
    model.eval()
    assert figures(check(model, step, backend)) == [(0.0, 0.0, False, "")] * 3


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")  # it breaks the graph there, as it says
def test_pythons_own_random_numbers_are_the_same_for_both_calls() -> None:
    import random

    class Chancy(Block):
        def work(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) * random.random()

    model = net(2, Chancy)
    random.seed(1)
    expected = [random.random() for _ in range(3)]
    random.seed(1)
    checks = check(model, lambda: model(rows()), right)
    assert not any(c.drifts for c in checks), checks
    # two blocks drew in each of three steps; the checks drew nothing of their own
    random.seed(1)
    assert [random.random() for _ in range(3)] == expected


def test_an_argument_that_cannot_be_copied_is_told() -> None:
    class Counting(Block):
        def forward(self, x: torch.Tensor, numbers: Any) -> torch.Tensor:
            return super().forward(x)

    class Handing(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x, iter_numbers)
            return x

    iter_numbers = (number for number in range(3))
    model = net(2, Counting, Handing)
    checks = check(model, lambda: model(rows()))
    assert all(c.note.startswith("not checked: it was given what cannot be copied (TypeError") for c in checks), checks
    assert all(c.max_abs_diff is None and not c.drifts for c in checks)


def test_a_block_that_fails_compiled_is_told() -> None:
    # GIVEN compiled code that works at first and then no more
    works = [True]

    def backend(graph: Graph, inputs: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if not works[0]:
                raise RuntimeError("the kernel is gone")
            return graph.forward(*args)

        return run

    model = net(2)
    compilation = compiled(model, lambda: model(rows()), backend)
    works[0] = False
    # WHEN it is checked THEN the step goes on eager, and the failure is each region's own
    checks, first_drift = check_regions(compilation, lambda: model(rows()))
    assert [c.note for c in checks] == ["fails compiled: RuntimeError: the kernel is gone"] * 2
    assert first_drift == ""


def test_a_block_that_ran_eager_is_not_called_right() -> None:
    # GIVEN a compiler that fails for the second block
    def backend(graph: Graph, inputs: Any) -> Callable[..., Any]:
        if any(1 + 2 in node.args for node in graph.graph.nodes):
            raise RuntimeError("no kernels today")
        return graph.forward

    model = net(3, NumberedBlock)
    with pytest.warns(nbcompile.CompilationWarning, match="no kernels today"):
        checks = check(model, lambda: model(rows()), backend)
    # THEN eager is not held against eager
    assert [c.note.partition(":")[0] for c in checks] == ["", "not checked", ""]
    assert "ran eager" in checks[1].note
    assert checks[1].max_abs_diff is None


def test_blocks_that_are_never_called_are_told() -> None:
    model = net(2, kind=DirectNet)
    checks = check(model, lambda: model(rows()))
    assert [c.note for c in checks] == ["not checked: not called, or called as block.forward(...)"] * 2


def test_another_shape_is_a_drift_without_a_figure() -> None:
    model = net(2, NumberedBlock)
    with torch.no_grad():
        checks = check(model, lambda: model(rows()), for_block(1, lambda output: output[:1]))
    assert figures(checks)[1] == (None, None, True, "of another shape, or not finite where eager is")


# -- models of many kinds ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "gradients", "backend"), [(llama, False, "eager"), (llama, True, BACKEND), (t5, True, "eager")]
)
def test_blocks_with_a_kv_cache(build: Any, gradients: bool, backend: str) -> None:
    model, inputs = build(3)
    with torch.set_grad_enabled(gradients):
        checks = check(model, lambda: model(**inputs), backend)
    assert len(checks) == (3 if build is llama else 6)
    assert all(c.note == "" and not c.drifts and c.max_abs_diff is not None for c in checks), checks
    assert all((c.max_abs_grad_diff is not None) is gradients for c in checks), checks


@pytest.mark.parametrize("more", [{}, {"cache_implementation": "static"}], ids=["dynamic", "static"])
def test_generate(more: dict[str, Any]) -> None:
    # GIVEN a model that has generated compiled
    model, inputs = llama(2)

    def step() -> torch.Tensor:
        return model.generate(**inputs, max_new_tokens=2, do_sample=False, eos_token_id=None, **more)

    compilation = compiled(model, step, "eager")
    expected, frames = step(), counters["frames"]["total"]
    tokens = []
    # WHEN it is checked
    checks, _ = check_regions(compilation, lambda: tokens.append(step()))
    # THEN every block is, the tokens are those of eager, and nothing was compiled for it
    assert all(c.max_abs_diff is not None and not c.drifts and c.note == "" for c in checks), checks
    assert torch.equal(tokens[0], expected)
    assert counters["frames"]["total"] == frames


def test_autocast_is_that_of_the_call() -> None:
    # GIVEN blocks that compute in half precision, but for a part that is exempt from it, and a backward under autocast,
    # which is what the compiler takes it to be (torch._functorch.config.backward_pass_autocast)
    class Told(Block):
        def work(self, x: torch.Tensor) -> torch.Tensor:
            y = self.fc(x)
            if not torch.compiler.is_compiling():
                kinds.add(y.dtype)
            with torch.autocast("cpu", enabled=False):
                return y.float() @ self.fc.weight

    kinds: set[torch.dtype] = set()
    model = net(2, Told)

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            model(rows()).sum().backward()

    # THEN the checks do the same, backward too
    assert figures(check(model, step)) == [(0.0, 0.0, False, "")] * 2
    assert kinds == {torch.bfloat16}


def test_blocks_under_checkpointing() -> None:
    # GIVEN blocks that run again in backward
    class Checkpointed(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    model = net(3, kind=Checkpointed)
    x = rows().requires_grad_()
    checks = check(model, lambda: model(x).sum().backward())
    assert figures(checks) == [(0.0, 0.0, False, "")] * 3


def test_blocks_that_work_in_place() -> None:
    class InPlace(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(self.work(x.clone()))

    class Fed(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x * 1.0)

    model = net(3, InPlace, Fed)
    x = rows().requires_grad_()
    assert figures(check(model, lambda: model(x))) == [(0.0, 0.0, False, "")] * 3


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "layouts",
    [
        [lambda x: x.t().contiguous().t() + 0],  # column by column
        [  # views, of which the compiler makes dynamic sizes after a while
            lambda x: x + 0,
            lambda x: torch.cat([x, x], -1)[:1, WIDTH:].expand(3, WIDTH),
            lambda x: torch.stack([x, x], -1)[..., 0],
        ],
    ],
    ids=["columns", "views"],
)
def test_inputs_keep_their_layout_so_that_nothing_compiles_anew(layouts: Any, gradients: bool) -> None:
    # GIVEN blocks whose input is laid out in other ways than row by row
    class LaidOut(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                for layout in layouts:
                    x = layer(layout(x))
            return x

    model = net(2, kind=LaidOut)
    x = rows(3).requires_grad_(gradients)

    def step() -> None:
        with torch.set_grad_enabled(gradients):
            model(x)

    compilation = compiled(model, step)
    frames = counters["frames"]["total"]
    # WHEN they are checked THEN the copies are laid out likewise
    checks, _ = check_regions(compilation, step)
    assert counters["frames"]["total"] == frames
    assert all(c.max_abs_diff == 0.0 for c in checks)


# -- what is left behind -----------------------------------------------------------------------------------------------


class NormedBlock(Block):
    """A block whose forward changes a buffer, an attribute and a list of its own."""

    def __init__(self, number: float = 0) -> None:
        super().__init__(number)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("calls", torch.zeros(()))
        self.times = 0
        self.seen: list[int] = []

    def work(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        if not torch.compiler.is_compiling():
            self.seen.append(len(x))
            self.times += 1
        return self.norm(self.fc(x))


def test_buffers_attributes_and_gradients_are_those_of_one_eager_step() -> None:
    # GIVEN a model in training that keeps statistics, and has gradients
    model, twin = training(net(3, NormedBlock)), training(net(3, NormedBlock))

    def step(model: nn.Module) -> None:
        model(rows(4)).sum().backward()

    compilation = compiled(model, lambda: step(model))
    twin.load_state_dict(model.state_dict())
    for module in (model, twin):
        module.zero_grad()
        for layer in module.layers:
            layer.seen.clear()
            layer.times = 0
    # WHEN one is checked and the other runs a step eager
    checks, _ = check_regions(compilation, lambda: step(model))
    step(twin)
    # THEN both are the same afterwards
    assert figures(checks) == [(0.0, 0.0, False, "")] * 3
    for (name, mine), theirs in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)
    assert [(layer.seen, layer.times) for layer in model.layers] == [([4], 1)] * 3
    # and no hook or slot is left
    for module in model.modules():
        assert SLOT not in module.__dict__
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_no_gradient_appears_where_none_was() -> None:
    model = net()
    check(model, lambda: model(rows()))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_graphs_that_only_the_check_needed_are_not_in_the_figures() -> None:
    # GIVEN a step that runs with gradients on but never backward
    model = net()
    # WHEN it is checked THEN only forward compiles are in the timeline
    assert all(event.phase != "backward" for event in compare(model).timeline)


@pytest.mark.parametrize("where", ["eager", "compiled", "step"])
def test_an_interrupt_leaves_the_model_as_it_was(where: str) -> None:
    # GIVEN a model that the user had compiled, and an interrupt in the middle of the check
    armed: list[bool] = []

    class Interrupted(NumberedBlock):
        def work(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_compiling() and armed and where == "eager" and self.number == 2:
                raise KeyboardInterrupt
            return super().work(x)

    def stop(output: torch.Tensor) -> torch.Tensor:
        if armed and where == "compiled":
            raise KeyboardInterrupt
        return output

    model = net(4, Interrupted)
    nbcompile.compile_regions(model, backend="eager")
    model(rows())

    def step() -> torch.Tensor:
        if armed and where == "step":
            model.layers[0](rows())
            raise KeyboardInterrupt
        return model(rows())

    def arm(line: str) -> None:
        if "checking" in line:
            armed.append(True)

    before = [block.__dict__[SLOT] for block in model.layers]
    # WHEN it comes
    with pytest.raises(KeyboardInterrupt):
        compare(model, step, backend=for_block(2, stop), progress=arm)
    assert armed
    armed.clear()
    # THEN the user's compilation is at work again
    assert len([block.__dict__[SLOT] for block in model.layers]) == len(before)
    assert ran_eager(model, rows()) == 0
    assert nbcompile.report(model).settings["backend"] == "eager"
    nbcompile.restore(model)
    assert ran_eager(model, rows()) == 4


# -- what counts as a drift --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "difference", "dtype", "drifts"),
    [
        ([1.0, 1.0], 1e-7, torch.float32, False),
        ([1.0, 1.0], 1e-4, torch.float32, True),
        ([1.0, 1.0], 1e-6, torch.float64, True),
        ([1.0, 1.0], 2**-7, torch.bfloat16, False),
        ([1.0, 1.0], 2**-4, torch.bfloat16, True),
        ([1.0, 1000.0], 1e-4, torch.float32, False),  # what rounding leaves on a small element beside a large one
        ([1.0, 1000.0], 1e-2, torch.float32, True),
        ([1.0, float("inf")], 1e-2, torch.float32, True),
        ([1.0, float("nan")], 0.0, torch.float32, False),
        ([1.0, 1000000000.0], 1, torch.int64, True),
        ([], 0.0, torch.float32, False),
    ],
)
def test_the_tolerance_is_that_of_torch_testing(
    expected: list[float], difference: float, dtype: torch.dtype, drifts: bool
) -> None:
    eager = torch.tensor(expected, dtype=dtype)
    actual = eager.clone()
    actual[:1] += difference
    assert tensor_drifts(eager, actual, difference) is drifts


def test_another_dtype_is_a_drift() -> None:
    assert tensor_drifts(torch.ones(2), torch.ones(2, dtype=torch.float64), 0.0)


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_of_many_regions_those_that_drift_are_shown_and_the_others_summed_up() -> None:
    # GIVEN thirty regions, of which two drift and one was not checked
    checks = [RegionCheck(f"layers.{i}", "Block", i * 1e-9, None, 3.0) for i in range(30)]
    checks[7] = RegionCheck("layers.7", "Block", 0.5, None, 3.0, True)
    checks[9] = RegionCheck("layers.9", "Block", 0.25, None, 3.0, True)
    checks[4] = RegionCheck("layers.4", "Block", note="not checked: it was given what cannot be copied")
    report = Report(strategies={"regional": Strategy(checks=checks, first_drift="layers.7")})
    # THEN each of those has a row, and the rest one for each verdict
    table = report.to_text().partition("Checked region by region\n")[2].splitlines()
    rows = [line.split("  ") for line in table[1:6]]
    assert [[cell.strip() for cell in row if cell.strip()] for row in rows] == [
        ["layers.7", "Block", "5.00e-01", "3.00e+00", "drifts, the first to do so"],
        ["layers.9", "Block", "2.50e-01", "3.00e+00", "drifts"],
        ["layers.0", "Block", "0", "3.00e+00", "equal"],
        ["26 others", "Block", "at most 2.90e-08", "at most 3.00e+00", "within tolerance"],
        ["layers.4", "Block", "–", "–", "not checked: it was given what cannot be copied"],
    ]
    assert "2 of 30 do" in report.to_text()


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"check": "region"}, "no check 'region'; those that exist: regions"),
        ({"check": True}, "no check True; those that exist: regions"),
        ({"strategies": ["eager"]}, "needs a compiled strategy"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare(net(), **arguments)
