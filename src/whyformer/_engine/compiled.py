"""A program compiled: operations entry by entry become few kernels, each with one pass over memory.

    fast = CompiledProgram(program, inputs)
    tensors = fast.run(inputs)                                                           as `program.run(inputs)`

Inductor, the compiler behind `torch.compile`, takes minutes for the thousands of steps of a program. The layers of a
model repeat the same steps, so a program is cut into *stretches*, one for each layer and pass, and each stretch that is
like another one (the same steps on tensors of the same shapes) is compiled once. Only what lies on both sides of a cut
is not fused.

Steps that write into a tensor become steps that make a new one where nothing else looks at that memory; a compiled
stretch writes only into what it has made itself. The order of additions inside a fused kernel is another one, so results
differ by rounding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.program import Program
from whyformer._engine.recorder import Slot, Step, aten, map_slots

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

    def __init__(self, program: Program, inputs: Mapping[str, Tensor]) -> None:
        if not program.has_fixed_sizes:
            raise NotCompiled("the size of a result depends on the inputs")
        self.program = program
        self.steps = make_functional(program)
        self.flags = [slot for step in self.steps if step.is_read for slot in step.outputs if slot is not None]
        self.stretches = divide_steps(self.steps, program.memory)
        self.connect()
        self.compile(inputs)

    def connect(self) -> None:
        """Find what each stretch takes and gives."""
        later = {*self.program.results, *self.flags}
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
        """What `Program.run` returns. On a GPU that includes whether Python would have read the same; here always."""
        values = self.enter(inputs)
        for _ in self.walk(values):
            pass
        results = [self.give(values, number) for number in self.program.results]
        return [*results, torch.stack([values[number] for number in self.flags]).all() if self.flags else None]

    def give(self, values: Mapping[int, Any], number: int) -> Any:
        """A constant is handed out as a copy: the caller may write into it."""
        return values[number].clone() if number in self.program.constants else values[number]


# --- steps without side effects --------------------------------------------------------------------------------------


def make_functional(program: Program) -> list[Step]:
    """The steps with a new slot for each value, as far as no other slot shares its memory later; reads give a flag."""
    last_use = {number: at for at, step in enumerate(program.steps) for number in step.operands}
    last_use.update(dict.fromkeys(program.results, len(program.steps)))
    sharing: dict[int, list[int]] = {}  # memory -> its slots so far
    for number in (*program.constants, *program.inputs.values()):
        sharing.setdefault(program.memory[number], []).append(number)
    renamed: dict[int, int] = {}
    count = len(program.memory)
    made: list[Step] = []
    for at, step in enumerate(program.steps):
        changed = rename(step, renamed)
        for number in step.outputs:
            if number is not None:
                sharing.setdefault(program.memory[number], []).append(number)
        if step.is_read:
            made.append(replace(changed, outputs=[count]))
            count += 1
            continue
        pure = find_pure_function(step)
        if pure is None:
            made.append(changed)
            continue
        (written,) = step.writes
        others = [n for n in sharing.get(program.memory[written], ()) if n != written and n not in step.outputs]
        if any(last_use.get(number, -1) > at for number in others):
            made.append(changed)
            continue
        kwargs = {name: value for name, value in changed.kwargs.items() if name != "out"}
        operands = list(dict.fromkeys(list_slots((changed.args, kwargs))))
        made.append(replace(changed, function=pure, kwargs=kwargs, operands=operands, outputs=[count], writes=()))
        for number in {written, *(n for n in step.outputs if n is not None)}:
            renamed[number] = count
        count += 1
    program_results = [renamed.get(number, number) for number in program.results]
    if program_results != list(program.results):
        raise NotCompiled("a result is written into")
    return made


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
    return [Stretch(list(steps[a:b])) for a, b in zip(places, places[1:], strict=False) if b > a]


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
    from torch._inductor.compile_fx import compile_fx  # loading the compiler takes seconds
    from torch.fx.experimental.proxy_tensor import make_fx

    def run(*taken: Tensor) -> list[Any]:
        values: dict[int, Any] = dict(zip(stretch.takes, taken, strict=True))
        for step in stretch.steps:
            run_into(values, step)
        return [values[number] for number in stretch.gives]

    with torch.no_grad():
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
