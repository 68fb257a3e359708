"""Compiling in place, undoing it, and telling what really ran. No test here needs a C++ compiler."""

from __future__ import annotations

import gc
import queue
import threading
import warnings
import weakref
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

import nbcompile
from nbcompile import CompilationError, CompilationWarning, UsageError
from nbcompile.compiler import SLOT
from tests.blocks import WIDTH, Block, BreakingBlock, DirectNet, NumberedBlock, net, ran_eager, rows

BACKEND = "aot_eager"


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def counts(model: nn.Module) -> tuple[int, int, int]:
    (group,) = nbcompile.report(model).groups
    return group.instances, group.compiled, group.eager


# -- lifecycle --------------------------------------------------------------------------------------------------------


def test_compiling_again_replaces_the_settings() -> None:
    # GIVEN a model and backends that say that they ran
    model, x, used = net(), rows(), []

    def make(name: int) -> Any:
        def backend(graph: Any, inputs: Any) -> Any:
            def run(*args: Any) -> Any:
                used.append(name)
                return graph.forward(*args)

            return run

        return backend

    # WHEN it is compiled with more settings in turn than the recompile limit allows
    for name in range(12):
        nbcompile.compile_regions(model, backend=make(name))
        used.clear()
        # THEN each time all blocks run compiled with the latest ones
        assert ran_eager(model, x) == 0
        assert set(used) == {name}
        assert counts(model) == (4, 4, 0)


def test_restore_puts_back_what_the_user_had_compiled() -> None:
    # GIVEN a block that the user has compiled
    model = net()
    model.layers[1].compile(backend="eager")
    own = model.layers[1]._compiled_call_impl
    # WHEN the model is compiled and restored
    nbcompile.compile_regions(model, backend=BACKEND)
    assert model.layers[1]._compiled_call_impl is not own
    nbcompile.restore(model)
    # THEN the block has the user's compiled call again, and the others none
    assert model.layers[1]._compiled_call_impl is own
    assert "_compiled_call_impl" not in vars(model.layers[0])


def test_restore_leaves_alone_what_was_compiled_since() -> None:
    model = net()
    nbcompile.compile_regions(model, backend=BACKEND)
    model.layers[2].compile(backend="eager")  # by the user, after us
    own = model.layers[2]._compiled_call_impl
    nbcompile.restore(model)
    assert model.layers[2]._compiled_call_impl is own


def test_restore_of_a_model_never_compiled_does_nothing() -> None:
    model = net()
    assert nbcompile.restore(model) is model


def test_eager_keeps_what_was_compiled() -> None:
    # GIVEN a compiled model that has run
    model, x = net(), rows()
    nbcompile.compile_regions(model, backend=BACKEND)
    expected = model(x)
    graphs = nbcompile.report(model).groups[0].graphs
    # WHEN it runs in the context, which an error leaves
    with pytest.raises(ZeroDivisionError), nbcompile.eager(model) as same:
        assert same is model
        assert ran_eager(model, x) == 4
        raise ZeroDivisionError
    # THEN it runs compiled afterwards, with nothing compiled again
    assert ran_eager(model, x) == 0
    torch.testing.assert_close(model(x), expected)
    assert nbcompile.report(model).groups[0].graphs == graphs


@pytest.mark.parametrize("compile_it", [nbcompile.compile_regions, nbcompile.compile_model])
def test_a_deleted_model_is_freed(compile_it: Any) -> None:
    model = net()
    model.layers[0].owner = [model]  # a block that refers back to the model
    compile_it(model, backend=BACKEND)
    model(rows())
    weight = weakref.ref(model.layers[0].fc.weight)
    del model
    gc.collect()
    assert weight() is None


@pytest.mark.parametrize("compile_it", [nbcompile.compile_regions, nbcompile.compile_model])
def test_two_models_of_one_class_do_not_mix(compile_it: Any) -> None:
    # GIVEN two models with other weights, both compiled
    one, other, x = net(), net(), rows()
    for parameter in other.parameters():
        parameter.zero_()
    expected = one(x)
    compile_it(one, backend=BACKEND)
    compile_it(other, backend=BACKEND)
    # WHEN both run, THEN each uses its own weights
    torch.testing.assert_close(other(x), x)
    torch.testing.assert_close(one(x), expected)


