"""Paths of images, or texts, on standard input: one per line."""

import sys
from collections.abc import Iterable, Iterator

from whyformer._plain.progress import hide_status_line
from whyformer.data.example import Data, DataError, Example, Problem, collect_examples
from whyformer.data.records import is_image_name
from whyformer.data.tables import has_invalid_utf8

STANDARD_INPUT = "-"
NAME = "standard input"


def read_input_lines() -> Data:
    """An example for every line that is not blank. A path is its own name; a text is called by its line number."""
    if sys.stdin is None:
        raise DataError("Standard input is closed.")
    stream = sys.stdin.buffer if hasattr(sys.stdin, "buffer") else None
    lines = (line.decode("utf-8", "surrogateescape") for line in stream) if stream is not None else sys.stdin
    with hide_status_line():
        return collect_examples(NAME, parse_lines(lines))


def parse_lines(lines: Iterable[str]) -> Iterator[Example | Problem]:
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n")
        if not line.strip():
            continue
        if is_image_name(line):
            yield Example(line, line)
        elif has_invalid_utf8(line):
            yield Problem(f"line {number}", "not valid UTF-8")
        else:
            yield Example(f"line {number}", line)
