r"""Relevance rules, and the recipes that choose them.

A rule takes the relevance R of an operation's result and says how much each operand gets:

    linear      y = xW + b      only products of positive sign carry relevance; the bias takes no part
                                $R_j = \sum_i \frac{(x_j w_{ji})^+}{\sum_k (x_k w_{ki})^+} R_i$
    product     O = A V         $R_A = \tfrac12 A \odot (\tfrac{R}{O} V^\top)$, and the same for V
    add         z = u + v       $R_u = u \odot R / z$, then each branch is scaled, per example, to add up to R
    softmax, norm, activation   R passes unchanged
    pixels      convolution     the z-B rule: x lies between the smallest and largest value of its picture

The rules of the newer recipes send R / x back instead of R (slopes.py). A `Recipe` is a table from the kind of an
operation to its rule. `CHEFER` is the rule set of Chefer, Gur & Wolf, Transformer Interpretability Beyond Attention
Visualization, CVPR 2021 (arXiv:2012.09838), eqs. 3 to 10; `CHEFER_BASELINE` what their released code runs under the
name "LRP": every linear layer doubles the total, and additions are not normalised. The other recipes each have a file
in methods/ that says where they come from.

Where we differ from the released code: its sums in `add` run over the whole batch and mix examples, ours are per
example (equal for a batch of one); it divides by z + 1e-9 whatever the sign of z, ours moves away from zero
(`stabiliser="released"` brings theirs back). The add rule is literal: where the two branches disagree in sign, the
branch opposite to R is flipped, as the paper's formula says.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from whyformer._engine.relevance import slopes
from whyformer._engine.relevance.node import (
    STABILISERS,
    OperationCall,
    Recipe,
    Shares,
    Switch,
    absorb_relevance,
    record_absorbed,
    samples_of,
    sends_slopes,
    stabilise_clone,
    stabiliser_of,
)
from whyformer._engine.relevance.slopes import apply_transpose, make_linear_maps, pick_constant_parts, undo_broadcast
from whyformer._engine.tracing.attention import compute_attention_weights
from whyformer.errors import MethodError, suggest_nearest

# --- rules -----------------------------------------------------------------------------------------------------------


def pass_unchanged(
    call: OperationCall, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    """All of it, to the first operand; the others (a gate, a statistic) get nothing."""
    first = operands[0]
    return undo_broadcast(relevance, first), *(None for _ in operands[1:])


def pass_scaled(
    call: OperationCall, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    """Multiplied by a constant: relevance passes, except where the constant is zero."""
    factor = call.facts["factor"]
    if isinstance(factor, Tensor):
        passed = torch.where(factor == 0, 0, relevance)
        absorb_relevance(switch, call, "zeroed", lambda: relevance - passed)
    else:
        passed = relevance if factor != 0 else torch.zeros_like(relevance)
    return (undo_broadcast(passed, operands[0]),)


def pass_unmasked(
    call: OperationCall, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares | None:
    """A mask was added: zero where it lets pass, and where it does not there is no relevance. (The released code
    divides all the same.)"""
    assert switch.recipe is not None
    if switch.recipe.stabiliser.name == "released":
        return switch.recipe.rules["add"](call, relevance, result, operands, switch)
    return (relevance,)


def pass_selected(
    call: OperationCall, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    """Picking entries: each gets what came back to it."""
    (x,) = operands
    assert call.run is not None
    return (apply_transpose(call.run, x, stabilise_clone(call, relevance, result, switch)),)


def pass_joined(
    call: OperationCall, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    """A concatenation: each part gets its own; what goes to constant parts (a class token, registers) is absorbed."""
    axis, sizes, carrying = call.facts["axis"], call.facts["sizes"], call.facts["carrying"]
    parts = relevance.split(sizes, axis)
    absorb_relevance(switch, call, "class token and other constants", lambda: pick_constant_parts(call, relevance))
    ours = [part for part, is_ours in zip(parts, carrying, strict=True) if is_ours]
    return tuple(part.squeeze(axis) for part in ours) if call.facts["is_stack"] else tuple(ours)


def share_positive_products(
    call: OperationCall, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    r"""Only products $x_j w_{ji} > 0$ carry relevance.

    Three products instead of eight: with $z = xW$ the positive ones sum to $Z^+ = (z + |x||W|)/2$, and with $S =
    R/Z^+$ the relevance of x is $(x \odot SW^\top + |x| \odot S|W|^\top)/2$. Where no product is positive, $Z^+$ is
    rounding noise of the size of $|x||W|$: such outputs pass nothing on.
    """
    (x,) = operands
    forward, back = make_linear_maps(call, x)
    weight = call.weight
    assert weight is not None
    magnitude, size = x.abs(), switch.magnitude(weight)
    bound = forward(magnitude, size)
    twice = bound - call.bias if call.bias is not None else bound.clone()
    twice.add_(result)  # 2 Z+; the halves of numerator and denominator cancel
    is_noise = twice <= bound.mul_(64 * torch.finfo(x.dtype).eps)
    s = stabiliser_of(switch).divide_by_positive(relevance, twice).masked_fill_(is_noise, 0)
    absorb_relevance(switch, call, "no positive product", lambda: relevance * is_noise)
    absorb_relevance(switch, call, "stabiliser", lambda: (relevance - s * twice) * ~is_noise)
    share = back(s, weight).mul_(x)
    return (share.addcmul_(magnitude, back(s, size)),)


def share_doubled_products(
    call: OperationCall, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    r"""The released baseline: $x^+W^+$ and $x^-W^-$ each redistribute all of R, which doubles the total."""
    (x,) = operands
    forward, back = make_linear_maps(call, x)
    assert call.weight is not None
    share = torch.zeros_like(x)
    for x_part, w_part in (
        (x.clamp(min=0), call.weight.clamp(min=0)),
        (x.clamp(max=0), call.weight.clamp(max=0)),
    ):
        s = stabiliser_of(switch).divide(relevance, forward(x_part, w_part))
        share.addcmul_(x_part, back(s, w_part))
    absorb_relevance(
        switch, call, "doubling (negative: made from nothing)", lambda: _spread_difference(call, relevance, share)
    )
    return (share,)


def _spread_difference(call: OperationCall, relevance: Tensor, share: Tensor) -> Tensor:
    """An entry per output whose sum per example is what went in less what came out."""
    samples = samples_of(call)
    lost = samples.sum(relevance) - samples.sum(share)
    entries = samples.sum(torch.ones_like(relevance))
    return torch.ones_like(relevance) * samples.spread(lost / entries)


def share_epsilon_products(
    call: OperationCall, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    r"""$R_j = \sum_i \frac{x_j w_{ji}}{z_i + \epsilon\,\mathrm{sign}(z_i)} R_i$, in which $z = xW + b$: the bias takes
    its share, and so does epsilon."""
    (x,) = operands
    _, back = make_linear_maps(call, x)
    assert call.weight is not None
    s = stabiliser_of(switch).divide(relevance, result)
    if call.bias is not None:
        bias = call.bias
        absorb_relevance(switch, call, "biases", lambda: s * bias)
    absorb_relevance(switch, call, "stabiliser", lambda: relevance - s * result)
    return (back(s, call.weight).mul_(x),)


def share_pixel_box(
    call: OperationCall, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    r"""z-B: $R_x = x \odot W^\top S - l \odot W^{+\top} S - h \odot W^{-\top} S$, $S = R / (xW - lW^+ - hW^-)$, l and
    h the smallest and largest value of each picture."""
    (x,) = operands
    run, weight = call.run, call.weight
    assert run is not None and weight is not None
    low = x.amin(dim=(1, 2, 3), keepdim=True).expand_as(x)
    high = x.amax(dim=(1, 2, 3), keepdim=True).expand_as(x)
    parts = ((x, weight, 1), (low, weight.clamp(min=0), -1), (high, weight.clamp(max=0), -1))
    z = sum(sign * run(part, w) for part, w, sign in parts)
    s = stabiliser_of(switch).divide(relevance, z)  # type: ignore[arg-type]
    absorb_relevance(switch, call, "stabiliser", lambda: relevance - s * z)
    share = torch.zeros_like(x)
    for part, w, sign in parts:
        share = share + sign * part * apply_transpose(lambda start, w=w: run(start, w), x, s)  # type: ignore[misc]
    return (share,)


def share_product_halves(
    call: OperationCall, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    r"""A product of two carrying operands: $R_a = a \odot \partial_a f(R/z)$ for each, halved. Alone, an operand
    takes all."""
    s = stabiliser_of(switch).divide(relevance, result)
    absorb_relevance(switch, call, "stabiliser", lambda: relevance - s * result)
    assert call.run is not None
    if call.run is torch.matmul and len(operands) == 2 and operands[0].shape[:-2] == operands[1].shape[:-2]:
        a, b = operands
        return (s @ b.mT).mul_(a).div_(2), (a.mT @ s).mul_(b).div_(2)
    with torch.enable_grad():
        starts = [operand.detach().requires_grad_() for operand in operands]
        backs = torch.autograd.grad(call.run(*starts), starts, s)
    return tuple(operand * back / len(operands) for operand, back in zip(operands, backs, strict=True))


def share_pooled(
    call: OperationCall, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    r"""A mean or sum: in proportion to what each entry contributed, $R_x = x \odot f^\top(R/z)$."""
    return share_product_halves(call, relevance, result, operands, switch)


def share_normalised_addition(
    call: OperationCall, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    r"""$R_u = u R/z$, then $\bar R_u = R_u \frac{|\Sigma R_u|}{|\Sigma R_u| + |\Sigma R_v|} \frac{\Sigma R}{\Sigma
    R_u}$, sums per example.

    A constant operand (a position, a learned bias on the scores) takes its share, which is reported as absorbed.
    """
    u, v = _read_addends(call, operands)
    shares = _share_proportionally(relevance, result, u, v, switch)
    samples = samples_of(call)
    divide = stabiliser_of(switch).divide
    sums = [samples.sum(share) for share in shares]
    size, total = sums[0].abs() + sums[1].abs(), samples.sum(relevance)
    factors = [divide(divide(own.abs(), size) * total, own) for own in sums]
    record_absorbed(
        switch, call, "cancelled", total - sum(own * factor for own, factor in zip(sums, factors, strict=True))
    )
    shares = [share.mul_(samples.spread(factor)) for share, factor in zip(shares, factors, strict=True)]
    return _fit_addition_shares(call, shares, operands, switch)


def share_plain_addition(
    call: OperationCall, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    r"""$R_u = u R / z$: branches may grow without bound with opposite signs."""
    u, v = _read_addends(call, operands)
    shares = _share_proportionally(relevance, result, u, v, switch)
    absorb_relevance(switch, call, "stabiliser", lambda: relevance - shares[0] - shares[1])
    return _fit_addition_shares(call, shares, operands, switch)


def _read_addends(call: OperationCall, operands: list[Tensor]) -> tuple[Tensor, Tensor]:
    first = operands[0] * call.facts.get("own_sign", 1)
    second = operands[1] if len(operands) > 1 else call.facts["constant"]
    return first, second * call.facts.get("sign", 1)


def _share_proportionally(relevance: Tensor, z: Tensor, u: Tensor, v: Tensor, switch: Switch) -> list[Tensor]:
    s = stabiliser_of(switch).divide(relevance, z)
    if not v.requires_grad and bool((masked := v <= MASK_CEILING).any()):
        # Attention is zero behind a mask, so relevance is too; 0 * inf must not make NaN of it.
        return [torch.where(masked, 0, s * u), torch.where(masked, 0, s * v)]
    return [s * u, s * v]


MASK_CEILING = -1e4  # an addend this low is a mask


def _fit_addition_shares(call: OperationCall, shares: list[Tensor], operands: list[Tensor], switch: Switch) -> Shares:
    if len(operands) == 1:
        absorb_relevance(switch, call, call.facts["constant_is"], lambda: shares[1])
        return (undo_broadcast(shares[0], operands[0]),)
    return tuple(undo_broadcast(share, operand) for share, operand in zip(shares, operands, strict=True))


def share_attention(
    call: OperationCall, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch
) -> Shares:
    """A fused attention call taken apart: product with the values, softmax, mask, product of queries and keys."""
    assert switch.recipe is not None
    rules, facts = switch.recipe.rules, call.facts
    query, key, value = operands
    repeats = query.size(-3) // key.size(-3) if facts["is_grouped"] else 1
    wide_key, wide_value = (t.repeat_interleave(repeats, -3) if repeats > 1 else t for t in (key, value))
    raw = query @ wide_key.mT
    scores, mask = raw * facts["scale"], facts["mask"]
    weights = compute_attention_weights(scores, mask)
    at = replace(call, run=torch.matmul)
    of_query, of_key, of_value = facts.get("carrying", (True, True, True))
    gated = replace(at, facts={"gate": 0, "gate_is": "attention"})
    to_weights, to_value = _share_factors(
        gated, relevance, result, (weights, wide_value), (of_query or of_key, of_value), switch
    )
    if to_weights is None:
        (alone,) = drop_missing_shares((to_value,))
        return None, None, undo_broadcast(_sum_repeated_heads(alone, repeats), value)
    at = replace(at, facts={})
    masked = scores if mask is None else scores + mask
    (to_scores,) = drop_missing_shares(rules["softmax"](at, to_weights, weights, [masked], switch))
    if mask is not None:
        added = replace(call, facts={"constant": mask, "constant_is": "attention bias"})
        rule = rules["add" if facts["has_bias"] else "mask"]
        (to_scores,) = drop_missing_shares(rule(added, to_scores, masked, [scores], switch))
    if sends_slopes(switch):
        to_scores = to_scores * facts["scale"]
    to_query, to_key = _share_factors(at, to_scores, raw, (query, wide_key.mT), (of_query, of_key), switch)
    return (
        undo_broadcast(to_query, query) if to_query is not None else None,
        undo_broadcast(_sum_repeated_heads(to_key.mT, repeats), key) if to_key is not None else None,
        undo_broadcast(_sum_repeated_heads(to_value, repeats), value) if to_value is not None else None,
    )


def _sum_repeated_heads(share: Tensor, repeats: int) -> Tensor:
    """Heads that share a key or value give it their shares together."""
    return share.unflatten(-3, (-1, repeats)).sum(-3) if repeats > 1 else share


def _share_factors(
    call: OperationCall,
    relevance: Tensor,
    z: Tensor,
    factors: Sequence[Tensor],
    carrying: Sequence[bool],
    switch: Switch,
) -> Shares:
    """A product, as if made in the open: a factor that is constant takes no share."""
    assert switch.recipe is not None
    kept = [factor for factor, ours in zip(factors, carrying, strict=True) if ours]
    alone = lambda x: torch.matmul(*(x if ours else f for f, ours in zip(factors, carrying, strict=True)))  # noqa: E731
    at = replace(call, run=torch.matmul if len(kept) == 2 else alone)
    shares = iter(switch.recipe.rules["product"](at, relevance, z, kept, switch) or ())
    return tuple(next(shares) if ours else None for ours in carrying)


def drop_missing_shares(shares: Shares | None) -> list[Tensor]:
    """The shares of a rule that leaves no operand out."""
    return [share for share in shares or () if share is not None]


def compute_attention_share(weights: Tensor, value: Tensor, output: Tensor, arriving: Tensor, recipe: Recipe) -> Tensor:
    r"""What the product of attention and values gives to the attention: a part of $A \odot (\tfrac{R}{O} V^\top)$, half
    in most recipes. A recipe that sends slopes has $R/O$ already."""
    if recipe.attention_part == 0:
        raise MethodError(
            f"The recipe {recipe.name} holds attention constant, so that no relevance arrives there. "
            f"Recipes under which it does: {', '.join(name for name, one in RECIPES.items() if one.attention_part)}."
        )
    slope = arriving if recipe.sends == "slope" else recipe.stabiliser.divide(arriving, output)
    return (slope @ value.mT).mul_(weights).mul_(recipe.attention_part)


DEFAULT_EPSILON = 0.1  # of activations of size 1: less, and sums that cancel drown the rest


# --- recipes ---------------------------------------------------------------------------------------------------------

CHEFER = Recipe(
    "chefer",
    {
        "linear": share_positive_products,
        "pixels": share_pixel_box,
        "product": share_product_halves,
        "add": share_normalised_addition,
        "pool": share_pooled,
        "attention": share_attention,
        "scale": pass_scaled,
        "bias": pass_unchanged,
        "mask": pass_unmasked,
        "normalise": pass_unchanged,
        "select": pass_selected,
        "join": pass_joined,
        "norm": pass_unchanged,
        "softmax": pass_unchanged,
        "activation": pass_unchanged,
    },
    "The rule set of Chefer et al. 2021: conservative, positive products only.",
)

CHEFER_BASELINE = Recipe(
    "chefer_baseline",
    {**CHEFER.rules, "linear": share_doubled_products, "add": share_plain_addition},
    "What their released code runs as the LRP baseline: linear layers double the total, additions are not normalised.",
)

EPSILON = Recipe(
    "epsilon",
    {
        **CHEFER.rules,
        "linear": share_epsilon_products,
        "pixels": share_epsilon_products,
        "add": share_plain_addition,
        "bias": share_plain_addition,
    },
    "LRP-epsilon: every sum shares out in proportion, biases included; softmax, norms and activations pass.",
    stabiliser=replace(STABILISERS["signed"], amount=DEFAULT_EPSILON),
    parameters={"epsilon": DEFAULT_EPSILON},
)

ATTNLRP = Recipe(
    "attnlrp",
    {
        "linear": slopes.pass_gradient,
        "pixels": slopes.pass_gradient,
        "product": slopes.halve_product,
        "add": slopes.pass_addition_slope,
        "pool": slopes.pass_gradient,
        "attention": share_attention,
        "scale": slopes.pass_gradient,
        "bias": slopes.pass_gradient,
        "mask": slopes.pass_mask_slope,
        "normalise": slopes.hold_statistic,
        "select": slopes.pass_gradient,
        "join": slopes.pass_joined_slope,
        "norm": slopes.hold_norm_spread,
        "softmax": slopes.expand_softmax,
        "activation": slopes.pass_secant,
    },
    "AttnLRP, Achtibat et al. 2024: products halved, softmax by its expansion, spreads of norms held, secants.",
    sends="slope",
)

GAMMA = Recipe(
    "gamma",
    {**ATTNLRP.rules, "linear": slopes.favour_agreeing_products, "pixels": slopes.favour_agreeing_products},
    "AttnLRP with LRP-gamma in linear layers: products that agree in sign with the output count 1 + gamma times.",
    parameters={"gamma": 0.25},
    sends="slope",
)

CP_LRP = Recipe(
    "cp_lrp",
    {**ATTNLRP.rules, "product": slopes.hold_gates, "softmax": slopes.hold_constant, "activation": slopes.pass_tangent},
    "CP-LRP, Ali et al. 2022: attention, gates and the spreads of norms held; activations by their gradient.",
    sends="slope",
    attention_part=0,
)

LIBRA = Recipe(
    "libra",
    {**ATTNLRP.rules, "product": slopes.hold_attention, "softmax": slopes.hold_constant},
    "LibraGrad, Mehri et al. 2025: attention and the spreads of norms held, secants, gated products halved.",
    sends="slope",
    attention_part=0,
)

PA_LRP = Recipe(
    "pa_lrp",
    {**ATTNLRP.rules, "scale": slopes.share_rotation},
    "PA-LRP, Bakish et al. 2025: AttnLRP, in which rotary positions take half of what they multiply.",
    sends="slope",
)

RECIPES = {one.name: one for one in (CHEFER, CHEFER_BASELINE, EPSILON, GAMMA, ATTNLRP, CP_LRP, LIBRA, PA_LRP)}


def make_recipe(name: str, stabiliser: str = "signed", **parameters: float) -> Recipe:
    """The recipe of that name, with a stabiliser and its parameters."""
    aliases = {"baseline": "chefer_baseline"}
    name = aliases.get(name, name)
    if name not in RECIPES:
        raise MethodError(f"No recipe {name!r}.{suggest_nearest(name, RECIPES)} There are: {', '.join(RECIPES)}.")
    if stabiliser not in STABILISERS:
        known = ", ".join(STABILISERS)
        raise MethodError(
            f"No stabiliser {stabiliser!r}.{suggest_nearest(stabiliser, STABILISERS)} There are: {known}."
        )
    found = RECIPES[name]
    chosen = {
        **found.parameters,
        **{key: check_recipe_parameter(found, key, value) for key, value in parameters.items()},
    }
    amount = chosen.get("epsilon") if stabiliser == "signed" else None
    return replace(found, stabiliser=replace(STABILISERS[stabiliser], amount=amount), parameters=chosen)


def check_recipe_parameter(found: Recipe, key: str, value: float) -> float:
    """A parameter that the recipe has, as a number from 0 on."""
    if key not in found.parameters:
        there = f"It has: {', '.join(found.parameters)}." if found.parameters else "It has none."
        raise MethodError(
            f"The recipe {found.name} has no parameter {key!r}.{suggest_nearest(key, found.parameters)} {there}"
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise MethodError(f"{key}={value!r} is not a number from 0 on.")
    return float(value)
