"""Rules that send slopes, against slow definitions in terms of relevance; by hand; conservation.

A slope is relevance divided by the tensor it belongs to. The slow definitions work on relevance, one entry at a time
and with the divisions that slopes avoid, so that the two have nothing in common but the result.
"""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from conftest import FAMILIES, animal
from rule_calls import assert_same, away_from_zero, make_call, numbers, softmax_slowly
from torch import Tensor

import whyformer as why
from whyformer._engine.record import record
from whyformer._engine.relevance import rules, slopes
from whyformer._engine.relevance.calls import (
    ActivationCall,
    AdditionCall,
    AttentionCall,
    Gate,
    LinearCall,
    NormCall,
    ProductCall,
    ScaleCall,
    SoftmaxCall,
)
from whyformer._engine.relevance.dispatch import hold_spread
from whyformer._engine.relevance.node import Switch
from whyformer._engine.relevance.recipes import (
    ATTNLRP,
    CP_LRP,
    EPSILON,
    GAMMA,
    LIBRA,
    PA_LRP,
    RECIPES,
    compute_attention_share,
    make_recipe,
)
from whyformer._engine.tracing.fused_attention import ScoreMask
from whyformer._engine.tracing.operations import Operation
from whyformer._engine.tracing.provenance import Trace, label_axis
from whyformer.errors import MethodError

SEEDS = range(8)
SLOPES = [one for one in RECIPES.values() if one.sends == "slope"]


def apply(rule, call, arriving: Tensor, result: Tensor, *operands: Tensor, recipe=ATTNLRP, absorbed=None, placed=None):
    return rule(call.attach(Switch(recipe=recipe, absorbed=absorbed, placed=placed), result, operands), arriving)


def sent(rule, call, relevance: Tensor, result: Tensor, *operands: Tensor, recipe=ATTNLRP, absorbed=None) -> list:
    """The relevance of each operand, by a rule that is given the slope of the result."""
    shares = apply(rule, call, relevance / result, result, *operands, recipe=recipe, absorbed=absorbed)
    return [None if share is None else share * x for share, x in zip(shares, operands, strict=True)]


def numbered(*values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- linear ----------------------------------------------------------------------------------------------------------


def gamma_slowly(x: Tensor, weight: Tensor, bias: Tensor, relevance: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """c_ij = x_j w_ij, times 1 + gamma where it has the sign of the output; the bias is an input of 1."""
    to_x, to_bias = torch.zeros_like(x), torch.zeros(len(x), dtype=torch.float64)
    for n, i in itertools.product(range(len(x)), range(len(weight))):
        terms = [*(x[n] * weight[i]).tolist(), bias[i].item()]
        output = math.fsum(terms)
        favoured = [t * (1 + gamma) if t * output > 0 else t for t in terms]
        parts = [t / math.fsum(favoured) * relevance[n, i].item() for t in favoured]
        to_x[n] += torch.tensor(parts[:-1], dtype=torch.float64)
        to_bias[n] += parts[-1]
    return to_x, to_bias


def test_gamma_by_hand():
    """Products 1, 2, -1 and bias -1: the output is 1. With gamma 1 they count 2, 4, -1, -1, together 4."""
    x, weight, bias = numbered([1, -2, 0.5]), numbered([1, -1, -2]), numbered(-1)
    result = F.linear(x, weight, bias)
    absorbed: dict = {}
    call, recipe = make_call(LinearCall, result, weight=weight, bias=bias), make_recipe("gamma", gamma=1)
    (found,) = sent(slopes.favour_agreeing_products, call, numbered([1]), result, x, recipe=recipe, absorbed=absorbed)
    torch.testing.assert_close(found, numbered([0.5, 1.0, -0.25]))
    torch.testing.assert_close(absorbed[0, "biases"], numbered(-0.25))


@pytest.mark.parametrize("gamma", [0.0, 0.25, 1.0, 50.0])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 3, 4), (3, 5, 2)])
def test_gamma_is_its_definition(shape, gamma):
    rows, ins, outs = shape
    for seed in SEEDS:
        x, weight, bias = numbers(seed, rows, ins), numbers(seed + 100, outs, ins), numbers(seed + 200, outs)
        result, arriving, absorbed = F.linear(x, weight, bias), numbers(seed + 300, rows, outs), {}
        call = make_call(LinearCall, result, weight=weight, bias=bias)
        (found,) = sent(
            slopes.favour_agreeing_products,
            call,
            arriving,
            result,
            x,
            recipe=make_recipe("gamma", gamma=gamma),
            absorbed=absorbed,
        )
        wanted, to_bias = gamma_slowly(x, weight, bias, arriving, gamma)
        assert_same(found, wanted, 1e-9)
        assert_same(absorbed[0, "biases"], to_bias, 1e-9)


