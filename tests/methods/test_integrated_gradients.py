"""Integrated gradients."""

import pytest
import torch
from conftest import animal
from torch.testing import assert_close

import whyformer as why
from whyformer._engine.probe.probe import Answers
from whyformer.errors import MethodError
from whyformer.methods import integrated_gradients
from whyformer.methods._registry import METHODS
from whyformer.methods.integrated_gradients import gauss_legendre


class Formula:
    """A probe whose model is a formula of the leaf; the baseline is 0 or 1."""

    def __init__(self, leaf, score):
        self.leaf, self.score, self.batch = leaf, score, len(leaf)
        self.asked = torch.zeros(len(leaf), dtype=torch.long)

    def baseline(self, kind, *, seed=0):
        return torch.full_like(self.leaf, {"zero": 0.0, "mean": 1.0}[kind])

    def run_at_leaf(self, leaf, of, *, gradient=True):
        leaf = leaf.clone().requires_grad_()
        score = self.score(leaf)
        answers = Answers(score.detach(), score.detach(), score.detach()[:, None])
        if not gradient:
            return answers, None
        self.asked += torch.bincount(of, minlength=self.batch)
        return answers, torch.autograd.grad(score.sum(), leaf)[0]


def formula(score, *rows):
    return Formula(torch.tensor(rows, dtype=torch.double).unsqueeze(-1), lambda x: score(x[..., 0]))


def test_a_square_by_hand():
    """y = a^2 + b: from 0 to (3, 5), a gives 9 and b gives 5; from 1, 8 and 4. Two points are exact."""
    probe = formula(lambda x: x[:, 0] ** 2 + x[:, 1], [3.0, 5.0])
    assert_close(integrated_gradients(probe, steps=2).values, torch.tensor([[9.0, 5.0]], dtype=torch.double))
    from_one = integrated_gradients(probe, steps=2, baseline="mean")
    assert_close(from_one.values, torch.tensor([[8.0, 4.0]], dtype=torch.double))
    assert_close(from_one.details["difference"], torch.tensor([12.0], dtype=torch.double))


def test_a_product_is_shared_by_hand():
    """y = a b from 0 to (2, 3): each gives half of 6."""
    found = integrated_gradients(formula(lambda x: x[:, 0] * x[:, 1], [2.0, 3.0]), steps=1)
    assert_close(found.values, torch.tensor([[3.0, 3.0]], dtype=torch.double))
    assert found.details["completeness_error"].item() < 1e-12


def test_the_points_integrate_polynomials_of_twice_their_number():
    for points in (1, 2, 5, 16):
        place, weight = gauss_legendre(points)
        for power in range(2 * points):
            assert_close((weight * place**power).sum().item(), 1 / (power + 1))


def test_written_slowly_as_a_sum_of_many_steps():
    """A Riemann sum of 20,000 midpoints of a bent function of three tokens with two channels."""
    generator = torch.Generator().manual_seed(0)
    leaf = torch.randn(1, 3, 2, dtype=torch.double, generator=generator)
    w = torch.randn(3, 2, dtype=torch.double, generator=generator)

    def score(x):
        return ((x * w).sum((1, 2)) + x[:, 0, 0] * x[:, 2, 1]).tanh()

    alpha = ((torch.arange(20_000, dtype=torch.double) + 0.5) / 20_000).view(-1, 1, 1)
    points = (alpha * leaf).requires_grad_()
    (gradient,) = torch.autograd.grad(score(points).sum(), points)
    slow = (leaf[0] * gradient.mean(0)).sum(-1)
    assert_close(integrated_gradients(Formula(leaf, score), steps=24).values[0], slow, rtol=1e-7, atol=1e-8)


def test_takes_more_points_until_the_scores_add_up_for_each_example_by_itself():
    """A straight line needs the fewest points, a bend in it more."""
    probe = formula(lambda x: x.sum(1) + 5 * (x.sum(1) - 2.2).clamp(min=0), [0.5, 0.5], [2.0, 1.5])
    found = integrated_gradients(probe, tolerance=5e-3)
    details = found.details
    assert details["steps"][0] == 8
    assert details["steps"][1] > 8
    assert (details["completeness_error"] <= 5e-3 * details["difference"].abs()).all()
    assert_close(found.values.sum(1), details["difference"], rtol=5e-3, atol=0)
    tried = [8]
    while tried[-1] < details["steps"][1]:
        tried.append(2 * tried[-1])
    assert probe.asked.tolist() == [8, sum(tried)]


def test_says_so_when_the_points_are_used_up():
    probe = formula(lambda x: torch.where(x.sum(1) > 1, 1.0, 0.0) + 0 * x.sum(1), [2.0, 2.0])
    found = integrated_gradients(probe, most_steps=20)
    assert found.details["steps"].item() == 20
    assert found.details["completeness_error"].item() == 1.0  # a jump has no slope: nothing of it is found


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "encoder_token_first"])
def test_the_scores_of_a_model_add_up(name):
    it = animal(name)
    e = why.explain(why.open(it.module), it.inputs, "integrated_gradients", tolerance=1e-4)
    total = (e.scores if e.pixels is None else e.pixels.flatten(1)).sum(1)
    assert (e.details["completeness_error"] <= 1e-4 * e.details["difference"].abs()).all()
    assert_close((total - e.details["difference"]).abs(), e.details["completeness_error"])


def test_the_difference_is_that_of_the_answers_of_the_model():
    it = animal("vit")
    e = why.explain(why.open(it.module), it.inputs, "integrated_gradients", target=[0, 1, 2], steps=2)
    with torch.no_grad():
        there, nothing = it.module(**it.inputs).logits, it.module(torch.zeros_like(it.inputs["pixel_values"])).logits
    each = torch.arange(3)
    assert_close(e.details["difference"], (there - nothing)[each, each])


def test_special_tokens_and_padding_get_nothing_from_a_baseline_that_keeps_them():
    from tiny_text import bert, wordpiece

    model = why.open(bert(), tokenizer=wordpiece())
    for baseline in ("zero", "mask", "pad", "unknown"):
        e = why.explain(model, ["the film is good", "bad"], "integrated_gradients", steps=3, baseline=baseline)
        for scores, tokens in zip(e.scores, e.tokens, strict=True):
            left_out = torch.tensor(tokens.special) | torch.tensor(tokens.padding)
            assert not scores[left_out].any()
            assert scores[~left_out].all()


def test_what_is_spent_is_what_is_said():
    it = animal("bert")
    e = why.explain(why.open(it.module), it.inputs, "integrated_gradients", steps=7)
    assert e.spent["backward"] == 7
    assert e.spent["forward"] == 1 + 1 + 2 + 7  # the explained run, the leaf, both ends, the points
    assert "backward" in METHODS["integrated_gradients"].cost


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, r"steps must be a whole number >= 1, got 0"),
        ({"most_steps": 2.5}, r"most_steps must be a whole number >= .*, got 2\.5"),
        ({"tolerance": 0.0}, r"tolerance must be > 0 .*, got 0\.0"),
    ],
)
def test_refuses_settings_that_make_no_sense(settings, message):
    with pytest.raises(MethodError, match=message):
        integrated_gradients(formula(lambda x: x.sum(1), [1.0]), **settings)


def test_refuses_a_baseline_that_is_not_there():
    it = animal("bert")
    with pytest.raises(MethodError, match=r"baseline='blur' is not a choice for a text"):
        why.explain(why.open(it.module), it.inputs, "integrated_gradients", baseline="blur")
