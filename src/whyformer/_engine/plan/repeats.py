"""Repeated planned runs as CUDA graphs: a short prompt through a small model waits for Python, and a graph does not.

The third run of a model on inputs of one shape is captured (never with `why.engine(replay=False)`): a graph of its
forward pass, and one of its backward pass from a slope at the output, whatever the target. Later runs copy their input
in and let the GPU repeat the kernels. What Python asked a tensor for on the way (`if mask.all():`) is computed by the
graph too, and compared with the answer that it was captured with; where one differs, an ordinary run follows. A model
has the graph of its last shape, kept with its shadows (shadow.py), so one that has changed has none. The memory that a
graph computes in stays reserved with it.
"""

import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whyformer._engine.capture.capture import RunRequest, run_setting
from whyformer._engine.plan.actions import Arguments, Function, Options
from whyformer._engine.plan.backward_plan import BackwardPlan
from whyformer._engine.plan.cuda_kernels import Kernels, is_torch_used_elsewhere
from whyformer._engine.plan.run import Kind, PlanMode, PlanRun, Positions
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.run.returned import Returned, map_tensors
from whyformer._engine.tracing.tiles import find_free_memory
from whyformer._plain.peak_memory import free_memory

logger = logging.getLogger("whyformer")
MOST_TOKENS = 8192  # beyond, a GPU is busy for longer than Python
KEPT_SHARE = 0.1  # of the free memory, which a graph may keep
CAPTURED_AT = 3  # so many runs of one shape
WAITING = frozenset("nonzero argwhere unique bincount masked_select tolist numpy cpu repeat_interleave".split())
REPEATED_SITES = frozenset(("input_relevance", "hidden_relevance", "unattended", "mask", "probe"))
Start = Callable[..., PlanRun]  # an ordinary run, of another request or in another mode where they are given


class Branches(NamedTuple):
    """What Python asked tensors of a run for, and by which functions."""

    given: tuple[bool | int | float, ...] = ()
    functions: frozenset[Function] = frozenset()


class WatchingMode(PlanMode):
    """Notes what Python asks tensors for. known: what it was told before, and is told again without a look."""

    watches = True
    known: Branches | None = None

    def __init__(self, plan: BackwardPlan, *args: Any, **options: Any) -> None:
        super().__init__(plan, *args, **options)
        self.read: list[tuple[Function, Tensor, bool | int | float]] = []
        self.waits = any(step.name in WAITING for step in plan.steps)

    def run_beside(self, kind: Kind, func: Function, args: Arguments, options: Options) -> Any:
        if self.known is not None and func in self.known.functions:
            result = self.known.given[len(self.read)]
        else:
            result = super().run_beside(kind, func, args, options)
        if isinstance(result, bool | int | float) and args and isinstance(args[0], Tensor):
            self.read.append((func, args[0], result))
        elif kind.name in WAITING or has_mask_index(kind, args):
            self.waits = True
        return result

    @property
    def answers(self) -> Branches | None:
        """None if the GPU was waited for in another way."""
        given, functions = tuple(answer for *_, answer in self.read), frozenset(func for func, *_ in self.read)
        return None if self.waits else Branches(given, functions)


def has_mask_index(kind: Kind, args: Arguments) -> bool:
    """x[mask], whose size only the GPU knows."""
    index = args[1] if kind.name == "getitem" and len(args) > 1 else ()
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and part.dtype == torch.bool for part in parts)


@dataclass
class Repeats:
    """The runs of one shape so far."""

    key: Hashable
    count: int = 0
    answers: Branches | None = None
    graph: "PlanGraph | None" = None
    is_refused: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class RepeatsOfModel:
    """Those of the last shape."""

    def __init__(self) -> None:
        self.last = Repeats(None)

    def find(self, key: Hashable) -> Repeats:
        if self.last.key != key:
            self.last = Repeats(key)
        self.last.count += 1
        return self.last

    @contextmanager
    def start(
        self, request: RunRequest, plan: BackwardPlan, positions: Positions | None, run: Start
    ) -> Iterator[PlanRun]:
        """A planned run: by a graph if there is one, or if it is time to capture one; else by `run`."""
        known = self.find(identify_run(request, plan, positions)) if can_repeat(request, plan, positions) else None
        if known is None or known.is_refused or not known.lock.acquire(blocking=False):
            yield run()
            return
        try:
            is_due = known.graph is None and known.count >= CAPTURED_AT and not is_torch_used_elsewhere()
            if is_due and known.answers is not None:
                known.graph = capture(request, plan, run, known.answers) if has_room(request, plan) else None
                known.is_refused = known.graph is None
            if known.graph is not None:
                with known.graph.take_turn():
                    yield known.graph.run(request)
                return
            made = run(mode_class=WatchingMode)
            known.answers = made.mode.answers if isinstance(made.mode, WatchingMode) else None
            known.is_refused = known.is_refused or known.answers is None
            yield made
        finally:
            known.lock.release()


def can_repeat(request: RunRequest, plan: BackwardPlan, positions: Positions | None) -> bool:
    """Whether a graph of this run may be captured, and Python takes longer than the GPU."""
    ids = request.encoded.inputs[request.encoded.main]
    if (
        not request.keep <= REPEATED_SITES
        or run_setting.get().replay is False
        or not can_capture(ids)
        or ids.numel() > MOST_TOKENS
        or plan.loops
        or any(step.part for step in plan.steps)
    ):
        return False
    return positions is not None and all(row == list(range(row[0], row[0] + len(row))) for row in positions)


def has_room(request: RunRequest, plan: BackwardPlan) -> bool:
    ids = request.encoded.inputs[request.encoded.main]
    free = find_free_memory(ids.device)
    return free is not None and plan.bytes_per_token * ids.numel() <= KEPT_SHARE * free


