"""record(): runs a model once and keeps what is asked for, by the first runner that accepts the request.

Planned runs (plan/), recorded programs (program/) and the full engine (capture/full_run.py) are asked in this order, in
one function, `route`. `Capture.engine` says which one ran and why those before it did not, and so does the logger
"whyformer" at DEBUG.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from whyformer._engine.capture.capture import Capture, CapturedValues, Declined, EngineChoice, Runner, RunRequest
from whyformer._engine.capture.full_run import FullRunner
from whyformer._engine.capture.sites import SITES
from whyformer._engine.layout.order import ExamplesMoved, is_known_to_move
from whyformer._engine.plan.runner import PlanRunner
from whyformer._engine.probe.conduct import see_conduct
from whyformer._engine.probe.probe import Probe
from whyformer._engine.program.replay import ProgramRunner
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.run.image_tokens import locate_image_tokens
from whyformer._engine.run.intervene import Intervention
from whyformer._engine.run.model_memory import learnt, read_state, recall
from whyformer._engine.run.other_inputs import settle_mask
from whyformer._engine.run.output_scale import scale_of
from whyformer._engine.run.two_towers import hold_other_tower
from whyformer._engine.targets.answer_target import aim_at_answers
from whyformer._engine.targets.choice import has_choices, pick_choices
from whyformer._engine.targets.target import ClassReading
from whyformer._engine.targets.target_like import TargetLike
from whyformer._engine.targets.target_text import read_target_texts
from whyformer._engine.targets.task import refuse_encoder_decoders
from whyformer._model import EncodedBatch, Model, pick_examples
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import NotCaptured, ResourceError, UnsupportedModel

logger = logging.getLogger("whyformer")
R = TypeVar("R", bound=Runner)
PLAN, PROGRAM, FULL = PlanRunner(), ProgramRunner(), FullRunner()
ANSWERS_MOVED = (
    "The model returns the answers of a batch in another order than its examples, so each example was run alone."
)
RAN_OUT_OF_MEMORY = "Each example was run alone: memory ran out for all at once."


def check_sites(keep: Collection[str]) -> frozenset[str]:
    """Return the site names; raise if one does not exist."""
    if isinstance(keep, str | bytes) or not isinstance(keep, Collection):
        raise NotCaptured(f"keep must be a set or list of sites, got {keep!r}. Available: {', '.join(SITES)}.")
    if unknown := [str(name) for name in keep if not isinstance(name, str) or name not in SITES]:
        raise NotCaptured(f"There is no site {', '.join(sorted(unknown))}. Available: {', '.join(SITES)}.")
    return frozenset(keep)


def record(
    model: Model,
    encoded: EncodedBatch,
    *,
    target: TargetLike = None,
    versus: TargetLike = None,
    keep: Collection[str],
    recipes: Sequence[Recipe] = (),
    track_absorbed: bool = False,
    intervention: Intervention | None = None,
) -> Capture:
    """Run the model once and keep the sites named in `keep`.

    track_absorbed: also keep, per recipe, the relevance that did not reach the input (`Capture.absorbed`).
    intervention: attention to use instead of the model's own.
    """
    sites = check_sites(keep)
    return run_request(RunRequest(model, encoded, sites, target, versus, tuple(recipes), track_absorbed, intervention))


@neutral_torch()
def run_request(request: RunRequest) -> Capture:
    """The capture of one run; of one for each example if the model moves the rows of a batch inside."""
    refuse_encoder_decoders(request.model.module)
    model, encoded = hold_other_tower(request.model, request.encoded, request.target)
    target, versus = (
        one if one is None else read_target_texts(one, request.model.classes)
        for one in (request.target, request.versus)
    )
    if has_choices(encoded):
        model, encoded, target = pick_choices(model, encoded, target, versus)
        versus = None
    if any(encoded.answers):
        target, versus = aim_at_answers(encoded, target, versus)
    request = replace(request, model=model, encoded=encoded, target=target, versus=versus)
    if encoded.batch > 1 and encoded.pictures is not None:
        return record_alone(request, mixes=False)
    if encoded.batch > 1 and (learnt(model.module).maps_examples or is_known_to_move(model, encoded)):
        return record_alone(request)
    try:
        return run_and_see_conduct(request)
    except ExamplesMoved as moved:
        return record_alone(request, moved.output)
    except ResourceError:
        if encoded.batch == 1 or request.intervention is not None:
            raise
    capture = record_alone(request, mixes=False)
    return replace(capture, notes=(*capture.notes, RAN_OUT_OF_MEMORY))


def run_and_see_conduct(request: RunRequest) -> Capture:
    """The capture, with notes on how the model behaves; of each example alone if rows of a batch touch each other."""
    model, encoded = request.model, request.encoded
    state = read_state(model.module)
    known = recall(model.module, "conduct", state)
    request = replace(request, state=state)
    before = torch.get_rng_state()
    own = learnt(model.module)
    runs_alone = own.runs_alone
    capture = record_alone(request) if runs_alone and encoded.batch > 1 else run_first_accepting(request)
    if request.intervention is not None:
        return capture
    if encoded.main not in known:
        draws = not torch.equal(before, torch.get_rng_state())
        known[encoded.main] = see_conduct(model, encoded, capture.logits, draws=draws)
    conduct = known[encoded.main]
    if own.runs_alone and not runs_alone and encoded.batch > 1:
        capture = record_alone(request)
    return replace(capture, notes=(*capture.notes, *conduct.notes)) if conduct.notes else capture


def record_each(
    model: Model, encoded: EncodedBatch, targets: Sequence[TargetLike], keep: Collection[str], recipes: Sequence[Recipe]
) -> Iterator[Capture]:
    """As `record`, for one target after the other, of an input of one example.

    The model runs forward once, and backward once for each target. Relevance rules that send slopes are linear in what
    they start from, so what is captured for each target is what a run of its own would give.
    """
    sites, encoded = check_sites(keep), locate_image_tokens(model, encoded)
    refuse_encoder_decoders(model.module)
    aimed = [aim_at_answers(encoded, one, None)[0] for one in targets]
    request = RunRequest(model, encoded, sites, aimed[0], None, tuple(recipes))
    runners: tuple[PlanRunner | FullRunner, ...] = (PLAN, FULL)
    for runner, reasons in route(request, runners):
        try:
            for capture in runner.run_each(request, aimed):
                yield note_engine(request, replace(capture, engine=EngineChoice(runner.name, reasons)))
        except Declined as declined:
            reasons[runner.name] = str(declined)
        else:
            return


# --- which runner -----------------------------------------------------------------------------------------------------


def route(request: RunRequest, runners: Sequence[R]) -> Iterator[tuple[R, dict[str, str]]]:
    """The runners that accept a request, in order, and why those before did not run it."""
    reasons: dict[str, str] = {}
    only_full = (
        "relevance that does not reach the input is tracked"
        if request.track_absorbed
        else "attention is intervened in"
        if request.intervention is not None
        else "each example runs alone"
        if request.runs_alone
        else "there are images between the words"
        if request.encoded.pictures is not None
        else "the model returns probabilities"
        if scale_of(request.model.module) != "logits"
        else "the model does not return [row class]"
        if learnt(request.model.module).is_turned
        else None
    )
    for runner in runners:
        reason = only_full if only_full and runner.name != FULL.name else runner.accepts(request)
        if reason is None:
            yield runner, reasons
        else:
            reasons[runner.name] = reason


def run_first_accepting(request: RunRequest) -> Capture:
    model, encoded = request.model, request.encoded
    encoded = encoded if encoded.pictures is None else locate_image_tokens(model, encoded)
    request = replace(request, encoded=settle_mask(model, encoded))
    runners: tuple[Runner, ...] = (PLAN, PROGRAM, FULL)
    for runner, reasons in route(request, runners):
        try:
            capture = runner.run(request)
        except Declined as declined:
            reasons[runner.name] = str(declined)
            continue
        engine = EngineChoice(capture.engine.name, {**reasons, **capture.engine.reasons})
        logger.debug("%s: %s", request.model.name, engine)
        return note_engine(request, replace(capture, engine=engine))
    raise AssertionError("the full engine accepts every request")


def note_engine(request: RunRequest, capture: Capture) -> Capture:
    """The capture with a note if the full engine had to run where a planned run might be expected."""
    if capture.engine.name != FULL.name:
        return capture
    return replace(capture, notes=(*capture.notes, *PLAN.note_full_run(request, capture.engine.reasons[PLAN.name])))


# --- a model that moves the rows of a batch ---------------------------------------------------------------------------


def record_alone(request: RunRequest, output: Tensor | None = None, *, mixes: bool = True) -> Capture:
    """Each example in a run of its own.

    output: what the model returned for the batch, to be compared.
    mixes: the model would mix the examples of a batch; else there is no memory for all of them.
    """
    encoded = request.encoded
    if request.intervention is not None:
        raise UnsupportedModel(
            "This model changes the order of the examples inside, so a batch cannot be intervened in. Pass one example."
        )
    parts = tuple(
        run_first_accepting(
            replace(
                request,
                encoded=pick_examples(encoded, torch.tensor([i])),
                target=pick_target(request.target, i, encoded.batch),
                versus=pick_target(request.versus, i, encoded.batch),
                runs_alone=mixes,
            )
        )
        for i in range(encoded.batch)
    )
    first, logits = parts[0], join_logits(parts)
    notes = dict.fromkeys(note for part in parts for note in part.notes)
    if output is not None and logits is not None and not are_same_answers(logits, output):
        notes[ANSWERS_MOVED] = None
    values: CapturedValues = {("fingerprint", None): encoded.fingerprints()}
    if "probe" in request.keep:
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


def pick_target(target: TargetLike, example: int, batch: int) -> TargetLike:
    """The target of one example, of those for all or one each."""
    return target[example] if isinstance(target, list | tuple) and len(target) == batch else target


def join_logits(parts: Sequence[Capture]) -> Tensor | None:
    """The output of all examples; None if their shapes differ."""
    shapes = {part.logits.shape[1:] for part in parts}
    return torch.cat([part.logits for part in parts]) if len(shapes) == 1 else None


def are_same_answers(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= 1e-2 * other.abs().max())


def join_probes(probes: Sequence[Probe], encoded: EncodedBatch) -> Probe:
    """A probe for all examples; each keeps its own answers."""
    first = probes[0]
    targets = tuple(target for probe in probes for target in probe.targets)
    tokens = tuple(tokens for probe in probes for tokens in probe.tokens)
    reading = None if isinstance(first.reading, ClassReading) else first.reading
    return Probe(first.model, encoded, replace(first.layout, tokens=tokens), targets, reading, runs_alone=True)
