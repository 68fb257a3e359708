"""The plan: which modules are regions, what is left, and why. Nothing here compiles or calls a model."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from nbcompile import NoRepeatedBlocksError, UsageError, plan_regions
from nbcompile.regions import RegionPlan, class_name, structure, unwrapped

from .models import ZOO, unet


class Block(nn.Module):
    """Two layers. Its forward must never run: planning calls nothing."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the model was called")


class OtherBlock(Block):
    """Another class with the same layers."""


class Holder(nn.Module):
    """A module with the children it is given."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, *args: Any) -> Any:
        raise AssertionError("the model was called")


class Expert(Block):
    """Part of a :class:`Mixture`."""


class Mixture(nn.Module):
    """A block with repeated modules of its own."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(4, experts)
        self.experts = nn.ModuleList(Expert() for _ in range(experts))


class BasicBlock(nn.Module):
    """A residual block as in torchvision's ResNet."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))


class ResNet(nn.Module):
    """Built as torchvision builds it: Sequentials layer1 to layer4, each of another width."""

    def __init__(self, depths: tuple[int, ...]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inside = 8
        for stage, depth in enumerate(depths):
            outside = 8 * 2**stage
            blocks = [
                BasicBlock(inside if i == 0 else outside, outside, 2 if stage and i == 0 else 1) for i in range(depth)
            ]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
            inside = outside
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inside, 10)


def blocks(number: int, kind: type[Block] = Block, width: int = 4) -> list[Block]:
    return [kind(width) for _ in range(number)]


def found(plan: RegionPlan) -> dict[str, tuple[str, tuple[str, ...], int]]:
    """Each group's class, the names of its blocks below its path, and the number of structures, by path."""
    shown = {}
    for group in plan.groups:
        prefix = f"{group.path}." if group.path else ""
        assert all(path.startswith(prefix) for path in group.blocks)
        shown[group.path] = (group.class_name, tuple(path.removeprefix(prefix) for path in group.blocks), group.kinds)
    assert len(shown) == len(plan.groups)
    return shown


def rest(plan: RegionPlan) -> dict[str, str]:
    return {part.path: part.decision for part in plan.rest}


def numbered(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


# -- the zoo -----------------------------------------------------------------------------------------------------------

GROUPS = {
    "gpt2": {"transformer.h": ("GPT2Block", numbered(4), 1)},
    "llama": {"model.layers": ("LlamaDecoderLayer", numbered(4), 1)},
    "gemma3": {"model.layers": ("Gemma3DecoderLayer", numbered(6), 1)},
    "t5": {"encoder.block": ("T5Block", numbered(4), 2), "decoder.block": ("T5Block", numbered(4), 2)},
    "bert": {"encoder.layer": ("BertLayer", numbered(4), 1)},
    "vit": {"vit.layers": ("ViTLayer", numbered(4), 1)},
    "resnet": {
        "resnet.encoder.stages.0.layers": ("ResNetBasicLayer", numbered(2), 1),
        "resnet.encoder.stages.1.layers": ("ResNetBasicLayer", numbered(2), 2),
        "resnet.encoder.stages.2.layers": ("ResNetBasicLayer", numbered(4), 2),
        "resnet.encoder.stages.3.layers": ("ResNetBasicLayer", numbered(2), 2),
    },
    "torch_encoder": {"layers": ("TransformerEncoderLayer", numbered(4), 1)},
    "module_dict": {"blocks": ("ResidualBlock", ("block_0", "block_1", "block_2", "block_3"), 1)},
    "qwen3_moe": {"model.layers": ("Qwen3MoeDecoderLayer", numbered(4), 1)},
    "gpt_neo": {"transformer.h": ("GPTNeoBlock", numbered(4), 1)},
}

REST = {
    "gpt2": {"transformer.wte", "transformer.wpe", "transformer.drop", "transformer.ln_f", "lm_head"},
    "llama": {"model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"},
    "gemma3": {"model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"},
    "t5": {
        "shared",
        "encoder.embed_tokens",
        "encoder.final_layer_norm",
        "encoder.dropout",
        "decoder.embed_tokens",
        "decoder.final_layer_norm",
        "decoder.dropout",
        "lm_head",
    },
    "bert": {"embeddings", "pooler"},
    "vit": {"vit.embeddings", "vit.layernorm", "classifier"},
    "resnet": {"resnet.embedder", "resnet.pooler", "classifier"},
    "torch_encoder": set(),
    "module_dict": {"embed", "head"},
    "qwen3_moe": {"model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"},
    "gpt_neo": {"transformer.wte", "transformer.wpe", "transformer.drop", "transformer.ln_f", "lm_head"},
}


def test_every_model_of_the_zoo_is_told_about() -> None:
    # GIVEN the models WHEN the tables above are held against them THEN none is missing
    assert set(GROUPS) == set(REST) == set(ZOO)


@pytest.mark.parametrize("name", ZOO)
def test_groups_of_the_zoo(name: str) -> None:
    # GIVEN a model WHEN it is planned
    model, _ = ZOO[name]()
    plan = plan_regions(model)
    # THEN its groups are exactly the repeated blocks, and all else is the rest
    assert found(plan) == GROUPS[name]
    assert set(rest(plan)) == REST[name]
    # AND only ResNet's stem is as large as a block
    assert {path for path, decision in rest(plan).items() if decision == "compile"} == (
        {"resnet.embedder"} if name == "resnet" else set()
    )


@pytest.mark.parametrize("name", ZOO)
def test_plan_covers_every_parameter_once(name: str) -> None:
    # GIVEN a plan WHEN the modules of its groups and rest are put together
    model, _ = ZOO[name]()
    plan = plan_regions(model)
    paths = [*(path for group in plan.groups for path in group.blocks), *rest(plan)]
    owned = [f"{path}.{key}" for path in paths for key, _ in model.get_submodule(path).named_parameters()]
    # THEN each parameter of a module lies in one of them, and none in two
    assert len(owned) == len(set(owned))
    names = {name for name, _ in model.named_parameters(remove_duplicate=False) if "." in name}
    assert names - set(owned) == set()


@pytest.mark.parametrize("name", ZOO)
def test_planning_changes_and_calls_nothing(name: str) -> None:
    # GIVEN a model whose modules all raise when they are called, with a hook
    model, _ = ZOO[name]()
    model.register_forward_hook(lambda *args: None)

    def refuse(*args: Any) -> None:
        raise AssertionError("the model was called")

    for module in model.modules():
        module.register_forward_pre_hook(refuse)
    before = {key: (value, value.clone()) for key, value in model.state_dict(keep_vars=True).items()}
    modules = [(path, module, dict(vars(module))) for path, module in model.named_modules()]
    tables = [(hooks, dict(hooks)) for module in model.modules() for hooks in hook_tables(module)]
    # WHEN it is planned in every way
    for choice in ("auto", "compile", "eager"):
        str(plan_regions(model, rest=choice))
    # THEN weights, modules, attributes and hooks are the very same objects with the very same values
    after = model.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[key] is value and torch.equal(value, copy) for key, (value, copy) in before.items())
    assert [path for path, _ in model.named_modules()] == [path for path, _, _ in modules]
    for (_, module), (_, same, attributes) in zip(model.named_modules(), modules, strict=True):
        assert module is same
        assert vars(module).keys() == attributes.keys()
        assert all(vars(module)[key] is value for key, value in attributes.items())
    assert all(dict(hooks) == copy for hooks, copy in tables)


