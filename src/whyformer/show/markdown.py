"""Untrusted text in Markdown: it stays text, in a table cell or between two asterisks.

A name must not end its cell (`|`, a line break), be emphasised, start code, a formula, a link or an HTML element. What
a backslash protects gets a backslash; what it does not protect everywhere becomes an HTML entity. A plain web address
would become a link too, so its colon or dot is escaped.
"""

import re
from collections.abc import Sequence

from whyformer.show.visible import make_visible

MARKDOWN_ESCAPES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    "|": "&#124;",
    "@": "&#64;",
    **{sign: f"\\{sign}" for sign in "\\`*[]~$#!"},
}
OUTER_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")  # an underscore inside a word is no emphasis
BARE_LINK = re.compile(r"(:)(?=//)|(?<=www)(\.)|(?<=mailto)(:)|(?<=xmpp)(:)", re.IGNORECASE)


def escape_markdown(text: str) -> str:
    """Untrusted text, safe in one line of Markdown."""
    escaped = "".join(MARKDOWN_ESCAPES.get(letter, letter) for letter in make_visible(text))
    escaped = OUTER_UNDERSCORE.sub(r"\\_", escaped)
    return BARE_LINK.sub(lambda match: f"\\{match[0]}", escaped)


def write_table(rows: Sequence[Sequence[str]], *, right: Sequence[bool] = ()) -> str:
    """A table, of which the first row is the header; right: columns that are aligned to the right."""
    header, *body = [[escape_markdown(cell) for cell in row] for row in rows]
    line = ["---:" if is_right else "---" for is_right in right] or ["---"] * len(header)
    return "".join(f"| {' | '.join(row)} |\n" for row in [header, line, *body])
