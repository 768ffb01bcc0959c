"""Weights that are there only while their layer runs: relevance and gradient passes load them one at a time."""

import gc

import pytest
import torch
from engine.offloaded_model import offload
from transformers import LlamaConfig, LlamaForCausalLM

import whyformer as why

IDS = torch.randint(1, 100, (1, 160), generator=torch.Generator().manual_seed(0))
RUNS = {"plan": {"plan": True}, "plan, blocks again": {"plan": True, "recompute": True}, "full": {"plan": False}}


def build() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 12, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=128)).eval()


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("method", ["attnlrp", "gradient_x_input"])
def test_one_layer_of_an_offloaded_model_is_there_at_a_time(method, run):
    placed = build()
    loads = offload(placed)
    with why.engine(**RUNS[run]):
        theirs = why.explain(build(), {"input_ids": IDS}, method)
        first = why.explain(placed, {"input_ids": IDS}, method)
        share_of_first = loads.share
        loads.start_again()
        again = why.explain(placed, {"input_ids": IDS}, method)
    assert torch.equal(first.scores, theirs.scores) and torch.equal(again.scores, theirs.scores)
    # One block of twelve holds 8 % of the weights, the largest layer 2 %.
    most = 0.1 if run == "plan, blocks again" else 0.04
    assert share_of_first <= most and loads.share <= most
    assert loads.count <= 4 * sum(1 for _ in placed.parameters())


@pytest.mark.parametrize("run", RUNS)
def test_no_loaded_weight_outlives_an_explanation(run):
    placed = build()
    loads = offload(placed)
    with why.engine(**RUNS[run]):
        why.explain(placed, {"input_ids": IDS}, "attnlrp")
    gc.collect()
    assert all(one.expired() for one, _ in loads.alive)


@pytest.mark.parametrize("method", ["lrp_gamma", "transformer_attribution"])
def test_rules_that_read_the_weights_load_them_again(method):
    placed = build()
    loads = offload(placed)
    with why.engine(replay=False):
        ours, theirs = (why.explain(model, {"input_ids": IDS}, method) for model in (placed, build()))
    assert torch.equal(ours.scores, theirs.scores)
    assert loads.share <= 0.04
