"""Bi-attribution: perception by heads or tokens, feedback of the answer to the last attention."""

import pytest
import torch
from conftest import animal
from torch.testing import assert_close

import whyformer as why
from whyformer._engine.record import record
from whyformer.errors import MethodError
from whyformer.methods.bi_attribution import average_attention_grad, bi_attribution, weigh_heads


class Line:
    """A probe whose last attention has the gradient c + d a at the point a of the way from nothing to the input."""

    batch = 1

    def __init__(self, constant, slope, is_image=False):
        self.constant, self.slope, self.is_image = constant, slope, is_image
        self.leaf = torch.ones(1, 2, 1, dtype=torch.double)
        self.asked = []

    def compute_last_attention_grad(self, leaf, of):
        assert self.is_image
        return self.answer(float(leaf[0, 0, 0]))

    def compute_last_attention_grad_scaled(self, scale, of):
        assert not self.is_image
        return self.answer(scale)

    def answer(self, at):
        self.asked.append(at)
        return self.constant + self.slope * at


@pytest.mark.parametrize("is_image", [False, True])
def test_the_feedback_is_taken_at_even_steps_with_both_ends(is_image):
    probe = Line(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2), is_image)
    assert_close(average_attention_grad(probe, 5), torch.full((1, 1, 2, 2), 0.5))
    assert probe.asked == [0, 0.25, 0.5, 0.75, 1]


def test_heads_by_hand():
    """A = [[1, 0], [1, 0]] for both heads; gradients of ones, and of threes: |A^T G| is [[2, 2], [0, 0]] and three
    times that, so the weights are 1/4 and 3/4."""
    attention = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).expand(1, 2, 2, 2)
    grad = torch.stack([torch.ones(2, 2), 3 * torch.ones(2, 2)])[None]
    other = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert_close(weigh_heads(attention, grad, mask), attention[:, 0])
    mixed = torch.stack([attention[0, 0], other])[None]
    assert_close(weigh_heads(mixed, grad, mask), (0.25 * attention[:, 0] + 0.75 * other))


def test_heads_without_any_gradient_weigh_the_same():
    attention = torch.rand(1, 3, 4, 4).softmax(-1)
    found = weigh_heads(attention, torch.zeros_like(attention), torch.ones(1, 4, dtype=torch.bool))
    assert_close(found, attention.mean(1))


@pytest.mark.parametrize("perception", ["head", "token"])
@pytest.mark.parametrize("start", [0, 1, -1])
def test_agrees_with_whole_matrices(random_capture, perception, start):
    capture = random_capture(layers=3)
    back = torch.randn(1, 2, 4, 4, dtype=torch.double, generator=torch.Generator().manual_seed(5))
    sites = ("attention", "attention_grad", "projected", "residual", "readout", "mask")
    probe = Line(back, torch.zeros_like(back))
    found = bi_attribution(*(capture[site] for site in sites), probe, perception=perception, steps=2, start=start)
    product = torch.eye(4, dtype=torch.double)
    for layer in range(start % 3, 3):
        heads, grads = capture["attention"][layer, 0], capture["attention_grad"][layer, 0]
        if perception == "head":
            weight = torch.stack([(a.T @ g).abs().mean() for a, g in zip(heads, grads, strict=True)])
            mixing = sum(w * a for w, a in zip(weight / weight.sum(), heads, strict=True))
        else:
            stretch = capture["projected"][layer, 0].sum(0).norm(dim=-1) / capture["residual"][layer, 0].norm(dim=-1)
            mixing = heads.mean(0) @ torch.diag(stretch)
        product = product + mixing @ product
    assert_close(found[0], product[0].abs() * back[0].clamp(min=0).mean(0)[0])


def test_the_gradient_of_the_last_attention_in_a_model():
    """Against the gradient of the capture, at the input itself."""
    it = animal("vit")
    model = why.open(it.module)
    held = record(model, model.encode(it.inputs), target=[0, 1, 2], keep={"probe", "attention_grad"})
    probe = held["probe"]
    assert_close(probe.compute_last_attention_grad(probe.leaf, torch.arange(3)), held["attention_grad"][-1])
    assert probe.spent["backward"] == 3


@pytest.mark.parametrize("name", ["bert", "gpt2", "encoder", "llama"])
def test_the_path_of_a_text_scales_what_enters_the_first_block(name):
    """Scaled by 1 it is the model itself. Scaled by 0 the words do not matter, so two texts of a length agree."""
    it = animal(name)
    model = why.open(it.module)
    held = record(model, model.encode(it.inputs), target=[0, 1, 2], keep={"probe", "attention_grad", "mask"})
    probe, examples = held["probe"], torch.arange(3)
    tolerance = {"atol": 1e-5, "rtol": 1e-3} if name == "llama" else {}  # its norms run in float32
    assert_close(probe.compute_last_attention_grad_scaled(1.0, examples), held["attention_grad"][-1], **tolerance)
    alone = it.alone(0)
    other = {**alone, "input_ids": alone["input_ids"].flip(-1)} if isinstance(alone, dict) else alone.flip(-1)
    grads = [
        record(model, model.encode(inputs), target=[0], keep={"probe"})["probe"].compute_last_attention_grad_scaled(
            0.0, torch.arange(1)
        )
        for inputs in (alone, other)
    ]
    assert_close(*grads)


PRESETS = [
    ({"preset": "released"}, False, {"start": 7, "own": "zero"}),
    ({"preset": "released", "perception": "token"}, False, {"start": 4, "own": "zero"}),
    ({"preset": "released"}, True, {"start": 3}),
    ({"preset": "released", "perception": "token"}, True, {"start": 5}),
    ({"preset": "released", "start": 1, "own": "min"}, False, {"start": 1, "own": "min"}),
    ({}, False, {"start": 2}),  # a quarter of the depth is left out
    ({}, True, {"start": 2}),
]


@pytest.mark.parametrize(("asked", "is_image", "meant"), PRESETS)
def test_presets_by_hand(random_capture, asked, is_image, meant):
    """Of 8 layers."""
    capture = random_capture(layers=8)
    sites = ("attention", "attention_grad", "projected", "residual", "readout", "mask")
    given = [capture[site] for site in sites]
    back = torch.ones(1, 2, 4, 4, dtype=torch.double)
    probe = Line(back, torch.zeros_like(back), is_image)
    meant = {"perception": asked.get("perception", "head"), "own": "keep"} | meant
    assert_close(bi_attribution(*given, probe, **asked), bi_attribution(*given, probe, **meant))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"perception": "layer"}, "perception must be one of .*; got 'layer'"),
        ({"steps": 1}, "steps must be a whole number >= .*, got 1"),
        ({"steps": 2.5}, "steps must be a whole number >= .*, got 2.5"),
        ({"start": 9}, "start must be between .*, got 9"),
    ],
)
def test_refuses_what_it_does_not_have(wrong, message):
    it = animal("vit")
    with pytest.raises(MethodError, match=message):
        why.explain(why.open(it.module), it.inputs, "bi_attribution", **wrong)


def test_what_it_spends():
    it = animal("bert")
    e = why.explain(why.open(it.module), it.inputs, "bi_attribution", steps=4)
    assert e.spent["backward"] == 1 + 4
    assert e.spent["forward"] >= 1 + 4