def epsilon_slowly(x: Tensor, weight: Tensor, bias: Tensor, relevance: Tensor, epsilon: float) -> Tensor:
    found = torch.zeros_like(x)
    for n, i, j in itertools.product(range(len(x)), range(len(weight)), range(x.size(1))):
        z = math.fsum([*(x[n] * weight[i]).tolist(), bias[i].item()])
        z += math.copysign(epsilon, z)
        found[n, j] += (x[n, j] * weight[i, j] / z * relevance[n, i]).item()
    return found


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.1, 1.0])
def test_epsilon_is_its_definition_and_the_rest_is_absorbed(epsilon):
    rules_of = make_recipe("epsilon", epsilon=epsilon)
    for seed in SEEDS:
        x, weight, bias = numbers(seed, 2, 4), numbers(seed + 100, 3, 4), numbers(seed + 200, 3)
        result, arriving, absorbed = F.linear(x, weight, bias), numbers(seed + 300, 2, 3), {}
        call = make_call(LinearCall, result, weight=weight, bias=bias)
        (found,) = apply(rules.share_epsilon_products, call, arriving, result, x, recipe=rules_of, absorbed=absorbed)
        assert_same(found, epsilon_slowly(x, weight, bias, arriving, epsilon), 1e-9)
        torch.testing.assert_close(found.sum(1) + sum(absorbed.values()), arriving.sum(1))


def test_epsilon_by_hand():
    """Products 1, 2 and bias 1 are 4; with epsilon 1, fifths: 1, 2, 1 and one for epsilon."""
    x, weight, bias, absorbed = numbered([1, 2]), numbered([1, 1]), numbered(1), {}
    call, result = make_call(LinearCall, x, weight=weight, bias=bias), F.linear(x, weight, bias)
    recipe = make_recipe("epsilon", epsilon=1)
    (found,) = apply(rules.share_epsilon_products, call, numbered([5]), result, x, recipe=recipe, absorbed=absorbed)
    torch.testing.assert_close(found, numbered([1.0, 2.0]))
    taken = {who: amount.item() for (_, who), amount in absorbed.items()}
    assert taken == pytest.approx({"biases": 1, "stabiliser": 1})


# --- what is not linear ----------------------------------------------------------------------------------------------


def test_a_secant_passes_relevance_unchanged():
    for function in (F.gelu, F.silu, torch.tanh, torch.relu, lambda x: x.pow(3)):
        x, arriving = away_from_zero(0, 2, 5), numbers(1, 2, 5)
        result = function(x)
        slope = torch.where(result == 0, 0, arriving / result)
        (share,) = apply(slopes.pass_secant, make_call(ActivationCall, result, run=function), slope, result, x)
        assert_same(share * x, torch.where(result == 0, 0, arriving), 1e-12)


def test_a_secant_at_zero_is_finite():
    x = numbered([0.0, -0.0, 1e-320, 1.0])
    (share,) = apply(slopes.pass_secant, make_call(ActivationCall, x, run=F.gelu), torch.ones_like(x), F.gelu(x), x)
    assert share.isfinite().all()


