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
from whyformer.errors import InputError, UnsupportedModel

SiteChange = Callable[[int, Tensor], Tensor | None]  # (number of the site, its tensor) -> its replacement


@dataclass(frozen=True)
class Intervention:
    """What to change at each attention site; heads are always a separate axis."""

    scores: SiteChange | None = None  # [batch head query key], after scale and mask, before the softmax
    attention: SiteChange | None = None  # [batch head query key], after the softmax
    value: SiteChange | None = None  # [batch head key channel]


@dataclass(frozen=True)
class ChangedSite:
    """A site with a recomputed output."""

    attention: Tensor  # [batch head query key]
    value: Tensor  # [batch head key channel]
    output: Tensor  # in the shape the model computed it


def apply_intervention(
    intervention: Intervention, number: int, site: AttentionSite, scores: Tensor | None
) -> ChangedSite | None:
    """The site after the intervention; None if nothing changes.

    `site` is on the graph, its heads separate; `scores` is the input of its softmax, if known.
    """
    attention = apply_change(
        intervention.scores, number, attention_scores_of(site, scores) if intervention.scores else None
    )
    own = site.attention()
    attention = own if attention is None else compute_attention_weights(attention, None)
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
    output = (attention @ value).reshape(site.output.shape)
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


def attention_scores_of(site: AttentionSite, seen: Tensor | None) -> Tensor:
    """The scores before the softmax, after scale and mask."""
    if site.query is not None and site.key is not None:
        scores = (site.query @ site.key.mT) * site.scale
        return scores if site.mask is None else scores + site.mask
    if seen is None or site.weights is None or seen.numel() != site.weights.numel():
        raise UnsupportedModel(
            f"The scores before the softmax in {site.place} are not known. Change its attention instead, or load the "
            'model with attn_implementation="sdpa".'
        )
    return seen.reshape(site.weights.shape)
