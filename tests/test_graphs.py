"""CUDA graphs over a whole step, on a device that records on the CPU: what is replayed, what is not, and why.

Each change that could make a replay stale is provoked, and the result held against the uncompiled model's.
"""

from __future__ import annotations

import copy
import gc
import pickle
import re
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import nbcompile
from nbcompile import device, graphs
from nbcompile.compiler import SLOT, current
from nbcompile.standing import Standing
from tests import models
from tests.blocks import WIDTH, Block, Net, net, rows
from tests.fake_device import FakeDevice, fake_device

BACKEND = "aot_eager"  # it keeps torch's operations, which the device can record


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with fake_device() as made:
        yield made


def compiled(model: nn.Module) -> nn.Module:
    return nbcompile.compile_regions(model, backend=BACKEND, cuda_graph=True)


def warm(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call three times: of these the last is the first replay."""
    for _ in range(2):
        model(*args, **kwargs)
    return model(*args, **kwargs)


def expected(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    with nbcompile.eager(model):
        return model(*args, **kwargs)


def notes(model: nn.Module) -> str:
    return "\n".join(note for note in nbcompile.report(model).notes if note.startswith("CUDA graph"))


def replays(fake: FakeDevice) -> int:
    return sum(graph.replays for graph in fake.graphs)


# -- replaying ---------------------------------------------------------------------------------------------------------


def test_the_third_call_is_recorded_and_later_ones_replay(fake: FakeDevice) -> None:
    # GIVEN a model compiled with CUDA graphs WHEN it is called with new values each time
    model = compiled(net())
    for turn in range(6):
        x = rows() + turn
        # THEN each result is that of the uncompiled model, and from the third call on it is a replay
        assert torch.equal(model(x), expected(model, x))
        assert (len(fake.graphs), replays(fake)) == (int(turn >= 2), max(0, turn - 1))
    assert "1 recorded, 4 calls replayed" in notes(model)
    assert nbcompile.report(model).settings["cuda_graph"] is True


def test_a_replay_counts_as_compiled(fake: FakeDevice) -> None:
    model = compiled(net())
    warm(model, rows())
    expected(model, rows())  # the blocks note that they ran eager
    model(rows())
    (group,) = nbcompile.report(model).groups
    assert (group.compiled, group.eager) == (4, 0)


def test_a_result_is_the_users_own(fake: FakeDevice) -> None:
    # GIVEN two results of replays, of which the user overwrites one
    model, x = compiled(net()), rows()
    first = warm(model, x)
    kept = first.clone()
    second = model(x + 1)
    second.zero_()
    # THEN neither the second replay nor the user's write has touched the first, nor a third
    assert torch.equal(first, kept)
    assert torch.equal(model(x), kept)


@pytest.mark.parametrize("make", [models.llama, models.bert, models.t5])
def test_real_architectures(fake: FakeDevice, make: Callable[[], models.Built]) -> None:
    # GIVEN a model of transformers, whose output is an object, of a decoder with a KV cache in it
    model, batch = make()
    compiled(model)
    # WHEN it is replayed with other tokens
    warm(model, **batch)
    name = "input_ids"
    other = {**batch, name: batch[name].flip(0)}
    result, want = model(**other), expected(model, **other)
    # THEN the output is of the same class, with eager's numbers, in the cache too
    assert replays(fake) == 2
    assert type(result) is type(want)
    torch.testing.assert_close(result[0], want[0])
    if want.get("past_key_values") is not None and hasattr(want.past_key_values, "layers"):
        kept = copy.deepcopy(result.past_key_values.layers[1].keys)
        torch.testing.assert_close(kept, want.past_key_values.layers[1].keys)
        model(**batch)  # the next replay overwrites the graph's own cache, not the one that was handed out
        assert torch.equal(result.past_key_values.layers[1].keys, kept)


def test_a_mask_that_is_made_only_while_recording(fake: FakeDevice) -> None:
    # GIVEN a decoder with a mask: transformers leaves it out if all is set, and does not ask that while recording
    model, batch = models.llama()
    compiled(model)
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    warm(model, **batch)
    graphs_made = current(model).graphs()  # type: ignore[union-attr]
    # WHEN the first entries are masked, THEN the replay heeds it
    batch["attention_mask"] = batch["attention_mask"].index_fill(1, torch.tensor([0, 1]), 0)
    result = model(**batch)
    assert replays(fake) == 2
    torch.testing.assert_close(result.logits[:, 2:], expected(model, **batch).logits[:, 2:])
    assert current(model).graphs() == graphs_made  # type: ignore[union-attr]


def test_arguments_in_containers_and_expanded(fake: FakeDevice) -> None:
    class Nested(Net):
        def forward(self, pair: tuple[torch.Tensor, dict[str, torch.Tensor]], *, scale: float = 1.0) -> Any:
            own = {"own": self.layers[0].fc.weight}
            return [super().forward(pair[0] + pair[1]["more"]) * scale, own, pair[0]]

    model = compiled(net(kind=Nested))
    x, more = rows(4), torch.ones(1, 1).expand(4, WIDTH)
    warm(model, (x, {"more": more}), scale=2.0)
    x2, more2 = x + 1, torch.full((1, 1), 3.0).expand(4, WIDTH)
    result = model((x2, {"more": more2}), scale=2.0)
    want = expected(model, (x2, {"more": more2}), scale=2.0)
    assert replays(fake) == 2
    torch.testing.assert_close(result[0], want[0])
    # THEN what is the model's or the user's own is handed back itself, as uncompiled
    assert result[1]["own"] is model.layers[0].fc.weight  # type: ignore[union-attr, index]
    assert result[2] is x2


def test_kinds_of_call_have_graphs_of_their_own(fake: FakeDevice) -> None:
    # GIVEN calls that differ in shape, strides, dtype, plain arguments and in the state of the process
    class Scaled(Net):
        def forward(self, x: torch.Tensor, scale: float = 1) -> torch.Tensor:
            return super().forward(x) * scale

    model = compiled(net(kind=Scaled))
    square = rows(WIDTH)
    calls: list[Callable[[], Any]] = [
        lambda: model(rows(2)),
        lambda: model(rows(3)),
        lambda: model(square),
        lambda: model(square.t()),
        lambda: model(rows(2), 2),
        lambda: model(rows(2), 3),
        lambda: model(rows(2), scale=3),
        lambda: in_autocast(model, rows(2)),
    ]
    # WHEN each is repeated THEN each is recorded once, and none gets another's result
    for call in calls * 4:
        result = call()
        with nbcompile.eager(model):
            want = call()
        torch.testing.assert_close(result, want)
    assert len(fake.graphs) == len(calls)
    assert replays(fake) == 2 * len(calls)


def in_autocast(model: nn.Module, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(x)


def test_inference_mode_apart_from_no_grad(fake: FakeDevice) -> None:
    model = compiled(net())
    for _ in range(4):
        result = model(rows())
        with torch.inference_mode():
            assert torch.equal(model(rows()), result)
    assert len(fake.graphs) == 2


def test_graphs_are_bounded_and_share_a_pool(fake: FakeDevice) -> None:
    model = compiled(net())
    for count in range(1, graphs.MOST_GRAPHS + 3):
        warm(model, rows(count))
    assert sum(graph.alive for graph in fake.graphs) == graphs.MOST_GRAPHS
    assert len(set(map(id, fake.pools))) == 1
    assert [graph.alive for graph in fake.graphs[:3]] == [False, False, True]  # those used longest ago went


def test_ever_new_graphs_are_given_up(fake: FakeDevice) -> None:
    # GIVEN more shapes than graphs are kept, in turn WHEN they go on THEN recording ends, and is told
    model = compiled(net())
    for _ in range(12):
        for count in range(1, graphs.MOST_GRAPHS + 2):
            warm(model, rows(count))
    assert len(fake.graphs) < 40
    assert "hardly used" in notes(model)
    assert torch.equal(model(rows(3)), expected(model, rows(3)))
    assert not any(graph.alive for graph in fake.graphs)


def test_shapes_that_do_not_come_again_are_not_recorded(fake: FakeDevice) -> None:
    model = nbcompile.compile_regions(net(), backend=BACKEND, dynamic=True, cuda_graph=True)
    for count in range(2, 80):
        model(rows(count))
    assert fake.graphs == []
    assert "differ in shape" in notes(model)


# -- never stale -------------------------------------------------------------------------------------------------------


class Settings:
    """Stands for a config."""

    def __init__(self) -> None:
        self.gain, self.names = 1.0, ["a"]
        self.factors = {"one": 1.0}


class Changeable(Block):
    """A block that computes with everything a module can hold."""

    def __init__(self, number: float, settings: Settings) -> None:
        super().__init__(number)
        self.settings, self.gain, self.table = settings, 1.0, [1.0]
        self.register_buffer("shift", torch.zeros(WIDTH))
        self.loose = torch.ones(WIDTH)

    def work(self, x: torch.Tensor) -> torch.Tensor:
        gain = self.gain * self.settings.gain * self.settings.factors["one"] * self.table[0]
        result: torch.Tensor = self.fc(x) * self.loose * gain + self.shift
        return result + 1 if self.training else result


def changeable() -> Net:
    settings = Settings()
    return net(block=lambda number: Changeable(number, settings))


class Lora(nn.Module):
    """What takes a layer's place when an adapter is put on."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.more = base, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return self.base(x) + self.more(x)


def other_work(self: Block, x: torch.Tensor) -> torch.Tensor:
    return x * 3


def set_by(name: str, value: Any) -> Callable[[Any], None]:
    return lambda block: setattr(block, name, value)


def swap_data(block: Any) -> None:
    block.fc.weight.data = torch.zeros(WIDTH, WIDTH)


def transpose_data(block: Any) -> None:
    block.fc.weight.data = block.fc.weight.data.t()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a weight exchanged": lambda block: setattr(block.fc, "weight", nn.Parameter(torch.zeros(WIDTH, WIDTH))),
    "a weight's memory exchanged": swap_data,
    "a weight transposed in place": transpose_data,
    "a weight taken away": lambda block: setattr(block.fc, "bias", None),
    "a buffer exchanged": set_by("shift", torch.ones(WIDTH)),
    "a tensor attribute exchanged": set_by("loose", torch.zeros(WIDTH)),
    "a module exchanged": set_by("fc", nn.Linear(WIDTH, WIDTH)),
    "a module exchanged behind its back": lambda block: block._modules.update(fc=nn.Linear(WIDTH, WIDTH)),
    "an adapter": lambda block: setattr(block, "fc", Lora(block.fc)),
    "a plain attribute": set_by("gain", 2.0),
    "a config's value": lambda block: setattr(block.settings, "gain", 3.0),
    "a config's dictionary": lambda block: block.settings.factors.update(one=4.0),
    "another config": set_by("settings", types.SimpleNamespace(gain=5.0, factors={"one": 1.0})),
    "a list's content": lambda block: block.table.__setitem__(0, 6.0),
    "train()": lambda block: block.train(),
    "a method of one block": lambda block: setattr(block, "forward", types.MethodType(other_work, block)),
    "another class": lambda block: setattr(block, "__class__", OtherChangeable),
}


