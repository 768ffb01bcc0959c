"""Replay: the sixth run of a model on inputs of the same shapes is recorded as a program, which later runs repeat.

    with why.replay(): ...                 off unless asked for, here or by WHYFORMER_REPLAY=1 in the environment

A program (program.py) gives the same numbers with the same kernels in the same order, without the Python code of the
model, of interception and of autograd. It is compared with the run it was recorded from, to TOLERANCE of the
largest value, and it is used only while the model is the one it was recorded from (model_state.py). A model with
hooks, in which Python reads the inputs, or whose answer is not a class or token, is always run itself.

The tolerance follows the precision of products. On a GPU, libraries may choose other kernels for the program, and for
its CUDA graph, than for the run. In float32 that changes little. In TF32 (`torch.set_float32_matmul_precision("high")`)
it changes the third digit of each product: values and gradients may then differ by 1e-2 of the largest value, and
relevance by what its rounding estimate says for TF32, at most by the largest value itself.
"""

import os
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine.builder import LAYER_SCORE_SITES, STREAM_SITES, CaptureBuilder
from whyformer._engine.capture import Capture, LazyLayers, RoundingEstimate
from whyformer._engine.chosen_answer import ChosenAnswer
from whyformer._engine.cuda_graph import CudaGraph
from whyformer._engine.decompose import PARTS_FORMS
from whyformer._engine.forward import Run
from whyformer._engine.function_target import Answer
from whyformer._engine.layout import Layout, compute_readout, count_tokens
from whyformer._engine.model_state import ModelState, is_torch_watched, read_torch_state, rounds_to_tf32
from whyformer._engine.program import Program, Slots
from whyformer._engine.recorder import Recorder, Slot, Unrecordable, WayDiffers
from whyformer._engine.relevance.node import Recipe
from whyformer._engine.target import ExplainedAnswer, choose_target
from whyformer._engine.tracing.attention import AttentionSite
from whyformer._engine.tracing.provenance import EMPTY_TRACE, Trace, attach_trace, compute_pooling_weights, trace_of
from whyformer._engine.tracing.tiles import current_setting
from whyformer._model.encoded import EncodedBatch
from whyformer._model.model import Model
from whyformer._model.unwrap import unwrap
from whyformer._plain.tokens import Grid
from whyformer.errors import WhyformerError

RECORDED_AT = 6  # runs of the same shapes: recording takes about as long as ten runs of a small model
KEPT_PROGRAMS = 16  # for each model; the least recently used one is dropped
# Of the largest value, in float32. On a CPU there is no difference; kernels of a GPU that add in any order make one,
# which relevance passes enlarge: four times the estimate of the pass is allowed, but not more than MOST_ROUNDING.
TOLERANCE, MOST_ROUNDING = 1e-4, 0.1
TF32_TOLERANCE, MOST_TF32_ROUNDING = 1e-2, 1.0
TF32_UNIT = 2.0**13  # the rounding unit of TF32 in units of float32, for which estimates are made
MOST_MISSES = 3  # runs for which Python would have taken another way than the recorded one
LARGEST_GRAPH, MOST_GRAPHS = 1 / 32, 1 / 8  # of the memory of the GPU: a CUDA graph holds what it needs
# Sites that are more than tensors of one run.
NOT_REPLAYED = {"probe", "fingerprint", *PARTS_FORMS, *LAYER_SCORE_SITES, *STREAM_SITES}

is_replaying: ContextVar[bool] = ContextVar("is_replaying", default=os.environ.get("WHYFORMER_REPLAY", "0") == "1")


is_recomputing: ContextVar[bool] = ContextVar("is_recomputing", default=False)


@contextmanager
def replay(enabled: bool = True, *, recompute: bool = False) -> Iterator[None]:
    """Whether runs of a model inside may be replaced by a recorded program; the scores are the same.

    recompute: large programs also compute the first layer of each MLP again, to need less memory.
    """
    tokens = is_replaying.set(bool(enabled)), is_recomputing.set(bool(recompute))
    try:
        yield
    finally:
        is_replaying.reset(tokens[0])
        is_recomputing.reset(tokens[1])


# --- programs of a model ---------------------------------------------------------------------------------------------


