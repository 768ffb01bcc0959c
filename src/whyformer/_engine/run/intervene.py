r"""Interventions: attention that replaces the model's own during a forward.

    Intervention(attention=lambda site, a: a.flip(-1) if site == 3 else None)

is called at every attention site, in the order of the forward. What it returns replaces the tensor of the site, and
everything after it is recomputed. None, or the same numbers, leaves the model's result unchanged, bit for bit, example
by example. Gradients flow only into what is returned: a detached copy of the site's own attention freezes it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer._engine.tracing.attention import AttentionSite, compute_attention_weights
from whyformer._engine.tracing.masks import MASK_THRESHOLD, lift_mask
from whyformer.errors import InputError, UnsupportedModel

SiteChange = Callable[[int, Tensor], Tensor | None]  # (number of the site, its tensor) -> its replacement


@dataclass(frozen=True)
class Intervention:
    """What to change at each attention site; heads are always a separate axis."""

    scores: SiteChange | None = None  # [batch head query key], after scale and mask, before the softmax
    unmasked: SiteChange | None = None  # the same without the mask; what the mask excludes stays excluded
    attention: SiteChange | None = None  # [batch head query key], after the softmax
    value: SiteChange | None = None  # [batch head key channel]

    def __post_init__(self) -> None:
        if self.scores is not None and self.unmasked is not None:
            raise InputError("An intervention changes `scores` or `unmasked` scores, not both. Remove one of them.")


@dataclass(frozen=True)
class ChangedSite:
    """A site with a recomputed output."""

    attention: Tensor  # [batch head query key]
    value: Tensor  # [batch head key channel]
    output: Tensor  # in the shape the model computed it


def refuse_other_batch(site: AttentionSite, batch: int) -> None:
    """An intervention has a row for each example; windows and channels in the batch have none of their own."""
    if site.value.size(0) != batch:
        raise UnsupportedModel(
            f"Attention in {site.path} runs in a batch of {site.value.size(0)}, not of {batch}: examples are divided "
            "(windows, channels). Methods that change attention do not support this yet."
        )


def apply_intervention(
    intervention: Intervention, number: int, site: AttentionSite, unmasked: Tensor | None
) -> ChangedSite | None:
    """The site after the intervention; None if nothing changes.

    `site` is on the graph, its heads separate; `unmasked` are its scores without the mask, if they are known.
    """
    scores = None if intervention.scores is None else compute_attention_scores(site)
    attention = apply_change(intervention.scores, number, scores)
    if intervention.unmasked is not None:
        attention = change_unmasked(intervention.unmasked, number, site, unmasked)
    own = site.attention()
    attention = own if attention is None else compute_attention_weights(attention, None).to(own.dtype)
    new = apply_change(intervention.attention, number, attention)
    attention = attention if new is None else new.to(attention)
    new = apply_change(intervention.value, number, site.value)
    value = site.value if new is None else new.to(site.value)
    if attention is own and value is site.value:
        return None
    same = find_unchanged(attention, own) & find_unchanged(value, site.value)
    has_gradient = torch.is_grad_enabled()
    if bool(same.all()) and not has_gradient:
        return None
    output = site.merge_heads(attention @ value)
    if bool(same.any()):
        kept = site.output.detach() + (output - output.detach()) if has_gradient else site.output
        rows = same.repeat_interleave(output.size(0) // len(same)).view(-1, *(1,) * (output.dim() - 1))
        output = torch.where(rows, kept, output)
    return ChangedSite(attention, value, output)


def apply_change(change: SiteChange | None, number: int, own: Tensor | None) -> Tensor | None:
    """The replacement for a tensor, checked for its shape; None for no change."""
    if change is None or own is None:
        return None
    new = change(number, own)
    if new is not None and new.shape != own.shape:
        raise InputError(
            f"The intervention at site {number} returned {list(new.shape)} for {list(own.shape)}. "
            "Return the same shape, or None for no change."
        )
    return new


def find_unchanged(new: Tensor, own: Tensor) -> Tensor:
    """[batch]: the numbers of this example are exactly the same."""
    if new is own:
        return torch.ones(len(own), dtype=torch.bool, device=own.device)
    return (new == own).flatten(1).all(1)


def change_unmasked(change: SiteChange, number: int, site: AttentionSite, unmasked: Tensor | None) -> Tensor | None:
    """The scores after a change of those without the mask, with the mask in place again; None for no change."""
    scores = compute_attention_scores(site)
    if site.query is not None and site.key is not None:
        products, mask = site.compute_products(slice(0, site.queries)), site.mask
        unmasked = products if mask is None else products + lift_mask(mask)
    elif unmasked is None or unmasked.numel() != scores.numel():
        raise UnsupportedModel(
            f"The scores without the mask in {site.path} are not known. Change its attention or its scores instead, "
            'or load the model with attn_implementation="sdpa".'
        )
    new = apply_change(change, number, unmasked_as(site, unmasked, scores))
    return None if new is None else torch.where(scores > MASK_THRESHOLD, new.to(scores), scores)


def unmasked_as(site: AttentionSite, unmasked: Tensor, scores: Tensor) -> Tensor:
    """The unmasked scores in the order of axes of the masked ones, which they equal where nothing is masked."""
    if site.weights is None:
        return unmasked.reshape(scores.shape)
    allowed = scores > MASK_THRESHOLD
    for arranged in arrange_scores(site, unmasked):
        if torch.equal(arranged[allowed], scores[allowed]):
            return arranged
    raise UnsupportedModel(
        f"The scores without the mask in {site.path} are not known. Use a method that reads attention itself, such as "
        "generic_attention or rollout."
    )


def compute_attention_scores(site: AttentionSite, rows: slice | None = None) -> Tensor:
    """[batch head query key]: the scores before the softmax, after scale and mask, of some queries or of all."""
    rows = slice(0, site.queries) if rows is None else rows
    if site.parts and site.joins != "sum":
        return site.join_parts(compute_attention_scores, rows)
    if site.query is not None and site.key is not None:
        products, mask = site.compute_products(rows), site.read_mask(rows)
        return products if mask is None else products + mask
    if site.scores is not None and site.weights is not None:
        for scores in arrange_scores(site, site.scores):
            made = compute_attention_weights(scores.detach(), None)
            if torch.allclose(made.to(site.weights.dtype), site.weights.detach(), rtol=1e-3, atol=1e-5):
                return scores[..., rows, :]
    raise UnsupportedModel(
        f"The scores before the softmax in {site.path} are not known, or its attention is not their softmax. Use a "
        "method that reads attention itself, such as generic_attention or rollout."
    )


def arrange_scores(site: AttentionSite, scores: Tensor) -> list[Tensor]:
    """Scores in the order of axes that the model uses, as [batch head query key]: queries may be rows or columns."""
    assert site.weights is not None
    if scores.numel() != site.weights.numel():
        return []
    arranged = [scores.reshape(site.weights.shape)]
    if scores.dim() == 3 if site.folds_heads else scores.dim() > 3:
        rows = site.split_heads(scores)
        arranged = [rows, rows.mT, *arranged]
    return [one for one in arranged if one.shape == site.weights.shape]