class OtherChangeable(Changeable):
    def work(self, x: torch.Tensor) -> torch.Tensor:
        return x * 9


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_the_model_is_never_missed(fake: FakeDevice, change: Callable[[Any], Any]) -> None:
    # GIVEN a model that is replayed
    model, x = changeable(), rows()
    compiled(model)
    before = warm(model, x)
    assert replays(fake) == 1
    # WHEN it is changed
    change(model.layers[2])
    want = expected(model, x)
    assert not torch.equal(want, before)  # the change is one that counts
    # THEN the next result is that of the changed model, the old graph is given back, and it is recorded anew
    torch.testing.assert_close(model(x), want)
    assert not fake.graphs[0].alive
    torch.testing.assert_close(warm(model, x), want)
    assert len(fake.graphs) == 2
    assert "recorded anew" in notes(model)


def test_a_method_of_the_class_exchanged(fake: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = compiled(changeable()), rows()
    before = warm(model, x)
    monkeypatch.setattr(Changeable, "work", other_work)
    after = model(x)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, expected(model, x))


FACTOR = 1.0
TABLE = {"offset": 0.0}


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR + TABLE["offset"]


def other_helper(x: torch.Tensor) -> torch.Tensor:
    return x * 5


class Outside(Block):
    """A block whose code reads global names, through a function that it calls, and an attribute of its class."""

    gain = 1.0

    def work(self, x: torch.Tensor) -> torch.Tensor:
        return helper(self.fc(x)) * self.gain


