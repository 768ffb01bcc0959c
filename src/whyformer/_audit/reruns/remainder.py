"""The remainder of a model: the operations from replaced attention weights to the output, recorded once.

    remainder = record_remainder({3: weights}, run)     run() predicts with these weights; the logits are returned
    remainder.run({3: other})                           the logits for other weights, gradients included

Only operations that depend on the weights are in it. Everything else, as the values and what skips past the attention,
is a constant. `choose_rows` (remainder_rows.py) makes a remainder for other rows, or for fewer queries. It has the
steps of a program (recorder.py), but not its recorder: constants of unknown origin are what it is about, and a step
keeps its gradient.

A model whose remainder cannot be recorded (Python code that reads numbers which depend on the weights, writes into
tensors that do not) raises `Unrecordable`, and is run in full every time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.program.steps import (
    DATA_SIZED,
    Slot,
    Step,
    Unrecordable,
    drop_unused,
    find_last_uses,
    map_entries,
    run_step,
)
from whyformer._engine.run.intercept import Intercept
from whyformer._plain.private_torch import TorchDispatchMode, list_function_modes, schema_of

TensorShape = tuple[int, ...]


@dataclass(frozen=True)
class Remainder:
    """A list of operations from the attention weights of some blocks to the logits."""

    inputs: Mapping[int, int]  # block -> slot
    steps: Sequence[Step]
    output: int
    shapes: Mapping[int, TensorShape]  # by slot
    frees: Sequence[Sequence[int]]  # the slots that nothing after a step uses

    def run(self, weights: Mapping[int, Tensor]) -> Tensor:
        """The logits [row class] for these weights [row head query key] of each block."""
        values = {slot: weights[block] for block, slot in self.inputs.items()}
        for step, freed in zip(self.steps, self.frees, strict=True):
            found = run_step(step, values)
            for number, result in zip(step.outputs, found if step.is_tuple else (found,), strict=True):
                if number is not None:
                    values[number] = result
            for number in freed:
                del values[number]
        return values[self.output]


def make_remainder(
    inputs: Mapping[int, int], steps: Sequence[Step], output: int, shapes: Mapping[int, TensorShape]
) -> Remainder:
    """The remainder without operations that do not contribute to the output."""
    used = drop_unused(steps, {output}, range(1 + max(shapes)))
    return Remainder(inputs, used, output, shapes, find_last_uses(used, {output, *inputs.values()}))


def record_remainder(weights: Mapping[int, Tensor], run: Callable[[], Tensor]) -> Remainder:
    """What `run` does with these tensors, up to the logits it returns."""
    recorder = RemainderRecorder(weights)
    with torch.no_grad(), recorder:
        logits = run()
    output = recorder.slots.get(id(logits))
    if output is None:
        raise Unrecordable("the output does not depend on the attention")
    return make_remainder(recorder.inputs, recorder.steps, output, recorder.shapes)


class RemainderRecorder(TorchDispatchMode):
    """Records the operations that depend on the given tensors."""

    def __init__(self, weights: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.shapes: dict[int, TensorShape] = {}
        self.compared: set[int] = set()  # slots that say only where the given weights are the model's own
        self.slots: dict[int, int] = {}  # id of a tensor -> its slot
        self._alive: list[Tensor] = []  # so that no id is used twice
        self.inputs = {block: self._add_slot(tensor) for block, tensor in weights.items()}

    def _add_slot(self, tensor: Tensor) -> int:
        if id(tensor) not in self.slots:
            self.slots[id(tensor)] = len(self.shapes)
            self.shapes[len(self.shapes)] = tuple(tensor.shape)
            self._alive.append(tensor)
        return self.slots[id(tensor)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands: list[int] = []

        def take(tensor: Tensor) -> Slot | Tensor:
            number = self.slots.get(id(tensor))
            if number is None:
                return tensor
            operands.append(number)
            return Slot(number)

        step = Step(func, map_entries(tuple(args), Tensor, take), map_entries(kwargs or {}, Tensor, take), operands)
        result = func(*args, **(kwargs or {}))
        if operands:
            self._note(step, result)
        return result

    def _note(self, step: Step, result: Any) -> None:
        func, entered = step.function, set(self.inputs.values())
        is_comparison = func is torch.ops.aten.eq.Tensor and not entered.isdisjoint(step.operands)
        is_comparison = is_comparison or self.compared.issuperset(step.operands)
        if not isinstance(result, (Tensor, tuple, list)):
            # After the interception, the output is looked at for NaN.
            is_model_running = any(isinstance(mode, Intercept) for mode in list_function_modes())
            if not is_comparison and is_model_running:
                raise Unrecordable(f"Python code reads what {func} returns")
            return
        if func in DATA_SIZED and func is not torch.ops.aten.index.Tensor:
            raise Unrecordable(f"{func} has a result whose size depends on the attention")
        if torch.Tag.nondeterministic_seeded in func.tags and "attention" not in schema_of(func).name:
            raise Unrecordable(f"{func} draws random numbers")
        if schema_of(func).is_mutable:
            raise Unrecordable(f"{func} writes into a tensor")
        step.is_tuple = not isinstance(result, Tensor)
        results = (result,) if isinstance(result, Tensor) else result
        step.outputs = [None if tensor is None else self._add_slot(tensor) for tensor in results]
        if is_comparison:
            self.compared.update(number for number in step.outputs if number is not None)
        self.steps.append(step)