def test_a_class_defined_anew_is_compiled_anew() -> None:
    # GIVEN the cell that defines a block, run again with another factor: source known to no file
    cell = "class B(Block):\n    def forward(self, x):\n        return x + {factor} * self.fc(x)\nmodel = net(3, B)\n"
    x = rows()
    for factor in range(1, 12):
        namespace: dict[str, Any] = {"Block": Block, "net": net}
        exec(compile(cell.format(factor=factor), f"<cell {factor}>", "exec"), namespace)
        model = namespace["model"]
        expected = model(x)
        # WHEN each new model is compiled, THEN the present code runs, in one variant, with nothing told of earlier ones
        nbcompile.compile_regions(model, backend=BACKEND)
        torch.testing.assert_close(model(x), expected)
        (group,) = nbcompile.report(model).groups
        assert (group.compiled, len(group.variants), group.recompiles) == (3, 1, [])


def test_eager_takes_off_what_others_compiled_too() -> None:
    # GIVEN a model of which a part is compiled by itself, and a block by the user
    model = nn.Sequential(net(2), net(2))
    nbcompile.compile_regions(model[0], backend=BACKEND)
    model[1].layers[0].compile(backend="eager")
    assert ran_eager(model, rows()) == 1
    # WHEN the whole model is to run eager, THEN it does, and afterwards everything is back
    with nbcompile.eager(model):
        assert ran_eager(model, rows()) == 4
    assert ran_eager(model, rows()) == 1


def test_compilations_within_one_another_come_off_in_any_order() -> None:
    # GIVEN a model compiled whole, and a part of it compiled after that
    model = nn.Sequential(net(2), net(2))
    nbcompile.compile_regions(model, backend=BACKEND, regions=["0.layers", "1.layers"])
    nbcompile.compile_regions(model[0], backend="eager")
    # WHEN the outer is restored before the inner, THEN nothing stays behind
    nbcompile.restore(model)
    nbcompile.restore(model[0])
    assert all("_compiled_call_impl" not in vars(module) for module in model.modules())


def test_disable_compiles_nothing_and_says_so() -> None:
    model = net()
    nbcompile.compile_regions(model, disable=True)
    assert ran_eager(model, rows()) == 4
    report = nbcompile.report(model)
    assert counts(model) == (4, 0, 4)
    assert any("disable" in note for note in report.notes)


def test_a_plugin_instead_of_keywords() -> None:
    model = net()
    plugin = nbcompile.TorchDynamoPlugin(backend=BACKEND, dynamic=True)
    nbcompile.compile_regions(model, plugin=plugin)
    model(rows())
    assert nbcompile.report(model).settings["dynamic"] is True
    with pytest.raises(UsageError, match="twice"):
        nbcompile.compile_regions(model, plugin=plugin, backend="eager")


def test_the_whole_model_as_one_region() -> None:
    model, x = net(), rows()
    expected = model(x)
    assert nbcompile.compile_model(model, backend=BACKEND) is model
    assert ran_eager(model, x) == 0
    torch.testing.assert_close(model(x), expected)
    (group,) = nbcompile.report(model).groups
    assert (group.path, group.instances, group.compiled, group.graphs) == ("", 1, 1, 1)
    assert nbcompile.report(model).settings["strategy"] == "full"


def test_rest_is_compiled_on_request() -> None:
    # GIVEN a model with a part beside its blocks
    model = net()
    model.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
    model.forward = lambda x: model.head(type(model).forward(model, x))  # type: ignore[method-assign]
    # WHEN everything is to be compiled
    nbcompile.compile_regions(model, backend=BACKEND, rest="compile")
    model(rows())
    # THEN the part has a graph of its own
    (part,) = nbcompile.report(model).rest
    assert (part.path, part.decision, part.compiled, part.graphs) == ("head", "compile", True, 1)


def test_regions_chosen_by_hand() -> None:
    model = net()
    nbcompile.compile_regions(model, backend=BACKEND, regions=["layers.0", "layers.2"])
    assert ran_eager(model, rows()) == 2
    (group,) = nbcompile.report(model).groups
    assert group.blocks == ["layers.0", "layers.2"]
    assert (group.compiled, group.eager) == (2, 0)


# -- variants ---------------------------------------------------------------------------------------------------------


def test_blocks_that_differ_by_a_number_all_compile_whatever_the_limit() -> None:
    # GIVEN more kinds of block than the compiler's limit for one function
    count = torch._dynamo.config.recompile_limit + 4
    model, x = net(count, NumberedBlock), rows()
    expected = model(x)
    # WHEN the model is compiled
    nbcompile.compile_regions(model, backend=BACKEND)
    # THEN each kind is a variant, named by what differs, and none is a recompile
    assert ran_eager(model, x) == 0
    torch.testing.assert_close(model(x), expected)
    (group,) = nbcompile.report(model).groups
    assert (group.compiled, group.graphs, group.recompiles) == (count, count, [])
    assert [variant.name for variant in group.variants[:2]] == ["number: 0", "number: 1"]


