"""The estimate of rounding errors: by hand, written slowly, and on sums that cancel."""

import math

import pytest
import torch

from whyformer._engine.relevance.rounding import RoundingError, mean_size, share_wrong
from whyformer._engine.tracing.provenance import SampleGroups, label_axis

EPS = torch.finfo(torch.float64).eps


def groups(batch, dims):
    return SampleGroups(label_axis(0, batch, dims, torch.device("cpu")), batch)


def test_by_hand_the_error_of_a_quotient_is_largest_where_z_is_as_small_as_its_error():
    z, off = torch.tensor([0.0, 0.1, 1.0, -10.0], dtype=torch.float64), torch.tensor([0.1], dtype=torch.float64)
    assert share_wrong(z, off).tolist() == pytest.approx([0.0, 0.5, 0.1 / 1.01, 1 / 100.01])
    assert share_wrong(z, off, epsilon=0.1).tolist() == pytest.approx([0.5, 0.02 / 0.05, 0.11 / 1.22, 1.01 / 102.02])


def test_by_hand_the_mean_size_is_over_the_last_axis():
    assert mean_size(torch.tensor([[1.0, -3.0], [0.0, 4.0]])).tolist() == [[2.0], [2.0]]


def test_errors_of_two_steps_add_up_as_independent_errors():
    error = RoundingError(error=torch.tensor([0.3], dtype=torch.float64))
    error.grow(torch.tensor([0.4], dtype=torch.float64))
    assert float(error.error) == pytest.approx(0.5 / math.sqrt(1.25))


def addition_by_loops(before, to_u, to_v, u, v, signs_decide):
    """The formulas of the file, entry by entry, for one example."""
    z = [a + b for a, b in zip(u, v, strict=True)]
    off = 6 * EPS * (sum(map(abs, u)) + sum(map(abs, v))) / len(u)
    wrong = sum(abs(r) * off * abs(x) / (x * x + off * off) for r, x in zip(to_u, z, strict=True))
    mass_u, mass_v = sum(map(abs, to_u)), sum(map(abs, to_v))
    step = 2 * wrong / (mass_u + mass_v)
    if signs_decide:
        d = wrong + before * min(mass_u, mass_v)
        for shares, mass in ((to_u, mass_u), (to_v, mass_v)):
            step += d**2 / (sum(shares) ** 2 + d**2) * mass / (mass_u + mass_v)
    x = math.hypot(before, step)
    return x / math.sqrt(1 + x * x)


@pytest.mark.parametrize("signs_decide", [True, False])
def test_an_addition_equals_the_formula_written_with_loops(signs_decide):
    generator = torch.Generator().manual_seed(0)
    u, v, arriving = (torch.randn(2, 3, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    v[1, 0, 0] = -u[1, 0, 0] * (1 + 1e-13)
    u, v, arriving = (t[:, :1] for t in (u, v, arriving))  # one token, so that the scale is that of all entries
    shares = arriving / (u + v) * u, arriving / (u + v) * v
    before = torch.tensor([1e-3, 0.2], dtype=torch.float64)
    error, samples = RoundingError(error=before), groups(2, 3)
    totals = tuple(samples.sum(share) for share in shares) if signs_decide else None
    error.note_addition(shares, (u, v), u + v, samples, totals)
    for i in range(2):
        parts = (t[i].flatten().tolist() for t in (*shares, u, v))
        assert float(error.error[i]) == pytest.approx(addition_by_loops(float(before[i]), *parts, signs_decide))


def test_a_sum_that_cancels_has_a_large_error_and_one_that_does_not_a_small_one():
    u = torch.ones(1, 1, 4, dtype=torch.float64)
    found = []
    for v in (-u * (1 - 1e-15), u):
        error = RoundingError()
        share = torch.ones_like(u) / (u + v)
        error.note_addition((share * u, share * v), (u, v), u + v, groups(1, 3))
        found.append(float(error.error))
    assert found[0] > 0.3
    assert found[1] < 1e-13


def test_a_branch_whose_total_is_nearly_zero_has_no_sign():
    u = torch.tensor([[[1.0, 1.0]]], dtype=torch.float64)
    found = {}
    for name, arriving in (("cancels", [2.0, -2.0 + 1e-9]), ("does not", [2.0, 2.0])):
        share = torch.tensor([[arriving]], dtype=torch.float64) / 2
        error, samples = RoundingError(error=torch.tensor([1e-6], dtype=torch.float64)), groups(1, 3)
        error.note_addition((share, share), (u, u), u + u, samples, (samples.sum(share), samples.sum(share)))
        found[name] = float(error.error)
    assert found["cancels"] > 0.5
    assert found["does not"] < 1e-5


def test_a_division_counts_by_its_share_of_the_relevance():
    z = torch.tensor([[1.0, 1e-16]], dtype=torch.float64)
    relevance = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    alone, small = RoundingError(), RoundingError(mass=torch.tensor([100.0], dtype=torch.float64))
    for error in (alone, small):
        error.note_division(relevance, z, 0.0, groups(1, 2))
    assert float(small.error) == pytest.approx(float(alone.error) / math.sqrt(1 - float(alone.error) ** 2) / 100)


def test_sums_of_magnitudes_equal_a_loop():
    generator = torch.Generator().manual_seed(1)
    tensor = torch.randn(4, 3, 2, generator=generator, dtype=torch.float64)
    for label in (label_axis(0, 4, 3, tensor.device), torch.arange(24, dtype=torch.int32).view(4, 3, 2) % 4):
        samples = SampleGroups(label, 4)
        wide = label.expand(tensor.shape)
        expected = [float(tensor[wide == i].abs().sum()) for i in range(4)]
        assert samples.sum_magnitudes(tensor).tolist() == pytest.approx(expected)
    single = SampleGroups(torch.zeros(1, 1, 1, dtype=torch.int32), 1)
    assert single.sum_magnitudes(tensor).tolist() == pytest.approx([float(tensor.abs().sum())])


def test_for_a_contrast_the_errors_of_both_passes_add_up():
    one, other = (RoundingError(torch.tensor([x]), None, [torch.tensor([x]), None]) for x in (0.1, 0.2))
    joined = one.join(other)
    assert joined.error.tolist() == pytest.approx([0.3])
    assert joined.at_attention[0].tolist() == pytest.approx([0.3])
    assert joined.at_attention[1] is None