@dataclass
class RecordedRun:
    """A program, and how a capture is made from what it computes."""

    program: Program
    first: Callable[[Sequence[Tensor]], Any]  # makes output, mask, special and the trace of the output
    second: Callable[[Sequence[Tensor]], Any]  # makes values and rounding of the capture
    read: Tensor | None  # [batch token]: where the answer is read, if that does not depend on the inputs
    patches: tuple[int, ...] | None
    grid: Grid | None
    count: int  # tokens that are scored
    last_site: AttentionSite  # shapes only
    boundaries: tuple[int, ...]
    notes: tuple[str, ...]
    graph: CudaGraph | None = None

    def start(self, inputs: Mapping[str, Tensor]) -> Slots:
        return self.program.start(inputs) if self.graph is None else self.graph.start(inputs)


@dataclass
class ModelPrograms:
    """The programs of one model, by what they were recorded for; None: cannot be recorded."""

    state: ModelState
    counts: "Counter[Any]" = field(default_factory=Counter)
    misses: "Counter[Any]" = field(default_factory=Counter)
    runs: "OrderedDict[Any, RecordedRun | None]" = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, key: Any) -> RecordedRun | None:
        with self.lock:
            if key in self.runs:
                self.runs.move_to_end(key)
            return self.runs.get(key)

    def keep(self, key: Any, run: RecordedRun | None) -> None:
        with self.lock:
            self.runs[key] = run
            while len(self.runs) > KEPT_PROGRAMS:
                self.runs.popitem(last=False)

    def note_miss(self, key: Any) -> None:
        """Count a run for which the program was of no use; one that is of no use often is dropped."""
        with self.lock:
            self.misses[key] += 1
            if self.misses[key] >= MOST_MISSES:
                self.runs[key] = None

    def is_due(self, key: Any) -> bool:
        """Count a run; True if it is to be recorded."""
        with self.lock:
            self.counts[key] += 1
            return key not in self.runs and self.counts[key] >= RECORDED_AT


KNOWN: dict[int, tuple["weakref.ref[nn.Module]", ModelPrograms]] = {}


def find_programs(module: nn.Module, state: ModelState) -> ModelPrograms:
    """The programs of this module; new ones if it has changed."""
    number = id(module)
    reference, programs = KNOWN.get(number, (None, None))
    if reference is not None and programs is not None and reference() is module and programs.state == state:
        return programs
    made = ModelPrograms(ModelState(module).keep(module))
    KNOWN[number] = (weakref.ref(module, lambda _: KNOWN.pop(number, None)), made)
    return made


def is_affordable(program: Program, device: torch.device) -> bool:
    """Whether a CUDA graph may hold the memory of this program, beside those that there are."""
    memory = torch.cuda.get_device_properties(device).total_memory
    runs = [run for _, programs in list(KNOWN.values()) for run in programs.runs.values()]
    held = sum(run.program.peak for run in runs if run is not None and run.graph is not None)
    return program.peak <= memory * LARGEST_GRAPH and held + program.peak <= memory * MOST_GRAPHS


# --- from a call to its program --------------------------------------------------------------------------------------


