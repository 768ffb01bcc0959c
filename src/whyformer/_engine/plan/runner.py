"""Planned runs: the model's own forward under a light mode, and one plain backward pass of autograd.

The full engine answers the first request of a kind. At the second it also writes down a backward plan
(backward_plan.py), and a run by the plan is compared with it (trial.py): targets, tokens, notes and every site that was
asked for. So is the next request, and the first one of every other kind: other sites, another kind of target, padding.
From then on requests of these kinds run by the plan alone, whatever their length (run.py). A difference, or an
operation that the plan does not expect, leaves the request to the full engine.

Where a full run would be dear, on long prompts, the plan is learnt from the first tokens at the first request, and
tried on these. `why.engine(plan=True)` asks for a plan at the first request, False for none.

A planned run computes in the dtype of the weights; relevance itself, input times slope, is in float32 or more. It has
no conservation check: ask for health=True to have it, from the full engine.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine.capture.builder import CaptureBuilder
from whyformer._engine.capture.capture import Capture, Declined, EngineChoice, RunRequest, run_setting
from whyformer._engine.capture.full_run import FullRunner
from whyformer._engine.capture.sites import SITES
from whyformer._engine.layout.order import ExamplesMoved, keeps_order
from whyformer._engine.plan.backward_plan import PASSING, BackwardPlan, make_plan_recorder, write_plan
from whyformer._engine.plan.builder import PlannedBuilder, Slopes
from whyformer._engine.plan.facts import NotPlannable, PlanDiffers, read_facts
from whyformer._engine.plan.memory import KeptMemory, choose_saving, describe_room, list_ways, note_bytes
from whyformer._engine.plan.run import (
    OF_ATTENTION,
    PlanRun,
    Positions,
    Saving,
    find_output_embedding,
    prepare_language_model,
    run_planned,
)
from whyformer._engine.plan.shadow import borrow_shadow, find_shadows, forget_repeats
from whyformer._engine.plan.target import choose_planned_answer, find_read_positions
from whyformer._engine.plan.trial import OF_PRECISION, find_difference
from whyformer._engine.relevance.node import Switch
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.run.forward import run_forward
from whyformer._engine.run.model_memory import read_state, recall
from whyformer._engine.run.model_state import ModelState, is_torch_watched
from whyformer._engine.run.model_writes import refuse_changed_weights
from whyformer._engine.targets.chosen_answer import ChosenAnswer
from whyformer._engine.targets.target_like import TargetLike
from whyformer._engine.tracing.provenance import attach_trace, trace_of
from whyformer._engine.tracing.tiles import current_setting
from whyformer._model import EncodedBatch, unwrap
from whyformer._plain.peak_memory import free_memory, without_collection
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import ModelError, NonFinite, ResourceError, WhyformerError

LONG_FROM = 128  # tokens, from which on a full run takes much memory
LARGEST_LEARNT = 4096  # tokens of a batch: a plan is learnt from a run that keeps all it computes
FEWEST_LEARNT = 3  # tokens: first, last and all must not be the same
PLANNED_FROM = 16  # tokens of the first input
PLANNED_AGAIN_FROM = 256  # where recurrences run over chunks of, mostly, 64 tokens
MOST_ATTEMPTS = 3  # to learn a plan for one kind of request
PLANNED_SITES = frozenset(
    "input input_grad input_relevance hidden hidden_grad hidden_relevance unattended attention attention_grad "
    "attention_relevance value attention_output attention_output_grad readout mask special streams fingerprint "
    "probe".split()
)
NOT_FINITE = "The model's output is not finite. Open the model in float32, or check its weights."
SWITCHED_OFF, WHOLE = "switched off", "attention is computed whole"
NOT_LEARNT, TRIED = "the second call learns a plan", "a plan was tried on this call"
TOO_FEW, TOO_LARGE = "too few tokens to learn a plan from", "too many tokens to learn a plan from"
NOT_FOLLOWED = "autograd does not follow a write of the model"
EXPECTED_REASONS = frozenset((SWITCHED_OFF, WHOLE))
FULL_RUN = (
    "The full engine ran instead of a planned run: {reason}. It keeps 4 to 6 times as much for its backward pass, more "
    "if weights have 16 bits or attention is not fused, and takes up to 20 times as long on a GPU."
)


@dataclass
class LearntPlan:
    """The plan for one kind of request, or why there is none."""

    plan: BackwardPlan | None = None
    reason: str = ""
    calls: int = 0
    attempts: int = 0
    learnt_at: int = 0  # the call whose input it was learnt from
    tried: set[Hashable] = field(default_factory=set)  # kinds of requests that were compared
    refused: dict[Hashable, str] = field(default_factory=dict)  # kinds of requests, and in what they differed


FULL = FullRunner()


class PlanRunner:
    """Runs a model by a backward plan."""

    name = "plan"

    def accepts(self, request: RunRequest) -> str | None:
        asked, main = run_setting.get().plan, request.encoded.inputs[request.encoded.main]
        if asked is False:
            return SWITCHED_OFF
        if not request.keep <= PLANNED_SITES:
            return "more is needed than gradients or slopes of one backward pass"
        if needs_relevance(request) and (len(request.recipes) != 1 or request.recipes[0].sends != "slope"):
            return "not one recipe that sends slopes is needed"
        if not is_text(request.encoded) and not (main.dim() == 4 and main.is_floating_point()):
            return "the input is neither one of token ids nor an image"
        if has_short_weights(request) and (needs_switch(request) or not (asked or is_long(request))):
            return "the weights have 16 bits: the full engine computes in 32"
        if not current_setting.get().is_on:
            return WHOLE
        return "another mode of torch watches operations" if is_torch_watched() else None

    def note_full_run(self, request: RunRequest, reason: str) -> tuple[str, ...]:
        """Why the full engine ran on a long text, and what that costs, where a planned run might be expected."""
        is_expected = any(recipe.sends == "slope" for recipe in request.recipes) and reason not in EXPECTED_REASONS
        if not is_expected or not is_long(request) or find_output_embedding(request.model.module) is None:
            return ()
        return (FULL_RUN.format(reason=reason),)

    def run(self, request: RunRequest) -> Capture:
        try:
            return self.run_by_known_plan(request)[1]
        except (Declined, ExamplesMoved, ResourceError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # the full engine gives the answer, or says what is wrong
            if is_long(request) or run_setting.get().plan:
                raise
            raise Declined(f"a planned run failed with {type(error).__name__}: {error}") from error

    def run_each(self, request: RunRequest, targets: Sequence[TargetLike]) -> Iterator[Capture]:
        """A capture for each target: one forward for all but the first, unless blocks must be computed again."""
        plan, first = self.run_by_known_plan(replace(request, target=targets[0]))
        yield first
        left = list(targets[1:])
        if left and plan is None:
            yield from FULL.run_each(request, left)
            return
        if plan is not None and left and not choose_saving(plan, request.encoded)[0]:
            try:
                for capture in run_targets_by_plan(request, plan, targets[1:]):
                    yield capture
                    left.pop(0)
            except ResourceError:  # the rest by runs that keep less
                free_memory()
        yield from (self.run(replace(request, target=target)) for target in left)

    def run_by_known_plan(self, request: RunRequest) -> tuple[BackwardPlan | None, Capture]:
        """A run by the plan of the model, made now if it is time to; no plan if the full engine ran."""
        module = request.model.module
        now = request.state or read_state(module)
        learnt = recall(module, "plans", now).setdefault(describe_plan(request), LearntPlan())
        if learnt.reason:
            raise Declined(learnt.reason)
        learnt.calls += 1
        is_asked = bool(run_setting.get().plan)
        if learnt.plan is None and learnt.calls == 1 and not is_asked and not is_long(request):
            raise Declined(NOT_LEARNT)
        while True:
            full = None
            if learnt.plan is None:
                full = learn(request, now, learnt)
            if learnt.plan is None:
                raise Declined(learnt.reason)
            kind = describe_kind(request)
            stage = kind, learnt.calls != learnt.learnt_at and not is_asked
            if kind in learnt.refused:
                raise Declined(learnt.refused[kind])
            if not find_shadows(module, now).are_kept and not keeps_order(request.model, request.encoded):
                raise Declined("the model changes the order of tokens or examples")
            refuse_missing(request, learnt.plan)
            try:
                if stage in learnt.tried or is_long(request):
                    return learnt.plan, run_by_plan(request, learnt.plan, now)
                return try_plan(request, learnt, stage, now, full)
            except PlanDiffers as difference:  # plan again; if that was just done, from more tokens, and then no more
                learnt.plan = None
                if learnt.attempts >= MOST_ATTEMPTS or full is not None:
                    learnt.reason = str(difference)
                    if full is not None:
                        return None, replace(full, engine=EngineChoice("full", {"plan": learnt.reason}))
                    raise Declined(learnt.reason) from None
            except RuntimeError as error:  # at other values than those of the trial
                if is_of_write(error):
                    learnt.refused[kind] = f"{NOT_FOLLOWED}: {error}"
                raise


def is_text(encoded: EncodedBatch) -> bool:
    ids, mask = encoded.inputs[encoded.main], encoded.token_mask
    return ids.dim() == 2 and not ids.is_floating_point() and mask is not None and mask.shape == ids.shape


def is_long(request: RunRequest) -> bool:
    return is_text(request.encoded) and request.encoded.inputs[request.encoded.main].size(1) >= LONG_FROM


def has_short_weights(request: RunRequest) -> bool:
    return request.model.dtype.itemsize < 4


def needs_relevance(request: RunRequest) -> bool:
    return any(SITES[name].is_relevance for name in request.keep)


def needs_switch(request: RunRequest) -> bool:
    """Whether one graph must serve gradients and relevance, or a recipe whose rules for linear layers are no factor."""
    is_both = needs_relevance(request) and any(SITES[name].is_gradient for name in request.keep)
    return is_both or (needs_relevance(request) and request.recipes[0].rules["linear"] not in PASSING)


def find_planned_recipe(request: RunRequest) -> Recipe | None:
    """The recipe of the plan; None if no relevance is needed."""
    return request.recipes[0] if needs_relevance(request) else None


def is_padded(encoded: EncodedBatch) -> bool:
    return encoded.token_mask is not None and not bool(encoded.token_mask.all())


def describe_plan(request: RunRequest) -> Hashable:
    """Requests with the same description share a plan."""
    model, encoded = request.model, request.encoded
    config = getattr(unwrap(model.module), "config", None)
    shape = None if is_text(encoded) else encoded.inputs[encoded.main].shape[1:]
    names = (*encoded.inputs, encoded.main)
    attention = getattr(config, "_attn_implementation", None)
    padding = is_padded(encoded) and not is_long(request)
    recipe = find_planned_recipe(request), needs_switch(request)
    return recipe, attention, model.dtype, names, shape, padding, encoded.batch_axis


def describe_kind(request: RunRequest) -> Hashable:
    """Requests of one kind are served alike; the first one of each is compared with the full engine."""
    encoded = request.encoded
    padding = None
    if is_padded(encoded):
        assert encoded.token_mask is not None
        padding = bool(encoded.token_mask[:, 0].all()), bool(encoded.token_mask[:, -1].all())
    targets = describe_wanted(request.target), describe_wanted(request.versus)
    return request.keep, targets, encoded.batch > 1, padding, encoded.special_mask is None


def describe_wanted(target: TargetLike) -> Hashable:
    """What kinds of targets these are."""
    if isinstance(target, list | tuple):
        return tuple(sorted({str(describe_wanted(one)) for one in target}))
    if target is None or isinstance(target, int | str) or hasattr(target, "tolist"):
        return "class" if target is not None else None
    return type(target).__name__


def refuse_missing(request: RunRequest, plan: BackwardPlan) -> None:
    """What this plan does not know is left to the full engine."""
    subjects = {SITES[name].of or name for name in request.keep}
    if subjects & {"hidden", "unattended"} and not plan.boundaries:
        raise Declined("the states between blocks are not known")
    if subjects & OF_ATTENTION and not plan.attention:
        raise Declined("which operations are attention is not known")
    is_by_rule = "readout" in subjects and plan.facts.task == "class" and request.model.readout is None
    layout = plan.facts.lay_out(request.encoded, torch.device("cpu")) if is_by_rule else None
    if layout is not None and plan.facts.find_readout(layout) is None:
        raise Declined("where the answer is read is not known")


# --- making a plan ---------------------------------------------------------------------------------------------------


def learn(request: RunRequest, now: ModelState, learnt: LearntPlan) -> Capture | None:
    """Make the plan for this kind of request, or note why there is none; the capture of the full engine, if it ran on
    the request itself."""
    few, is_whole = request.encoded, True
    learnt.attempts += 1
    capture = None
    if is_text(few):
        tokens = few.inputs[few.main].size(1)
        if is_long(request):
            few, is_whole = take_first_tokens(few, PLANNED_FROM if learnt.attempts == 1 else PLANNED_AGAIN_FROM), False
        elif tokens < FEWEST_LEARNT or few.inputs[few.main].numel() > LARGEST_LEARNT:
            learnt.attempts -= 1
            raise Declined(TOO_FEW if tokens < FEWEST_LEARNT else TOO_LARGE)
    learnt.learnt_at = learnt.calls
    own = request if is_whole else replace(request, encoded=few, target=None, versus=None)
    try:
        with without_collection():
            learnt.plan, capture = make_plan(own)
        learnt.tried.clear()
        learnt.refused.clear()
        if not is_whole and (difference := compare_with_full(own, learnt, now, capture)[0]):
            learnt.plan, learnt.reason = None, difference
    except (ResourceError, torch.OutOfMemoryError):
        raise
    except (NotPlannable, PlanDiffers, ModelError) as reason:
        learnt.reason = str(reason)
    except WhyformerError as error:  # of this input or target: the full engine says what is wrong
        raise Declined(str(error)) from None
    except RuntimeError as error:
        if not is_of_write(error):
            raise
        learnt.reason = f"{NOT_FOLLOWED}: {error}"
    return capture if learnt.plan is not None and is_whole else None


def is_of_write(error: RuntimeError) -> bool:
    return "in-place" in str(error) or "inplace" in str(error)


def make_plan(request: RunRequest) -> tuple[BackwardPlan, Capture]:
    """The plan of a model, from a run of the full engine, and the capture of this run."""
    model, encoded, recipe = request.model, request.encoded, find_planned_recipe(request)
    with (
        ExitStack() as stack,
        run_forward(
            model,
            encoded,
            switch=None if recipe is None else Switch(),
            asks_gradient=True,
            prepare=lambda shadow: stack.enter_context(prepare_language_model(shadow, encoded)),
            mode_class=make_plan_recorder(recipe, is_switched=needs_switch(request)),
            keeps_dtype=True,
        ) as run,
    ):
        builder = CaptureBuilder(request, run)
        plan = write_plan(run, recipe, read_facts(run, builder, encoded))
        return plan, builder.build()


def take_first_tokens(encoded: EncodedBatch, tokens: int) -> EncodedBatch:
    """The first tokens of the first example, without padding."""
    assert encoded.token_mask is not None
    mask = encoded.token_mask
    real = mask[0].nonzero()[:tokens, 0]
    if any(tensor.shape[:2] != mask.shape for tensor in encoded.inputs.values()):
        raise Declined("an input has no axis of tokens")
    inputs = {name: tensor[:1, real.to(tensor.device)] for name, tensor in encoded.inputs.items()}
    special = encoded.special_mask
    return EncodedBatch(
        inputs=inputs,
        main=encoded.main,
        batch=1,
        names=encoded.names[:1],
        token_mask=mask[:1, real],
        special_mask=None if special is None else special[:1, real],
    )


# --- a trial ---------------------------------------------------------------------------------------------------------


def compare_with_full(
    request: RunRequest, learnt: LearntPlan, now: ModelState, full: Capture
) -> tuple[str, Capture | None]:
    """In what a run by the plan differs from that of the full engine on the same request, and its capture."""
    assert learnt.plan is not None
    kept = KeptMemory(request.model.module)
    try:
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
            ours = run_by_plan(request, learnt.plan, now, saving=Saving.NOTHING)
        difference = find_difference(request, ours, full, learnt.plan.narrowest)
    except (ResourceError, torch.OutOfMemoryError):
        raise
    except (WhyformerError, RuntimeError) as error:
        return f"a run by the plan fails: {error}", None
    per_token = kept.size / request.encoded.inputs[request.encoded.main].numel()
    learnt.plan = replace(note_bytes(learnt.plan, per_token), restores=kept.restores)
    return f"a run by the plan gives other {difference}" if difference else "", ours


def try_plan(
    request: RunRequest, learnt: LearntPlan, stage: tuple[Hashable, bool], now: ModelState, full: Capture | None
) -> tuple[BackwardPlan | None, Capture]:
    """The first request of a kind: the capture of the full engine; if a plan is asked for, one that agrees with it."""
    full = FULL.run(request) if full is None else full
    difference, ours = compare_with_full(request, learnt, now, full)
    learnt.tried.add(stage)
    if difference:
        learnt.refused[stage[0]] = difference
    elif ours is not None and run_setting.get().plan:
        return learnt.plan, ours
    return None, replace(full, engine=EngineChoice("full", {"plan": difference or TRIED}))


# --- one run ---------------------------------------------------------------------------------------------------------


def run_by_plan(request: RunRequest, plan: BackwardPlan, now: ModelState, *, saving: Saving | None = None) -> Capture:
    """The capture of one planned run. If memory runs out, less is kept on the device, unless the caller said how."""
    subjects = {SITES[name].of or name for name in request.keep}
    if saving is not None or subjects & OF_ATTENTION or not is_text(request.encoded):
        return run_once(request, plan, now, saving or Saving.NOTHING)
    for saving, note in list_ways(plan, request.encoded):
        try:
            return run_once(request, plan, now, saving, note)
        except ResourceError:
            pass
        forget_repeats()
        free_memory()  # here, as the error holds what was computed
    assert saving is not None
    raise ResourceError(describe_room(plan, request.encoded, saving))


def run_once(
    request: RunRequest,
    plan: BackwardPlan,
    now: ModelState,
    saving: Saving,
    note: tuple[str, ...] = (),
    *,
    may_repeat: bool = True,
) -> Capture:
    module, target, versus = request.model.module, request.target, request.versus
    positions = find_positions(request, plan)

    def start(own: RunRequest = request, **options: Any) -> PlanRun:
        shadow = stack.enter_context(borrow_shadow(module, now))
        return run_planned(own, shadow, plan, positions, saving=saving, **options)

    repeats = find_shadows(module, now).repeats if may_repeat and not saving and not plan.is_switched else None
    chosen: ChosenAnswer | None = None
    with (
        neutral_torch(),
        refuse_changes(module, now),
        ExitStack() as stack,
        nullcontext(start()) if repeats is None else repeats.start(request, plan, positions, start) as run,
    ):
        is_finite = run.output.isfinite().all()
        builder = PlannedBuilder(request, run, plan)
        is_last_alone = run.output.dim() == 3 and run.output.size(1) == 1 and plan.facts.task == "next token"
        if target is versus is None and is_last_alone:  # a GPU need not wait until Python knows the token
            score = run.output.gather(-1, run.output.detach().argmax(-1, keepdim=True))
        else:
            chosen = choose_explained(request, run, plan, builder, positions)
            score = chosen.answer.start_gradient()
        slopes = find_slopes(request, run, builder, score)
    if run.holds is not None and not bool(run.holds):
        return run_once(request, plan, now, saving, note, may_repeat=False)
    chosen = chosen or choose_explained(request, run, plan, builder, positions)
    if not bool(is_finite):
        raise NonFinite(NOT_FINITE)
    capture = builder.finish(chosen, slopes, (*note_precision(run.leaf.dtype, plan), *note))
    return replace(capture, engine=EngineChoice("plan"))


def find_positions(request: RunRequest, plan: BackwardPlan) -> Positions | None:
    """The tokens at which a language model's output is needed; None: at all, or not known before the run."""
    is_plain = {describe_wanted(request.target), describe_wanted(request.versus)} <= {None, "class"}
    wants_whole = request.epilogue is None and not is_long(request)
    if plan.facts.task != "next token" or wants_whole or ("readout" in request.keep and not is_plain):
        return None
    return find_read_positions(request.model, request.encoded, request.target, request.versus)


