"""A plan: what the rules of a recipe amount to at each operation of a model, learnt from one run of the full engine.

The full engine (intercept.py) decides at every operation which rule it gets: whether a product has a gate, whether a
factor is the spread of a norm, whether two operands are functions of the same tensor. None of this depends on how long
the input is. So it is found out once, and written down as a list of steps. An operation of which
nothing passes on relevance, such as the mean of squares in a norm, is *dead*: later runs compute it without a graph.

Views and casts pass the true gradient under every recipe that sends slopes. They are no steps, so that a model may call
more or fewer of them, as the attention of transformers does where there is a mask.

A model may write in place into tensors that it made itself (`h += x`, `index_add_`, `out[i] = x`): autograd follows
that. The recorder runs such writes out of place (in_place.py), so tensors that share written memory are one tensor to
the plan. Writes into tensors of the model itself are another matter (model_writes.py): a shadow has copies of them.

A plan has no tensors and does not depend on the weights. Where a rule is none of the actions of actions.py, there is no
plan. Without a recipe all steps pass the true gradient; the plan then says which of them are attention, and which
results are between blocks.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from whyformer._engine.layout.blocks import find_block_calls, find_blocks
from whyformer._engine.plan.actions import (
    CONSTANT_SPREADS,
    Action,
    ApplyRule,
    Arguments,
    CopyResult,
    DetachOperands,
    Function,
    KeepStatistic,
    Options,
    ScaleAttention,
    ScaleResult,
    TakeSecant,
    WriteResult,
    join,
    negate,
    run_without_graph,
)
from whyformer._engine.plan.deferred_attention import Use, find_deferrable
from whyformer._engine.plan.facts import AttentionStep, ModelFacts, NotPlannable, describe_site
from whyformer._engine.plan.loops import Loop, Place, Spot, find_loops, find_place, fold, read_stack
from whyformer._engine.relevance import calls, rules, slopes
from whyformer._engine.relevance.node import Factors, find_factors
from whyformer._engine.relevance.recipes import Recipe
from whyformer._engine.run.forward import Run
from whyformer._engine.run.intercept import Intercept, ModuleCall
from whyformer._engine.run.model_memory import learnt
from whyformer._engine.run.returned import iterate_tensors
from whyformer._engine.run.token_mixing import find_unattended
from whyformer._engine.tracing import operations
from whyformer._engine.tracing.attention import find_layer_sites
from whyformer._engine.tracing.composites import COMPOSITE_OPERATIONS
from whyformer._engine.tracing.operations import Operation, find_tensors
from whyformer._engine.tracing.provenance import is_embedding_sum
from whyformer.errors import UnsupportedModel

Turns = list[tuple[Place, list[int]]]  # loops, and the drafts at which their turns start
INPUT = -1  # instead of the number of a step: the explained input
OF_A_HOOK = 2  # calls between that of a module and what its hook asks for
MULTI_HEAD = "multi_head_attention_forward"
MOST_ARGUMENTS = 32  # by position; those by name follow in the bits of a pattern


CASTS = frozenset("contiguous clone to float double half bfloat16 type type_as dropout alias".split())
FREE = operations.VIEWS | CASTS  # no steps
SHAPED_LIKE = 0b10  # the pattern of `x.type_as(y)` and the like if only y depends on the input
ASKING = operations.QUERIES | frozenset(
    "requires_grad is_leaf grad_fn layout is_contiguous stride storage_offset element_size itemsize nbytes get_device "
    "is_inference is_sparse is_meta is_nested is_quantized is_cpu".split()
)  # give no tensors


@dataclass(frozen=True)
class PlanStep:
    """One operation on something that depends on the input, and what it does; None: it just runs."""

    name: str
    pattern: int  # which arguments depend on the input, as bits; what is written into counts as one that does
    action: Action | None = None
    writes: bool = False  # into its first argument
    part: str = ""  # of attention that is run as one fused call (deferred_attention.py)


@dataclass(frozen=True)
class BackwardPlan:
    """The steps of a model under a recipe."""

    recipe: Recipe | None  # None: true gradients
    steps: tuple[PlanStep, ...]
    facts: ModelFacts
    embedding: int  # the explained ids enter the embedding that is called so many times after the first
    entrance: tuple[str, ...]  # what is done with embeddings until they are the explained input; (): it is the input
    words: int = 0  # which of these results is the part that comes from the ids themselves
    boundaries: tuple[int, ...] = ()  # the steps whose results are between blocks; INPUT; () if that is not known
    unattended: tuple[bool, ...] = ()  # for each block, whether it mixes tokens without attention
    blocks: tuple["Block", ...] = ()  # those that can be computed again
    bytes_per_token: float = 0.0  # what a run keeps for its backward pass
    bytes_again: float = 0.0  # about what one keeps that computes blocks again
    bytes_of_block: float = 0.0  # about what one block takes in its backward pass
    restores: bool = False  # a run would keep weights as restored from fewer bits
    copies_input: bool = False  # the model writes into what it got
    factors: Factors | None = None  # of attention that is run as one fused call
    loops: tuple[Loop, ...] = ()  # that run as often as the input asks for
    attention: tuple[AttentionStep, ...] = ()  # one for each layer; () if that is not known
    is_switched: bool = False  # one graph is for gradients and for relevance, with rules as nodes
    narrowest: torch.dtype = torch.float32  # in which the model computes; some go down from 64 bits to 32 for a moment


@dataclass(frozen=True)
class Block:
    """A module that is called once: its steps, from `start` up to `stop`."""

    path: str
    start: int
    stop: int


def find_pattern(args: Arguments, options: Options, depends: Callable[[Tensor], bool]) -> int:
    """Which arguments depend on the input, as bits; `depends` tells for a tensor."""
    named = ((MOST_ARGUMENTS + position, options[name]) for position, name in enumerate(sorted(options)))
    return sum(1 << position for position, value in (*enumerate(args), *named) if has_dependent(value, depends))


def has_dependent(value: Any, depends: Callable[[Tensor], bool]) -> bool:
    if isinstance(value, Tensor):
        return bool(depends(value))
    return isinstance(value, (list, tuple)) and any(has_dependent(one, depends) for one in value)


# --- what a rule amounts to ------------------------------------------------------------------------------------------

PASSING: frozenset[calls.Rule] = frozenset(
    (
        slopes.pass_gradient,
        slopes.pass_linear_slope,
        slopes.pass_bias_slope,
        slopes.pass_joined_slope,
        slopes.pass_addition_slope,
        slopes.pass_mask_slope,
        slopes.pass_tangent,
        slopes.expand_softmax,
    )
)


# They pass the gradient, in fewer steps
PASSING_ACTIONS: dict[str, Action] = {"neg": negate, "cat": join}


@dataclass(frozen=True)
class Decision:
    """What one call of a rule does: the operands that get something, and how."""

    receiving: tuple[Tensor, ...]
    action: Action | None = None


def decide(
    recipe: Recipe, operation: Operation, call: calls.OperationCall, operands: Sequence[Tensor], *, is_switched: bool
) -> Decision:
    """What the recipe's rule for this call amounts to."""
    rule = recipe.rules[call.kind]
    everything = tuple(operands)
    if rule in PASSING:
        return Decision(everything, PASSING_ACTIONS.get(operation.name))
    if rule is slopes.hold_constant:
        if isinstance(call, calls.SoftmaxCall) and not call.is_plain:
            raise NotPlannable("the model takes the logarithm of a softmax")
        return Decision(())
    if rule is rules.share_attention and isinstance(call, calls.AttentionCall):
        factors = find_factors(recipe, call.carrying)
        if factors is None:
            raise NotPlannable(f"attention is propagated step by step under {recipe.name}")
        return Decision(tuple(x for x, f in zip(operands, factors, strict=True) if f), ScaleAttention(factors))
    if isinstance(call, calls.ActivationCall) and rule is slopes.pass_secant:
        return decide_secant(recipe, operation, everything)
    if isinstance(call, calls.NormCall) and rule is slopes.hold_norm_spread:
        if call.linearised is None:
            return Decision(everything)
        if operation.name not in CONSTANT_SPREADS or len(operation.argument(1, "normalized_shape")) != 1:
            raise NotPlannable(f"{operation.name} is no norm of each token by itself")
        return Decision(everything, CONSTANT_SPREADS[operation.name])
    if isinstance(call, calls.NormaliseCall) and rule is slopes.hold_statistic:
        if call.linearised is None:
            return Decision(everything)
        position = next((position for position, value in enumerate(operation.args) if value is everything[0]), None)
        is_product = operation.name in operations.MULTIPLICATIONS - operations.DIVISIONS and len(operation.args) == 2
        return Decision(everything[:1], KeepStatistic(position) if is_product and position is not None else None)
    if isinstance(call, calls.ProductCall):
        return decide_product(rule, operation, call, everything)
    if isinstance(call, calls.ScaleCall) and rule is slopes.share_rotation:
        return Decision(everything, None if call.positions is None else ScaleResult(0.5))
    if is_switched and isinstance(call, calls.LinearCall) and call.beside_constants is None:
        return Decision(everything, ApplyRule(call.kind))
    raise NotPlannable(f"the rule {rule.__name__} for {operation.name} is no gradient with a factor")


