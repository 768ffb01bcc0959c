"""Why a model, or a run of it, has no plan.

Where a plan computes attention: planned runs keep queries, keys, values and weights as the full engine does.

What the full engine found out about a model that holds for every input of a kind: its task, where the answer is
read, its notes, and that tokens are where the input has them.

What depends on the values of an input is not kept. Where the answer is read, say, is kept as a rule (READOUTS).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whyformer._engine.capture.builder import CaptureBuilder
from whyformer._engine.layout.blocks import find_blocks
from whyformer._engine.layout.layout import Layout, find_first_grid
from whyformer._engine.run.forward import Run, note_chosen_output
from whyformer._engine.run.intercept import Intercept
from whyformer._engine.targets.chosen_answer import is_causal
from whyformer._engine.targets.target import read_logits
from whyformer._engine.targets.task import find_task
from whyformer._engine.tracing.attention import AttentionSite, read_fused_site
from whyformer._engine.tracing.operations import FUSED_ATTENTION, Operation
from whyformer._engine.tracing.provenance import compute_pooling_weights
from whyformer._model import EncodedBatch
from whyformer._plain.tokens import ScoredTokens
from whyformer.errors import UnsupportedModel


class NotPlannable(Exception):
    """What the full engine computes cannot be had from one plain backward pass with a few factors."""


class PlanDiffers(Exception):
    """The model does something else than in the run that the plan was learnt from."""


# --- attention --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionStep:
    """A step that is the attention of one layer, and how its heads are arranged."""

    step: int
    path: str
    heads: int
    folds_heads: str
    batch_axis: int

    def read(self, operation: Operation, result: Tensor) -> AttentionSite:
        """The operation as an attention site, with its output on the graph."""
        if operation.name == FUSED_ATTENTION:
            site = read_fused_site(operation, result, self.path)
        else:
            site = AttentionSite(self.path, operation.args[1], result, operation.args[0])
        site.folds_heads, site.batch_axis = self.folds_heads, self.batch_axis
        site.unfold(self.heads)
        return site.detach()


def describe_site(site: AttentionSite, step: int | None) -> AttentionStep | None:
    """The step of a plan that computes this site; None if it is more than one operation, or not a plain one."""
    is_plain = not site.parts and site.first_key == 0 and site.joined_axis is None and site.tokens is None
    if step is None or step < 0 or not is_plain or site.first_positions is not None or site.obstacle:
        return None
    return AttentionStep(step, site.path, site.value.size(1), site.folds_heads, site.batch_axis)


# --- facts ------------------------------------------------------------------------------------------------------------


PLANNED_TASKS = ("class", "next token", "masked token", "token class", "answer span")


def mark_position(mask: Tensor, positions: Tensor) -> Tensor:
    return (torch.arange(mask.size(1)) == positions[:, None]).double()


def find_last_real(mask: Tensor) -> Tensor:
    return mask.size(1) - 1 - mask.flip(1).int().argmax(1)


def share_evenly(tokens: Tensor) -> Tensor:
    return tokens.double() / tokens.sum(1, keepdim=True).clamp(min=1)


# Where an answer may be read, from the tokens that are no padding, and those that are special: [batch token]
READOUTS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "first position": lambda mask, _: mark_position(mask, mask.new_zeros(len(mask), dtype=torch.long)),
    "last position": lambda mask, _: mark_position(mask, torch.full((len(mask),), mask.size(1) - 1)),
    "first token": lambda mask, _: mark_position(mask, mask.int().argmax(1)),
    "last token": lambda mask, _: mark_position(mask, find_last_real(mask)),
    "second token": lambda mask, _: mark_position(mask, torch.ones(len(mask))),
    "first and second token": lambda mask, _: share_evenly(torch.arange(mask.size(1)).expand_as(mask) < 2),
    "mean of all": lambda mask, _: share_evenly(mask),
    "mean of words or patches": lambda mask, special: share_evenly(mask & ~special),
    "first and mean of patches": lambda mask, special: (
        mark_position(mask, torch.zeros(len(mask))) + share_evenly(mask & ~special)
    ).div(2),
}


@dataclass(frozen=True)
class ModelFacts:
    """What holds for every input of a kind."""

    task: str
    is_causal: bool
    readouts: tuple[str, ...]  # the rules that all fit where the answer is read; () if none does
    notes: tuple[str, ...]  # on the model
    steps: tuple[int, ...]  # of the forward at each block boundary
    attending: tuple[int, ...]
    bytes_of_state: int  # of the explained input at one token
    image: Layout | None = None  # of one image; texts are laid out as the input has them

    def find_readout(self, layout: Layout) -> Tensor | None:
        """[batch token]: where the answer is read; None if the rules that are known to fit do not agree here."""
        mask, special = layout.mask.cpu(), layout.special.cpu()
        found = [READOUTS[name](mask, special) for name in self.readouts]
        agree = found and all(torch.equal(found[0], other) for other in found[1:])
        return found[0].to(layout.mask.device) if agree else None

    def lay_out(self, encoded: EncodedBatch, device: torch.device) -> Layout:
        if self.image is None:
            assert encoded.token_mask is not None
            return lay_out_as_given(encoded, device)
        mask, special = (t.expand(encoded.batch, -1) for t in (self.image.mask, self.image.special))
        return replace(self.image, mask=mask, special=special, tokens=self.image.tokens * encoded.batch)


def lay_out_as_given(encoded: EncodedBatch, device: torch.device) -> Layout:
    """The layout of texts whose tokens stay where they are."""
    assert encoded.token_mask is not None
    mask, special = encoded.token_mask, encoded.special_mask
    special = torch.zeros_like(mask) if special is None else special
    return Layout(mask.to(device), special.to(device), None, encoded.pieces(mask.size(1)))


def read_facts(run: Run, builder: CaptureBuilder, encoded: EncodedBatch) -> ModelFacts:
    """What a finished run shows; raises NotPlannable where planned runs could not tell."""
    mode = run.mode
    if mode.streams or mode.ignored or mode.follower.numbers is not None or mode.later:
        raise NotPlannable("the model has two streams of tokens, layers with other tokens, or a graph that it cuts")
    if find_first_grid(run, encoded) is not None:
        raise NotPlannable("layers do not all have the same tokens")
    task = find_task(builder.model, encoded, run.returned, lambda: is_causal(run))
    if task.kind not in PLANNED_TASKS:
        raise NotPlannable(f"the answer of the model is a {task.kind}")
    changing = note_chosen_output(run.returned, run.output)
    return ModelFacts(
        task.kind,
        is_causal(run),
        find_readouts(run, builder.layout, encoded),
        tuple(note for note in (*run.notes, *builder.note_attention()) if note not in changing),
        *find_block_steps(mode),
        0 if mode.leaf is None else mode.leaf.size(-1) * mode.leaf.element_size(),
        find_image_layout(builder.layout, encoded),
    )


def find_block_steps(mode: Intercept) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The step of the forward at each block boundary, and the block that each attention is in; () if not known."""
    try:
        blocks = find_blocks(mode)
    except UnsupportedModel:
        return (), ()
    return tuple(blocks.steps), blocks.attending