def hook_tables(module: nn.Module) -> list[dict[int, Any]]:
    return [value for key, value in vars(module).items() if key.endswith("_hooks")]


# -- where blocks are looked for ---------------------------------------------------------------------------------------


def test_blocks_in_a_module_list() -> None:
    # GIVEN blocks in a ModuleList WHEN the model is planned THEN they are one group at the list's path
    plan = plan_regions(Holder(layers=nn.ModuleList(blocks(3)), norm=nn.LayerNorm(4)))
    assert found(plan) == {"layers": ("Block", ("0", "1", "2"), 1)}
    assert rest(plan) == {"norm": "eager"}


def test_blocks_in_a_sequential() -> None:
    # GIVEN blocks in a Sequential with another layer WHEN the model is planned THEN the blocks alone are the group
    plan = plan_regions(Holder(body=nn.Sequential(nn.Linear(4, 4), *blocks(3))))
    assert found(plan) == {"body": ("Block", ("1", "2", "3"), 1)}
    assert rest(plan) == {"body.0": "eager"}


def test_blocks_in_a_module_dict() -> None:
    # GIVEN blocks under names WHEN the model is planned THEN they are one group with those names
    plan = plan_regions(Holder(layers=nn.ModuleDict({"first": Block(), "second": Block()})))
    assert found(plan) == {"layers": ("Block", ("first", "second"), 1)}


def test_blocks_as_plain_attributes() -> None:
    # GIVEN blocks that are attributes of the model itself WHEN it is planned THEN the group's path is the model's
    plan = plan_regions(Holder(one=Block(), norm=nn.LayerNorm(4), two=Block()))
    assert found(plan) == {"": ("Block", ("one", "two"), 1)}


@pytest.mark.parametrize("container", [nn.ModuleList(blocks(2)), nn.Sequential(*blocks(2))])
def test_model_that_is_a_container(container: nn.Module) -> None:
    # GIVEN a container as model WHEN it is planned THEN its items are the group
    assert found(plan_regions(container)) == {"": ("Block", ("0", "1"), 1)}


def test_list_inside_a_list() -> None:
    # GIVEN blocks in lists of a list, all alike WHEN the model is planned THEN each inner list is a group
    plan = plan_regions(Holder(layers=nn.ModuleList([nn.ModuleList(blocks(2)), nn.ModuleList(blocks(3))])))
    assert found(plan) == {"layers.0": ("Block", ("0", "1"), 1), "layers.1": ("Block", ("0", "1", "2"), 1)}