@pytest.mark.parametrize("change", ["a global", "a global's content", "a function", "a class attribute"])
def test_a_change_beside_the_model_is_never_missed(
    fake: FakeDevice, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    model, x = compiled(net(block=Outside)), rows()
    before = warm(model, x)
    if change == "a global":
        monkeypatch.setitem(globals(), "FACTOR", 2.0)
    elif change == "a global's content":
        monkeypatch.setitem(TABLE, "offset", 3.0)
    elif change == "a function":
        monkeypatch.setitem(globals(), "helper", other_helper)
    else:
        monkeypatch.setattr(Outside, "gain", 4.0)
    want = expected(model, x)
    assert not torch.equal(want, before)
    torch.testing.assert_close(model(x), want)
    assert not fake.graphs[0].alive
    torch.testing.assert_close(warm(model, x), want)
    assert len(fake.graphs) == 2


def test_a_variable_around_the_code(fake: FakeDevice) -> None:
    # GIVEN a class made in a function, whose forward reads a variable of that function WHEN that changes
    factor = 1.0

    class Inside(Block):
        def work(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) * factor

    model, x = compiled(net(block=Inside)), rows()
    warm(model, x)
    factor = 3.0
    # THEN the next result is of the new value
    torch.testing.assert_close(model(x), expected(model, x))
    assert not fake.graphs[0].alive


def test_weights_written_in_place_are_seen_by_a_replay(fake: FakeDevice) -> None:
    model, x = compiled(net()), rows()
    warm(model, x)
    model.layers[1].fc.weight.mul_(2)  # type: ignore[union-attr, index]
    torch.testing.assert_close(model(x), expected(model, x))
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    torch.testing.assert_close(model(x), expected(model, x))
    assert len(fake.graphs) == 1
    assert replays(fake) == 3


def test_a_model_changed_while_its_compilation_was_off(fake: FakeDevice) -> None:
    # GIVEN a compilation that is taken off a model and put back, as a comparison does between its rounds
    model, x = compiled(changeable()), rows()
    warm(model, x)
    compilation = current(model)
    assert compilation is not None
    compilation.uninstall()
    assert SLOT not in vars(model)
    compilation.install()
    model(x)
    assert replays(fake) == 2  # nothing was changed, so the graph is used again
    # WHEN the model is changed in between THEN the graph is not
    compilation.uninstall()
    model.layers[0].gain = 7.0  # type: ignore[union-attr, index]
    compilation.install()
    torch.testing.assert_close(model(x), expected(model, x))
    assert replays(fake) == 2


def test_hooks_are_run_and_graphs_come_back_without_them(fake: FakeDevice) -> None:
    # GIVEN a model that is replayed, and a hook on a part of it
    model, x = compiled(net()), rows()
    before, seen = warm(model, x), []
    handle = model.layers[1].register_forward_hook(lambda *_: seen.append(1))  # type: ignore[union-attr, index]
    # WHEN it is called THEN the hook runs, and the reason is told
    model(x)
    assert seen == [1]
    assert replays(fake) == 1
    assert "hooks" in notes(model)
    # AND without the hook the same graph is used
    handle.remove()
    assert torch.equal(model(x), before)
    assert replays(fake) == 2
    assert len(fake.graphs) == 1


def test_a_hook_of_all_modules(fake: FakeDevice) -> None:
    model, x = compiled(net()), rows()
    warm(model, x)
    seen: list[int] = []
    handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1))
    try:
        model(x)
    finally:
        handle.remove()
    assert len(seen) > 4