def decide_secant(recipe: Recipe, operation: Operation, operands: tuple[Tensor, ...]) -> Decision:
    """The first operand gets all. Where the operation is a product with it, its gradient is the secant."""
    x = operands[0]
    position = next((position for position, value in enumerate(operation.args) if value is x), None)
    if position is None:
        raise NotPlannable(f"{operation.name} is not called with its operand as an argument by position")
    multiplies = operation.name in operations.MULTIPLICATIONS - operations.DIVISIONS
    divides = operation.name in operations.DIVISIONS and position == 0 and not operation.name.startswith("r")
    if len(operands) == 2 and (multiplies or divides):
        return Decision((x,))
    is_alone = len(operation.given) == 1
    return Decision((x,), TakeSecant(position, recipe.stabiliser, is_alone))


def decide_product(
    rule: calls.Rule, operation: Operation, call: calls.ProductCall, operands: tuple[Tensor, ...]
) -> Decision:
    gate = call.gate
    is_held = rule is slopes.hold_gates or (rule is slopes.hold_attention and gate is not None and gate.is_attention)
    if rule not in (slopes.halve_product, slopes.hold_gates, slopes.hold_attention):
        raise NotPlannable(f"the rule {rule.__name__} for {operation.name} is no gradient with a factor")
    if is_held and gate is not None and len(operands) == 2:
        return Decision(tuple(x for position, x in enumerate(operands) if position != gate.operand))
    if len(operands) == 1:
        return Decision(operands)
    is_product = operation.name in operations.MULTIPLICATIONS and len(operation.args) == 2
    return Decision(operands, ScaleResult(1 / len(operands), is_product))


