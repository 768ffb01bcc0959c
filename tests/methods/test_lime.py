"""LIME: a linear model is recovered, and the regression is the one of the paper."""

import pytest
import torch
from conftest import animal
from games import PICTURES, TEXTS, WORTH, WORTH_OF_PICTURES, WORTH_OF_TEXTS, AddsPatches, AddsWords, Game, additive_game
from torch.testing import assert_close

import whyformer as why
from whyformer._plain.fingerprint import fingerprint_tensor
from whyformer._plain.random_generator import make_generator
from whyformer.errors import MethodError
from whyformer.methods import lime
from whyformer.methods.lime import draw_image_samples, draw_text_samples, fit_ridge, weigh_samples

FREE = {"regularisation": 0.0, "budget": 64}


def test_nearness_by_hand():
    """All there: 1. Half of four: the cosine is 2 / (2 sqrt 2), so D = 0.2929 and the weight exp(-0.0858 / 0.125)."""
    samples = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]]).bool()
    wanted = torch.tensor([1.0, 0.50345, 0.00033546], dtype=torch.float64)
    assert_close(weigh_samples(samples, 0.25), wanted, rtol=1e-4, atol=0)


def test_a_line_by_hand():
    """Answers 1 + 2 z at z = 0 and 1."""
    weights, constant, r2 = fit_ridge(torch.tensor([[0.0], [1.0]]), torch.ones(2), torch.tensor([1.0, 3.0]), 0.0)
    assert_close(weights, torch.tensor([2.0]).double())
    assert (round(constant, 12), round(r2, 12)) == (1, 1)


def test_ridge_by_hand():
    """Centred, z is -1/2 and 1/2 and y is -1 and 1: w = (z.y) / (z.z + 1) = 1 / 1.5."""
    weights, _, r2 = fit_ridge(torch.tensor([[0.0], [1.0]]), torch.ones(2), torch.tensor([1.0, 3.0]), 1.0)
    assert_close(weights, torch.tensor([2 / 3]).double())
    assert abs(r2 - (1 - 2 * (2 / 3) ** 2 / 2)) < 1e-12


def test_recovers_what_adds_up():
    for module, inputs, worth in (
        (AddsWords(WORTH), TEXTS, WORTH_OF_TEXTS),
        (AddsPatches(), PICTURES, WORTH_OF_PICTURES),
    ):
        e = why.explain(module, inputs, "lime", target=0, **FREE)
        assert_close(e.scores, worth)
        assert_close(e.details["r2"], torch.ones(2).double())
        assert_close(e.details["intercept"], torch.zeros(2).double(), rtol=0, atol=1e-9)


def test_says_when_a_line_does_not_fit():
    """Whether an even number is there has no linear part near 0."""
    details = lime(Game(lambda there: float(len(there) % 2), 6), budget=400, kernel_width=10.0).details
    assert details["r2"].item() < 0.1


def test_the_definition_written_slowly():
    """Weighted normal equations with a penalty on all but the constant, of answers asked for by hand."""
    bert, ids = animal("bert").module, animal("bert").inputs["input_ids"][1:2, :6]
    e = why.explain(bert, {"input_ids": ids}, "lime", target=1, budget=30, seed=3, of="probability", fill="pad")
    samples = draw_text_samples(6, 30, make_generator(3, fingerprint_tensor(ids[0])))
    design, y, w = [], [], []
    for row in samples:
        with torch.no_grad():
            mask = row[None].long() if row.any() else torch.ones(1, 6)  # nothing: padding that is attended to
            y.append(bert(ids * row, attention_mask=mask).logits.softmax(-1)[0, 1])
        design.append([1.0, *row.tolist()])
        cosine = row.sum() / (6 * row.sum().clamp(min=1)) ** 0.5
        w.append(torch.exp(-((1 - cosine) ** 2) / (2 * 0.25**2)))
    design, y, w = torch.tensor(design).double(), torch.stack(y), torch.stack(w).double()
    penalty = torch.diag(torch.tensor([0.0] + [1.0] * 6)).double()
    wanted = torch.linalg.solve(design.T @ (w[:, None] * design) + penalty, design.T @ (w * y))
    assert_close(e.scores[0], wanted[1:], rtol=1e-6, atol=1e-9)
    assert_close(e.details["intercept"][0], wanted[0], rtol=1e-6, atol=1e-9)


def test_samples_of_a_text_lack_one_to_all_words():
    samples = draw_text_samples(5, 500, make_generator(0, 1))
    assert samples[0].all()
    assert {5 - int(row.sum()) for row in samples[1:]} == {1, 2, 3, 4, 5}
    assert abs(samples[1:].double().mean() - 0.4) < 0.05  # 3 of 5 gone on average
    assert (samples[1:].double().mean(0) - 0.4).abs().max() < 0.08


def test_samples_of_a_picture_are_coins():
    samples = draw_image_samples(8, 500, make_generator(0, 1))
    assert samples[0].all()
    assert (samples[1:].double().mean(0) - 0.5).abs().max() < 0.08


def test_seeds_and_budgets():
    game = Game(additive_game([1.0, 2.0, 3.0, 4.0, 5.0]), 5)
    one, again, other = (lime(game, budget=20, seed=seed).values for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert game.rows_asked == 60


def test_superpixels_of_a_picture():
    e = why.explain(AddsPatches(), PICTURES, "lime", target=0, units="superpixel", superpixels=4, **FREE)
    assert e.pixels.shape == (2, 4, 4)
    assert_close(e.scores.sum(1), WORTH_OF_PICTURES.sum(1))


def test_a_text_of_nothing_gets_nothing():
    assert lime(Game(additive_game([]), 0), budget=4).values.shape == (1, 0)


def test_settings_are_checked():
    game = Game(additive_game([1.0]), 1)
    with pytest.raises(MethodError, match=r"budget must be a whole number >= .*, got 1"):
        lime(game, budget=1)
    with pytest.raises(MethodError, match=r"kernel_width must be a number >= 0\.000001, got 0"):
        lime(game, kernel_width=0)


@pytest.mark.parametrize("regularisation", [float("nan"), float("inf"), -1])
def test_a_regularisation_that_is_none_is_refused(regularisation):
    with pytest.raises(MethodError, match="regularisation"):
        lime(Game(lambda there: 0.0, 3), regularisation=regularisation, budget=4)
