"""record(): runs a model once and keeps what is asked for.

One forward pass, a gradient backward pass if a gradient is asked for, and one relevance pass per recipe.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.capture import (
    LAYER_SCORE_SITES,
    PARTS_FORMS,
    SITES,
    STREAM_SITES,
    Capture,
    CaptureBuilder,
    CapturedValues,
)
from whyformer._engine.layout import ExamplesMoved, is_known_to_move
from whyformer._engine.lean import record_lean
from whyformer._engine.probe import Probe, pick_examples
from whyformer._engine.program import (
    Finish,
    RecordedRun,
    Recorder,
    RecordingBuilder,
    Replayer,
    Unrecordable,
    alias_inputs,
    find_constants,
    find_program_inputs,
    make_recorded_run,
)
from whyformer._engine.relevance import Recipe, Switch
from whyformer._engine.run import Intervention, hold_other_tower, run_forward
from whyformer._engine.targets import ClassReading, aim_at_answers, has_choices, pick_choices, refuse_encoder_decoders
from whyformer._model import EncodedBatch, Model
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import NotCaptured, UnsupportedModel, WhyformerError

GRAPH_SITES = {"input", *PARTS_FORMS}  # values that are found only if the forward builds a graph
TAPE_SITES = STREAM_SITES | LAYER_SCORE_SITES.keys() | PARTS_FORMS.keys()  # computed from the list of all operations
ANSWERS_MOVED = (
    "The model returns the answers of a batch in another order than its examples, so each example was run alone."
)


def check_sites(keep: Collection[str]) -> set[str]:
    """Return the site names; raise if one does not exist."""
    if isinstance(keep, str | bytes) or not isinstance(keep, Collection):
        raise NotCaptured(f"keep must be a set or list of sites, got {keep!r}. Available: {', '.join(SITES)}.")
    if unknown := [str(name) for name in keep if not isinstance(name, str) or name not in SITES]:
        raise NotCaptured(f"There is no site {', '.join(sorted(unknown))}. Available: {', '.join(SITES)}.")
    return set(keep)


@neutral_torch()
def record(
    model: Model,
    encoded: EncodedBatch,
    *,
    target: Any = None,
    versus: Any = None,
    keep: Collection[str],
    recipes: Sequence[Recipe] = (),
    track_absorbed: bool = False,
    intervention: Intervention | None = None,
    finish: Finish | None = None,
) -> Capture:
    """Run the model once and keep the sites named in `keep`.

    track_absorbed: also keep, per recipe, the relevance that did not reach the input (`Capture.absorbed`).
    intervention: attention to use instead of the model's own.
    finish: what a recorded program may compute from the capture in place of its values (`Capture.finished`).
    """
    wanted = check_sites(keep)
    refuse_encoder_decoders(model.module)
    model, encoded = hold_other_tower(model, encoded, target)
    if has_choices(encoded):
        model, encoded, target = pick_choices(model, encoded, target, versus)
        versus = None
    target, versus = aim_at_answers(encoded, target, versus)
    options = RecordOptions(wanted, recipes, track_absorbed, intervention, finish)
    if is_known_to_move(model, encoded):
        return record_alone(model, encoded, target, versus, options)
    try:
        return record_batch(model, encoded, target, versus, options)
    except ExamplesMoved as moved:
        return record_alone(model, encoded, target, versus, options, moved.output)


@dataclass(frozen=True)
class RecordOptions:
    """What a run is to keep, and how."""

    wanted: set[str]
    recipes: Sequence[Recipe]
    track_absorbed: bool
    intervention: Intervention | None
    finish: Finish | None


def record_batch(
    model: Model, encoded: EncodedBatch, target: Any, versus: Any, options: RecordOptions, *, runs_alone: bool = False
) -> Capture:
    """All examples in one run."""
    wanted, recipes, intervention = options.wanted, options.recipes, options.intervention
    if not options.track_absorbed and intervention is None and not runs_alone:
        if (capture := record_lean(model, encoded, target, versus, wanted, recipes)) is not None:
            return capture
        replayer = Replayer(model, encoded, target, versus, wanted, recipes, options.finish)
        if (capture := replayer.replay()) is not None:
            return capture
        if replayer.is_due() and (capture := record_program(replayer)) is not None:
            return capture
    switch, asks = choose_passes(wanted, recipes)
    with run_forward(model, encoded, switch=switch, intervention=intervention, **asks) as run:
        builder = CaptureBuilder(model, encoded, run, wanted, runs_alone=runs_alone)
        return builder.build(target, versus, switch, recipes, options.track_absorbed)


def record_alone(
    model: Model, encoded: EncodedBatch, target: Any, versus: Any, options: RecordOptions, output: Tensor | None = None
) -> Capture:
    """Each example in a run of its own, for a model that moves the rows of a batch inside.

    output: what the model returned for the batch, to be compared.
    """
    if options.intervention is not None:
        raise UnsupportedModel(
            "This model changes the order of the examples inside, so a batch cannot be intervened in. Pass one example."
        )
    parts = tuple(
        record_batch(
            model, pick_examples(encoded, torch.tensor([i])), pick_target(target, i, encoded.batch),
            pick_target(versus, i, encoded.batch), options, runs_alone=True,
        )
        for i in range(encoded.batch)
    )  # fmt: skip
    first, logits = parts[0], join_logits(parts)
    notes = dict.fromkeys(note for part in parts for note in part.notes)
    if output is not None and logits is not None and not is_close(logits, output):
        notes[ANSWERS_MOVED] = None
    values: CapturedValues = {("fingerprint", None): encoded.fingerprints()}
    if "probe" in options.wanted:
        values["probe", None] = join_probes([part["probe"] for part in parts], encoded)
    return replace(
        first,
        targets=tuple(target for part in parts for target in part.targets),
        tokens=tuple(tokens for part in parts for tokens in part.tokens),
        logits=first.logits if logits is None else logits,
        notes=tuple(notes),
        values=values,
        fixed=None if first.fixed is None else [part.fixed for part in parts],
        parts=parts,
    )


def pick_target(target: Any, example: int, batch: int) -> Any:
    """The target of one example, of those for all or one each."""
    return target[example] if isinstance(target, list | tuple) and len(target) == batch else target


def join_logits(parts: Sequence[Capture]) -> Tensor | None:
    """The output of all examples; None if their shapes differ."""
    shapes = {part.logits.shape[1:] for part in parts}
    return torch.cat([part.logits for part in parts]) if len(shapes) == 1 else None


def is_close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= 1e-2 * other.abs().max())


def join_probes(probes: Sequence[Probe], encoded: EncodedBatch) -> Probe:
    """A probe for all examples; each keeps its own answers."""
    first = probes[0]
    targets = tuple(target for probe in probes for target in probe.targets)
    tokens = tuple(tokens for probe in probes for tokens in probe.tokens)
    reading = None if isinstance(first.reading, ClassReading) else first.reading
    return Probe(first.model, encoded, replace(first.layout, tokens=tokens), targets, reading, runs_alone=True)


def choose_passes(wanted: set[str] | frozenset[str], recipes: Sequence[Recipe]) -> tuple[Switch | None, dict[str, Any]]:
    """A switch if relevance is wanted, and what the forward must prepare for."""
    sites = [SITES[name] for name in wanted]
    switch = Switch() if recipes and any(site.is_relevance for site in sites) else None
    return switch, {
        "asks_gradient": bool(wanted & GRAPH_SITES) or any(site.is_gradient for site in sites),
        "keeps_tape": bool(wanted & TAPE_SITES),
        "keeps_scores": "attention_scores" in wanted,
    }


def record_program(replayer: Replayer) -> Capture | None:
    """Run the model once, and keep the run as a program that later calls repeat; None if that is not possible."""
    try:
        recorded, capture = run_recorded(replayer)
    except Unrecordable as reason:
        replayer.refuse(str(reason))
        return None
    if recorded is not None:  # the run itself has been freed
        replayer.keep_if_same(recorded, capture)
    return capture


def run_recorded(replayer: Replayer) -> tuple[RecordedRun | None, Capture]:
    """One run of the model as a program, and its capture; no program if its last part cannot be recorded."""
    model, encoded = replayer.model, alias_inputs(replayer.encoded, replayer.device)
    switch, asks = choose_passes(replayer.keep, replayer.recipes)
    recorder = Recorder(find_program_inputs(encoded, replayer.device), find_constants(model.module))
    with (
        torch.autograd.set_multithreading_enabled(False),  # on a GPU, too, operations are seen in this thread
        recorder,
        run_forward(model, encoded, switch=switch, **asks) as run,
    ):
        builder = RecordingBuilder(replayer, encoded, run, recorder)
        capture = builder.build(replayer.target, replayer.versus, switch, replayer.recipes, False)
        if replayer.finish is not None:
            if (finished := finish_recorded(replayer, capture, encoded)) is None:
                return None, capture
            capture = replace(capture, values={}, finished=finished)
        return make_recorded_run(builder, capture), capture


def finish_recorded(
    replayer: Replayer, capture: Capture, encoded: EncodedBatch
) -> Mapping[tuple[Any, Recipe | None], Any] | None:
    """The last part of a program; None if it cannot be recorded, or raises what the caller will see in any case."""
    assert replayer.finish is not None
    try:
        return replayer.finish.compute(capture, encoded)
    except (Unrecordable, WhyformerError):
        replayer.leave_unfinished()
        return None