def test_a_tangent_leaves_the_gradient_alone_and_absorbs_the_curvature():
    """GELU at 1: 0.8413 less 1.0833 is made from nothing."""
    x, absorbed = numbered([1.0]), {}
    call = make_call(ActivationCall, x, run=F.gelu)
    one = torch.ones_like(x)
    assert apply(slopes.pass_tangent, call, one, F.gelu(x), x, recipe=CP_LRP, absorbed=absorbed) is None
    assert absorbed[0, "curvature of activations"].item() == pytest.approx(0.841345 - 1.083316, abs=1e-5)


def softmax_rule_slowly(x: list[float], relevance: list[float]) -> list[float]:
    """Proposition 3.1 of AttnLRP: R_i = x_i (R_i - y_i * sum of R)."""
    total = math.fsum(relevance)
    return [a * (r - y * total) for a, r, y in zip(x, relevance, softmax_slowly(x), strict=True)]


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax_is_its_definition(axis):
    for seed in SEEDS:
        x, arriving, absorbed = numbers(seed, 2, 3, 4), numbers(seed + 1, 2, 3, 4), {}
        result = x.softmax(axis)
        call = make_call(SoftmaxCall, result, axis=axis)
        (found,) = sent(slopes.expand_softmax, call, arriving, result, x, absorbed=absorbed)
        rows, back = (x.movedim(axis, -1), arriving.movedim(axis, -1))
        wanted = [
            [softmax_rule_slowly(*pair) for pair in zip(*two, strict=True)]
            for two in zip(rows.tolist(), back.tolist(), strict=True)
        ]
        assert_same(found.movedim(axis, -1), torch.tensor(wanted, dtype=torch.float64))
        torch.testing.assert_close(absorbed[0, "softmax"], (arriving - found).flatten(1).sum(1))


def test_softmax_by_hand():
    """Two equal scores of 1: each has half, and gets what the other lost."""
    x, arriving = numbered([1.0, 1.0]), numbered([3.0, 1.0])
    call = make_call(SoftmaxCall, x)
    (found,) = sent(slopes.expand_softmax, call, arriving, x.softmax(-1), x)
    torch.testing.assert_close(found, numbered([1.0, -1.0]))


def norm_slowly(x: Tensor, weight: Tensor, bias: Tensor, eps: float, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """y_i = sum over j of (delta_ij - 1/n) x_j w_i / sigma, plus b_i, shared out in proportion; sigma a number."""
    found, to_bias, n = torch.zeros_like(x), torch.zeros(len(x), dtype=torch.float64), x.size(-1)
    for row in range(len(x)):
        values = x[row].tolist()
        mean = math.fsum(values) / n
        sigma = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / n + eps)
        for i in range(n):
            terms = [((i == j) - 1 / n) * values[j] * weight[i].item() / sigma for j in range(n)]
            total = math.fsum(terms) + bias[i].item()
            for j, term in enumerate(terms):
                found[row, j] += term / total * relevance[row, i].item()
            to_bias[row] += bias[i].item() / total * relevance[row, i].item()
    return found, to_bias


def test_a_layer_norm_is_its_definition():
    for seed in SEEDS:
        x, weight, bias = numbers(seed, 2, 5), 1 + 0.1 * numbers(seed + 1, 5), numbers(seed + 2, 5)
        result, arriving, absorbed = F.layer_norm(x, (5,), weight, bias, 1e-3), numbers(seed + 3, 2, 5), {}
        run = hold_spread(Operation("layer_norm", F.layer_norm, (x, (5,), weight, bias, 1e-3), {}))
        (found,) = sent(
            slopes.hold_norm_spread, make_call(NormCall, result, linearised=run), arriving, result, x, absorbed=absorbed
        )
        wanted, to_bias = norm_slowly(x, weight, bias, 1e-3, arriving)
        assert_same(found, wanted, 1e-9)
        assert_same(absorbed[0, "biases"], to_bias, 1e-9)


