r"""The measures that attention is compared with: gradients, leave-one-out, and any method by name. [example unit] each.

$$ g_t = \left| e_t \cdot \frac{\partial p}{\partial e_t} \right| $$

with p the probability of the predicted class and $e_t$ the word vector of a token (or the pixels of a patch). Jain &
Wallace, 2019, keep the attention weights constant for this gradient; we report it both ways. In a transformer only the
audited attention is constant; all other attention is part of the encoder.

A unit is a token of a text or a patch of an image.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from whyformer._audit.checks.agreement import (
    DELETED,
    GRADIENT,
    GRADIENT_THROUGH,
    MASKED,
    REMOVED,
    PairCorrelations,
    correlate_attention,
)
from whyformer._audit.checks.attention_choice import AttentionChoice
from whyformer._audit.checks.audited_attention import AuditedAttention
from whyformer._audit.checks.span_model import marks_spans
from whyformer._audit.reruns import AttentionReplay
from whyformer._explain.compare import compare
from whyformer._explain.method_call import MethodLike
from whyformer.errors import UnsupportedModel
from whyformer.methods.gradient_x_input import gradient_x_input
from whyformer.methods.leave_one_out import leave_one_out
from whyformer.results.patch_sums import sum_over_patches

LEFT_OUT_AT_ONCE = 8  # examples, between two reports of progress


def measure_shared_importance(
    replay: AttentionReplay, methods: Sequence[MethodLike] | str, advance: Callable[[float], None] = lambda _: None
) -> dict[str, Tensor]:
    """The measures that are the same for every choice of attention. Signed methods count by magnitude.

    advance: is called with the share of the work that is done.
    """
    measures = {GRADIENT_THROUGH: measure_gradient(replay)}
    fills = choose_fills(replay)
    share = lambda part: advance(part / len(fills))  # noqa: E731
    measures |= {name: measure_leave_one_out(replay, fill, share) for name, fill in fills.items()}
    if methods:
        targets = [target.index for target in replay.explained]
        wanted = methods if isinstance(methods, str) else list(methods)
        for label, explanation in compare(replay.model, replay.encoded, wanted, target=targets).explanations.items():
            measures[label] = explanation.scores.abs() if explanation.signed else explanation.scores
    return measures


def measure_agreement(
    audited: AuditedAttention, shared: Mapping[str, Tensor], *, top: float
) -> list[dict[str, PairCorrelations]]:
    """For each example, how the audited attention and every measure rank its units. shared: see above."""
    replay, choice = audited.replay, audited.choice
    attention = take_units(replay, audited.distribution).double().cpu()
    measures = {GRADIENT: measure_gradient(replay, choice), **shared}
    rows = []
    for i, compared in enumerate(replay.probe().real & find_attended_units(replay, choice)):
        scores = {name: values[i].double().cpu()[compared].tolist() for name, values in measures.items()}
        rows.append({"pairs": correlate_attention(attention[i][compared].tolist(), scores, top=top)})
    return rows


# --- gradient ---------------------------------------------------------------------------------------------------------


def measure_gradient(replay: AttentionReplay, choice: AttentionChoice | None = None) -> Tensor:
    """[example unit]: |gradient x input| of the explained probability; with a choice, that attention is constant."""
    scores = gradient_x_input(*replay.differentiate(None if choice is None else detach_attention(choice)))
    assert isinstance(scores, Tensor)
    return sum_by_unit(replay, scores.detach()).abs()


def detach_attention(choice: AttentionChoice) -> Callable[[int, Tensor], Tensor | None]:
    """An intervention that keeps the weights but lets no gradient through them."""

    def detach(block: int, attention: Tensor) -> Tensor | None:
        if block not in choice.blocks:
            return None
        stopped = attention.detach().requires_grad_()  # a leaf: unchanged numbers alone would not count as a change
        if choice.head is None:
            return stopped
        is_chosen = torch.arange(attention.size(1), device=attention.device) == choice.head
        return torch.where(is_chosen.view(1, -1, 1, 1), stopped, attention)

    return detach


# --- leave-one-out ----------------------------------------------------------------------------------------------------


def measure_leave_one_out(
    replay: AttentionReplay, fill: str, advance: Callable[[float], None] = lambda _: None
) -> Tensor:
    """[example unit]: |change| of the predicted probability without the unit. 0 for special tokens and padding.

    Also 0 for an example with a single unit: nothing would be left of it.
    """
    real = replay.probe().real
    scores = torch.zeros(real.shape, dtype=torch.float64)
    examples = (real.sum(-1) > 1).nonzero()[:, 0]
    if len(examples) == 0:
        advance(1.0)
        return scores
    for part in examples.split(LEFT_OUT_AT_ONCE):
        change = leave_one_out(replay.probe(part), of="probability", absolute=True, fill=fill)
        assert isinstance(change, Tensor)
        scores[part] = change
        advance(len(part) / len(examples))
    return scores


def choose_fills(replay: AttentionReplay) -> dict[str, str]:
    """How units can be left out of these inputs: name of the measure -> fill.

    Spans are numbered by their tokens, so no token is deleted where classes are spans.
    """
    if replay.probe().is_image:
        return {REMOVED: "zero"}
    has_ids = not replay.encoded.inputs[replay.encoded.main].is_floating_point()
    for token, fill in (("mask_token_id", "mask"), ("unk_token_id", "unknown")):
        if has_ids and getattr(replay.model.tokenizer, token, None) is not None:
            return {MASKED: fill} if marks_spans(replay.model) else {DELETED: "delete", MASKED: fill}
    return {MASKED: "pad"} if marks_spans(replay.model) else {DELETED: "delete"}


# --- units ------------------------------------------------------------------------------------------------------------


def sum_by_unit(replay: AttentionReplay, scores: Tensor) -> Tensor:
    """[example unit] from scores of tokens or pixels."""
    probe = replay.probe()
    if scores.dim() == 3:
        if probe.grid is None:
            raise UnsupportedModel("The patches of the image could not be identified, so it cannot be audited.")
        return sum_over_patches(scores, probe.grid)
    if scores.size(1) == probe.units:
        return scores
    raise UnsupportedModel(f"{scores.size(1)} tokens enter the model, but attention is over {probe.units}.")


def take_units(replay: AttentionReplay, distribution: Tensor) -> Tensor:
    """[example unit] from [example token]: the tokens that represent a word or a patch, in their order."""
    return distribution[:, replay.probe().places.to(distribution.device)]


def find_attended_units(replay: AttentionReplay, choice: AttentionChoice) -> Tensor:
    """[example unit]: whether any query may attend to it. A question that attention does not cover is not compared."""
    allowed = torch.stack([replay.allowed[block].flatten(1, 2).any(1) for block in choice.blocks]).any(0)
    return take_units(replay, allowed).cpu()
