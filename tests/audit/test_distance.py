"""Distances between distributions, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whyformer._audit.checks.distance import attainable_jsd, entropy, jsd, kl, tvd


def t(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_by_hand():
    p, q = t(0.5, 0.5, 0.0), t(0.0, 0.5, 0.5)
    assert entropy(p).item() == pytest.approx(math.log(2))
    assert tvd(p, q).item() == 0.5
    assert jsd(p, q).item() == pytest.approx(1.5 * math.log(2) - math.log(2))  # H(1/4, 1/2, 1/4) - log 2
    assert kl(t(0.5, 0.5), t(0.25, 0.75)).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert kl(p, q).item() == math.inf


def test_disjoint_is_log_two_and_equal_is_zero():
    assert jsd(t(1.0, 0.0), t(0.0, 1.0)).item() == pytest.approx(math.log(2))
    assert jsd(t(0.2, 0.8), t(0.2, 0.8)).item() == 0


rows = st.lists(st.floats(0.01, 1), min_size=4, max_size=4)


@given(rows, rows)
def test_jsd_is_symmetric_and_bounded(a, b):
    p, q = t(*a) / sum(a), t(*b) / sum(b)
    assert jsd(p, q).item() == pytest.approx(jsd(q, p).item(), abs=1e-12)
    assert 0 <= jsd(p, q).item() <= math.log(2)


@given(rows, rows)
def test_no_distribution_is_farther_than_the_attainable(a, b):
    p, q = t(*a) / sum(a), t(*b) / sum(b)
    corners = [jsd(corner, p).item() for corner in torch.eye(4, dtype=torch.float64)]
    attainable = attainable_jsd(p, torch.ones(4, dtype=torch.bool)).item()
    assert attainable == pytest.approx(max(corners))
    assert jsd(q, p).item() <= attainable + 1e-12


def test_the_attainable_uses_allowed_places_only():
    p = t(0.7, 0.3, 0.0)
    assert attainable_jsd(p, torch.tensor([True, True, False])).item() == pytest.approx(jsd(t(0.0, 1.0, 0.0), p).item())


def test_the_gradient_is_finite_where_a_weight_is_zero():
    p = t(0.0, 1.0).requires_grad_()
    jsd(p, t(0.5, 0.5)).backward()
    assert p.grad.isfinite().all()
