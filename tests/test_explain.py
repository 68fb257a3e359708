"""The compiler's words put into the user's. The guards are texts as the compiler writes them."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from nbcompile import explain
from nbcompile.explain import attribute_name, failure_line, guard, guarded_attributes, read, typed, variant_names
from nbcompile.regions import structure
from nbcompile.variants import Circumstances


class Attention(nn.Module):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.layer_idx = index
        self.proj = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x) * self.layer_idx


class Block(nn.Module):
    """A block as the compiler meets it: an attribute of an inner module is what sets it apart."""

    def __init__(self, index: int = 3, width: int = 4) -> None:
        super().__init__()
        self.attn = Attention(index)
        self.up = nn.Linear(width, width)
        self.scale: Any = 0.5
        self.table = {"a": [1, 2]}

    def forward(self, x: torch.Tensor, /, mask: Any = None, *more: Any, scale: float = 1.0) -> torch.Tensor:
        return self.attn(x) * scale * self.scale


# -- guards ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # the block's attributes
        ("L['block']._modules['attn'].layer_idx == 0", "attn.layer_idx == 0"),
        ("0/1: block._modules['attn'].layer_idx == 0", "attn.layer_idx == 0"),
        ("12/3_1: block.scale == 0.5", "scale == 0.5"),
        ("block._modules['a']._modules['b']._parameters['weight'].grad is None", "a.b.weight.grad is None"),
        ("block._modules['h'].sub_block.flag == True", "h.sub_block.flag == True"),
        ("block.sub_block.flag == True", "sub_block.flag == True"),
        ("block.block.flag == True", "block.flag == True"),
        # its arguments, by name
        (
            "tensor 'args[0]' size mismatch at index 1. expected 32, actual 33",
            "x changed its size in dimension 1 from 32 to 33",
        ),
        (
            "0/0: tensor 'L['args'][0]' size mismatch at index 0. expected 2, actual 5.",
            "x changed its size in dimension 0 from 2 to 5",
        ),
        (
            "tensor 'L['kwargs']['scale']' size mismatch at index 0. expected 2, actual 5",
            "scale changed its size in dimension 0 from 2 to 5",
        ),
        ("args[1] is None", "mask is None"),
        ("L['args'][1] is None", "mask is None"),
        ("args[2] is None", "argument 2 is None"),  # one of `*more`
        ("len(args[7]) == 2", "len(argument 7) == 2"),
        ("kwargs['scale'] == 2", "scale == 2"),
        ("tensor 'args[0]' dtype mismatch. expected Float", "tensor 'x' dtype mismatch. expected Float"),
        # the compiler's remarks
        ("block.scale == 0.5        # return x * self.scale  # model.py:12 in forward (HINT: ...)", "scale == 0.5"),
        ("  block.scale == 0.5\nUser stack trace:\n  File ...", "scale == 0.5"),
        ("", "no reason given"),
        ("   \n", "no reason given"),
        ("___check_global_state()", "___check_global_state()"),
    ],
)
def test_guard_in_words(text: str, words: str) -> None:
    # GIVEN a guard as the compiler writes it WHEN it is told THEN with the names that a user knows
    assert guard(text, Block().forward) == words


def test_guard_without_a_signature() -> None:
    # GIVEN no forward, or one whose arguments cannot be known WHEN a guard is told THEN arguments have their number
    assert guard("args[1] is None") == "argument 1 is None"
    assert guard("args[0] is None", dict) == "argument 0 is None"


def test_long_guard_is_cut() -> None:
    # GIVEN a guard of a thousand characters WHEN it is told THEN it is cut
    assert guard("x" * 1000) == "x" * 300


def test_guards_of_this_version_of_torch() -> None:
    # GIVEN a block that is compiled again, since an attribute, a size and an argument differ
    def region(block: Any, args: Any, kwargs: Any) -> Any:
        return block(*args, **kwargs)

    small, large, block = torch.ones(2, 4), torch.ones(5, 4), Block(4)
    compiled = torch.compile(region, backend="eager", dynamic=False)
    torch._dynamo.utils.clear_compilation_metrics()
    compiled(Block(3), (small,), {"scale": 1.0})
    compiled(block, (small,), {"scale": 1.0})
    compiled(block, (large,), {"scale": 1.0})
    compiled(block, (large,), {"scale": 2.0})
    # WHEN the compiler's reasons are told THEN they are in the user's words
    reasons = [entry.recompile_reason for entry in torch._dynamo.utils.get_compilation_metrics()]
    assert [guard(reason, block.forward) for reason in reasons if reason] == [
        "attn.layer_idx == 3",
        "x changed its size in dimension 0 from 2 to 5",
        "scale == 1.0",
    ]


# -- sources -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("block._modules['attn'].layer_idx", 3),
        ("block.attn.layer_idx", 3),
        ("block.scale", 0.5),
        ("block.table['a'][1]", 2),
        ("block.training", True),
    ],
)
def test_reading_a_source(source: str, value: object) -> None:
    # GIVEN a source that the compiler relied on WHEN it is read from a block THEN it is the block's value
    assert read(Block(), source) == value


def test_reading_the_block_itself() -> None:
    # GIVEN the shortest source WHEN it is read THEN it is the block
    block = Block()
    assert read(block, "block") is block


@pytest.mark.parametrize(
    "source",
    [
        "block.missing",
        "block._modules['missing'].layer_idx",
        "block.table['a'][9]",
        "block.scale['a']",
        "block.scale.real.missing",
    ],
)
def test_reading_what_is_not_there(source: str) -> None:
    # GIVEN a source that this block does not have WHEN it is read THEN there is a marker that equals no value
    value = read(Block(), source)
    assert value is explain._MISSING
    assert value not in (None, 0, "", False)


CODE = [
    "__import__('pathlib').Path('canary').touch()",
    "block.__class__.__call__(1)",
    "block.table.pop('a')",
    "block.table[open('canary', 'w')]",
    "block.table[block.scale]",
    "(lambda: block)()",
    "block if open('canary', 'w') else 0",
    "[block for _ in (open('canary', 'w'),)]",
    "block + open('canary', 'w')",
    "other.attn",
    "import os",
    "block.",
    "",
    "'block'",
]


@pytest.mark.parametrize("source", CODE)
def test_source_that_holds_code_is_refused(source: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a source that is more than attributes and keys WHEN it is read THEN nothing of it is run
    monkeypatch.chdir(tmp_path)
    block = Block()
    assert read(block, source) is explain._MISSING
    assert list(tmp_path.iterdir()) == []
    assert block.table == {"a": [1, 2]}


def test_values_are_told_apart_as_the_compiler_does() -> None:
    # GIVEN values that Python takes for equal WHEN they are compared as the compiler does THEN their types count
    assert len({typed(True), typed(1), typed(1.0)}) == 3
    assert typed(1) == typed(1)
    assert typed("a") != typed("b")


def test_values_without_a_hash_are_compared_by_identity() -> None:
    # GIVEN two equal lists WHEN they are compared THEN each equals itself alone
    one, other = [1], [1]
    assert typed(one) == typed(one) != typed(other)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("block._modules['attn'].layer_idx", "attn.layer_idx"),
        ("block._modules['h']._modules['0']._parameters['weight']", "h.0.weight"),
        ("block._buffers['mask']", "mask"),
        ("block.scale", "scale"),
        ("block.table['a'][1]", "table['a'][1]"),
        ("block", "block"),
    ],
)
def test_source_as_a_user_would_write_it(source: str, name: str) -> None:
    # GIVEN a source WHEN it is shown THEN as the path of an attribute
    assert attribute_name(source) == name


# -- what a compile relied on ------------------------------------------------------------------------------------------


@dataclass
class Entry:
    """What the compiler hands to a ``guard_filter_fn``, as far as it is read."""

    name: str
    value: Any = 3
    guard_type: str = "CONSTANT_MATCH"
    has_value: bool = True


@pytest.mark.parametrize("value", [3, 0.5, True, "full", None])
@pytest.mark.parametrize("kind", ["CONSTANT_MATCH", "EQUALS_MATCH"])
def test_plain_value_is_noted(value: Any, kind: str) -> None:
    # GIVEN a guard on a plain value of the block WHEN guards are read THEN source and value are noted
    entry = Entry("L['block']._modules['attn'].layer_idx", value, kind)
    assert list(guarded_attributes([entry])) == [("block._modules['attn'].layer_idx", value)]


@pytest.mark.parametrize(
    "entry",
    [
        Entry("L['args'][0]"),
        Entry("L['block_size']"),
        Entry("G['block'].x"),
        Entry("block.weights", value=[1]),
        Entry("block.scale", guard_type="TYPE_MATCH"),
        Entry("block.scale", has_value=False),
        Entry("len(block.table)"),
        Entry("block.table.keys()[0]"),
        Entry(""),
    ],
    ids=str,
)
def test_any_other_guard_is_passed_over(entry: Entry) -> None:
    # GIVEN a guard on something else WHEN guards are read THEN nothing is noted
    assert list(guarded_attributes([entry])) == []


def test_guards_as_this_version_of_torch_hands_them_over() -> None:
    # GIVEN a block whose compiled code relies on two numbers WHEN the compiler hands its guards over
    noted: list[tuple[str, object]] = []

    def note(entries: Any) -> list[bool]:
        noted.extend(guarded_attributes(entries))
        return [True] * len(entries)

    block = Block()
    torch.compile(lambda block, x: block(x), backend="eager", options={"guard_filter_fn": note})(
        block, torch.ones(2, 4)
    )
    # THEN both are noted, with their values, and can be read from another block
    assert {attribute_name(source): value for source, value in noted} == {"attn.layer_idx": 3, "scale": 0.5}
    assert {read(Block(7), source) for source, _ in noted if "layer_idx" in source} == {7}


# -- failures ----------------------------------------------------------------------------------------------------------


def caused(error: BaseException, cause: BaseException, *, explicit: bool = True) -> BaseException:
    if explicit:
        error.__cause__ = cause
    else:
        error.__context__ = cause
    return error


def test_whole_message_of_a_failure() -> None:
    # GIVEN an error of several lines WHEN it is told in full THEN it begins with its type
    assert explain.failure(ValueError("one\ntwo")) == "ValueError: one\ntwo"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "ValueError: one"),
        (ValueError("\n\n  one"), "ValueError:"),
        (ValueError(), "ValueError:"),
        (KeyError("x" * 1000), "KeyError: '" + "x" * 289),
        (OSError(errno.ENOENT, "No such file", "/x"), "FileNotFoundError: [Errno 2] No such file: '/x'"),
    ],
)
def test_failure_of_unknown_cause(error: BaseException, line: str) -> None:
    # GIVEN an error of no known cause WHEN it is told in a line THEN it is the message's first
    assert failure_line(error) == line


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (RuntimeError("InvalidCxxCompiler: none"), ["no working C++ compiler was found", "Install g++", "'aot_eager'"]),
        (RuntimeError("No working C++ compiler found in g++"), ["no working C++ compiler was found", "Install g++"]),
        (
            PermissionError(errno.EACCES, "Permission denied", "/cache/x"),
            [
                "the compiler cannot use its cache folder: PermissionError: ",
                "'/cache/x'",
                "set TORCHINDUCTOR_CACHE_DIR",
            ],
        ),
        (
            OSError(errno.EROFS, "Read-only file system", "/cache"),
            ["the compiler cannot use its cache folder: OSError: ", "'/cache'", "set TORCHINDUCTOR_CACHE_DIR"],
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/x"),
            ["the disk of the compiler's cache is full", "Free some space", "TORCHINDUCTOR_CACHE_DIR"],
        ),
    ],
    ids=["compiler", "compiler text", "permission", "read-only", "full"],
)
def test_failure_of_a_known_cause(
    cause: BaseException, words: list[str], explicit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an error with a known cause below it WHEN it is told in a line THEN as the cause, with the remedy
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/cache")
    between = caused(ValueError("between"), cause, explicit=explicit)
    line = failure_line(caused(RuntimeError("backend failed"), between, explicit=explicit))
    assert [word for word in words if word not in line] == []
    assert line.startswith(words[0])


def test_file_elsewhere_is_not_blamed_on_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a file of the model's own that cannot be read WHEN the failure is told THEN it is told as it is
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/cache")
    cause = PermissionError(errno.EACCES, "Permission denied", "/data/x")
    assert failure_line(caused(RuntimeError("backend failed"), cause)) == "RuntimeError: backend failed"


# -- names of variants -------------------------------------------------------------------------------------------------

EVALUATION = Circumstances(False, "gradients off", "", ())


@dataclass
class Variant:
    """What is read of a variant."""

    structure: tuple[object, ...] = ()
    circumstances: Circumstances = EVALUATION
    guarded: dict[str, set[tuple[type, object]]] = field(default_factory=dict)


def seen(*values: object, source: str = "block._modules['attn'].kind") -> dict[str, set[tuple[type, object]]]:
    return {source: {typed(value) for value in values}}


class WithBias(Block):
    def __init__(self) -> None:
        super().__init__()
        self.attn.bias = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4))


class WithOther(Block):
    """A block whose inner module is of another class."""

    def __init__(self) -> None:
        super().__init__()
        self.attn.proj = nn.Bilinear(4, 4, 4)  # type: ignore[assignment]


def shape(block: nn.Module, *, whose: type = Block) -> tuple[object, ...]:
    block.__class__ = whose  # inner modules alone are to differ
    return structure(block, by_identity=True)


@pytest.mark.parametrize(
    ("variants", "names"),
    [
        ([Variant()], ["all blocks"]),
        ([Variant(guarded=seen(3))], ["all blocks"]),
        # what a guarded attribute holds
        (
            [Variant(guarded=seen("sliding")), Variant(guarded=seen("full"))],
            ["attn.kind: sliding", "attn.kind: full"],
        ),
        ([Variant(guarded=seen(2, 1)), Variant(guarded=seen(0))], ["attn.kind: 1 or 2", "attn.kind: 0"]),
        (
            [Variant(guarded=seen(1)), Variant(guarded=seen(2)), Variant()],
            ["attn.kind: 1", "attn.kind: 2", "other blocks"],
        ),
        ([Variant(guarded=seen(1)), Variant(guarded=seen(1))], ["other blocks", "other blocks"]),
        ([Variant(guarded=seen(1)), Variant()], ["other blocks", "other blocks"]),
        # the circumstances of a call
        (
            [Variant(circumstances=EVALUATION._replace(training=True)), Variant(circumstances=EVALUATION)],
            ["training", "evaluation"],
        ),
        (
            [Variant(circumstances=EVALUATION), Variant(circumstances=Circumstances(False, "gradients on", "", ()))],
            ["gradients off", "gradients on"],
        ),
        (
            [Variant(circumstances=EVALUATION._replace(cache="DynamicLayer")), Variant(circumstances=EVALUATION)],
            ["DynamicLayer", "no cache"],
        ),
        (
            [
                Variant(circumstances=EVALUATION._replace(absent=("bias", "mask"))),
                Variant(circumstances=EVALUATION._replace(absent=("mask",))),
            ],
            ["without bias", "with bias"],
        ),
        ([Variant(), Variant(circumstances=EVALUATION._replace(hooks=(7,)))], ["not hooked", "hooked"]),
        # the blocks themselves
        (
            [Variant(shape(WithBias())), Variant(shape(Block()))],
            ["with attn.bias", "without"],
        ),
        ([Variant(shape(WithOther())), Variant(shape(Block()))], ["attn.proj: Bilinear", "attn.proj: Linear"]),
        (
            [Variant(shape(nn.Linear(4, 4), whose=nn.Linear)), Variant(shape(nn.Linear(8, 4), whose=nn.Linear))],
            ["first tensor [4, 4]", "first tensor [4, 8]"],
        ),
        # several at once
        (
            [
                Variant(circumstances=Circumstances(True, "a", "", ()), guarded=seen(1)),
                Variant(circumstances=Circumstances(False, "b", "", ()), guarded=seen(2)),
            ],
            ["attn.kind: 1, training, a", "attn.kind: 2, evaluation, b"],
        ),
    ],
)
def test_variants_are_named_by_what_sets_them_apart(variants: list[Variant], names: list[str]) -> None:
    # GIVEN the variants of a group WHEN they are named THEN by that in which they differ
    assert variant_names(variants) == names


def test_names_do_not_grow_without_end() -> None:
    # GIVEN variants that differ in ten attributes WHEN they are named THEN each name tells four
    sources = [f"block.a{i}" for i in range(10)]
    variants = [Variant(guarded={source: {typed(value)} for source in sources}) for value in (1, 2)]
    assert variant_names(variants) == ["a0: 1, a1: 1, a2: 1, a3: 1", "a0: 2, a1: 2, a2: 2, a3: 2"]
