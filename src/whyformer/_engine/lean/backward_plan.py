"""A plan: what the rules of a recipe amount to at each operation of a model, learnt from one run on a short input.

The full engine (intercept.py) decides at every operation which rule it gets: whether a product has a gate, whether a
factor is the spread of a norm, whether two operands are functions of the same tensor. None of this depends on how long
the input is. So it is found out once, on a few tokens, and written down as a list of steps. An operation of which
nothing passes on relevance, such as the mean of squares in a norm, is *dead*: later runs compute it without a graph.

Views and casts pass the true gradient under every recipe that sends slopes. They are no steps, so that a model may call
more or fewer of them, as the attention of transformers does where there is a mask.

A plan has no tensors and does not depend on the weights. Where a rule is none of the actions of lean_actions.py, or
the model writes in place into what depends on the input, there is no plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from whyformer._engine.layout import find_block_calls, find_blocks
from whyformer._engine.lean.actions import (
    CONSTANT_SPREADS,
    Action,
    Arguments,
    DetachOperands,
    Function,
    KeepStatistic,
    Options,
    ScaleAttention,
    ScaleResult,
    TakeSecant,
    join,
    negate,
    run_without_graph,
)
from whyformer._engine.relevance import Recipe, calls, find_factors, rules, slopes
from whyformer._engine.run import Intercept, Run, find_unattended
from whyformer._engine.tracing import Operation, find_tensors, is_embedding_sum, operations
from whyformer.errors import UnsupportedModel

INPUT = -1  # instead of the number of a step: the explained input
MOST_ARGUMENTS = 32  # by position; those by name follow in the bits of a pattern


CASTS = frozenset("contiguous clone to float double half bfloat16 type type_as dropout alias".split())
FREE = operations.VIEWS | CASTS  # no steps
ASKING = operations.QUERIES | frozenset(
    "requires_grad is_leaf grad_fn layout is_contiguous stride storage_offset element_size itemsize nbytes get_device "
    "is_inference is_sparse is_meta is_nested is_quantized is_cpu".split()
)  # give no tensors


class NotPlannable(Exception):
    """The relevance pass of this model under this recipe is no gradient with a few factors."""


@dataclass(frozen=True)
class PlanStep:
    """One operation on something that depends on the input, and what it does; None: it just runs."""

    name: str
    pattern: int  # which arguments depend on the input, as bits
    action: Action | None = None


@dataclass(frozen=True)
class BackwardPlan:
    """The steps of a model under a recipe."""

    recipe: Recipe
    steps: tuple[PlanStep, ...]
    embedding: int  # the explained ids enter the embedding that is called so many times after the first
    entrance: tuple[str, ...]  # what is done with embeddings until they are the explained input
    boundaries: tuple[int, ...] = ()  # the steps whose results are between blocks; INPUT; () if that is not known
    unattended: tuple[bool, ...] = ()  # for each block, whether it mixes tokens without attention
    blocks: tuple["Block", ...] = ()  # those that can be computed again
    bytes_per_token: float = 0.0  # what a run keeps for its backward pass
    bytes_again: float = 0.0  # about what one keeps that computes blocks again


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


def decide(recipe: Recipe, operation: Operation, call: calls.OperationCall, operands: Sequence[Tensor]) -> Decision:
    """What the recipe's rule for this call amounts to."""
    rule = recipe.rules[call.kind]
    everything = tuple(operands)
    if call.beside_constants is not None:
        raise NotPlannable(f"{operation.name} has operands that are held constant")
    if rule in PASSING:
        return Decision(everything, PASSING_ACTIONS.get(operation.name))
    if rule is slopes.hold_constant:
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
    results: list[Tensor] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    is_composite: bool = False  # it consists of others


class PlanRecorder(Intercept):
    """Interception that takes notes of the operations that the model itself calls."""

    recipe: Recipe | None = None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.drafts: list[Draft] = []
        self.depth = 0
        self.obstacle = ""
        self.embeddings = 0
        self.lineage: list[tuple[str, Tensor]] = []  # operations that lead to the explained input
        self.first_embedding = 0
        self.inside: dict[int, tuple[int, int]] = {}  # number of a module call -> the drafts in it

    def __torch_function__(
        self, func: Function, types: Sequence[type], args: Arguments = (), kwargs: Options | None = None
    ) -> Any:
        name = operations.name_of(func)
        if name in ASKING or self.depth:
            if self.depth and self.drafts:
                self.drafts[-1].is_composite = self.drafts[-1].is_composite or name not in ASKING
            return super().__torch_function__(func, types, args, kwargs)
        operation = Operation(name, func, args, kwargs or {})
        draft = Draft(operation)
        if any(map(is_followed, operation.given)):
            draft.operation = operation.map_arguments(leave_out_constant)
            if operation.is_in_place:
                self.obstacle = self.obstacle or f"{self.path} writes in place ({name})"
            self.drafts.append(draft)
        number = self.embeddings
        self.embeddings += name in operations.EMBEDDINGS
        self.depth += 1
        try:
            result = super().__torch_function__(func, types, args, kwargs)
        finally:
            self.depth -= 1
        draft.results = list(find_tensors([result]))
        if isinstance(result, Tensor) and is_embedding_sum(result):
            if not self.lineage:
                self.first_embedding = number
            if all(result is not known for _, known in self.lineage):
                self.lineage.append((name, result))
        return result

    def note_rule(self, operation: Operation, call: calls.OperationCall, operands: list[Tensor]) -> None:
        if self.obstacle or self.recipe is None:
            return
        try:
            self.drafts[-1].decisions.append(decide(self.recipe, operation, call, operands))
        except NotPlannable as reason:
            self.obstacle = f"{self.path}: {reason}"

    def note_constant(self, operation: Operation) -> None:
        self.obstacle = self.obstacle or f"{self.path} holds {operation.name} constant"

    def enter(self, path: str, given: Tensor | None) -> None:
        super().enter(path, given)
        self.inside[self.open_calls[-1].number] = (len(self.drafts), len(self.drafts))

    def leave(self, result: Tensor | None) -> None:
        number = self.open_calls[-1].number
        self.inside[number] = (self.inside[number][0], len(self.drafts))
        super().leave(result)

    def release(self) -> None:
        super().release()
        self.drafts, self.lineage = [], []


