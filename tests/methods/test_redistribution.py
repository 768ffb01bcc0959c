"""Redistribution of token-wise relevance: rules i to iv."""

import pytest
import torch
from conftest import animal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import whyformer as why
from whyformer.errors import MethodError
from whyformer.methods import redistribution
from whyformer.methods.redistribution import compute_token_shares

A = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]], dtype=torch.double)
V = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]], dtype=torch.double)
RULES = ("i", "ii", "iii", "iv")
HEAD_MODES = ("per_head", "mean_each_layer", "top_head")
every_rule = pytest.mark.parametrize("rule", RULES)
every_mode = pytest.mark.parametrize("head_mode", HEAD_MODES)


def first(tokens=3, batch=1):
    """Read at the first token, which is special; no padding."""
    special = torch.zeros(batch, tokens, dtype=torch.bool)
    special[:, 0] = True
    return special.double(), torch.ones_like(special), special


def noise(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def capture(layers=3, batch=2, heads=2, tokens=5, channels=4, seed=0):
    square, line = (layers, batch, heads, tokens, tokens), (layers, batch, heads, tokens, channels)
    return noise(*square, seed=seed).softmax(-1), noise(*line, seed=seed + 1), *first(tokens, batch)


@pytest.mark.parametrize(
    ("rule", "layers", "expected"),
    [
        ("i", 1, [0.75, 0.15, 0.10]),
        ("ii", 1, [0.714963, 0.226091, 0.058946]),
        ("iii", 1, [0.370370, 0.555556, 0.074074]),
        ("iv", 1, [0.286092, 0.678527, 0.035381]),
        ("i", 2, [0.5825, 0.26, 0.1575]),
        ("ii", 2, [0.528058, 0.390388, 0.081554]),
        ("iii", 2, [0.289544, 0.528474, 0.181982]),
        ("iv", 2, [0.230093, 0.675232, 0.094675]),
    ],
)
@every_mode
def test_three_tokens_by_hand(rule, layers, expected, head_mode):
    """Rule i: row 0 of (A + I) / 2. Rule iii: the distances from token 0 are 0, 5 and 1, so W = (1, 1.5, 0.2) / 2.7.
    One head: the modes are the same."""
    found = redistribution([A[None, None]] * layers, [V[None, None]] * layers, *first(), rule=rule, head_mode=head_mode)
    assert_close(found.values[0], torch.tensor(expected, dtype=torch.double), atol=5e-7, rtol=0)
    assert_close(found.details["retained"][0], found.values[0, 0])


def slowly(attention, value, rule):
    """P of one head, entry by entry from the table of rules."""
    tokens = len(attention)
    mean = value.mean(0)
    p = torch.zeros_like(attention)
    for i in range(tokens):
        for j in range(tokens):
            a = (value[j] - mean).norm() if rule in ("ii", "iv") else 1
            d = (value[j] - value[i]).norm() if rule in ("iii", "iv") else 1
            p[i, j] = a * (d * attention[i, j] + (i == j))
        p[i] /= p[i].sum()
    return p


@every_rule
@every_mode
def test_agrees_with_the_table_written_slowly(rule, head_mode):
    attention, value, *rest = capture()
    found = redistribution(attention, value, *rest, rule=rule, head_mode=head_mode)
    for b in range(2):
        p = torch.stack(
            [torch.stack([slowly(attention[i, b, h], value[i, b, h], rule) for h in range(2)]) for i in range(3)]
        )
        mean = p.mean(1)
        maps = {
            "per_head": torch.stack([(p[2, h] @ p[1, h] @ p[0, h])[0] for h in range(2)]),
            "mean_each_layer": (mean[2] @ mean[1] @ mean[0])[:1],
            "top_head": torch.stack([(p[2, h] @ mean[1] @ mean[0])[0] for h in range(2)]),
        }[head_mode]
        assert_close(found.values[b], maps.mean(0))
        if head_mode != "mean_each_layer":
            assert_close(found.details["per_head"][b], maps)


@settings(max_examples=30, deadline=None)
@given(
    rule=st.sampled_from(RULES),
    head_mode=st.sampled_from(HEAD_MODES),
    layers=st.integers(1, 6),
    heads=st.integers(1, 3),
    tokens=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_relevance_is_conserved(rule, head_mode, layers, heads, tokens, seed):
    found = redistribution(*capture(layers, 2, heads, tokens, seed=seed), rule=rule, head_mode=head_mode)
    assert (found.values >= 0).all()
    assert (found.values.sum(-1) - 1).abs().max() <= 1e-12
    if head_mode != "mean_each_layer":
        assert (found.details["per_head"].sum(-1) - 1).abs().max() <= 1e-12


@every_rule
def test_conservation_in_a_model(rule):
    """Fused attention in float64, with padding."""
    it = animal("bert")
    e = why.explain(why.open(it.module), it.inputs, "redistribution", rule=rule)
    assert (e.scores.sum(-1) - 1).abs().max() <= 1e-12


def test_rule_i_with_mean_heads_is_rollout(random_capture, run):
    attention, value, readout, mask, special = capture()
    found = redistribution(attention, value, readout, mask, special, rule="i", head_mode="mean_each_layer")
    assert_close(found.values, run("rollout", {"attention": attention, "readout": readout, "mask": mask}))


@every_rule
def test_a_constant_added_to_all_values_changes_nothing(rule):
    attention, value, *rest = capture()
    once = redistribution(attention, value, *rest, rule=rule).values
    assert_close(redistribution(attention, value + 7, *rest, rule=rule).values, once)


def test_top_head_has_maps_of_its_own_and_the_same_mean():
    both = [redistribution(*capture(), head_mode=mode) for mode in ("mean_each_layer", "top_head", "per_head")]
    assert_close(both[0].values, both[1].values)
    assert "per_head" not in both[0].details
    assert not torch.allclose(both[1].details["per_head"][:, 0], both[1].details["per_head"][:, 1])
    assert not torch.allclose(both[1].details["per_head"], both[2].details["per_head"])


@every_rule
def test_values_that_are_all_alike(rule):
    """ii and iv would divide 0 by 0: they fall back to a = 1; iii and iv leave only the token itself."""
    attention, value, *rest = capture(tokens=4)
    found = redistribution(attention, torch.full_like(value, 0.1), *rest, rule=rule).values
    same_as = "i" if rule in ("i", "ii") else None
    wanted = redistribution(attention, value, *rest, rule=same_as).values if same_as else rest[0]
    assert_close(found, wanted)


@pytest.mark.parametrize("rule", ["iii", "iv"])
def test_the_unit_of_distances(rule):
    """Literally, small values leave each token to itself; with a scale of their mean, units do not matter."""
    attention, value, *rest = capture()
    small = redistribution(attention, value * 1e-9, *rest, rule="iii").values
    assert_close(small, rest[0], atol=1e-7, rtol=0)
    scaled = [
        redistribution(attention, value * c, *rest, rule=rule, distance_scale="mean").values for c in (1e-6, 1, 1e3)
    ]
    assert_close(scaled[0], scaled[1])
    assert_close(scaled[2], scaled[1])
    halved = redistribution(attention, value, *rest, rule="iii", distance_scale=2.0).values
    assert_close(halved, redistribution(attention, value / 2, *rest, rule="iii").values)


def test_the_mean_distance_by_hand():
    """Distances 5, 1 and sqrt(18): their mean divides them; rule iii, row 0."""
    mean = (5 + 1 + 18**0.5) / 3
    row = torch.tensor([1.0, 0.3 * 5 / mean, 0.2 * 1 / mean], dtype=torch.double)
    found = compute_token_shares(A[None, None], V[None, None], torch.ones(1, 3, dtype=torch.bool), "iii", "mean")
    assert_close(found[0, 0, 0], row / row.sum())


def test_rule_ii_does_not_depend_on_the_unit():
    attention, value, *rest = capture()
    assert_close(*(redistribution(attention, value * c, *rest, rule="ii").values for c in (1.0, 1e-5)))


def test_what_is_retained_where_several_tokens_are_read():
    """A class token beside a mean of patches: what stays at the class token. A mean of patches alone: nothing."""
    attention, value, readout, mask, special = capture(batch=1)
    both = (readout + 0.25 * (1 - readout)) / 2
    found = redistribution(attention, value, both, mask, special)
    assert_close(found.details["retained"], found.values[:, 0])
    pooled = (1 - readout) / 4
    assert redistribution(attention, value, pooled, mask, special).details["retained"] == 0


def test_heads_that_do_not_go_through():
    wide, narrow = capture(layers=1, heads=3), capture(layers=1, heads=2)
    attention, value = [narrow[0][0], wide[0][0]], [narrow[1][0], wide[1][0]]
    with pytest.raises(MethodError, match=r"Layer 0 has 2 heads, the layers above have 3, so .* Use"):
        redistribution(attention, value, *wide[2:])
    for mode in ("mean_each_layer", "top_head"):
        assert redistribution(attention, value, *wide[2:], head_mode=mode).values.isfinite().all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rule": "v"}, r"rule must be one of 'i', 'ii', 'iii', 'iv'; got 'v'\."),
        ({"rule": 2}, "rule must be one of .*; got 2"),
        ({"head_mode": "mean"}, "head_mode must be one of .*; got 'mean'"),
        ({"rule": "iii", "distance_scale": 0}, "distance_scale must be .*, got 0"),
        (
            {"rule": "iv", "distance_scale": "max"},
            "distance_scale must be None, 'mean' or a number from 1e-6 to 1e6, got 'max'",
        ),
        ({"rule": "iv", "distance_scale": True}, "distance_scale must be .*, got True"),
        ({"distance_scale": "mean"}, "distance_scale='mean' needs rule='iii' or 'iv'; rule='ii' has no distances"),
    ],
)
def test_refuses_what_it_does_not_have(wrong, message):
    with pytest.raises(MethodError, match=message):
        redistribution(*capture(), **wrong)