# -- falling back ------------------------------------------------------------------------------------------------------


class Counting(Net):
    """Its forward counts its calls."""

    calls_made = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls_made += 1
        return super().forward(x) * self.calls_made


class Remembering(Net):
    """Its forward writes to a buffer."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__(blocks)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.add_(x.mean(0))
        return super().forward(x) + self.mean


class Overwriting(Net):
    """Its forward changes its argument."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.add_(1))


class Random(Net):
    """Dropout in the middle."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, training=True)


class Waiting(Net):
    """Decides by a value on the device."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum().item() > 0 else x


class Opaque(Net):
    """Returns something of its own."""

    def forward(self, x: torch.Tensor) -> Any:
        return types.SimpleNamespace(y=super().forward(x))


class Asked(Net):
    """Takes something of its own."""

    def forward(self, x: torch.Tensor, extra: Any = None) -> torch.Tensor:
        return super().forward(x) + (extra.amount if extra is not None else 0)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Counting, "changes the model.*calls_made"),
        (Remembering, "writes to the model's own weights or buffers"),
        (Overwriting, "changes its arguments"),
        (Random, "random numbers"),
        (Waiting, r"waits for the device, at .*test_graphs\.py:\d+"),
        (Opaque, "returns a SimpleNamespace"),
    ],
)
def test_a_call_that_cannot_be_replayed_runs_as_without(fake: FakeDevice, kind: type[Net], reason: str) -> None:
    # GIVEN two equal models of which one is compiled with graphs WHEN both are called
    model, plain = compiled(net(kind=kind)), net(kind=kind)
    for _ in range(8):
        x, y = rows(), rows()
        with torch.random.fork_rng():
            result = model(x)
        want = plain(y)
        # THEN each call does the same to both, whatever it does besides computing
        result, want = (getattr(value, "y", value) for value in (result, want))
        torch.testing.assert_close(result, want)
        assert torch.equal(x, y)
    # AND nothing was replayed, which has its reason in the report
    assert replays(fake) == 0
    assert re.search(reason, notes(model))


