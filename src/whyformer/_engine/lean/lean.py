"""Lean relevance of language models: memory linear in the number of tokens, and little more time than autograd takes.

    with why.lean(): ...                 for inputs of any length; so does WHYFORMER_LEAN=1 in the environment
    with why.lean(False): ...            never; so does WHYFORMER_LEAN=0
    with why.lean(recompute=True): ...   and blocks run again in the backward pass
    otherwise                            for inputs of at least LEAN_FROM tokens

For methods that need nothing but the relevance of the input, or of the states between blocks, under a recipe that
sends slopes, the full engine runs once on a few tokens of the first input and leaves a lesson (lean_lesson.py). From
then on, inputs of any length run by the lesson (lean_run.py): the relevance pass is one backward pass of autograd.
Right after it was learnt, the lesson is tried on the same few tokens; where its scores are not those of the full
engine it is dropped.

A lean run computes in the dtype of the weights; relevance itself, input times slope, is in float32 or more. It has no
conservation check and no estimate of rounding: ask for health=True to have them, from the full engine.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine.capture import Capture, CaptureBuilder, CapturedValues, LazyLayers
from whyformer._engine.layout import keeps_order
from whyformer._engine.lean.backward_plan import Lesson, Unlearnable, make_learner, write_lesson
from whyformer._engine.lean.run import LeanRun, LessonDiffers, prepare_language_model, run_lean
from whyformer._engine.lean.shadow import borrow_shadow
from whyformer._engine.lean.target import choose_lean_answer, find_read_places
from whyformer._engine.relevance import Recipe, Switch
from whyformer._engine.run import WRITERS, ModelMemo, is_torch_watched, refuse_changed_weights, run_forward
from whyformer._engine.targets import ChosenAnswer, find_task, is_causal
from whyformer._engine.tracing import current_setting, find_free_memory
from whyformer._model import EncodedBatch, Model, unwrap
from whyformer._plain.torch_state import neutral_torch
from whyformer.errors import NonFinite, WhyformerError

LEAN_FROM = 128  # tokens; below, the full engine takes little memory and tells more
LEARNT_FROM = 16  # tokens of the first input
SITES = frozenset(("input_relevance", "hidden_relevance", "unattended", "mask"))
FILLED = 0.8  # of the free memory, from which on blocks are computed again

ASKED = {"1": True, "0": False}
BY_DEFAULT: bool | None = ASKED.get(os.environ.get("WHYFORMER_LEAN", ""))
is_lean: ContextVar[bool | None] = ContextVar("is_lean", default=BY_DEFAULT)
is_recomputing: ContextVar[bool | None] = ContextVar("is_recomputing_blocks", default=None)


@contextmanager
def lean(enabled: bool = True, *, recompute: bool | None = None) -> Iterator[None]:
    """Whether relevance of language models inside is computed in linear memory wherever that is possible.

    Without it, that is done for inputs of at least 128 tokens. Scores are the same up to rounding.
    recompute: keep only the input of each block and run the block again in the backward pass. By default, where the
        free memory would not do otherwise.
    """
    tokens = is_lean.set(bool(enabled)), is_recomputing.set(recompute)
    try:
        yield
    finally:
        is_lean.reset(tokens[0])
        is_recomputing.reset(tokens[1])


# --- lessons of a model ----------------------------------------------------------------------------------------------

# By recipe and how the model computes attention; a string: why there is none
LESSONS: ModelMemo[Lesson | str] = ModelMemo()


def key_of(model: Model, recipe: Recipe) -> Any:
    config = getattr(unwrap(model.module), "config", None)
    return recipe, getattr(config, "_attn_implementation", None), model.dtype


def record_lean(
    model: Model, encoded: EncodedBatch, target: Any, versus: Any, keep: set[str], recipes: Sequence[Recipe]
) -> Capture | None:
    """The capture of a lean run; None if the full engine must run."""
    if not is_possible(model, encoded, keep, recipes):
        return None
    lessons = LESSONS.recall(model.module)
    key = key_of(model, recipes[0])
    for _ in range(2):
        is_new = key not in lessons
        if is_new:
            lessons[key] = learn(model, encoded, recipes[0])
        lesson = lessons[key]
        if not isinstance(lesson, str) and not keeps_order(model, encoded):
            return None
        if isinstance(lesson, str) or ("hidden_relevance" in keep and not lesson.boundaries):
            return None
        try:
            return run_by_lesson(model, encoded, lesson, target, versus, keep)
        except LessonDiffers as difference:  # learn again; if it was learnt just now, do not try any more
            lessons[key] = str(difference)
            if not is_new:
                del lessons[key]
    return None


def is_possible(model: Model, encoded: EncodedBatch, keep: set[str], recipes: Sequence[Recipe]) -> bool:
    """Whether a lean run can give what is asked for, and is wanted."""
    ids, asked = encoded.inputs[encoded.main], is_lean.get()
    return (
        asked is not False
        and keep <= SITES
        and len(recipes) == 1
        and recipes[0].sends == "slope"
        and ids.dim() == 2
        and not ids.is_floating_point()
        and encoded.token_mask is not None
        and encoded.token_mask.shape == ids.shape
        and (bool(asked) or ids.size(1) >= LEAN_FROM)
        and current_setting.get().is_on
        and unwrap(model.module) not in WRITERS
        and not is_torch_watched()
    )


def learn(model: Model, encoded: EncodedBatch, recipe: Recipe) -> Lesson | str:
    """The lesson of a model, from a few tokens of the first example, or why there is none."""
    try:
        short = shorten(encoded)
        switch = Switch()
        with (
            ExitStack() as stack,
            run_forward(
                model,
                short,
                switch=switch,
                asks_gradient=False,
                prepare=lambda shadow: stack.enter_context(prepare_language_model(shadow, short)),
                mode_class=make_learner(recipe),
                keeps_dtype=True,
            ) as run,
        ):
            if find_task(model, short, run.returned, lambda: is_causal(run)).kind != "next token":
                return "the model does not predict the next token"
            lesson = write_lesson(run, recipe)
            capture = CaptureBuilder(model, short, run, {"input_relevance"}).build(None, None, switch, [recipe], False)
        kept = KeptMemory(model.module)
        with keep_blocks(), torch.autograd.graph.saved_tensors_hooks(kept.note, lambda tensor: tensor):
            again = run_by_lesson(model, short, lesson, *capture.same_target, {"input_relevance"})
    except (Unlearnable, LessonDiffers, WhyformerError) as reason:
        return str(reason)
    if not is_same(*(one.get("input_relevance", recipe) for one in (again, capture))):
        return "a run by the lesson gives other scores"
    return replace(lesson, bytes_per_token=kept.size / short.inputs[short.main].size(1))


@contextmanager
def keep_blocks() -> Iterator[None]:
    """Inside, no block is computed again."""
    token = is_recomputing.set(False)
    try:
        yield
    finally:
        is_recomputing.reset(token)


class KeptMemory:
    """How much a run keeps for its backward pass besides the weights."""

    def __init__(self, module: nn.Module) -> None:
        self.weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
        self.sizes: dict[int, int] = {}

    def note(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.weights:
            self.sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def size(self) -> int:
        return sum(self.sizes.values())


def is_same(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two runs give the same scores, up to rounding in the dtype of the second."""
    a, b = (t.detach().double().sum(-1).flatten() for t in (ours, theirs))
    if theirs.element_size() >= 4:
        return bool((a - b).abs().amax() <= 1e-3 * b.abs().amax())
    return bool(torch.cosine_similarity(a, b, dim=0) >= 0.99) or torch.equal(a, b)