def choose_explained(
    request: RunRequest, run: PlanRun, plan: BackwardPlan, builder: PlannedBuilder, positions: Positions | None
) -> ChosenAnswer:
    if plan.facts.task == "next token":
        return choose_planned_answer(request, run, positions)
    return builder.choose_answer()


def find_slopes(request: RunRequest, run: PlanRun, builder: PlannedBuilder, score: Tensor) -> Slopes:
    """Of the score, at the tensors whose gradient or relevance is wanted.

    Raises Declined if the answer is read at other tokens than the plan says.
    """
    kept = [SITES[name] for name in request.keep]
    wanted = {
        recipe: {site.of for site in kept if (site.is_gradient if recipe is None else site.is_relevance)}
        for recipe in dict.fromkeys((None, find_planned_recipe(request)))
    }
    checked = [run.sites[-1].output] if builder.follows_readout else []
    slopes: dict[Recipe | None, dict[str, list[Tensor]]] = {}
    for recipe, of in wanted.items():
        of |= {"attention_output"} if "attention" in of else set()
        names = [name for name in builder.tracked if name in of]
        is_last = recipe is not None or not any(of for one, of in wanted.items() if one is not None)
        flat = [*(tensor for name in names for tensor in builder.tracked[name]), *(checked if is_last else ())]
        found = iter(run.find_slopes(score, flat, recipe, is_last=is_last) if flat else ())
        tracked = {name: builder.tracked[name] for name in names}
        made = {name: [attach_trace(next(found), trace_of(one)) for one in ones] for name, ones in tracked.items()}
        slopes |= {recipe: made} if made else {}
        for slope in found:
            builder.refuse_other_readout(run.sites[-1].split_heads(slope))
    return slopes