def test_two_classes_in_one_list() -> None:
    # GIVEN blocks of two classes in turn WHEN the model is planned
    mixed = nn.ModuleList([Block(), OtherBlock(), Block(), OtherBlock()])
    plan = plan_regions(Holder(layers=mixed))
    # THEN there is a group for each class, in the order of the model
    assert [(group.path, group.class_name, group.blocks) for group in plan.groups] == [
        ("layers", "Block", ("layers.0", "layers.2")),
        ("layers", "OtherBlock", ("layers.1", "layers.3")),
    ]


def test_lone_sibling_is_no_region() -> None:
    # GIVEN one module of another class beside the blocks WHEN the model is planned THEN it is in the rest
    plan = plan_regions(Holder(layers=nn.ModuleList([*blocks(2), OtherBlock()])))
    assert found(plan) == {"layers": ("Block", ("0", "1"), 1)}
    assert rest(plan) == {"layers.2": "compile"}


def test_module_list_of_sequentials() -> None:
    # GIVEN blocks that are Sequentials of layers WHEN the model is planned THEN the Sequentials are the group
    def layer() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    plan = plan_regions(Holder(layers=nn.ModuleList(layer() for _ in range(3))))
    assert found(plan) == {"layers": ("Sequential", ("0", "1", "2"), 1)}


def test_repeated_modules_inside_a_block_are_no_regions() -> None:
    # GIVEN blocks with experts WHEN the model is planned THEN the blocks are the group, and no expert is anything
    plan = plan_regions(Holder(layers=nn.ModuleList(Mixture() for _ in range(3))))
    assert found(plan) == {"layers": ("Mixture", ("0", "1", "2"), 1)}
    assert rest(plan) == {}