def shorten(encoded: EncodedBatch) -> EncodedBatch:
    """The first tokens of the first example, without padding."""
    assert encoded.token_mask is not None
    mask = encoded.token_mask
    real = mask[0].nonzero()[:LEARNT_FROM, 0]
    if any(tensor.shape[:2] != mask.shape for tensor in encoded.inputs.values()):
        raise Unlearnable("an input has no axis of tokens")
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


def run_by_lesson(
    model: Model, encoded: EncodedBatch, lesson: Lesson, target: Any, versus: Any, keep: Collection[str]
) -> Capture:
    """The capture of one lean run."""
    places = find_read_places(model, encoded, target, versus)
    recomputes, note = choose_recomputing(lesson, encoded)
    keeps_states = "hidden_relevance" in keep
    chosen: ChosenAnswer | None = None
    with neutral_torch(), refuse_changed_weights(model.module), borrow_shadow(model.module) as shadow:
        run = run_lean(model, shadow, encoded, lesson, places, keeps_states=keeps_states, recomputes=recomputes)
        is_finite = run.output.isfinite().all()
        if target is versus is None and is_last_alone(run):  # a GPU need not wait until Python knows the token
            score = pick_largest(run.output)
        else:
            chosen = choose_lean_answer(model, encoded, run, places, target, versus)
            score = chosen.answer.start_gradient()
        slopes = torch.autograd.grad(score.sum(), (run.leaf, *run.states))
    chosen = chosen or choose_lean_answer(model, encoded, run, places, target, versus)
    if not bool(is_finite):
        raise NonFinite("The model's output is not finite. Open the model in float32, or check its weights.")
    return make_lean_capture(encoded, lesson, run, slopes, chosen, keep, note)