class Replayer:
    """One call of `record` and its program, if it has or gets one."""

    def __init__(
        self,
        model: Model,
        encoded: EncodedBatch,
        target: Any,
        versus: Any,
        keep: Collection[str],
        recipes: Sequence[Recipe],
    ) -> None:
        self.model, self.encoded = model, encoded
        self.target, self.versus = target, versus
        self.keep = frozenset(keep)
        self.recipes = tuple(recipes)
        self.is_possible = (
            is_replaying.get() and not self.keep & NOT_REPLAYED and not callable(target) and not is_torch_watched()
        )
        if self.is_possible:
            self.state = ModelState(model.module)
            self.is_possible = not self.state.has_hooks
            self.programs = find_programs(model.module, self.state)
            self.key = self.make_key()

    def make_key(self) -> Any:
        encoded = self.encoded
        mask = encoded.token_mask
        inputs = tuple((name, t.shape, t.stride(), t.dtype, t.device) for name, t in encoded.inputs.items())
        return (
            inputs,
            (encoded.main, encoded.batch, encoded.batch_axis),
            None if mask is None else (mask.shape, bool(mask.all())),
            encoded.special_mask is None,
            self.keep,
            self.recipes,
            self.versus is None,
            self.model.readout,
            is_recomputing.get(),
            current_setting.get(),
            read_torch_state(),
        )

    def replay(self) -> Capture | None:
        """The capture that the program of this call computes; None if there is no program, or it does not fit."""
        run = self.programs.find(self.key) if self.is_possible else None
        if run is None:
            return None
        try:
            with torch.no_grad():
                capture = self.run_program(run)
        except Exception:  # the model itself, run in the usual way, gives the answer or the error
            self.programs.note_miss(self.key)
            return None
        return capture if self.state.read_versions() == self.state.versions else None

    def is_due(self) -> bool:
        return self.is_possible and self.programs.is_due(self.key)

    def refuse(self, reason: str) -> None:
        """Remember that this call cannot be recorded."""
        self.programs.keep(self.key, None)

    def keep_if_same(self, run: RecordedRun, capture: Capture) -> None:
        """Keep a program if it computes what the run it was recorded from did."""
        self.programs.keep(self.key, None)
        try:
            with torch.no_grad():
                again = self.run_program(run)
        except WayDiffers:
            return
        if not is_close(again, capture):
            return
        self.programs.keep(self.key, run)
        if run.program.is_deferred and run.program.has_fixed_sizes and is_affordable(run.program, self.model.device):
            self.try_graph(run, capture)

    def try_graph(self, run: RecordedRun, capture: Capture) -> None:
        """Let the GPU repeat the program as one CUDA graph, if it can."""
        run.graph = CudaGraph(run.program)
        try:
            with torch.no_grad():
                is_same = is_close(self.run_program(run), capture)
        except (RuntimeError, WayDiffers):
            is_same = False
        if not is_same:
            run.graph = None

    def run_program(self, run: RecordedRun) -> Capture:
        with closing(run.start(find_program_inputs(self.encoded, self.model.device))) as steps:
            return self.run_steps(run, steps)

    def run_steps(self, run: RecordedRun, steps: Slots) -> Capture:
        first = run.first(next(steps))
        output: Tensor = first["output"]
        layout = Layout(first["mask"], first["special"], run.patches, self.find_tokens(run))
        with torch.enable_grad():
            trace = first["trace"] if run.read is None else Trace(read=run.read, epoch=first["trace"].epoch)
            leaf = attach_trace(output.detach().requires_grad_(), trace)
            answer, targets = choose_target(self.model, self.encoded, leaf, self.target, self.versus)
        names = run.program.second_inputs.keys()
        if ("versus" in names) != (answer.versus is not None and "seed" in names):
            raise WayDiffers
        given = find_given(self.model, run.last_site, layout, answer, leaf if "seed" in names else None, self.keep)
        computed = steps.send(given)
        if run.program.is_deferred and not is_true(computed.pop()):
            raise WayDiffers
        second = run.second(computed)
        notes = (*self.encoded.notes, *run.notes)
        return Capture(
            targets, layout.tokens, run.patches, output, run.boundaries, {}, notes, second["values"], second["rounding"]
        )

    def find_tokens(self, run: RecordedRun) -> Any:
        return (run.grid,) * self.encoded.batch if run.grid is not None else self.encoded.pieces(run.count)


def is_plain_target(target: Any) -> bool:
    """None, an index, a label, or one of these for each example: what is chosen from the output alone."""
    if isinstance(target, list | tuple):
        return all(is_plain_target(one) for one in target)
    return target is None or isinstance(target, int | str) or hasattr(target, "tolist")


def find_program_inputs(encoded: EncodedBatch, device: torch.device) -> dict[str, Tensor]:
    """The tensors of a batch that a program takes."""
    masks = {"token mask": encoded.token_mask, "special mask": encoded.special_mask}
    given = {f"input {name}": tensor for name, tensor in encoded.inputs.items()}
    return given | {name: mask.to(device) for name, mask in masks.items() if mask is not None}


def is_true(flag: Tensor | None) -> bool:
    """Whether Python would have taken the way that was recorded."""
    return flag is None or bool(flag)


def find_constants(module: nn.Module) -> list[Tensor]:
    """The tensors that belong to a model: weights, buffers, and those that its modules keep in other ways."""
    found: list[Tensor] = []
    for part in unwrap(module).modules():
        for value in part.__dict__.values():
            entries = value.values() if type(value) is dict else value if type(value) in (list, tuple) else (value,)
            found.extend(entry for entry in entries if isinstance(entry, Tensor))
    return found