NORMS = {
    "layer_norm": (F.layer_norm, ((4,),), dict(weight=numbers(1, 4), bias=numbers(2, 4), eps=1e-2), (3, 4)),
    "layer_norm plain": (F.layer_norm, ((2, 3),), {}, (2, 2, 3)),
    "rms_norm": (F.rms_norm, ((4,),), dict(weight=numbers(1, 4)), (3, 4)),
    "rms_norm eps": (F.rms_norm, ((4,),), dict(eps=0.5), (3, 4)),
    "normalize": (F.normalize, (), dict(dim=-1), (3, 4)),
    "normalize p": (F.normalize, (), dict(p=1.0, dim=1), (3, 4)),
    "group_norm": (F.group_norm, (2,), dict(weight=numbers(1, 4), bias=numbers(2, 4), eps=1e-2), (2, 4, 3)),
    "instance_norm": (F.instance_norm, (), dict(weight=numbers(1, 2), bias=numbers(2, 2), eps=1e-2), (2, 2, 3)),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_with_its_spread_held_is_the_norm(name):
    """At the point itself it has the value of the norm, but for the bias; and it is linear."""
    function, args, kwargs, shape = NORMS[name]
    x = numbers(0, *shape)
    run = hold_spread(Operation(function.__name__, function, (x, *args), kwargs))
    without = {key: value for key, value in kwargs.items() if key != "bias"}
    torch.testing.assert_close(run(x), function(x, *args, **without))
    torch.testing.assert_close(run(3 * x), 3 * run(x))


def test_a_batch_norm_is_linear_but_for_its_mean_and_bias():
    """They are those of the training data: y = (x - mean) weight / spread + bias."""
    x, mean, variance, weight, bias = numbers(2, 2, 3), numbers(0, 3), numbers(1, 3).abs(), numbers(3, 3), numbers(4, 3)
    arguments = (x, mean, variance, weight, bias)
    run = hold_spread(Operation("batch_norm", F.batch_norm, arguments, {"eps": 0.5}))
    torch.testing.assert_close(run(x), x * weight / (variance + 0.5).sqrt())
    torch.testing.assert_close(run(x - mean) + bias, F.batch_norm(*arguments, eps=0.5))


def test_products_by_hand():
    """0.75 * 1 + 0.25 * 3 = 1.5: both terms are half of it. Halved, each factor gets a half of that; held, the values
    get all."""
    a, v, arriving = numbered([0.75, 0.25]).unsqueeze(0), numbered([1.0], [3.0]).unsqueeze(0), numbered([1.0])[None]
    call = make_call(ProductCall, a, run=torch.matmul, gate=Gate(0, is_attention=True))
    to_a, to_v = sent(slopes.halve_product, call, arriving, a @ v, a, v)
    torch.testing.assert_close(to_a, numbered([0.25, 0.25])[None])
    torch.testing.assert_close(to_v, numbered([0.25], [0.25])[None])
    for rule in (slopes.hold_gates, slopes.hold_attention):
        to_a, to_v = sent(rule, call, arriving, a @ v, a, v)
        assert to_a is None
        torch.testing.assert_close(to_v, numbered([0.5], [0.5])[None])


def test_a_gate_is_held_by_cp_lrp_and_shared_by_libragrad():
    gate, up, arriving = numbers(0, 2, 3), numbers(1, 2, 3), numbers(2, 2, 3)
    call = make_call(ProductCall, gate, run=torch.mul, gate=Gate(0, is_attention=False))
    nothing, everything = sent(slopes.hold_gates, call, arriving, gate * up, gate, up)
    assert nothing is None
    assert_same(everything, arriving)
    for half in sent(slopes.hold_attention, call, arriving, gate * up, gate, up):
        assert_same(half, arriving / 2)


def test_without_a_gate_a_product_is_halved():
    a, b, arriving = numbers(0, 2, 3), numbers(1, 2, 3), numbers(2, 2, 3)
    for rule in (slopes.halve_product, slopes.hold_gates, slopes.hold_attention):
        for half in sent(rule, make_call(ProductCall, a, run=torch.mul), arriving, a * b, a, b):
            assert_same(half, arriving / 2)
    (alone,) = sent(slopes.hold_gates, make_call(ProductCall, a, run=lambda x: x * b), arriving, a * b, a)
    assert_same(alone, arriving)


def test_addition_is_in_proportion_and_constants_absorb_their_share():
    u, v, arriving, absorbed = numbers(0, 2, 3), numbers(1, 2, 3), numbers(2, 2, 3), {}
    to_u, to_v = sent(
        slopes.pass_addition_slope, make_call(AdditionCall, u, signs=(1, -0.5)), arriving, u - 0.5 * v, u, v
    )
    assert_same(to_u, arriving * u / (u - 0.5 * v))
    assert_same(to_v, arriving * -0.5 * v / (u - 0.5 * v))
    call = make_call(AdditionCall, u, constant=v, constant_is="positions")
    (alone,) = sent(slopes.pass_addition_slope, call, arriving, u + v, u, absorbed=absorbed)
    assert_same(alone, arriving * u / (u + v))
    torch.testing.assert_close(alone.sum(1) + absorbed[0, "positions"], arriving.sum(1))


# --- attention -------------------------------------------------------------------------------------------------------


def product_parts(a: Tensor, b: Tensor, relevance: Tensor, to_a: float, to_b: float) -> tuple[Tensor, Tensor]:
    """Each term of each output gets its part of it, and gives `to_a` and `to_b` of that to its factors."""
    out_a, out_b = torch.zeros_like(a), torch.zeros_like(b)
    for q, d in itertools.product(range(a.size(0)), range(b.size(1))):
        terms = [(a[q, k] * b[k, d]).item() for k in range(a.size(1))]
        for k, term in enumerate(terms):
            part = term / math.fsum(terms) * relevance[q, d].item()
            out_a[q, k] += to_a * part
            out_b[k, d] += to_b * part
    return out_a, out_b


def attention_slowly(query: Tensor, key: Tensor, value: Tensor, relevance: Tensor, scale: float, part: float):
    """One head: products, softmax by its expansion, products, all in relevance."""
    scores = query @ key.T * scale
    weights = torch.tensor([softmax_slowly(row) for row in scores.tolist()], dtype=torch.float64)
    to_weights, to_value = product_parts(weights, value, relevance, part, 1 - part)
    rows = [softmax_rule_slowly(*pair) for pair in zip(scores.tolist(), to_weights.tolist(), strict=True)]
    to_query, to_key = product_parts(query, key.T, torch.tensor(rows, dtype=torch.float64), 0.5, 0.5)
    return to_query, to_key.T, to_value, to_weights


@pytest.mark.parametrize("rules_of", [ATTNLRP, PA_LRP, GAMMA, CP_LRP, LIBRA], ids=lambda one: one.name)
@pytest.mark.parametrize("form", ["plain", "grouped", "masked"])
def test_fused_attention_is_its_definition(rules_of, form):
    heads, keys = (2, 1) if form == "grouped" else (2, 2)
    part = rules_of.attention_part
    for seed in SEEDS:
        query = numbers(seed, 1, heads, 3, 2)
        key, value = numbers(seed + 1, 1, keys, 4, 2), numbers(seed + 2, 1, keys, 4, 2)
        mask = None
        if form == "masked":
            mask = torch.tensor([0.0, 0.0, 0.0, -math.inf], dtype=torch.float64).expand(1, 1, 3, 4)
        result = F.scaled_dot_product_attention(query, key, value, mask, scale=0.3, enable_gqa=True)
        arriving = numbers(seed + 3, *result.shape)
        call = make_call(AttentionCall, result, score_mask=ScoreMask(mask), scale=0.3, is_grouped=heads != keys)
        found = sent(rules.share_attention, call, arriving, result, query, key, value, recipe=rules_of)
        seen = 3 if form == "masked" else 4
        wanted = [torch.zeros_like(t) for t in (query, key, value)]
        for h in range(heads):
            own = 0 if form == "grouped" else h
            alone = attention_slowly(
                query[0, h], key[0, own, :seen], value[0, own, :seen], arriving[0, h], 0.3, part
            )  # fmt: skip
            wanted[0][0, h] += alone[0]
            wanted[1][0, own, :seen] += alone[1]
            wanted[2][0, own, :seen] += alone[2]
            if part:
                weights = (query[0, h] @ key[0, own, :seen].T * 0.3).softmax(-1)
                shared = compute_attention_share(
                    weights, value[0, own, :seen], result[0, h], arriving[0, h] / result[0, h], rules_of
                )
                assert_same(shared, alone[3], 1e-9)
        if part == 0:
            assert found[0] is None and found[1] is None
            assert_same(found[2], wanted[2], 1e-9)
            continue
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other, 1e-9)