def test_a_number_that_is_not_used_makes_no_variant() -> None:
    model = net(12)
    nbcompile.compile_regions(model, backend=BACKEND)
    model(rows())
    (group,) = nbcompile.report(model).groups
    assert (group.graphs, [v.name for v in group.variants]) == (1, ["all blocks"])


def test_other_code_keeps_its_recompile_limit() -> None:
    # GIVEN a function of the user's own that is called with ever new sizes
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    users_own = torch.compile(lambda x: x * 2, backend=backend, dynamic=False)
    before = torch._dynamo.config.get_config_copy()
    model, x = net(14, NumberedBlock), rows()
    # WHEN a demanding model is compiled in the middle of that
    nbcompile.compile_regions(model, backend=BACKEND)
    for size in range(2, 6):
        users_own(torch.ones(size))
    model(x)
    for size in range(6, 30):
        users_own(torch.ones(size))
    # THEN the function still gives up after as many versions as it may have, and no setting has changed
    assert ran_eager(model, x) == 0
    assert len(compiled) == torch._dynamo.config.recompile_limit
    assert torch._dynamo.config.get_config_copy() == before


def test_training_and_evaluation_are_variants_not_recompiles() -> None:
    model, x = net(), rows()
    nbcompile.compile_regions(model, backend=BACKEND)
    model(x)
    with torch.enable_grad():
        model.train()
        model(x).sum().backward()
    (group,) = nbcompile.report(model).groups
    assert group.recompiles == []
    assert {"evaluation", "training"} <= {word for v in group.variants for word in v.name.split(", ")}
    assert all(p.grad is not None for p in model.parameters())


# -- what really ran --------------------------------------------------------------------------------------------------


def test_past_the_recompile_limit_the_count_is_true_and_the_size_is_told() -> None:
    # GIVEN a model compiled for fixed sizes only
    model = net(3)
    nbcompile.compile_regions(model, backend=BACKEND, dynamic=False)
    limit = torch._dynamo.config.recompile_limit
    # WHEN it is called with more sizes than the limit
    with pytest.warns(CompilationWarning, match="recompile limit") as caught:
        for size in range(2, limit + 6):
            eager = ran_eager(model, rows(size))
            # THEN the report is true after each call
            assert counts(model) == (3, 3 - eager, eager)
    assert eager == 3
    assert len(caught) == 1
    (group,) = nbcompile.report(model).groups
    assert len(group.recompiles) >= limit - 1
    assert group.recompiles[0].reason == "x changed its size in dimension 0 from 2 to 3"
    assert "recompile limit" in group.eager_reason
    # and sizes that were compiled still run compiled
    assert ran_eager(model, rows(2)) == 0


def test_blocks_called_by_forward_are_counted_as_eager() -> None:
    model = net(6, kind=DirectNet)
    nbcompile.compile_regions(model, backend=BACKEND)
    assert ran_eager(model, rows()) == 6
    (group,) = nbcompile.report(model).groups
    assert (group.compiled, group.eager) == (0, 6)
    assert "forward" in group.eager_reason


def test_a_graph_break_is_told_with_its_place() -> None:
    # GIVEN blocks with a graph break
    model, x = net(3, BreakingBlock), rows()
    expected = model(x)
    nbcompile.compile_regions(model, backend=BACKEND)
    # WHEN the model runs
    torch.testing.assert_close(model(x), expected)
    # THEN the pieces are compiled, and the break is told once a block, with file and line
    (group,) = nbcompile.report(model).groups
    assert (group.compiled, group.eager) == (3, 0)
    line = BreakingBlock.forward.__code__.co_firstlineno + 2
    assert group.graph_breaks
    assert len({(b.block, b.location) for b in group.graph_breaks}) == len(group.graph_breaks)
    assert all(b.location.endswith(f"blocks.py:{line}") for b in group.graph_breaks)
    assert "graph_break" in group.graph_breaks[0].reason


def test_a_block_whose_pieces_fell_back_behind_a_graph_break_counts_as_eager() -> None:
    # GIVEN a model with graph breaks, compiled for fixed sizes only
    model = net(2, BreakingBlock)
    nbcompile.compile_regions(model, backend=BACKEND, dynamic=False)
    # WHEN the code behind the break has used up its limit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompilationWarning)
        for size in range(2, torch._dynamo.config.recompile_limit + 6):
            model(rows(size))
    # THEN the blocks are counted as eager
    assert counts(model) == (2, 0, 2)


