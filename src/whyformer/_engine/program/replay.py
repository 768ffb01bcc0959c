"""Replay: the sixth run of a model on inputs of the same shapes is recorded as a program, which later runs repeat.

A program (program.py) gives the same numbers with the same kernels in the same order, without the Python code of the
model, of interception, of autograd and of the method. It is compared with the run it was recorded from, to TOLERANCE
of the largest value, and it is used only while the model is the one it was recorded from (model_state.py). A model
with hooks, in which Python reads the inputs, or whose answer is not a class or token, is always run itself. By default
programs are used for models and methods whose code is that of libraries (model_code.py); `why.engine(replay=...)` asks
for all models, or for none.

Recording takes about as long as another run, so the work is spread: the sixth call records its own run, the seventh
makes the program, compares it and is the first to use it. The calls between the first and the fifth are only counted;
the fifth and the sixth find the model as the first did, so a model that changes from call to call is never recorded.

The tolerance follows the precision of products. On a GPU, libraries may choose other kernels for the program, and for
its CUDA graph, than for the run. In float32 that changes little. In TF32 (`torch.set_float32_matmul_precision("high")`)
it changes the third digit of each product: values and gradients may then differ by 1e-2 of the largest value, and
relevance by what its rounding estimate says for TF32, at most by the largest value itself.
"""

import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import torch
from torch import Tensor, nn

from whyformer._engine.capture.builder import LAYER_SCORE_SITES, STREAM_SITES
from whyformer._engine.capture.capture import Capture, Declined, EngineChoice, RunRequest, run_setting
from whyformer._engine.capture.decompose import PARTS_FORMS
from whyformer._engine.plan.cuda_kernels import is_torch_used_elsewhere
from whyformer._engine.program.closeness import is_close, read_torch_state, rounds_to_tf32
from whyformer._engine.program.cuda_graph import CudaGraph
from whyformer._engine.program.program import RecordedProgram
from whyformer._engine.program.recorded_target import RecordedChoice, describe_recorded_target
from whyformer._engine.program.recorder import BranchDiffers
from whyformer._engine.program.recording import (
    EpilogueUnrecordable,
    RecordedRun,
    Recording,
    enter_targets,
    find_program_inputs,
    has_contrast,
    record_run,
)
from whyformer._engine.program.steps import Unrecordable
from whyformer._engine.relevance.recipes import STABILISERS, Recipe
from whyformer._engine.run.model_state import ModelState, is_torch_watched
from whyformer._engine.targets.target import TargetNames, find_indices
from whyformer._engine.targets.target_like import TargetLike
from whyformer._engine.tracing.tiles import current_setting
from whyformer.errors import WhyformerError

RECORDED_AT = 6  # runs of the same shapes: recording takes about as long as three runs of a small model
KEPT_PROGRAMS = 16  # for each model; the least recently used one is dropped
MOST_PROGRAMS = 64  # of all models together
MOST_MISSES = 3  # runs for which Python would have taken another branch than the recorded one
LARGEST_GRAPH, MOST_GRAPHS = 1 / 32, 1 / 8  # of the memory of the GPU: a CUDA graph holds what it needs
DIFFERS = "the recorded program does not give the results of the model"
# Sites that are more than tensors of one run.
NOT_REPLAYED = {"probe", "fingerprint", *PARTS_FORMS, *LAYER_SCORE_SITES, *STREAM_SITES}


# --- programs of a model ---------------------------------------------------------------------------------------------


