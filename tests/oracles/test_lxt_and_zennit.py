"""Relevance agrees with LXT and zennit, with numbers stored by make_*.py.

AttnLRP and CP-LRP against LXT on a Llama and a GPT-2; LRP-epsilon and LRP-gamma against zennit on a stack of layers.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from oracles import tiny_models

import whyformer as why
from whyformer._engine.record import record
from whyformer._engine.relevance import slopes
from whyformer._engine.relevance.node import Switch
from whyformer._engine.relevance.recipes import ATTNLRP, CP_LRP, make_recipe
from whyformer._engine.run.forward import label_inputs
from whyformer._engine.run.intercept import Intercept
from whyformer._model import EncodedBatch

LXT, ZENNIT = (json.loads(Path(__file__).with_name(name).read_text())["said"] for name in ("lxt.json", "zennit.json"))
# LXT's CP variant replaces activations that it does not hold constant by their secant; the paper's does not.
CP_OF_LXT = replace(CP_LRP, name="cp_lrp_of_lxt", rules={**CP_LRP.rules, "activation": slopes.pass_secant})


@pytest.mark.parametrize("model", ["llama", "gpt2"])
@pytest.mark.parametrize(("variant", "rules"), [("attnLRP", ATTNLRP), ("cp_LRP", CP_OF_LXT)], ids=["attnlrp", "cp_lrp"])
def test_relevance_is_that_of_lxt(model, variant, rules):
    """For the words at the embedding, to 1e-5 of the largest; both compute parts of a Llama in float32."""
    stored = LXT[f"{model} {variant}"]
    opened = why.open(getattr(tiny_models, model)())
    encoded = opened.encode({"input_ids": torch.tensor(tiny_models.IDS)})
    capture = record(opened, encoded, keep={"input", "input_relevance"}, recipes=[rules])
    target = capture.targets[0]
    assert target.index == stored["target"]
    assert target.score == pytest.approx(stored["logit"], rel=1e-6)
    leaf_relevance = capture.get("input_relevance", rules)[0]
    leaf = opened.module.get_input_embeddings()(torch.tensor(tiny_models.IDS))[0].detach()
    if model == "gpt2":  # relevance arrives at words plus positions
        positions = opened.module.transformer.wpe.weight[: len(leaf)].detach()
        leaf_relevance = leaf_relevance * leaf / (leaf + positions)
    wanted = torch.tensor(stored["word_relevance"], dtype=torch.float64)
    assert (leaf_relevance - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("name", [name for name in ZENNIT if " " in name])
def test_relevance_is_that_of_zennit(name):
    """Down to the pixels of three images, each for its own output, to 1e-9 of the largest."""
    rule, _, amount = name.partition(" ")
    rules = make_recipe(rule, **{rule: float(amount)})
    found, logits = through(tiny_models.stack(), tiny_models.picture(), rules, targets=[0, 1, 2])
    torch.testing.assert_close(logits, torch.tensor(ZENNIT["logits"], dtype=torch.float64))
    wanted = torch.tensor(ZENNIT[name], dtype=torch.float64)
    assert (found - wanted).abs().max() <= 1e-9 * wanted.abs().max()


def through(module, x, rules, targets):
    """Relevance of a stack without attention, which `record` would refuse; 1 at each target."""
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    switch = Switch()
    mode = Intercept(batch=len(x), originals={}, switch=switch, needs_gradient=True)
    encoded = EncodedBatch({"pixel_values": x}, "pixel_values", len(x), ())
    entered = label_inputs(encoded, mode, None)["pixel_values"]
    leaf = mode.leaf
    with mode:
        logits = module(entered)
    picked = logits[torch.arange(len(x)), targets]
    switch.recipe = rules
    (arrived,) = torch.autograd.grad(picked.sum(), leaf)
    if rules.sends == "slope":  # the logit was sent back, not 1
        arrived = arrived * leaf / picked.view(-1, 1, 1, 1)
    return arrived.detach(), logits.detach()
