"""Running a model: the only file that calls a shadow, under interception (`run_forward`) or not (`run_plain`)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine.relevance.node import Switch
from whyformer._engine.run.cut_graph import NOTES, Ignored
from whyformer._engine.run.foreign_errors import refuse_unsuitable_inputs
from whyformer._engine.run.intercept import Intercept
from whyformer._engine.run.intervene import Intervention
from whyformer._engine.run.model_code import are_modules_known
from whyformer._engine.run.model_memory import RunAgain, learnt
from whyformer._engine.run.model_writes import WriteGuard, refuse_changed_weights
from whyformer._engine.run.output_scale import run_on_logits
from whyformer._engine.run.quantised import ROUNDING_CLASSES, note_rounding_layers, reload_weights, round_nothing
from whyformer._engine.run.returned import (
    Returned,
    find_output,
    iterate_tensors,
    list_outputs,
    logits_of,
    map_tensors,
)
from whyformer._engine.run.shadow import make_shadow, weights_of
from whyformer._engine.run.unrolled_maps import unroll_maps
from whyformer._engine.run.unseen_functions import notice_compiled_part, run_compiled_parts_as_written
from whyformer._engine.tracing.frames import Frames
from whyformer._engine.tracing.operations import Argument
from whyformer._engine.tracing.provenance import Trace, attach_trace
from whyformer._model import EncodedBatch, Model, count_streams, list_modules, unwrap
from whyformer._plain.private_torch import parameters_of, without_interception
from whyformer._plain.torch_state import leave_inference, neutral_torch, use_device_of_model
from whyformer.errors import NonFinite, UnsupportedModel

COPIED_WEIGHTS = "The weights were made in torch.inference_mode(), so they are copied for every run of the model."


@dataclass
class Run:
    """A finished forward and its graph."""

    mode: Intercept
    output: Tensor
    returned: Returned  # all that the model returned
    notes: tuple[str, ...] = ()
    first_depends_on_last: Callable[[], bool] = lambda: True  # of the tokens; runs the model again
    refuse_non_finite: Callable[[], None] = lambda: None  # raises; runs the model again to say where NaN comes from

    @cached_property
    def looks_ahead(self) -> bool:
        """Whether tokens depend on later ones: by the last attention, or measured where there is none."""
        return self.mode.sites[-1].looks_ahead() if self.mode.sites else self.first_depends_on_last()

    @cached_property
    def is_library_code(self) -> bool:
        """Whether all modules of the model are those of libraries; asked once, as it looks at everything they keep."""
        return self.mode.guard is not None and are_modules_known(list_modules(self.mode.guard.module))


@contextmanager
def run_forward(
    model: Model,
    encoded: EncodedBatch,
    *,
    switch: Switch | None = None,
    asks_gradient: bool,
    intervention: Intervention | None = None,
    starting_at: Tensor | None = None,
    keeps_tape: bool = False,
    keeps_scores: bool = False,
    prepare: Callable[[nn.Module], None] | None = None,
    mode_class: Callable[..., Intercept] = Intercept,
    keeps_dtype: bool = False,
    widens: bool = False,
    first_grid: tuple[int, int] | None = None,
) -> Iterator[Run]:
    """Run a shadow of the model under interception: `with run_forward(...) as run`. The graph is freed at the end.

    switch: prepares for relevance passes. Weights are then at least float32: 16 bits are too few for relevance.
    starting_at: replaces the sum of embeddings, in the model's order of axes.
    keeps_tape: keep a list of all operations.
    keeps_scores: keep the scores before each softmax.
    prepare: may put hooks on the shadow, or replace what its modules do.
    keeps_dtype: no weights are converted, however few bits they have.
    widens: weights are at least float32, as for relevance: small changes show.
    first_grid: number the tokens of an image through all layers, which do not all have the same, from these patches on.
    """
    if switch is not None and intervention is not None:
        raise UnsupportedModel("Relevance cannot be propagated through attention that an intervention has replaced.")
    main, batch_axis = encoded.inputs[encoded.main], encoded.batch_axis
    is_signal = main.is_floating_point() and main.dim() in (2, 3, 5) and batch_axis == 0  # which may be cut into frames
    with neutral_torch(), refuse_changed_weights(model.module), round_nothing() if widens else nullcontext():
        is_wide = (switch is not None or widens) and not keeps_dtype
        dtype = choose_relevance_dtype(model) if is_wide else None
        start = partial(
            mode_class,
            batch=encoded.batch,
            originals=weights_of(unwrap(model.module)),
            guard=WriteGuard(unwrap(model.module)),
            frames=Frames(main.shape[1:]) if is_signal else None,
            switch=switch,
            needs_gradient=asks_gradient,
            intervention=intervention,
            starting_at=starting_at,
            keeps_tape=keeps_tape,
            keeps_scores=keeps_scores,
            first_grid=first_grid,
            joins_images=encoded.pictures is not None,
            streams=count_streams(encoded),
        )
        own = learnt(model.module)
        while True:
            mode = start(ignored=own.ignored, settles_early=own.settles_early, reads_marks=own.reads_marks)
            try:
                yield from run_intercepted(model, encoded, make_shadow(model.module, dtype), mode, dtype, prepare)
                return
            except RunAgain:  # known from here on, so that no run ends so again
                continue


def run_intercepted(
    model: Model,
    encoded: EncodedBatch,
    shadow: nn.Module,
    mode: Intercept,
    dtype: torch.dtype | None,
    prepare: Callable[[nn.Module], None] | None,
) -> Iterator[Run]:
    """The one run of a shadow under this mode, checked; the graph is freed when the generator ends."""
    try:
        inputs = label_inputs(encoded, mode, dtype)
        if prepare is not None:
            prepare(shadow)
        watch_modules(shadow, mode)
        with (
            refuse_unsuitable_inputs(model.module, encoded.inputs),
            torch.set_grad_enabled(mode.needs_gradient),
            use_device_of_model(model.device),
            reload_weights(shadow),
            run_compiled_parts_as_written() if learnt(shadow).compiles else nullcontext(),
            unroll_maps(),
            mode,
        ):
            try:
                call, main = partial(shadow, **inputs), encoded.inputs[encoded.main]
                returned = run_on_logits(shadow, call, main, batch=encoded.batch, watches=True)
            except Exception as error:
                notice_compiled_part(unwrap(model.module), error)
                raise
        if mode.made_uncut:
            mode.undo_cuts()
        if mode.written or mode.made_uncut:
            returned = map_tensors(returned, mode.find_current)
        output = mode.answer = find_output(returned, shadow)
        if mode.needs_gradient and mode.differentiates and (mode.is_switched_off or not output.requires_grad):
            ignore_more(model.module)
        notes = note_chosen_output(returned, output)
        if mode.needs_gradient and mode.ignored:
            notes += (NOTES[mode.ignored],)
        if mode.needs_gradient and not ROUNDING_CLASSES.isdisjoint(map(type, shadow.modules())):
            notes += note_rounding_layers(shadow)
        if any(weight.is_inference() for weight in list_weights(model.module)):
            notes += (COPIED_WEIGHTS,)
        refuse_non_finite = partial(raise_non_finite, model, encoded)
        if not bool(output.isfinite().any()):
            refuse_non_finite()
        yield Run(mode, output, returned, notes, partial(does_first_depend_on_last, model, encoded), refuse_non_finite)
    finally:
        mode.release()


def ignore_more(module: nn.Module) -> None:
    """Start the run again if there is more to ignore of what cuts the graph of this model."""
    own = learnt(module)
    if own.ignored < Ignored.DETACHED:
        own.ignored = Ignored(own.ignored + 1)
        raise RunAgain
    if not own.reads_marks:  # nothing was cut: numbers are only compared, and the answer computed of that
        own.ignored, own.reads_marks = Ignored.NOTHING, True
        raise RunAgain


def does_first_depend_on_last(model: Model, encoded: EncodedBatch) -> bool:
    """Whether the output at the first token changes with the last token of the input."""
    given, axis = encoded.inputs[encoded.main], 1 - encoded.batch_axis
    if given.dim() not in (2, 3) or given.size(axis) < 2:
        return False
    last = given.narrow(axis, given.size(axis) - 1, 1)
    other = last + 1 if last.is_floating_point() else torch.where(last > 0, last - 1, last + 1)
    changed = torch.cat([given.narrow(axis, 0, given.size(axis) - 1), other], axis)
    shadow = make_shadow(model.module)
    before, after = (
        run_plain(shadow, replace(encoded, inputs={**encoded.inputs, encoded.main: tensor}))
        for tensor in (given, changed)
    )
    return before.dim() < 3 or not torch.equal(before.select(axis, 0), after.select(axis, 0))


def run_plain(shadow: nn.Module, encoded: EncodedBatch) -> Tensor:
    """The output of a shadow, without interception and without a graph."""
    return find_output(run_plain_returned(shadow, encoded), shadow)


def run_plain_returned(shadow: nn.Module, encoded: EncodedBatch, **options: Any) -> Any:
    """All that a shadow returns, without interception and without a graph; options are passed on to it."""
    encoded = replace(encoded, inputs={name: leave_inference(given) for name, given in encoded.inputs.items()})
    device = encoded.inputs[encoded.main].device
    with (
        neutral_torch(),
        refuse_unsuitable_inputs(shadow, encoded.inputs),
        torch.no_grad(),
        use_device_of_model(device),
        run_compiled_parts_as_written() if learnt(shadow).compiles else nullcontext(),
    ):
        call, main = partial(shadow, **encoded.inputs, **options), encoded.inputs[encoded.main]
        return run_on_logits(shadow, call, main, batch=encoded.batch)


def choose_relevance_dtype(model: Model) -> torch.dtype | None:
    """float32 if a weight has fewer bits; None leaves the weights as they are."""
    dtypes = {weight.dtype for weight in list_weights(model.module)}
    is_short = any(dtype.is_floating_point and dtype.itemsize < 4 for dtype in dtypes)
    return torch.float32 if is_short else None


def list_weights(module: nn.Module) -> list[nn.Parameter]:
    return [weight for part in list_modules(module) for weight in parameters_of(part).values() if weight is not None]


def holds_ids(given: Tensor) -> bool:
    return not given.is_floating_point() and given.dtype != torch.bool


def label_inputs(encoded: EncodedBatch, mode: Intercept, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """The inputs, labelled by the example and the token of each entry. A floating-point main input becomes the leaf."""
    entered: dict[str, Tensor] = {}
    label_axis = mode.follower.labels.label_axis
    shows_image = encoded.inputs[encoded.main].dim() == 4  # ids beside it are not of its tokens
    if not shows_image:
        mode.follower.grid = None
    for name, tensor in encoded.inputs.items():
        given = leave_inference(tensor).detach()
        given = given.to(dtype) if given.is_floating_point() and dtype is not None else given
        is_main, dims, axis = name == encoded.main, given.dim(), encoded.batch_axis if given.dim() == 3 else 0
        trace = Trace(depends=is_main and given.is_floating_point())
        if dims > axis and given.size(axis) == encoded.batch and not encoded.is_picture(name):
            trace.is_pixels, trace.is_ids = dims == 4, is_main and holds_ids(given)
            trace.samples = label_axis(axis, encoded.batch, dims, given.device)
            if dims in (2, 3) and not (shows_image and holds_ids(given)):
                trace.tokens = label_axis(1 - axis, given.size(1 - axis), dims, given.device)
        if trace.depends and mode.needs_gradient:
            mode.leaf = attach_trace(given.clone().requires_grad_(), trace)
            entered[name] = mode.entered = attach_trace(mode.leaf.clone(), trace)  # the model may write into the copy
        else:
            entered[name] = attach_trace(given.view_as(given), trace)
    return entered


def watch_modules(shadow: nn.Module, mode: Intercept) -> None:
    """Add hooks that report each module call, its input and its output to the mode."""

    def watch(path: str, module: nn.Module) -> None:
        def before(_: nn.Module, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> None:
            with without_interception():
                given = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
                first = next((tensor for tensor in given if tensor.is_floating_point()), None)
            mode.enter(path, first)

        def after(_: nn.Module, __: tuple[Argument, ...], result: Returned) -> None:
            mode.leave(next(iterate_tensors(result), None))

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after)

    for path, module in shadow.named_modules():
        watch(path, module)


def note_chosen_output(answer: Returned, output: Tensor) -> tuple[str, ...]:
    """A note on which tensor is explained if a model returns several and calls none of them logits."""
    if len(named := list_outputs(answer)) > 1 and "logits" not in named:
        chosen = next(name for name, tensor in named.items() if logits_of(tensor) is output)
        others = ", ".join(repr(name) for name in named if name != chosen)
        return (
            f"The model returned several outputs; {chosen!r}, of shape {list(output.shape)}, is explained, {others} "
            "not. To explain another, pass target= with a function of what the model returns.",
        )
    unnamed = [t for t in answer if isinstance(t, Tensor) and t.dim()] if isinstance(answer, list | tuple) else []
    if hasattr(answer, "logits") or len(unnamed) < 2:
        return ()
    which = "the first" if output is unnamed[0] else "the one as wide as its last layer"
    return (f"The model returned {len(unnamed)} tensors; {which}, of shape {list(output.shape)}, is explained.",)


def raise_non_finite(model: Model, encoded: EncodedBatch) -> None:
    raise NonFinite(f"The model's output is not finite. {find_first_non_finite(model, encoded)}")


def find_first_non_finite(model: Model, encoded: EncodedBatch) -> str:
    """Rerun and report the first module that returned NaN or infinity."""
    shadow = make_shadow(model.module)
    reports: list[str] = []

    def watch(path: str) -> Callable[..., None]:
        def after(module: nn.Module, _: tuple[Argument, ...], result: Returned) -> None:
            tensor = next(iterate_tensors(result), None)
            if not reports and tensor is not None and tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                reports.append(f"The first NaN or infinity comes from {path or 'the model'} ({type(module).__name__}).")

        return after

    for path, module in shadow.named_modules():
        module.register_forward_hook(watch(path))
    run_plain(shadow, encoded)
    return "".join(reports)
