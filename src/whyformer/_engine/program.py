"""A program: the tensor operations of one run of a model, recorded once and repeated without the model's Python code.

    recorder = Recorder({"pixel_values": pixels}, constants=weights)
    with recorder:
        ...                                 the forward, its backward passes, labels, rules: whatever calls torch
    program = recorder.finish(cut_outputs, outputs)

`Recorder` sees every operation below autograd (a `TorchDispatchMode`), so the program is a flat list that needs no
graph, no hooks and no labels. Operations that do not contribute to the outputs are left out, operations on constants
are computed once, and each tensor is freed after its last use.

**What Python read.** A program is right only where Python code would have taken the same way. Where a value that
depends on the inputs was read (`bool(x.any())`), the program reads it again and raises `WayDiffers` if it is another.
Reading what cannot be compared again (numbers with fractions, lists), random numbers, writing into inputs or weights,
and tensors of unknown origin make a run unfit to record: `Unrecordable`.

The *cut* divides a program in two: the first part computes what the choice of the target needs, the second part takes
what the choice gave (`Recorder.cut`).
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from whyformer._engine.tracing.constants import is_constant

aten = torch.ops.aten
LITERALS = {aten.lift_fresh.default, aten.lift_fresh_copy.default}  # `torch.tensor(...)`: its operand is a number
DATA_SIZED = {  # the shape of the result depends on the values
    aten.nonzero.default,
    aten.masked_select.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.index.Tensor,
}
ALIASES = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}
READS = {"tolist", "numpy", "__array__", "data_ptr", "__dlpack__"}  # read values without an operation
Slots = Generator[list[Tensor], Mapping[str, Tensor], list[Tensor]]


class Unrecordable(Exception):
    """This run cannot be repeated as a program. The message says why."""


class WayDiffers(Exception):
    """Python code would take another way for these inputs than when the program was recorded."""


@dataclass(frozen=True)
class Slot:
    """The place of a tensor among the operands of a program."""

    number: int


@dataclass
class Step:
    """One operation: a function of slots and constants. `reads`: the value that Python read from its result."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    operands: list[int]  # the slots among the arguments
    outputs: list[int | None] = field(default_factory=list)
    is_tuple: bool = False
    reads: Any = None
    is_read: bool = False
    shape: tuple[int, ...] | None = None  # that the result must have
    writes: tuple[int, ...] = ()  # slots it writes into
    depends: bool = False  # on the inputs


