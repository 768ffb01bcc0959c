"""The spellings of einsum, all brought into one: `einsum("ij,jk->ik", a, b)`.

torch also takes the factors in a list, a list of axes after each factor instead of an equation, and an equation without
its result, which then has the letters that occur once, in alphabetical order.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from whyformer._engine.tracing.operations import Operation

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def spell_out_einsum(operation: Operation) -> Operation:
    """The same call with an equation that names its result, and with each factor an argument."""
    equation, *factors = operation.args
    if isinstance(equation, Tensor):
        equation, factors = read_axis_lists(operation.args)
    elif len(factors) == 1 and isinstance(factors[0], list | tuple):
        factors = list(factors[0])
    if "->" not in equation:
        equation = f"{equation}->{find_result_letters(equation)}"
    return replace(operation, args=(equation, *factors))


def read_axis_lists(args: tuple[Any, ...]) -> tuple[str, list[Tensor]]:
    """`einsum(a, [0, 1], b, [1, 2], [0, 2])` as an equation and its factors."""

    def spell(axes: Sequence[int]) -> str:
        return "".join("..." if axis is Ellipsis else LETTERS[axis] for axis in axes)

    count = len(args) // 2
    factors, axes = list(args[: 2 * count : 2]), args[1 : 2 * count : 2]
    equation = ",".join(spell(axis) for axis in axes)
    return (f"{equation}->{spell(args[-1])}" if len(args) % 2 else equation), factors


def find_result_letters(equation: str) -> str:
    """The letters that occur once, in order; axes of `...` come first."""
    counts = Counter(equation.replace("...", "").replace(",", "").replace(" ", ""))
    return ("..." if "..." in equation else "") + "".join(sorted(letter for letter, n in counts.items() if n == 1))
