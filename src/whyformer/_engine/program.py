"""A program: the tensor operations of one run of a model, recorded once and repeated without the model's Python code.

    program = Program(recorder, first, second)           what to return at the cut, and in the end
    run = program.start(inputs)
    at_the_cut = next(run)
    in_the_end = run.send(given)

Operations that do not contribute to what is returned are left out, operations on constants are computed once, and each
tensor is freed after its last use. The list needs no graph, no hooks and no labels.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.recompute import compute_again
from whyformer._engine.recorder import Recorder, Slot, Step, WayDiffers, address_of, aten, map_slots

ALIASES = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}
RECOMPUTED_ABOVE = 2**28  # bytes: programs that need less keep all results
Slots = Generator[list[Tensor], Mapping[str, Tensor], list[Tensor]]


class Program:
    """A flat list of operations in two parts: `run = program.start(inputs)`, then `run.send(given)`."""

    def __init__(
        self, recorder: Recorder, first: Sequence[Slot], second: Sequence[Slot], *, repeats_products: bool = False
    ) -> None:
        self.inputs, self.second_inputs = recorder.inputs, recorder.second_inputs
        self.constants = dict(recorder.constants)
        steps, same = join_aliases(recorder.steps)
        self.first, self.second = ([same.get(slot.number, slot.number) for slot in part] for part in (first, second))
        used = drop_unused(steps, {*self.first, *self.second}, recorder.memory)
        self.steps, self.cut_at = self.fold_constants(used, recorder)
        self.is_deferred = (
            recorder.is_on_gpu
        )  # what Python read is compared in the end: each look at a GPU waits for it
        self.has_fixed_sizes = not any(step.shape for step in self.steps)
        self.memory, self.sizes = list(recorder.memory), dict(recorder.sizes)
        self.peak = measure_peak(self)
        if self.peak > RECOMPUTED_ABOVE:
            self.save_memory(repeats_products)
        self.run = write_function(self)

    def fold_constants(self, steps: list[tuple[int, Step]], recorder: Recorder) -> tuple[list[Step], int]:
        """Compute once what does not depend on the inputs: views of weights, and small results of numbers alone.

        What is computed from weights is computed in every run: `weight.data` can change them unnoticed.
        """
        memory, live = recorder.memory, set(recorder.live)
        unfit = find_rewritten(steps, memory)
        kept: list[Step] = []
        cut_at = 0
        for at, step in steps:
            touched = {memory[number] for number in (*step.operands, *step.outputs) if number is not None}
            has_values = all(number in self.constants for number in step.operands)
            if not step.depends and has_values and not touched & unfit:
                found = run_step(step, self.constants)
                results = found if step.is_tuple else (found,)
                of_weights = not live.isdisjoint(step.operands)
                if all(t is None or self.can_fold(t, step, of_weights) for t in results):
                    made = {n: t for n, t in zip(step.outputs, results, strict=True) if n is not None and t is not None}
                    self.constants.update(made)
                    live |= made.keys() if of_weights else set()
                    continue
            unfit |= {memory[number] for number in step.outputs if number is not None}
            cut_at += at < recorder.cut_at
            kept.append(step)
        return kept, cut_at

    def can_fold(self, result: Tensor, step: Step, of_weights: bool) -> bool:
        """A view of a constant, or a small result of numbers."""
        if result.numel() <= SMALL and not of_weights:
            return True
        return any(address_of(self.constants[number]) == address_of(result) for number in step.operands)

    def save_memory(self, repeats_products: bool) -> None:
        """Compute again what is cheap to compute (recompute.py)."""
        entered = (*self.constants, *self.inputs.values(), *self.second_inputs.values(), *self.first, *self.second)
        fixed = {self.memory[number] for number in entered}
        again = compute_again(self.steps, self.memory, self.sizes, fixed, with_products=repeats_products)
        self.cut_at = sum(place < self.cut_at for place in again.places)
        self.steps, self.memory, self.sizes = again.steps, again.memory, again.sizes
        self.peak = measure_peak(self)

    def start(self, inputs: Mapping[str, Tensor]) -> Slots:
        return self.run(inputs)


SMALL = 2**16  # entries; a larger result is computed in every run


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


def measure_peak(program: Program) -> int:
    """The most bytes that the results of the steps take at a time."""
    memory, sizes = program.memory, program.sizes
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
            functions[step.function] = bind(step.function._op, "f")  # past a layer of Python
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
