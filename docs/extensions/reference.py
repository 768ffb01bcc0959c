"""Docstrings in the reference. They are not RST: paragraphs, lists and indented examples are translated one by one."""

import re
from collections.abc import Iterator
from typing import Any

from docutils.utils import unescape
from sphinx.application import Sphinx

ENTRY = re.compile(r"(?P<name>[*\w]+(?:, [*\w]+)*): (?P<text>.+)")  # a parameter and what it means


def translate_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    blocks = [block for block in re.split(r"\n\s*\n", "\n".join(lines)) if block.strip()]
    lines[:] = [line for block in blocks for line in (*translate_block(block.splitlines()), "")]


def translate_block(block: list[str]) -> Iterator[str]:
    """Indented: an example. A star or the name of a parameter begins an entry of a list. Else: a paragraph."""
    if all(line.startswith("    ") for line in block):
        yield from ("::", "", *(f"  {line}" for line in block))
    elif block[0].startswith("* ") or all(ENTRY.match(line) for line in block):
        for entry in gather_entries(block):
            found = ENTRY.match(entry)
            yield f"* ``{found['name']}``: {escape_markup(found['text'])}" if found else f"* {escape_markup(entry)}"
    else:
        yield escape_markup(" ".join(block))


def gather_entries(block: list[str]) -> list[str]:
    """The entries of a list, each with the lines that continue it."""
    entries: list[str] = []
    for line in block:
        if line.startswith("* ") or (ENTRY.match(line) and not block[0].startswith("* ")):
            entries.append(line.removeprefix("* "))
        else:
            entries[-1] += f" {line.strip()}"
    return entries


def escape_markup(text: str) -> str:
    """Backslashes before what RST reads as markup; code in single backticks becomes a literal."""
    parts = unescape(" ".join(text.split())).split("`")
    shown = [re.sub(r"([*_|\\])", r"\\\1", part) for part in parts]
    if len(parts) % 2 == 0:
        return "\\`".join(shown)
    return "".join(f"\\ ``{code}``\\ " if i % 2 and code else shown[i] for i, code in enumerate(parts)).strip()


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", translate_docstring)
    return {"parallel_read_safe": True}
