"""Loops inside a block that run as often as the input asks for: one turn for each expert that a token is sent to.

A plan is a sequence of steps, and how many turns such a loop takes depends on the routing. So the recorder notes where
in the code each operation was called. Operations called from one loop of the block's code, turn after turn the same,
become one turn in the plan; a planned run asks its call stack whether the loop is still running (`Loop.is_running`).
"""

import dis
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise
from types import CodeType, FrameType
from typing import NamedTuple, TypeVar

import torch

S = TypeVar("S")
TORCH = next(iter(torch.__path__))  # its own loops are not those of a model
MOST_FRAMES = 64  # between an operation and the loop that it is in


class Spot(NamedTuple):
    """Which instruction of a function is running."""

    code: CodeType
    offset: int


@dataclass(frozen=True)
class Loop:
    """Steps of one turn, from `start` up to `stop`, and the instructions of the loop."""

    start: int
    stop: int
    code: CodeType
    first: int
    last: int

    def is_running(self) -> bool:
        """Whether the innermost call of the function with the loop is inside it."""
        frame = find_caller()
        for _ in range(MOST_FRAMES):
            if frame is None:
                return False
            if frame.f_code is self.code:
                return self.first <= frame.f_lasti <= self.last
            frame = frame.f_back
        return False


def find_caller() -> FrameType | None:
    """Of the function that asks for it."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame and frame.f_back
    return frame


def read_stack() -> tuple[Spot, ...]:
    """The calls that are running, from the outermost to the caller's."""
    spots, frame = [], find_caller()
    while frame is not None:
        spots.append(Spot(frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(reversed(spots))


@cache
def list_loops(code: CodeType) -> tuple[tuple[int, int], ...]:
    """The first and last instruction of each loop of a function, the outermost first."""
    if code.co_filename.startswith(TORCH):
        return ()
    jumps = (one for one in dis.get_instructions(code) if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs)
    return tuple(sorted((one.argval, one.offset) for one in jumps if one.argval <= one.offset))


class Place(NamedTuple):
    """The loop that an operation was called from, and the spots inside that say where in a turn it is."""

    code: CodeType
    first: int
    last: int
    inside: tuple[int, ...]


def find_place(stack: Sequence[Spot], depth: int) -> Place | None:
    """The outermost loop that an operation was called from, of functions that run inside a block."""
    for number, spot in enumerate(stack[depth:], depth):
        for first, last in list_loops(spot.code):
            if first <= spot.offset <= last:
                return Place(spot.code, first, last, tuple(one.offset for one in stack[number:]))
    return None


def find_loops(places: Sequence[Place | None]) -> list[tuple[Place, list[int]]]:
    """Loops that ran, with the positions at which their turns start, and at the end where the last one stops."""
    found: list[tuple[Place, list[int]]] = []
    position = 0
    for _, group in groupby(places, lambda place: place and place[:3]):
        inside = list(group)
        if inside[0] is not None:
            starts = [position]
            for number, (before, after) in enumerate(pairwise(inside), position + 1):
                assert before is not None and after is not None
                if after.inside <= before.inside:
                    starts.append(number)
            found.append((inside[0], [*starts, position + len(inside)]))
        position += len(inside)
    return found


class Folded(NamedTuple):
    """Steps in which each loop has one turn; and what each step, and the end, became: None if it was left out."""

    steps: list
    loops: tuple[Loop, ...]
    renumbered: list[int | None]


def fold(steps: Sequence[S], runs: Sequence[tuple[Place, list[int]]]) -> Folded:
    """runs: the loops, with the steps that their turns start at.

    The first turn may differ from the others: a recurrence has no state before it. Loops whose other turns differ stay
    as they ran, and so do those of one turn: whether its results are used by a next one is not known.
    """
    kept: list[S] = []
    loops: list[Loop] = []
    renumbered: list[int | None] = []
    starts_of = {starts[0]: (place, starts) for place, starts in runs}
    number = 0
    while number < len(steps):
        place, starts = starts_of.get(number, (None, [number, number + 1]))
        starts = list(dict.fromkeys(starts))  # turns without a step
        turns = [tuple(steps[one:other]) for one, other in pairwise(starts)]
        is_loop = place is not None and len(turns) > 1
        alike = next((count for count in (0, 1) if is_loop and len(set(turns[count:])) == 1), len(turns))
        kept += steps[number : starts[alike]]
        renumbered += range(len(kept) - (starts[alike] - number), len(kept))
        if is_loop and alike < len(turns):
            assert place is not None
            loops.append(Loop(len(kept), len(kept) + len(turns[alike]), place.code, place.first, place.last))
            kept += turns[alike]
            renumbered += [None] * (starts[-1] - starts[alike])
        number = starts[-1]
    return Folded(kept, tuple(loops), [*renumbered, len(kept)])
