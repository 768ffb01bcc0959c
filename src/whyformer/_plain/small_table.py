"""A small table or card in HTML, for what a notebook shows of things that are no results: models, methods, prompts.

Everything is escaped; there is no style sheet, so it follows the notebook's light or dark mode.
"""

from collections.abc import Iterable, Sequence
from html import escape

CELL = "text-align:left;vertical-align:top;padding:.15rem .9rem .15rem 0;border:0"
FAINT = "opacity:.7;font-weight:normal"


def make_small_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> str:
    """Rows of cells under headings."""
    head = "".join(f'<th style="{CELL};{FAINT}">{escape(heading)}</th>' for heading in headings)
    return wrap_table(title, f"<thead><tr>{head}</tr></thead>", rows)


def make_card(title: str, facts: Iterable[tuple[str, object]]) -> str:
    """A title, and one fact per line; facts without a value are left out."""
    return wrap_table(title, "", [(name, value) for name, value in facts if value not in (None, "")])


def wrap_table(title: str, head: str, rows: Iterable[Sequence[object]]) -> str:
    cells = ("".join(f'<td style="{CELL}">{escape(str(cell))}</td>' for cell in row) for row in rows)
    body = "".join(f'<tr style="background:none">{row}</tr>' for row in cells)
    above = f"<div><strong>{escape(title)}</strong></div>" if title else ""
    table = f'<table style="border-collapse:collapse;margin:.25rem 0">{head}<tbody>{body}</tbody></table>'
    return f'<div style="max-width:60rem;overflow-x:auto">{above}{table}</div>'


def fit_in_line(text: str, length: int = 60) -> str:
    """The text in one line of at most this many characters."""
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"