def is_followed(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.requires_grad or is_embedding_sum(value))


def leave_out_constant(value: Any) -> Any:
    """Weights are not kept: those of an offloaded model would be there all at once."""
    return value if is_followed(value) or not isinstance(value, Tensor) else None


def make_plan_recorder(recipe: Recipe) -> type[PlanRecorder]:
    return type("RecipePlanRecorder", (PlanRecorder,), {"recipe": recipe})


def write_plan(run: Run, recipe: Recipe) -> BackwardPlan:
    """The plan of a finished run of a PlanRecorder; raises NotPlannable."""
    mode = run.mode
    assert isinstance(mode, PlanRecorder)
    if mode.obstacle:
        raise NotPlannable(mode.obstacle)
    if mode.written:
        raise NotPlannable("the model writes in place")
    sources = [position for position, (_, tensor) in enumerate(mode.lineage) if hasattr(tensor, "_whyformer_leaf")]
    if len(sources) != 1:
        raise NotPlannable("where the input enters is not known")
    source = mode.lineage[sources[0]][1]
    writer = PlanWriter(mode.drafts, source, run.output)
    steps = writer.write()
    names = tuple(name for name, _ in mode.lineage[: sources[0] + 1])
    between = writer.find_boundaries(mode)
    return BackwardPlan(recipe, steps, mode.first_embedding, names, *between, writer.find_blocks(mode))


class PlanWriter:
    """From notes to steps: what is alive, and what needs a graph."""

    def __init__(self, drafts: Sequence[Draft], source: Tensor, output: Tensor) -> None:
        self.drafts, self.source, self.output = drafts, source, output
        self.entered = id(source._whyformer_leaf)  # type: ignore[attr-defined]
        self.before: list[int] = []  # how many steps come before each draft
        self.made_by = {id(source): INPUT}  # tensor -> the step that it is the result of

    def identify(self, tensor: Tensor) -> int:
        """The identity of a tensor; the copy of the input that the model got is the input."""
        return id(self.source) if id(tensor) == self.entered else id(tensor)

    def write(self) -> tuple[PlanStep, ...]:
        """What each operation on something that needs a graph does."""
        receiving = [self.find_receiving(draft) for draft in self.drafts]
        is_alive = self.find_alive(receiving)
        graph = {id(self.source)}
        steps: list[PlanStep] = []
        for draft, gets, alive in zip(self.drafts, receiving, is_alive, strict=True):
            self.before.append(len(steps))
            operation = draft.operation
            pattern = find_pattern(operation.args, operation.kwargs, lambda tensor: self.identify(tensor) in graph)
            if not pattern:
                continue
            if operation.name in FREE:
                graph.update(id(t) for t in draft.results if t.requires_grad)
                continue
            if alive:
                made = {id(t) for t in draft.results if t.requires_grad} - self.made_by.keys()
                self.made_by |= dict.fromkeys(made, len(steps))
            steps.append(PlanStep(operation.name, pattern, self.make_action(draft, gets, graph, alive)))
            graph.update(made if alive else ())
        self.before.append(len(steps))
        return tuple(steps)

    def find_boundaries(self, mode: PlanRecorder) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """The steps that make the states between blocks, and which blocks mix tokens; () if they are not known."""
        try:
            states = find_blocks(mode).states
        except UnsupportedModel:
            return (), ()
        found = [self.made_by.get(self.identify(state)) for state in states]
        if None in found:
            return (), ()
        return tuple(step for step in found if step is not None), find_unattended(mode, states)

    def find_blocks(self, mode: PlanRecorder) -> tuple[Block, ...]:
        """The blocks, if each is a module that is called once; else ()."""
        try:
            calls = find_block_calls(mode)
        except UnsupportedModel:
            return ()
        found = [Block(call.path, *(self.before[end] for end in mode.inside[call.number])) for call in calls]
        paths = [call.path for call in mode.calls]
        return tuple(found) if all(paths.count(block.path) == 1 for block in found) else ()

    def find_receiving(self, draft: Draft) -> set[int]:
        """The operands that get relevance from the result."""
        dependent = {self.identify(t) for t in draft.operation.given if t.requires_grad or t is self.source}
        if not draft.decisions:
            return dependent
        if draft.operation.name in FREE and any(one.action is not None for one in draft.decisions):
            raise NotPlannable(f"{draft.operation.name} has a rule of its own")
        if draft.is_composite:
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
        arrived, alive = {self.identify(self.output)}, [False] * len(self.drafts)
        for position in reversed(range(len(self.drafts))):
            if any(id(t) in arrived for t in self.drafts[position].results):
                alive[position] = True
                arrived |= receiving[position]
        if id(self.source) not in arrived:
            raise NotPlannable("nothing arrives at the input")
        return alive

    def make_action(self, draft: Draft, receiving: set[int], graph: set[int], alive: bool) -> Action | None:
        operation = draft.operation
        if not alive:
            return run_without_graph if any(t.requires_grad for t in draft.results) else None
        action = draft.decisions[0].action if draft.decisions and not draft.is_composite else None

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
