"""Steps: recorded tensor operations in order, whose operands are slots; how they are run, and freed of what is unused.

The remainders of an audit (remainder.py) and recorded programs (program/) consist of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any

import torch
from torch import Tensor

from whyformer._engine.tracing.operations import Arguments, Options
from whyformer._plain.private_torch import UNIQUE, OpOverload

aten = torch.ops.aten
DATA_SIZED = {  # the shape of the result depends on the values
    aten.nonzero.default,
    aten.masked_select.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
    UNIQUE,
    aten.unique_dim.default,
    aten.index.Tensor,
}


class Unrecordable(Exception):
    """This run cannot be repeated as a program. The message says why."""


@dataclass(frozen=True)
class Slot:
    """The place of a tensor among the operands of a program."""

    number: int


@dataclass
class Step:
    """One operation: a function of slots and constants. `reads`: the value that Python read from its result."""

    function: OpOverload
    args: Arguments
    kwargs: Options
    operands: list[int]  # the slots among the arguments
    outputs: list[int | None] = field(default_factory=list)
    is_tuple: bool = False
    reads: bool | int | float | None = None
    is_read: bool = False
    shape: tuple[int, ...] | None = None  # that the result must have
    writes: tuple[int, ...] = ()  # slots it writes into
    depends: bool = False  # on the inputs


# --- running, and what need not run ----------------------------------------------------------------------------------


def run_step(step: Step, values: Mapping[int, Tensor]) -> Any:
    fill = lambda value: map_slots(value, lambda slot: values[slot.number])  # noqa: E731
    return step.function(*fill(step.args), **fill(step.kwargs))


def drop_unused(steps: Sequence[Step], outputs: set[int], memory: Sequence[int]) -> list[Step]:
    """The steps that the outputs and the comparisons need."""
    needed, touched = set(outputs), {memory[number] for number in outputs}
    kept: list[Step] = []
    for step in reversed(steps):
        is_used = any(number in needed for number in step.outputs if number is not None)
        if not (is_used or step.is_read or step.shape or any(memory[number] in touched for number in step.writes)):
            continue
        needed.update(step.operands)
        touched.update(memory[number] for number in step.operands)
        kept.append(step)
    return kept[::-1]


def find_last_uses(steps: Sequence[Step], kept: set[int]) -> list[list[int]]:
    """The slots to free after each step: those that nothing after it uses, but for those that are kept."""
    later = set(kept)
    last: list[list[int]] = []
    for step in reversed(steps):
        own = {number for number in (*step.operands, *step.outputs) if number is not None}
        last.append(sorted(own - later))
        later |= own
    return last[::-1]


# --- slots in nested arguments ---------------------------------------------------------------------------------------


def map_slots(value: Any, change: Callable[[Slot], Any]) -> Any:
    return map_entries(value, Slot, change)


def map_entries(value: Any, kind: type | UnionType, change: Callable[[Any], Any]) -> Any:
    """The same value with every entry of this kind, also inside lists, tuples and dictionaries, changed."""
    if isinstance(value, kind):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(map_entries(item, kind, change) for item in value)
    if type(value) is dict:
        return {key: map_entries(item, kind, change) for key, item in value.items()}
    return value


def find_slots(value: Any) -> Iterator[Slot]:
    if isinstance(value, Slot):
        yield value
    elif type(value) in (list, tuple, dict):
        for item in value.values() if type(value) is dict else value:
            yield from find_slots(item)
