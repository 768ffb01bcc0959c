"""From a capture to an explanation: compute the scores of a method and assign them to patches, tokens or pixels."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from whyformer._engine import SITES, Capture, Epilogue, EpilogueResults, RoundingEstimate, add_considered
from whyformer._explain.conditioning import estimate_conditioning, watch_attention_layers
from whyformer._explain.conservation import check_health
from whyformer._explain.method_call import MethodCall
from whyformer._explain.picture_streams import arrange_streams
from whyformer._explain.zero_maps import note_flat_maps, note_numbers_without_slope, note_saturated_maps, note_zero_maps
from whyformer._model import EncodedBatch, Model, pick_examples
from whyformer._plain.tokens import Grid, Pieces
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import MethodError, NonFinite, UnsupportedModel
from whyformer.methods import _layers_and_heads
from whyformer.methods._registry import Scores
from whyformer.results.conditioning import note_undetermined
from whyformer.results.explanation import Explanation
from whyformer.results.joining import join_explanations
from whyformer.results.patch_sums import sum_over_patches

EVERYTHING = _layers_and_heads.Selection()
OFF_SEQUENCE = {"input", "probe", "fingerprint", "mask", "special", "readout"}  # sites that are not of its positions
SplitScores: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None]  # of patches or tokens, pixels, special tokens


@neutral_torch()
def make_explanation(call: MethodCall, model: Model, encoded: EncodedBatch, capture: Capture) -> Explanation:
    """Compute one method on a capture that holds what it needs, or has its scores already."""
    if capture.parts:
        alone = [pick_examples(encoded, torch.tensor([i])) for i in range(encoded.batch)]
        parts = [make_explanation(call, model, *pair) for pair in zip(alone, capture.parts, strict=True)]
        joined = join_explanations(parts)
        own = select_notes(call, capture, joined.spent)
        return replace(joined, notes=tuple(dict.fromkeys((*own, *joined.notes))))
    captured = gather_needs(call, capture) if capture.epilogue is None else {}
    spent_before = Counter(captured["probe"].spent) if "probe" in captured else Counter()
    if capture.epilogue is not None:
        computed = ComputedScores(**capture.epilogue[call.key, call.recipe])
    else:
        computed = compute_method(call, encoded, capture, captured)
    scores, pixels, special = (
        None if part is None else part.cpu() for part in (computed.scores, computed.pixels, computed.special)
    )
    assert scores is not None
    details = dict(computed.details)
    spent = count_model_passes(call, capture, captured, spent_before)
    notes = select_notes(call, capture, spent)
    if computed.rounding is not None:
        estimate = RoundingEstimate(computed.rounding, computed.layers)
        conditioning = estimate_conditioning(estimate, call.needs, computed.read)
        details |= conditioning.to_details()
        notes += note_undetermined(conditioning, capture.logits.dtype)
    if computed.per_layer is not None:
        details["per_layer"] = computed.per_layer
    if call.wants_health and call.recipe is not None:
        details |= check_health(capture, call.recipe).to_details()
    tokens = capture.tokens
    if pixels is not None and len(tokens[0]) != scores.shape[1]:  # the patches are unknown: every pixel counts as one
        tokens = (Grid(pixels.shape[1], pixels.shape[2]),) * len(scores)
    of_map = (call.method, scores, tokens, encoded.names)
    notes += (*computed.notes, *note_zero_maps(*of_map), *note_flat_maps(*of_map), *note_saturated_maps(*of_map))
    notes += note_numbers_without_slope(call.method, scores, tokens, encoded)
    notes += captured["probe"].notes if "probe" in captured else ()
    explanation = Explanation(
        scores=scores,
        tokens=tokens,
        targets=add_considered(capture.targets, model, encoded, capture.logits),
        names=encoded.names,
        method=call.method.name,
        settings=call.all_settings,
        model=model.name,
        versions=model.describe_versions(),
        class_specific=call.method.class_specific,
        signed=call.method.signed,
        pixels=pixels,
        special=special,
        notes=notes,
        details={key: detail.detach().cpu() for key, detail in details.items()},
        spent=spent,
        images=encoded.images if encoded.pictures is None else (),
        engine=capture.engine,
        parts=encoded.streams,
    )
    return explanation if encoded.pictures is None else arrange_streams(explanation, model, encoded)


def select_notes(call: MethodCall, capture: Capture, spent: Mapping[str, float]) -> tuple[str, ...]:
    reads_slopes = not {"backward", "relevance"}.isdisjoint(spent)
    return capture.select_notes(call.needs, reads_attention=call.method.reads_attention, reads_slopes=reads_slopes)


def gather_needs(call: MethodCall, capture: Capture) -> dict[str, Any]:
    """What the method needs. Beside sites with one entry per attention, states are those of blocks with attention."""
    captured = {need: capture.get(need, call.recipe) for need in call.needs}
    if not capture.attending or not any(SITES[need].has_layers for need in captured):
        return captured
    places = (*capture.attending, capture.attending[-1] + 1)
    return {
        need: [value[place] for place in places] if SITES[need].has_boundaries else value
        for need, value in captured.items()
    }


@dataclass(frozen=True)
class ComputedScores:
    """What a method computes from a capture. It has tensors, numbers and strings only: a program can return it."""

    scores: Tensor
    pixels: Tensor | None
    special: Tensor | None
    details: Mapping[str, Tensor]
    per_layer: Tensor | None
    rounding: Tensor | None  # the rows of a RoundingEstimate, of `layers` layers
    layers: int
    read: tuple[int, ...]  # the layers of the attention relevance that the method read
    notes: tuple[str, ...]


def compute_method(
    call: MethodCall, encoded: EncodedBatch, capture: Capture, captured: dict[str, Any]
) -> ComputedScores:
    """The scores of a method, split, with what its notes need. All that depends on the inputs comes from tensors."""
    name = call.method.name
    read = watch_attention_layers(captured)
    selection = _layers_and_heads.resolve_selection(call.selected, captured) if call.selected else EVERYTHING
    computed = call_method(call, captured, selection)
    split = partial(
        split_scores, capture=capture, encoded=encoded, method=name, in_sequence=scores_positions(call.needs)
    )
    scores, pixels, special = split(computed.values.detach())
    note = call.method.note(*captured.values(), **call.settings) if call.method.note is not None else ""
    estimate = capture.rounding.get(call.recipe) if call.recipe is not None else None
    per_layer = compute_per_layer(call, captured, selection, split) if call.selected.get("per_layer") else None
    if not all(bool(part.isfinite().all()) for part in (scores, pixels, special) if part is not None):
        raise NonFinite(f"{name} gave NaN or infinity. Open the model with dtype=torch.float64, or use another method.")
    details = {key: detail.detach() for key, detail in computed.details.items()}
    rows, layers = (None, 0) if estimate is None else (estimate.rows, estimate.layers)
    notes = (note,) if note else ()
    return ComputedScores(scores, pixels, special, details, per_layer, rows, layers, tuple(sorted(read)), notes)


def make_epilogue(calls: Sequence[MethodCall]) -> Epilogue | None:
    """These methods as the last part of a recorded program; None if one of them cannot be.

    Methods from elsewhere may do anything: they are called every time.
    """
    keys = tuple(call.key for call in calls)
    are_ours = all(call.method.compute.__module__.startswith("whyformer.methods.") for call in calls)
    if None in keys or not are_ours or any(call.wants_health for call in calls):
        return None

    def compute(capture: Capture, encoded: EncodedBatch) -> EpilogueResults:
        return {
            (call.key, call.recipe): dict(vars(compute_method(call, encoded, capture, gather_needs(call, capture))))
            for call in calls
        }

    return Epilogue(keys, compute)


def call_method(call: MethodCall, captured: Mapping[str, Any], selection: _layers_and_heads.Selection) -> Scores:
    """Call the method's function on the selected layers and heads."""
    selects = selection is not EVERYTHING
    needs = [selection.of(need, value) if selects else value for need, value in captured.items()]
    computed = call.method.compute(*needs, **call.settings)
    return computed if isinstance(computed, Scores) else Scores(computed)


