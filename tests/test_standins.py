"""What is sent to another process of a block and its arguments, and what is made of it there."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("cloudpickle")

from nbcompile import standins
from tests import models


def _twin(value: Any) -> Any:
    return standins.loads(standins.dumps(value))


def test_a_tensor_arrives_as_one_of_its_kind_without_its_values() -> None:
    sent = torch.full((2, 3, 4), 7.0, dtype=torch.bfloat16).transpose(0, 1)
    got = _twin(sent)
    assert (got.shape, got.stride(), got.dtype) == (sent.shape, sent.stride(), sent.dtype)
    assert not got.any()
    assert b"\x40\xe0" * 4 not in standins.dumps(sent)  # 7.0 in bfloat16, several in a row


def test_the_same_tensor_twice_is_the_same_there() -> None:
    tensor = torch.ones(3)
    first, second, other = _twin((tensor, tensor, torch.ones(3)))
    assert first is second
    assert other is not first


@pytest.mark.parametrize(
    ("tensor", "leaf"), [(torch.ones(2, requires_grad=True), True), (torch.ones(2, requires_grad=True) * 2, False)]
)
def test_gradients_are_asked_for_as_they_were(tensor: torch.Tensor, leaf: bool) -> None:
    got = _twin(tensor)
    assert got.requires_grad
    assert got.is_leaf is leaf


def test_parameters_stay_parameters_and_tied_ones_tied() -> None:
    layer = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    layer[1].weight = layer[0].weight
    layer[0].weight.requires_grad_(False)
    got = _twin(layer)
    assert isinstance(got[0].weight, nn.Parameter)
    assert got[1].weight is got[0].weight
    assert not got[0].weight.requires_grad
    assert got[0].bias.requires_grad


def test_a_position_is_sent_by_value() -> None:
    assert _twin(torch.tensor([31])).item() == 31
    assert _twin(torch.tensor([1.5])).item() == 0  # of the user's data nothing


def test_a_class_of_a_notebook_is_sent_by_value() -> None:
    space: dict[str, Any] = {"__name__": "__main__", "nn": nn}
    exec("class Mine(nn.Linear):\n    def forward(self, x):\n        return super().forward(x) + 1\n", space)
    data = standins.dumps(space["Mine"](2, 2))
    assert b"__main__" in data
    assert standins.loads(data)(torch.ones(1, 2)).tolist() == [[1.0, 1.0]]


def test_what_cannot_be_sent_is_told() -> None:
    with pytest.raises(standins.CannotSendError, match="sparse"):
        standins.dumps(torch.ones(2, 2).to_sparse())
    with pytest.raises(standins.CannotSendError, match="cannot be sent to another process"):
        standins.dumps(threading.Lock())


def test_a_view_of_a_kv_cache_is_sent_without_the_other_layers() -> None:
    from transformers import DynamicCache

    from nbcompile.integrations import transformers

    cache = DynamicCache()
    for index in range(3):
        cache.update(torch.ones(1, 2, 5 + index, 4), torch.ones(1, 2, 5 + index, 4), index)
    found = transformers.view(cache, 1, 3)
    assert found is not None
    got = _twin(found[0])
    assert got.layers[0] is got.layers[2]
    assert got.layers[0].keys.shape == (1, 2, 6, 4)
    assert "_nbcompile_origin" not in vars(got)


def test_calls_that_are_alike_have_one_signature() -> None:
    def of(*args: Any, **kwargs: Any) -> object:
        return standins.signature(args, kwargs)

    x = torch.ones(2, 3)
    assert of(x, mask=None) == of(torch.zeros(2, 3), mask=None)
    for other in (torch.ones(2, 4), torch.ones(3, 2).T, x.double(), torch.ones(2, 3, requires_grad=True)):
        assert of(x, mask=None) != of(other, mask=None)
    assert of(x, mask=None) != of(x, mask=True) != of(x, mask=1)


def test_the_blocks_of_a_decoder_get_calls_with_one_signature() -> None:
    from nbcompile.integrations import transformers

    model, inputs = models.llama()
    seen = []
    for index, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(
            lambda _, args, kwargs, index=index: seen.append(_signature(transformers, index, args, kwargs)),
            with_kwargs=True,
        )
    with torch.no_grad():
        model(**inputs)
    assert len(seen) == 4
    assert len(set(seen)) == 1


def _signature(transformers: Any, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    ((place, cache),) = transformers.find_caches(args, kwargs)
    found = transformers.view(cache, index, 4)
    assert found is not None
    return standins.signature(args, {**kwargs, place: found[0]})