def make_lean_capture(
    encoded: EncodedBatch,
    lesson: Lesson,
    run: LeanRun,
    slopes: Sequence[Tensor],
    chosen: ChosenAnswer,
    keep: Collection[str],
    note: tuple[str, ...],
) -> Capture:
    """What a lean run leaves behind; slopes: of the score, at the input and then at the states between blocks."""
    pairs = zip((run.leaf, *run.states), slopes, strict=True)
    amounts = LazyLayers([partial(multiply_widely, *pair) for pair in pairs])
    values: CapturedValues = {}
    if "input_relevance" in keep:
        values["input_relevance", lesson.recipe] = amounts[0]
    if "hidden_relevance" in keep:
        values["hidden_relevance", lesson.recipe] = amounts[1:]
    if "unattended" in keep:
        values["unattended", None] = lesson.unattended
    if "mask" in keep:
        assert encoded.token_mask is not None
        values["mask", None] = encoded.token_mask.to(run.leaf.device)
    return Capture(
        chosen.targets,
        encoded.pieces(run.leaf.size(1)),
        None,
        run.output.detach(),
        notes=(*encoded.notes, *note_precision(run.leaf.dtype), *note, *chosen.notes),
        values=values,
        fixed=chosen.function,
        is_lean=True,
    )


def is_last_alone(run: LeanRun) -> bool:
    """Whether there are logits of one token of each example only."""
    return run.output.dim() == 3 and run.output.size(1) == 1


def pick_largest(logits: Tensor) -> Tensor:
    """The logit of the token that the model predicts, as `choose_target` finds it."""
    return logits.gather(-1, logits.detach().argmax(-1, keepdim=True))


def multiply_widely(state: Tensor, slope: Tensor) -> Tensor:
    """[batch token channel]: relevance, the state times its slope, at least in float32."""
    wide = torch.promote_types(slope.dtype, torch.float32)
    return state.detach().to(wide) * slope.to(wide)


def choose_recomputing(lesson: Lesson, encoded: EncodedBatch) -> tuple[bool, tuple[str, ...]]:
    """Whether blocks are computed again, and a note if nobody asked for it."""
    if (asked := is_recomputing.get()) is not None or not lesson.blocks:
        return bool(asked) and bool(lesson.blocks), ()
    ids = encoded.inputs[encoded.main]
    needed, free = lesson.bytes_per_token * ids.numel(), find_free_memory(ids.device)
    if free is None or needed <= FILLED * free:
        return False, ()
    words = f"what they keep would take {needed / 2**30:,.1f} GiB of {free / 2**30:,.1f} GiB that are free"
    return True, (f"Blocks were computed again in the backward pass: {words}.",)


def note_precision(dtype: torch.dtype) -> tuple[str, ...]:
    if dtype.itemsize >= 4:
        return ()
    name = str(dtype).removeprefix("torch.")
    return (f"Relevance was propagated in {name}, the precision of the weights; scores have two to three digits.",)