def find_readouts(run: Run, layout: Layout, encoded: EncodedBatch) -> tuple[str, ...]:
    """The rules that say where the output of this run is read."""
    if run.output.dim() > 2:
        return ()
    logits, _, trace = read_logits(encoded, run.output)
    weights = compute_pooling_weights(trace, logits.shape, encoded.batch, layout.length)
    if weights is None or weights.shape != layout.mask.shape:
        return ()
    mask, special, read = layout.mask.cpu(), layout.special.cpu(), weights.cpu().double()
    return tuple(name for name, find in READOUTS.items() if torch.allclose(find(mask, special), read))


def find_image_layout(layout: Layout, encoded: EncodedBatch) -> Layout | None:
    """The layout of one image; None for texts, if their tokens are where the input has them."""
    others = (layout.positions, layout.owners, layout.slots, layout.leaf_slots)
    if any(one is not None for one in others) or layout.obstacle or layout.has_lost_leaf or layout.is_joined:
        raise NotPlannable("tokens are elsewhere in the model than in the input")
    if encoded.inputs[encoded.main].is_floating_point():
        return replace(layout, mask=layout.mask[:1], special=layout.special[:1], tokens=layout.tokens[:1])
    given = lay_out_as_given(encoded, layout.mask.device)
    if layout.patches is not None or not is_same_mask(layout, given) or has_other_tokens(layout.tokens, given.tokens):
        raise NotPlannable("tokens are elsewhere in the model than in the input")
    return None


def is_same_mask(one: Layout, other: Layout) -> bool:
    return torch.equal(one.mask, other.mask) and torch.equal(one.special, other.special)


def has_other_tokens(one: tuple[ScoredTokens, ...], other: tuple[ScoredTokens, ...]) -> bool:
    return len(one) != len(other) or any(a != b for a, b in zip(one, other, strict=True))
