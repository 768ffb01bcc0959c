"""Replay: the sixth run of a model on inputs of the same shapes is recorded as a program, which later runs repeat.

    with why.replay(): ...                 for every model; so does WHYFORMER_REPLAY=1 in the environment
    with why.replay(False): ...            for none; so does WHYFORMER_REPLAY=0
    otherwise                              for models and methods whose code is that of libraries (known_code.py)

A program (program.py) gives the same numbers with the same kernels in the same order, without the Python code of the
model, of interception, of autograd and of the method. It is compared with the run it was recorded from, to TOLERANCE
of the largest value, and it is used only while the model is the one it was recorded from (model_state.py). A model
with hooks, in which Python reads the inputs, or whose answer is not a class or token, is always run itself.

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
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine.capture import LAYER_SCORE_SITES, PARTS_FORMS, STREAM_SITES, Capture, CaptureBuilder
from whyformer._engine.layout import count_tokens
from whyformer._engine.program.closeness import is_close
from whyformer._engine.program.cuda_graph import CudaGraph
from whyformer._engine.program.nested_values import Packing, describe_packing, make_filler, put_places
from whyformer._engine.program.program import Program
from whyformer._engine.program.recorded_target import (
    RecordedChoice,
    choose_recorded_target,
    describe_recorded_target,
    number_targets,
)
from whyformer._engine.program.recorder import Recorder, Unrecordable, WayDiffers
from whyformer._engine.relevance import STABILISERS, Recipe
from whyformer._engine.run import ModelState, Run, is_torch_watched, read_torch_state, rounds_to_tf32
from whyformer._engine.targets import (
    ChosenAnswer,
    ExplainedAnswer,
    ExplainedScore,
    TargetNames,
    choose_target,
    find_indices,
)
from whyformer._engine.tracing import current_setting
from whyformer._model import EncodedBatch, Model, unwrap
from whyformer._plain.tokens import Grid
from whyformer.errors import WhyformerError

RECORDED_AT = 6  # runs of the same shapes: recording takes about as long as ten runs of a small model
KEPT_PROGRAMS = 16  # for each model; the least recently used one is dropped
MOST_PROGRAMS = 64  # of all models together
MOST_MISSES = 3  # runs for which Python would have taken another way than the recorded one
LARGEST_GRAPH, MOST_GRAPHS = 1 / 32, 1 / 8  # of the memory of the GPU: a CUDA graph holds what it needs
# Sites that are more than tensors of one run.
NOT_REPLAYED = {"probe", "fingerprint", *PARTS_FORMS, *LAYER_SCORE_SITES, *STREAM_SITES}

ASKED = {"1": True, "0": False}
# None: where nobody can tell the difference.
BY_DEFAULT: bool | None = ASKED.get(os.environ.get("WHYFORMER_REPLAY", ""))
is_replaying: ContextVar[bool | None] = ContextVar("is_replaying", default=BY_DEFAULT)
is_recomputing: ContextVar[bool] = ContextVar("is_recomputing", default=False)


@contextmanager
def replay(enabled: bool = True, *, recompute: bool = False) -> Iterator[None]:
    """Whether runs of any model inside may be replaced by a recorded program; the scores are the same.

    Without it, only models whose code is all that of known libraries are replaced: what your own `forward` does besides
    computing happens in every run.
    recompute: large programs also compute the first layer of each MLP again, to need less memory.
    """
    tokens = is_replaying.set(bool(enabled)), is_recomputing.set(bool(recompute))
    try:
        yield
    finally:
        is_replaying.reset(tokens[0])
        is_recomputing.reset(tokens[1])


@dataclass(frozen=True)
class Finish:
    """What is computed from a capture as the last part of a program.

    compute: gives nested tensors by a name and the recipe they depend on, or None, of a capture and its batch, whose
    masks are tensors of the program. Such a capture has no other values.
    key: what `compute` depends on besides these.
    """

    key: Any
    compute: Callable[[Capture, EncodedBatch], dict[tuple[Any, Recipe | None], Any]]


# --- programs of a model ---------------------------------------------------------------------------------------------


class ModelChanged(Exception):
    """The model is not the one whose program was started."""


@dataclass
class RecordedRun:
    """A program, and how a capture is made from what it computes.

    Its small results, the choice of the target and what was finished, are read at once: on a GPU as a row of bytes.
    """

    program: Program
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
    graph: CudaGraph | None = None

    def run(self, inputs: Mapping[str, Tensor], meanwhile: Callable[[], None] | None = None) -> tuple[Any, Any]:
        """The small and the large results; raises WayDiffers if Python would have taken another way.

        meanwhile: called while a GPU computes, or before.
        """
        if self.graph is not None:
            take = partial(self.take, owned=False)
            return self.graph.run(inputs, take, meanwhile)  # type: ignore[no-any-return]
        if meanwhile is not None:
            meanwhile()
        return self.take(self.program.run(inputs))

    def take(self, results: Sequence[Any], *, owned: bool = True) -> tuple[Any, Any]:
        if self.program.is_deferred:
            *results, flag = results
            if flag is not None and not bool(flag):
                raise WayDiffers
        first, others = results[: self.count_small], results[self.count_small :]
        kept = others if owned else [tensor.clone() for tensor in others]
        small = first if self.packing is None else self.packing.unpack(first)  # waits for the GPU, also for the copies
        return self.small(small), self.large(kept)


@dataclass
class ModelPrograms:
    """The programs of one model, by what they were recorded for; None: cannot be recorded."""

    state: ModelState
    counts: "Counter[Any]" = field(default_factory=Counter)
    misses: "Counter[Any]" = field(default_factory=Counter)
    due: dict[Any, int] = field(default_factory=dict)  # runs that it takes to record again what was dropped
    unfinished: set[Any] = field(default_factory=set)  # whose last part cannot be recorded
    runs: "OrderedDict[Any, RecordedRun | None]" = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def has_graph(self, key: Any) -> bool:
        run = self.runs.get(key)
        return run is not None and run.graph is not None

    def find(self, key: Any) -> RecordedRun | None:
        with self.lock:
            if key in self.runs:
                self.runs.move_to_end(key)
            return self.runs.get(key)

    def keep(self, key: Any, run: RecordedRun | None) -> None:
        with self.lock:
            self.runs[key] = run
            while len(self.runs) > KEPT_PROGRAMS:
                self.drop_oldest()

    def drop_oldest(self) -> None:
        """Drop the least recently used program. Next time it takes four times as many runs to record it."""
        key, _ = self.runs.popitem(last=False)
        self.due[key] = 4 * self.due.get(key, RECORDED_AT)
        self.counts[key] = 0

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
            return key not in self.runs and self.counts[key] >= self.due.get(key, RECORDED_AT)


KNOWN: dict[int, tuple["weakref.ref[nn.Module]", ModelPrograms]] = {}


def find_known(module: nn.Module) -> ModelPrograms | None:
    """The programs of this module, which may have changed since."""
    reference, programs = KNOWN.get(id(module), (None, None))
    return programs if reference is not None and reference() is module else None


def find_programs(module: nn.Module) -> tuple[ModelState, ModelPrograms]:
    """The state of this module and its programs; new ones if it has changed."""
    if (programs := find_known(module)) is not None:
        state = ModelState(module, programs.state)
        if programs.state == state:
            return state, programs
    number, state = id(module), ModelState(module)
    made = ModelPrograms(ModelState(module).keep(module))
    KNOWN[number] = (weakref.ref(module, lambda _: KNOWN.pop(number, None)), made)
    return state, made


def limit_programs() -> None:
    """Drop programs of other models if there are too many: those of the model that has most."""
    while sum(len(programs.runs) for _, programs in list(KNOWN.values())) > MOST_PROGRAMS:
        most = max((programs for _, programs in list(KNOWN.values())), key=lambda programs: len(programs.runs))
        with most.lock:
            most.drop_oldest()


def is_affordable(program: Program, device: torch.device) -> bool:
    """Whether a CUDA graph may hold the memory of this program, beside those that there are."""
    free, memory = torch.cuda.mem_get_info(device)
    if program.peak > free / 4:
        return False
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
        finish: Finish | None = None,
    ) -> None:
        self.model, self.encoded = model, encoded
        self.target, self.versus = target, versus
        self.keep = frozenset(keep)
        self.recipes = tuple(recipes)
        self.finish = finish
        asked = is_replaying.get()
        self.is_possible = (
            asked is not False
            and (asked or finish is not None)
            and all(is_own_recipe(recipe) for recipe in self.recipes)
            and not self.keep & NOT_REPLAYED
            and is_plain_target(target)
            and is_plain_target(versus)
            and not is_torch_watched()
        )
        self.is_asked = asked is True
        self.is_checked = False
        if self.is_possible:
            self.device = encoded.inputs[encoded.main].device
            self.key = self.make_key()
            self.find_programs()

    def find_programs(self) -> None:
        """The programs of the model. On a GPU, the model is compared with them while it computes (`check_model`)."""
        known = find_known(self.model.module)
        if known is None or not self.is_usable(known) or not known.has_graph(self.key):
            self.check_model()
        else:
            self.programs = known
        if self.key in self.programs.unfinished:
            self.is_possible = self.is_possible and self.is_asked
            self.finish = None
            self.key = self.make_key()

    def check_model(self) -> None:
        """Compare the model with the one that was recorded; raises ModelChanged after a program was started."""
        if self.is_checked:
            return
        started = getattr(self, "programs", None)
        self.state, self.programs = find_programs(self.model.module)
        self.is_checked = True
        self.is_possible = self.is_usable(self.programs)
        if started is not None and started is not self.programs:
            raise ModelChanged

    def is_usable(self, programs: ModelPrograms) -> bool:
        return not programs.state.has_hooks and (self.is_asked or programs.state.is_known)

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
            self.has_versus,
            self.model.readout,
            is_recomputing.get(),
            current_setting.get(),
            read_torch_state(),
            None if self.finish is None else self.finish.key,
        )

    @property
    def has_versus(self) -> bool:
        if not isinstance(self.versus, list | tuple):
            return self.versus is not None
        return any(one is not None for one in self.versus)

    def replay(self) -> Capture | None:
        """The capture that the program of this call computes; None if there is no program, or it does not fit."""
        run = self.programs.find(self.key) if self.is_possible else None
        if run is None:
            return None
        try:
            with torch.no_grad():
                capture = self.run_program(run)
        except (WhyformerError, ModelChanged):  # what is asked for is wrong: the usual way gives the error
            self.check_model_quietly()
            return None
        except Exception:  # the model itself, run in the usual way, gives the answer or the error
            self.check_model_quietly()
            self.programs.note_miss(self.key)
            return None
        return capture if self.state.read_versions() == self.state.versions else None

    def check_model_quietly(self) -> None:
        with suppress(ModelChanged):
            self.check_model()

    def is_due(self) -> bool:
        return self.is_possible and self.programs.is_due(self.key)

    def refuse(self, reason: str) -> None:
        """Remember that this call cannot be recorded."""
        self.programs.keep(self.key, None)

    def leave_unfinished(self) -> None:
        """Remember that the last part cannot be recorded: from now on, the capture itself is."""
        self.programs.unfinished.add(self.key)

    def keep_if_same(self, run: RecordedRun, capture: Capture) -> None:
        """Keep a program if it computes what the run it was recorded from did."""
        self.programs.keep(self.key, None)
        with torch.no_grad():
            try:
                if not is_close(self.run_program(run), capture, is_tf32=rounds_to_tf32(self.device)):
                    return
            except (WayDiffers, RuntimeError):  # of a GPU that has not enough memory for both
                return
            self.programs.keep(self.key, run)
            limit_programs()
            if run.program.is_deferred and run.program.has_fixed_sizes and is_affordable(run.program, self.device):
                self.try_graph(run, capture)
            run.program.forget_steps()

    def run_moved(self, run: RecordedRun) -> Capture:
        """The program on inputs moved by one rounding: what other kernels can do to these numbers, this does too."""
        unit = 2.0**-11 if rounds_to_tf32(self.device) else torch.finfo(torch.float32).eps
        return self.run_program(run, lambda t: t * (1 + unit) if t.is_floating_point() else t)

    def try_graph(self, run: RecordedRun, capture: Capture) -> None:
        """Let the GPU repeat the program as one CUDA graph, if it can."""
        try:
            moved = self.run_moved(run)
            run.graph = CudaGraph(run.program, self.find_inputs(run)[0])
            is_same = is_close(self.run_program(run), capture, moved, is_tf32=rounds_to_tf32(self.device))
        except (RuntimeError, WayDiffers):
            is_same = False
        if not is_same:
            run.graph = None

    def find_inputs(self, run: RecordedRun) -> tuple[dict[str, Tensor], TargetNames, list[int | None]]:
        """What the program takes, and what its targets are called; raises what is wrong with the targets."""
        names = TargetNames(self.model, run.classes, is_language=run.is_language)
        wanted, against = find_indices(names, self.target, self.versus, self.encoded.batch)
        inputs = find_program_inputs(self.encoded, self.device)
        return inputs | self.number_targets(wanted, against), names, against

    def number_targets(self, wanted: list[int | None], against: list[int | None]) -> dict[str, Tensor]:
        versus = {"versus": number_targets(against, self.device)} if self.has_versus else {}
        return {"target": number_targets(wanted, self.device), **versus}

    def run_program(self, run: RecordedRun, change: Callable[[Tensor], Tensor] | None = None) -> Capture:
        """The capture that a program computes. change: what to do with each input before."""
        inputs, names, against = self.find_inputs(run)
        if change is not None:
            inputs = {name: change(tensor) for name, tensor in inputs.items()}
        small, large = run.run(inputs, self.check_model)
        targets = describe_recorded_target(names, RecordedChoice(**small["choice"]), against)
        tokens = (run.grid,) * self.encoded.batch if run.grid is not None else self.encoded.pieces(run.count)
        return Capture(
            targets,
            tokens,
            run.patches,
            large["output"],
            run.boundaries,
            {},
            (*self.encoded.notes, *run.notes),
            large["values"],
            large["rounding"],
            attending=run.attending,
            finished=small["finished"],
        )


def is_own_recipe(recipe: Recipe) -> bool:
    """Whether all its rules are ours; rules from elsewhere may do anything."""
    are_ours = all(rule.__module__.startswith("whyformer.") for rule in recipe.rules.values())
    return are_ours and recipe.stabiliser in STABILISERS.values()


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


def find_constants(module: nn.Module) -> list[Tensor]:
    """The tensors that belong to a model: weights, buffers, and those that its modules keep in other ways."""
    found: list[Tensor] = []
    for part in unwrap(module).modules():
        for value in part.__dict__.values():
            entries = value.values() if type(value) is dict else value if type(value) in (list, tuple) else (value,)
            found.extend(entry for entry in entries if isinstance(entry, Tensor))
    return found


# --- recording -------------------------------------------------------------------------------------------------------


class RecordingBuilder(CaptureBuilder):
    """Builds a capture as always, with the target chosen by operations that are recorded."""

    def __init__(self, replayer: Replayer, encoded: EncodedBatch, run: Run, recorder: Recorder) -> None:
        self.replayer, self.recorder = replayer, recorder
        super().__init__(replayer.model, encoded, run, set(replayer.keep))

    def choose_answer(self, target: Any, versus: Any) -> ChosenAnswer:
        with self.recorder.pause():
            chosen = super().choose_answer(target, versus)
            if not isinstance(chosen.answer, ExplainedAnswer) or chosen.notes or not self.is_chosen_from_output(chosen):
                raise Unrecordable("the answer is not a class or a token of the model's output")
            if self.mode.switch is not None:
                super().refuse_unknown_nodes(chosen.answer)
            self.classes, self.is_language = chosen.answer.shape[1], chosen.targets[0].position is not None
            names = TargetNames(self.model, self.classes, is_language=self.is_language)
            given = self.replayer.number_targets(*find_indices(names, target, versus, self.encoded.batch))
        for name, tensor in given.items():
            self.recorder.inputs[name] = self.recorder.enter_input(tensor)
        answer, self.choice = choose_recorded_target(
            self.model, self.encoded, self.run.output, given["target"], given.get("versus")
        )
        return chosen._replace(answer=answer)

    def is_chosen_from_output(self, chosen: ChosenAnswer) -> bool:
        """A program chooses from the output alone; this must give the same targets."""
        asked = self.replayer.target, self.replayer.versus
        try:
            again = choose_target(self.model, self.encoded, self.run.output, *asked)[1]
        except WhyformerError:
            return False
        return again == chosen.targets

    def refuse_unknown_nodes(self, answer: ExplainedScore) -> None:
        """Already done, with the answer itself."""


def alias_inputs(encoded: EncodedBatch, device: torch.device) -> EncodedBatch:
    """The same batch with tensor objects of its own, which a recorder may mark, all on the device of the model."""
    inputs = {name: tensor.detach() for name, tensor in encoded.inputs.items()}
    masks = (None if m is None else m.to(device).detach() for m in (encoded.token_mask, encoded.special_mask))
    token_mask, special_mask = masks
    return replace(encoded, inputs=inputs, token_mask=token_mask, special_mask=special_mask)


def make_recorded_run(builder: RecordingBuilder, capture: Capture) -> RecordedRun:
    """The program of a recording that is not closed yet, and the capture with places for its tensors."""
    recorder, layout = builder.recorder, builder.layout
    if layout.places is not None or layout.owners is not None:
        raise Unrecordable("not all tokens are those of the input")
    if layout.slots is not None or layout.leaf_slots is not None or layout.obstacle:
        raise Unrecordable("tokens are not in the order of the input")
    is_finished = capture.finished is not None
    read: list[Tensor] = []
    kept: list[Tensor] = []
    small = put_places({"choice": dict(vars(builder.choice)), "finished": capture.finished}, read)
    values = {} if is_finished else {"values": capture.values, "rounding": dict(capture.rounding)}
    large = put_places({"values": {}, "rounding": {}, **values, "output": capture.logits}, kept)
    packing = describe_packing(read) if recorder.is_on_gpu else None
    first = read if packing is None else packing.pack(read)
    results = [recorder.require_slot(tensor) for tensor in (*first, *kept)]
    return RecordedRun(
        Program(recorder, results, repeats_products=is_recomputing.get()),
        make_filler(small),
        make_filler(large),
        len(first),
        packing,
        builder.classes,
        builder.is_language,
        layout.patches,
        layout.tokens[0] if isinstance(layout.tokens[0], Grid) else None,
        count_tokens(builder.run, builder.encoded, layout.length),
        capture.boundaries,
        capture.attending,
        capture.notes[len(builder.encoded.notes) :],
    )