def test_a_recipe_that_holds_attention_says_so():
    ones = torch.ones(1, 1, 2, 2)
    with pytest.raises(MethodError, match=r"The recipe libra holds attention constant.*chefer, .*attnlrp, pa_lrp\."):
        compute_attention_share(ones, ones, ones, ones, LIBRA)
    it = animal("bert")
    with pytest.raises(MethodError, match="cp_lrp holds attention constant"):
        why.explain(why.open(it.module), it.inputs, "partial_lrp", recipe="cp_lrp")


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("rules_of", [ATTNLRP, EPSILON], ids=lambda one: one.name)
def test_attention_has_the_same_relevance_in_both_kernels(name, rules_of):
    found = []
    for kernel in ("sdpa", "eager"):
        model = why.open(animal(name, kernel).module)
        capture = record(
            model, model.encode(animal(name).inputs), target=0, keep={"attention_relevance"}, recipes=[rules_of]
        )
        found.append(torch.stack(list(capture.get("attention_relevance", rules_of))))
    assert_same(*found, 1e-4 if name == "llama" else 1e-8)


# --- positions -------------------------------------------------------------------------------------------------------


def test_a_rotation_gives_half_to_its_position():
    """[head token channel] of one example: each token's position gets half of what its entries have."""
    x, factor, arriving = numbers(0, 2, 3, 4), numbers(1, 3, 4), numbers(2, 2, 3, 4)
    positions = Trace(samples=None, tokens=label_axis(1, 3, 3, x.device))
    result, placed = x * factor, {}
    call = make_call(ScaleCall, result, factor=factor, positions=positions)
    (share,) = apply(slopes.share_rotation, call, arriving / result, result, x, recipe=PA_LRP, placed=placed)
    assert_same(share * x, arriving / 2)
    torch.testing.assert_close(placed[0, "position"], arriving.sum((0, 2))[None] / 2)


