"""Every relevance rule against a slow definition; conservation; planted denominators; examples kept apart.

The slow definitions run over Python numbers, one product at a time (Chefer, Gur & Wolf 2021, eqs. 3 to 10). A
convolution is a linear layer whose matrix is found by pushing every unit vector through it.
"""

import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from rule_calls import assert_same, away_from_zero, make_call, numbers, softmax_slowly
from torch import Tensor

import whyformer as why
from whyformer._engine.relevance import recipes, rules, slopes
from whyformer._engine.relevance.calls import (
    ActivationCall,
    AdditionCall,
    AttentionCall,
    ConvolutionCall,
    JoinCall,
    LinearCall,
    NormCall,
    OperationCall,
    PoolCall,
    ProductCall,
    ScaleCall,
    SelectCall,
)
from whyformer._engine.relevance.node import RuleNode, Switch
from whyformer._engine.relevance.recipes import CHEFER, CHEFER_BASELINE, STABILISERS
from whyformer._engine.tracing.fused_attention import ScoreMask
from whyformer._engine.tracing.provenance import SampleGroups
from whyformer.errors import MethodError, NonFinite

SEEDS = range(20)
EXACT = replace(CHEFER, stabiliser=STABILISERS["none"])
DTYPES = (torch.float32, torch.float64)


def share(
    rule, call: OperationCall, relevance: Tensor, result: Tensor, *operands: Tensor, recipe=CHEFER, absorbed=None
):
    return rule(call.attach(Switch(recipe=recipe, absorbed=absorbed), result, operands), relevance)


# --- by hand ---------------------------------------------------------------------------------------------------------

WEIGHT = torch.tensor([[1.0, -1.0, 2.0], [0.5, 1.0, -1.0]], dtype=torch.float64)
BIAS = torch.tensor([10.0, -5.0], dtype=torch.float64)
X = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("rule", "arriving", "wanted"),
    [
        (rules.share_positive_products, [1.0, 0.0], [0.25, 0.5, 0.25]),
        (rules.share_positive_products, [0.0, 1.0], [1.0, 0.0, 0.0]),
        (rules.share_doubled_products, [1.0, 0.0], [0.5, 1.0, 0.5]),
        (rules.share_doubled_products, [0.0, 1.0], [1.0, 0.0, 0.0]),
    ],
)
def test_linear_by_hand(rule, arriving, wanted):
    """Products for output 0 are 1, 2, 1: a quarter, a half, a quarter. The bias of 10 takes nothing."""
    result = F.linear(X, WEIGHT, BIAS)
    (found,) = share(
        rule, make_call(LinearCall, result, weight=WEIGHT, bias=BIAS), torch.tensor([arriving]).double(), result, X
    )
    torch.testing.assert_close(found, torch.tensor([wanted], dtype=torch.float64))


U, V, R = (torch.tensor([row], dtype=torch.float64) for row in ([1, 2, 3], [-0.5, -1, -4], [0.2, 0.3, 0.5]))


def test_addition_by_hand():
    """The shares sum to -0.5 and 1.5; scaled to 0.25 and 0.75 of the total, which turns the first around."""
    to_u, to_v = share(rules.share_normalised_addition, make_call(AdditionCall, U), R, U + V, U, V)
    torch.testing.assert_close(to_u, torch.tensor([[-0.2, -0.3, 0.75]], dtype=torch.float64))
    torch.testing.assert_close(to_v, torch.tensor([[-0.1, -0.15, 1.0]], dtype=torch.float64))


def test_plain_addition_by_hand():
    to_u, to_v = share(rules.share_plain_addition, make_call(AdditionCall, U), R, U + V, U, V)
    torch.testing.assert_close(to_u, torch.tensor([[0.4, 0.6, -1.5]], dtype=torch.float64))
    torch.testing.assert_close(to_v, torch.tensor([[-0.2, -0.3, 2.0]], dtype=torch.float64))


def test_product_by_hand():
    """Output (0, 0) is 0.75 * 1 + 0.25 * 3: both products are half of it, and each operand gets half of that."""
    a = torch.tensor([[[0.75, 0.25], [0.4, 0.6]]], dtype=torch.float64)
    v = torch.tensor([[[1.0, 2.0], [3.0, -1.0]]], dtype=torch.float64)
    arriving = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    to_a, to_v = share(rules.share_product_halves, make_call(ProductCall, a, run=torch.matmul), arriving, a @ v, a, v)
    torch.testing.assert_close(to_a, torch.tensor([[[0.25, 0.25], [0.0, 0.0]]], dtype=torch.float64))
    torch.testing.assert_close(to_v, torch.tensor([[[0.25, 0.0], [0.25, 0.0]]], dtype=torch.float64))


# --- the definitions, written slowly ---------------------------------------------------------------------------------


def linear_slowly(x: Tensor, weight: Tensor, relevance: Tensor) -> Tensor:
    """R_j = sum over i of (x_j w_ij)+ / sum over k of (x_k w_ik)+, times R_i. x is [n j], weight [i j], R [n i]."""
    found = []
    for row, arriving in zip(x.tolist(), relevance.tolist(), strict=True):
        shares = [0.0] * len(row)
        for w, r in zip(weight.tolist(), arriving, strict=True):
            positive = [max(a * b, 0.0) for a, b in zip(row, w, strict=True)]
            total = math.fsum(positive)
            for j, p in enumerate(positive):
                shares[j] += p / total * r if total > 0 else 0.0
        found.append(shares)
    return torch.tensor(found, dtype=torch.float64)


def doubled_slowly(x: Tensor, weight: Tensor, relevance: Tensor) -> Tensor:
    """x+ with W+, and x- with W-, each as if it were alone."""
    return linear_slowly(x.clamp(min=0), weight.clamp(min=0), relevance) + linear_slowly(
        x.clamp(max=0), weight.clamp(max=0), relevance
    )


def signed_parts_slowly(x: Tensor, weight: Tensor, relevance: Tensor) -> Tensor:
    """The form of the released code: S = R / (W+ x+ + W- x-), R_x = x+ (W+^T S) + x- (W-^T S)."""
    x_plus, x_minus, w_plus, w_minus = x.clamp(min=0), x.clamp(max=0), weight.clamp(min=0), weight.clamp(max=0)
    z = x_plus @ w_plus.T + x_minus @ w_minus.T
    s = torch.where(z == 0, 0, relevance / z)
    return x_plus * (s @ w_plus) + x_minus * (s @ w_minus)


def matrix_of(linear, shape: torch.Size) -> Tensor:
    """The matrix [out in] of a linear function of one example of that shape."""
    size = math.prod(shape)
    return linear(torch.eye(size, dtype=torch.float64).view(size, *shape)).flatten(1).T