def test_gradients_are_left_alone(fake: FakeDevice) -> None:
    model, x = compiled(net()), rows()
    with torch.enable_grad():
        for _ in range(4):
            model(x).sum().backward()
    assert fake.graphs == []
    assert "torch.no_grad()" in notes(model)
    warm(model, x)  # and without them it is recorded
    assert len(fake.graphs) == 1


def test_a_growing_cache_is_left_alone(fake: FakeDevice) -> None:
    # GIVEN a decoder WHEN it generates, each step with the cache of the one before
    model, batch = models.llama()
    want = model.generate(**batch, max_new_tokens=6, do_sample=False)  # type: ignore[operator]
    compiled(model)
    with torch.no_grad():
        got = model.generate(**batch, max_new_tokens=6, do_sample=False)  # type: ignore[operator]
    # THEN it gives the same tokens, with no graph, and says why
    assert torch.equal(got, want)
    assert fake.graphs == []
    assert "KV cache (DynamicCache)" in notes(model)


def test_arguments_of_another_kind(fake: FakeDevice) -> None:
    model, x = compiled(net(kind=Asked)), rows()
    for amount in range(5):
        result = model(x, types.SimpleNamespace(amount=amount))
        torch.testing.assert_close(result, expected(model, x) + amount)
    assert "SimpleNamespace" in notes(model)


def test_a_tensor_that_lies_elsewhere(fake: FakeDevice) -> None:
    # "meta" stands for any other device than the model's
    model = compiled(net(kind=Asked))
    extra = torch.ones(1, device="meta")
    for _ in range(4):
        with pytest.raises(AttributeError):  # the model cannot do with it, which is the model's to say
            model(rows(), extra)
    assert "it is handed a tensor on meta while the model is on cpu" in notes(model)