class Recorder(TorchDispatchMode):
    """Records the operations inside. Pauses where the choice of a target is made (`pause`)."""

    def __init__(self, inputs: Mapping[str, Tensor], constants: Iterable[Tensor]) -> None:
        super().__init__()
        self.token = object()  # marks the tensors of this recording
        self.steps: list[Step] = []
        self.cut_at = 0
        self.memory: list[int] = []  # slot -> the number of its memory, which views share
        self.sharing: dict[int, list[int]] = {}  # number of a memory -> its slots
        self.sizes: dict[int, int] = {}  # number of a memory -> bytes
        self.is_on_gpu = any(tensor.is_cuda for tensor in inputs.values())
        self.inputs: dict[str, int] = {}  # name -> slot
        self.second_inputs: dict[str, int] = {}
        self.constants: dict[int, Tensor] = {}  # slot -> a weight, or a number
        self.weights = {address_of(tensor): tensor for tensor in constants}  # by memory: a shadow has views of them
        self.converted: dict[int, tuple[int, Tensor]] = {}  # memory of what was computed from weights alone -> slot
        self.constant_slots: dict[int, tuple[int, Tensor]] = {}  # id of a view of a weight -> its slot
        self.dependent: set[int] = set()  # slots that depend on the inputs
        self.protected: set[int] = set()  # memory that may not be written to
        self.is_paused = False
        self.reader = ReadWatch(self)
        for name, tensor in inputs.items():
            self.inputs[name] = self.enter_input(tensor)

    # --- slots -------------------------------------------------------------------------------------------------------

    def enter_input(self, tensor: Tensor) -> int:
        number = self.add_slot(tensor)
        self.dependent.add(number)
        self.protected.add(self.memory[number])
        return number

    def add_slot(self, tensor: Tensor, memory: int | None = None) -> int:
        number = len(self.memory)
        tensor._whyformer_slot = (self.token, number)  # type: ignore[attr-defined]
        self.memory.append(number if memory is None else memory)
        self.sharing.setdefault(self.memory[number], []).append(number)
        if memory is None:
            self.sizes[number] = tensor.untyped_storage().nbytes()
        return number

    def slot_of(self, tensor: Any) -> int | None:
        token, number = getattr(tensor, "_whyformer_slot", (None, -1))
        return number if token is self.token else None

    def take(self, tensor: Tensor, *, is_literal: bool) -> Slot:
        """The slot of an operand; a weight or a number becomes a constant."""
        number = self.slot_of(tensor)
        if number is None and id(tensor) in self.constant_slots:
            number = self.constant_slots[id(tensor)][0]
        if number is not None:
            return Slot(number)
        address = address_of(tensor)
        if address in self.converted and self.converted[address][1].shape == tensor.shape:
            return Slot(self.converted[address][0])  # nn.Parameter(tensor) is another object
        is_weight = address in self.weights or is_constant(tensor)
        if not is_literal and not is_weight:
            raise Unrecordable(f"a tensor of shape {list(tensor.shape)} is neither an input nor a weight")
        number = len(self.memory)
        self.memory.append(number)
        self.protected.add(number)
        self.constants[number] = tensor.detach().clone() if is_literal else tensor.detach()
        if is_weight:
            self.constant_slots[id(tensor)] = (number, tensor)
        return Slot(number)

    # --- recording ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.is_paused:
            return func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags and read_dropout(func, args, kwargs) != 0:
            raise Unrecordable(f"{func} draws random numbers")
        near: dict[int, int] = {}  # address -> number of the memory of each operand
        operands: list[int] = []
        is_literal = func in LITERALS

        def take(tensor: Tensor) -> Slot:
            slot = self.take(tensor, is_literal=is_literal)
            near[address_of(tensor)] = self.memory[slot.number]
            operands.append(slot.number)
            return slot

        step = Step(func, map_tensors(tuple(args), take), map_tensors(kwargs, take), operands)
        result = func(*args, **kwargs)
        self.note(step, result, near)
        return result

    def note(self, step: Step, result: Any, near: Mapping[int, int]) -> None:
        step.depends = any(number in self.dependent for number in step.operands)
        if step.function._schema.is_mutable:
            step.writes = tuple(slot.number for slot in find_written(step.function, step.args, step.kwargs))
        for number in step.writes:
            if self.memory[number] in self.protected:
                raise Unrecordable(f"{step.function} writes into an input or a weight")
            if step.depends:
                self.spread_dependence(number)
        if not isinstance(result, (Tensor, tuple, list)):
            self.note_read(step, result)
            return
        step.is_tuple = not isinstance(result, Tensor)
        results: Sequence[Any] = result if not isinstance(result, Tensor) else (result,)
        step.outputs = [self.enter_result(step, tensor, near) for tensor in results]
        if step.function in DATA_SIZED and step.depends:
            step.shape = tuple(results[0].shape)
        self.steps.append(step)

    def enter_result(self, step: Step, tensor: Any, near: Mapping[int, int]) -> int | None:
        """The slot of a result: that of an operand if it is the same tensor, else a new one."""
        if tensor is None:
            return None
        if not isinstance(tensor, Tensor):
            raise Unrecordable(f"{step.function} returns {type(tensor).__name__}")
        known = self.slot_of(tensor)
        if known is not None:
            return known
        number = self.add_slot(tensor, near.get(address_of(tensor)))
        if step.depends:
            self.dependent.add(number)
        elif self.memory[number] == number and step.operands:
            self.converted[address_of(tensor)] = (number, tensor)
        return number

    def spread_dependence(self, written: int) -> None:
        """What shares memory with a slot that was written to depends on the inputs from now on."""
        self.dependent.update(self.sharing[self.memory[written]])

    def note_read(self, step: Step, value: Any) -> None:
        if not step.depends:
            return
        if not isinstance(value, bool | int):
            raise Unrecordable("Python code reads a number with a fraction that depends on the inputs")
        if step.function not in (aten._local_scalar_dense.default, aten.equal.default):
            raise Unrecordable(f"Python code reads what {step.function} returns")
        step.reads, step.is_read = value, True
        self.steps.append(step)

    # --- where the target is chosen ----------------------------------------------------------------------------------

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Inside, nothing is recorded."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def cut(self, given: Mapping[str, Tensor]) -> None:
        """The second part of the program begins here and takes these tensors."""
        self.cut_at = len(self.steps)
        for name, tensor in given.items():
            self.second_inputs[name] = self.enter_input(tensor)

    def __enter__(self) -> "Recorder":
        self.reader.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.reader.__exit__(*error)

    # --- finishing ---------------------------------------------------------------------------------------------------

    def require_slot(self, tensor: Tensor) -> Slot:
        """The slot of a result."""
        number = self.slot_of(tensor)
        if number is None:
            raise Unrecordable(f"a result of shape {list(tensor.shape)} was not computed while recording")
        return Slot(number)

    def finish(self, first: Sequence[Slot], second: Sequence[Slot]) -> "Program":
        """The program that computes these slots in its first and second part."""
        return Program(self, [slot.number for slot in first], [slot.number for slot in second])