def find_given(
    model: Model,
    last_site: AttentionSite,
    layout: Layout,
    answer: ExplainedAnswer,
    output: Tensor | None,
    keep: Collection[str],
) -> dict[str, Tensor]:
    """What the second part of a program takes: the gradients of the explained logits at the output, and the readout."""
    given: dict[str, Tensor] = {}
    if output is not None:
        given["seed"] = compute_seed(answer.target, output)
        if answer.versus is not None:
            given["versus"] = compute_seed(answer.versus, output)
    if "readout" in keep:
        given["readout"] = compute_readout(model, LastSite([last_site]), layout, answer)  # type: ignore[arg-type]
    return given


def compute_seed(logits: Tensor, output: Tensor) -> Tensor:
    """The gradient of the sum of the explained logits at the output of the model."""
    (seed,) = torch.autograd.grad(logits, output, torch.ones_like(logits), retain_graph=True)
    return seed


@dataclass
class LastSite:
    """Stands for a run where only the shapes of its last attention are read."""

    sites: list[AttentionSite]

    @property
    def mode(self) -> "LastSite":
        return self


# --- recording -------------------------------------------------------------------------------------------------------


class RecordingBuilder(CaptureBuilder):
    """Builds a capture as always. The choice of the target is not recorded: the program is cut there."""

    def __init__(self, model: Model, encoded: EncodedBatch, run: Run, keep: set[str], recorder: Recorder) -> None:
        self.recorder = recorder
        super().__init__(model, encoded, run, keep)

    def choose_answer(self, target: Any, versus: Any) -> ChosenAnswer:
        output, self.asked = self.run.output, (target, versus)
        with self.recorder.pause():
            chosen = super().choose_answer(target, versus)
            answer = chosen.answer
            if not isinstance(answer, ExplainedAnswer) or chosen.notes or not self.is_chosen_from_output(chosen):
                raise Unrecordable("the answer is not a class or a token of the model's output")
            if self.mode.switch is not None:
                super().refuse_unknown_nodes(answer)
            start = output if output.requires_grad else None
            self.given = find_given(self.model, self.mode.sites[-1], self.layout, answer, start, self.keep)
        self.recorder.cut(self.given)
        if not output.requires_grad:
            return chosen
        seeded = [
            (output * self.given[name]).flatten(1).sum(1) if name in self.given else None for name in ("seed", "versus")
        ]
        assert seeded[0] is not None
        return chosen._replace(answer=replace(answer, target=seeded[0], versus=seeded[1]))

    def is_chosen_from_output(self, chosen: ChosenAnswer) -> bool:
        """A program chooses from the output alone; this must give the same targets."""
        try:
            again = choose_target(self.model, self.encoded, self.run.output, *self.asked)[1]
        except WhyformerError:
            return False
        return again == chosen.targets

    def find_readout(self, answer: Answer) -> Tensor:
        return self.given["readout"]

    def refuse_unknown_nodes(self, answer: Answer) -> None:
        """Already done, with the answer itself."""


def alias_inputs(encoded: EncodedBatch, device: torch.device) -> EncodedBatch:
    """The same batch with tensor objects of its own, which a recorder may mark, all on the device of the model."""
    inputs = {name: tensor.detach() for name, tensor in encoded.inputs.items()}
    masks = (None if m is None else m.to(device).detach() for m in (encoded.token_mask, encoded.special_mask))
    token_mask, special_mask = masks
    return replace(encoded, inputs=inputs, token_mask=token_mask, special_mask=special_mask)


def make_recorded_run(recorder: Recorder, builder: CaptureBuilder, capture: Capture) -> RecordedRun:
    """The program of a finished recording, and the capture with slots in place of tensors."""
    if builder.layout.places is not None or builder.layout.owners is not None:
        raise Unrecordable("not all tokens are those of the input")
    slots: list[Slot] = []
    layout, output = builder.layout, builder.run.output
    trace = trace_of(output)
    first = {
        "output": output,
        "mask": layout.mask,
        "special": layout.special,
        "trace": Trace(samples=trace.samples, tokens=trace.tokens, epoch=trace.epoch, read=trace.read),
    }
    firsts = put_slots(first, recorder, slots)
    ends = len(slots)
    seconds = put_slots({"values": capture.values, "rounding": dict(capture.rounding)}, recorder, slots)
    program = Program(recorder, slots[:ends], slots[ends:], repeats_products=is_recomputing.get())
    last = builder.mode.sites[-1]
    grid = layout.tokens[0] if isinstance(layout.tokens[0], Grid) else None
    return RecordedRun(
        program,
        make_filler(firsts),
        make_filler(shift_places(seconds, ends)),
        find_fixed_readout(recorder, builder),
        layout.patches,
        grid,
        count_tokens(builder.run, builder.encoded, layout.length),
        AttentionSite(last.place, value=as_shape(last.value), output=as_shape(last.output)),
        capture.boundaries,
        capture.notes[len(builder.encoded.notes) :],
    )