# --- taking notes ----------------------------------------------------------------------------------------------------


@dataclass
class Draft:
    """One operation of the run that is learnt from. Tensors stay alive, so that their identities do."""

    operation: Operation
    dependent: list[Tensor]  # of its arguments, those that depend on the input
    results: list[Tensor] = field(default_factory=list)  # those that do
    decisions: list[Decision] = field(default_factory=list)
    is_composite: bool = False  # it consists of others
    stack: tuple[Spot, ...] = ()  # where it was called

    @property
    def target(self) -> Tensor | None:
        """What it writes into."""
        return self.operation.args[0] if self.operation.is_in_place else None


class PlanRecorder(Intercept):
    """Interception that takes notes of the operations that the model itself calls."""

    recipe: Recipe | None = None
    is_switched = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.drafts: list[Draft] = []
        self.current: Draft | None = None
        self.depth = 0
        self.obstacle = ""
        self.embeddings = 0
        self.lineage: list[tuple[str, Tensor]] = []  # operations that lead to the explained input
        self.first_embedding = 0
        self.inside: dict[int, tuple[int, int]] = {}  # number of a module call -> the drafts in it
        self.depths: dict[int, int] = {}  # number of a module call -> how many calls were running before it
        self.read: dict[int, tuple[Tensor, Tensor]] = {}  # what was read from written memory, and the tensor it is in

    def __torch_function__(
        self, func: Function, types: Sequence[type], args: Arguments = (), kwargs: Options | None = None
    ) -> Any:
        name = operations.name_of(func)
        if name in ASKING or self.depth:
            if self.current is not None and name not in ASKING and not self.written.is_reading:
                self.current.is_composite = True
            return super().__torch_function__(func, types, args, kwargs)
        if name == MULTI_HEAD:  # spelt out in planned runs too
            return super().__torch_function__(func, types, args, kwargs)
        operation = Operation(name, func, args, kwargs or {})
        if self.is_switched and name in COMPOSITE_OPERATIONS and operation.dependent:
            with self:
                composed = COMPOSITE_OPERATIONS[name](operation)
            if composed is not None:
                return composed
        draft = Draft(operation, [t for t in operation.given if self.depends(t)])
        if draft.dependent:
            draft.operation = leave_out_weights(operation, draft.dependent)
            draft.stack = read_stack()
            self.drafts.append(draft)
        number = self.embeddings
        self.embeddings += name in operations.EMBEDDINGS
        with self.go_deeper(draft):
            result = super().__torch_function__(func, types, args, kwargs)
        if draft.dependent and self.leaf is None:  # of the entrance, which may be written in place
            self.drafts.pop()
        draft.results = [t for t in find_tensors([result]) if self.depends(t)]
        if isinstance(result, Tensor) and is_embedding_sum(result):
            if not self.lineage:
                self.first_embedding = number
            if all(result is not known for _, known in self.lineage):
                self.lineage.append((name, result))
        return result

    @contextmanager
    def go_deeper(self, draft: Draft | None) -> Iterator[None]:
        """Inside, operations are no steps of the model, but belong to one."""
        before, self.current, self.depth = self.current, draft, self.depth + 1
        try:
            yield
        finally:
            self.current, self.depth = before, self.depth - 1

    def depends(self, tensor: Tensor) -> bool:
        """Whether it depends on the input, or something was written into it that does."""
        return tensor.requires_grad or is_embedding_sum(tensor) or self.written.covers(tensor)

    def resolve(self, value: Any) -> Any:
        with self.go_deeper(None):
            found = super().resolve(value)
        if found is not value:
            self.read[id(found)] = (found, value)
        return found

    def note_rule(self, operation: Operation, call: calls.OperationCall, operands: list[Tensor]) -> None:
        if self.obstacle or self.recipe is None or self.current is None or self.written.is_reading:
            return
        try:
            decision = decide(self.recipe, operation, call, operands, is_switched=self.is_switched)
        except NotPlannable as reason:
            self.obstacle = f"{self.path}: {reason}"
            return
        if self.current.target is not None:
            decision = replace(decision, receiving=tuple(self.find_given(t, operation) for t in decision.receiving))
        self.current.decisions.append(decision)

    def find_given(self, tensor: Tensor, operation: Operation) -> Tensor:
        """The argument of the write that is going on which is this operand of what runs in its place."""
        assert self.current is not None
        for ours, theirs in zip(self.current.operation.args, operation.args, strict=False):
            if theirs is tensor and isinstance(ours, Tensor):
                return ours
        return tensor

    def note_constant(self, operation: Operation) -> None:
        """Recurrences: decays and transition systems get nothing (tracing/composites.py)."""
        if self.current is not None and not self.written.is_reading:
            self.current.decisions.append(Decision(()))

    def enter(self, path: str, given: Tensor | None) -> None:
        with self.go_deeper(None):
            super().enter(path, given)
        self.inside[self.open_calls[-1].number] = (len(self.drafts), len(self.drafts))
        self.depths[self.open_calls[-1].number] = len(read_stack()) - OF_A_HOOK

    def leave(self, result: Tensor | None) -> None:
        number = self.open_calls[-1].number
        self.inside[number] = (self.inside[number][0], len(self.drafts))
        with self.go_deeper(None):
            super().leave(result)

    def release(self) -> None:
        super().release()
        self.drafts, self.lineage, self.read = [], [], {}