@dataclass
class ModelPrograms:
    """The programs of one model, by what they were recorded for; a string: why there is none."""

    state: ModelState
    counts: "Counter[Hashable]" = field(default_factory=Counter)
    misses: "Counter[Hashable]" = field(default_factory=Counter)
    due: dict[Hashable, int] = field(default_factory=dict)  # runs that it takes to record again what was dropped
    without_epilogue: set[Hashable] = field(default_factory=set)  # whose last part cannot be recorded
    runs: "OrderedDict[Hashable, RecordedRun | Recording | str]" = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, key: Hashable) -> RecordedRun | Recording | str | None:
        """What there is for this call. A recording is handed out once: the call that gets it makes the program."""
        with self.lock:
            found = self.runs.get(key)
            if found is not None:
                self.runs.move_to_end(key)
            if isinstance(found, Recording):
                self.runs[key] = "another call is making the program"
            return found

    def keep(self, key: Hashable, run: RecordedRun | Recording | str) -> None:
        with self.lock:
            self.runs[key] = run
            while len(self.runs) > KEPT_PROGRAMS:
                self.drop_oldest()

    def drop_oldest(self) -> None:
        """Drop the least recently used program. Next time it takes four times as many runs to record it."""
        key, _ = self.runs.popitem(last=False)
        self.due[key] = 4 * self.due.get(key, RECORDED_AT)
        self.counts[key] = 0

    def note_miss(self, key: Hashable, reason: str) -> None:
        """Count a run for which the program was of no use; one that is of no use often is dropped."""
        with self.lock:
            self.misses[key] += 1
            if self.misses[key] >= MOST_MISSES:
                self.runs[key] = reason

    def count_run(self, key: Hashable) -> int:
        """Count a run without a program; how many are left until one is recorded."""
        with self.lock:
            self.counts[key] += 1
            return self.due.get(key, RECORDED_AT) - self.counts[key]


KNOWN: dict[int, tuple["weakref.ref[nn.Module]", ModelPrograms]] = {}


def find_known(module: nn.Module) -> ModelPrograms | None:
    """The programs of this module, which may have changed since."""
    reference, programs = KNOWN.get(id(module), (None, None))
    return programs if reference is not None and reference() is module else None


def start_programs(module: nn.Module) -> ModelPrograms:
    number, made = id(module), ModelPrograms(ModelState(module).keep(module))
    KNOWN[number] = (weakref.ref(module, lambda _: KNOWN.pop(number, None)), made)
    return made


def check_programs(module: nn.Module) -> tuple[ModelState, ModelPrograms]:
    """The state of this module and its programs; new ones if it has changed."""
    programs = find_known(module) or start_programs(module)
    state = ModelState(module, programs.state)
    return state, programs if programs.state.is_same(state) else start_programs(module)


def limit_programs() -> None:
    """Drop programs of other models if there are too many: those of the model that has most."""
    while sum(len(programs.runs) for _, programs in list(KNOWN.values())) > MOST_PROGRAMS:
        most = max((programs for _, programs in list(KNOWN.values())), key=lambda programs: len(programs.runs))
        with most.lock:
            most.drop_oldest()


def is_affordable(program: RecordedProgram, device: torch.device) -> bool:
    """Whether a CUDA graph may hold the memory of this program, beside those that there are."""
    free, memory = torch.cuda.mem_get_info(device)
    if program.peak > free / 4:
        return False
    runs = [run for _, programs in list(KNOWN.values()) for run in programs.runs.values()]
    held = sum(run.program.peak for run in runs if isinstance(run, RecordedRun) and run.graph is not None)
    return program.peak <= memory * LARGEST_GRAPH and held + program.peak <= memory * MOST_GRAPHS


# --- from a request to its program -----------------------------------------------------------------------------------


class ProgramRunner:
    """Repeats a recorded program, or records one when it is time to."""

    name = "program"

    def accepts(self, request: RunRequest) -> str | None:
        asked = run_setting.get().replay
        if asked is False:
            return "switched off"
        if not asked and not is_worth_it(request.encoded.inputs[request.encoded.main].device):
            return "programs do not pay on a CPU"
        if not asked and request.epilogue is None:
            return "not asked for: a capture of all values, or a method that is not of this package"
        if not all(is_own_recipe(recipe) for recipe in request.recipes):
            return "a rule is not of this package"
        if request.keep & NOT_REPLAYED:
            return "more than tensors of one run is needed"
        if not all(is_plain_target(one) for one in (request.target, request.versus) if one is not None):
            return "the target is not a class or token by index or name"
        return "another mode of torch watches operations" if is_torch_watched() else None

    def run(self, request: RunRequest) -> Capture:
        return ProgramCall(request).run()


