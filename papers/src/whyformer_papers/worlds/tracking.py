"""A world of assignments: the statement that sets the printed value is known, and so is every step that leads to it.

    k = 47 ; r = 12 ; c = k ; m = r ; print c :        prompt
    c = k ; k = 47 ; answer 47                         what the model writes: its chain of steps, then the answer

`c` was set by a *link*, `c = k`, which leads to the *source*, `k = 47`. The other statements are of the same two kinds
and lead to other values, all different, so that exactly one source has the answer. A statement uses only names that
are set before it. Names, values and the order of independent statements are random.

For a language model that writes the chain, the answer can be copied from the last step of the chain, that step comes
from the source, and each step before it from a link: where relevance should go is known for every token it writes.
Programs may print two names, and then two chains are written, of which each answer needs one.

One program in five, selected by a checksum, is held out of all training; `generate` returns those by default.
"""

import random
import string
from dataclasses import dataclass
from functools import partial

from whyformer.demo.draws import Part, generate_part, part_of, refuse_outside_range

NAMES = tuple(string.ascii_lowercase)
VALUES = tuple(str(value) for value in range(10, 100))
SIGNS = ("=", ";", "print", ":", "answer")
VOCABULARY = (*SIGNS, *NAMES, *VALUES)
MOST_LINKS = 3
SOURCES = (2, 3, 4)  # how many values are set in a program, the one that is printed among them
OTHER_LINKS = (1, 2, 3)  # how many links lead elsewhere


@dataclass(frozen=True)
class Assignments:
    """A program that prints one value, and the statements that lead to it."""

    statements: tuple[tuple[str, str], ...]  # (name, the value or the other name that it is set to)
    path: tuple[int, ...]  # the statements from the printed name to its value: links, then the source
    other_path: tuple[int, ...] = ()  # the same for a second name that is printed too, with nothing in common

    @property
    def source(self) -> int:
        """The statement that sets the printed value."""
        return self.path[-1]

    @property
    def value(self) -> str:
        """The printed value."""
        return self.statements[self.source][1]

    @property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """The path of every printed name."""
        return (self.path, self.other_path) if self.other_path else (self.path,)

    @property
    def lines(self) -> tuple[str, ...]:
        """The statements as text."""
        return tuple(f"{name} = {value} ;" for name, value in self.statements)

    @property
    def prompt(self) -> str:
        return " ".join((*self.lines, "print", *(self.statements[path[0]][0] for path in self.paths), ":"))

    @property
    def chain(self) -> str:
        """The steps from every printed name to its value, as the model writes them."""
        return " ".join(self.lines[i] for path in self.paths for i in path)

    @property
    def continuation(self) -> str:
        """What follows the prompt: the chain and the answer."""
        return " ".join(("", self.chain, "answer", *(self.statements[path[-1]][1] for path in self.paths)))

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The characters of each statement in the prompt."""
        starts = [sum(len(line) + 1 for line in self.lines[:i]) for i in range(len(self.lines))]
        return tuple((start, start + len(line)) for start, line in zip(starts, self.lines, strict=True))


def generate(
    count: int, seed: int, *, links: int | None = None, prints_two: bool = False, part: Part = "held-out"
) -> tuple[Assignments, ...]:
    """`count` programs; program i depends only on the arguments other than `count`, and on i.

    links: how many links lead from the printed name to its value, 1 to 3; by default drawn for each program.
    prints_two: another name is printed too. Its steps are written after those of the first, and do not lead to its
    value. The bundled model does not know such programs; training/tracking has two that do.
    """
    if links is not None:
        refuse_outside_range("links", links, 1, MOST_LINKS)
    draw = partial(_draw_program, wanted_links=links, prints_two=prints_two, part=part)
    return generate_part(f"tracking {seed} {links}{' two' * prints_two}", count, part, draw)


def _draw_program(rng: random.Random, wanted_links: int | None, prints_two: bool, part: Part) -> Assignments | None:
    links = rng.randrange(MOST_LINKS) + 1 if wanted_links is None else wanted_links
    sources, others = rng.choice(SOURCES), rng.choice(OTHER_LINKS)
    names = rng.sample(NAMES, sources + links + others)
    set_to = dict(zip(names[:sources], rng.sample(VALUES, sources), strict=True))
    printed = names[0]
    for name in names[sources : sources + links]:  # the path from the first source
        set_to[name] = printed
        printed = name
    elsewhere = names[1:sources]
    for name in names[sources + links :]:
        set_to[name] = rng.choice(elsewhere)
        elsewhere.append(name)
    ordered = _shuffle_statements(rng, set_to)
    paths = [_find_path(set_to, ordered, name) for name in ((printed, elsewhere[-1]) if prints_two else (printed,))]
    program = Assignments(tuple((name, set_to[name]) for name in ordered), *paths)
    return program if part_of(program.prompt) == part else None


def _find_path(set_to: dict[str, str], ordered: list[str], printed: str) -> tuple[int, ...]:
    """The statements from a name to its value."""
    path = [printed]
    while set_to[path[-1]] in set_to:
        path.append(set_to[path[-1]])
    return tuple(map(ordered.index, path))


def _shuffle_statements(rng: random.Random, set_to: dict[str, str]) -> list[str]:
    """The names in a random order in which each comes after the one that it is set to."""
    left, ordered = list(set_to), []
    while left:
        ready = [name for name in left if set_to[name] not in left]
        ordered.append(rng.choice(ready))
        left.remove(ordered[-1])
    return ordered