def leave_out_weights(operation: Operation, dependent: Sequence[Tensor]) -> Operation:
    """The operation as a draft keeps it: the weights of an offloaded model would be there all at once."""
    is_linear = operation.name == "linear"  # of which a weight may be restored from codes

    def is_weight(value: Any) -> bool:
        return isinstance(value, nn.Parameter if not is_linear else Tensor) and all(value is not t for t in dependent)

    return operation.map_arguments(lambda value: None if is_weight(value) else value)


def make_plan_recorder(recipe: Recipe | None, *, is_switched: bool) -> type[PlanRecorder]:
    return type("RecipePlanRecorder", (PlanRecorder,), {"recipe": recipe, "is_switched": is_switched})


def write_plan(run: Run, recipe: Recipe | None, facts: ModelFacts) -> BackwardPlan:
    """The plan of a finished run of a PlanRecorder; raises NotPlannable."""
    mode = run.mode
    assert isinstance(mode, PlanRecorder)
    if mode.obstacle:
        raise NotPlannable(mode.obstacle)
    source, entrance, words = find_entrance(mode)
    factors = None if recipe is None or mode.is_switched else find_factors(recipe, (True, True, True))
    writer = PlanWriter(mode, source, list(iterate_tensors(run.returned)), defers=factors is not None)
    turns = writer.find_turns(mode)
    writer.write(turns)
    writer.fold_loops(turns)
    return BackwardPlan(
        recipe,
        tuple(writer.steps),
        facts,
        mode.first_embedding,
        entrance,
        words,
        *writer.find_boundaries(mode),
        writer.find_blocks(mode),
        copies_input=writer.memory.covers(source),
        factors=factors,
        loops=writer.loops,
        attention=writer.find_attention(mode),
        is_switched=mode.is_switched,
        narrowest=find_narrowest(mode.drafts),
    )