def box_slowly(x: Tensor, matrix: Tensor, relevance: Tensor) -> Tensor:
    """z-B: the contribution of x_j to output i is x_j m_ij - l m_ij+ - h m_ij-."""
    found = []
    for row, arriving in zip(x.tolist(), relevance.tolist(), strict=True):
        low, high, shares = min(row), max(row), [0.0] * len(row)
        for m, r in zip(matrix.tolist(), arriving, strict=True):
            given = [a * b - low * max(b, 0) - high * min(b, 0) for a, b in zip(row, m, strict=True)]
            total = math.fsum(given)
            for j, g in enumerate(given):
                shares[j] += g / total * r
        found.append(shares)
    return torch.tensor(found, dtype=torch.float64)


def product_slowly(a: Tensor, v: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Each product a_qk v_kd of an output takes its part of R_qd; half goes to a_qk, half to v_kd."""
    to_a, to_v = torch.zeros_like(a), torch.zeros_like(v)
    a_, v_, r_ = a.tolist(), v.tolist(), relevance.tolist()
    for q, d in itertools.product(range(a.size(0)), range(v.size(1))):
        terms = [a_[q][k] * v_[k][d] for k in range(a.size(1))]
        total = math.fsum(terms)
        for k, term in enumerate(terms):
            part = term / total * r_[q][d] / 2 if total != 0 else 0.0
            to_a[q, k] += part
            to_v[k, d] += part
    return to_a, to_v


def addition_slowly(u: Tensor, v: Tensor, relevance: Tensor, *, normalised: bool = True) -> tuple[Tensor, Tensor]:
    """For each example (first axis): u R/z and v R/z, then each scaled to its part of the total."""
    u_out, v_out = [], []
    for a, b, r in zip(u.flatten(1).tolist(), v.flatten(1).tolist(), relevance.flatten(1).tolist(), strict=True):
        to_a = [p * t / (p + q) for p, q, t in zip(a, b, r, strict=True)]
        to_b = [q * t / (p + q) for p, q, t in zip(a, b, r, strict=True)]
        if normalised:
            sum_a, sum_b, total = math.fsum(to_a), math.fsum(to_b), math.fsum(r)
            size = abs(sum_a) + abs(sum_b)
            to_a = [t * abs(sum_a) / size * total / sum_a for t in to_a]
            to_b = [t * abs(sum_b) / size * total / sum_b for t in to_b]
        u_out.append(to_a)
        v_out.append(to_b)
    return tuple(torch.tensor(out, dtype=torch.float64).view_as(u) for out in (u_out, v_out))


LINEAR_SHAPES = [(1, 1, 1), (1, 3, 4), (2, 5, 3), (3, 7, 2), (4, 2, 6)]
LINEAR = {rules.share_positive_products: linear_slowly, rules.share_doubled_products: doubled_slowly}


@pytest.mark.parametrize("shape", LINEAR_SHAPES)
@pytest.mark.parametrize("rule", LINEAR)
def test_linear_is_its_definition(rule, shape):
    rows, ins, outs = shape
    for seed in SEEDS:
        x, weight, bias = numbers(seed, rows, ins), numbers(seed + 100, outs, ins), numbers(seed + 200, outs)
        result, arriving = F.linear(x, weight, bias), numbers(seed + 300, rows, outs)
        (found,) = share(rule, make_call(LinearCall, result, weight=weight, bias=bias), arriving, result, x)
        assert_same(found, wanted := LINEAR[rule](x, weight, arriving))
        if rule is rules.share_positive_products:
            assert_same(wanted, signed_parts_slowly(x, weight, arriving))


CONVOLUTIONS = {
    "patches": ((3, 4, 4), (2, 3, 2, 2), dict(stride=2)),
    "overlapping": ((2, 5, 5), (3, 2, 3, 3), dict(stride=2)),
    "padded": ((1, 4, 3), (2, 1, 3, 3), dict(padding=1)),
    "dilated": ((2, 5, 4), (1, 2, 2, 2), dict(dilation=2)),
    "grouped": ((4, 3, 3), (4, 2, 2, 2), dict(groups=2)),
}
CONVOLUTION_RULES = LINEAR | {rules.share_pixel_box: box_slowly}


@pytest.mark.parametrize("form", CONVOLUTIONS)
@pytest.mark.parametrize("rule", CONVOLUTION_RULES)
def test_convolution_is_its_definition(rule, form):
    shape, kernel, how = CONVOLUTIONS[form]
    for seed in SEEDS:
        x, weight, bias = numbers(seed, 2, *shape), numbers(seed + 100, *kernel), numbers(seed + 200, kernel[0])
        result = F.conv2d(x, weight, bias, **how)
        arriving = numbers(seed + 300, *result.shape)
        run = lambda start, w: F.conv2d(start, w, **how)  # noqa: E731
        call = make_call(ConvolutionCall, result, weight=weight, bias=bias.view(-1, 1, 1), convolve=run)
        (found,) = share(rule, call, arriving, result, x)
        matrix = matrix_of(lambda unit, w=weight: F.conv2d(unit, w, **how), x.shape[1:])
        wanted = CONVOLUTION_RULES[rule](x.flatten(1), matrix, arriving.flatten(1))
        assert_same(found.flatten(1), wanted)


def test_the_pixel_box_is_that_of_each_image():
    """The second image is a hundred times brighter, which does not change the relevance of the first."""
    x, weight = numbers(0, 2, 1, 4, 4), numbers(1, 2, 1, 2, 2)
    x[1] *= 100
    run = lambda start, w: F.conv2d(start, w, stride=2)  # noqa: E731
    result = run(x, weight)
    arriving = numbers(2, *result.shape)
    (both,) = share(
        rules.share_pixel_box, make_call(ConvolutionCall, result, weight=weight, convolve=run), arriving, result, x
    )
    call = make_call(ConvolutionCall, result[:1], weight=weight, convolve=run)
    (alone,) = share(rules.share_pixel_box, call, arriving[:1], result[:1], x[:1])
    torch.testing.assert_close(both[:1], alone)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 2, 2), (3, 4, 2), (5, 3, 4), (2, 6, 1)])
@pytest.mark.parametrize("how", ["matmul", "batched", "einsum"])
def test_product_is_its_definition(how, shape):
    """Also as bmm over folded heads, and as an einsum in another order of axes."""
    rows, inner, columns = shape
    for seed in SEEDS:
        a, v = numbers(seed, rows, inner), numbers(seed + 100, inner, columns)
        arriving = numbers(seed + 300, rows, columns)
        wanted = product_slowly(a, v, arriving)
        if how == "einsum":
            run = lambda a, v: torch.einsum("qk,kd->dq", a, v)  # noqa: E731
            found = share(rules.share_product_halves, make_call(ProductCall, a, run=run), arriving.T, run(a, v), a, v)
        elif how == "batched":
            stacked = [torch.stack([t, 2 * t]) for t in (a, v, arriving)]
            result = torch.bmm(*stacked[:2])
            pairs = share(
                rules.share_product_halves,
                make_call(ProductCall, result, run=torch.matmul),
                stacked[2],
                result,
                *stacked[:2],
            )
            torch.testing.assert_close(pairs[0][1], 2 * pairs[0][0])
            found = tuple(pair[0] for pair in pairs)
        else:
            found = share(
                rules.share_product_halves, make_call(ProductCall, a, run=torch.matmul), arriving, a @ v, a, v
            )
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)


BROADCAST = [((2, 3), (2, 3)), ((2, 1, 4), (2, 3, 4)), ((3, 4), (2, 3, 4)), ((2, 3, 1), (2, 1, 4)), ((1,), (3, 2))]


@pytest.mark.parametrize(("left", "right"), BROADCAST)
def test_elementwise_product_is_its_definition(left, right):
    """The product is one term, so each operand gets half; what was broadcast collects it."""
    for seed in SEEDS:
        a, b = numbers(seed, *left), numbers(seed + 100, *right)
        arriving = numbers(seed + 300, *(a * b).shape)
        to_a, to_b = share(
            rules.share_product_halves, make_call(ProductCall, a * b, run=torch.mul), arriving, a * b, a, b
        )
        assert_same(to_a, (arriving / 2).sum_to_size(left))
        assert_same(to_b, (arriving / 2).sum_to_size(right))


def test_a_product_with_broadcast_matrices_is_its_definition():
    """One matrix of values for three heads: it collects the halves of all of them."""
    for seed in SEEDS:
        a, v, arriving = numbers(seed, 3, 2, 4), numbers(seed + 100, 4, 5), numbers(seed + 300, 3, 2, 5)
        to_a, to_v = share(
            rules.share_product_halves, make_call(ProductCall, a, run=torch.matmul), arriving, a @ v, a, v
        )
        wanted = [product_slowly(a[h], v, arriving[h]) for h in range(3)]
        assert_same(to_a, torch.stack([w[0] for w in wanted]))
        assert_same(to_v, sum(w[1] for w in wanted))


def test_a_product_with_a_constant_gives_everything_to_the_other():
    for seed in SEEDS:
        a, v, arriving = numbers(seed, 3, 4), numbers(seed + 100, 4, 2), numbers(seed + 300, 3, 2)
        (found,) = share(
            rules.share_product_halves, make_call(ProductCall, a, run=lambda a, v=v: a @ v), arriving, a @ v, a
        )
        assert_same(found, 2 * product_slowly(a, v, arriving)[0])


POOLS = {
    "mean over tokens": ((2, 5, 3), lambda x: x.mean(1)),
    "mean over tokens, kept": ((3, 4, 2), lambda x: x.mean(1, keepdim=True)),
    "sum over channels": ((2, 3, 4), lambda x: x.sum(-1)),
    "adaptive": ((2, 3, 4, 4), lambda x: F.adaptive_avg_pool2d(x, 2)),
    "overlapping": ((1, 2, 7), lambda x: F.avg_pool1d(x, 3, 2)),
}


@pytest.mark.parametrize("form", POOLS)
def test_pooling_is_its_definition(form):
    """x_j m_ij of its part of every output i, in which m is the matrix of the pooling."""
    shape, run = POOLS[form]
    matrix = matrix_of(run, torch.Size(shape[1:])).tolist()
    for seed in SEEDS:
        x = away_from_zero(seed, *shape)
        result = run(x)
        arriving = numbers(seed + 300, *result.shape)
        (found,) = share(rules.share_pooled, make_call(PoolCall, result, run=run), arriving, result, x)
        wanted = []
        for row, r in zip(x.flatten(1).tolist(), arriving.flatten(1).tolist(), strict=True):
            shares = [0.0] * len(row)
            for m, one in zip(matrix, r, strict=True):
                terms = [a * b for a, b in zip(row, m, strict=True)]
                total = math.fsum(terms)
                shares = [s + t / total * one for s, t in zip(shares, terms, strict=True)]
            wanted.append(shares)
        assert_same(found.flatten(1), torch.tensor(wanted, dtype=torch.float64))


ADDITION_SHAPES = [(1, 1), (1, 4), (2, 3), (3, 2, 4), (2, 2, 3, 2)]
ADDITIONS = {rules.share_normalised_addition: True, rules.share_plain_addition: False}


@pytest.mark.parametrize("shape", ADDITION_SHAPES)
@pytest.mark.parametrize("rule", ADDITIONS)
def test_addition_is_its_definition(rule, shape):
    for seed in SEEDS:
        u, v, arriving = numbers(seed, *shape), numbers(seed + 100, *shape), numbers(seed + 300, *shape)
        found = share(rule, make_call(AdditionCall, u), arriving, u + v, u, v)
        wanted = addition_slowly(u, v, arriving, normalised=ADDITIONS[rule])
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("rule", ADDITIONS)
def test_subtraction_is_the_addition_of_the_negative(rule):
    for seed in SEEDS:
        u, v, arriving = numbers(seed, 2, 3), numbers(seed + 100, 2, 3), numbers(seed + 300, 2, 3)
        found = share(rule, make_call(AdditionCall, u, signs=(1, -1)), arriving, u - v, u, v)
        wanted = addition_slowly(u, -v, arriving, normalised=ADDITIONS[rule])
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("rule", ADDITIONS)
def test_an_added_constant_takes_its_share_and_it_is_reported(rule):
    """Positions [1 token channel] beside embeddings [batch token channel]."""
    for seed in SEEDS:
        x, positions, arriving = numbers(seed, 2, 3, 4), numbers(seed + 100, 1, 3, 4), numbers(seed + 300, 2, 3, 4)
        absorbed: dict = {}
        call = make_call(AdditionCall, x, constant=positions, constant_is="positions")
        (found,) = share(rule, call, arriving, x + positions, x, absorbed=absorbed)
        wanted, taken = addition_slowly(x, positions.expand_as(x), arriving, normalised=ADDITIONS[rule])
        assert_same(found, wanted)
        torch.testing.assert_close(absorbed[0, "positions"], taken.sum((1, 2)))


def test_an_addend_that_was_broadcast_collects_its_share():
    for seed in SEEDS:
        u, v, arriving = numbers(seed, 2, 3, 4), numbers(seed + 100, 2, 1, 4), numbers(seed + 300, 2, 3, 4)
        to_u, to_v = share(rules.share_normalised_addition, make_call(AdditionCall, u), arriving, u + v, u, v)
        wanted = addition_slowly(u, v.expand_as(u), arriving)
        assert_same(to_u, wanted[0])
        assert_same(to_v, wanted[1].sum(1, keepdim=True))


def test_an_addition_that_cancels_is_reported():
    """R = (1, -1) over equal parts: both shares sum to nothing, and so does what they are scaled to."""
    u, arriving = torch.ones(1, 2, dtype=torch.float64), torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    for one in share(rules.share_normalised_addition, make_call(AdditionCall, u), arriving, 2 * u, u, u.clone()):
        assert one.isfinite().all()


def test_a_masked_score_gets_nothing_even_if_the_mask_is_infinite():
    scores = numbers(0, 1, 1, 2, 3)
    mask = torch.tensor([0.0, 0.5, -math.inf], dtype=torch.float64).expand(1, 1, 1, 3)
    arriving = numbers(1, 1, 1, 2, 3) * (mask > -1)
    call = make_call(AdditionCall, scores, constant=mask, constant_is="attention bias")
    (found,) = share(rules.share_normalised_addition, call, arriving, scores + mask, scores)
    assert found.isfinite().all()
    assert not found[..., 2].any()
    wanted, _ = addition_slowly(scores[..., :2], mask[..., :2].expand(1, 1, 2, 2), arriving[..., :2])
    assert_same(found[..., :2], wanted)


# --- rules that pass relevance on ------------------------------------------------------------------------------------

SHAPES = [(1, 1), (2, 3), (1, 4, 2), (3, 2, 2), (2, 1, 2, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_unchanged_passes_everything_to_the_first_operand(shape):
    for seed in SEEDS:
        x, arriving = numbers(seed, *shape), numbers(seed + 300, *shape)
        found = share(rules.pass_unchanged, make_call(NormCall, x), arriving, x.tanh(), x, x[..., :1])
        assert torch.equal(found[0], arriving)
        assert found[1] is None


def test_unchanged_collects_what_was_broadcast():
    x, arriving = numbers(0, 2, 1, 3), numbers(1, 2, 4, 3)
    (found,) = share(rules.pass_unchanged, make_call(NormCall, arriving), arriving, x.expand(2, 4, 3), x)
    torch.testing.assert_close(found, arriving.sum(1, keepdim=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_scaling_passes_relevance_except_where_the_factor_is_zero(shape):
    for seed in SEEDS:
        x, arriving = numbers(seed, *shape), numbers(seed + 300, *shape)
        factor = numbers(seed + 100, *shape) * (numbers(seed + 200, *shape) > 0)
        absorbed: dict = {}
        (found,) = share(
            rules.pass_scaled, make_call(ScaleCall, x, factor=factor), arriving, x * factor, x, absorbed=absorbed
        )
        wanted = [r if f != 0 else 0.0 for r, f in zip(arriving.flatten(), factor.flatten(), strict=True)]
        assert torch.equal(found.flatten(), torch.tensor(wanted, dtype=torch.float64))
        torch.testing.assert_close(absorbed[0, "zeroed"], (arriving - found).flatten(1).sum(1))


@pytest.mark.parametrize(("factor", "passes"), [(3.0, True), (-0.5, True), (0.0, False)])
def test_scaling_by_a_number(factor, passes):
    x, arriving = numbers(0, 2, 3), numbers(1, 2, 3)
    (found,) = share(rules.pass_scaled, make_call(ScaleCall, x, factor=factor), arriving, x * factor, x)
    assert torch.equal(found, arriving if passes else torch.zeros_like(arriving))


INDICES = [(slice(None), 0), (slice(None), -1), (..., 1), (slice(None), slice(0, 3, 2)), ([0, 1], [2, 0])]


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("stabiliser", ["signed", "none", "released"])
def test_a_selected_entry_gets_what_came_back_to_it(stabiliser, index):
    recipe = replace(CHEFER, stabiliser=STABILISERS[stabiliser])
    for seed in SEEDS:
        x = away_from_zero(seed, 2, 4, 3)
        result = x[index]
        arriving = numbers(seed + 300, *result.shape)
        (found,) = share(
            rules.pass_selected,
            make_call(SelectCall, result, run=lambda t: t[index]),
            arriving,
            result,
            x,
            recipe=recipe,
        )
        wanted = torch.zeros_like(x)
        wanted[index] = arriving * x[index] / (x[index] + 1e-9) if stabiliser == "released" else arriving
        assert_same(found, wanted, tolerance=1e-14)


@pytest.mark.parametrize("sizes", [(1, 4), (2, 1, 3), (1, 1), (5,), (2, 2, 2, 1)])
@pytest.mark.parametrize("axis", [1, -1])
def test_a_concatenation_gives_each_part_its_own_and_reports_the_constants(axis, sizes):
    for seed in SEEDS:
        parts = [numbers(seed + i, *((2, n, 3) if axis == 1 else (2, 3, n))) for i, n in enumerate(sizes)]
        carrying = [i % 2 == seed % 2 for i in range(len(parts))]
        joined = torch.cat(parts, axis)
        arriving = numbers(seed + 300, *joined.shape)
        call = make_call(JoinCall, joined, axis=axis, sizes=list(sizes), carrying=carrying)
        absorbed: dict = {}
        ours = [part for part, is_ours in zip(parts, carrying, strict=True) if is_ours]
        found = share(rules.pass_joined, call, arriving, joined, *ours, absorbed=absorbed)
        start, wanted, lost = 0, [], torch.zeros(2, dtype=torch.float64)
        for n, is_ours in zip(sizes, carrying, strict=True):
            own = arriving.narrow(axis, start, n)
            start += n
            if is_ours:
                wanted.append(own)
            else:
                lost += own.sum((1, 2))
        assert len(found) == len(wanted)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        torch.testing.assert_close(absorbed[0, "class token and other constants"], lost)


def test_a_stack_gives_each_part_its_own():
    parts, arriving = [numbers(i, 2, 3) for i in range(3)], numbers(9, 2, 3, 3)
    call = make_call(JoinCall, arriving, axis=1, sizes=[1, 1, 1], carrying=[True, False, True], is_stack=True)
    found = share(rules.pass_joined, call, arriving, torch.stack(parts, 1), parts[0], parts[2])
    assert torch.equal(found[0], arriving[:, 0])
    assert torch.equal(found[1], arriving[:, 2])


@pytest.mark.parametrize("low", [-math.inf, torch.finfo(torch.float64).min, -1e4])
def test_a_mask_takes_nothing(low):
    x, arriving = numbers(0, 2, 1, 3, 4), numbers(1, 2, 1, 3, 4)
    mask = torch.tensor([0.0, low, 0.0, low], dtype=torch.float64)
    arriving = torch.where(mask == 0, arriving, 0)
    call = make_call(AdditionCall, x, constant=mask, constant_is="mask")
    (found,) = share(rules.pass_unmasked, call, arriving, x + mask, x)
    assert torch.equal(found, arriving)


def test_under_the_released_stabiliser_a_mask_is_an_addition():
    """x R / (x + 0 + 1e-9), scaled to the total."""
    recipe = replace(CHEFER, stabiliser=STABILISERS["released"])
    x, arriving = away_from_zero(0, 1, 1, 3, 4), numbers(1, 1, 1, 3, 4)
    mask = torch.tensor([0.0, -math.inf, 0.0, 0.0], dtype=torch.float64)
    arriving = torch.where(mask == 0, arriving, 0)
    call = make_call(AdditionCall, x, constant=mask, constant_is="mask")
    (found,) = share(rules.pass_unmasked, call, arriving, x + mask, x, recipe=recipe)
    exact = torch.where(mask == 0, x * arriving / (x + 1e-9), 0)
    assert_same(found, exact * arriving.sum() / exact.sum(), tolerance=1e-8)
    assert not torch.equal(found, arriving)


# --- attention -------------------------------------------------------------------------------------------------------

ATTENTION_SHAPES = [(1, 1, 2, 1), (2, 1, 3, 2), (1, 2, 2, 3), (2, 2, 3, 2), (1, 4, 2, 2)]


def attention_slowly(query, key, value, relevance, mask, scale, *, has_bias: bool):
    """Product with the values, softmax unchanged, addition of the bias per example, product of queries and keys."""
    to_query, to_key, to_value = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    repeats = query.size(1) // key.size(1)
    for b in range(query.size(0)):
        arriving, raws = [], []
        for h in range(query.size(1)):
            k, v = key[b, h // repeats], value[b, h // repeats]
            raw = query[b, h] @ k.T
            scores = raw * scale if mask is None else raw * scale + mask.expand(*query.shape[:3], key.size(2))[b, h]
            weights = torch.tensor([softmax_slowly(row) for row in scores.tolist()], dtype=torch.float64)
            to_weights, to_own = product_slowly(weights, v, relevance[b, h])
            to_value[b, h // repeats] += to_own
            arriving.append(to_weights)
            raws.append(raw)
        arriving, raw = torch.stack(arriving), torch.stack(raws)
        if has_bias:
            (arriving,), _ = addition_slowly(
                (raw * scale)[None], mask.expand(query.size(0), *raw.shape)[b][None], arriving[None]
            )
        for h in range(query.size(1)):
            own_query, own_key = product_slowly(query[b, h], key[b, h // repeats].T, arriving[h])
            to_query[b, h] += own_query
            to_key[b, h // repeats] += own_key.T
    return to_query, to_key, to_value


def masks(form: str, seed: int, batch: int, heads: int, length: int) -> Tensor | None:
    low = torch.tensor(-math.inf, dtype=torch.float64)
    if form == "causal":
        return torch.where(torch.ones(length, length).tril() > 0, 0, low)
    if form == "padding":
        return torch.where(torch.arange(length) < length - 1, 0, low).expand(batch, 1, 1, length)
    return numbers(seed + 400, 1, heads, length, length) if form == "bias" else None


@pytest.mark.parametrize("shape", ATTENTION_SHAPES)
@pytest.mark.parametrize("form", ["plain", "causal", "padding", "bias", "grouped", "scale"])
def test_fused_attention_is_its_definition(form, shape):
    batch, heads, length, width = shape
    shared = 2 if form == "grouped" else 1
    for seed in SEEDS:
        query = numbers(seed, batch, heads * shared, length, width)
        key, value = numbers(seed + 100, batch, heads, length, width), numbers(seed + 200, batch, heads, length, width)
        mask = masks(form, seed, batch, heads, length)
        scale = 0.3 if form == "scale" else width**-0.5
        result = F.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=shared > 1)
        arriving = numbers(seed + 300, *result.shape)
        how = dict(score_mask=ScoreMask(mask), scale=scale, is_grouped=shared > 1, has_bias=form == "bias")
        found = share(
            rules.share_attention, make_call(AttentionCall, result, **how), arriving, result, query, key, value
        )
        wanted = attention_slowly(query, key, value, arriving, mask, scale, has_bias=form == "bias")
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)


def test_a_query_that_may_look_nowhere_passes_nothing_on():
    query, key, value, arriving = (numbers(i, 1, 1, 2, 3) for i in range(4))
    mask = torch.tensor([[0.0, 0.0], [-math.inf, -math.inf]], dtype=torch.float64)
    weights = rules.compute_attention_weights(query @ key.mT, mask)
    assert torch.equal(weights[0, 0, 1], torch.zeros(2, dtype=torch.float64))
    call = make_call(AttentionCall, query, score_mask=ScoreMask(mask), scale=1.0)
    found = share(rules.share_attention, call, arriving, weights @ value, query, key, value)
    assert all(one.isfinite().all() for one in found)
    assert not found[0][0, 0, 1].any()


def test_relevance_of_the_attention_matrix_is_the_share_of_the_product_rule():
    for seed in SEEDS:
        weights, value, arriving = (
            numbers(seed, 2, 3, 4, 4).softmax(-1),
            numbers(seed + 1, 2, 3, 4, 5),
            numbers(seed + 2, 2, 3, 4, 5),
        )
        found = recipes.compute_attention_share(weights, value, weights @ value, arriving, EXACT)
        for b, h in itertools.product(range(2), range(3)):
            assert_same(found[b, h], product_slowly(weights[b, h], value[b, h], arriving[b, h])[0])


# --- conservation ----------------------------------------------------------------------------------------------------


def make_well_conditioned(
    rule_name: str, seed: int, dtype: torch.dtype
) -> tuple[OperationCall, Tensor, Tensor, tuple[Tensor, ...]]:
    """Call, relevance, result and operands for each rule, without bias. No denominator cancels by accident: rounding
    errors would then come from the numbers, not from the rule."""
    draw = lambda offset, *shape: away_from_zero(seed + offset, *shape, dtype=dtype)  # noqa: E731
    if rule_name in ("share_positive_products", "share_doubled_products"):
        x, weight = draw(0, 3, 6), draw(100, 5, 6)
        result = F.linear(x, weight)
        return make_call(LinearCall, result, weight=weight), draw(300, 3, 5), result, (x,)
    if rule_name in ("positive_convolution", "share_pixel_box"):
        x, weight = draw(0, 2, 2, 4, 4), draw(100, 3, 2, 2, 2)
        run = lambda start, w: F.conv2d(start, w, stride=2)  # noqa: E731
        result = run(x, weight)
        return make_call(ConvolutionCall, result, weight=weight, convolve=run), draw(300, *result.shape), result, (x,)
    if rule_name == "share_product_halves":
        a, v = draw(0, 2, 3, 4).softmax(-1), draw(100, 2, 4, 5).abs() * draw(200, 2, 1, 5).sign()
        return make_call(ProductCall, a, run=torch.matmul), draw(300, 2, 3, 5), a @ v, (a, v)
    if rule_name == "share_pooled":
        x, run = draw(0, 2, 4, 3).abs() * draw(100, 2, 1, 3).sign(), lambda t: t.mean(1)
        return make_call(PoolCall, run(x), run=run), draw(300, 2, 3), run(x), (x,)
    if rule_name in ("share_normalised_addition", "share_plain_addition"):
        u = draw(0, 2, 3, 4)
        v = u * (0.5 + draw(100, 2, 3, 4).abs()) * draw(200, 2, 1, 4).sign() * 3
        return make_call(AdditionCall, u), draw(300, 2, 3, 4), u + v, (u, v)
    if rule_name == "pass_scaled":
        x, factor = draw(0, 2, 3), draw(100, 3) * torch.tensor([1, 0, 1])
        return make_call(ScaleCall, x, factor=factor), draw(300, 2, 3), x * factor, (x,)
    if rule_name == "pass_selected":
        x = draw(0, 2, 4, 3)
        return make_call(SelectCall, x[:, 0], run=lambda t: t[:, 0]), draw(300, 2, 3), x[:, 0], (x,)
    if rule_name == "pass_joined":
        x, token = draw(0, 2, 4, 3), draw(100, 2, 1, 3)
        call = make_call(JoinCall, x, axis=1, sizes=[1, 4], carrying=[False, True])
        return call, draw(300, 2, 5, 3), torch.cat([token, x], 1), (x,)
    if rule_name in ("share_attention", "attention_with_bias"):
        query, key = draw(0, 2, 2, 3, 4).abs(), draw(100, 2, 2, 3, 4).abs()
        value = draw(200, 2, 2, 3, 4).abs()
        has_bias = rule_name.endswith("bias")
        mask = draw(400, 1, 2, 3, 3).abs() if has_bias else None
        result = F.scaled_dot_product_attention(query, key, value, mask, scale=0.5)
        call = make_call(AttentionCall, result, score_mask=ScoreMask(mask), scale=0.5, has_bias=has_bias)
        return call, draw(300, 2, 2, 3, 4), result, (query, key, value)
    x = draw(0, 2, 3, 4)
    return make_call(AdditionCall, x, constant=0), draw(300, 2, 3, 4), x, (x,)


CONSERVING = (
    "share_positive_products share_doubled_products positive_convolution share_pixel_box share_product_halves "
    "share_pooled share_normalised_addition share_plain_addition "
    "pass_scaled pass_selected pass_joined share_attention attention_with_bias pass_unchanged pass_unmasked"
).split()
NAMED = {"positive_convolution": rules.share_positive_products, "attention_with_bias": rules.share_attention}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule_name", CONSERVING)
def test_shares_and_what_was_absorbed_add_up(rule_name, dtype):
    """For every example: what arrived is what the operands got, and what was absorbed."""
    rule = NAMED.get(rule_name) or getattr(rules, rule_name)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for seed in SEEDS:
        call, arriving, result, operands = make_well_conditioned(rule_name, seed, dtype)
        absorbed: dict = {}
        recipe = CHEFER_BASELINE if rule_name in ("share_doubled_products", "share_plain_addition") else CHEFER
        shares = share(rule, call, arriving, result, *operands, recipe=recipe, absorbed=absorbed)
        given = sum(s.double().flatten(1).sum(1) for s in shares if s is not None)
        lost = sum(amount.double() for amount in absorbed.values()) if absorbed else 0.0
        wanted, size = arriving.double().flatten(1).sum(1), arriving.double().abs().flatten(1).sum(1)
        assert ((given + lost - wanted).abs() <= tolerance * size).all(), f"seed {seed}"


def test_the_baseline_doubles():
    """Every output has positive and negative inputs with weights of their sign, so the total is doubled exactly."""
    x = torch.tensor([[1.0, 2.0, -1.0, -3.0]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 1.0, -2.0, -1.0], [2.0, -1.0, 1.0, -1.0]], dtype=torch.float64)
    result, arriving, absorbed = F.linear(x, weight), torch.tensor([[3.0, 4.0]], dtype=torch.float64), {}
    (found,) = share(
        rules.share_doubled_products,
        make_call(LinearCall, result, weight=weight),
        arriving,
        result,
        x,
        absorbed=absorbed,
    )
    torch.testing.assert_close(found.sum(), torch.tensor(14.0, dtype=torch.float64))
    assert sum(absorbed.values()).item() == pytest.approx(-7.0)


def test_an_output_without_a_positive_product_absorbs_its_relevance():
    x, weight = torch.tensor([[1.0, 2.0]]).double(), torch.tensor([[-1.0, -1.0], [1.0, -1.0]]).double()
    result, arriving, absorbed = F.linear(x, weight), torch.tensor([[5.0, 3.0]]).double(), {}
    (found,) = share(
        rules.share_positive_products,
        make_call(LinearCall, result, weight=weight),
        arriving,
        result,
        x,
        absorbed=absorbed,
    )
    torch.testing.assert_close(found, torch.tensor([[3.0, 0.0]]).double())
    torch.testing.assert_close(absorbed[0, "no positive product"], torch.tensor([5.0]).double())


# --- planted denominators --------------------------------------------------------------------------------------------


def planted(dtype: torch.dtype) -> list[float]:
    epsilon = STABILISERS["signed"].epsilon(dtype)
    tiny = 1e-45 if dtype == torch.float32 else 5e-324
    sizes = (0.0, tiny, 1e-38, 1e-12, epsilon, 1e-9, 1e-3, 0.5)
    return [sign * size for size in sizes for sign in (1, -1)]


def cancelling(z: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two addends, alone in their example, whose stored sum is z."""
    return torch.tensor([[1.0]], dtype=dtype), torch.tensor([[-1.0]], dtype=dtype) + torch.tensor(z, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", [rules.share_plain_addition, rules.share_normalised_addition])
def test_an_addition_survives_any_denominator(rule, dtype):
    for z in planted(dtype):
        u, v = cancelling(z, dtype)
        shares = share(rule, make_call(AdditionCall, u), torch.ones_like(u), torch.full_like(u, z), u, v)
        assert all(s.isfinite().all() for s in shares), z
        bound = 1.001 / STABILISERS["signed"].epsilon(dtype)
        assert all(s.abs().max() <= bound for s in shares), z
        if rule is rules.share_plain_addition:
            assert shares[0].sign().item() == math.copysign(1, z)
            assert shares[1].sign().item() == -math.copysign(1, z)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_survives_any_denominator(dtype):
    """a = (1, -1), v = (1, 1): the stored result is z. Each share is a v R / z, halved."""
    for z in planted(dtype):
        a, v = torch.tensor([[[1.0, -1.0]]], dtype=dtype), torch.ones(1, 2, 1, dtype=dtype)
        result = torch.full((1, 1, 1), z, dtype=dtype)
        to_a, to_v = share(
            rules.share_product_halves,
            make_call(ProductCall, result, run=torch.matmul),
            torch.ones_like(result),
            result,
            a,
            v,
        )
        bound = 0.501 / STABILISERS["signed"].epsilon(dtype)
        for found in (to_a.flatten(), to_v.flatten()):
            assert found.isfinite().all() and (found.abs() <= bound).all(), z
            assert found.sign().tolist() == [math.copysign(1, z), -math.copysign(1, z)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_pooling_survives_any_denominator(dtype):
    for z in planted(dtype):
        x, result = torch.tensor([[1.0, -1.0]], dtype=dtype), torch.tensor([z], dtype=dtype)
        call = make_call(PoolCall, result, run=lambda t: t.mean(1))
        (found,) = share(rules.share_pooled, call, torch.ones_like(result), result, x)
        assert found.isfinite().all() and (found.abs() <= 0.501 / STABILISERS["signed"].epsilon(dtype)).all(), z
        assert found[0].sign().tolist() == [math.copysign(1, z), -math.copysign(1, z)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_survives_any_output_and_any_score(dtype):
    """The output of query 0 is planted, and query 1 is orthogonal to every key up to z."""
    for z in planted(dtype):
        query = torch.tensor([[[[1.0, 1.0], [z, 0.0]]]], dtype=dtype)
        key, value = torch.ones(1, 1, 2, 2, dtype=dtype), torch.tensor([[[[1.0], [-1.0]]]], dtype=dtype)
        result = torch.full((1, 1, 2, 1), z, dtype=dtype)
        shares = share(
            rules.share_attention,
            make_call(AttentionCall, result, scale=1.0),
            torch.ones_like(result),
            result,
            query,
            key,
            value,
        )
        assert all(s.isfinite().all() for s in shares), z


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", [rules.share_positive_products, rules.share_doubled_products])
def test_a_linear_layer_survives_any_denominator(rule, dtype):
    """One product of size |z| beside one of opposite sign: relevance is at most R, and never negative."""
    for z in planted(dtype):
        x = torch.tensor([[z, 1.0]], dtype=dtype)
        weight = torch.tensor([[math.copysign(1, z), -1.0]], dtype=dtype)
        result = F.linear(x, weight)
        (found,) = share(rule, make_call(LinearCall, result, weight=weight), torch.ones_like(result), result, x)
        assert found.isfinite().all() and (found >= 0).all(), z
        assert found[0, 0] <= 1.001 and found[0, 1] == 0, z
        if abs(z) == 0.5:
            assert found[0, 0] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_image_of_one_colour_gives_finite_relevance(dtype):
    """x = l = h: every contribution of the box is zero up to rounding."""
    for value in planted(dtype):
        x, weight = torch.full((1, 1, 2, 2), value, dtype=dtype), torch.ones(1, 1, 2, 2, dtype=dtype)
        run = lambda start, w: F.conv2d(start, w)  # noqa: E731
        result = run(x, weight)
        (found,) = share(
            rules.share_pixel_box,
            make_call(ConvolutionCall, result, weight=weight, convolve=run),
            torch.ones_like(result),
            result,
            x,
        )
        assert found.isfinite().all(), value


# --- examples are kept apart -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["batch first", "token first", "heads folded", "tokens folded"])
def test_the_sums_of_an_addition_are_per_example(layout):
    """A batch gives each example what it gets alone, wherever its entries lie."""
    u, v, arriving = numbers(0, 3, 4, 2), numbers(1, 3, 4, 2), numbers(2, 3, 4, 2)
    alone = [
        torch.cat(pair)
        for pair in zip(
            *(addition_slowly(u[i : i + 1], v[i : i + 1], arriving[i : i + 1]) for i in range(3)), strict=True
        )
    ]
    change = {
        "batch first": lambda t: t,
        "token first": lambda t: t.transpose(0, 1),
        "heads folded": lambda t: t.unflatten(-1, (2, 1)).transpose(1, 2).flatten(0, 1),
        "tokens folded": lambda t: t.flatten(0, 1),
    }[layout]
    label = change(torch.arange(3, dtype=torch.int32).view(3, 1, 1).expand(3, 4, 2))
    call = AdditionCall(step=0, operation="add", place="place", samples=SampleGroups(label, 3))
    found = share(rules.share_normalised_addition, call, change(arriving), change(u + v), change(u), change(v))
    for one, other in zip(found, alone, strict=True):
        assert_same(one, change(other))


# --- recipes ---------------------------------------------------------------------------------------------------------


def test_recipes_by_name():
    assert recipes.make_recipe("chefer") == CHEFER
    assert recipes.make_recipe("baseline") == recipes.make_recipe("chefer_baseline") == CHEFER_BASELINE
    assert recipes.make_recipe("chefer", "released") != CHEFER
    assert len({recipes.make_recipe("chefer"), CHEFER, recipes.make_recipe("chefer", "none")}) == 2


def test_unknown_recipes_and_stabilisers_are_refused():
    with pytest.raises(MethodError, match=r"No recipe 'cheffer'. Did you mean 'chefer'\?"):
        recipes.make_recipe("cheffer")
    with pytest.raises(MethodError, match=r"No stabiliser 'sined'. Did you mean 'signed'\?"):
        recipes.make_recipe("chefer", "sined")


def test_every_kind_of_operation_has_a_rule_in_every_recipe():
    kinds = (
        "linear pixels product add pool attention scale bias mask normalise select join norm softmax activation".split()
    )
    for recipe in recipes.RECIPES.values():
        assert set(recipe.rules) == set(kinds)


def test_a_strict_switch_names_the_operation_that_is_not_finite():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    call = ActivationCall(step=0, operation="gelu", place="block.3.mlp", run=F.gelu)
    out = RuleNode.apply(Switch(recipe=CHEFER, is_strict=True), call, x * 2, x)
    with pytest.raises(NonFinite, match=r"The relevance of gelu in block\.3\.mlp is not finite"):
        torch.autograd.grad(out, x, torch.tensor([math.nan, 1.0]))


# --- rules of one's own ----------------------------------------------------------------------------------------------


def share_by_magnitude(call: AdditionCall, arriving: Tensor):
    u, v = (addend.abs() for addend in call.addends)
    s = call.divide(arriving, u + v)
    return call.fit(s * u, s * v)


def share_by_power(call: AdditionCall, arriving: Tensor):
    u, v = (addend.abs() ** call.parameters["power"] for addend in call.addends)
    s = call.divide(arriving, u + v)
    return call.fit(s * u, s * v)


BY_MAGNITUDE = CHEFER.replace("by_magnitude", add=share_by_magnitude)
BY_POWER = CHEFER.replace("by_power", add=share_by_power, parameters={"power": 1.0})


def test_a_recipe_with_one_rule_replaced():
    assert BY_MAGNITUDE.rules == {**CHEFER.rules, "add": share_by_magnitude}
    assert BY_MAGNITUDE.name == "by_magnitude" and BY_MAGNITUDE.sends == CHEFER.sends
    assert recipes.make_recipe(BY_MAGNITUDE) == BY_MAGNITUDE != CHEFER


def test_recipes_of_the_same_name_with_other_rules_are_not_equal():
    assert replace(CHEFER, name="by_magnitude") != BY_MAGNITUDE


def test_a_recipe_keeps_its_stabiliser_unless_another_is_asked_for():
    released = recipes.make_recipe("chefer", "released").replace("mine", add=share_by_magnitude)
    assert recipes.make_recipe(released).stabiliser.name == "released"
    assert recipes.make_recipe(released, "none").stabiliser.name == "none"


def test_rules_for_unknown_kinds_and_names_that_are_taken_are_refused():
    with pytest.raises(MethodError, match=r"No kind of operation 'ad'. Did you mean 'add'\? Available: linear, "):
        CHEFER.replace("mine", ad=share_by_magnitude)
    with pytest.raises(MethodError, match="pass_addition_slope for 'add' belongs to recipes that send slope"):
        CHEFER.replace("mine", add=slopes.pass_addition_slope)
    with pytest.raises(MethodError, match=r"Choose another name; 'chefer' is the recipe"):
        CHEFER.replace("chefer", add=share_by_magnitude)


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "llama"])
@pytest.mark.parametrize("recipe", [BY_MAGNITUDE, BY_POWER], ids=lambda recipe: recipe.name)
def test_a_rule_of_ones_own_explains_and_conserves(zoo, name, recipe):
    it = zoo(name)
    e = why.explain(why.open(it.module), it.inputs, "lrp", recipe=recipe, health=True)
    assert e.settings["recipe"] == recipe.name
    assert bool((e.health.error <= 1e-4).all())


def test_its_parameters_are_settings(zoo):
    it = zoo("bert")
    model = why.open(it.module)
    plain, one, two = (
        why.explain(model, it.inputs, "lrp", recipe=recipe, **settings)
        for recipe, settings in ((BY_MAGNITUDE, {}), (BY_POWER, {}), (BY_POWER, {"power": 2}))
    )
    assert torch.equal(plain.scores, one.scores) and not torch.equal(one.scores, two.scores)
    assert two.settings["power"] == 2.0


def test_a_recipe_in_the_table_is_used_by_name(zoo, monkeypatch):
    monkeypatch.setitem(recipes.RECIPES, "by_magnitude", BY_MAGNITUDE)
    it = zoo("bert")
    by_name, itself = (
        why.explain(why.open(it.module), it.inputs, "lrp", recipe=recipe) for recipe in ("by_magnitude", BY_MAGNITUDE)
    )
    assert torch.equal(by_name.scores, itself.scores)


@pytest.mark.parametrize(
    ("returned", "what"), [(lambda arriving: arriving, "a Tensor"), (lambda arriving: (arriving,) * 3, "3 shares")]
)
def test_a_rule_that_returns_something_else_is_named(zoo, returned, what):
    it = zoo("bert")
    recipe = CHEFER.replace("mine", add=lambda call, arriving: returned(arriving))
    with pytest.raises(MethodError, match=rf"The rule for 'add' of the recipe mine .* \(2 for add in .* {what}\."):
        why.explain(why.open(it.module), it.inputs, "lrp", recipe=recipe)


def test_more_shares_than_operands_are_refused():
    call = make_call(NormCall, U).attach(Switch(recipe=CHEFER), U, [U])
    with pytest.raises(MethodError, match=r"fit\(\) got 2 shares; operation in place has 1 operand"):
        call.fit(R, R)


def test_inside_fused_attention_a_gradient_cannot_pass(zoo):
    it = zoo("bert")
    recipe = recipes.ATTNLRP.replace("mine", softmax=lambda call, slope: None)
    with pytest.raises(MethodError, match=r"The rule for 'softmax' of the recipe mine returned None inside fused att"):
        why.explain(why.open(it.module), it.inputs, "attnlrp", recipe=recipe)


def test_a_softmax_held_constant_inside_fused_attention_leaves_the_values_their_share():
    query, key, value, arriving = (numbers(i, 1, 1, 2, 3) for i in range(4))
    result = F.scaled_dot_product_attention(query, key, value, scale=1.0)
    call = make_call(AttentionCall, result, scale=1.0)
    recipe = CHEFER.replace("mine", softmax=lambda call, arriving: call.fit())
    found = share(rules.share_attention, call, arriving, result, query, key, value, recipe=recipe)
    plain = share(rules.share_attention, call, arriving, result, query, key, value)
    assert found[:2] == (None, None) and torch.equal(found[2], plain[2])


def test_the_public_module_has_every_rule_of_every_recipe():
    used = {rule.__name__ for recipe in recipes.RECIPES.values() for rule in recipe.rules.values()}
    assert used <= set(why.rules.__all__)
    assert why.rules.__all__ == sorted(why.rules.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    assert all(hasattr(why.rules, name) for name in why.rules.__all__)


def test_calls_hold_no_tensor_after_a_relevance_pass():
    """The graph keeps the call; what it is attached to lives in a copy."""
    call = make_call(AdditionCall, U)
    call.attach(Switch(recipe=CHEFER), U + V, [U, V])
    assert not {"result", "operands", "switch"} & vars(call).keys()
