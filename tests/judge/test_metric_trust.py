"""Which metric to believe: degraded maps, metrics that must and must not be believed, and exact evidence."""

import numpy as np
import pytest
import torch
from judge.bench_parts import pictures, tiny
from scipy.stats import spearmanr

from whyformer._explain.explain import explain
from whyformer._judge.degradation import degrade_method, mix_with_noise, name_level
from whyformer._judge.metric_trust import (
    TrustLine,
    bootstrap_rank_correlation,
    format_evidence,
    judge_metrics,
)
from whyformer._judge.order import PairOrder
from whyformer._plain.statistics import spearman
from whyformer.errors import InputError, MethodError
from whyformer.methods._registry import METHODS

CENTRE = np.pad(np.ones((8, 8), int), 4)
HOLDS, REVERSED, UNDECIDED = (PairOrder("a", "b", *d, 40, 40) for d in ((1, 0.5, 2), (-1, -2, -0.5), (0, -1, 1)))


def test_ranks_and_noise_by_hand():
    values = torch.tensor([[5.0, -1.0, 5.0, 9.0, 100.0]])
    mask = torch.tensor([[True, True, True, True, False]])  # the last is padding
    clean = mix_with_noise(values, mask, [3], 0.0, seed=0)
    assert clean.tolist() == [[0.5, 0.0, 0.5, 1.0, 0.0]]  # ranks 1.5, 0, 1.5, 3 of 3
    noise = mix_with_noise(values, mask, [3], 1.0, seed=0)
    half = mix_with_noise(values, mask, [3], 0.5, seed=0)
    torch.testing.assert_close(half, (clean + noise) / 2)
    assert noise[0, 4] == 0 and (noise[0, :4] > 0).all()
    assert not torch.equal(noise, mix_with_noise(values, mask, [4], 1.0, seed=0))  # another example
    assert not torch.equal(noise, mix_with_noise(values, mask, [3], 1.0, seed=1))


def test_a_map_of_pixels_is_mixed_pixel_by_pixel():
    values = torch.arange(6.0).reshape(1, 2, 3)
    mixed = mix_with_noise(values, torch.ones(1, 4, dtype=torch.bool), [0], 0.0, seed=0)
    torch.testing.assert_close(mixed, values.double() / 5)


def test_a_degraded_method_keeps_the_order_of_the_method_and_its_settings():
    from functools import partial

    model, example = tiny(), pictures(1).examples[0].load()
    wanted = partial(METHODS["rollout"].compute, start=1)
    ours, plain = explain(model, example, degrade_method(wanted, 0.0)), explain(model, example, wanted)
    assert spearmanr(ours.scores[0], plain.scores[0]).statistic == pytest.approx(1)
    assert ours.method == "rollout(start=1), 0 % noise" == name_level("rollout(start=1)", 0.0)
    relevant = degrade_method("transformer_attribution", 0.5)
    assert relevant.recipe == METHODS["transformer_attribution"].recipe
    assert len(explain(model, example, relevant).scores[0]) == len(plain.scores[0])


def test_what_cannot_be_degraded():
    from functools import partial

    with pytest.raises(MethodError, match="cannot be degraded with layers"):
        degrade_method(partial(METHODS["rollout"].compute, layers=[0]), 0.5)
    with pytest.raises(MethodError, match="parameters of its recipe"):
        degrade_method(partial(METHODS["lrp_gamma"].compute, gamma=2.0), 0.5)


@pytest.mark.parametrize(
    ("steps", "ends", "verdict"),
    [
        ((HOLDS, HOLDS), HOLDS, "believable"),
        ((HOLDS, UNDECIDED), HOLDS, "coarse"),
        ((HOLDS, REVERSED), HOLDS, "not believable"),
        ((HOLDS, HOLDS), UNDECIDED, "not believable"),
        ((), None, "undecided"),
        ((HOLDS, HOLDS), PairOrder("a", "b", 1.0, float("nan"), float("nan"), 9, 9), "undecided"),
    ],
)
def test_the_verdict_by_hand(steps, ends, verdict):
    assert TrustLine("m", (1.0, 2.0, 3.0), steps, ends).verdict == verdict


def test_correlation_of_rankings_equals_scipy_and_a_slow_bootstrap():
    generator = np.random.default_rng(2)
    values, truth = generator.normal(size=(2, 12, 5))
    assert spearman(values[0], truth[0]) == pytest.approx(spearmanr(values[0], truth[0]).statistic, abs=1e-6)
    middle, low, high = bootstrap_rank_correlation(values, truth)
    same, drawn = np.random.default_rng(0), []
    for rows in same.integers(12, size=(2000, 12)):
        drawn.append(spearmanr(values[rows].mean(0), truth[rows].mean(0)).statistic)
    assert middle == pytest.approx(spearmanr(values.mean(0), truth.mean(0)).statistic, abs=1e-6)
    assert (low, high) == tuple(pytest.approx(q, abs=1e-6) for q in np.quantile(drawn, [0.025, 0.975]))
    assert np.isnan(spearman(np.ones(3), np.arange(3)))
    assert format_evidence((0.5, -0.25, 1.0)) == "+0.50 [-0.25, +1.00]" and format_evidence(None) == "-"


def test_evidence_is_believed_and_a_metric_of_nothing_is_not():
    """With a map that is the evidence itself, rank_in_mask must fall with noise; a metric that never changes fails."""
    from whyformer._judge.controls import CONTROLS

    blob = CONTROLS["images"][0]  # the map: high in the centre
    data = pictures(10, mask=CENTRE)
    trust = judge_metrics(tiny(), data, ["rank_in_mask", "repeatability"], blob, levels=(0, 0.5, 1))
    lines = {line.metric: line for line in trust.lines}
    assert lines["rank_in_mask"].verdict == "believable"
    assert lines["repeatability"].verdict == "not believable"  # 1 for every map
    assert trust.text_rows()[0] == ["metric", "0% noise", "50% noise", "100% noise", "levels in order", "verdict"]
    assert "believable" in str(trust) and "repeatability" in trust.to_html()


def test_methods_are_ranked_beside_the_evidence():
    data = pictures(4, mask=CENTRE)
    methods = ["rollout", "raw_attention", "gradient_x_input"]
    with pytest.raises(InputError, match="at least 3, got 2"):
        judge_metrics(tiny(), data, ["mass_in_mask"], "rollout", methods=methods[:2], levels=(0, 1))
    trust = judge_metrics(tiny(), data, ["mass_in_mask"], "rollout", methods=methods, levels=(0, 1))
    assert len(trust.judgements) == 2 and trust.text_rows()[0][-1] == "with the evidence"
    assert -1 <= trust.lines[0].evidence[0] <= 1
    with pytest.raises(InputError, match="compares with masks, but pictures has none"):
        judge_metrics(tiny(), pictures(4), ["repeatability"], "rollout", methods=methods, levels=(0, 1))


@pytest.mark.parametrize("levels", [(0,), (0.5, 0.2), (0, 2), (-1, 0)])
def test_levels_must_rise_from_0_to_1(levels):
    with pytest.raises(InputError, match="levels must be at least two rising numbers"):
        judge_metrics(tiny(), pictures(2), levels=levels)
