"""Several targets of one input: the model runs forward once, and backward once for each target.

Relevance rules that send slopes are linear in what they start from, so what is captured for each target is what a run
of its own would give. A long input runs lean (lean.py), in memory that is linear in its tokens; where that needs blocks
to be computed again, every target has a run of its own.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from whyformer._engine.capture import Capture, CaptureBuilder
from whyformer._engine.lean import (
    LESSONS,
    Lesson,
    Places,
    borrow_shadow,
    choose_lean_answer,
    choose_recomputing,
    find_read_places,
    is_possible,
    key_of,
    make_lean_capture,
    run_lean,
)
from whyformer._engine.record import check_sites, choose_passes, record
from whyformer._engine.relevance import Recipe
from whyformer._engine.run import refuse_changed_weights, run_forward
from whyformer._engine.targets import aim_at_answers, refuse_encoder_decoders
from whyformer._model import EncodedBatch, Model
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import NonFinite


def record_each(
    model: Model, encoded: EncodedBatch, targets: Sequence[Any], keep: Collection[str], recipes: Sequence[Recipe]
) -> Iterator[Capture]:
    """As `record`, for one target after the other, of an input of one example."""
    wanted = check_sites(keep)
    refuse_encoder_decoders(model.module)
    aimed = [aim_at_answers(encoded, one, None)[0] for one in targets]
    if not is_possible(model, encoded, wanted, recipes):
        yield from run_each(model, encoded, aimed, wanted, recipes)
        return
    # The first target teaches the lesson if there is none yet, and shows whether it holds for this input.
    first = record(model, encoded, target=aimed[0], keep=wanted, recipes=recipes)
    lesson = LESSONS.get(model.module, {}).get(key_of(model, recipes[0]))
    yield first
    if not isinstance(lesson, Lesson) or not first.is_lean:
        yield from run_each(model, encoded, aimed[1:], wanted, recipes)
    elif choose_recomputing(lesson, encoded)[0]:
        yield from (record(model, encoded, target=one, keep=wanted, recipes=recipes) for one in aimed[1:])
    else:
        yield from run_each_lean(model, encoded, lesson, aimed[1:], wanted)


def run_each(
    model: Model, encoded: EncodedBatch, targets: Sequence[Any], keep: set[str], recipes: Sequence[Recipe]
) -> Iterator[Capture]:
    """By the full engine."""
    switch, asks = choose_passes(keep, recipes)
    with neutral_torch(), run_forward(model, encoded, switch=switch, **asks) as run:
        for target in targets:
            yield CaptureBuilder(model, encoded, run, keep).build(target, None, switch, recipes, False)


def run_each_lean(
    model: Model, encoded: EncodedBatch, lesson: Lesson, targets: Sequence[Any], keep: set[str]
) -> Iterator[Capture]:
    """By a lesson; logits are computed at the tokens that any of the targets reads."""
    places = join_places([find_read_places(model, encoded, target, None) for target in targets])
    keeps_states = "hidden_relevance" in keep
    with neutral_torch(), refuse_changed_weights(model.module), borrow_shadow(model.module) as shadow:
        run = run_lean(model, shadow, encoded, lesson, places, keeps_states=keeps_states, recomputes=False)
        if not bool(run.output.isfinite().all()):
            raise NonFinite("The model's output is not finite. Open the model in float32, or check its weights.")
        for target in targets:
            chosen = choose_lean_answer(model, encoded, run, places, target, None)
            start = chosen.answer.start_gradient().sum()
            slopes = torch.autograd.grad(start, (run.leaf, *run.states), retain_graph=True)
            yield make_lean_capture(encoded, lesson, run, slopes, chosen, keep, ())


def join_places(found: Sequence[Places | None]) -> Places | None:
    """The places of one example that any of these has; None if those of one are not known."""
    known = [places[0] for places in found if places is not None]
    return [sorted(set().union(*known))] if len(known) == len(found) else None