def is_worth_it(device: torch.device) -> bool:
    """Whether a program saves more than a planned run: on a GPU, where it becomes one CUDA graph."""
    return device.type == "cuda"


class ModelChanged(Exception):
    """The model is not the one whose program was started."""


class ProgramCall:
    """One request and its program, if it has or gets one."""

    def __init__(self, request: RunRequest) -> None:
        self.request, self.module = request, request.model.module
        self.device = request.encoded.inputs[request.encoded.main].device
        self.is_asked = run_setting.get().replay is True
        self.state: ModelState | None = None  # once the model was looked at
        self.programs = find_known(self.module) or start_programs(self.module)

    def run(self) -> Capture:
        if self.key in self.programs.without_epilogue:
            if not self.is_asked:
                raise Declined("what the method computes cannot be recorded")
            return ProgramCall(replace(self.request, epilogue=None)).run()
        found = self.programs.runs.get(self.key)
        left = self.programs.count_run(self.key) if found is None else 0
        if left > 1:
            raise Declined(f"not tried before {left} more runs on these shapes")
        if not isinstance(found, RecordedRun) or found.graph is None:  # else it is checked while the GPU computes
            try:
                self.check_model()
            except ModelChanged:
                left = self.programs.count_run(self.key)
        found = self.programs.find(self.key)
        if isinstance(found, Recording):
            found = self.make_program(found)
        if isinstance(found, RecordedRun):
            return self.replay(found)
        if isinstance(found, str):
            raise Declined(found)
        if left > 0:
            raise Declined(f"not tried before {left} more runs on these shapes")
        return self.record()

    @cached_property
    def key(self) -> Hashable:
        request, encoded = self.request, self.request.encoded
        mask = encoded.token_mask
        inputs = tuple((name, t.shape, t.stride(), t.dtype, t.device) for name, t in encoded.inputs.items())
        return (
            inputs,
            (encoded.main, encoded.batch, encoded.batch_axis),
            None if mask is None else (mask.shape, tuple(mask.flatten().tolist())),  # padding is part of a program
            encoded.special_mask is None,
            request.keep,
            request.recipes,
            request.versus is not None and has_contrast(request.versus),
            request.model.readout,
            bool(run_setting.get().recompute),
            current_setting.get(),
            read_torch_state(),
            None if request.epilogue is None else request.epilogue.key,
        )

    def check_model(self) -> None:
        """Compare the model with the one that was recorded; raises ModelChanged after a graph was started."""
        if self.state is not None:
            return
        started = self.programs
        self.state, self.programs = check_programs(self.module)
        if self.programs.state.has_hooks:
            raise Declined("the model has hooks")
        if not self.is_asked and not self.programs.state.is_known:
            raise Declined("not all code of the model is that of known libraries")
        if started is not self.programs:
            raise ModelChanged

    # --- replaying ---------------------------------------------------------------------------------------------------

    def replay(self, run: RecordedRun) -> Capture:
        """The capture that the program of this call computes; raises Declined if it does not fit."""
        try:
            with torch.no_grad():
                capture = self.run_program(run)
        except Exception as error:  # the model itself, run by the full engine, gives the answer or the error
            with suppress(ModelChanged, Declined):
                self.check_model()
            if isinstance(error, WhyformerError | ModelChanged):  # what is asked for is wrong
                raise Declined(str(error) or "the model has changed") from None
            self.programs.note_miss(self.key, "the model takes other branches too often")
            raise Declined(str(error) or "the model takes another branch for this input") from None
        assert self.state is not None
        if self.state.read_versions() != self.state.versions:
            raise Declined("the weights changed meanwhile")
        return capture

    def run_program(self, run: RecordedRun, change: Callable[[Tensor], Tensor] | None = None) -> Capture:
        """The capture that a program computes. change: what to do with each input before."""
        inputs, names, against = self.find_inputs(run)
        if change is not None:
            inputs = {name: change(tensor) for name, tensor in inputs.items()}
        small, large = run.run(inputs, self.check_model)
        form, encoded = run.form, self.request.encoded
        return Capture(
            describe_recorded_target(names, RecordedChoice(**small["choice"]), against),
            (form.grid,) * encoded.batch if form.grid is not None else encoded.pieces(form.count),
            form.patches,
            large["output"],
            form.boundaries,
            notes=(*encoded.notes, *form.notes),
            values=large["values"],
            rounding=large["rounding"],
            attending=form.attending,
            epilogue=small["epilogue"],
            engine=EngineChoice("program"),
        )

    def find_inputs(self, run: RecordedRun) -> tuple[dict[str, Tensor], TargetNames, list[int | None]]:
        """What the program takes, and what its targets are called; raises what is wrong with the targets."""
        request = self.request
        names = TargetNames(request.model, run.form.classes, is_language=run.form.is_language)
        wanted, against = find_indices(names, request.target, request.versus, request.encoded.batch)
        inputs = find_program_inputs(request.encoded, self.device)
        return inputs | enter_targets(request, wanted, against), names, against

    # --- recording ---------------------------------------------------------------------------------------------------

    def record(self) -> Capture:
        """Run the model once, and keep the run for a program."""
        try:
            recording, capture = record_run(self.request)
        except Unrecordable as reason:
            self.programs.keep(self.key, str(reason))
            raise Declined(str(reason)) from None
        except EpilogueUnrecordable as reason:
            self.programs.without_epilogue.add(self.key)  # from now on, the capture itself is recorded
            raise Declined(str(reason)) from None
        if self.request.epilogue is None:  # its results may be large: they are compared now, and not kept
            self.make_program(recording)
        else:
            self.programs.keep(self.key, recording)
            limit_programs()
        return replace(capture, engine=EngineChoice("full", {"program": "recorded by this run"}))

    def make_program(self, recording: Recording) -> RecordedRun | str:
        """The program of a recorded run, kept if it computes what the run did; else why not."""
        self.programs.keep(self.key, DIFFERS)
        then = replace(self.request, encoded=recording.encoded, target=recording.target, versus=recording.versus)
        call = ProgramCall(then)
        call.state = self.state
        with torch.no_grad():
            run = recording.make_run()
            if not call.keeps_results(run, recording.capture):
                return DIFFERS
            self.programs.keep(self.key, run)
            limit_programs()
            if run.program.is_deferred and run.program.has_fixed_sizes and is_affordable(run.program, self.device):
                call.try_graph(run, recording.capture)
            run.program.forget_steps()
            return run

    def keeps_results(self, run: RecordedRun, capture: Capture, moved: Capture | None = None) -> bool:
        try:
            return is_close(self.run_program(run), capture, moved, is_tf32=rounds_to_tf32(self.device))
        except (BranchDiffers, RuntimeError):  # of a GPU that has not enough memory for both
            return False

    def try_graph(self, run: RecordedRun, capture: Capture) -> None:
        """Let the GPU repeat the program as one CUDA graph, if it can.

        Relevance may differ by what moving the inputs by one rounding does: other kernels can do that to it too.
        """
        unit = 2.0**-11 if rounds_to_tf32(self.device) else torch.finfo(torch.float32).eps
        try:
            if is_torch_used_elsewhere():
                return
            moved = self.run_program(run, lambda t: t * (1 + unit) if t.is_floating_point() else t)
            run.graph = CudaGraph(run.program, self.find_inputs(run)[0])
        except (RuntimeError, BranchDiffers):
            return
        if not self.keeps_results(run, capture, moved):
            run.graph = None


@cache
def is_own_recipe(recipe: Recipe) -> bool:
    """Whether all its rules are ours; rules from elsewhere may do anything."""
    are_ours = all(rule.__module__.startswith("whyformer.") for rule in recipe.rules.values())
    return are_ours and recipe.stabiliser in STABILISERS.values()


def is_plain_target(target: TargetLike) -> bool:
    """None, an index, a label, or one of these for each example: what is chosen from the output alone."""
    if isinstance(target, list | tuple):
        return all(is_plain_target(one) for one in target)
    return target is None or isinstance(target, int | str) or hasattr(target, "tolist")