class Tower(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.layers = nn.ModuleList(Expert() for _ in range(depth))


class DualEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.passage = Tower(), Tower()


def test_equal_towers_are_searched_for_their_blocks() -> None:
    # GIVEN two equal encoders side by side WHEN the model is planned THEN the blocks of each are regions
    each = ("Expert", numbered(4), 1)
    assert found(plan_regions(DualEncoder())) == {"query.layers": each, "passage.layers": each}


def test_blocks_in_a_list_that_repeat_something_inside_stay_blocks() -> None:
    # GIVEN blocks in a list, each with a list inside, also where their library says what those are made of
    class Declared(Tower):
        _no_split_modules = ["Expert"]

    for kind in (Tower, Declared):
        assert [group.path for group in plan_regions(nn.ModuleList([kind(), kind()])).groups] == [""]


def test_a_unets_attention_blocks_are_regions_as_a_whole() -> None:
    # GIVEN a model whose attention blocks declare transformer blocks inside
    model, _ = unet()
    # WHEN it is planned THEN the blocks that compute together are the regions, not the smaller ones within
    groups = {group.path: group.class_name for group in plan_regions(model).groups}
    assert groups["down_blocks.0.attentions"] == groups["up_blocks.1.attentions"] == "Transformer2DModel"


def test_repeated_modules_inside_one_lone_block_are_regions() -> None:
    # GIVEN a single module with experts WHEN the model is planned THEN the experts repeat, and are the group
    plan = plan_regions(Holder(mixture=Mixture()))
    assert found(plan) == {"mixture.experts": ("Expert", numbered(4), 1)}
    assert rest(plan) == {"mixture.gate": "eager"}


def test_layers_of_torch_are_no_blocks() -> None:
    # GIVEN siblings that run one kernel each, beside blocks WHEN the model is planned THEN only the blocks are a group
    plan = plan_regions(Holder(heads=nn.ModuleList(nn.Linear(4, 4) for _ in range(4)), layers=nn.ModuleList(blocks(2))))
    assert found(plan) == {"layers": ("Block", ("0", "1"), 1)}
    assert set(rest(plan).values()) == {"eager"}


def test_siblings_without_parameters_are_no_blocks() -> None:
    # GIVEN siblings that hold no parameter WHEN the model is planned THEN they are no group
    idle = nn.ModuleList(Holder(a=nn.ReLU(), b=nn.GELU()) for _ in range(3))
    plan = plan_regions(Holder(idle=idle, layers=nn.ModuleList(blocks(2))))
    assert list(found(plan)) == ["layers"]


def test_repeated_modules_that_only_hold_functions_are_no_blocks() -> None:
    # GIVEN siblings of one class, without parameters, and nothing else WHEN the model is planned THEN nothing repeats
    with pytest.raises(NoRepeatedBlocksError):
        plan_regions(Holder(idle=nn.ModuleList(Holder(a=nn.ReLU(), b=nn.GELU()) for _ in range(3))))


@pytest.mark.parametrize(("share", "groups"), [(8, ["layers", "small"]), (64, ["layers"])])
def test_set_that_is_tiny_beside_the_largest(share: int, groups: list[str]) -> None:
    # GIVEN a second set whose parameters are 1/60 or 1/4000 of the largest set's WHEN the model is planned
    model = Holder(layers=nn.ModuleList(blocks(2, width=4 * share)), small=nn.ModuleList(blocks(2)))
    # THEN it is a group only if it has at least one in a hundred
    assert list(found(plan_regions(model))) == groups


def test_stages_of_different_widths() -> None:
    # GIVEN stages of one class and different widths, with repeated blocks inside WHEN the model is planned
    stages = nn.ModuleList(Holder(blocks=nn.ModuleList(blocks(3, width=width))) for width in (4, 8, 16))
    plan = plan_regions(Holder(stages=stages))
    # THEN no stage is a region, but the blocks of each stage are a group
    assert found(plan) == {f"stages.{i}.blocks": ("Block", ("0", "1", "2"), 1) for i in range(3)}


def test_stages_whose_weight_lies_outside_the_blocks_in_them() -> None:
    # GIVEN stages of different widths that are mostly one large layer WHEN the model is planned
    def stage(width: int) -> nn.Module:
        return Holder(large=nn.Linear(width, 20 * width), blocks=nn.ModuleList(blocks(2, width=width)))

    # THEN the stages are the regions: the blocks inside would leave most of the work out
    plan = plan_regions(Holder(stages=nn.ModuleList(stage(width) for width in (4, 8, 16))))
    assert found(plan) == {"stages": ("Holder", ("0", "1", "2"), 3)}


def test_stages_of_one_width() -> None:
    # GIVEN stages that are all alike WHEN the model is planned THEN the outermost set is the group
    stages = nn.ModuleList(Holder(blocks=nn.ModuleList(blocks(3))) for _ in range(3))
    assert found(plan_regions(Holder(stages=stages))) == {"stages": ("Holder", ("0", "1", "2"), 1)}


def test_blocks_of_different_widths_with_nothing_repeating_inside() -> None:
    # GIVEN blocks of one class, no two alike WHEN the model is planned THEN they are a group that says what it costs
    plan = plan_regions(Holder(layers=nn.ModuleList(Block(width) for width in (4, 8, 16))))
    assert found(plan) == {"layers": ("Block", ("0", "1", "2"), 3)}
    assert plan.groups[0].reason == "3 blocks of one class, each with tensors of other sizes: a graph each"


def test_torchvisions_resnet() -> None:
    # GIVEN stages that are Sequentials and attributes of the model WHEN it is planned
    plan = plan_regions(ResNet((2, 2, 3, 2)))
    # THEN each stage is a group, whose first block has a structure of its own where the width changes
    assert found(plan) == {
        "layer1": ("BasicBlock", ("0", "1"), 1),
        "layer2": ("BasicBlock", ("0", "1"), 2),
        "layer3": ("BasicBlock", ("0", "1", "2"), 2),
        "layer4": ("BasicBlock", ("0", "1"), 2),
    }
    assert set(rest(plan)) == {"conv1", "bn1", "relu", "maxpool", "avgpool", "fc"}
    assert set(rest(plan).values()) == {"eager"}


def test_sequentials_that_have_nothing_in_common_are_no_blocks() -> None:
    # GIVEN two Sequentials side by side, as in AlexNet and VGG WHEN the model is planned
    features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
    classifier = nn.Sequential(nn.Dropout(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    # THEN nothing repeats: they share a class that says nothing, and no graph
    with pytest.raises(NoRepeatedBlocksError):
        plan_regions(Holder(features=features, classifier=classifier))


# -- one module in several places --------------------------------------------------------------------------------------


def test_module_twice_in_one_list() -> None:
    # GIVEN a list that holds one block twice WHEN the model is planned THEN the block counts once
    shared = Block()
    plan = plan_regions(Holder(layers=nn.ModuleList([shared, Block(), shared])))
    assert found(plan) == {"layers": ("Block", ("0", "1"), 1)}
    assert rest(plan) == {}


def test_one_block_alone_however_often_it_is_used() -> None:
    # GIVEN a list that holds one block three times WHEN the model is planned THEN nothing repeats
    with pytest.raises(NoRepeatedBlocksError):
        plan_regions(Holder(layers=nn.ModuleList([Block()] * 3)))


def test_list_shared_by_two_parts() -> None:
    # GIVEN an encoder and a decoder that share their blocks WHEN the model is planned
    layers = nn.ModuleList(blocks(3))
    model = Holder(encoder=Holder(layers=layers), decoder=Holder(layers=layers, norm=nn.LayerNorm(4)))
    plan = plan_regions(model, rest="compile")
    # THEN each block is in one group and in no part of the rest
    assert found(plan) == {"encoder.layers": ("Block", ("0", "1", "2"), 1)}
    assert rest(plan) == {"decoder.norm": "compile"}


def test_block_that_is_an_attribute_too() -> None:
    # GIVEN a model that keeps its first block under a second name WHEN it is planned THEN that is no part of the rest
    layers = nn.ModuleList(blocks(3))
    plan = plan_regions(Holder(layers=layers, first=layers[0]), rest="compile")
    assert found(plan) == {"layers": ("Block", ("0", "1", "2"), 1)}
    assert rest(plan) == {}


def test_tied_layer_is_one_part_of_the_rest() -> None:
    # GIVEN an embedding that lies in two places WHEN the model is planned THEN it is listed once
    embedding = nn.Embedding(4, 4)
    model = Holder(shared=embedding, encoder=Holder(embed=embedding, layers=nn.ModuleList(blocks(2))))
    assert rest(plan_regions(model)) == {"shared": "eager"}


# -- wrappers ----------------------------------------------------------------------------------------------------------


def test_wrapped_blocks_have_the_name_of_their_class() -> None:
    # GIVEN blocks under activation checkpointing WHEN the model is planned THEN they are told by their own class
    plan = plan_regions(Holder(layers=nn.ModuleList(checkpoint_wrapper(block) for block in blocks(3))))
    assert found(plan) == {"layers": ("Block", ("0", "1", "2"), 1)}


def test_wrapped_and_bare_blocks_are_one_set() -> None:
    # GIVEN checkpointing of every other block WHEN the model is planned THEN all are one group of two structures
    layers = nn.ModuleList([checkpoint_wrapper(Block()), Block(), checkpoint_wrapper(Block()), Block()])
    assert found(plan_regions(Holder(layers=layers))) == {"layers": ("Block", ("0", "1", "2", "3"), 2)}


def test_classes_made_one_by_one_are_one_set() -> None:
    # GIVEN blocks each of a class of its own under one name, as parametrizations make them WHEN the model is planned
    layers = nn.ModuleList(blocks(3))
    for layer in layers:
        layer.__class__ = type("ParametrizedBlock", (Block,), {})
    # THEN they are one group, though the compiler will tell their classes apart
    assert found(plan_regions(Holder(layers=layers))) == {"layers": ("ParametrizedBlock", ("0", "1", "2"), 1)}
    assert len({structure(layer, by_identity=True) for layer in layers}) == 3


def test_sharded_blocks_have_the_name_of_their_class() -> None:
    # GIVEN a class derived as FSDP2 derives it, and one of the user's that only looks like it WHEN named
    made = type("FSDPBlock", (Block,), {"__module__": "torch.distributed.fsdp._fully_shard._fully_shard"})
    users = type("FSDPBlock", (Block,), {"__module__": "my_models"})
    # THEN the first has the name of the class it was derived from, the second its own
    assert (class_name(made()), class_name(users())) == ("Block", "FSDPBlock")


def test_name_of_an_optimized_module() -> None:
    # GIVEN what torch.compile returned WHEN its class is asked for THEN it is that of the module inside
    block = Block()
    assert class_name(torch.compile(block)) == "Block"
    assert unwrapped(torch.compile(checkpoint_wrapper(block))) is block


# -- structure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        Block(8),
        Block().double(),
        Block().requires_grad_(False),
        Block().to("meta"),
        OtherBlock(),
        Holder(up=nn.Linear(4, 4), down=nn.Linear(4, 4)),
    ],
    ids=["shape", "dtype", "requires_grad", "device", "class", "class of another parent"],
)
def test_what_makes_another_structure(other: nn.Module) -> None:
    # GIVEN a module that differs in one respect WHEN structures are compared THEN they differ
    assert structure(Block()) != structure(other)


def test_values_make_no_other_structure() -> None:
    # GIVEN blocks with other weights and another mode WHEN structures are compared THEN they are equal
    assert structure(Block()) == structure(Block().eval())
    assert structure(Block(), by_identity=True) == structure(Block().eval(), by_identity=True)


# -- chosen by hand ----------------------------------------------------------------------------------------------------


@pytest.fixture
def model() -> Holder:
    """Three blocks in a list, two in a Sequential, a norm."""
    return Holder(layers=nn.ModuleList(blocks(3)), tail=nn.Sequential(*blocks(2, OtherBlock)), norm=nn.LayerNorm(4))


@pytest.mark.parametrize(
    ("regions", "groups"),
    [
        (["layers.1"], {"layers": ("Block", ("1",), 1)}),
        (["layers.0", "layers.2"], {"layers": ("Block", ("0", "2"), 1)}),
        (["layers"], {"layers": ("Block", ("0", "1", "2"), 1)}),
        (["tail"], {"tail": ("OtherBlock", ("0", "1"), 1)}),
        (["OtherBlock"], {"tail": ("OtherBlock", ("0", "1"), 1)}),
        ([OtherBlock], {"tail": ("OtherBlock", ("0", "1"), 1)}),
        # an instance of a derived class is one of the class, but does not have its name
        ([Block], {"layers": ("Block", ("0", "1", "2"), 1), "tail": ("OtherBlock", ("0", "1"), 1)}),
        (["Block"], {"layers": ("Block", ("0", "1", "2"), 1)}),
        (["norm"], {"": ("LayerNorm", ("norm",), 1)}),
        (
            ["layers", "layers.0", Block],
            {"layers": ("Block", ("0", "1", "2"), 1), "tail": ("OtherBlock", ("0", "1"), 1)},
        ),
        ("layers", {"layers": ("Block", ("0", "1", "2"), 1)}),
        (OtherBlock, {"tail": ("OtherBlock", ("0", "1"), 1)}),
        (("layers.1",), {"layers": ("Block", ("1",), 1)}),
    ],
)
def test_regions_by_hand(regions: Any, groups: dict[str, Any], model: Holder) -> None:
    # GIVEN paths, containers, class names or classes WHEN the model is planned with them
    plan = plan_regions(model, regions=regions)
    # THEN they are the groups, whatever would have been found
    assert found(plan) == groups
    assert {group.reason for group in plan.groups} == {"chosen by hand"}


def test_what_was_not_chosen_is_the_rest(model: Holder) -> None:
    # GIVEN one block of several WHEN it alone is chosen THEN the others are parts of the rest
    plan = plan_regions(model, regions=["layers.1"], rest="eager")
    assert set(rest(plan)) == {"layers.0", "layers.2", "tail", "norm"}


def test_regions_by_hand_in_a_model_without_repeated_blocks() -> None:
    # GIVEN a model in which nothing repeats WHEN a block is chosen THEN that is the group
    assert found(plan_regions(Holder(only=Block()), regions=["only"])) == {"": ("Block", ("only",), 1)}


@pytest.mark.parametrize("region", ["Block", Block, "layers", "layers.0"])
def test_wrapped_blocks_by_hand(region: Any) -> None:
    # GIVEN blocks under activation checkpointing WHEN they are chosen by class THEN each is meant once
    model = Holder(layers=nn.ModuleList(checkpoint_wrapper(block) for block in blocks(2)))
    names = ("0",) if region == "layers.0" else ("0", "1")
    assert found(plan_regions(model, regions=[region])) == {"layers": ("Block", names, 1)}


def test_shared_block_by_its_second_path() -> None:
    # GIVEN a block that lies in two places WHEN it is chosen by both THEN it is one region, by the first path named
    block = Block()
    model = Holder(a=Holder(block=block), b=Holder(block=block))
    assert found(plan_regions(model, regions=["b.block", "a.block"])) == {"b": ("Block", ("block",), 1)}
    assert found(plan_regions(model, regions=[Block])) == {"a": ("Block", ("block",), 1)}


@pytest.mark.parametrize("region", ["layer", "layers.9", "Blok", nn.Conv2d, 5, None])
def test_region_that_does_not_exist(region: Any, model: Holder) -> None:
    # GIVEN neither a path nor a class of this model WHEN it is chosen THEN the classes that exist are listed
    with pytest.raises(UsageError) as caught:
        plan_regions(model, regions=[region])
    assert str(caught.value) == (
        f"regions: {region!r} is neither the path of a module nor a class in this model. "
        "Classes in it: Block, LayerNorm, Linear, ModuleList, OtherBlock, Sequential"
    )


def test_region_inside_a_region(model: Holder) -> None:
    # GIVEN a block and a layer of it WHEN both are chosen THEN the error names both
    with pytest.raises(UsageError) as caught:
        plan_regions(model, regions=["layers.0.up", "layers"])
    assert str(caught.value) == ("regions names 'layers.0.up' and 'layers.0', which contains it; name one of the two")


def test_module_as_a_region(model: Holder) -> None:
    # GIVEN a module itself instead of its path WHEN it is chosen THEN one line says what is taken
    with pytest.raises(UsageError) as caught:
        plan_regions(model, regions=[model.layers[0]])  # type: ignore[index, list-item]
    assert str(caught.value) == (
        "regions takes paths, class names or classes, not a module (Block); give its path in the model"
    )


@pytest.mark.parametrize("regions", [5, Block(), nn.ModuleList(blocks(2))], ids=["int", "module", "list of modules"])
def test_regions_that_are_no_list(regions: Any, model: Holder) -> None:
    # GIVEN something that is no list of names WHEN it is given THEN one line says what is taken
    with pytest.raises(UsageError) as caught:
        plan_regions(model, regions=regions)
    assert str(caught.value) == (f"regions takes a list of paths, class names or classes, not {type(regions).__name__}")


def test_empty_regions(model: Holder) -> None:
    # GIVEN an empty list WHEN it is given THEN the error says so, and not that the model has no repeated blocks
    with pytest.raises(
        UsageError, match=r"^regions is empty; name the blocks to compile, or leave regions out"
    ) as caught:
        plan_regions(model, regions=[])
    assert not isinstance(caught.value, NoRepeatedBlocksError)


# -- the rest ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def parts() -> Holder:
    """Blocks of six layers, and beside them a part of each size."""
    layer = lambda: Holder(**{f"part{i}": nn.Linear(4, 4) for i in range(6)})  # noqa: E731
    return Holder(
        layers=nn.ModuleList(layer() for _ in range(2)),
        drop=nn.Dropout(0.5),
        empty=nn.ModuleList(),
        embed=nn.Embedding(4, 4),
        small=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)),
        large=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)),
    )