def compute_per_layer(
    call: MethodCall,
    captured: Mapping[str, Any],
    selection: _layers_and_heads.Selection,
    split: Callable[[Tensor], SplitScores],
) -> Tensor:
    """[batch layer unit]: the scores computed from each layer up to the last."""
    layers = selection.layers or tuple(range(_layers_and_heads.depth_of(captured)))
    parts = [replace(selection, layers=layers[start:]) for start in range(len(layers))]
    return torch.stack([split(call_method(call, captured, part).values.detach())[0] for part in parts], dim=1)


def count_model_passes(
    call: MethodCall, capture: Capture, captured: Mapping[str, Any], spent_before: "Counter[str]"
) -> dict[str, float]:
    """Passes through the model per example, as if this method had run alone."""
    batch = len(capture.targets)
    spent = {"forward": 1.0}
    if call.method.needs_gradient:
        spent["backward"] = 1.0
    if call.recipe is not None:
        is_contrast = any(target.versus is not None for target in capture.targets)
        spent["relevance"] = 2.0 if is_contrast and capture.engine.name != "plan" else 1.0
    if "probe" in captured:
        for kind, rows in (captured["probe"].spent - spent_before).items():
            spent[kind] = spent.get(kind, 0.0) + rows / batch
    return spent


def scores_positions(needs: Sequence[str]) -> bool:
    """Whether a method scores the positions of the sequence that attention sees, and not the units of the input."""
    if any((SITES[need].of or need) not in OFF_SEQUENCE for need in needs if need in SITES):
        return True
    return not any((SITES[need].of or need) in ("input", "probe") for need in needs if need in SITES) or (
        "probe" in needs and "readout" in needs
    )