def refuse_changes(module: nn.Module, now: ModelState) -> AbstractContextManager[None]:
    """The weights must not change inside."""
    return refuse_changed_weights(module, now.versions, lambda _: now.read_versions())


def run_targets_by_plan(request: RunRequest, plan: BackwardPlan, targets: Sequence[TargetLike]) -> Iterator[Capture]:
    """Several targets of one example and one forward; logits are computed at the tokens that any of them reads."""
    now = read_state(request.model.module)
    positions = join_positions([find_positions(replace(request, target=target), plan) for target in targets])
    with neutral_torch(), refuse_changes(request.model.module, now), borrow_shadow(request.model.module, now) as shadow:
        run = run_planned(request, shadow, plan, positions, saving=Saving.NOTHING)
        if not bool(run.output.isfinite().all()):
            raise NonFinite(NOT_FINITE)
        for target in targets:
            own = replace(request, target=target, versus=None)
            builder = PlannedBuilder(own, run, plan)
            chosen = choose_explained(own, run, plan, builder, positions)
            slopes = find_slopes(own, replace(run, keeps_graph=True), builder, chosen.answer.start_gradient())
            capture = builder.finish(chosen, slopes, note_precision(run.leaf.dtype, plan))
            yield replace(capture, engine=EngineChoice("plan"))


def join_positions(found: Sequence[Positions | None]) -> Positions | None:
    """The positions of one example that any of these has; None if those of one are not known."""
    known = [positions[0] for positions in found if positions is not None]
    return [sorted(set().union(*known))] if len(known) == len(found) else None


def note_precision(dtype: torch.dtype, plan: BackwardPlan) -> tuple[str, ...]:
    if dtype.itemsize >= 4 or plan.recipe is None:
        return ()
    name = str(dtype).removeprefix("torch.")
    return (f"{OF_PRECISION} {name}, the precision of the weights; scores have two to three digits.",)
