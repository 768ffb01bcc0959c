"""Relevance beside autoLRP, with numbers stored by make_autolrp.py."""

import json
from pathlib import Path

import pytest
import torch
from oracles import tiny_models
from oracles.test_lxt_and_zennit import through

import whyformer as why
from whyformer._engine.relevance.recipes import make_recipe

STORED = json.loads(Path(__file__).with_name("autolrp.json").read_text())["said"]


@pytest.mark.parametrize("name", [name for name in STORED if " " in name])
def test_relevance_is_that_of_autolrp(name):
    """Down to the pixels of three images, each for its own output, to 1e-9 of the largest."""
    rule, _, amount = name.partition(" ")
    rules = make_recipe(rule, **{rule: float(amount)})
    found, _ = through(tiny_models.stack_without_biases(), tiny_models.picture(), rules, targets=[0, 1, 2])
    wanted = torch.tensor(STORED[name], dtype=torch.float64)
    assert (found - wanted).abs().max() <= 1e-9 * wanted.abs().max()


def test_attnlrp_of_a_llama_goes_with_that_of_autolrp():
    """They are not equal: autoLRP divides the product in a gated MLP by magnitudes, AttnLRP halves it (Eq. 15)."""
    stored = STORED["llama"]
    model = why.open(tiny_models.llama())
    found = why.explain(model, {"input_ids": torch.tensor(tiny_models.IDS)}, "attnlrp")
    assert found.targets[0].index == stored["target"]
    together = torch.stack([found.scores[0].double(), torch.tensor(stored["word_relevance"], dtype=torch.float64)])
    assert float(torch.corrcoef(together)[0, 1]) > 0.9