def test_rest_left_to_judgement(parts: Holder) -> None:
    # GIVEN parts of several sizes WHEN the model is planned
    plan = plan_regions(parts)
    # THEN only a part of at least half a block's layers is compiled, and each choice has its reason
    assert [(part.path, part.class_name, part.decision, part.reason) for part in plan.rest] == [
        ("drop", "Dropout", "eager", "runs no kernel in evaluation"),
        ("embed", "Embedding", "eager", "runs one kernel: nothing to fuse"),
        (
            "small",
            "Sequential",
            "eager",
            "runs once a step and is small beside a block: a graph of its own would not pay",
        ),
        ("large", "Sequential", "compile", "runs once a step and is as large as a block"),
    ]


def test_rest_compiled(parts: Holder) -> None:
    # GIVEN the same parts WHEN all are to be compiled THEN all are, but for the one that runs no kernel
    plan = plan_regions(parts, rest="compile")
    assert [(part.path, part.decision, part.reason) for part in plan.rest] == [
        ("drop", "eager", "runs no kernel"),
        ("embed", "compile", "rest='compile'"),
        ("small", "compile", "rest='compile'"),
        ("large", "compile", "rest='compile'"),
    ]


def test_rest_left_eager(parts: Holder) -> None:
    # GIVEN the same parts WHEN none is to be compiled THEN none is, and the reason is the choice
    plan = plan_regions(parts, rest="eager")
    assert {(part.decision, part.reason) for part in plan.rest} == {("eager", "rest='eager'")}


