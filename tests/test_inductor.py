"""The real compiler on real models: times by phase and by region, real weights, and the warm cache."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import nbcompile
from nbcompile.report import PHASES
from tests.blocks import Block, NumberedBlock, net, rows
from tests.models import minilm, smollm2

pytestmark = [pytest.mark.inductor, pytest.mark.slow]


@pytest.mark.alone
def test_phases_add_up_to_the_time_that_compiling_took() -> None:
    # GIVEN a process in which the compiler has been started, and a model whose two groups compile forward and backward
    torch.compile(lambda x: torch.sin(x) + 1)(torch.ones(8))
    model = nn.Sequential(net(3, Block), net(3, Wide)).train()
    nbcompile.compile_regions(model, regions=["0.layers", "1.layers"])

    def step() -> float:
        begin = time.perf_counter()
        model(rows().requires_grad_()).sum().backward()
        return time.perf_counter() - begin

    # WHEN it is called for the first time
    first, later = step(), step()
    # THEN the regions' times are what the first call took longer, and each is the sum of its phases
    report = nbcompile.report(model)
    spent = sum(group.compile_seconds for group in report.groups)
    assert spent == pytest.approx(first - later, rel=0.05)
    for group in report.groups:
        assert set(group.phases) <= set(PHASES)
        assert sum(group.phases.values()) == pytest.approx(group.compile_seconds, rel=1e-6)
        assert group.phases.get("other", 0.0) < 0.05 * group.compile_seconds
        # forward and backward alike belong to the region whose code they are
        for phase in ("dynamo", "aot_autograd", "inductor", "codegen", "kernels", "backward"):
            assert group.phases[phase] > 0, (group.path, phase)
    assert {event.region for event in report.timeline} == {"0.layers", "1.layers"}


class Wide(NumberedBlock):
    def work(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.nn.functional.gelu(self.fc(x)).cumsum(-1).sigmoid()
        return result


def test_a_comparison_is_cold_although_the_code_is_in_the_cache() -> None:
    # GIVEN a model whose code lies in the compiler's cache and in memory
    model = net(3).eval()
    with torch.no_grad():
        nbcompile.compile_regions(model)
        model(rows())
        # WHEN strategies are compared
        report = nbcompile.compare(model, lambda: model(rows()), ["eager", "regional"], rounds=1, calls=1)
        # THEN the cold start compiled C++ anew
        assert report.strategies["regional"].regions[0].phases["kernels"] > 0.2
        # and the model still runs what the user had compiled
        Block.ran_eager.clear()
        model(rows())
    assert not Block.ran_eager


def test_sentence_embeddings_of_minilm_keep_their_similarities() -> None:
    # GIVEN all-MiniLM-L6-v2 with its weights
    model, tokenizer = minilm()
    sentences = ["A man is eating food.", "Someone has a meal.", "The girl carries a baby.", "Prices rose again."]
    batch = tokenizer(sentences, padding=True, return_tensors="pt")

    def similarities() -> torch.Tensor:
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        mean = nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
        return mean @ mean.T

    expected = similarities()
    assert expected[0, 1] > 0.6 > expected[0, 3]  # it is the trained model
    # WHEN it is compiled
    nbcompile.compile_regions(model)
    counters.clear()
    # THEN the similarities are the same, by one graph for its six layers
    torch.testing.assert_close(similarities(), expected, atol=1e-5, rtol=1e-5)
    (group,) = nbcompile.report(model).groups
    assert (group.compiled, group.eager, group.graphs) == (6, 0, 1)
    assert counters["stats"]["unique_graphs"] == 1


def test_smollm2_says_the_same_compiled() -> None:
    # GIVEN SmolLM2-135M with its weights, and what it answers
    model, tokenizer = smollm2()
    chat = [{"role": "user", "content": "Name three primary colors."}]
    prompt: Any = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = torch.randint(0, 49152, (1, 128), generator=torch.Generator().manual_seed(0))

    def answer() -> str:
        tokens = model.generate(**prompt, max_new_tokens=16, do_sample=False)
        return str(tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))

    with torch.no_grad():
        logits, text = model(ids, use_cache=False).logits, answer()
        assert "blue" in text.lower()  # it is the trained model
        # WHEN it is compiled
        nbcompile.compile_regions(model)
        # THEN logits and words are the same
        difference = (model(ids, use_cache=False).logits - logits).abs().max()
        assert difference < 1e-3
        assert answer() == text
    # and all 30 blocks ran compiled: one graph for the forward, three for prefill and decoding
    (group,) = nbcompile.report(model).groups
    assert (group.instances, group.compiled, group.eager) == (30, 30, 0)
    assert group.graphs <= 4