def test_first_run_in_a_thread() -> None:
    # GIVEN a model compiled in the main thread, with as many kinds as need more than the limit
    model, x, box = net(12, NumberedBlock), rows(), {}
    expected = model(x)
    nbcompile.compile_regions(model, backend=BACKEND)

    def work() -> None:
        with torch.no_grad():
            box["result"] = model(x)

    # WHEN a worker runs it first
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    # THEN both threads run compiled
    torch.testing.assert_close(box["result"], expected)
    assert ran_eager(model, x) == 0
    assert counts(model) == (12, 12, 0)


# -- hooks ------------------------------------------------------------------------------------------------------------


def test_hooks_inside_a_block_act_when_added_and_stop_when_removed() -> None:
    # GIVEN a compiled model that has run
    model, x = net(), rows()
    plain = model(x)
    nbcompile.compile_regions(model, backend=BACKEND)
    model(x)
    # WHEN a hook is put on a layer inside a block
    handle = model.layers[2].fc.register_forward_hook(lambda module, args, out: out + 5.0)
    with nbcompile.eager(model):
        steered = model(x)
    # THEN it acts, and no longer once it is removed
    assert not torch.allclose(steered, plain)
    torch.testing.assert_close(model(x), steered)
    handle.remove()
    torch.testing.assert_close(model(x), plain)
    assert counts(model) == (4, 4, 0)


def test_one_hook_function_on_all_blocks_may_look_at_its_module() -> None:
    # GIVEN one steering hook on a layer of every block, which acts on one of them
    model, x = net(12), rows()

    def steer(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        return out * 0 if module is model.layers[7].fc else out

    for layer in model.layers:
        layer.fc.register_forward_hook(steer)
    expected = model(x)
    # WHEN the model is compiled, THEN the hook acts where it should
    nbcompile.compile_regions(model, backend=BACKEND)
    torch.testing.assert_close(model(x), expected)


def test_hooks_on_blocks_run_around_one_graph() -> None:
    # GIVEN a hook of every kind on each block, of which two change what they are given, and none of them alike
    model, x, seen = net(12), rows(), []

    def before(module: nn.Module, args: Any) -> Any:
        seen.append("before")
        return args[0] * 1.25  # no tuple: torch makes one of it

    def before_with_names(module: nn.Module, args: Any, kwargs: Any) -> Any:
        seen.append("before, with names")
        return (args[0] + model.layers.index_of[module], *args[1:]), kwargs

    def after(module: nn.Module, args: Any, out: torch.Tensor) -> Any:
        seen.append("after")
        return out * 0.5

    def after_with_names(module: nn.Module, args: Any, kwargs: Any, out: torch.Tensor) -> None:
        seen.append(f"after, with names: {tuple(out.shape)}")

    model.layers.index_of = {layer: index for index, layer in enumerate(model.layers)}
    for layer in model.layers:
        layer.register_forward_pre_hook(before)
        layer.register_forward_pre_hook(before_with_names, with_kwargs=True)
        layer.register_forward_hook(after)
        layer.register_forward_hook(after_with_names, with_kwargs=True)
    expected, order = model(x), list(seen)
    # WHEN the model is compiled THEN they do what they did, in their order, and the blocks share one graph
    nbcompile.compile_regions(model, backend=BACKEND)
    seen.clear()
    torch.testing.assert_close(model(x), expected)
    assert seen == order
    assert counts(model) == (12, 12, 0)
    assert nbcompile.report(model).groups[0].graphs == 1


def test_a_hook_on_a_block_that_returns_the_wrong_thing() -> None:
    model = nbcompile.compile_regions(net(), backend=BACKEND)
    model.layers[0].register_forward_pre_hook(lambda module, args, kwargs: args, with_kwargs=True)
    with pytest.raises(RuntimeError, match=r"returns None or \(args, kwargs\)"):
        model(rows())


def test_hooks_on_all_modules_act_beside_those_on_a_block() -> None:
    # GIVEN a hook on a block, and one that torch runs for every module
    model, x = net(), rows()
    model.layers[1].register_forward_hook(lambda module, args, out: out + 1)
    nbcompile.compile_regions(model, backend=BACKEND)
    model(x)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: out * 1.5 if isinstance(module, nn.Linear) else None
    )
    # WHEN the model runs THEN both act
    try:
        with nbcompile.eager(model):
            expected = model(x)
        torch.testing.assert_close(model(x), expected)
    finally:
        handle.remove()