@pytest.mark.parametrize("batch_axis", [0, 1])
def test_places_are_summed_to_examples_and_tokens(batch_axis):
    relevance = numbers(0, 2, 3, 4)
    places = Trace(label_axis(batch_axis, relevance.size(batch_axis), 3, relevance.device),
                   label_axis(1 - batch_axis, relevance.size(1 - batch_axis), 3, relevance.device))  # fmt: skip
    wanted = relevance.sum(-1) if batch_axis == 0 else relevance.sum(-1).T
    torch.testing.assert_close(slopes.sum_per_token(relevance, places), wanted)


PLACES = {"bert": 1, "gpt2": 1, "gpt": 1, "vit": 1, "deit": 1, "dinov2": 1, "llama": 6, "encoder": 0, "beit": 0}


@pytest.mark.parametrize(("name", "places"), PLACES.items())
def test_positions_are_found_and_tokens_and_positions_make_up_the_whole(name, places):
    """Learned ones are added once; rotary ones multiply queries and keys (two uses) by a cosine and a sine in each of 3
    layers. Registers join when positions have been added, and get nothing here."""
    it = animal(name)
    model = why.open(it.module)
    keep = {"token_relevance", "position_relevance", "hidden_relevance", "input_relevance"}
    capture = record(model, model.encode(it.inputs), target=[0, 1, 2], keep=keep, recipes=[PA_LRP], track_absorbed=True)
    tokens, positions = capture.get("token_relevance", PA_LRP), capture.get("position_relevance", PA_LRP)
    assert [len(uses) for uses in positions] == [2 if name == "llama" else 1] * places
    positions = [uses.sum(0) for uses in positions]
    if name in ("vit", "deit", "dinov2"):
        whole = capture.get("hidden_relevance", PA_LRP)[0].sum(-1)
        whole[:, 1:5] *= name != "dinov2"
        assert_same(tokens + sum(positions), whole, 1e-9)
    elif name == "llama":
        taken = sum(one.amount for one in capture.absorbed[PA_LRP] if one.what == "positions")
        assert_same(sum(p.sum(1) for p in positions), taken, 1e-5)
        assert_same(tokens, capture.get("input_relevance", PA_LRP).sum(-1), 1e-9)
    elif places:
        assert_same(tokens + sum(positions), capture.get("input_relevance", PA_LRP).sum(-1), 1e-9)