def find_entrance(mode: PlanRecorder) -> tuple[Tensor, tuple[str, ...], int]:
    """The explained input as the model got it, what was done with embeddings until then, and where the words are."""
    if not mode.lineage and mode.entered is not None:  # the input itself, such as pixels
        return mode.entered, (), 0
    sources = [position for position, (_, tensor) in enumerate(mode.lineage) if hasattr(tensor, "_whyformer_leaf")]
    if len(sources) != 1:
        raise NotPlannable("where the input enters is not known")
    steps = mode.lineage[: sources[0] + 1]
    words = [number for number, (_, tensor) in enumerate(steps) if is_equal(tensor, mode.words)]
    if not words:
        raise NotPlannable("which part of the input comes from the ids is not known")
    return steps[-1][1], tuple(name for name, _ in steps), words[0]


def is_equal(tensor: Tensor, other: Tensor | None) -> bool:
    return other is not None and tensor.shape == other.shape and torch.equal(tensor, other)


def find_narrowest(drafts: Sequence[Draft]) -> torch.dtype:
    found = {t.dtype for draft in drafts for t in draft.results if t.is_floating_point()}
    return min(found, key=lambda dtype: dtype.itemsize, default=torch.float32)


class WrittenMemory:
    """Which tensors share memory that the model writes into: to the plan they are one, also where a write that ran
    out of place left a tensor of its own."""

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.groups: dict[int, int] = {}  # address of a storage -> a number for all that share what is written
        for draft in drafts:
            if draft.target is not None:
                self.join([draft.target, *draft.results])

    def join(self, tensors: Sequence[Tensor]) -> None:
        addresses = [find_address(tensor) for tensor in tensors]
        known = {self.groups[address] for address in addresses if address in self.groups}
        number = min(known, default=-2 - len(self.groups))  # no identity of a tensor, and not INPUT
        self.groups |= {address: number for address, group in self.groups.items() if group in known}
        self.groups |= dict.fromkeys(addresses, number)

    def covers(self, tensor: Tensor) -> bool:
        return find_address(tensor) in self.groups

    def identify(self, tensor: Tensor) -> int:
        return self.groups.get(find_address(tensor), id(tensor)) if self.groups else id(tensor)


def find_address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def list_block_calls(mode: PlanRecorder) -> Sequence[ModuleCall]:
    """The calls of blocks, of those without attention too: the other modules of a list; () if they are not known."""
    try:
        blocks = find_block_calls(mode)
    except UnsupportedModel:
        return ()
    lists = {path for call in blocks for path, _, number in [call.path.rpartition(".")] if number.isdigit()}
    known = {call.number for call in blocks}
    return [call for call in mode.calls if call.number in known or is_in_list(call.path, lists)]


def is_in_list(path: str, lists: Collection[str]) -> bool:
    parent, _, number = path.rpartition(".")
    return parent in lists and number.isdigit()


def renumber(step: int, renumbered: Sequence[int | None]) -> int | None:
    return INPUT if step == INPUT else renumbered[step]


def last_known(renumbered: Sequence[int | None], step: int) -> int:
    """What a step became, or the one after the loop that it was left out of."""
    return next(found for found in renumbered[step:] if found is not None)


def treat_last_turn_alike(is_alive: list[bool], turns: Turns) -> list[bool]:
    """The state that the last turn of a recurrence leaves is used by nobody: it is computed as in the others."""
    for _, starts in turns:
        lengths = [after - before for before, after in pairwise(starts)]
        if len(lengths) > 1 and lengths[-1] == lengths[-2]:
            for number in range(starts[-2], starts[-1]):
                is_alive[number] = is_alive[number] or is_alive[number - lengths[-1]]
    return is_alive


