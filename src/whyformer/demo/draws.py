"""Items drawn at random for the generated worlds, and the fifth of them that is held out of all training.

The numbers and names that generators are given are checked here as well.
"""

import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import DTypeLike

from whyformer.errors import InputError, suggest_nearest


def refuse_outside_range(name: str, value: object, low: int, high: int | None = None) -> None:
    """Refuse what is not a whole number in this range."""
    try:
        is_inside = low <= index(value) and (high is None or index(value) <= high)  # type: ignore[arg-type]
    except TypeError:
        is_inside = False
    if not is_inside:
        wanted = f">= {low}" if high is None else f"between {low} and {high}"
        raise InputError(f"{name} must be {wanted}, got {value!r}.", code="E_OPTION")


def refuse_unknown_name(what: str, name: str, known: Iterable[str]) -> None:
    """Refuse what is not a known name, and say which are."""
    known = list(known)
    if not isinstance(name, str) or name not in known:
        raise InputError(
            f"There is no {what} {name!r}.{suggest_nearest(str(name), known)} Available: {', '.join(known)}.",
            code="E_OPTION",
        )


Part = Literal["held-out", "training"]
PARTS = get_args(Part)
T = TypeVar("T")


def part_of(text: str) -> Part:
    """The part that an item with this text belongs to, by a checksum: one in five is held out."""
    return "held-out" if zlib.crc32(text.encode()) % 5 == 0 else "training"


def generate_part(name: str, count: int, part: Part, draw: Callable[[random.Random], T | None]) -> tuple[T, ...]:
    """`count` items of one part; item i depends only on `name` (which has the seed) and i.

    draw: an item, or None to draw again.
    """
    refuse_outside_range("count", count, 0)
    if part not in PARTS:
        raise InputError(f"part must be one of {', '.join(PARTS)}, got {part!r}.", code="E_OPTION")
    return tuple(_draw_until(draw, random.Random(f"{name} {i}")) for i in range(count))


def _draw_until(draw: Callable[[random.Random], T | None], rng: random.Random) -> T:
    while (item := draw(rng)) is None:
        pass
    return item


def draw_index(rng: random.Random, below: int) -> int:
    return int(rng.random() * below)  # random() gives the same numbers in every Python version; choice() does not


def pick(rng: random.Random, options: Sequence[T]) -> T:
    return options[draw_index(rng, len(options))]


def take(rng: random.Random, left: list[T]) -> T:
    """An item, which is removed from those left."""
    return left.pop(draw_index(rng, len(left)))


def draw_some(rng: random.Random, options: Sequence[T], count: int) -> list[T]:
    """`count` different items, in random order."""
    left = list(options)
    return [take(rng, left) for _ in range(count)]


def generate_images(count: int, seed: int, draw: Callable[[np.random.Generator], T], *key: int) -> list[T]:
    """`count` images with their ground truth; image i depends only on `seed`, i and the key of the world."""
    refuse_outside_range("count", count, 0)
    refuse_outside_range("seed", seed, 0)
    return [draw(np.random.default_rng([seed, i, *key])) for i in range(count)]


def stack_columns(rows: Sequence[tuple], *columns: tuple[DTypeLike, tuple[int, ...]]) -> list[np.ndarray]:
    """Each column of the rows as one array; columns: the type and the shape of an entry."""
    return [
        np.array([row[index] for row in rows], dtype).reshape(len(rows), *shape)
        for index, (dtype, shape) in enumerate(columns)
    ]
