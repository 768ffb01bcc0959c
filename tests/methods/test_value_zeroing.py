"""Value zeroing: what changes in a layer when a token's value is taken away there."""

import copy

import pytest
import torch
from conftest import animal
from torch.testing import assert_close

import whyformer as why
from whyformer.methods.value_zeroing import cosine_distance


def test_cosine_distance_by_hand():
    a = torch.tensor([[1.0, 0.0], [1.0, 0.0], [2.0, 2.0]], dtype=torch.double)
    b = torch.tensor([[0.0, 3.0], [-1.0, 0.0], [5.0, 5.0]], dtype=torch.double)
    assert_close(cosine_distance(a, b), torch.tensor([1.0, 2.0, 0.0], dtype=torch.double))


def test_small_changes_keep_their_digits():
    """1 - cos of an angle of 1e-7 is 5e-15: the plain formula has one digit of it."""
    b = torch.tensor([[1.0, 1e-7]], dtype=torch.double)
    assert_close(cosine_distance(torch.tensor([[1.0, 0.0]], dtype=torch.double), b), torch.tensor([5e-15]).double())


class Zeroing:
    """Zeroes the values of a token where they are computed, in the model's own code."""

    def __init__(self, token):
        self.token = token

    def __call__(self, module, args, value):
        value = value.clone()
        value[:, self.token] = 0
        return value


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_agrees_with_hooks_on_the_model_itself(name):
    """Every token and layer one by one, by a hook on the layer's own value projection."""
    it = animal(name)
    module = copy.deepcopy(it.module)
    layers = module.vit.layers if name == "vit" else module.bert.encoder.layer
    inputs = it.alone(0)
    states, kept = [], []
    for layer in layers:
        layer.register_forward_hook(lambda _, __, out: kept.append(out[0] if isinstance(out, tuple) else out))
    with torch.no_grad():
        module(**inputs)
        states = [state[0] for state in kept]
        row = torch.zeros(states[0].size(0), dtype=torch.double)
        row[0] = 1
        for number, layer in reversed(list(enumerate(layers))):
            value = next(part for path, part in layer.named_modules() if path.endswith(("v_proj", "value")))
            matrix = torch.zeros(len(row), len(row), dtype=torch.double)
            for token in range(len(row)):
                kept.clear()
                hook = value.register_forward_hook(Zeroing(token))
                module(**inputs)
                hook.remove()
                moved = kept[number][0]
                matrix[:, token] = 1 - torch.nn.functional.cosine_similarity(moved, states[number], dim=-1)
            row = row @ (matrix / matrix.sum(-1, keepdim=True))
    found = why.explain(why.open(it.module), inputs, "value_zeroing")
    wanted = row[1:] if name == "vit" else row
    assert_close(found.scores[0], wanted, atol=1e-9, rtol=1e-6)


def test_is_a_distribution():
    it = animal("bert")
    e = why.explain(why.open(it.module), it.inputs, "value_zeroing")
    assert_close(e.scores.sum(-1), torch.ones(3, dtype=torch.double))


def test_says_what_it_spends():
    """Three layers; 9, 6 and 4 tokens; the states as they are; and the run that is explained."""
    it = animal("bert")
    e = why.explain(why.open(it.module), it.inputs, "value_zeroing")
    assert e.spent["forward"] == pytest.approx(1 + 1 + 3 * (9 + 6 + 4) / 3)


def test_a_model_without_a_head():
    it = animal("vit")
    body = it.module.vit
    whole = why.explain(why.open(it.module), it.inputs, "value_zeroing")
    assert_close(why.explain(why.open(body), it.inputs, "value_zeroing").scores, whole.scores)