@pytest.mark.parametrize("choice", ["all", "", None, True])
def test_unknown_choice_for_the_rest(choice: Any, parts: Holder) -> None:
    # GIVEN a choice that does not exist WHEN it is given THEN those that exist are listed
    with pytest.raises(UsageError) as caught:
        plan_regions(parts, rest=choice)
    assert str(caught.value) == f"rest takes 'auto', 'compile', 'eager', not {choice!r}"


# -- reasons and printing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", ["_no_split_modules", "_repeated_blocks"])
def test_what_the_library_declares_is_named(attribute: str, model: Holder) -> None:
    # GIVEN a model whose library names one of its classes WHEN it is planned THEN the reason says so where it holds
    setattr(model, attribute, ["Block"])
    reasons = {group.class_name: group.reason for group in plan_regions(model).groups}
    assert reasons == {
        "Block": f"3 repeated blocks, one structure; the model's {attribute} names the class too",
        "OtherBlock": "2 repeated blocks, one structure",
    }


@pytest.mark.parametrize("declared", ["Block", None, 5, [Block, 3], [["Block"]], ["Missing"]])
def test_what_the_library_declares_is_only_a_hint(declared: Any, model: Holder) -> None:
    # GIVEN a declaration that names nothing here, or is none WHEN the model is planned THEN the model itself decides
    model._no_split_modules = declared
    plan = plan_regions(model)
    assert list(found(plan)) == ["layers", "tail"]
    assert {group.reason for group in plan.groups} == {
        "3 repeated blocks, one structure",
        "2 repeated blocks, one structure",
    }