class PlanWriter:
    """From notes to steps: what is alive, and what needs a graph."""

    def __init__(self, mode: PlanRecorder, source: Tensor, outputs: Sequence[Tensor], *, defers: bool) -> None:
        self.drafts, self.source, self.outputs = mode.drafts, source, outputs
        self.is_switched = mode.is_switched
        self.read, self.memory = mode.read, WrittenMemory(mode.drafts)
        entered = getattr(source, "_whyformer_leaf", source)
        self.entered = id(entered)
        if self.memory.covers(entered):
            self.memory.join([source, entered])
        self.steps: list[PlanStep] = []
        self.loops: tuple[Loop, ...] = ()
        self.before: list[int] = []  # how many steps come before each draft
        self.made_by = {self.identify(source): INPUT}  # tensor -> the step that it is the result of
        self.parts = find_deferrable([self.describe(draft) for draft in self.drafts]) if defers else {}

    def describe(self, draft: Draft) -> Use:
        given, made = (tuple(map(self.identify, tensors)) for tensors in (draft.dependent, draft.results))
        return Use(draft.operation, given, made)

    def identify(self, tensor: Tensor) -> int:
        """The identity of a tensor; the copy of the input that the model got is the input."""
        if id(tensor) in self.read:
            tensor = self.read[id(tensor)][1]
        return self.memory.identify(self.source if id(tensor) == self.entered else tensor)

    def write(self, turns: Turns) -> None:
        """What each operation on something that needs a graph does."""
        receiving = [self.find_receiving(draft, number in self.parts) for number, draft in enumerate(self.drafts)]
        flowing = [{*map(self.identify, draft.dependent)} for draft in self.drafts] if self.is_switched else receiving
        is_alive = treat_last_turn_alike(self.find_alive(flowing), turns)
        graph, steps = {self.identify(self.source)}, self.steps

        def is_in_graph(tensor: Tensor) -> bool:
            return self.identify(tensor) in graph

        rows = zip(self.drafts, receiving, flowing, is_alive, strict=True)
        for number, (draft, gets, flows, alive) in enumerate(rows):
            self.before.append(len(steps))
            part = self.parts.get(number, "")
            operation, writes = draft.operation, draft.target is not None
            pattern = find_pattern(operation.args, operation.kwargs, is_in_graph)
            if not pattern:
                continue
            made = self.find_made(draft)
            if operation.name in FREE:
                graph |= made if pattern != SHAPED_LIKE or not operation.name.endswith("_as") else set()
                continue
            alive = alive and bool(flows & graph)
            action = None if part else write_result(draft, self.make_action(draft, gets, graph, alive))
            if alive and action is not None and not writes and any(map(self.memory.covers, draft.results)):
                action = CopyResult(action)
            if alive:
                self.made_by |= dict.fromkeys(made if writes else made - self.made_by.keys(), len(steps))
                graph |= made
            steps.append(PlanStep(operation.name, pattern | writes, action, writes, part))
        self.before.append(len(steps))

    def find_turns(self, mode: PlanRecorder) -> Turns:
        """The loops inside blocks, with the drafts that their turns start at."""
        found: Turns = []
        for call in list_block_calls(mode):  # one by one: a module may be called in a loop outside of it
            first, stop = mode.inside[call.number]
            places = [find_place(draft.stack, mode.depths[call.number]) for draft in self.drafts[first:stop]]
            found += [(place, [first + start for start in starts]) for place, starts in find_loops(places)]
        return found

    def fold_loops(self, turns: Turns) -> None:
        """Leave one turn of each loop inside a block that runs as often as the input asks for."""
        runs = [(place, [self.before[number] for number in starts]) for place, starts in turns]
        folded = fold(self.steps, [(place, starts) for place, starts in runs if starts[0] < starts[-1]])
        self.steps, self.loops = folded.steps, folded.loops
        self.made_by = {
            one: step for one, old in self.made_by.items() if (step := renumber(old, folded.renumbered)) is not None
        }
        self.before = [last_known(folded.renumbered, number) for number in self.before]

    def find_made(self, draft: Draft) -> set[int]:
        """What depends on the input after an operation."""
        written = [] if draft.target is None else [draft.target]
        return {self.identify(tensor) for tensor in (*draft.results, *written)}

    def find_boundaries(self, mode: PlanRecorder) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """The steps that make the states between blocks, and which blocks mix tokens; () if they are not known."""
        try:
            states = find_blocks(mode).states
        except UnsupportedModel:
            return (), ()
        found = [self.made_by.get(self.identify(state)) for state in states]
        if None in found or len({*found}) < len(found):  # or one is written over the other
            return (), ()
        return tuple(step for step in found if step is not None), find_unattended(mode, states)

    def find_attention(self, mode: PlanRecorder) -> tuple[AttentionStep, ...]:
        """The steps that compute attention, layer by layer; () if one of them is put together from several."""
        sites = find_layer_sites(mode.sites)
        found = [describe_site(site, self.made_by.get(self.identify(site.output))) for site in sites]
        steps = {one.step for one in found if one is not None}
        return tuple(one for one in found if one is not None) if len(steps) == len(found) else ()

    def find_blocks(self, mode: PlanRecorder) -> tuple[Block, ...]:
        """The blocks, if each is a module that is called once and leaves its input as it is; else ()."""
        calls = list_block_calls(mode)
        if mode.guard is not None and learnt(mode.guard.module).writes:  # it would write twice
            return ()
        if any(call.input is None or self.memory.covers(call.input) for call in calls):
            return ()
        found = [Block(call.path, *(self.before[end] for end in mode.inside[call.number])) for call in calls]
        paths = [call.path for call in mode.calls]
        return tuple(found) if all(paths.count(block.path) == 1 for block in found) else ()

    def find_receiving(self, draft: Draft, is_deferred: bool) -> set[int]:
        """The operands that get relevance from the result; a fused call holds constant itself what gets none."""
        dependent = {self.identify(t) for t in draft.dependent}
        if not draft.decisions or is_deferred:
            return dependent
        if draft.operation.name in FREE and any(one.action is not None for one in draft.decisions):
            raise NotPlannable(f"{draft.operation.name} has a rule of its own")
        is_plain_write = draft.target is not None and len(draft.decisions) == 1
        if draft.is_composite and not is_plain_write:
            passing = (None, *PASSING_ACTIONS.values())
            if any(one.action not in passing or not one.receiving for one in draft.decisions):
                raise NotPlannable(f"{draft.operation.name} consists of several operations")
            return dependent
        if len(draft.decisions) != 1:
            raise NotPlannable(f"{draft.operation.name} has several rules")
        got = {self.identify(t) for t in draft.decisions[0].receiving}
        if not got <= dependent:
            raise NotPlannable(f"{draft.operation.name} is the last of several steps")
        return got

    def find_alive(self, receiving: Sequence[set[int]]) -> list[bool]:
        """Whether relevance arrives at the result of each operation."""
        arrived, alive = {self.identify(output) for output in self.outputs}, [False] * len(self.drafts)
        for position in reversed(range(len(self.drafts))):
            if self.find_made(self.drafts[position]) & arrived:
                alive[position] = True
                arrived |= receiving[position]
        if self.identify(self.source) not in arrived:
            raise NotPlannable("nothing arrives at the input")
        return alive

    def make_action(self, draft: Draft, receiving: set[int], graph: set[int], alive: bool) -> Action | None:
        operation = draft.operation
        if not alive:
            return run_without_graph if draft.results or draft.target is not None else None
        action = draft.decisions[0].action if len(draft.decisions) == 1 else None
        if draft.is_composite and (draft.target is None or action in PASSING_ACTIONS.values()):
            action = None

        def is_held(tensor: Tensor) -> bool:
            return self.identify(tensor) in graph and self.identify(tensor) not in receiving

        held = [position for position, value in enumerate(operation.args) if has_dependent(value, is_held)]
        named = [name for name, value in operation.kwargs.items() if has_dependent(value, is_held)]
        if not (held or named) or isinstance(action, ScaleAttention):
            return action
        whole = (*(operation.args[position] for position in held), *(operation.kwargs[name] for name in named))
        if not all(isinstance(value, Tensor) for value in whole):
            raise NotPlannable(f"{operation.name} has a list of operands of which some are held constant")
        action = None if action is join else action
        is_bare = isinstance(action, TakeSecant)  # runs without a graph
        return action if is_bare else DetachOperands(tuple(held), tuple(named), action)


def write_result(draft: Draft, action: Action | None) -> Action | None:
    """The action of a write: one that is more than the write itself runs out of place, and its result is written."""
    if draft.target is None or action is None or action is run_without_graph:
        return action
    if isinstance(action, DetachOperands) and action.inner is None and 0 not in action.positions:
        return action
    return WriteResult(action)
