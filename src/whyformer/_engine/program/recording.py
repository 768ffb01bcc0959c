"""Nested values with a place for each of their tensors: how what a program returns becomes a capture again.

small = put_positions(value, tensors)        appends the tensors; `small` has their places
fill = make_filler(small)
fill(other_tensors)                       the same value with these tensors

Recording one run of a model: its program, and how a capture is made from what the program computes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from whyformer._engine.capture.builder import CaptureBuilder
from whyformer._engine.capture.capture import (
    Capture,
    EpilogueResults,
    LazyLayers,
    RoundingEstimate,
    RunRequest,
    run_setting,
)
from whyformer._engine.capture.full_run import choose_passes
from whyformer._engine.layout.layout import count_scored_tokens
from whyformer._engine.program.cuda_graph import CudaGraph
from whyformer._engine.program.program import RecordedProgram
from whyformer._engine.program.recorded_target import choose_recorded_target, number_targets
from whyformer._engine.program.recorder import BranchDiffers, Recorder
from whyformer._engine.program.steps import Slot, Unrecordable
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.run.forward import Run, run_forward
from whyformer._engine.targets.chosen_answer import ChosenAnswer
from whyformer._engine.targets.function_target import ExplainedScore
from whyformer._engine.targets.target import ExplainedAnswer, TargetNames, choose_target, find_indices
from whyformer._engine.targets.target_like import TargetLike
from whyformer._engine.tracing.attention import AttentionSite
from whyformer._engine.tracing.provenance import EMPTY_TRACE, Trace
from whyformer._model import EncodedBatch, unwrap
from whyformer._plain.tokens import Grid
from whyformer.errors import WhyformerError

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class ResultIndex:
    """Where a tensor is among what a program returns."""

    number: int


def put_positions(value: Any, tensors: list[Tensor]) -> Any:
    """The value with a place for every tensor; they are appended to `tensors`."""

    def put(tensor: Tensor) -> ResultIndex:
        tensors.append(tensor)
        return ResultIndex(len(tensors) - 1)

    return map_structure(value, Tensor, put)


def make_filler(value: Any) -> Callable[[Sequence[Tensor]], Any]:
    """A function from tensors to the value with these in their places."""
    if isinstance(value, ResultIndex):
        return itemgetter(value.number)
    if not walk_entries(value, ResultIndex):
        return lambda _: value
    if isinstance(value, LazyLayers):
        makers = [make_filler(make) for make in value._makers]
        return lambda tensors: LazyLayers([fill(tensors) for fill in makers])
    if isinstance(value, partial):
        function, arguments = value.func, [make_filler(one) for one in value.args]
        return lambda tensors: partial(function, *[fill(tensors) for fill in arguments])
    if type(value) in (list, tuple):
        kind, items = type(value), [make_filler(item) for item in value]
        return lambda tensors: kind(fill(tensors) for fill in items)
    if type(value) is dict:
        entries = {key: make_filler(item) for key, item in value.items()}
        return lambda tensors: {key: fill(tensors) for key, fill in entries.items()}
    own, made_of = type(value), dict(vars(value))
    changing = {name: make_filler(part) for name, part in made_of.items() if walk_entries(part, ResultIndex)}

    def fill_fields(tensors: Sequence[Tensor]) -> Any:
        made = object.__new__(own)
        made.__dict__.update(made_of, **{name: fill(tensors) for name, fill in changing.items()})
        return made

    return fill_fields


def map_structure(value: Any, kind: type, change: Callable[..., Any]) -> Any:
    """A copy of what a capture consists of with every entry of this kind changed; refuses what it does not know."""
    again = partial(map_structure, kind=kind, change=change)
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, LazyLayers):
        return LazyLayers([again(make) for make in value._makers])
    if isinstance(value, partial):
        return partial(value.func, *map(again, value.args), **again(value.keywords))
    if isinstance(value, AttentionSite):  # what computes with it needs no labels
        value = replace(value, origin=None, keys=EMPTY_TRACE, rows=EMPTY_TRACE, enclosing=())
    if isinstance(value, AttentionSite | Trace | RoundingEstimate):
        own = {one.name: again(getattr(value, one.name)) for one in fields(value)}
        return type(value)(**own)
    if type(value) in (list, tuple):
        return type(value)(again(item) for item in value)
    if type(value) is dict:
        return {key: again(item) for key, item in value.items()}
    if isinstance(value, Tensor | ResultIndex) or value is None or isinstance(value, str | int | float | Recipe):
        return value
    raise Unrecordable(f"a capture with {type(value).__name__} cannot be made from a program")


def walk_entries(value: Any, kind: type[Entry]) -> list[Entry]:
    found: list[Entry] = []
    map_structure(value, kind, found.append)
    return found


# --- one transfer for many tensors -----------------------------------------------------------------------------------


LARGEST_PACKED = 2**16  # bytes: a larger tensor is worth a transfer of its own


@dataclass(frozen=True)
class Packing:
    """Several small tensors as one row of bytes, since each transfer from a GPU waits for it; large ones as they are.

    The widest types come first, so that every tensor begins at a multiple of the size of its entries.
    """

    forms: tuple[tuple[torch.Size, torch.dtype], ...]

    @property
    def order(self) -> list[int]:
        small = [i for i, (shape, dtype) in enumerate(self.forms) if shape.numel() * dtype.itemsize <= LARGEST_PACKED]
        return sorted(small, key=lambda i: -self.forms[i][1].itemsize)

    def pack(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        order = self.order
        # A copy, as `contiguous` leaves a single entry with stride 0, which cannot be viewed as bytes
        flat = [tensors[i].detach().reshape(-1).clone(memory_format=torch.contiguous_format) for i in order]
        rows = [row.view(torch.uint8) for row in flat]
        return [torch.cat(rows), *(tensor for i, tensor in enumerate(tensors) if i not in order)]

    def unpack(self, packed: Sequence[Tensor]) -> list[Tensor]:
        """The tensors on the CPU, with memory of their own."""
        row, *large = (tensor.cpu() for tensor in packed)
        found: dict[int, Tensor] = {}
        start = 0
        for i in self.order:
            shape, dtype = self.forms[i]
            size = shape.numel() * dtype.itemsize
            found[i] = row[start : start + size].view(dtype).view(shape).clone()
            start += size
        others = iter(large)
        return [found[i] if i in found else next(others) for i in range(len(self.forms))]


# --- recording --------------------------------------------------------------------------------------------------------


COPIED = ("inputs", "token_mask", "special_mask")  # of a batch: what a program takes


@dataclass(frozen=True)
class CaptureForm:
    """How a capture is made from the tensors that a program computes.

    Its small results, the choice of the target and the epilogue, are read at once: on a GPU as a row of bytes.
    """

    small: Callable[[Sequence[Tensor]], Any]
    large: Callable[[Sequence[Tensor]], Any]
    count_small: int
    packing: Packing | None
    classes: int
    is_language: bool
    patches: tuple[int, ...] | None
    grid: Grid | None
    count: int  # tokens that are scored
    boundaries: tuple[int, ...]
    attending: tuple[int, ...]
    notes: tuple[str, ...]


@dataclass
class RecordedRun:
    """A program and the form of its results; on a GPU also its CUDA graph."""

    program: RecordedProgram
    form: CaptureForm
    graph: CudaGraph | None = None

    def run(self, inputs: Mapping[str, Tensor], meanwhile: Callable[[], None]) -> tuple[Any, Any]:
        """The small and the large results; raises BranchDiffers if Python would have taken another branch.

        meanwhile: called while a GPU computes, or before.
        """
        if self.graph is not None:
            return self.graph.run(inputs, partial(self.take, owned=False), meanwhile)
        meanwhile()
        return self.take(self.program.run(inputs))

    def take(self, results: Sequence[Any], *, owned: bool = True) -> tuple[Any, Any]:
        if self.program.is_deferred:
            *results, flag = results
            if flag is not None and not bool(flag):
                raise BranchDiffers
        form = self.form
        first, others = results[: form.count_small], results[form.count_small :]
        kept = others if owned else [tensor.clone() for tensor in others]
        small = first if form.packing is None else form.packing.unpack(first)  # waits for the GPU, also for the copies
        return form.small(small), form.large(kept)


@dataclass(frozen=True)
class Recording:
    """A recorded run that is no program yet. The next call makes it one and compares it with this run.

    It has copies of the inputs and results: the caller may write into them. It has no reference to the model.
    """

    recorder: Recorder
    results: list[Slot]
    form: CaptureForm
    encoded: EncodedBatch
    target: TargetLike
    versus: TargetLike
    capture: Capture

    def make_run(self) -> RecordedRun:
        repeats = bool(run_setting.get().recompute)
        return RecordedRun(RecordedProgram(self.recorder, self.results, repeats_products=repeats), self.form)


class EpilogueUnrecordable(Exception):
    """The epilogue of a request cannot be recorded, or raises what the caller will see in any case."""


def record_run(request: RunRequest) -> tuple[Recording, Capture]:
    """One run of the model, recorded, and its capture; raises Unrecordable, EpilogueUnrecordable."""
    device = request.encoded.inputs[request.encoded.main].device
    encoded, passes = alias_inputs(request.encoded, device), choose_passes(request)
    recorder = Recorder(find_program_inputs(encoded, device), find_constants(request.model.module))
    with (
        torch.autograd.set_multithreading_enabled(False),  # on a GPU, too, operations are seen in this thread
        recorder,
        run_forward(request.model, encoded, **passes) as run,
    ):
        builder = RecordingBuilder(replace(request, encoded=encoded, track_absorbed=False), run, recorder)
        capture = builder.build()
        if request.epilogue is not None:
            try:
                results = request.epilogue.compute(capture, encoded)
            except (Unrecordable, WhyformerError) as reason:
                raise EpilogueUnrecordable(str(reason)) from None
            capture = replace(capture, values={}, epilogue=results)
        slots, form = builder.find_results(capture)
    recorder.forget_tensors()
    copy = partial(map_structure, kind=Tensor, change=lambda tensor: tensor.detach().clone())
    kept = capture if capture.epilogue is None else replace(capture, epilogue=copy(dict(capture.epilogue)))
    entered = replace(encoded, images=(), **copy({name: getattr(encoded, name) for name in COPIED}))
    return Recording(recorder, slots, form, entered, request.target, request.versus, kept), capture


class RecordingBuilder(CaptureBuilder):
    """Builds a capture as always, with the target chosen by operations that are recorded."""

    def __init__(self, request: RunRequest, run: Run, recorder: Recorder) -> None:
        self.recorder = recorder
        super().__init__(request, run)

    def choose_answer(self) -> ChosenAnswer:
        with self.recorder.pause():
            chosen = super().choose_answer()
            if not isinstance(chosen.answer, ExplainedAnswer) or chosen.notes or not self.is_chosen_from_output(chosen):
                raise Unrecordable("the answer is not a class or a token of the model's output")
            if self.mode.switch is not None:
                super().refuse_unknown_nodes(chosen.answer)
            self.classes, self.is_language = chosen.answer.shape[1], chosen.targets[0].position is not None
            names = TargetNames(self.model, self.classes, is_language=self.is_language)
            wanted, against = find_indices(names, self.request.target, self.request.versus, self.encoded.batch)
            given = enter_targets(self.request, wanted, against)
        for name, tensor in given.items():
            self.recorder.inputs[name] = self.recorder.enter_input(tensor)
        answer, self.choice = choose_recorded_target(
            self.model, self.encoded, self.run.output, given["target"], given.get("versus")
        )
        return chosen._replace(answer=answer)

    def is_chosen_from_output(self, chosen: ChosenAnswer) -> bool:
        """A program chooses from the output alone; this must give the same targets."""
        asked = self.request.target, self.request.versus
        try:
            again = choose_target(self.model, self.encoded, self.run.output, *asked)[1]
        except WhyformerError:
            return False
        return again == chosen.targets

    def refuse_unknown_nodes(self, answer: ExplainedScore) -> None:
        """Already done, with the answer itself."""

    def find_results(self, capture: Capture) -> tuple[list[Slot], CaptureForm]:
        """What the program returns, while it is still recorded, and the capture with positions for its tensors."""
        recorder, layout = self.recorder, self.layout
        if layout.positions is not None or layout.owners is not None:
            raise Unrecordable("not all tokens are those of the input")
        if layout.slots is not None or layout.leaf_slots is not None or layout.obstacle:
            raise Unrecordable("tokens are not in the order of the input")
        read: list[Tensor] = []
        kept: list[Tensor] = []
        epilogue: EpilogueResults | None = None if capture.epilogue is None else dict(capture.epilogue)
        small = put_positions({"choice": dict(vars(self.choice)), "epilogue": epilogue}, read)
        values = {} if epilogue is not None else {"values": capture.values, "rounding": dict(capture.rounding)}
        large = put_positions({"values": {}, "rounding": {}, **values, "output": capture.logits}, kept)
        packing = Packing(tuple((tensor.shape, tensor.dtype) for tensor in read)) if recorder.is_on_gpu else None
        first = read if packing is None else packing.pack(read)
        form = CaptureForm(
            make_filler(small),
            make_filler(large),
            len(first),
            packing,
            self.classes,
            self.is_language,
            layout.patches,
            layout.tokens[0] if isinstance(layout.tokens[0], Grid) else None,
            count_scored_tokens(self.run, self.encoded, layout.length),
            capture.boundaries,
            capture.attending,
            capture.notes[len(self.encoded.notes) :],
        )
        return [recorder.require_slot(tensor) for tensor in (*first, *kept)], form


# --- what a program takes --------------------------------------------------------------------------------------------


def has_contrast(versus: TargetLike) -> bool:
    return any(one is not None for one in versus) if isinstance(versus, list | tuple) else versus is not None


def enter_targets(
    request: RunRequest, wanted: Sequence[int | None], against: Sequence[int | None]
) -> dict[str, Tensor]:
    """The indices of targets as inputs of a program."""
    device = request.encoded.inputs[request.encoded.main].device
    versus = {"versus": number_targets(against, device)} if has_contrast(request.versus) else {}
    return {"target": number_targets(wanted, device), **versus}


def find_program_inputs(encoded: EncodedBatch, device: torch.device) -> dict[str, Tensor]:
    """The tensors of a batch that a program takes."""
    masks = {"token mask": encoded.token_mask, "special mask": encoded.special_mask}
    given = {f"input {name}": tensor for name, tensor in encoded.inputs.items()}
    return given | {name: mask.to(device) for name, mask in masks.items() if mask is not None}


def alias_inputs(encoded: EncodedBatch, device: torch.device) -> EncodedBatch:
    """The same batch with tensor objects of its own, which a recorder may mark, all on the device of the model."""
    inputs = {name: tensor.detach() for name, tensor in encoded.inputs.items()}
    masks = (None if m is None else m.to(device).detach() for m in (encoded.token_mask, encoded.special_mask))
    token_mask, special_mask = masks
    return replace(encoded, inputs=inputs, token_mask=token_mask, special_mask=special_mask)


def find_constants(module: nn.Module) -> Iterator[Tensor]:
    """The tensors that belong to a model: weights, buffers, and those that its modules keep in other ways."""
    for part in unwrap(module).modules():
        for value in part.__dict__.values():
            entries = value.values() if type(value) is dict else value if type(value) in (list, tuple) else (value,)
            yield from (entry for entry in entries if isinstance(entry, Tensor))
