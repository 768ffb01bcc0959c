"""Loops inside a block that run as often as the input asks for: one turn for each expert that a token is sent to.

A plan is a sequence of steps, and how many turns such a loop takes depends on the routing. So the recorder notes where
in the code each operation was called. Operations called from one loop of the block's code, turn after turn the same,
become one turn in the plan; a lean run asks its own call stack whether the loop is still running (`Loop.is_running`).
"""

import dis
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
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

    def is_running(self, frame: FrameType | None) -> bool:
        """Whether the innermost call of the function with the loop is inside it."""
        for _ in range(MOST_FRAMES):
            if frame is None:
                return False
            if frame.f_code is self.code:
                return self.first <= frame.f_lasti <= self.last
            frame = frame.f_back
        return False


def read_stack(frame: FrameType | None) -> tuple[Spot, ...]:
    """The calls that are running, from the outermost."""
    spots = []
    while frame is not None:
        spots.append(Spot(frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(reversed(spots))


def count_frames() -> int:
    """How many calls are running, the caller's included."""
    return len(read_stack(sys._getframe(1)))


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
            for number, (before, after) in enumerate(zip(inside, inside[1:], strict=False), position + 1):
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
    """runs: the loops, with the steps that their turns start at. Loops whose turns differ stay as they ran."""
    kept: list[S] = []
    loops: list[Loop] = []
    renumbered: list[int | None] = []
    turns_at = {starts[0]: (place, starts) for place, starts in runs}
    number = 0
    while number < len(steps):
        place, starts = turns_at.get(number, (None, [number, number + 1]))
        turns = [tuple(steps[one:other]) for one, other in zip(starts, starts[1:], strict=False)]
        turns = [turn for turn in turns if turn]
        is_loop = place is not None and len(set(turns)) == 1
        start = len(kept)
        kept += turns[0] if is_loop else steps[starts[0] : starts[-1]]
        if is_loop:
            assert place is not None
            loops.append(Loop(start, len(kept), place.code, place.first, place.last))
            renumbered += [None] * (starts[-1] - starts[0])
        else:
            renumbered += range(start, len(kept))
        number = starts[-1]
    return Folded(kept, tuple(loops), [*renumbered, len(kept)])