def find_fixed_readout(recorder: Recorder, builder: CaptureBuilder) -> Tensor | None:
    """How much of the answer is read at each token, where the labels of the output say so for any inputs."""
    trace, output = trace_of(builder.run.output), builder.run.output
    labels = [label for label in (trace.samples, trace.tokens) if label is not None]
    if trace.read is not None or output.dim() != 2 or any(recorder.depends(label) for label in labels):
        return None
    return compute_pooling_weights(trace, output.shape, builder.encoded.batch, builder.layout.length)


def as_shape(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor.detach(), device="meta")


# --- captures with places for tensors --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a tensor of a capture is among what a program returns."""

    number: int


def put_slots(value: Any, recorder: Recorder, slots: list[Slot]) -> Any:
    """The value with a place for every tensor; their slots are appended to `slots`."""

    def put(tensor: Tensor) -> Place:
        slots.append(recorder.require_slot(tensor))
        return Place(len(slots) - 1)

    return map_structure(value, Tensor, put)


def shift_places(value: Any, by: int) -> Any:
    return map_structure(value, Place, lambda place: Place(place.number - by))


def make_filler(value: Any) -> Callable[[Sequence[Tensor]], Any]:
    """A function from what a program returns to the value with its tensors in their places."""
    if isinstance(value, Place):
        return itemgetter(value.number)
    if not has_place(value):
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
    changing = {name: make_filler(part) for name, part in made_of.items() if has_place(part)}

    def fill_fields(tensors: Sequence[Tensor]) -> Any:
        made = object.__new__(own)
        made.__dict__.update(made_of, **{name: fill(tensors) for name, fill in changing.items()})
        return made

    return fill_fields


def has_place(value: Any) -> bool:
    found: list[Place] = []
    map_structure(value, Place, found.append)
    return bool(found)


def map_structure(value: Any, kind: type, change: Any) -> Any:
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
    if isinstance(value, Tensor | Place) or value is None or isinstance(value, str | int | float | Recipe):
        return value
    raise Unrecordable(f"a capture with {type(value).__name__} cannot be made from a program")


def is_close(one: Capture, other: Capture) -> bool:
    """Two captures hold the same numbers, up to what rounding can do."""
    narrow, wide = find_tolerances(other, is_tf32=rounds_to_tf32(other.logits.device))
    for key, value in other.values.items():
        bound = wide if key[1] is not None else narrow
        pairs = zip(list_tensors(one.values[key]), list_tensors(value), strict=True)
        if not all(is_close_tensor(a, b, bound) for a, b in pairs):
            return False
    return is_close_tensor(one.logits, other.logits, narrow)


def find_tolerances(capture: Capture, *, is_tf32: bool) -> tuple[float, float]:
    """How far another run may be away, of the largest value: for values and gradients, and for relevance."""
    unit, narrow, most = (TF32_UNIT, TF32_TOLERANCE, MOST_TF32_ROUNDING) if is_tf32 else (1, TOLERANCE, MOST_ROUNDING)
    estimates = [4 * unit * float(estimate.rows[0].max()) for estimate in capture.rounding.values()]
    return narrow, max([narrow, *(min(most, estimate) for estimate in estimates)])


def list_tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_structure(value, Tensor, found.append)
    return found


def is_close_tensor(one: Tensor, other: Tensor, bound: float) -> bool:
    """To `bound` of the largest value, in float32; types with fewer bits may differ by more."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    a, b = one.detach(), other.detach()
    if not a.is_floating_point() or not a.numel():
        return torch.equal(a, b)
    wide = bound * max(1.0, torch.finfo(a.dtype).eps / torch.finfo(torch.float32).eps)
    return bool(((a - b).abs().amax() <= wide * b.abs().amax()) | torch.equal(a, b))
