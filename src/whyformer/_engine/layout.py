"""Layout: how the token sequence that attention sees relates to the input.

Which tokens are padding, which are special, where the patches are, and how much of the answer is read at each token.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whyformer._engine.forward import Run
from whyformer._engine.recorder import pause_recording
from whyformer._engine.target import ExplainedAnswer
from whyformer._engine.tracing import provenance
from whyformer._engine.tracing.attention import AttentionSite
from whyformer._engine.tracing.provenance import Trace, axis_of, trace_of
from whyformer._model.encoded import EncodedBatch
from whyformer._model.model import Model
from whyformer._plain.tokens import Grid, Tokens
from whyformer.errors import InputError, UnsupportedModel


@dataclass(frozen=True)
class Layout:
    """The token sequence that attention sees."""

    mask: Tensor  # [batch token]: not padding
    special: Tensor  # [batch token]: no word and no patch
    patches: tuple[int, ...] | None  # images: positions of the patches in the sequence, row by row
    tokens: tuple[Tokens, ...]

    @property
    def length(self) -> int:
        return self.mask.size(1)


def lay_out(run: Run, encoded: EncodedBatch) -> Layout:
    """The layout of a run, from the labels of its first and last attention site."""
    first, last = run.mode.sites[0], run.mode.sites[-1]
    length = last.value.size(-2) if is_pooling(last) else last.output.size(-2)
    grid = run.mode.follower.grid
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
    with pause_recording():
        is_grid = patches is not None and grid is not None
        tokens = (Grid(*grid, covers),) * encoded.batch if is_grid and grid is not None else encoded.pieces(length)
    return Layout(mask, special, patches, tokens)


def is_pooling(site: AttentionSite) -> bool:
    """A single learned query attends to all tokens: the answer is pooled by attention."""
    return site.output.size(-2) == 1 < site.value.size(-2)


def guess_origin(grid: tuple[int, int] | None, length: int) -> Tensor:
    """If the labels were lost: patches come last; without patches every token is an input token."""
    count = grid[0] * grid[1] if grid is not None else length
    return torch.arange(length) - max(length - count, 0)


def find_patch_positions(origin: Tensor) -> tuple[int, ...]:
    """The positions of patch 0, 1, 2, ... in the sequence."""
    by_patch = sorted((patch, place) for place, patch in enumerate(origin.tolist()) if patch >= 0)
    return tuple(place for _, place in by_patch)


def compute_readout(model: Model, run: Run, layout: Layout, answer: ExplainedAnswer) -> Tensor:
    """How much of the answer the model's pooling reads at each token: [batch token]."""
    mask = layout.mask
    if is_pooling(run.mode.sites[-1]) and model.readout is None:
        raise UnsupportedModel(
            "The model pools all tokens with its own attention, so there is no token at which the answer is read. "
            'Pass one when opening the model: readout="first", "last", "mean" or the index of a token.'
        )
    if model.readout is not None:
        weights: Tensor | None = model.readout_weights(mask)
    else:
        weights = provenance.compute_pooling_weights(answer.trace, answer.shape, mask.size(0), layout.length)
    if weights is None or weights.shape != mask.shape:
        raise UnsupportedModel(
            "At which tokens the answer is read is not known. Pass it when opening the model: "
            'readout="first", "last", "mean" or the index of a token.'
        )
    weights = weights.to(mask.device, run.mode.sites[-1].value.dtype) * mask
    total = weights.sum(-1, keepdim=True)
    if not bool(total.all()):
        which = int((total[:, 0] == 0).nonzero()[0])
        raise InputError(
            f"The answer for example {which} is read at a padding token: this model reads a fixed position, such as "
            "the first token. Pad on the other side."
        )
    return weights / total


def axis_order_of(tensor: Tensor, trace: Trace) -> str:
    """The model's order of axes: "plain" [batch token channel], "turned" [token batch channel], or "pixels"."""
    if trace.is_pixels:
        return "pixels"
    batch_axis, token_axis = axis_of(trace.samples), axis_of(trace.tokens)
    return "turned" if batch_axis == 1 or (batch_axis is None and token_axis == 0) else "plain"