def test_weights_on_several_devices(fake: FakeDevice) -> None:
    model = net()
    model.layers.append(Block().to("meta"))
    model.forward = lambda x: model.layers[0](x)  # type: ignore[method-assign]
    compiled(model)
    for _ in range(4):
        model(rows())
    assert fake.graphs == []
    assert "meta device" in notes(model)


def test_no_device_that_records() -> None:
    model, x = compiled(net()), rows()
    for _ in range(5):
        assert torch.equal(model(x), expected(model, x))
    assert "the model is on cpu, where there are no CUDA graphs" in notes(model)


def test_several_processes(fake: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_distributed", lambda: True)
    model = compiled(net())
    for _ in range(4):
        model(rows())
    assert fake.graphs == []
    assert "several processes" in notes(model)


def test_a_recording_that_fails(fake: FakeDevice) -> None:
    # GIVEN a device that refuses to record one kind of call
    model, x = compiled(net()), rows()
    fake.error = RuntimeError("CUDA error: out of memory\nSee the documentation")
    # WHEN it is called THEN its results are right, the first line of the text is told, and it is not tried again
    for _ in range(6):
        assert torch.equal(model(x), expected(model, x))
    assert fake.rehearsals == 1
    assert "recording failed: RuntimeError: CUDA error: out of memory" in notes(model)
    assert "documentation" not in notes(model)
    # AND another kind of call is recorded, in another pool
    assert torch.equal(warm(model, rows(3)), expected(model, rows(3)))
    assert len(fake.graphs) == 1
    assert fake.pools[0] is not fake.pools[1]


def test_a_wait_that_is_found_only_while_recording(fake: FakeDevice) -> None:
    model, x = compiled(net(kind=Waiting)), rows()
    fake.unseen_waits = True
    for _ in range(5):
        assert torch.equal(model(x), expected(model, x))
    assert "operation not permitted when stream is capturing" in notes(model)


def test_whoever_looks_at_each_operation_sees_them(fake: FakeDevice) -> None:
    class Looking(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class LookingEarlier(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    model, x = compiled(net()), rows()
    warm(model, x)
    for mode in (Looking(), LookingEarlier()):
        with mode:
            model(x)
    assert replays(fake) == 1
    torch.set_default_device("cpu")  # a mode, too, but one that changes nothing here
    try:
        model(x)
    finally:
        torch.set_default_device(None)
    assert replays(fake) == 2
    batched = torch.stack([x, x + 1])
    torch.testing.assert_close(torch.func.vmap(model)(batched)[1], expected(model, x + 1))


def test_another_thread_does_not_wait_nor_mix(fake: FakeDevice) -> None:
    # GIVEN a thread that is in the midst of a replay
    model, x = compiled(net()), rows()
    want = warm(model, x)
    (recorded,) = fake.graphs
    results: list[torch.Tensor] = []

    def call() -> None:
        with torch.no_grad():
            results.append(model(x + 1))

    def in_the_midst() -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    recorded.launches.insert(0, in_the_midst)
    # WHEN another one calls THEN it runs as without graphs, and both are right
    assert torch.equal(model(x), want)
    torch.testing.assert_close(results[0], expected(model, x + 1))
    assert recorded.replays == 2


# -- coming and going --------------------------------------------------------------------------------------------------


def test_restore_leaves_no_trace_and_gives_the_graphs_back(fake: FakeDevice) -> None:
    model, x = compiled(net()), rows()
    warm(model, x)
    nbcompile.restore(model)
    assert all(SLOT not in vars(module) for module in model.modules())
    assert not fake.graphs[0].alive


def test_restore_while_it_runs_eager(fake: FakeDevice) -> None:
    model, x = compiled(net()), rows()
    warm(model, x)
    with nbcompile.eager(model):
        nbcompile.restore(model)
    assert all(SLOT not in vars(module) for module in model.modules())


def test_what_the_user_compiled_is_called_behind_it(fake: FakeDevice) -> None:
    model, x = net(), rows()
    model.compile(backend="eager")
    own = vars(model)[SLOT]
    compiled(model)
    want = expected(model, x)
    torch.testing.assert_close(warm(model, x), want)
    nbcompile.restore(model)
    assert vars(model)[SLOT] is own


def test_a_deleted_model_is_freed_with_its_graphs(fake: FakeDevice) -> None:
    model = compiled(changeable())
    model.layers[0].forward = model.layers[0].forward  # an attribute that leads back to the module
    warm(model, rows())
    weight, graph = weakref.ref(model.layers[0].fc.weight), fake.graphs.pop()
    graph.launches.clear()
    del model
    gc.collect()
    assert weight() is None
    assert not graph.alive


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_not_compiled(fake: FakeDevice, copied: Callable[[nn.Module], nn.Module]) -> None:
    model, x = compiled(net()), rows()
    warm(model, x)
    other = copied(model)
    assert SLOT not in vars(other)
    assert torch.equal(other(x), expected(model, x))


def test_compiling_the_model_around_it(fake: FakeDevice) -> None:
    # GIVEN a model with graphs, within another that is compiled as a whole
    model, x = compiled(net()), rows()
    warm(model, x)
    whole = torch.compile(nn.Sequential(model), backend="eager", fullgraph=True)
    assert torch.equal(whole(x), expected(model, x))
    assert replays(fake) == 1


def test_without_the_keyword_the_models_own_call_is_untouched(fake: FakeDevice) -> None:
    model = nbcompile.compile_regions(net(), backend=BACKEND)
    assert SLOT not in vars(model)
    warm(model, rows())
    assert fake.graphs == []
    assert notes(model) == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cuda_graph": "yes"}, "cuda_graph takes True or False, not 'yes'"),
        ({"mode": "reduce-overhead"}, "records a CUDA graph for each block.*mode='default'"),
        ({"mode": "max-autotune"}, "mode='max-autotune-no-cudagraphs'"),
        ({"options": {"triton.cudagraphs": True}}, "exclude one another"),
    ],
)
def test_what_cannot_be_meant(settings: dict[str, Any], message: str) -> None:
    model = net()
    with pytest.raises(nbcompile.UsageError, match=message):
        nbcompile.compile_regions(model, **{"cuda_graph": True, **settings})
    assert all(SLOT not in vars(module) for module in model.modules())


def test_models_within_one_another(fake: FakeDevice) -> None:
    # GIVEN a model with graphs within another with graphs WHEN both are called THEN neither is stale
    inner = net()
    outer = nn.Sequential(inner, net(2))
    compiled(inner)
    nbcompile.compile_regions(outer, backend=BACKEND, cuda_graph=True, regions=["1.layers"], rest="eager")
    for turn in range(6):
        x = rows() + turn
        torch.testing.assert_close(outer(x), expected(outer, x))
        torch.testing.assert_close(inner(x), expected(inner, x))
    assert replays(fake) > 4


# -- the cost of looking, and the device -------------------------------------------------------------------------------


def test_looking_is_cheap() -> None:
    # 0.1 ms was measured for the 215 modules of 16 Llama layers; ten times that would be felt
    import timeit

    model, _ = models.llama(layers=16)
    standing = Standing(model)
    assert standing.changed() == ""
    assert min(timeit.repeat(standing.changed, number=20, repeat=5)) / 20 < 0.001


def test_seconds_by_the_devices_events(fake: FakeDevice) -> None:
    import time

    told = device.event_seconds(lambda: time.sleep(0.01), 3, torch.device("cpu"))
    assert told is not None
    assert 0.01 <= told < 0.1


def test_no_events_without_a_device() -> None:
    assert device.event_seconds(lambda: None, 3, torch.device("cpu")) is None
    assert device.event_seconds(lambda: None, 3, None) is None
