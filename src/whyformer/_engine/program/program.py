"""A program: the tensor operations of one run of a model, recorded once and repeated without the model's Python code.

    program = RecordedProgram(recorder, results)                 the slots of what it returns
    tensors = program.run(inputs)

Operations that do not contribute to what is returned are left out, operations on constants are computed once, and each
tensor is freed after its last use. The list needs no graph, no hooks and no labels.
"""

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.program.recorder import BranchDiffers, Recorder
from whyformer._engine.program.rematerialise import compute_again, order_by_layer
from whyformer._engine.program.steps import Slot, Step, aten, drop_unused, find_last_uses, map_slots, run_step
from whyformer._plain.private_torch import OpOverload, kernel_of, storage_of

ALIASES = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}
RECOMPUTED_ABOVE = 2**28  # bytes: programs that need less keep all results
LARGE_PART = 1 / 8  # of the memory of a device: a program that needs more computes products again too
# A result that was computed before is used again if that is not long ago, or if it is small: keeping it takes memory.
NEAR, SMALL_RESULT = 100, 2**16  # steps, bytes


class RecordedProgram:
    """A flat list of operations: `program.run(inputs)`."""

    def __init__(self, recorder: Recorder, results: Sequence[Slot], *, repeats_products: bool = False) -> None:
        self.inputs = recorder.inputs
        self.constants = dict(recorder.constants)
        steps, same = join_aliases(recorder.steps)
        self.results = [same.get(slot.number, slot.number) for slot in results]
        used = drop_unused(steps, set(self.results), recorder.memory)
        folded = self.fold_constants(used, recorder)
        self.steps, same = join_equal_steps(folded, recorder.memory, recorder.sizes)
        self.results = [same.get(number, number) for number in self.results]
        # What Python read is compared in the end on a GPU: each look at it waits for it.
        self.is_deferred = recorder.is_on_gpu
        self.has_fixed_sizes = not any(step.shape for step in self.steps)
        self.memory, self.sizes = list(recorder.memory), dict(recorder.sizes)
        self.peak = measure_peak(self)
        if self.peak > RECOMPUTED_ABOVE:
            self.save_memory(repeats_products)
        self.run = write_function(self)

    def fold_constants(self, steps: list[Step], recorder: Recorder) -> list[Step]:
        """Compute once what does not depend on the inputs: views of weights, and small results of numbers alone.

        What is computed from weights is computed in every run: `weight.data` can change them unnoticed.
        """
        memory, live = recorder.memory, set(recorder.live)
        unfit = find_rewritten(steps, memory)
        kept: list[Step] = []
        for step in steps:
            touched = {memory[number] for number in (*step.operands, *step.outputs) if number is not None}
            has_values = all(number in self.constants for number in step.operands)
            if not step.depends and not step.is_read and has_values and not touched & unfit:
                found = run_step(step, self.constants)
                results = found if step.is_tuple else (found,)
                of_weights = not live.isdisjoint(step.operands)
                if all(t is None or self.can_fold(t, step, of_weights) for t in results):
                    made = {n: t for n, t in zip(step.outputs, results, strict=True) if n is not None and t is not None}
                    self.constants.update(made)
                    live |= made.keys() if of_weights else set()
                    continue
            unfit |= {memory[number] for number in step.outputs if number is not None}
            kept.append(step)
        return kept

    def can_fold(self, result: Tensor, step: Step, of_weights: bool) -> bool:
        """A view of a constant, or a small result of numbers."""
        if result.numel() <= SMALL and not of_weights:
            return True
        return any(storage_of(self.constants[number]) == storage_of(result) for number in step.operands)

    def save_memory(self, repeats_products: bool) -> None:
        """Go through the layers once, and compute again what is cheap to compute (rematerialise.py).

        A program that takes a large part of the memory of its device computes products again too.
        """
        begins = find_first_use(self.steps, self.inputs.get("target"))
        ordered, memory, sizes = order_by_layer(self.steps, self.memory, self.sizes, begins), self.memory, self.sizes
        entered = (*self.constants, *self.inputs.values(), *self.results)
        fixed = {memory[number] for number in entered}
        for with_products in (repeats_products, True):
            again = compute_again(ordered, memory, sizes, fixed, with_products=with_products)
            self.steps, self.memory, self.sizes = again.steps, again.memory, again.sizes
            self.peak = measure_peak(self)
            if with_products or self.peak <= measure_memory(self.constants) * LARGE_PART:
                break

    @property
    def kept(self) -> set[int]:
        """The slots that are not freed: what enters, what is returned, constants."""
        return {*self.results, *self.inputs.values(), *self.constants}

    def forget_steps(self) -> None:
        """Keep the function only: the list of its steps takes three times as much memory."""
        self.steps, self.memory, self.sizes = [], [], {}


SMALL = 2**16  # entries; a larger result is computed in every run