def split_scores(
    scores: Tensor, capture: Capture, encoded: EncodedBatch, method: str, in_sequence: bool = True
) -> SplitScores:
    """Split what a method returned into scores of patches or tokens, of pixels, and of tokens that are no patch."""
    in_sequence = in_sequence or scores.shape[-1] != len(capture.tokens[0])
    if in_sequence and capture.obstacle and scores.dim() == 2:
        raise UnsupportedModel(capture.obstacle)
    if in_sequence and (placed := capture.pick_slots(scores)) is not None:
        is_grid = isinstance(capture.tokens[0], Grid)
        return (placed if is_grid else placed.masked_fill(find_padding(capture, placed), 0)), None, None
    is_image = getattr(encoded.inputs.get(encoded.main), "ndim", 0) == 4
    tokens, batch = capture.tokens[0], len(capture.tokens)
    if isinstance(tokens, Grid) and scores.dim() == 3 and len(scores) == batch:
        return sum_over_patches(scores, tokens), scores, None
    if isinstance(tokens, Grid):
        patches = capture.patches or tuple(range(len(tokens)))
        if in_sequence and scores.dim() == 2 and len(scores) == batch and scores.shape[1] > max(patches):
            others = sorted(set(range(scores.shape[1])) - set(patches))
            return scores[:, patches], None, scores[:, others] if others else None
        if scores.shape == (batch, len(tokens)):  # the method scores patches only
            return scores, None, None
    elif is_image and scores.dim() == 3 and len(scores) == batch:  # the patches are unknown
        return scores.flatten(1), scores, None
    elif (own := gather_own_scores(scores, capture, in_sequence)) is not None:
        added = gather_other_scores(scores, capture, in_sequence)
        return own.masked_fill(find_padding(capture, own), 0), None, added
    seen = capture.get("mask", None).size(-1)
    if isinstance(tokens, Pieces) and scores.shape == (batch, seen):
        raise UnsupportedModel(
            f"The attention covers {seen} tokens, the input has {len(tokens)}, and which is which is not known. "
            "Methods that score what attention sees do not work."
        )
    units = "patches" if isinstance(tokens, Grid) else "tokens"
    raise MethodError(
        f"{method} returned {list(scores.shape)} for {batch} x {len(tokens)} {units}. "
        "A method must return one score per token, [batch token], or for images [batch height width]."
    )


def find_padding(capture: Capture, scores: Tensor) -> Tensor:
    """[batch token]: which of the scored tokens are padding."""
    padding = [pieces.padding for pieces in capture.tokens if isinstance(pieces, Pieces)]
    return torch.tensor(padding, device=scores.device)


def gather_own_scores(scores: Tensor, capture: Capture, in_sequence: bool) -> Tensor | None:
    """[batch token] of the tokens of the input; None if the scores are of something else.

    Scores of the entries of a signal are summed over each frame; tokens that the model adds are left out.
    """
    batch, count = len(capture.tokens), len(capture.tokens[0])
    if scores.shape == (batch, count) and (capture.places is None or not in_sequence):
        return scores
    if scores.dim() != 2 or len(scores) != batch:
        return None
    owners = None if capture.owners is None else capture.owners.flatten()
    if owners is not None and scores.size(1) == len(owners) and (not in_sequence or scores.size(1) != count):
        return scores.new_zeros(batch, count).index_add_(1, owners[owners >= 0], scores[:, owners >= 0])
    if capture.places is not None and scores.size(1) > max(capture.places):
        return scores[:, list(capture.places)]
    return None


def gather_other_scores(scores: Tensor, capture: Capture, in_sequence: bool) -> Tensor | None:
    """[batch token] of the tokens that a model adds to the features of a table, such as a class token."""
    is_table = capture.owners is not None and capture.owners.shape == (len(capture.tokens[0]),)
    if not is_table or not in_sequence or capture.places is None:
        return None
    others = sorted(set(range(scores.size(1))) - set(capture.places))
    return scores[:, others] if others else None
