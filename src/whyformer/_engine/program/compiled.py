"""A program compiled: operations entry by entry become few kernels, each with one pass over memory.

    fast = CompiledProgram(program, inputs)
    tensors = fast.run(inputs)                                                           as `program.run(inputs)`

Inductor, the compiler behind `torch.compile`, takes minutes for the thousands of steps of a program. The layers of a
model repeat the same steps, so a program is cut into *stretches*, one for each layer and pass, and each stretch that is
like another one (the same steps on tensors of the same shapes) is compiled once. Only what lies on both sides of a cut
is not fused.

Steps that write into a tensor become steps that make a new one where nothing else looks at that memory; a compiled
stretch writes only into what it has made itself. Fused kernels add in another order, so results differ by rounding.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.program.program import Program
from whyformer._engine.program.recorder import Slot, Step, aten, map_slots

SHORTEST = 20  # steps of a stretch: below, starting a compiled stretch costs more than it saves
LONGEST = 400  # steps of a stretch that repeats nothing: the time of the compiler grows faster than its length
Compiled = Callable[..., Sequence[Any]]


class NotCompiled(Exception):
    """This program cannot be compiled. The message says why."""


@dataclass
class Stretch:
    """Consecutive steps: what they take from before, and what later steps, or the caller, take from them."""

    steps: list[Step]
    takes: list[int] = field(default_factory=list)
    gives: list[int] = field(default_factory=list)
    frees: list[int] = field(default_factory=list)  # slots that nothing after this stretch uses
    compiled: Compiled | None = None


class CompiledProgram:
    """A program as a list of compiled stretches."""

    is_deferred = True  # whether Python would have read the same is the last result

    def __init__(self, program: Program, inputs: Mapping[str, Tensor]) -> None:
        if not program.has_fixed_sizes:
            raise NotCompiled("the size of a result depends on the inputs")
        self.program = program
        pure = PureSteps(program)
        self.results, self.flags = pure.results, pure.flags
        self.stretches = divide_steps(pure.steps, program.memory)
        self.connect()
        self.compile(inputs)

    def connect(self) -> None:
        """Find what each stretch takes and gives."""
        later = {*self.results, *self.flags}
        held = {*self.program.constants, *self.program.inputs.values()}
        for stretch in reversed(self.stretches):
            made = list(dict.fromkeys(n for step in stretch.steps for n in step.outputs if n is not None))
            used = dict.fromkeys(n for step in stretch.steps for n in step.operands)
            stretch.takes = [number for number in used if number not in set(made)]
            stretch.gives = [number for number in made if number in later]
            stretch.frees = [number for number in stretch.takes if number not in later and number not in held]
            later |= used.keys()

    def compile(self, inputs: Mapping[str, Tensor]) -> None:
        """Compile each kind of stretch when the first of its kind is reached: its operands are its examples."""
        known: dict[Any, Compiled] = {}
        for stretch, operands in self.walk(self.enter(inputs)):
            key = describe_stretch(stretch, operands)
            if key not in known:
                known[key] = compile_steps(stretch, operands)
            stretch.compiled = known[key]

    def enter(self, inputs: Mapping[str, Tensor]) -> dict[int, Any]:
        return {**self.program.constants, **{number: inputs[name] for name, number in self.program.inputs.items()}}

    def walk(self, values: dict[int, Any]) -> Iterator[tuple[Stretch, list[Tensor]]]:
        """Run the stretches one after the other; each may be compiled when it is its turn."""
        for stretch in self.stretches:
            operands = [values[number] for number in stretch.takes]
            for number in stretch.frees:
                del values[number]
            yield stretch, operands
            assert stretch.compiled is not None
            values.update(zip(stretch.gives, stretch.compiled(*operands), strict=True))

    @torch.no_grad()
    def run(self, inputs: Mapping[str, Tensor]) -> list[Any]:
        """What `Program.run` returns, and whether Python would have read the same."""
        values = self.enter(inputs)
        for _ in self.walk(values):
            pass
        results = [self.give(values, number) for number in self.results]
        return [*results, torch.stack([values[number] for number in self.flags]).all() if self.flags else None]

    def give(self, values: Mapping[int, Any], number: int) -> Any:
        """A constant is handed out as a copy: the caller may write into it."""
        return values[number].clone() if number in self.program.constants else values[number]


# --- steps without side effects --------------------------------------------------------------------------------------


class PureSteps:
    """The steps of a program with a new slot for each value that one of them writes, as far as nothing else looks at
    that memory later. What Python read becomes a flag: whether it would read the same."""

    def __init__(self, program: Program) -> None:
        self.memory = program.memory
        self.count = len(program.memory)
        self.renamed: dict[int, int] = {}
        self.flags: list[int] = []
        self.sharing: dict[int, list[int]] = {}  # memory -> its slots so far
        self.last_use = {number: at for at, step in enumerate(program.steps) for number in step.operands}
        self.last_use.update(dict.fromkeys(program.results, len(program.steps)))
        for number in (*program.constants, *program.inputs.values()):
            self.note_slot(number)
        self.steps = [self.change(step, at) for at, step in enumerate(program.steps)]
        self.results = [self.renamed.get(number, number) for number in program.results]

    def note_slot(self, number: int) -> None:
        self.sharing.setdefault(self.memory[number], []).append(number)

    def add_slot(self) -> int:
        self.count += 1
        return self.count - 1

    def change(self, step: Step, at: int) -> Step:
        changed = rename(step, self.renamed)
        for number in step.outputs:
            if number is not None:
                self.note_slot(number)
        if step.is_read:
            self.flags.append(self.add_slot())
            return replace(changed, outputs=[self.flags[-1]])
        pure = find_pure_function(step)
        if pure is None or self.is_seen_elsewhere(step, at):
            return changed
        kwargs = {name: value for name, value in changed.kwargs.items() if name != "out"}
        operands = list(dict.fromkeys(list_slots((changed.args, kwargs))))
        new = self.add_slot()
        self.renamed.update({number: new for number in (*step.writes, *step.outputs) if number is not None})
        return replace(changed, function=pure, kwargs=kwargs, operands=operands, outputs=[new], writes=())

    def is_seen_elsewhere(self, step: Step, at: int) -> bool:
        """Whether another slot with the memory that this step writes into is used later."""
        own = {*step.writes, *step.outputs}
        others = (n for n in self.sharing.get(self.memory[step.writes[0]], ()) if n not in own)
        return any(self.last_use.get(number, -1) > at for number in others)


def rename(step: Step, renamed: Mapping[int, int]) -> Step:
    change = lambda slot: Slot(renamed.get(slot.number, slot.number))  # noqa: E731
    return replace(
        step,
        args=map_slots(step.args, change),
        kwargs=map_slots(step.kwargs, change),
        operands=[renamed.get(number, number) for number in step.operands],
    )


def list_slots(value: Any) -> list[int]:
    found: list[int] = []
    map_slots(value, lambda slot: found.append(slot.number) or slot)  # type: ignore[func-returns-value]
    return found


def find_pure_function(step: Step) -> Any | None:
    """The operation that returns what this one writes: `add` for `add_`, `abs` for `abs(out=)`; None if there is
    none, or the step writes nothing."""
    if len(step.writes) != 1:
        return None
    schema, overload = step.function._schema, step.function._overloadname
    name = schema.name.removeprefix("aten::")
    if name.endswith("_") and not name.endswith("__"):
        return getattr(getattr(aten, name[:-1], None), overload, None)
    if overload.endswith("out"):
        packet = getattr(aten, name)
        given = [str(argument.type) for argument in schema.arguments if not argument.is_out]
        others = (getattr(packet, other) for other in packet.overloads())
        return next((one for one in others if [str(a.type) for a in one._schema.arguments] == given), None)
    return None


# --- stretches -------------------------------------------------------------------------------------------------------


def divide_steps(steps: Sequence[Step], memory: Sequence[int]) -> list[Stretch]:
    """Consecutive stretches, cut where repetitions begin and end, but never between a value and a write into it."""
    cuts = find_cuts([describe_kind(step) for step in steps])
    forbidden = find_forbidden_cuts(steps, memory)
    places = [0, *sorted(cut for cut in cuts if cut not in forbidden and 0 < cut < len(steps)), len(steps)]
    return [Stretch(list(steps[a:b])) for a, b in itertools.pairwise(places) if b > a]


def describe_kind(step: Step) -> Any:
    """What two steps have in common that do the same with other tensors."""
    return (str(step.function), repr(map_slots(step.args, lambda _: None)), step.is_read)


def find_forbidden_cuts(steps: Sequence[Step], memory: Sequence[int]) -> set[int]:
    """Places between the step that makes a value and one that writes into it, or looks at it after a write."""
    born: dict[int, int] = {}
    touched: dict[int, int] = {}  # memory that is written into -> its last use
    at_all = lambda number: memory[number] if number < len(memory) else ~number  # noqa: E731
    written = {at_all(number) for step in steps for number in step.writes}
    for at, step in enumerate(steps):
        for number in (*step.operands, *(n for n in step.outputs if n is not None)):
            own = at_all(number)
            if own in written:
                born.setdefault(own, at)
                touched[own] = at
    return {place for own, start in born.items() for place in range(start + 1, touched[own] + 1)}


def find_cuts(kinds: Sequence[Any]) -> set[int]:
    """Where to cut so that many stretches are alike: at every period of the longest repetition, then on both sides."""
    numbers: dict[Any, int] = {}
    codes = torch.tensor([numbers.setdefault(kind, len(numbers)) for kind in kinds])
    cuts: set[int] = set()
    pending = [(0, len(codes))]
    while pending:
        start, end = pending.pop()
        found = find_repetition(codes[start:end])
        if found is None:
            cuts |= {start, *range(start + LONGEST, end, LONGEST), end}
            continue
        first, period, times = found
        cuts |= {start + first + period * k for k in range(times + 1)}
        pending += [(start, start + first), (start + first + period * times, end)]
    return cuts


def find_repetition(codes: Tensor) -> tuple[int, int, int] | None:
    """(first step, period, times) of the repetition that covers most steps; of two that cover about as many, the one
    with the shorter period."""
    best: tuple[int, int, int] | None = None
    covered = 0.0
    for period in range(SHORTEST, len(codes) // 2 + 1):
        first, length = find_longest_run(codes[:-period] == codes[period:])
        times = length // period + 1
        if times >= 2 and period * times > 1.05 * covered:
            best, covered = (first, period, times), period * times
    return best


def find_longest_run(flags: Tensor) -> tuple[int, int]:
    """Where the longest run of True begins, and how long it is."""
    ends = torch.cat([torch.tensor([-1]), (~flags).nonzero().flatten(), torch.tensor([len(flags)])])
    lengths = ends.diff() - 1
    longest = int(lengths.argmax())
    return int(ends[longest]) + 1, int(lengths[longest])


# --- compiling -------------------------------------------------------------------------------------------------------


def describe_stretch(stretch: Stretch, operands: Sequence[Tensor]) -> Any:
    """What two stretches that can share their compiled code have in common."""
    local: dict[int, int] = {}

    def count(number: int | None) -> int | None:
        return None if number is None else local.setdefault(number, len(local))

    taken = [count(number) for number in stretch.takes]
    steps = [
        (
            str(step.function),
            repr(map_slots((step.args, step.kwargs), lambda slot: Slot(count(slot.number)))),  # type: ignore[arg-type]
            [count(number) for number in step.outputs],
            step.is_read,
            repr(step.reads),
        )
        for step in stretch.steps
    ]
    like = [(tuple(t.shape), t.stride(), t.dtype, t.device, is_aligned(t)) for t in operands]
    return repr((taken, steps, [count(number) for number in stretch.gives], like))


def is_aligned(tensor: Tensor) -> bool:
    """Compiled kernels read 16 bytes at a time where the first example allows it."""
    return tensor.data_ptr() % 16 == 0


def compile_steps(stretch: Stretch, operands: Sequence[Tensor]) -> Compiled:
    """The stretch as one compiled function of what it takes."""

    def run(*taken: Tensor) -> list[Any]:
        values: dict[int, Any] = dict(zip(stretch.takes, taken, strict=True))
        for step in stretch.steps:
            run_into(values, step)
        return [values[number] for number in stretch.gives]

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler advises TF32 and warns of its own old parts
        from torch._inductor.compile_fx import compile_fx  # loading the compiler takes seconds
        from torch.fx.experimental.proxy_tensor import make_fx

        return compile_fx(make_fx(run, tracing_mode="fake")(*operands), list(operands))  # type: ignore[return-value]


def run_into(values: dict[int, Any], step: Step) -> None:
    """Run one step and keep its results; for a read, whether Python would read the same."""
    args, kwargs = (map_slots(part, lambda slot: values[slot.number]) for part in (step.args, step.kwargs))
    if step.is_read:
        is_same = (args[0] == args[1]).all() if step.function is aten.equal.default else args[0].reshape(())
        values[step.outputs[0]] = is_same == step.reads  # type: ignore[index]
        return
    results = step.function(*args, **kwargs)
    for number, result in zip(step.outputs, results if step.is_tuple else (results,), strict=True):
        if number is not None:
            values[number] = result