def measure_memory(constants: Mapping[int, Tensor]) -> int:
    """The bytes of the device that a program runs on."""
    on_gpu = next((tensor.device for tensor in constants.values() if tensor.is_cuda), None)
    if on_gpu is not None:
        return int(torch.cuda.mem_get_info(on_gpu)[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**34


def find_first_use(steps: Sequence[Step], number: int | None) -> int:
    """The first step that uses a slot; their number if none does."""
    return next((at for at, step in enumerate(steps) if number in step.operands), len(steps))


def find_rewritten(steps: Sequence[Step], memory: Sequence[int]) -> set[int]:
    """Memory that is written to after an operation on the inputs has used it: it has no one value."""
    used: set[int] = set()
    found: set[int] = set()
    for step in steps:
        written = {memory[number] for number in step.writes}
        found |= written & used
        if step.depends:
            found |= written
            used |= {memory[number] for number in step.operands}
    return found


def join_aliases(steps: Sequence[Step]) -> tuple[list[Step], dict[int, int]]:
    """The steps without those that only give a tensor another name; and the names."""
    same: dict[int, int] = {}
    kept: list[Step] = []
    for step in steps:
        step = rename_slots(step, same)
        if step.function in ALIASES:
            same[step.outputs[0]] = step.operands[0]  # type: ignore[index]
        else:
            kept.append(step)
    return kept, same


def rename_slots(step: Step, same: Mapping[int, int]) -> Step:
    """The step with other names for some slots."""
    if not any(number in same for number in step.operands):
        return step

    def rename(slot: Slot) -> Slot:
        return Slot(same.get(slot.number, slot.number))

    return replace(
        step,
        args=map_slots(step.args, rename),
        kwargs=map_slots(step.kwargs, rename),
        operands=[same.get(number, number) for number in step.operands],
        outputs=[same.get(number, number) if number is not None else None for number in step.outputs],
        writes=tuple(same.get(number, number) for number in step.writes),
    )


def join_equal_steps(
    steps: Sequence[Step], memory: Sequence[int], sizes: Mapping[int, int]
) -> tuple[list[Step], dict[int, int]]:
    """The steps without those that repeat an earlier one on the same operands; and where their results are."""
    written = {memory[number] for step in steps for number in step.writes}
    same: dict[int, int] = {}
    known: dict[Hashable, list[int | None]] = {}
    used: dict[int, int] = {}  # memory -> the last step that uses it
    kept: list[Step] = []
    for at, step in enumerate(steps):
        step = rename_slots(step, same)
        touched = {memory[number] for number in (*step.operands, *step.outputs) if number is not None}
        key = (step.function, repr(step.args), repr(step.kwargs))
        is_pure = bool(step.operands and step.outputs) and step.shape is None and not touched & written
        if is_pure and key in known:
            outputs = known[key]
            own = {memory[number] for number in outputs if number is not None}
            if all(at - used[m] <= NEAR or sizes.get(m, NEAR) <= SMALL_RESULT for m in own):
                same |= {new: old for new, old in zip(step.outputs, outputs, strict=True) if None not in (new, old)}  # type: ignore[misc]
                used |= dict.fromkeys(own, at)
                continue
        if is_pure:
            known[key] = step.outputs
        used |= dict.fromkeys(touched, at)
        kept.append(step)
    return kept, same


def measure_peak(program: RecordedProgram) -> int:
    """The most bytes that the results of the steps take at a time."""
    memory, sizes = program.memory, program.sizes
    fixed = {memory[n] for n in (*program.constants, *program.inputs.values())}
    users: dict[int, set[int]] = {}  # memory -> its slots that are alive
    held = peak = 0
    for step, freed in zip(program.steps, find_last_uses(program.steps, program.kept), strict=True):
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


def write_function(program: RecordedProgram) -> Callable[[Mapping[str, Tensor]], list[Any]]:
    """A function with a line for each step: straight-line code has the least overhead in Python."""
    names: dict[str, Any] = {"BranchDiffers": BranchDiffers, "stack": torch.stack}
    lines = ["def run(inputs):", "    flags = []"]
    last = find_last_uses(program.steps, program.kept)
    functions: dict[OpOverload, str] = {}

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
        return repr(value) if value is None or type(value) in (bool, int) else bind(value, "k")

    def give(number: int) -> str:
        """A constant is handed out as a copy: the caller may write into it."""
        return f"{constant_names[number]}.clone()" if number in constant_names else f"v{number}"

    lines += [f"    v{number} = inputs[{name!r}]" for name, number in program.inputs.items()]
    for at, step in enumerate(program.steps):
        if step.function not in functions:
            functions[step.function] = bind(kernel_of(step.function), "f")  # past a layer of Python
        arguments = [spell(value) for value in step.args]
        arguments += [f"{name}={spell(value)}" for name, value in step.kwargs.items()]
        call = f"{functions[step.function]}({', '.join(arguments)})"
        if step.is_read and program.is_deferred:
            reading = write_reading(step, arguments)
            lines.append(f"    flags.append({reading if step.depends else f'({reading} == {spell(step.reads)})'})")
        elif step.is_read:
            lines.append(f"    if {call} != {spell(step.reads)}: raise BranchDiffers")
        else:
            outputs = [f"v{number}" if number is not None else "_" for number in step.outputs]
            lines.append(f"    {', '.join(outputs)}{',' if step.is_tuple and len(outputs) == 1 else ''} = {call}")
            if step.shape is not None:
                lines.append(f"    if tuple({outputs[0]}.shape) != {step.shape!r}: raise BranchDiffers")
        if last[at]:
            lines.append(f"    del {', '.join(f'v{number}' for number in last[at])}")
    read = [int(step.reads or 0) if step.depends else 1 for step in program.steps if step.is_read]
    end = []
    if program.is_deferred and read:
        device = next(iter(program.constants.values())).device
        end = [f"(stack(flags) == {bind(torch.tensor(read, device=device), 'c')}).all()"]
    elif program.is_deferred:
        end = ["None"]
    lines.append(f"    return [{', '.join([*map(give, program.results), *end])}]")
    exec(compile("\n".join(lines), "<recorded program>", "exec"), names)
    return names["run"]  # type: ignore[no-any-return]


def write_reading(step: Step, arguments: Sequence[str]) -> str:
    """What Python would read, as a tensor."""
    if step.function is aten.equal.default:
        return f"({arguments[0]} == {arguments[1]}).all()"
    return f"{arguments[0]}.reshape(())"