def test_plan_prints_as_a_table() -> None:
    # GIVEN a plan WHEN it is printed THEN it is a table with one line a part, its columns aligned
    plan = plan_regions(Holder(one=Block(), two=Block(), embed=nn.Embedding(4, 4)))
    assert str(plan).splitlines() == [
        "Regions of Holder",
        "part        class      decision  reason",
        "(model) x2  Block      region    2 repeated blocks, one structure",
        "embed       Embedding  eager     runs one kernel: nothing to fuse",
    ]


def test_plan_in_a_notebook_is_an_escaped_table() -> None:
    # GIVEN a class whose name is markup WHEN a notebook shows the plan THEN the name is text
    evil = type("<script>", (Holder,), {})
    page = plan_regions(evil(one=Block(), two=Block()))._repr_html_()
    assert "<caption>Regions of &lt;script&gt;</caption>" in page
    assert "<script>" not in page
    assert page.count("<tr>") == 2


# -- models that are refused -------------------------------------------------------------------------------------------


def test_nothing_repeats() -> None:
    # GIVEN a model in which no two siblings are of one class WHEN it is planned
    layers = nn.Sequential(OrderedDict(a=nn.Linear(4, 4), b=nn.ReLU(), c=nn.Linear(4, 4)))
    with pytest.raises(NoRepeatedBlocksError) as caught:
        plan_regions(Holder(body=layers, block=Block()))
    # THEN the error says so, lists what was seen, most frequent first, and names both remedies
    assert str(caught.value) == (
        "Holder has no repeated blocks: no two sibling modules of one class that hold parameters and run more than one "
        "kernel. It holds: Linear x4, Sequential, ReLU, Block. Use nbcompile.compile_model(model) to compile it as a "
        "whole, or name the blocks yourself: nbcompile.compile_regions(model, regions=['path.of.a.module', ...])"
    )