def test_only_recipes_that_send_slopes_tell_positions_apart():
    it = animal("bert")
    with pytest.raises(MethodError, match="The recipe chefer does not separate tokens from positions"):
        why.explain(why.open(it.module), it.inputs, "pa_lrp", recipe="chefer")
    assert why.explain(why.open(it.module), it.inputs, "pa_lrp", recipe="attnlrp").scores.isfinite().all()


# --- recipes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_the_logit_is_conserved_at_every_boundary(name):
    """What is there, and what was absorbed above it, is the explained logit (1 under the recipes that send relevance).
    Under LibraGrad only biases, positions and constants absorb: nothing is lost to a nonlinearity."""
    it = animal(name)
    model = why.open(it.module)
    recipes = [*SLOPES, EPSILON]
    keep = {"hidden_relevance", "input_relevance"}
    capture = record(model, model.encode(it.inputs), target=[0, 1, 2], keep=keep, recipes=recipes, track_absorbed=True)
    near = 1e-9 if name != "llama" else 1e-4  # its norms are computed in float32
    logits = torch.tensor([target.score for target in capture.targets], dtype=torch.float64)
    for one in recipes:
        sent_back = logits if one.sends == "slope" else torch.ones(3, dtype=torch.float64)
        levels = [(step, state.flatten(1)) for step, state in
                  zip(capture.boundaries, capture.get("hidden_relevance", one), strict=True)]  # fmt: skip
        levels.append((-1, capture.get("input_relevance", one).flatten(1)))
        for step, state in levels:
            above = sum(taken.amount for taken in capture.absorbed[one] if taken.step > step)
            error = (state.sum(1) + above - sent_back).abs()
            assert (error <= near * (state.abs().sum(1) + sent_back.abs())).all(), one.name
    lost = {taken.what for taken in capture.absorbed[LIBRA] if bool((taken.amount.abs() > 1e-6).any())}
    assert lost <= {"biases", "positions and other constants", "class token and other constants"}


