r"""Relevance rules.

A rule takes the relevance R of an operation's result and returns how much of it each operand gets:

    linear      y = xW + b      only products of positive sign carry relevance; the bias takes no part
                                $R_j = \sum_i \frac{(x_j w_{ji})^+}{\sum_k (x_k w_{ki})^+} R_i$
    product     O = A V         $R_A = \tfrac12 A \odot (\tfrac{R}{O} V^\top)$, and the same for V
    add         z = u + v       $R_u = u \odot R / z$, then each branch is scaled, per example, to add up to R
    softmax, norm, activation   R passes unchanged
    pixels      convolution     the z-B rule: x is between the smallest and largest value of its image

The rules of the newer recipes pass R / x back instead of R (slopes.py). A recipe is a table from the kind of an
operation to its rule (recipes.py). Most rules here are those of Chefer, Gur & Wolf, Transformer Interpretability Beyond
Attention Visualization, CVPR 2021 (arXiv:2012.09838), eqs. 3 to 10, which are the recipe `chefer`. The recipe
`chefer_baseline` is what their released code runs under the name "LRP": every linear layer doubles the total, and
additions are not normalised.

Differences from the released code: its sums in `add` run over the whole batch and mix examples, ours are per example
(equal for a batch of one); it divides by z + 1e-9 whatever the sign of z, ours moves z away from zero
(`stabiliser="released"` restores theirs). The add rule is literal: where the two branches disagree in sign, the branch
opposite to R is flipped, as the paper's formula says.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from whyformer._engine.relevance import calls
from whyformer._engine.relevance.rounding import TileRounding
from whyformer._engine.tracing.attention import compute_attention_weights
from whyformer._engine.tracing.tiles import iterate_tiles
from whyformer.errors import MethodError

# --- rules that pass relevance on ------------------------------------------------------------------------------------


@calls.act_on_rows
def pass_unchanged(call: calls.OperationCall, arriving: Tensor) -> calls.Shares:
    """All relevance goes to the first operand; the others (a gate, a statistic) get nothing."""
    return call.fit(arriving)


def pass_scaled(call: calls.ScaleCall, arriving: Tensor) -> calls.Shares:
    """x times a constant: relevance passes, except where the constant is zero."""
    if isinstance(call.factor, Tensor):
        passed = torch.where(call.factor == 0, 0, arriving)
        call.absorb("zeroed", lambda: arriving - passed)
    else:
        passed = arriving if call.factor != 0 else torch.zeros_like(arriving)
    return call.fit(passed)


@calls.act_on_rows
def pass_unmasked(call: calls.AdditionCall, arriving: Tensor) -> calls.Shares | None:
    """x plus a mask: relevance passes. Where the mask hides x there is no relevance. (The released code divides all the
    same.)"""
    if call.recipe.stabiliser.name == "released":
        return call.recipe.rules["add"](call, arriving)
    return call.fit(arriving)


def pass_selected(call: calls.SelectCall, arriving: Tensor) -> calls.Shares:
    """Picking entries: each picked entry gets what arrives for it, the others nothing."""
    return (calls.transpose_linear(call.run, call.operand, call.stabilise_copy(arriving)),)


def pass_joined(call: calls.JoinCall, arriving: Tensor) -> calls.Shares:
    """A concatenation: each part gets its own relevance; constant parts (a class token, registers) absorb theirs."""
    parts = arriving.split(call.sizes, call.axis)
    call.absorb("class token and other constants", lambda: keep_constant_parts(call, arriving))
    shares = [part for part, is_operand in zip(parts, call.carrying, strict=True) if is_operand]
    return tuple(share.squeeze(call.axis) for share in shares) if call.is_stack else tuple(shares)


def keep_constant_parts(call: calls.JoinCall, whole: Tensor) -> Tensor:
    """The entries of the constant parts of a concatenation, zero elsewhere."""
    parts = zip(whole.split(call.sizes, call.axis), call.carrying, strict=True)
    return torch.cat([torch.zeros_like(part) if is_operand else part for part, is_operand in parts], call.axis)


# --- linear layers ---------------------------------------------------------------------------------------------------


def share_positive_products(call: calls.LinearCall, arriving: Tensor) -> calls.Shares:
    r"""Only products $x_j w_{ji} > 0$ carry relevance.

    Three matrix products instead of eight: with $z = xW$ the positive products sum to $Z^+ = (z + |x||W|)/2$, and with
    $S = R/Z^+$ the relevance of x is $(x \odot SW^\top + |x| \odot S|W|^\top)/2$. Where no product is positive, $Z^+$
    is rounding noise of the size of $|x||W|$: such outputs pass nothing on.
    """
    x = call.operand
    x_size, weight_size = x.abs(), call.take_magnitude()
    bound = call.apply(x_size, weight_size)
    twice = bound - call.bias if call.bias is not None else bound.clone()
    twice.add_(call.result)  # 2 Z+; the halves of numerator and denominator cancel
    is_noise = twice <= bound.mul_(64 * torch.finfo(x.dtype).eps)
    s = call.recipe.stabiliser.divide_by_positive(arriving, twice).masked_fill_(is_noise, 0)
    call.absorb("no positive product", lambda: arriving * is_noise)
    call.absorb("stabiliser", lambda: (arriving - s * twice) * ~is_noise)
    share = call.apply_transpose(s, call.weight).mul_(x)
    return (share.addcmul_(x_size, call.apply_transpose(s, weight_size)),)


def share_doubled_products(call: calls.LinearCall, arriving: Tensor) -> calls.Shares:
    r"""The released baseline: $x^+W^+$ and $x^-W^-$ each redistribute all of R, which doubles the total."""
    x = call.operand
    share = torch.zeros_like(x)
    for x_part, w_part in (
        (x.clamp(min=0), call.weight.clamp(min=0)),
        (x.clamp(max=0), call.weight.clamp(max=0)),
    ):
        s = call.recipe.stabiliser.divide(arriving, call.apply(x_part, w_part))  # a sum of positive products
        share.addcmul_(x_part, call.apply_transpose(s, w_part))
    call.absorb("doubling (negative: made from nothing)", lambda: spread_difference(call, arriving, share))
    return (share,)


def spread_difference(call: calls.OperationCall, arriving: Tensor, share: Tensor) -> Tensor:
    """What arrived less what was shared, per example, spread evenly over the entries of the result."""
    lost = call.examples.sum(arriving) - call.examples.sum(share)
    entries = call.examples.sum(torch.ones_like(arriving))
    return torch.ones_like(arriving) * call.examples.spread(lost / entries)


def share_epsilon_products(call: calls.LinearCall, arriving: Tensor) -> calls.Shares:
    r"""$R_j = \sum_i \frac{x_j w_{ji}}{z_i + \epsilon\,\mathrm{sign}(z_i)} R_i$ with $z = xW + b$: the bias and epsilon
    absorb their shares."""
    s = call.divide(arriving, call.result)
    if (bias := call.bias) is not None:
        call.absorb("biases", lambda: s * bias)
    call.absorb("stabiliser", lambda: arriving - s * call.result)
    return (call.apply_transpose(s, call.weight).mul_(call.operand),)


def share_pixel_box(call: calls.ConvolutionCall, arriving: Tensor) -> calls.Shares:
    r"""z-B: $R_x = x \odot W^\top S - l \odot W^{+\top} S - h \odot W^{-\top} S$, $S = R / (xW - lW^+ - hW^-)$, where l
    and h are the smallest and largest value of each image."""
    x, weight = call.operand, call.weight
    low = x.amin(dim=(1, 2, 3), keepdim=True).expand_as(x)
    high = x.amax(dim=(1, 2, 3), keepdim=True).expand_as(x)
    terms = ((x, weight, 1), (low, weight.clamp(min=0), -1), (high, weight.clamp(max=0), -1))
    z: Tensor = sum(sign * call.apply(start, w) for start, w, sign in terms)  # type: ignore[assignment]
    s = call.divide(arriving, z)
    call.absorb("stabiliser", lambda: arriving - s * z)
    shares = (sign * start * call.apply_transpose(s, w) for start, w, sign in terms)
    return (sum(shares, torch.zeros_like(x)),)


# --- products, sums and pools ----------------------------------------------------------------------------------------


@calls.act_on_rows
def share_product_halves(call: calls.ProductCall, arriving: Tensor) -> calls.Shares:
    r"""A product z of two operands: $R_a = a \odot \partial_a f(R/z)$ for each, halved. A single operand gets all."""
    s = call.divide(arriving, call.result)
    call.absorb("stabiliser", lambda: arriving - s * call.result)
    backs = call.backpropagate(s)
    if call.is_matmul:  # nobody else holds these
        return tuple(back.mul_(x).div_(2) for x, back in zip(call.operands, backs, strict=True))
    return tuple(x * back / len(backs) for x, back in zip(call.operands, backs, strict=True))


def share_pooled(call: calls.PoolCall, arriving: Tensor) -> calls.Shares:
    r"""A mean or sum z: in proportion to what each entry contributed, $R_x = x \odot f^\top(R/z)$."""
    s = call.divide(arriving, call.result)
    call.absorb("stabiliser", lambda: arriving - s * call.result)
    return tuple(x * back for x, back in zip(call.operands, call.backpropagate(s), strict=True))


def share_normalised_addition(call: calls.AdditionCall, arriving: Tensor) -> calls.Shares:
    r"""$R_u = u R/z$, then $\bar R_u = R_u \frac{|\Sigma R_u|}{|\Sigma R_u| + |\Sigma R_v|} \frac{\Sigma R}{\Sigma
    R_u}$, with sums per example.

    A constant addend (a position, a learned bias on the scores) absorbs its share.
    """
    shares = share_in_proportion(call, arriving)
    sums = [call.examples.sum(share) for share in shares]
    call.note_addition(*shares, totals=(sums[0], sums[1]))
    size, total = sums[0].abs() + sums[1].abs(), call.examples.sum(arriving)
    divide = call.recipe.stabiliser.divide
    factors = [divide(divide(own.abs(), size) * total, own) for own in sums]
    kept = sum(own * factor for own, factor in zip(sums, factors, strict=True))
    call.absorb_per_example("cancelled", total - kept)
    scaled = (share.mul_(call.examples.spread(factor)) for share, factor in zip(shares, factors, strict=True))
    return call.fit(*scaled)


@calls.act_on_rows
def share_plain_addition(call: calls.AdditionCall, arriving: Tensor) -> calls.Shares:
    r"""$R_u = u R / z$: the branches may grow without bound with opposite signs."""
    shares = share_in_proportion(call, arriving)
    call.note_addition(*shares)
    call.absorb("stabiliser", lambda: arriving - shares[0] - shares[1])
    return call.fit(*shares)


def share_in_proportion(call: calls.AdditionCall, arriving: Tensor) -> tuple[Tensor, Tensor]:
    """u R / z and v R / z."""
    u, v = call.addends
    s = call.recipe.stabiliser.divide(arriving, call.result)
    if bool((is_masked := v <= calls.MASK_CEILING).any()):
        # Attention is zero behind a mask, so relevance is too; 0 * inf must not make NaN of it.
        return torch.where(is_masked, 0, s * u), torch.where(is_masked, 0, s * v)
    return s * u, s * v


# --- fused attention -------------------------------------------------------------------------------------------------


def share_attention(call: calls.AttentionCall, arriving: Tensor) -> calls.Shares | None:
    """Fused attention, step by step: product with the values, softmax, mask, product of queries and keys, each by the
    rule that the recipe has for it. In recipes that only multiply the true gradient by constants it passes (node.py);
    long sequences are shared some queries at a time."""
    if call.factors is not None and call.factors.read() is not None:
        if call.switch.rounding is not None:
            call.switch.rounding.note_attention()
        return None
    rows = call.choose_tile_rows()
    return share_attention_in_tiles(call, arriving, rows) if rows else share_attention_steps(call, arriving)


def share_attention_in_tiles(call: calls.AttentionCall, arriving: Tensor, rows: int) -> calls.Shares:
    """The shares of queries one tile after the other; those of keys and values are sums over tiles."""
    whole = [torch.zeros_like(operand) for operand in call.operands]
    is_shared = [False] * len(whole)
    rounding = TileRounding() if call.switch.rounding is not None else None
    for tile in iterate_tiles(arriving.size(-2), rows):
        shares = share_attention_steps(call.take_rows(tile, rounding), arriving[..., tile, :])
        for index, share in enumerate(shares):
            if share is not None:
                into = whole[index][..., tile, :] if index == 0 else whole[index][..., : share.size(-2), :]
                into += share
                is_shared[index] = True
    if call.switch.rounding is not None and rounding is not None:
        rounding.add_to(call.switch.rounding)
    return tuple(share if found else None for share, found in zip(whole, is_shared, strict=True))


def share_attention_steps(call: calls.AttentionCall, arriving: Tensor) -> calls.Shares:
    """All queries of a call at once."""
    query, key, value = call.operands
    repeats = query.size(-3) // key.size(-3) if call.is_grouped else 1
    wide_key, wide_value = (t.repeat_interleave(repeats, -3) if repeats > 1 else t for t in (key, value))
    raw, mask = query @ wide_key.mT, call.mask
    scores = raw * call.scale
    weights = compute_attention_weights(scores, mask)
    query_carries, key_carries, value_carries = call.carrying
    is_operand = (query_carries or key_carries, value_carries)
    to_weights, to_value = share_factors(
        call, arriving, call.result, (weights, wide_value), is_operand, calls.Gate(0, is_attention=True)
    )
    if to_value is not None:
        to_value = calls.undo_broadcast(sum_repeated_heads(to_value, repeats), value)
    to_scores = None if to_weights is None else share_weights(call, to_weights, weights, scores, mask)
    if to_scores is None:
        return None, None, to_value
    to_scores = to_scores * call.scale if call.recipe.sends == "slope" else to_scores
    to_query, to_key = share_factors(call, to_scores, raw, (query, wide_key.mT), (query_carries, key_carries))
    return (
        calls.undo_broadcast(to_query, query) if to_query is not None else None,
        calls.undo_broadcast(sum_repeated_heads(to_key.mT, repeats), key) if to_key is not None else None,
        to_value,
    )


def share_weights(
    call: calls.AttentionCall, arriving: Tensor, weights: Tensor, scores: Tensor, mask: Tensor | None
) -> Tensor | None:
    """From attention weights to scores: by the rule for softmax, then by that for what was added to the scores."""
    masked = scores if mask is None else scores + mask
    softmax = call.make_part(calls.SoftmaxCall, weights, [masked])
    (to_scores,) = require_shares(softmax, softmax.apply_rule(arriving))
    if to_scores is None or mask is None:
        return to_scores
    addition = call.make_part(
        calls.AdditionCall, masked, [scores], constant=mask, constant_is="attention bias",
        kind="add" if call.has_bias else "mask",
    )  # fmt: skip
    return require_shares(addition, addition.apply_rule(to_scores))[0]


def share_factors(
    call: calls.AttentionCall,
    arriving: Tensor,
    z: Tensor,
    factors: tuple[Tensor, Tensor],
    is_operand: Sequence[bool],
    gate: calls.Gate | None = None,
) -> calls.Shares:
    """Shares of the two factors of a matrix product z; a constant factor gets none."""
    operands = [factor for factor, carries in zip(factors, is_operand, strict=True) if carries]

    def run_with_constant(x: Tensor) -> Tensor:
        return torch.matmul(*(x if carries else factor for factor, carries in zip(factors, is_operand, strict=True)))

    run = torch.matmul if len(operands) == 2 else run_with_constant
    product = call.make_part(calls.ProductCall, z, operands, run=run, gate=gate)
    shares = iter(require_shares(product, product.apply_rule(arriving)))
    return tuple(next(shares) if carries else None for carries in is_operand)


def require_shares(call: calls.OperationCall, shares: calls.Shares | None) -> calls.Shares:
    """The shares of one step of fused attention, where there is no gradient that could pass instead."""
    if shares is None:
        raise MethodError(
            f"The rule for {call.kind!r} of the recipe {call.recipe.name} returned None inside fused attention. "
            'Return shares, or load the model with attn_implementation="eager".'
        )
    return shares


def sum_repeated_heads(share: Tensor, repeats: int) -> Tensor:
    """The share of a key or value that several heads use: the sum over these heads."""
    return share.unflatten(-3, (-1, repeats)).sum(-3) if repeats > 1 else share
