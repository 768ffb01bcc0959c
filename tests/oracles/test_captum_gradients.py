"""Integrated gradients, gradient x input and saliency agree with captum, with numbers stored by make_*.py."""

import json
from pathlib import Path

import pytest
import torch
from oracles import small_models

import whyformer as why

SAID = json.loads(Path(__file__).with_name("captum_gradients.json").read_text())["scores"]
NAMES = ["integrated_gradients 4", "integrated_gradients 16", "gradient_x_input", "saliency"]


@pytest.mark.parametrize("kind", ["pictures", "words"])
@pytest.mark.parametrize("name", NAMES)
def test_captum_says_the_same(kind, name):
    module, inputs = getattr(small_models, kind)()
    method, _, steps = name.partition(" ")
    settings = {"steps": int(steps)} if steps else {}
    e = why.explain(why.open(module), inputs, method, target=small_models.TARGETS, **settings)
    found = (e.scores if e.pixels is None else e.pixels).double()
    said = torch.tensor(SAID[kind][name], dtype=torch.double)
    assert found.shape == said.shape
    tolerance = 1e-7 if steps else 1e-12  # captum keeps the weights of its points in float32
    assert (found - said).abs().max() <= tolerance * said.abs().max()


def test_all_that_is_stored_is_compared():
    assert all(sorted(methods) == sorted(NAMES) for methods in SAID.values())