def test_a_hook_that_must_always_be_called_is_called_when_the_block_raises() -> None:
    class Picky(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] == 3:
                raise ValueError("three rows")
            return super().forward(x)

    model, seen = net(2, Picky), []
    model.layers[0].register_forward_hook(lambda module, args, out: seen.append("called"), always_call=True)
    nbcompile.compile_regions(model, backend=BACKEND)
    with pytest.raises(ValueError, match="three rows"):
        model(rows(3))
    assert seen == ["called"]


def test_hooks_registered_anew_at_each_call_run_eager_in_the_end() -> None:
    model, x = net(), rows()
    plain = model(x)
    nbcompile.compile_regions(model, backend=BACKEND)
    with pytest.warns(CompilationWarning, match="hooks are new at each call"):
        for turn in range(12):
            handle = model.layers[0].fc.register_forward_hook(lambda module, args, out, turn=turn: out * turn)
            with nbcompile.eager(model):
                expected = model(x)
            torch.testing.assert_close(model(x), expected)
            handle.remove()
    assert counts(model) == (4, 3, 1)
    torch.testing.assert_close(model(x), plain)
    assert counts(model) == (4, 4, 0)


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_failing_backend_leaves_the_model_running_and_is_told_once() -> None:
    # GIVEN a backend that fails
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("the kernel compiler is out to lunch")

    model, x = net(), rows()
    expected = model(x)
    nbcompile.compile_regions(model, backend=broken)
    # WHEN the model is called
    with pytest.warns(CompilationWarning, match=r"layers \(Block\).*out to lunch") as caught:
        torch.testing.assert_close(model(x), expected)
        torch.testing.assert_close(model(x), expected)
    # THEN there was one warning, the report has the message, and other settings work right after
    assert len(caught) == 1
    (group,) = nbcompile.report(model).groups
    assert (group.compiled, group.eager) == (0, 4)
    assert "out to lunch" in group.failure
    nbcompile.compile_regions(model, backend=BACKEND)
    assert ran_eager(model, x) == 0
    assert counts(model) == (4, 4, 0)


def test_fullgraph_raises_once_with_the_reason() -> None:
    model, x = net(2, BreakingBlock), rows()
    expected = model(x)
    nbcompile.compile_regions(model, backend=BACKEND, fullgraph=True)
    with pytest.raises(CompilationError, match=r"layers\.0 \(BreakingBlock\).*fullgraph=True"):
        model(x)
    # from now on the model runs in eager, and the report says so
    torch.testing.assert_close(model(x), expected)
    (group,) = nbcompile.report(model).groups
    assert (group.compiled, group.eager) == (0, 2)
    assert "graph_break" in group.failure


@pytest.mark.parametrize("fullgraph", [False, True])
def test_an_error_of_the_models_own_is_raised_as_in_eager(fullgraph: bool) -> None:
    model = net()
    nbcompile.compile_regions(model, backend=BACKEND, fullgraph=fullgraph)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as found:
        model(torch.randn(2, WIDTH + 1))
    assert "Dynamo" not in str(found.value)
    assert ran_eager(model, rows()) == 0  # nothing is broken by it


def test_an_interrupt_during_a_compile_leaves_everything_working() -> None:
    # GIVEN a compile that is interrupted
    interrupts = [True]

    def interrupted(graph: Any, inputs: Any) -> Any:
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        return graph.forward

    model, x = net(), rows()
    expected = model(x)
    nbcompile.compile_regions(model, backend=interrupted)
    with pytest.raises(KeyboardInterrupt):
        model(x)
    # WHEN the model is called again, THEN it compiles and runs
    torch.testing.assert_close(model(x), expected)
    assert ran_eager(model, x) == 0
    assert counts(model) == (4, 4, 0)


def test_past_the_limit_fullgraph_raises_and_the_report_is_true() -> None:
    model = net(1)
    nbcompile.compile_model(model, backend=BACKEND, fullgraph=True, dynamic=False)
    limit = torch._dynamo.config.recompile_limit
    with pytest.raises(CompilationError, match="fullgraph"):
        for size in range(2, limit + 4):
            model(rows(size))
    assert counts(model) == (1, 0, 1)