def test_nothing_at_all() -> None:
    # GIVEN a single layer WHEN it is planned THEN the error says that it holds nothing
    with pytest.raises(NoRepeatedBlocksError, match=r"Linear has no repeated blocks.*It holds: no modules"):
        plan_regions(nn.Linear(4, 4))


def test_many_classes_are_cut_short() -> None:
    # GIVEN a model of twenty classes WHEN nothing repeats THEN the message lists twelve
    children = {f"c{i}": type(f"Kind{i}", (Block,), {})() for i in range(20)}
    with pytest.raises(NoRepeatedBlocksError) as caught:
        plan_regions(Holder(**children))
    listed = str(caught.value).partition("It holds: ")[2].partition(". Use")[0].split(", ")
    assert len(listed) == 12
    assert listed[0] == "Linear x40"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "NoneType: None"), ("model", "str: 'model'"), (len, "builtin_function_or_method: <built-in function len>")],
)
def test_something_that_is_no_module(value: Any, shown: str) -> None:
    # GIVEN something else WHEN it is planned THEN the error shows what it was
    with pytest.raises(UsageError) as caught:
        plan_regions(value)
    assert str(caught.value) == f"expected a torch.nn.Module, got {shown}"


def test_long_values_are_cut_short() -> None:
    # GIVEN a long list instead of a model WHEN it is planned THEN the error stays one short line
    with pytest.raises(UsageError) as caught:
        plan_regions(list(range(1000)))  # type: ignore[arg-type]
    assert str(caught.value) == "expected a torch.nn.Module, got list: " + repr(list(range(1000)))[:57] + "..."


def test_class_instead_of_a_model() -> None:
    # GIVEN a class WHEN it is planned THEN the error says how to make a model of it
    with pytest.raises(UsageError) as caught:
        plan_regions(Block)  # type: ignore[arg-type]
    assert str(caught.value) == "Block is a class; create the model first: model = Block(...)"


def test_optimized_module() -> None:
    # GIVEN what torch.compile returned WHEN it is planned THEN the error says where the model itself is
    with pytest.raises(UsageError) as caught:
        plan_regions(torch.compile(Holder(layers=nn.ModuleList(blocks(2)))))
    assert str(caught.value) == (
        "this is what torch.compile returned for a Holder; it compiles the whole model already. "
        "Pass the model itself: model._orig_mod"
    )


@pytest.mark.parametrize("make", ["script", "trace"])
def test_torchscript(make: str) -> None:
    # GIVEN a model that was scripted or traced WHEN it is planned THEN it is refused with the remedy
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has deprecated TorchScript
        scripted = torch.jit.script(plain) if make == "script" else torch.jit.trace(plain, torch.ones(1, 4))
    with pytest.raises(UsageError) as caught:
        plan_regions(scripted)
    assert str(caught.value) == ("a TorchScript module is compiled already; pass the nn.Module that it was made from")


def test_lazy_modules() -> None:
    # GIVEN blocks whose sizes are not known yet WHEN they are planned THEN the error names one and the remedy
    model = Holder(layers=nn.ModuleList(Holder(up=nn.LazyLinear(4), down=nn.Linear(4, 4)) for _ in range(2)))
    with pytest.raises(UsageError) as caught:
        plan_regions(model)
    assert str(caught.value) == (
        "'layers.0.up.weight' has no size yet: Holder holds lazy modules, which learn their sizes at the first call. "
        "Call the model once, then try again"
    )


def test_model_without_storage() -> None:
    # GIVEN a model on the meta device WHEN it is planned THEN it is planned like any other
    with torch.device("meta"):
        model = Holder(layers=nn.ModuleList(blocks(3)))
    assert found(plan_regions(model)) == {"layers": ("Block", ("0", "1", "2"), 1)}


def test_a_block_left_out_by_hand_runs_eager() -> None:
    # GIVEN two of four blocks chosen WHEN planned THEN the others are no part of the rest that pays
    model = nn.Sequential(nn.ModuleList(Expert() for _ in range(4)))
    decisions = {part.path: part.decision for part in plan_regions(model, regions=["0.0", "0.2"]).rest}
    assert decisions == {"0.1": "eager", "0.3": "eager"}
    # AND all of the rest is compiled where that is asked for
    decisions = {part.path: part.decision for part in plan_regions(model, regions=["0.0", "0.2"], rest="compile").rest}
    assert decisions == {"0.1": "compile", "0.3": "compile"}