def can_capture(ids: Tensor) -> bool:
    return ids.is_cuda


def identify_run(request: RunRequest, plan: BackwardPlan, positions: Positions | None) -> Hashable:
    """Runs with the same description launch the same kernels."""
    inputs = [(name, tensor.shape, tensor.dtype) for name, tensor in sorted(request.encoded.inputs.items())]
    return id(plan.steps), tuple(inputs), str(positions), "hidden_relevance" in request.keep, describe_kernels()


def describe_kernels() -> tuple[bool, ...]:
    """What torch was told about the choice of kernels."""
    chosen = torch.backends.cuda
    return (
        chosen.matmul.allow_tf32,
        chosen.flash_sdp_enabled(),
        chosen.mem_efficient_sdp_enabled(),
        chosen.math_sdp_enabled(),
        chosen.cudnn_sdp_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )


def capture(request: RunRequest, plan: BackwardPlan, run: Start, answers: Branches) -> "PlanGraph | None":
    """The graph of a run; None if something in it cannot be captured, or the graph gives something else."""
    try:
        graph = PlanGraph(request, plan, run, answers)
        return graph if graph.agrees_with(run(), request) else None
    except RuntimeError as error:  # an operation that waits for the GPU, or no memory
        logger.debug("A planned run was not captured: %s", error)
        free_memory()
        return None


class PlanGraph:
    """A captured run: its own inputs, and what it computes from them."""

    slope: Tensor  # at the output, from which the backward pass starts
    last_turn: torch.cuda.Event | None = None

    def __init__(self, request: RunRequest, plan: BackwardPlan, run: Start, answers: Branches) -> None:
        encoded = request.encoded
        self.inputs = {name: tensor.clone() for name, tensor in encoded.inputs.items()}
        self.plan = plan  # whose identity is in the key
        own = replace(request, encoded=replace(encoded, inputs=self.inputs))
        mode_class = type("AnsweringMode", (WatchingMode,), {"known": answers})
        captured: list[PlanRun] = []

        def go_forward() -> list[Tensor]:
            captured[:] = [made := run(own, mode_class=mode_class)]
            return [one.detach() for one in (compare_branches(made), made.output, made.leaf, *made.states)]

        def go_back() -> Sequence[Tensor]:
            made = captured.pop()  # and with it the memory that it keeps
            return torch.autograd.grad(made.output, (made.leaf, *made.states), self.slope)

        self.device = device = self.inputs[encoded.main].device
        self.forward = Kernels(go_forward, device)
        self.returned = self.keep_returned(captured[0])
        self.slope = torch.zeros_like(self.forward.results[1])
        self.backward = Kernels(go_back, device, self.forward)

    def keep_returned(self, made: PlanRun) -> Returned:
        output = self.forward.results[1]
        return map_tensors(made.returned, lambda one: output if one is made.output else one.detach())

    def agrees_with(self, ordinary: PlanRun, request: RunRequest) -> bool:
        """Whether the relevance of the highest outputs is that of an ordinary run."""
        repeated, highest = self.run(request), ordinary.output.detach().argmax(-1, keepdim=True)
        slopes = [run.find_slopes(run.output.gather(-1, highest), [run.leaf])[0] for run in (repeated, ordinary)]
        leaf = ordinary.leaf.detach()
        return has_same_scores(leaf * slopes[0], leaf * slopes[1])

    @contextmanager
    def take_turn(self) -> Iterator[None]:
        """Inside, the memory of the graph is used; by the GPU only after what another stream does with it."""
        if self.last_turn is not None:
            torch.cuda.current_stream(self.device).wait_event(self.last_turn)
        try:
            yield
        finally:
            if self.device.type == "cuda":
                self.last_turn = torch.cuda.current_stream(self.device).record_event()

    def run(self, request: RunRequest) -> PlanRun:
        for name, tensor in request.encoded.inputs.items():
            self.inputs[name].copy_(tensor, non_blocking=True)
        self.forward.replay()
        holds, output, leaf, *states = (one.clone() for one in self.forward.results)
        output.requires_grad_()
        returned = map_tensors(self.returned, lambda one: output if one is self.forward.results[1] else one)
        return RepeatedRun(leaf, output, returned, tuple(states), holds=holds, graph=self)


def compare_branches(made: PlanRun) -> Tensor:
    """Whether tensors still give the answers that Python got."""
    assert isinstance(made.mode, WatchingMode)
    compared = [(tensor == answer).all() for _, tensor, answer in made.mode.read]
    return torch.stack([*compared, made.leaf.new_ones((), dtype=torch.bool)]).all()


@dataclass
class RepeatedRun(PlanRun):
    """A run of a graph, whose tensors are copies of what the next one overwrites."""

    graph: PlanGraph | None = None

    def find_slopes(
        self, score: Tensor, at: Sequence[Tensor], recipe: Recipe | None = None, *, is_last: bool = True
    ) -> tuple[Tensor, ...]:
        assert self.graph is not None
        self.graph.slope.copy_(torch.autograd.grad(score.sum(), self.output)[0])
        self.graph.backward.replay()
        known = zip((self.leaf, *self.states), self.graph.backward.results, strict=True)
        found = {id(tensor): slope for tensor, slope in known}
        return tuple(found[id(tensor)].clone() for tensor in at)


def has_same_scores(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two runs give the same scores, up to rounding in the dtype of the second."""
    a, b = (t.detach().double().sum(-1).flatten() for t in (ours, theirs))
    if theirs.element_size() >= 4:
        return bool((a - b).abs().amax() <= 1e-3 * b.abs().amax())
    return bool(torch.cosine_similarity(a, b, dim=0) >= 0.99) or torch.equal(a, b)