def test_a_failing_recompile_leaves_the_other_versions_compiled() -> None:
    # GIVEN a backend that fails for one size
    def picky(graph: Any, inputs: Any) -> Any:
        if any(isinstance(value, torch.Tensor) and value.shape[0] == 3 for value in inputs):
            raise RuntimeError("three rows are too many")
        return graph.forward

    model = net()
    nbcompile.compile_regions(model, backend=picky, dynamic=False)
    model(rows(2))
    # WHEN it meets that size
    with pytest.warns(CompilationWarning, match="three rows"):
        model(rows(3))
    # THEN that call counts as eager, and the other size still runs compiled
    assert counts(model) == (4, 0, 4)
    assert nbcompile.report(model).groups[0].eager_reason == "compiling failed (x4)"
    assert ran_eager(model, rows(2)) == 0
    assert counts(model) == (4, 4, 0)


def test_an_operation_that_cannot_be_traced_is_told_once() -> None:
    # GIVEN blocks whose code fails while it is traced and works when it runs
    model, x = net(2, Stubborn), rows()
    expected = model(x)
    nbcompile.compile_regions(model, backend=BACKEND)
    # WHEN the model runs twice
    with pytest.warns(CompilationWarning, match="could not be compiled") as caught:
        torch.testing.assert_close(model(x), expected)
        torch.testing.assert_close(model(x), expected)
    # THEN it is told once, and not traced again
    assert len(caught) == 1
    assert counts(model) == (2, 0, 2)


@torch.library.custom_op("nbcompile_tests::stubborn", mutates_args=())
def stubborn(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@stubborn.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("this operation cannot be traced")


class Stubborn(Block):
    def work(self, x: torch.Tensor) -> torch.Tensor:
        return stubborn(x)


# -- mutation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda m: [p.mul_(1.5) for p in m.parameters()], id="weights in place"),
        pytest.param(lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}), id="load_state_dict"),
        pytest.param(lambda m: m.double(), id="dtype"),
        pytest.param(lambda m: m.train(), id="train"),
        pytest.param(lambda m: setattr(m.layers[1], "fc", nn.Linear(WIDTH, WIDTH, bias=False)), id="exchanged layer"),
        pytest.param(lambda m: setattr(m.layers[1], "fc", m.layers[0].fc), id="tied layer"),
        pytest.param(lambda m: [setattr(b, "number", b.number + 3) for b in m.layers], id="number"),
        pytest.param(lambda m: m.requires_grad_(False), id="frozen"),
    ],
)
def test_a_change_to_the_model_takes_effect(change: Any) -> None:
    # GIVEN a compiled model that has run
    model, x = net(4, NumberedBlock), rows()
    nbcompile.compile_regions(model, backend=BACKEND)
    model(x)
    # WHEN it is changed
    change(model)
    x = x.to(next(model.parameters()).dtype)
    # THEN compiled and eager agree, and all blocks run compiled
    with nbcompile.eager(model):
        expected = model(x)
    torch.testing.assert_close(model(x), expected)
    assert ran_eager(model, x) == 0


# -- others around the model ------------------------------------------------------------------------------------------


def test_torch_compile_around_a_compiled_model() -> None:
    model, x = net(), rows()
    expected = model(x)
    nbcompile.compile_regions(model, backend=BACKEND)
    outer = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(outer(x), expected)


def test_another_model_is_not_compiled_again_for_what_is_watched() -> None:
    # GIVEN a compiled model, so that modules are watched, and another one that makes modules of its own in each step
    class Maker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            holder = nn.Module()
            holder.add_module("held", nn.ReLU())
            return holder.held(self.layer(x))

    first = nbcompile.compile_regions(net(), backend="eager")
    first(rows())
    traced: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        traced.append(graph)
        return graph.forward

    maker = torch.compile(Maker(), backend=backend)
    maker(rows())
    assert len(traced) == 1
    # WHEN more models come to be watched, and others go
    second = nbcompile.compile_regions(net(), backend="eager")
    second(rows())
    del first
    gc.collect()
    maker(rows())
    # THEN the other one's code still fits
    assert len(traced) == 1


def test_tracing_a_compiled_model() -> None:
    model, x = net(block=lambda n: Plain()), rows()
    expected = model(x)
    nbcompile.compile_regions(model, backend=BACKEND)
    model(x)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(torch.jit.trace(model, (x,))(x), expected)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.norm(self.fc(x))
        return result


def test_another_compile_with_the_same_id_is_not_taken_for_ours() -> None:
    # GIVEN a compile of the user's own, after which the compiler's ids have started anew
    torch.compile(lambda x: torch.sin(x) + 1, backend=BACKEND)(torch.ones(3))
    torch._dynamo.reset()
    # WHEN a model compiles under the same id
    model = net()
    nbcompile.compile_regions(model, backend=BACKEND)
    model(rows())
    # THEN its report knows of that compile only
    (group,) = nbcompile.report(model).groups
    assert group.graphs == 1


