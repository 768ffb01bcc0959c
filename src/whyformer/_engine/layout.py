"""Layout: what the token sequence of the attention sites is, in terms of the input. Which token is real, which
special, where the patches are, and how much of the answer is read at each."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whyformer._engine.forward import Run
from whyformer._engine.target import ExplainedAnswer
from whyformer._engine.tracing import provenance
from whyformer._engine.tracing.attention import AttentionSite
from whyformer._engine.tracing.provenance import Trace, axis_of
from whyformer._model.model import EncodedBatch, Model
from whyformer._plain.tokens import Grid, Tokens
from whyformer.errors import InputError, UnsupportedModel


@dataclass(frozen=True)
class Layout:
    mask: Tensor  # [batch token]: no padding
    special: Tensor  # [batch token]: stands for no word or patch
    patches: tuple[int, ...] | None  # images: where the patches are in the sequence, row by row
    tokens: tuple[Tokens, ...]

    @property
    def length(self) -> int:
        return self.mask.size(1)


def lay_out(run: Run, encoded: EncodedBatch) -> Layout:
    first, last = run.mode.sites[0], run.mode.sites[-1]
    length, grid = last.value.size(-2) if is_pooling(last) else last.output.size(-2), run.mode.follower.grid
    is_one_order = first.origin is None or not bool((first.origin != first.origin[:1]).any())
    origin = (
        first.origin[0].long()
        if first.origin is not None and is_one_order and first.origin.size(-1) == length
        else guess_origin(grid, length)
    )
    origin = origin.to(last.output.device)
    is_input = origin >= 0
    mask = torch.ones(encoded.batch, length, dtype=torch.bool, device=origin.device)
    special = (~is_input).expand_as(mask)
    if encoded.token_mask is not None and encoded.token_mask.size(1) > int(origin.max()):
        at = origin.clamp(min=0)
        mask = encoded.token_mask.to(origin.device)[:, at] | ~is_input
        if encoded.special_mask is not None:
            special = special | (encoded.special_mask.to(origin.device)[:, at] & is_input)
    patches = (
        find_patch_positions(origin)
        if is_one_order and grid is not None and int(is_input.sum()) == grid[0] * grid[1]
        else None
    )
    covers = run.mode.follower.covers
    tokens = (
        (Grid(*grid, covers),) * encoded.batch if patches is not None and grid is not None else encoded.pieces(length)
    )
    return Layout(mask, special, patches, tokens)


def is_pooling(site: AttentionSite) -> bool:
    """One query of the model's own collects from all tokens: the answer is read by attention."""
    return site.output.size(-2) == 1 < site.value.size(-2)


def guess_origin(grid: tuple[int, int] | None, length: int) -> Tensor:
    """Where the origin was lost: patches come last; without patches every token is one of the input."""
    count = grid[0] * grid[1] if grid is not None else length
    return torch.arange(length) - max(length - count, 0)


def find_patch_positions(origin: Tensor) -> tuple[int, ...]:
    """Where patch 0, 1, 2, ... stand in the sequence."""
    by_patch = sorted((int(patch), place) for place, patch in enumerate(origin) if patch >= 0)
    return tuple(place for _, place in by_patch)


def compute_readout(model: Model, run: Run, layout: Layout, answer: ExplainedAnswer) -> Tensor:
    """How much of the answer is read at each token, [batch token], from the model's own pooling."""
    mask = layout.mask
    if is_pooling(run.mode.sites[-1]) and model.readout is None:
        raise UnsupportedModel(
            "The answer is read by an attention of its own over all tokens, so no token is where it is read. Say where "
            'to begin when opening the model: readout="first", "last", "mean" or the index of a token.'
        )
    if model.readout is not None:
        weights: Tensor | None = model.readout_weights(mask)
    else:
        weights = provenance.compute_pooling_weights(answer.trace, answer.shape, mask.size(0), layout.length)
    if weights is None or weights.shape != mask.shape:
        raise UnsupportedModel(
            "It could not be seen at which tokens the answer is read. Say so when opening the model: "
            'readout="first", "last", "mean" or the index of a token.'
        )
    weights = weights.to(mask.device, run.mode.sites[-1].value.dtype) * mask
    total = weights.sum(-1, keepdim=True)
    if not bool(total.all()):
        which = int((total[:, 0] == 0).nonzero()[0])
        raise InputError(
            f"The answer for example {which} is read at a padding token: this model reads a fixed place, such as the "
            "first token. Pad on the other side."
        )
    return weights / total


def axis_order_of(tensor: Tensor, trace: Trace) -> str:
    """How the model keeps [batch place channel]: as such ("plain"), "turned" [token batch channel], or as "pixels"."""
    if trace.is_pixels:
        return "pixels"
    batch_axis, token_axis = axis_of(trace.samples), axis_of(trace.tokens)
    return "turned" if batch_axis == 1 or (batch_axis is None and token_axis == 0) else "plain"


def to_canonical_axes(tensor: Tensor, trace: Trace) -> Tensor:
    """[batch token channel] or [batch height width channel], whatever the model's order of axes."""
    order = axis_order_of(tensor, trace)
    return tensor.permute(0, 2, 3, 1) if order == "pixels" else tensor.transpose(0, 1) if order == "turned" else tensor


def from_canonical_axes(tensor: Tensor, order: str) -> Tensor:
    """The way back of `as_places`."""
    return tensor.permute(0, 3, 1, 2) if order == "pixels" else tensor.transpose(0, 1) if order == "turned" else tensor


def find_representation(model: Model, run: Run, layout: Layout) -> tuple[Tensor, str]:
    """Where a model that answers with a state for every token keeps its representation: [batch token], and in words."""
    mask, special = layout.mask, layout.special
    kind: str | int = "mean"
    first = replace(model, readout="first").readout_weights(mask).bool()
    attention = run.mode.sites[-1].attention()
    if model.readout is not None:
        kind = model.readout
    elif mask.size(1) > 1 and not bool(attention.triu(1).any()):
        kind = "last"  # each token sees only those before it
    elif bool((special | ~first).all()):
        kind = "first"
    weights = replace(model, readout=kind).readout_weights(mask).to(mask.device) * mask
    words = {"mean": "the mean of its tokens", "first": "its first token", "last": "its last token"}
    note = f"The model has no head. Explained is the representation, {words.get(str(kind), f'token {kind}')}."
    return weights / weights.sum(-1, keepdim=True), note
