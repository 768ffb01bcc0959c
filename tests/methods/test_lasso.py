"""The lasso: by hand, its conditions of optimality, and scikit-learn's solution of the same problem."""

import pytest
import torch
from torch.testing import assert_close

from whyformer.methods.context_cite import fit_lasso


def draw(samples, features, seed=0):
    """Random masks, and answers that two of the features decide, with noise."""
    generator = torch.Generator().manual_seed(seed)
    masks = (torch.rand(samples, features, generator=generator, dtype=torch.double) < 0.5).double()
    noise = torch.randn(samples, generator=generator, dtype=torch.double)
    return masks, 3 * masks[:, 0] - 2 * masks[:, -1] + 0.5 * noise


def test_a_line_by_hand():
    """z = 0, 1 is -1, 1 standardised, y = 1, 3 is -1, 1 centred: correlation 1, shrunk by 1/4, divided by sigma 1/2."""
    fit = fit_lasso(torch.tensor([[0.0], [1.0]]), torch.tensor([1.0, 3.0]), 0.25)
    assert_close(fit.weights, torch.tensor([1.5]).double())
    assert fit.intercept == pytest.approx(2 - 1.5 / 2)
    assert fit.r2 == pytest.approx(1 - 0.25**2)


@pytest.mark.parametrize(("samples", "features"), [(64, 8), (16, 40)])
@pytest.mark.parametrize("penalty", [0.01, 0.2])
def test_no_weight_can_be_moved_to_do_better(samples, features, penalty):
    """The gradient of the squares is the penalty at every weight that is not zero, and at most that at the others."""
    masks, answers = draw(samples, features)
    fit = fit_lasso(masks, answers, penalty)
    scale = masks.std(0, correction=0)
    left = answers - fit.intercept - masks @ fit.weights
    gradient = ((masks - masks.mean(0)) / scale).T @ left / samples
    used = fit.weights != 0
    assert 0 < used.sum() < features or penalty < 0.1
    assert_close(gradient[used], penalty * fit.weights[used].sign(), rtol=0, atol=1e-8)
    assert (gradient[~used].abs() <= penalty + 1e-8).all()


@pytest.mark.parametrize(("samples", "features"), [(64, 8), (16, 40)])
def test_agrees_with_scikit_learn(samples, features):
    linear_model, preprocessing = (pytest.importorskip(f"sklearn.{n}") for n in ("linear_model", "preprocessing"))
    masks, answers = draw(samples, features, seed=1)
    scaler = preprocessing.StandardScaler().fit(masks.numpy())
    lasso = linear_model.Lasso(alpha=0.01, tol=1e-12, max_iter=100_000)
    lasso.fit(scaler.transform(masks.numpy()), answers.numpy())
    fit = fit_lasso(masks, answers, 0.01)
    wanted = torch.tensor(lasso.coef_ / scaler.scale_)
    assert_close(fit.weights, wanted, rtol=0, atol=1e-5)  # its stopping rule bounds the objective, not the weights
    assert fit.intercept == pytest.approx(float(lasso.intercept_ - (scaler.mean_ / scaler.scale_) @ lasso.coef_))


def test_odd_data():
    """A feature that never changes gets nothing; constant answers, no features and one sample are no failure."""
    masks, answers = draw(20, 4)
    masks[:, 1] = 1
    assert fit_lasso(masks, answers, 0.01).weights[1] == 0
    still = fit_lasso(masks, torch.full((20,), 2.0), 0.01)
    assert (still.weights == 0).all() and (still.intercept, still.r2) == (2, 1)
    assert fit_lasso(torch.zeros(5, 0), torch.arange(5.0), 0.1).intercept == 2
    assert fit_lasso(torch.ones(1, 2), torch.ones(1), 0.1).weights.tolist() == [0, 0]


def test_a_large_penalty_leaves_nothing_and_none_is_least_squares():
    masks, answers = draw(64, 6)
    assert (fit_lasso(masks, answers, 10.0).weights == 0).all()
    design = torch.cat([masks, torch.ones(64, 1)], 1)
    wanted = torch.linalg.lstsq(design, answers[:, None]).solution[:-1, 0]
    assert_close(fit_lasso(masks, answers, 0.0).weights, wanted, rtol=0, atol=1e-8)
