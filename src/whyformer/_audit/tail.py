"""The tail of a model: the operations from the replaced attention to the output, recorded once, without the model.

    tail = record_tail({3: weights}, run)               run() predicts with these weights; the logits are returned
    tail.run({3: other})                                the logits for other weights, gradients included

Only operations that depend on the weights are in the tail. Everything else, as the values and what skips past the
attention, is a constant of it. `choose_rows` (tail_rows.py) makes a tail for other rows, or for fewer queries.

A model whose tail cannot be recorded (Python code that reads numbers which depend on the weights, writes into tensors
that do not) raises `Unrecordable`, and is run in full every time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode

from whyformer._engine import DATA_SIZED, Intercept, Slot, Unrecordable, find_slots, map_slots, map_tensors

Shape = tuple[int, ...]


@dataclass(frozen=True)
class TailStep:
    """One operation. Its arguments are constants, tensors among them, and slots."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[int | None, ...]  # slots
    is_tuple: bool = False  # it returns several tensors

    def operands(self) -> list[int]:
        return [slot.number for slot in find_slots([self.args, dict(self.kwargs)])]


@dataclass(frozen=True)
class Tail:
    """A list of operations from the attention weights of some blocks to the logits."""

    inputs: Mapping[int, int]  # block -> slot
    steps: Sequence[TailStep]
    output: int
    shapes: Mapping[int, Shape]  # by slot
    frees: Sequence[tuple[int, ...]] = field(default=())  # the slots that nothing after a step uses

    def run(self, weights: Mapping[int, Tensor]) -> Tensor:
        """The logits [row class] for these weights [row head query key] of each block."""
        values = {slot: weights[block] for block, slot in self.inputs.items()}
        fill = lambda slot: values[slot.number]  # noqa: E731
        for step, freed in zip(self.steps, self.frees, strict=True):
            found = step.function(*map_slots(step.args, fill), **map_slots(dict(step.kwargs), fill))
            for number, result in zip(step.outputs, found if step.is_tuple else (found,), strict=True):
                if number is not None:
                    values[number] = result
            for number in freed:
                del values[number]
        return values[self.output]


def finish_tail(inputs: Mapping[int, int], steps: Sequence[TailStep], output: int, shapes: Mapping[int, Shape]) -> Tail:
    """The tail without operations that do not contribute to the output."""
    needed, kept = {output}, []
    later = {output, *inputs.values()}
    frees: list[tuple[int, ...]] = []
    for step in reversed(steps):
        if needed.isdisjoint(number for number in step.outputs if number is not None):
            continue
        operands = step.operands()
        own = {*operands, *(number for number in step.outputs if number is not None)}
        frees.append(tuple(sorted(own - later)))
        needed.update(operands)
        later |= own
        kept.append(step)
    return Tail(inputs, kept[::-1], output, shapes, frees[::-1])


def record_tail(weights: Mapping[int, Tensor], run: Callable[[], Tensor]) -> Tail:
    """What `run` does with these tensors, up to the logits it returns."""
    recorder = TailRecorder(weights)
    with torch.no_grad(), recorder:
        logits = run()
    output = recorder.find_slot(logits)
    if output is None:
        raise Unrecordable("the output does not depend on the attention")
    return finish_tail(recorder.inputs, recorder.steps, output, recorder.shapes)


def is_model_running() -> bool:
    """Whether the interception is active; after it, the output is looked at for NaN."""
    return any(isinstance(mode, Intercept) for mode in _get_current_function_mode_stack())


class TailRecorder(TorchDispatchMode):
    """Records the operations that depend on the given tensors."""

    def __init__(self, weights: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.steps: list[TailStep] = []
        self.shapes: dict[int, Shape] = {}
        self.compared: set[int] = set()  # slots that say only where the given weights are the model's own
        self._slots: dict[int, int] = {}  # id of a tensor -> its slot
        self._alive: list[Tensor] = []  # so that no id is used twice
        self.inputs = {block: self._add_slot(tensor) for block, tensor in weights.items()}

    def find_slot(self, tensor: Tensor) -> int | None:
        return self._slots.get(id(tensor))

    def _add_slot(self, tensor: Tensor) -> int:
        known = self.find_slot(tensor)
        if known is not None:
            return known
        number = len(self.shapes)
        self._slots[id(tensor)] = number
        self._alive.append(tensor)
        self.shapes[number] = tuple(tensor.shape)
        return number

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operands: list[int] = []

        def take(tensor: Tensor) -> Any:
            number = self.find_slot(tensor)
            if number is None:
                return tensor
            operands.append(number)
            return Slot(number)

        taken = map_tensors(tuple(args), take), map_tensors(kwargs, take)
        result = func(*args, **kwargs)
        if operands:
            self._note(func, *taken, operands, result)
        return result

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[int], result: Any) -> None:
        entered = set(self.inputs.values())
        is_comparison = func is torch.ops.aten.eq.Tensor and any(number in entered for number in operands)
        is_comparison = is_comparison or all(number in self.compared for number in operands)
        if not isinstance(result, (Tensor, tuple, list)):
            if not is_comparison and is_model_running():
                raise Unrecordable(f"Python code reads what {func} returns")
            return
        if func in DATA_SIZED and func is not torch.ops.aten.index.Tensor:
            raise Unrecordable(f"{func} has a result whose size depends on the attention")
        if torch.Tag.nondeterministic_seeded in func.tags and "attention" not in func._schema.name:
            raise Unrecordable(f"{func} draws random numbers")
        if func._schema.is_mutable:
            raise Unrecordable(f"{func} writes into a tensor")
        results = (result,) if isinstance(result, Tensor) else result
        outputs = tuple(None if tensor is None else self._add_slot(tensor) for tensor in results)
        if is_comparison:
            self.compared.update(number for number in outputs if number is not None)
        self.steps.append(TailStep(func, args, kwargs, outputs, not isinstance(result, Tensor)))
