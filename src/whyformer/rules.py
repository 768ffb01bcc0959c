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

from whyformer import slopes
from whyformer.errors import MethodError, nearest
from whyformer.node import (
    STABILISERS,
    Call,
    Recipe,
    Shares,
    Switch,
    absorb,
    cloned,
    note,
    samples_of,
    sends_slopes,
    stabiliser_of,
)
from whyformer.slopes import constant_parts, fit, linear_maps, transposed

# --- rules -----------------------------------------------------------------------------------------------------------


def unchanged(call: Call, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
    """All of it, to the first operand; the others (a gate, a statistic) get nothing."""
    first = operands[0]
    return fit(relevance, first), *(None for _ in operands[1:])


def scaled(call: Call, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
    """Multiplied by a constant: relevance passes, except where the constant is zero."""
    factor = call.facts["factor"]
    if isinstance(factor, Tensor):
        passed = torch.where(factor == 0, 0, relevance)
        absorb(switch, call, "zeroed", lambda: relevance - passed)
    else:
        passed = relevance if factor != 0 else torch.zeros_like(relevance)
    return (fit(passed, operands[0]),)


def unmasked(call: Call, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares | None:
    """A mask was added: zero where it lets pass, and where it does not there is no relevance. (The released code
    divides all the same.)"""
    assert switch.recipe is not None
    if switch.recipe.stabiliser.name == "released":
        return switch.recipe.rules["add"](call, relevance, result, operands, switch)
    return (relevance,)


def selected(call: Call, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
    """Picking entries: each gets what came back to it."""
    (x,) = operands
    assert call.run is not None
    return (transposed(call.run, x, cloned(call, relevance, result, switch)),)


def joined(call: Call, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
    """A concatenation: each part gets its own; what goes to constant parts (a class token, registers) is absorbed."""
    axis, sizes, carrying = call.facts["axis"], call.facts["sizes"], call.facts["carrying"]
    parts = relevance.split(sizes, axis)
    absorb(switch, call, "class token and other constants", lambda: constant_parts(call, relevance))
    ours = [part for part, is_ours in zip(parts, carrying, strict=True) if is_ours]
    return tuple(part.squeeze(axis) for part in ours) if call.facts["is_stack"] else tuple(ours)


def positive_products(call: Call, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
    r"""Only products $x_j w_{ji} > 0$ carry relevance.

    Three products instead of eight: with $z = xW$ the positive ones sum to $Z^+ = (z + |x||W|)/2$, and with $S =
    R/Z^+$ the relevance of x is $(x \odot SW^\top + |x| \odot S|W|^\top)/2$. Where no product is positive, $Z^+$ is
    rounding noise of the size of $|x||W|$: such outputs pass nothing on.
    """
    (x,) = operands
    forward, back = linear_maps(call, x)
    weight = call.weight
    assert weight is not None
    magnitude, size = x.abs(), switch.magnitude(weight)
    bound = forward(magnitude, size)
    twice = bound - call.bias if call.bias is not None else bound.clone()
    twice.add_(result)  # 2 Z+; the halves of numerator and denominator cancel
    is_noise = twice <= bound.mul_(64 * torch.finfo(x.dtype).eps)
    s = stabiliser_of(switch).divide_by_positive(relevance, twice).masked_fill_(is_noise, 0)
    absorb(switch, call, "no positive product", lambda: relevance * is_noise)
    absorb(switch, call, "stabiliser", lambda: (relevance - s * twice) * ~is_noise)
    share = back(s, weight).mul_(x)
    return (share.addcmul_(magnitude, back(s, size)),)


def doubled_products(call: Call, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
    r"""The released baseline: $x^+W^+$ and $x^-W^-$ each redistribute all of R, which doubles the total."""
    (x,) = operands
    forward, back = linear_maps(call, x)
    assert call.weight is not None
    share = torch.zeros_like(x)
    for x_part, w_part in (
        (x.clamp(min=0), call.weight.clamp(min=0)),
        (x.clamp(max=0), call.weight.clamp(max=0)),
    ):
        s = stabiliser_of(switch).divide(relevance, forward(x_part, w_part))
        share.addcmul_(x_part, back(s, w_part))
    absorb(switch, call, "doubling (negative: made from nothing)", lambda: _difference(call, relevance, share))
    return (share,)


def _difference(call: Call, relevance: Tensor, share: Tensor) -> Tensor:
    """An entry per output whose sum per example is what went in less what came out."""
    samples = samples_of(call)
    lost = samples.sum(relevance) - samples.sum(share)
    entries = samples.sum(torch.ones_like(relevance))
    return torch.ones_like(relevance) * samples.spread(lost / entries)


def epsilon_products(call: Call, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
    r"""$R_j = \sum_i \frac{x_j w_{ji}}{z_i + \epsilon\,\mathrm{sign}(z_i)} R_i$, in which $z = xW + b$: the bias takes
    its share, and so does epsilon."""
    (x,) = operands
    _, back = linear_maps(call, x)
    assert call.weight is not None
    s = stabiliser_of(switch).divide(relevance, result)
    if call.bias is not None:
        bias = call.bias
        absorb(switch, call, "biases", lambda: s * bias)
    absorb(switch, call, "stabiliser", lambda: relevance - s * result)
    return (back(s, call.weight).mul_(x),)


def pixel_box(call: Call, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
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
    absorb(switch, call, "stabiliser", lambda: relevance - s * z)
    share = torch.zeros_like(x)
    for part, w, sign in parts:
        share = share + sign * part * transposed(lambda start, w=w: run(start, w), x, s)  # type: ignore[misc]
    return (share,)


def halves(call: Call, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
    r"""A product of two carrying operands: $R_a = a \odot \partial_a f(R/z)$ for each, halved. Alone, an operand
    takes all."""
    s = stabiliser_of(switch).divide(relevance, result)
    absorb(switch, call, "stabiliser", lambda: relevance - s * result)
    assert call.run is not None
    if call.run is torch.matmul and len(operands) == 2 and operands[0].shape[:-2] == operands[1].shape[:-2]:
        a, b = operands
        return (s @ b.mT).mul_(a).div_(2), (a.mT @ s).mul_(b).div_(2)
    with torch.enable_grad():
        starts = [operand.detach().requires_grad_() for operand in operands]
        backs = torch.autograd.grad(call.run(*starts), starts, s)
    return tuple(operand * back / len(operands) for operand, back in zip(operands, backs, strict=True))


def pooled(call: Call, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
    r"""A mean or sum: in proportion to what each entry contributed, $R_x = x \odot f^\top(R/z)$."""
    return halves(call, relevance, result, operands, switch)


def shared_addition(call: Call, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
    r"""$R_u = u R/z$, then $\bar R_u = R_u \frac{|\Sigma R_u|}{|\Sigma R_u| + |\Sigma R_v|} \frac{\Sigma R}{\Sigma
    R_u}$, sums per example.

    A constant operand (a position, a learned bias on the scores) takes its share, which is reported as absorbed.
    """
    u, v = _addends(call, operands)
    shares = _proportional(relevance, result, u, v, switch)
    samples = samples_of(call)
    divide = stabiliser_of(switch).divide
    sums = [samples.sum(share) for share in shares]
    size, total = sums[0].abs() + sums[1].abs(), samples.sum(relevance)
    factors = [divide(divide(own.abs(), size) * total, own) for own in sums]
    note(switch, call, "cancelled", total - sum(own * factor for own, factor in zip(sums, factors, strict=True)))
    shares = [share.mul_(samples.spread(factor)) for share, factor in zip(shares, factors, strict=True)]
    return _addition_shares(call, shares, operands, switch)


def plain_addition(call: Call, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
    r"""$R_u = u R / z$: branches may grow without bound with opposite signs."""
    u, v = _addends(call, operands)
    shares = _proportional(relevance, result, u, v, switch)
    absorb(switch, call, "stabiliser", lambda: relevance - shares[0] - shares[1])
    return _addition_shares(call, shares, operands, switch)


def _addends(call: Call, operands: list[Tensor]) -> tuple[Tensor, Tensor]:
    first = operands[0] * call.facts.get("own_sign", 1)
    second = operands[1] if len(operands) > 1 else call.facts["constant"]
    return first, second * call.facts.get("sign", 1)


def _proportional(relevance: Tensor, z: Tensor, u: Tensor, v: Tensor, switch: Switch) -> list[Tensor]:
    s = stabiliser_of(switch).divide(relevance, z)
    if not v.requires_grad and bool((masked := v <= MASKED).any()):
        # Attention is zero behind a mask, so relevance is too; 0 * inf must not make NaN of it.
        return [torch.where(masked, 0, s * u), torch.where(masked, 0, s * v)]
    return [s * u, s * v]


MASKED = -1e4  # an addend this low is a mask


def _addition_shares(call: Call, shares: list[Tensor], operands: list[Tensor], switch: Switch) -> Shares:
    if len(operands) == 1:
        absorb(switch, call, call.facts["constant_is"], lambda: shares[1])
        return (fit(shares[0], operands[0]),)
    return tuple(fit(share, operand) for share, operand in zip(shares, operands, strict=True))


def attention(call: Call, relevance: Tensor, result: Tensor, operands: list[Tensor], switch: Switch) -> Shares:
    """A fused attention call taken apart: product with the values, softmax, mask, product of queries and keys."""
    assert switch.recipe is not None
    rules, facts = switch.recipe.rules, call.facts
    query, key, value = operands
    repeats = query.size(-3) // key.size(-3) if facts["is_grouped"] else 1
    wide_key, wide_value = (t.repeat_interleave(repeats, -3) if repeats > 1 else t for t in (key, value))
    raw = query @ wide_key.mT
    scores, mask = raw * facts["scale"], facts["mask"]
    weights = softmax_rows(scores, mask)
    at = replace(call, run=torch.matmul)
    of_query, of_key, of_value = facts.get("carrying", (True, True, True))
    gated = replace(at, facts={"gate": 0, "gate_is": "attention"})
    to_weights, to_value = _factors(
        gated, relevance, result, (weights, wide_value), (of_query or of_key, of_value), switch
    )
    if to_weights is None:
        (alone,) = given((to_value,))
        return None, None, fit(_narrow(alone, repeats), value)
    at = replace(at, facts={})
    masked = scores if mask is None else scores + mask
    (to_scores,) = given(rules["softmax"](at, to_weights, weights, [masked], switch))
    if mask is not None:
        added = replace(call, facts={"constant": mask, "constant_is": "attention bias"})
        rule = rules["add" if facts["has_bias"] else "mask"]
        (to_scores,) = given(rule(added, to_scores, masked, [scores], switch))
    if sends_slopes(switch):
        to_scores = to_scores * facts["scale"]
    to_query, to_key = _factors(at, to_scores, raw, (query, wide_key.mT), (of_query, of_key), switch)
    return (
        fit(to_query, query) if to_query is not None else None,
        fit(_narrow(to_key.mT, repeats), key) if to_key is not None else None,
        fit(_narrow(to_value, repeats), value) if to_value is not None else None,
    )


def _narrow(share: Tensor, repeats: int) -> Tensor:
    """Heads that share a key or value give it their shares together."""
    return share.unflatten(-3, (-1, repeats)).sum(-3) if repeats > 1 else share


def _factors(
    call: Call, relevance: Tensor, z: Tensor, factors: Sequence[Tensor], carrying: Sequence[bool], switch: Switch
) -> Shares:
    """A product, as if made in the open: a factor that is constant takes no share."""
    assert switch.recipe is not None
    kept = [factor for factor, ours in zip(factors, carrying, strict=True) if ours]
    alone = lambda x: torch.matmul(*(x if ours else f for f, ours in zip(factors, carrying, strict=True)))  # noqa: E731
    at = replace(call, run=torch.matmul if len(kept) == 2 else alone)
    shares = iter(switch.recipe.rules["product"](at, relevance, z, kept, switch) or ())
    return tuple(next(shares) if ours else None for ours in carrying)


def given(shares: Shares | None) -> list[Tensor]:
    """The shares of a rule that leaves no operand out."""
    return [share for share in shares or () if share is not None]


def softmax_rows(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Attention from scores; a row that may look nowhere attends to nothing."""
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1).nan_to_num(0.0)


def attention_share(weights: Tensor, value: Tensor, output: Tensor, arriving: Tensor, recipe: Recipe) -> Tensor:
    r"""What the product of attention and values gives to the attention: a part of $A \odot (\tfrac{R}{O} V^\top)$, half
    in most recipes. A recipe that sends slopes has $R/O$ already."""
    if recipe.attention_part == 0:
        raise MethodError(
            f"The recipe {recipe.name} holds attention constant, so that no relevance arrives there. "
            f"Recipes under which it does: {', '.join(name for name, one in RECIPES.items() if one.attention_part)}."
        )
    slope = arriving if recipe.sends == "slope" else recipe.stabiliser.divide(arriving, output)
    return (slope @ value.mT).mul_(weights).mul_(recipe.attention_part)


EPSILON_AMOUNT = 0.1  # of activations of size 1: less, and sums that cancel drown the rest


# --- recipes ---------------------------------------------------------------------------------------------------------

CHEFER = Recipe(
    "chefer",
    {
        "linear": positive_products,
        "pixels": pixel_box,
        "product": halves,
        "add": shared_addition,
        "pool": pooled,
        "attention": attention,
        "scale": scaled,
        "bias": unchanged,
        "mask": unmasked,
        "normalise": unchanged,
        "select": selected,
        "join": joined,
        "norm": unchanged,
        "softmax": unchanged,
        "activation": unchanged,
    },
    "The rule set of Chefer et al. 2021: conservative, positive products only.",
)

CHEFER_BASELINE = Recipe(
    "chefer_baseline",
    {**CHEFER.rules, "linear": doubled_products, "add": plain_addition},
    "What their released code runs as the LRP baseline: linear layers double the total, additions are not normalised.",
)

EPSILON = Recipe(
    "epsilon",
    {
        **CHEFER.rules,
        "linear": epsilon_products,
        "pixels": epsilon_products,
        "add": plain_addition,
        "bias": plain_addition,
    },
    "LRP-epsilon: every sum shares out in proportion, biases included; softmax, norms and activations pass.",
    stabiliser=replace(STABILISERS["signed"], amount=EPSILON_AMOUNT),
    parameters={"epsilon": EPSILON_AMOUNT},
)

ATTNLRP = Recipe(
    "attnlrp",
    {
        "linear": slopes.followed,
        "pixels": slopes.followed,
        "product": slopes.halved,
        "add": slopes.added,
        "pool": slopes.followed,
        "attention": attention,
        "scale": slopes.followed,
        "bias": slopes.followed,
        "mask": slopes.passed,
        "normalise": slopes.held_statistic,
        "select": slopes.followed,
        "join": slopes.joined,
        "norm": slopes.held_norm,
        "softmax": slopes.taylor,
        "activation": slopes.secant,
    },
    "AttnLRP, Achtibat et al. 2024: products halved, softmax by its expansion, spreads of norms held, secants.",
    sends="slope",
)

GAMMA = Recipe(
    "gamma",
    {**ATTNLRP.rules, "linear": slopes.favoured, "pixels": slopes.favoured},
    "AttnLRP with LRP-gamma in linear layers: products that agree in sign with the output count 1 + gamma times.",
    parameters={"gamma": 0.25},
    sends="slope",
)

CP_LRP = Recipe(
    "cp_lrp",
    {**ATTNLRP.rules, "product": slopes.gates_held, "softmax": slopes.held, "activation": slopes.tangent},
    "CP-LRP, Ali et al. 2022: attention, gates and the spreads of norms held; activations by their gradient.",
    sends="slope",
    attention_part=0,
)

LIBRA = Recipe(
    "libra",
    {**ATTNLRP.rules, "product": slopes.attention_held, "softmax": slopes.held},
    "LibraGrad, Mehri et al. 2025: attention and the spreads of norms held, secants, gated products halved.",
    sends="slope",
    attention_part=0,
)

PA_LRP = Recipe(
    "pa_lrp",
    {**ATTNLRP.rules, "scale": slopes.rotated},
    "PA-LRP, Bakish et al. 2025: AttnLRP, in which rotary positions take half of what they multiply.",
    sends="slope",
)

RECIPES = {one.name: one for one in (CHEFER, CHEFER_BASELINE, EPSILON, GAMMA, ATTNLRP, CP_LRP, LIBRA, PA_LRP)}


def recipe(name: str, stabiliser: str = "signed", **parameters: float) -> Recipe:
    """The recipe of that name, with a stabiliser and its parameters."""
    aliases = {"baseline": "chefer_baseline"}
    name = aliases.get(name, name)
    if name not in RECIPES:
        raise MethodError(f"No recipe {name!r}.{nearest(name, RECIPES)} There are: {', '.join(RECIPES)}.")
    if stabiliser not in STABILISERS:
        known = ", ".join(STABILISERS)
        raise MethodError(f"No stabiliser {stabiliser!r}.{nearest(stabiliser, STABILISERS)} There are: {known}.")
    found = RECIPES[name]
    chosen = {**found.parameters, **{key: checked(found, key, value) for key, value in parameters.items()}}
    amount = chosen.get("epsilon") if stabiliser == "signed" else None
    return replace(found, stabiliser=replace(STABILISERS[stabiliser], amount=amount), parameters=chosen)


def checked(found: Recipe, key: str, value: float) -> float:
    """A parameter that the recipe has, as a number from 0 on."""
    if key not in found.parameters:
        there = f"It has: {', '.join(found.parameters)}." if found.parameters else "It has none."
        raise MethodError(f"The recipe {found.name} has no parameter {key!r}.{nearest(key, found.parameters)} {there}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise MethodError(f"{key}={value!r} is not a number from 0 on.")
    return float(value)