def test_a_class_whose_forward_is_replaced_runs_the_new_one() -> None:
    class Replaced(Block):
        pass

    model, x = net(3, Replaced), rows()
    nbcompile.compile_regions(model, backend=BACKEND)
    model(x)
    Replaced.forward = lambda self, x: x * 3  # type: ignore[method-assign]
    torch.testing.assert_close(model(x), x * 27)


def test_backward_hooks_all_act_and_a_block_with_one_inside_runs_eager() -> None:
    # GIVEN two backward hooks, one on a block and one inside another
    model, x, seen = net(4), rows().requires_grad_(), []
    model.layers[1].register_full_backward_hook(lambda m, gi, go: seen.append("block"))
    model.layers[2].fc.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))

    def gradient() -> torch.Tensor:
        with torch.enable_grad():
            return torch.autograd.grad(model(x).sum(), x)[0]

    expected = gradient()
    # WHEN the model is compiled, THEN both act, and the report tells of the block that has one inside
    nbcompile.compile_regions(model, backend=BACKEND)
    torch.testing.assert_close(gradient(), expected)
    assert seen == ["block", "block"]
    assert counts(model) == (4, 3, 1)
    assert "backward hooks" in nbcompile.report(model).groups[0].eager_reason


@pytest.mark.parametrize("pre", [True, False])
def test_a_backward_hook_on_a_block_changes_its_gradient(pre: bool) -> None:
    # GIVEN a hook that changes the gradient on its way into a block, or out of it
    model, x = net(4), rows().requires_grad_()
    if pre:
        model.layers[1].register_full_backward_pre_hook(lambda module, out: (out[0] * 3,))
    else:
        model.layers[1].register_full_backward_hook(lambda module, into, out: (into[0] * 3,))

    def gradients() -> list[torch.Tensor]:
        with torch.enable_grad():
            return [*torch.autograd.grad(model(x).sum(), [x, *model.parameters()])]

    expected = gradients()
    # WHEN the model is compiled THEN the gradients are the same, and the block runs compiled
    nbcompile.compile_regions(model, backend=BACKEND)
    torch.testing.assert_close(gradients(), expected)
    assert counts(model) == (4, 4, 0)


def test_a_block_with_a_backward_hook_of_the_old_kind_runs_eager() -> None:
    model, x, seen = net(3), rows().requires_grad_(), []
    with pytest.warns(FutureWarning):
        model.layers[1].register_backward_hook(lambda module, into, out: seen.append("old"))
        nbcompile.compile_regions(model, backend=BACKEND)
        with torch.enable_grad():
            model(x).sum().backward()
    assert seen == ["old"]
    assert counts(model) == (3, 2, 1)


def test_pruned_blocks_leave_the_report() -> None:
    model = net(6)
    nbcompile.compile_regions(model, backend=BACKEND)
    model(rows())
    model.layers = model.layers[:3]
    model(rows())
    assert counts(model) == (3, 3, 0)


def test_a_step_under_eager_counts_as_eager() -> None:
    # GIVEN a compiled model that has run WHEN it is called under eager()
    model, x = nbcompile.compile_regions(net(), backend=BACKEND), rows()
    model(x)
    with nbcompile.eager(model):
        model(x)
        assert counts(model) == (4, 0, 4)
    # THEN that is what the report says until the next step
    assert "nbcompile.eager" in nbcompile.report(model).groups[0].eager_reason
    model(x)
    assert counts(model) == (4, 4, 0)


def test_compiling_under_eager_leaves_nothing_behind() -> None:
    model, x = nbcompile.compile_regions(net(), backend=BACKEND), rows()
    with nbcompile.eager(model):
        nbcompile.compile_regions(model, backend=BACKEND)
        assert ran_eager(model, x) == 0
    assert ran_eager(model, x) == 0
    nbcompile.restore(model)
    assert ran_eager(model, x) == 4
    assert not any(SLOT in vars(module) for module in model.modules())


def test_blocks_added_since_are_counted_as_eager() -> None:
    # GIVEN a compiled model WHEN a block is appended and another one put in a block's place
    model, x = nbcompile.compile_regions(net(), backend=BACKEND), rows()
    model.layers.append(Block())
    model.layers[1] = Block()
    assert ran_eager(model, x) == 2
    assert counts(model) == (5, 3, 2)
    (group,) = nbcompile.report(model).groups
    assert {"layers.1", "layers.4"} <= set(group.blocks)
    assert "compile it again (x2)" in group.eager_reason
    # THEN compiling again takes them in
    nbcompile.compile_regions(model, backend=BACKEND)
    assert ran_eager(model, x) == 0
    assert counts(model) == (5, 5, 0)