def test_without_biases_libragrad_gives_all_of_the_logit_to_the_input():
    """Completeness: a Llama has no bias and no added position; its rotary ones are held."""
    it = animal("llama")
    e = why.explain(why.open(it.module), it.inputs, "libragrad", at="input", target=0)
    logits = torch.tensor([target.score for target in e.targets], dtype=torch.float64)
    torch.testing.assert_close(e.scores.double().sum(1), logits, rtol=1e-5, atol=1e-6)


def test_gamma_of_nothing_is_attnlrp():
    it = animal("vit")
    plain, none = (
        why.explain(why.open(it.module), it.inputs, method, target=0, **settings).pixels
        for method, settings in (("attnlrp", {}), ("lrp_gamma", {"gamma": 0}))
    )
    assert_same(none, plain)


def test_a_contrast_is_the_difference_of_two():
    it = animal("gpt2")
    for method in ("attnlrp", "pa_lrp", "libragrad"):
        model, settings = why.open(it.module), {"part": "token"} if method == "pa_lrp" else {}
        both, one, other = (
            why.explain(model, it.inputs, method, **options, **settings).scores
            for options in ({"target": 1, "versus": 2}, {"target": 1}, {"target": 2})
        )
        assert_same(both, one - other)


def test_recipes_have_parameters():
    assert make_recipe("gamma") == GAMMA == make_recipe("gamma", gamma=0.25)
    assert make_recipe("gamma", gamma=1) != GAMMA
    assert len({make_recipe("epsilon", epsilon=e) for e in (0.1, 0.1, 0.2)} | {EPSILON}) == 2
    assert make_recipe("epsilon", epsilon=0.5).stabiliser.epsilon(torch.float32) == 0.5
    with pytest.raises(MethodError, match=r"The recipe gamma has no parameter 'gama'\. Did you mean 'gamma'\?"):
        make_recipe("gamma", gama=1)
    with pytest.raises(MethodError, match=r"The recipe chefer has no parameter 'gamma'\. It has none\."):
        make_recipe("chefer", gamma=1)
    for strange in (-1, math.inf, math.nan, "a", True):
        with pytest.raises(MethodError, match="gamma must be a finite number >= 0, got "):
            make_recipe("gamma", gamma=strange)


def test_parameters_are_settings_of_the_method():
    it = animal("bert")
    model = why.open(it.module)
    wide, narrow = (why.explain(model, it.inputs, "lrp_gamma", gamma=g) for g in (2, 0.01))
    assert wide.settings == {"recipe": "gamma", "stabiliser": "signed", "gamma": 2.0}
    assert not torch.equal(wide.scores, narrow.scores)
    assert why.explain(model, it.inputs, "lrp", recipe="epsilon", epsilon=0.3).settings["epsilon"] == 0.3
    with pytest.raises(MethodError, match="lrp_gamma has no setting 'gamma'"):
        why.explain(model, it.inputs, "lrp_gamma", recipe="attnlrp", gamma=1)


class LogProbabilities(torch.nn.Module):
    """A classifier whose head ends in a log-softmax."""

    def __init__(self, classifier: torch.nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.classifier(input_ids=input_ids, attention_mask=attention_mask).logits.log_softmax(-1)


@pytest.mark.parametrize("method", ["libragrad", "cp_lrp"])
def test_a_log_softmax_at_the_end_is_not_held_constant(method):
    """A function of the output is of log p: the explanation is that of the logit minus the expected one, never 0."""
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=30, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_labels=3,
    )  # fmt: skip
    plain = hf.BertForSequenceClassification(config).double().eval()
    inputs = {"input_ids": torch.tensor([[3, 7, 1, 9]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    with torch.no_grad():
        weights = -plain(**inputs).logits[0].softmax(-1)
    weights[1] += 1
    found = why.explain(LogProbabilities(plain), inputs, method, target=lambda output: output[:, 1]).scores
    group = why.targets.Group(0, 1, 2, weights=weights.tolist())
    expected = why.explain(plain, inputs, method, target=group).scores
    assert found.abs().max() > 0
    torch.testing.assert_close(found, expected)