def to_canonical_axes(tensor: Tensor, trace: Trace) -> Tensor:
    """[batch token channel] or [batch height width channel], from the model's order of axes."""
    order = axis_order_of(tensor, trace)
    return tensor.permute(0, 2, 3, 1) if order == "pixels" else tensor.transpose(0, 1) if order == "turned" else tensor


def from_canonical_axes(tensor: Tensor, order: str) -> Tensor:
    """The inverse of `to_canonical_axes`."""
    return tensor.permute(0, 3, 1, 2) if order == "pixels" else tensor.transpose(0, 1) if order == "turned" else tensor


def find_representation(model: Model, run: Run, layout: Layout) -> tuple[Tensor, str]:
    """Where a headless model that returns one state per token keeps its representation: [batch token], and a note."""
    mask, special = layout.mask, layout.special
    kind: str | int = "mean"
    first = replace(model, readout="first").readout_weights(mask).bool()
    attention = run.mode.sites[-1].attention()
    if model.readout is not None:
        kind = model.readout
    elif mask.size(1) > 1 and not bool(attention.triu(1).any()):
        kind = "last"  # causal: each token sees only those before it
    elif bool((special | ~first).all()):
        kind = "first"
    weights = replace(model, readout=kind).readout_weights(mask).to(mask.device) * mask
    words = {"mean": "the mean of its tokens", "first": "its first token", "last": "its last token"}
    where = words.get(str(kind), f"token {kind}")
    note = f"The model has no head. The explanation is of its representation: {where}."
    return weights / weights.sum(-1, keepdim=True), note


def align_to_tokens(amount: Tensor, layout: Layout) -> Tensor:
    """[batch token], also where tokens that are no patch (CLS, registers) join after positions were added."""
    patches, length = layout.patches or (), layout.length
    if amount.size(1) == length:
        return amount
    others = [place for place in range(length) if place not in patches]
    early = others[: max(amount.size(1) - len(patches), 0)]
    if not patches or len(early) + len(patches) != amount.size(1):
        raise UnsupportedModel(
            f"Positions are added at {amount.size(1)} places, but attention covers {length} tokens, and which place "
            "belongs to which token is not known. Use attnlrp."
        )
    aligned = amount.new_zeros(amount.size(0), length)
    aligned[:, [*early, *patches] if patches[0] > 0 else [*patches, *early]] = amount
    return aligned


# --- models whose tokens do not stay the same -------------------------------------------------------------------------


def refuse_unstackable_sites(sites: list[AttentionSite], layout: Layout) -> None:
    """Methods on attention need self-attention over the same tokens at every layer."""
    batch, length = layout.mask.shape
    for site in sites:
        if site.obstacle:
            raise UnsupportedModel(
                f"Attention in {site.place} is not self-attention over one sequence: {site.obstacle}. Methods that "
                "need attention do not support this yet."
            )
        shape = (site.value.size(0), site.output.size(-2), site.value.size(-2))
        if shape != (batch, length, length):
            raise UnsupportedModel(
                f"Attention in {site.place} covers {shape[1]} x {shape[2]} tokens in a batch of {shape[0]}, the last "
                f"attention {length} x {length} in a batch of {batch}. Methods that need attention do not support "
                "windows, cross-attention and changing lengths yet. Others, such as gradient_x_input and lrp, work."
            )


def refuse_changing_tokens(states: list[Tensor], layout: Layout) -> None:
    """Methods on hidden states need the same tokens at every block boundary."""
    batch, length = layout.mask.shape
    for layer, state in enumerate(states):
        shape = tuple(to_canonical_axes(state.detach(), trace_of(state)).shape)
        if len(shape) != 3 or shape[:2] != (batch, length):
            raise UnsupportedModel(
                f"The hidden states at boundary {layer} have the shape {list(shape)}, but attention covers {length} "
                f"tokens in a batch of {batch}. Methods that need hidden states do not support models whose tokens "
                "change between layers yet."
            )