def test_blocks_left_out_by_hand_do_not_count() -> None:
    model, x = net(), rows()
    nbcompile.compile_regions(model, backend=BACKEND, regions=["layers.0", "layers.2"])
    assert ran_eager(model, x) == 2
    report = nbcompile.report(model)
    assert [(group.instances, group.compiled) for group in report.groups] == [(2, 2)]


def test_a_part_exchanged_for_one_with_a_hook() -> None:
    # GIVEN a compiled model that has run
    model, x = nbcompile.compile_regions(net(), backend=BACKEND), rows()
    model(x)
    # WHEN a part of a block is exchanged for its like with a hook on it
    part = nn.Linear(WIDTH, WIDTH)
    part.register_forward_hook(lambda module, args, out: out + 5.0)
    model.layers[2].fc = part
    with nbcompile.eager(model):
        expected = model(x)
    # THEN the hook acts
    torch.testing.assert_close(model(x), expected)


def test_a_part_that_outlives_its_model_can_be_restored() -> None:
    encoder = net(3)
    whole = nn.Sequential(encoder, nn.Linear(WIDTH, WIDTH))
    nbcompile.compile_regions(whole, backend=BACKEND)
    whole(rows())
    del whole
    gc.collect()
    assert all("_compiled_call_impl" not in vars(module) for module in encoder.modules())


def test_warnings_as_errors_do_not_stop_the_model() -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no kernels")

    model = net()
    expected = model(rows())
    nbcompile.compile_regions(model, backend=broken)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(model(rows()), expected)


# -- what goes on beside it -------------------------------------------------------------------------------------------


class _Samples(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that another compiled model makes, as a preprocessing step does."""

    def __init__(self, encoder: nn.Module | None = None) -> None:
        self.encoder = encoder

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        row = rows(1)[0] * (index + 1)
        return row if self.encoder is None else self.encoder(row[None])[0].detach()


def test_worker_processes_of_a_data_loader() -> None:
    # GIVEN a compiled model that has run, so that the compiler's own threads are there
    model = nbcompile.compile_regions(net(), backend=BACKEND)
    model(rows(2))
    # WHEN a data loader forks its workers, THEN batches come and the model runs compiled
    loader = torch.utils.data.DataLoader(_Samples(), batch_size=2, num_workers=2, timeout=60)
    assert sum(ran_eager(model, batch) for batch in loader) == 0
    assert counts(model) == (4, 4, 0)


def test_threads_of_a_data_loader_and_a_training_loop_side_by_side() -> None:
    # GIVEN two compiled models of one class, one used by a thread that prepares batches while the other one trains
    encoder, model = net(3), net(5)
    nbcompile.compile_regions(encoder, backend=BACKEND)
    nbcompile.compile_regions(model, backend=BACKEND)
    expected = [model(batch) for batch in torch.utils.data.DataLoader(_Samples(net(3)), batch_size=2)]
    encoder(rows(1)), model(rows(2))
    prepared: queue.Queue[Any] = queue.Queue(maxsize=2)

    def prepare() -> None:
        with torch.no_grad():
            for batch in torch.utils.data.DataLoader(_Samples(encoder), batch_size=2):
                prepared.put(batch)
        prepared.put(None)

    thread = threading.Thread(target=prepare)
    thread.start()
    found = [model(batch) for batch in iter(prepared.get, None)]
    thread.join()
    # THEN both give what they give alone, and each knows its own blocks
    torch.testing.assert_close(found, expected)
    assert counts(encoder) == (3, 3, 0)
    assert counts(model) == (5, 5, 0)


def test_many_models_come_and_go_and_nothing_stays() -> None:
    # GIVEN a model that is rebuilt under one name again and again WHEN each is compiled and run
    alive = []
    for _ in range(6):
        model = nbcompile.compile_regions(net(), backend=BACKEND)
        model(rows())
        alive += [weakref.ref(model), weakref.ref(model.layers[0].fc.weight)]
    del model
    gc.collect()
    # THEN none of them is left, nor their weights, nor a record of them
    assert [ref() for ref in alive if ref() is not None] == []
    from nbcompile import compiler, events

    events.forget_dead_owners()
    assert not compiler._compilations or all(c.model() is not None for c in compiler._compilations.values())
