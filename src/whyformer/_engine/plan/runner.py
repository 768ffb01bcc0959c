"""Planned relevance of language models: memory linear in the number of tokens, little more time than autograd takes.

For methods that need nothing but the relevance of the input, or of the states between blocks, under a recipe that
sends slopes, the full engine runs once on a few tokens of the first input and leaves a backward plan
(backward_plan.py). From then on, inputs of any length run by the plan (run.py): the relevance pass is one backward pass
of autograd. A new plan is tried on the same few tokens; where its scores are not those of the full engine it is
dropped. `why.engine(plan=...)` asks for it at any length, or never.

A planned run computes in the dtype of the weights; relevance itself, input times slope, is in float32 or more. It has
no conservation check and no estimate of rounding: ask for health=True to have them, from the full engine.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine.capture import (
    Capture,
    CaptureBuilder,
    CapturedValues,
    Declined,
    EngineChoice,
    LazyLayers,
    RunRequest,
    run_setting,
)
from whyformer._engine.layout import Layout, keeps_order
from whyformer._engine.plan.backward_plan import BackwardPlan, NotPlannable, make_plan_recorder, write_plan
from whyformer._engine.plan.memory import KeptMemory, choose_saving, describe_room, list_ways, note_bytes
from whyformer._engine.plan.repeats import has_same_scores
from whyformer._engine.plan.run import (
    PlanDiffers,
    PlanRun,
    Positions,
    Saving,
    find_output_embedding,
    prepare_language_model,
    run_planned,
)
from whyformer._engine.plan.shadow import borrow_shadow, find_shadows, forget_repeats
from whyformer._engine.plan.target import choose_planned_answer, find_read_positions
from whyformer._engine.probe import Probe
from whyformer._engine.relevance import Recipe, Switch
from whyformer._engine.run import ModelMemo, ModelState, is_torch_watched, refuse_changed_weights, run_forward
from whyformer._engine.targets import ChosenAnswer, TargetLike, find_task, is_causal
from whyformer._engine.tracing import current_setting
from whyformer._model import EncodedBatch, Model, unwrap
from whyformer._plain.peak_memory import free_memory, without_collection
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import NonFinite, ResourceError, WhyformerError

LONG_FROM = 128  # tokens; below, the full engine takes little memory and tells more
PLANNED_FROM = 16  # tokens of the first input
PLANNED_AGAIN_FROM = 256  # where recurrences run over chunks of, mostly, 64 tokens
PLANNED_SITES = frozenset(("input_relevance", "hidden_relevance", "unattended", "mask", "probe"))
NOT_FINITE = "The model's output is not finite. Open the model in float32, or check its weights."
SWITCHED_OFF, WHOLE = "switched off", "attention is computed whole"
NO_NEXT_TOKEN = "the model does not predict the next token"
EXPECTED_REASONS = frozenset((SWITCHED_OFF, WHOLE, NO_NEXT_TOKEN))
FULL_RUN = (
    "The full engine ran instead of a planned run: {reason}. It keeps 4 to 6 times as much for its backward pass, more "
    "if weights have 16 bits or attention is not fused, and takes up to 20 times as long on a GPU."
)
# By recipe and how the model computes attention; a string: why there is none
PLANS: ModelMemo[BackwardPlan | str] = ModelMemo()


class PlanRunner:
    """Runs a language model by a backward plan."""

    name = "plan"

    def accepts(self, request: RunRequest) -> str | None:
        asked, encoded = run_setting.get().plan, request.encoded
        ids, mask = encoded.inputs[encoded.main], encoded.token_mask
        if asked is False:
            return SWITCHED_OFF
        if not request.keep <= PLANNED_SITES:
            return "more than the relevance of the input and of states is needed"
        if len(request.recipes) != 1 or request.recipes[0].sends != "slope":
            return "not one recipe that sends slopes"
        if ids.dim() != 2 or ids.is_floating_point() or mask is None or mask.shape != ids.shape:
            return "the input is not one of token ids"
        if not asked and ids.size(1) < LONG_FROM:
            return f"fewer than {LONG_FROM} tokens"
        if not current_setting.get().is_on:
            return WHOLE
        return "another mode of torch watches operations" if is_torch_watched() else None

    def run(self, request: RunRequest) -> Capture:
        return self.run_by_known_plan(request)[1]

    def note_full_run(self, request: RunRequest, reason: str) -> tuple[str, ...]:
        """Why the full engine ran on a long text, and what that costs, where a planned run might be expected."""
        ids, recipes = request.encoded.inputs[request.encoded.main], request.recipes
        is_long = ids.dim() == 2 and not ids.is_floating_point() and ids.size(1) >= LONG_FROM
        is_expected = any(recipe.sends == "slope" for recipe in recipes) and reason not in EXPECTED_REASONS
        if not is_long or not is_expected or find_output_embedding(request.model.module) is None:
            return ()
        return (FULL_RUN.format(reason=reason),)

    def run_each(self, request: RunRequest, targets: Sequence[TargetLike]) -> Iterator[Capture]:
        """A capture for each target: one forward for all but the first, unless blocks must be computed again."""
        plan, first = self.run_by_known_plan(replace(request, target=targets[0]))
        yield first
        left = list(targets[1:])
        if left and not choose_saving(plan, request.encoded)[0]:
            try:
                for capture in run_targets_by_plan(request, plan, targets[1:]):
                    yield capture
                    left.pop(0)
            except ResourceError:  # the rest by runs that keep less
                free_memory()
        yield from (self.run(replace(request, target=target)) for target in left)

    def run_by_known_plan(self, request: RunRequest) -> tuple[BackwardPlan, Capture]:
        """The plan of the model, made now if there is none, and a run by it."""
        model, encoded = request.model, request.encoded
        now = PLANS.read_state(model.module)
        plans, key = PLANS.recall(model.module, now), describe_plan(model, request.recipes[0])
        tokens = PLANNED_FROM
        for _ in range(3):
            is_new = key not in plans
            if is_new:
                with without_collection():
                    plans[key] = make_plan(request, now, tokens)
            plan = plans[key]
            if isinstance(plan, str):
                raise Declined(plan)
            if not find_shadows(model.module, now).are_kept and not keeps_order(model, encoded):
                raise Declined("the model changes the order of tokens or examples")
            if "hidden_relevance" in request.keep and not plan.boundaries:
                raise Declined("the states between blocks are not known")
            try:
                return plan, run_by_plan(request, plan, now)
            except PlanDiffers as difference:  # plan again; if that was just done, from more tokens, and then no more
                plans[key] = str(difference)
                if not is_new or tokens == PLANNED_FROM:
                    del plans[key]
                    tokens = PLANNED_AGAIN_FROM if is_new else tokens
        raise Declined("the model does not keep to a backward plan")


def describe_plan(model: Model, recipe: Recipe) -> Hashable:
    config = getattr(unwrap(model.module), "config", None)
    return recipe, getattr(config, "_attn_implementation", None), model.dtype


# --- making a plan ---------------------------------------------------------------------------------------------------


def make_plan(request: RunRequest, now: ModelState, tokens: int = PLANNED_FROM) -> BackwardPlan | str:
    """The plan of a model, from a few tokens of the first example, or why there is none."""
    model, recipe = request.model, request.recipes[0]
    try:
        few = take_first_tokens(request.encoded, tokens)
        with (
            ExitStack() as stack,
            run_forward(
                model,
                few,
                switch=Switch(),
                asks_gradient=False,
                prepare=lambda shadow: stack.enter_context(prepare_language_model(shadow, few)),
                mode_class=make_plan_recorder(recipe),
                keeps_dtype=True,
            ) as run,
        ):
            if find_task(model, few, run.returned, lambda: is_causal(run)).kind != "next token":
                return NO_NEXT_TOKEN
            plan = write_plan(run, recipe)
            request = RunRequest(model, few, frozenset({"input_relevance"}), recipes=(recipe,))
            capture = CaptureBuilder(request, run).build()
        kept = KeptMemory(model.module)
        with torch.autograd.graph.saved_tensors_hooks(kept.note, lambda tensor: tensor):
            target, versus = capture.same_target
            again = run_by_plan(replace(request, target=target, versus=versus), plan, now, saving=Saving.NOTHING)
    except (ResourceError, torch.OutOfMemoryError):
        raise
    except (NotPlannable, PlanDiffers, WhyformerError) as reason:
        return str(reason)
    except RuntimeError as error:
        if "in-place" not in str(error) and "inplace" not in str(error):
            raise
        return f"autograd does not follow a write of the model: {error}"
    if not has_same_scores(*(one.get("input_relevance", recipe) for one in (again, capture))):
        return "a run by the plan gives other scores"
    kept_per_token = kept.size / few.inputs[few.main].size(1)
    return replace(note_bytes(plan, kept_per_token, again), restores=kept.restores)


def take_first_tokens(encoded: EncodedBatch, tokens: int) -> EncodedBatch:
    """The first tokens of the first example, without padding."""
    assert encoded.token_mask is not None
    mask = encoded.token_mask
    real = mask[0].nonzero()[:tokens, 0]
    if any(tensor.shape[:2] != mask.shape for tensor in encoded.inputs.values()):
        raise NotPlannable("an input has no axis of tokens")
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


# --- one run ---------------------------------------------------------------------------------------------------------


def run_by_plan(request: RunRequest, plan: BackwardPlan, now: ModelState, *, saving: Saving | None = None) -> Capture:
    """The capture of one planned run. If memory runs out, less is kept on the device, unless the caller said how."""
    if saving is not None:
        return run_once(request, plan, now, saving)
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
    model, encoded, target, versus = request.model, request.encoded, request.target, request.versus
    positions = find_read_positions(model, encoded, target, versus)
    chosen: ChosenAnswer | None = None

    def start(own: RunRequest = request, **options: Any) -> PlanRun:
        shadow = stack.enter_context(borrow_shadow(model.module, now))
        return run_planned(own, shadow, plan, positions, saving=saving, **options)

    repeats = find_shadows(model.module, now).repeats if may_repeat and not saving else None
    with (
        neutral_torch(),
        refuse_changes(model.module, now),
        ExitStack() as stack,
        nullcontext(start()) if repeats is None else repeats.start(request, plan, positions, start) as run,
    ):
        is_finite = run.output.isfinite().all()
        is_last_alone = run.output.dim() == 3 and run.output.size(1) == 1
        if target is versus is None and is_last_alone:  # a GPU need not wait until Python knows the token
            score = run.output.gather(-1, run.output.detach().argmax(-1, keepdim=True))
        else:
            chosen = choose_planned_answer(request, run, positions)
            score = chosen.answer.start_gradient()
        slopes = run.find_slopes(score)
    if run.holds is not None and not bool(run.holds):
        return run_once(request, plan, now, saving, note, may_repeat=False)
    chosen = chosen or choose_planned_answer(request, run, positions)
    if not bool(is_finite):
        raise NonFinite(NOT_FINITE)
    return make_planned_capture(request, plan, run, slopes, chosen, note)


def refuse_changes(module: nn.Module, now: ModelState) -> AbstractContextManager[None]:
    """The weights must not change inside."""
    return refuse_changed_weights(module, now.versions, lambda _: now.read_versions())


def run_targets_by_plan(request: RunRequest, plan: BackwardPlan, targets: Sequence[TargetLike]) -> Iterator[Capture]:
    """Several targets of one example and one forward; logits are computed at the tokens that any of them reads."""
    model, encoded = request.model, request.encoded
    now = PLANS.read_state(model.module)
    positions = join_positions([find_read_positions(model, encoded, target, None) for target in targets])
    with neutral_torch(), refuse_changes(model.module, now), borrow_shadow(model.module, now) as shadow:
        run = run_planned(request, shadow, plan, positions, saving=Saving.NOTHING)
        if not bool(run.output.isfinite().all()):
            raise NonFinite(NOT_FINITE)
        for target in targets:
            chosen = choose_planned_answer(replace(request, target=target, versus=None), run, positions)
            start = chosen.answer.start_gradient().sum()
            slopes = torch.autograd.grad(start, (run.leaf, *run.states), retain_graph=True)
            yield make_planned_capture(request, plan, run, slopes, chosen, ())


def join_positions(found: Sequence[Positions | None]) -> Positions | None:
    """The positions of one example that any of these has; None if those of one are not known."""
    known = [positions[0] for positions in found if positions is not None]
    return [sorted(set().union(*known))] if len(known) == len(found) else None


def make_planned_capture(
    request: RunRequest,
    plan: BackwardPlan,
    run: PlanRun,
    slopes: Sequence[Tensor],
    chosen: ChosenAnswer,
    note: tuple[str, ...],
) -> Capture:
    """What a planned run leaves behind; slopes: of the score, at the input and then at the states between blocks."""
    encoded, keep = request.encoded, request.keep
    pairs = zip((run.leaf, *run.states), slopes, strict=True)
    amounts = LazyLayers([partial(multiply_widely, *pair) for pair in pairs])
    values: CapturedValues = {}
    if "input_relevance" in keep:
        values["input_relevance", plan.recipe] = amounts[0]
    if "hidden_relevance" in keep:
        values["hidden_relevance", plan.recipe] = amounts[1:]
    if "unattended" in keep:
        values["unattended", None] = plan.unattended
    if "mask" in keep:
        assert encoded.token_mask is not None
        values["mask", None] = encoded.token_mask.to(run.leaf.device)
    if "probe" in keep:
        values["probe", None] = make_planned_probe(request, run.leaf.device, chosen)
    return Capture(
        chosen.targets,
        encoded.pieces(run.leaf.size(1)),
        None,
        run.output.detach(),
        notes=(*encoded.notes, *note_precision(run.leaf.dtype), *note, *chosen.notes),
        values=values,
        fixed=chosen.function,
        engine=EngineChoice("plan"),
    )


def make_planned_probe(request: RunRequest, device: torch.device, chosen: ChosenAnswer) -> Probe:
    """Runs the model on variants of the input; nothing of this run is needed for that."""
    encoded = request.encoded
    assert encoded.token_mask is not None
    mask, special = encoded.token_mask, encoded.special_mask
    special = torch.zeros_like(mask) if special is None else special
    layout = Layout(mask.to(device), special.to(device), None, encoded.pieces(mask.size(1)))
    return Probe(request.model, encoded, layout, chosen.targets, chosen.reading)


def multiply_widely(state: Tensor, slope: Tensor) -> Tensor:
    """[batch token channel]: relevance, the state times its slope, at least in float32."""
    wide = torch.promote_types(slope.dtype, torch.float32)
    return state.detach().to(wide) * slope.to(wide)


def note_precision(dtype: torch.dtype) -> tuple[str, ...]:
    if dtype.itemsize >= 4:
        return ()
    name = str(dtype).removeprefix("torch.")
    return (f"Relevance was propagated in {name}, the precision of the weights; scores have two to three digits.",)