@contextmanager
def pause_recording() -> Iterator[None]:
    """Inside, a recording that is under way notes nothing: for what is done anew in every run."""
    recorders = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Recorder)]
    with ExitStack() as stack:
        for recorder in recorders:
            stack.enter_context(recorder.pause())
        yield


class ReadWatch(TorchFunctionMode):
    """Refuses what reads values of the inputs past the dispatcher."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and not self.recorder.is_paused:
            number = self.recorder.slot_of(args[0])
            if number is not None and number in self.recorder.dependent:
                raise Unrecordable(f"Python code reads values of the inputs with {name}()")
        return func(*args, **(kwargs or {}))


class Program:
    """A flat list of operations in two parts: `run = program.start(inputs)`, then `run.send(given)`."""

    def __init__(self, recorder: Recorder, first: list[int], second: list[int]) -> None:
        self.inputs, self.second_inputs = recorder.inputs, recorder.second_inputs
        self.constants = dict(recorder.constants)
        steps, same = join_aliases(recorder.steps)
        self.first, self.second = ([same.get(number, number) for number in part] for part in (first, second))
        used = drop_unused(steps, {*self.first, *self.second}, recorder.memory)
        self.steps, self.cut_at = self.fold_constants(used, recorder)
        self.is_deferred = (
            recorder.is_on_gpu
        )  # what Python read is compared in the end: each look at a GPU waits for it
        self.has_fixed_sizes = not any(step.shape for step in self.steps)
        self.peak = measure_peak(self, recorder)
        self.run = write_function(self)

    def fold_constants(self, steps: list[tuple[int, Step]], recorder: Recorder) -> tuple[list[Step], int]:
        """Compute once what does not depend on the inputs, if it is small or a view."""
        memory = recorder.memory
        unfit = find_rewritten(steps, memory)
        kept: list[Step] = []
        cut_at = 0
        for at, step in steps:
            touched = {memory[number] for number in (*step.operands, *step.outputs) if number is not None}
            has_values = all(number in self.constants for number in step.operands)
            if not step.depends and has_values and not touched & unfit:
                found = run_step(step, self.constants)
                results = found if step.is_tuple else (found,)
                if all(t is None or is_small_or_view(t, self.constants, step.operands) for t in results):
                    made = zip(step.outputs, results, strict=True)
                    self.constants.update({n: t for n, t in made if n is not None and t is not None})
                    continue
            unfit |= {memory[number] for number in step.outputs if number is not None}
            cut_at += at < recorder.cut_at
            kept.append(step)
        return kept, cut_at

    def start(self, inputs: Mapping[str, Tensor]) -> Slots:
        return self.run(inputs)


SMALL = 2**16  # entries; a larger result of an operation on weights alone is computed in every run


def find_rewritten(steps: Sequence[tuple[int, Step]], memory: Sequence[int]) -> set[int]:
    """Memory that is written to after an operation on the inputs has used it: it has no one value."""
    used: set[int] = set()
    found: set[int] = set()
    for _, step in steps:
        written = {memory[number] for number in step.writes}
        found |= written & used
        if step.depends:
            found |= written
            used |= {memory[number] for number in step.operands}
    return found


def is_small_or_view(tensor: Tensor, constants: Mapping[int, Tensor], operands: Sequence[int]) -> bool:
    if tensor.numel() <= SMALL:
        return True
    return any(address_of(constants[number]) == address_of(tensor) for number in operands)


def run_step(step: Step, values: Mapping[int, Tensor]) -> Any:
    fill = lambda value: map_slots(value, lambda slot: values[slot.number])  # noqa: E731
    return step.function(*fill(step.args), **fill(step.kwargs))


def join_aliases(steps: Sequence[Step]) -> tuple[list[tuple[int, Step]], dict[int, int]]:
    """The steps, with their places, without those that only give a tensor another name; and the names."""
    same: dict[int, int] = {}
    kept: list[tuple[int, Step]] = []

    def rename(slot: Slot) -> Slot:
        return Slot(same.get(slot.number, slot.number))

    for at, step in enumerate(steps):
        if any(number in same for number in step.operands):
            renamed = [map_slots(part, rename) for part in (step.args, step.kwargs)]
            outputs = [same.get(number, number) if number is not None else None for number in step.outputs]
            writes = tuple(same.get(number, number) for number in step.writes)
            operands = [same.get(number, number) for number in step.operands]
            step = replace(step, args=renamed[0], kwargs=renamed[1], operands=operands, outputs=outputs, writes=writes)
        if step.function in ALIASES:
            same[step.outputs[0]] = step.operands[0]  # type: ignore[index]
        else:
            kept.append((at, step))
    return kept, same


def drop_unused(steps: Sequence[tuple[int, Step]], outputs: set[int], memory: Sequence[int]) -> list[tuple[int, Step]]:
    """The steps, with their places, that the outputs and the comparisons need."""
    needed, touched = set(outputs), {memory[number] for number in outputs}
    kept: list[tuple[int, Step]] = []
    for at, step in reversed(steps):
        is_used = any(number in needed for number in step.outputs if number is not None)
        if not (is_used or step.is_read or step.shape or any(memory[number] in touched for number in step.writes)):
            continue
        operands = step.operands
        needed.update(operands)
        touched.update(memory[number] for number in operands)
        kept.append((at, step))
    return kept[::-1]


def measure_peak(program: Program, recorder: Recorder) -> int:
    """The most bytes that the results of the steps take at a time."""
    memory, sizes = recorder.memory, recorder.sizes
    fixed = {memory[n] for n in (*program.constants, *program.inputs.values(), *program.second_inputs.values())}
    users: dict[int, set[int]] = {}  # memory -> its slots that are alive
    held = peak = 0
    for step, freed in zip(program.steps, find_last_uses(program), strict=True):
        for number in step.outputs:
            if number is None or memory[number] in fixed:
                continue
            held += sizes[memory[number]] if not users.get(memory[number]) else 0
            users.setdefault(memory[number], set()).add(number)
        peak = max(peak, held)
        for number in freed:
            if number in users.get(memory[number], ()):
                users[memory[number]].discard(number)
                held -= sizes[memory[number]] if not users[memory[number]] else 0
    return peak


# --- from steps to Python source -------------------------------------------------------------------------------------


def write_function(program: Program) -> Callable[[Mapping[str, Tensor]], Slots]:
    """A generator function, a line for each step: straight-line code has the least overhead in Python."""
    names: dict[str, Any] = {"WayDiffers": WayDiffers, "stack": torch.stack}
    lines = ["def run(inputs):", "    flags = []"]
    last = find_last_uses(program)
    functions: dict[Any, str] = {}

    def bind(value: Any, prefix: str) -> str:
        name = f"{prefix}{len(names)}"
        names[name] = value
        return name

    constant_names = {number: bind(tensor, "c") for number, tensor in program.constants.items()}

    def spell(value: Any) -> str:
        if isinstance(value, Slot):
            return constant_names.get(value.number, f"v{value.number}")
        if type(value) in (list, tuple):
            inside = ", ".join(spell(item) for item in value)
            return f"[{inside}]" if type(value) is list else f"({inside}{',' if len(value) == 1 else ''})"
        if value is None or type(value) in (bool, int):
            return repr(value)
        return bind(value, "k")

    def give(number: int) -> str:
        """A constant is handed out as a copy: the caller may write into it."""
        return f"{constant_names[number]}.clone()" if number in constant_names else f"v{number}"

    lines += [f"    v{number} = inputs[{name!r}]" for name, number in program.inputs.items()]
    for at, step in enumerate(program.steps):
        if at == program.cut_at:
            lines += write_cut(program, give)
        if step.function not in functions:
            functions[step.function] = bind(step.function, "f")
        arguments = [spell(value) for value in step.args]
        arguments += [f"{name}={spell(value)}" for name, value in step.kwargs.items()]
        call = f"{functions[step.function]}({', '.join(arguments)})"
        if step.is_read and program.is_deferred:
            lines.append(f"    flags.append({write_comparison(step, arguments)})")
        elif step.is_read:
            lines.append(f"    if {call} != {step.reads!r}: raise WayDiffers")
        else:
            outputs = [f"v{number}" if number is not None else "_" for number in step.outputs]
            lines.append(f"    {', '.join(outputs)}{',' if step.is_tuple and len(outputs) == 1 else ''} = {call}")
            if step.shape is not None:
                lines.append(f"    if tuple({outputs[0]}.shape) != {step.shape!r}: raise WayDiffers")
        if last[at]:
            lines.append(f"    del {', '.join(f'v{number}' for number in last[at])}")
    if program.cut_at == len(program.steps):
        lines += write_cut(program, give)
    end = (
        ["stack(flags).all()" if any(step.is_read for step in program.steps) else "None"] if program.is_deferred else []
    )
    lines.append(f"    yield [{', '.join([*map(give, program.second), *end])}]")
    exec(compile("\n".join(lines), "<recorded program>", "exec"), names)
    return names["run"]  # type: ignore[no-any-return]


def write_comparison(step: Step, arguments: Sequence[str]) -> str:
    """Whether Python would read the same, as a tensor."""
    if step.function is aten.equal.default:
        return f"({arguments[0]} == {arguments[1]}).all() == {step.reads!r}"
    return f"{arguments[0]}.reshape(()) == {step.reads!r}"


def write_cut(program: Program, give: Callable[[int], str]) -> list[str]:
    lines = [f"    given = yield [{', '.join(give(number) for number in program.first)}]"]
    return lines + [f"    v{number} = given[{name!r}]" for name, number in program.second_inputs.items()]


def find_last_uses(program: Program) -> list[list[int]]:
    """The slots to free after each step: those that nothing after it uses."""
    later = {*program.second}
    entered = {*program.inputs.values(), *program.second_inputs.values()}
    last: list[list[int]] = []
    for at in reversed(range(len(program.steps))):
        if at + 1 == program.cut_at:
            later.update(program.first)
        step = program.steps[at]
        own = {number for number in (*step.operands, *step.outputs) if number is not None}
        own -= {number for number in own if number in program.constants}
        last.append(sorted(own - later - entered))
        later |= own
    return last[::-1]


# --- tensors and slots in nested arguments ---------------------------------------------------------------------------


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same value with every tensor, also inside lists, tuples and dictionaries, changed."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(map_tensors(item, change) for item in value)
    if type(value) is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value


def map_slots(value: Any, change: Callable[[Slot], Any]) -> Any:
    if isinstance(value, Slot):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(map_slots(item, change) for item in value)
    if type(value) is dict:
        return {key: map_slots(item, change) for key, item in value.items()}
    return value


def find_slots(value: Any) -> Iterator[Slot]:
    if isinstance(value, Slot):
        yield value
    elif type(value) in (list, tuple):
        for item in value:
            yield from find_slots(item)
    elif type(value) is dict:
        for item in value.values():
            yield from find_slots(item)


def read_dropout(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float | None:
    """The share that fused attention drops at random; None for other operations."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[place] if place < len(args) else kwargs.get("dropout_p", argument.default_value)
            return float(given)
    return None


def find_written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Slot]:
    """The arguments that an operation writes into, as its schema says."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from find_slots(value)


def address_of(tensor: Tensor) -> int:
    """The identity of the memory of a tensor."""
    return tensor.untyped_storage()._cdata
