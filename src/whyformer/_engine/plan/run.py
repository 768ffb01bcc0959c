"""A planned run: the model itself, under a light mode that does at each operation what the plan says.

Operations on tensors that do not depend on the input (masks, positions) are not looked at, so one plan serves
inputs of any length. Each other one is compared with the next step of the plan: its name, and which arguments depend
on the input. A run that takes another way raises PlanDiffers, and the full engine runs instead.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from whyformer._engine.capture.capture import RunRequest
from whyformer._engine.capture.sites import SITES
from whyformer._engine.plan.actions import Action, Arguments, Call, Context, Function, Options, cast, take_part
from whyformer._engine.plan.backward_plan import (
    ASKING,
    FREE,
    INPUT,
    MULTI_HEAD,
    BackwardPlan,
    Block,
    find_pattern,
    has_dependent,
)
from whyformer._engine.plan.deferred_attention import DeferredAttention
from whyformer._engine.plan.facts import AttentionStep, PlanDiffers
from whyformer._engine.plan.loops import Loop
from whyformer._engine.relevance.node import Switch
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.run.foreign_errors import refuse_unsuitable_inputs
from whyformer._engine.run.model_writes import WriteGuard
from whyformer._engine.run.quantised import reload_weights
from whyformer._engine.run.returned import find_output
from whyformer._engine.tracing import operations
from whyformer._engine.tracing.attention import AttentionSite
from whyformer._engine.tracing.composites import COMPOSITE_OPERATIONS, multi_head_attention
from whyformer._engine.tracing.operations import Operation
from whyformer._model import EncodedBatch, unwrap
from whyformer._plain.private_torch import without_interception
from whyformer._plain.torch_state import leave_inference, use_device_of_model

OF_ATTENTION = frozenset(("attention", "attention_output", "value"))
Positions = list[list[int]]  # of each example, as many for each


class Saving(IntEnum):
    """How a run saves memory, at the price of time."""

    NOTHING = 0
    BLOCKS = 1  # each block keeps its input alone, and runs again in the backward pass
    INPUTS = 2  # and these inputs are kept in main memory


FREE_ACTIONS = {"getitem": take_part, **dict.fromkeys("to float double half bfloat16 type type_as".split(), cast)}


class Kind(NamedTuple):
    """What is known of a function of torch by its name."""

    name: str
    asks: bool  # gives no tensor
    is_free: bool  # no step of a plan
    action: Action | None  # of one that is free
    writes: bool
    is_multi_head: bool
    is_composite: bool


@cache
def find_kind(function: Function) -> Kind:
    name = operations.name_of(function)
    is_asking, writes = name in ASKING, operations.is_marked_in_place(name)
    is_free, action, is_composite = is_asking or name in FREE, FREE_ACTIONS.get(name), name in COMPOSITE_OPERATIONS
    return Kind(name, is_asking, is_free, action, writes, name == MULTI_HEAD, is_composite)


def requires_grad(tensor: Tensor) -> bool:
    return tensor.requires_grad


class PlanMode(TorchFunctionMode):
    """Follows a plan from one of its steps. `leaf` is the explained input, once it is there."""

    watches = False  # also operations on what does not depend on the input

    def __init__(
        self,
        plan: BackwardPlan,
        guard: WriteGuard | None = None,
        *,
        start: int = 0,
        is_inside: bool = False,
        switch: Switch | None = None,
    ) -> None:
        super().__init__()
        self.switch = Switch() if plan.is_switched and switch is None else switch
        self.plan, self.steps, self.guard = plan, plan.steps, guard
        self.at = start
        self.leaf: Tensor | None = None
        self.has_entered = is_inside
        self.embeddings = 0
        self.keeps: frozenset[int] = frozenset()  # the steps whose results are kept
        self.kept: dict[int, Tensor] = {}
        self.attends: dict[int, AttentionStep] = {}  # the steps whose attention is kept
        self.sites: list[AttentionSite] = []
        self.words: Tensor | None = None  # the part of the leaf that comes from the ids
        self.entered = 0  # operations of the entrance that were done
        self.summed: Tensor | None = None  # the embeddings so far
        self.turns: dict[int, list[Loop]] = {}  # by the steps at either end
        for loop in plan.loops:
            self.turns.setdefault(loop.start, []).append(loop)
            self.turns.setdefault(loop.stop, []).append(loop)
        self.attention = DeferredAttention(plan.factors or (1.0, 1.0, 1.0))

    def __torch_function__(
        self, func: Function, types: Sequence[type], args: Arguments = (), kwargs: Options | None = None
    ) -> Any:
        kind = find_kind(func)
        if kind.asks or (kind.is_free and kind.action is None and self.has_entered):
            return func(*args, **kwargs) if kwargs else func(*args)
        if kind.is_multi_head:
            with self:
                return multi_head_attention(*args, **(kwargs or {}))
        pattern, bit = 0, 1
        for value in args:
            if isinstance(value, Tensor):
                if value.requires_grad:
                    pattern |= bit
            elif isinstance(value, (list, tuple)) and has_dependent(value, requires_grad):
                pattern |= bit
            bit <<= 1
        if not kwargs:
            kwargs = {}
        elif any(isinstance(value, (Tensor, list, tuple)) for value in kwargs.values()):
            pattern |= find_pattern((), kwargs, requires_grad)
        if not pattern:
            if self.has_entered and not kind.writes and not self.watches:
                return func(*args, **kwargs)
            return self.run_beside(kind, func, args, kwargs)
        name = kind.name
        if kind.is_composite and self.switch is not None:
            with self:
                composed = COMPOSITE_OPERATIONS[name](Operation(name, func, args, kwargs))
            if composed is not None:
                return composed
        if kind.is_free:
            return func(*args, **kwargs) if kind.action is None else kind.action(Call(func, args, kwargs, self.switch))
        if self.at in self.turns:
            self.turn()
        if self.at >= len(self.steps):
            raise PlanDiffers(f"{name} comes after the last step")
        step = self.steps[self.at]
        if step.writes and step.name == name:
            pattern |= 1
            if self.guard is not None:
                self.guard.check(Operation(name, func, args, kwargs))
        if step.name != name or step.pattern != pattern:
            raise PlanDiffers(f"step {self.at} is {name} on {pattern:b}, not {step.name} on {step.pattern:b}")
        self.at += 1
        if step.part:
            return self.attention.run(step.part, func, args, kwargs)
        action = step.action
        result = func(*args, **kwargs) if action is None else action(Call(func, args, kwargs, self.switch))
        if self.keeps and self.at - 1 in self.keeps:
            self.kept[self.at - 1] = result
        if self.attends and self.at - 1 in self.attends:
            self.sites.append(self.attends[self.at - 1].read(Operation(name, func, args, kwargs), result))
        return result

    def turn(self) -> None:
        """At either end of a loop: whether a turn comes now, or what follows the loop."""
        for loop in self.turns[self.at]:
            if loop.is_running():
                self.at = loop.start
                return
        self.at = max((loop.stop for loop in self.turns[self.at]), default=self.at)

    def run_beside(self, kind: Kind, func: Function, args: Arguments, options: Options) -> Any:
        """An operation on what does not depend on the input."""
        if kind.writes and self.guard is not None:
            self.guard.check(Operation(kind.name, func, args, options))
        result = func(*args, **options)
        return result if self.has_entered else self.enter(kind.name, args, options, result)

    def enter(self, name: str, args: Arguments, options: Options, result: Tensor) -> Tensor:
        """Follow the embeddings until they are the explained input, which is then the leaf."""
        is_embedding = name in operations.EMBEDDINGS
        number = self.embeddings
        self.embeddings += is_embedding
        wanted = self.plan.entrance[self.entered]
        if self.entered == 0:
            if not is_embedding or number != self.plan.embedding:
                return result
        elif name != wanted or not any(value is self.summed for value in (*args, *options.values())):
            return result
        if self.entered == self.plan.words:
            is_written_over = any(map(operations.is_marked_in_place, self.plan.entrance))
            self.words = result.clone() if is_written_over else result
        self.entered, self.summed = self.entered + 1, result
        if self.entered < len(self.plan.entrance):
            return result
        self.has_entered, self.summed = True, None
        self.leaf = result.detach().requires_grad_()
        return self.leaf.clone() if self.plan.copies_input else self.leaf


@dataclass
class PlanRun:
    """A finished planned run and its graph."""

    leaf: Tensor
    output: Tensor
    returned: Any
    states: tuple[Tensor, ...] = ()  # between blocks
    mode: PlanMode | None = None
    holds: Tensor | None = None  # whether a repeated run went where the captured one did (repeats.py)
    words: Tensor | None = None  # the part of the leaf that comes from the ids
    sites: tuple[AttentionSite, ...] = ()  # one for each layer, if attention is kept
    keeps_graph: bool = False  # for another backward pass

    def find_slopes(
        self, score: Tensor, at: Sequence[Tensor], recipe: Recipe | None = None, *, is_last: bool = True
    ) -> tuple[Tensor, ...]:
        """Of a score of the output, at some of the tensors above; of a graph for both, gradients or by the recipe."""
        keeps = self.keeps_graph or not is_last
        if self.mode is not None and self.mode.switch is not None:
            self.mode.switch.recipe = recipe
        slopes = torch.autograd.grad(score.sum(), at, retain_graph=keeps, allow_unused=True)
        return tuple(torch.zeros_like(t) if s is None else s for t, s in zip(at, slopes, strict=True))


def run_planned(
    request: RunRequest,
    shadow: nn.Module,
    plan: BackwardPlan,
    positions: Positions | None,
    *,
    saving: Saving,
    mode_class: type[PlanMode] = PlanMode,
) -> PlanRun:
    """Run a shadow of the model by the plan.

    positions: of each example, the tokens at which the output is needed; None: at all.
    """
    model, encoded = request.model, request.encoded
    inputs = {name: leave_inference(tensor).detach() for name, tensor in encoded.inputs.items()}
    mode = mode_class(plan, WriteGuard(unwrap(model.module)), is_inside=not plan.entrance)
    if not plan.entrance:
        mode.leaf = leaf = inputs[encoded.main].clone().requires_grad_()
        inputs[encoded.main] = leaf.clone() if plan.copies_input else leaf
    subjects = {SITES[name].of or name for name in request.keep}
    keeps_states = "hidden" in subjects
    if keeps_states:
        mode.keeps = frozenset(plan.boundaries)
    if subjects & OF_ATTENTION:
        mode.attends = {one.step: one for one in plan.attention}
    with (
        refuse_unsuitable_inputs(model.module, encoded.inputs),
        use_device_of_model(inputs[encoded.main].device),
        prepare_language_model(shadow, encoded, positions),
        recompute_blocks(shadow, mode, saving) if saving else nullcontext(),
        reload_weights(shadow),
        mode,
    ):
        returned = shadow(**inputs)
    if mode.leaf is None or mode.at != len(plan.steps):
        raise PlanDiffers(f"the run ended after {mode.at} of {len(plan.steps)} steps")
    states = [mode.leaf if step == INPUT else mode.kept[step] for step in plan.boundaries] if keeps_states else []
    output = find_output(returned, shadow)
    return PlanRun(mode.leaf, output, returned, tuple(states), mode, words=mode.words, sites=tuple(mode.sites))


# --- blocks that are computed again ----------------------------------------------------------------------------------


@contextmanager
def recompute_blocks(shadow: nn.Module, mode: PlanMode, saving: Saving) -> Iterator[None]:
    """Let the blocks of a shadow keep nothing but their input."""
    modules = dict(shadow.named_modules())
    blocks = [modules[block.path] for block in mode.plan.blocks]
    before = [vars(module).get("forward") for module in blocks]
    for block, module in zip(mode.plan.blocks, blocks, strict=True):
        module.forward = RecomputedBlock(block, module.forward, mode, saving)
    try:
        yield
    finally:
        for module, forward in zip(blocks, before, strict=True):
            del module.forward
            if forward is not None:
                module.forward = forward


@dataclass(frozen=True)
class RecomputedBlock:
    """The forward of a block without a graph, which is built in the backward pass."""

    block: Block
    forward: Function
    mode: PlanMode
    saving: Saving

    def __call__(self, *args: Any, **options: Any) -> Any:
        dependent = [value for value in (*args, *options.values()) if isinstance(value, Tensor) and value.requires_grad]
        if len(dependent) != 1 or self.mode.at != self.block.start:
            return self.forward(*args, **options)
        state = dependent[0]
        run = self.leave_out(state, args, options)

        with without_interception():  # not an operation of the model
            before = state.detach()
        returned = run(before)
        first = returned if isinstance(returned, Tensor) else returned[0]
        with without_interception():
            made = BlockNode.apply(state, first, run, self)
        self.mode.at = self.block.stop
        if self.block.stop - 1 in self.mode.keeps:
            self.mode.kept[self.block.stop - 1] = made
        return made if isinstance(returned, Tensor) else (made, *returned[1:])

    def leave_out(self, state: Tensor, args: Arguments, options: Options) -> Function:
        """The forward as a function of the state alone, which it does not hold."""
        given, named = [None if value is state else value for value in args], dict(options)
        places = [position for position, value in enumerate(args) if value is state]
        names = [name for name, value in options.items() if value is state]
        named.update(dict.fromkeys(names))

        def run(start: Tensor) -> Any:
            filled = list(given)
            for place in places:
                filled[place] = start
            return self.forward(*filled, **{**named, **dict.fromkeys(names, start)})

        return run


class BlockContext(Context, Protocol):
    """What a block keeps for its backward pass."""

    run: Function
    recomputed: RecomputedBlock
    device: torch.device


class BlockNode(torch.autograd.Function):
    """Runs a block again when its slope arrives, by the plan from its first step on."""

    @staticmethod
    def forward(ctx: BlockContext, state: Tensor, result: Tensor, run: Function, recomputed: RecomputedBlock) -> Tensor:
        ctx.save_for_backward(state.cpu() if recomputed.saving is Saving.INPUTS else state)
        ctx.run, ctx.recomputed, ctx.device = run, recomputed, state.device
        return result.view_as(result)

    @staticmethod
    def backward(ctx: BlockContext, slope: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        block, mode = ctx.recomputed.block, ctx.recomputed.mode
        start = ctx.saved_tensors[0].to(ctx.device).detach().requires_grad_()
        again = PlanMode(mode.plan, mode.guard, start=block.start, is_inside=True, switch=mode.switch)
        with torch.enable_grad(), again:
            returned = ctx.run(start)
        if again.at != block.stop:
            raise PlanDiffers(f"{block.path} ended after step {again.at}, not {block.stop}")
        result = returned if isinstance(returned, Tensor) else returned[0]
        return torch.autograd.grad(result, start, slope)[0], None, None, None


# --- a language model without what is not needed ---------------------------------------------------------------------


@contextmanager
def prepare_language_model(
    shadow: nn.Module, encoded: EncodedBatch, positions: Positions | None = None
) -> Iterator[None]:
    """Inside, a shadow makes no cache of keys and values, and logits only at these tokens."""
    handles = leave_out_cache(shadow)
    head = find_output_embedding(shadow)
    if head is not None and positions is not None:
        length = encoded.inputs[encoded.main].size(1)
        handles.append(head.register_forward_pre_hook(lambda _, args: pick_states(args, positions, length)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def leave_out_cache(shadow: nn.Module) -> list[RemovableHandle]:
    config = getattr(unwrap(shadow), "config", None)
    base = getattr(shadow, "base_model", shadow)  # many heads pass on what they do not name
    if not hasattr(config, "use_cache") or not any(has_cache_option(type(one).forward) for one in (shadow, base)):
        return []
    add = lambda _, args, options: (args, {"use_cache": False, **options})  # noqa: E731
    return [shadow.register_forward_pre_hook(add, with_kwargs=True)]


@cache
def has_cache_option(forward: Function) -> bool:
    return "use_cache" in inspect.signature(forward).parameters


def find_output_embedding(shadow: nn.Module) -> nn.Module | None:
    """The layer that computes the logits of a Hugging Face language model."""
    find = getattr(unwrap(shadow), "get_output_embeddings", None)
    head = find() if callable(find) else None
    return head if isinstance(head, nn.Module) else None


def pick_states(args: Any, positions: Positions, length: int) -> Any:
    """The states at these tokens alone: [batch position channel]."""
    states = args[0] if args else None
    if not isinstance(states, Tensor) or states.dim() != 3 or states.shape[:2] != (len(positions), length):
        return None
    with without_interception():
        first, count = positions[0][0], len(positions[0])
        if all(one == list(range(first, first + count)) for one in positions):
            picked = states.narrow(1, first, count)
        else:
            index = torch.tensor(positions, device=states.device)
            picked = states.gather(1, index[..., None].expand(-1, -1, states.size(-1)))
    return (picked, *args[1:])
