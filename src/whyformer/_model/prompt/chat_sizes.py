"""How much a value of a chat template holds, and how much a call could make of what it is given, before it is made.

{{ "%9999999999d" % 1 }}      {{ (["a" * 100000] * 100000) | join }}      {{ ("a" * 99999).replace("a", "b" * 99999) }}
"""

import re
from collections.abc import ItemsView, KeysView, Mapping, Sequence, Set, ValuesView
from math import prod
from typing import Any

MOST_HELD = (
    2_000_000  # characters and items; ten times what a prompt may have, as a template may write less than it reads
)
LEAVES = {int, float, bool, type(None)}
GATHERS = (list, tuple, Set, KeysView, ValuesView, ItemsView)
# What makes more than the sum of what it is given, by the name of its function; `replace` without what is replaced.
MULTIPLIES = {
    "do_format", "do_indent", "do_join", "do_replace", "do_urlize", "do_wordwrap", "do_xmlattr", "expandtabs", "format",
    "format_map", "generate_lorem_ipsum", "join", "replace", "do_sum", "tojson", "translate",
}  # fmt: skip
FORMATS = {"do_format", "format", "format_map"}  # with numbers inside the text
NUMBER = re.compile(r"\d{1,20}")


def measure_size(value: Any) -> tuple[int, int]:
    """The characters and items of a value, each as often as it is reached, and its depth; at most what is too large."""
    size = depth = 0
    level = [value]
    while level and size <= MOST_HELD:
        size, depth, below = size + len(level), depth + 1, []
        if set(map(type, level)) <= LEAVES:
            return size, depth
        for one in level:
            if isinstance(one, str | bytes | range):
                size += len(one)
            elif isinstance(one, Mapping):
                below += [*one.keys(), *one.values()]
            elif isinstance(one, GATHERS):
                below += one
            elif (attributes := find_attributes(one)) is not None:
                below.append(attributes)
            if size + len(below) > MOST_HELD:
                return MOST_HELD + 1, depth
        level = below
    return size, depth


def find_attributes(value: Any) -> dict[str, Any] | None:
    """What the namespace of a template holds."""
    from jinja2.utils import Namespace

    return object.__getattribute__(value, "_Namespace__attrs") if isinstance(value, Namespace) else None


def estimate_result(name: str, given: Sequence[Any]) -> int:
    """About the most characters that the function of this name makes of these values; 0 if not more than they hold."""
    if name not in MULTIPLIES:
        return 0
    if name in ("replace", "do_replace"):
        given = [*given[:1], *given[2:3]]
    widths = [find_largest_number(one) for one in given if name in FORMATS and isinstance(one, str)]
    return prod(max(1, weigh(one)) for one in (*given, *widths))


def weigh(value: Any) -> int:
    """By what it can multiply the others."""
    return abs(value) if isinstance(value, int) else prod(measure_size(value))


def find_largest_number(text: str) -> int:
    """In the text of a format, where it may be a width."""
    return max(map(int, NUMBER.findall(text)), default=1)
