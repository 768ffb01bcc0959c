"""Tables on a page: rows and columns where there is room for them, else every row as a card.

A table knows about how wide it must be (`estimate_width`); where its box is narrower, CSS shows every cell on a line of
its own with the heading of its column before it. What is wider all the same scrolls, with a shadow where it is cut.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from whyformer.show.html import Content, Html, make_element

SHORT_CELL = 28  # table cells of at most this many characters stay on one line
LONG_CELL = 18  # characters that a column of longer cells needs at least
CHARACTER, PADDING = 0.5, 0.9  # rem
FOLD_WIDTHS = tuple(range(20, 64, 4))  # rem, below which a table can become cards

NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?( ?%)?|[-–]?")

# One block for each width, as a container query cannot read a variable.
FOLDED = (
    "@container (max-width:{0}rem){{.fold-{0}{{&,& tbody,& tr,& th,& td{{display:block;text-align:left}}"
    "& thead{{position:absolute;left:-99rem}}& caption{{display:block}}"
    "& tbody tr{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(15rem,100%),1fr));gap:0 1.5rem;"
    "border-bottom:1px solid var(--line);padding:.35rem 0}}& th,& td{{border:0;padding:.1rem 0}}"
    "& th,& td.long{{grid-column:1/-1}}"
    "& td{{display:grid;grid-template-columns:minmax(5.5rem,34%) minmax(0,1fr);gap:.75rem;white-space:normal}}"
    "& td>*{{justify-self:start}}& td:empty{{display:none}}& td::before{{content:attr(data-label);color:var(--dim)}}}}"
    # maps stand beside each other, each below the name of its column
    ".panel-table.fold-{0}{{& tbody tr{{grid-template-columns:repeat(auto-fill,minmax(8.2rem,1fr));gap:.6rem;border:0}}"
    "& td{{display:flex;flex-direction:column;gap:.2rem;min-width:0;width:auto;font-size:.8rem}}}}}}\n"
)


def make_table(head: Sequence[Content], rows: Iterable[Sequence[Any]], *, caption: str = "", bars: int = 0) -> Html:
    """A table: numbers right-aligned with three digits, None as a dash, the first cell of a row as its header.

    bars: the room that bars in its cells need, in characters.
    """
    body = [list(row) for row in rows]
    columns = [[row[i] for row in body] for i in range(len(head))]
    kinds = [classify_column(column) for column in columns]
    heads = [make_element("th", name, scope="col", class_=kind) for name, kind in zip(head, kinds, strict=True)]
    labels = [get_plain_text(name) for name in head]
    lines = []
    for first, *others in body:
        cells = [
            make_element("td", format_cell(value), class_=kind, data_label=label)
            for value, label, kind in zip(others, labels[1:], kinds[1:], strict=True)
        ]
        header = make_element("th", format_cell(first), scope="row", class_=kinds[0])
        lines.append(make_element("tr", header, *cells))
    width = estimate_width(head, columns, kinds) + bars * CHARACTER
    table = make_element(
        "table",
        make_element("caption", caption) if caption else None,
        make_element("thead", make_element("tr", *heads)),
        make_element("tbody", *lines),
        class_=choose_fold(width),
    )
    return make_element("div", make_scrollable(table, caption or "Table"), class_="table-box")


def make_scrollable(content: Html, label: str) -> Html:
    """Content that may be wider than the page, scrollable with the keyboard too."""
    return make_element("div", content, class_="wide", tabindex="0", role="region", aria_label=label)


def classify_column(column: Sequence[Content]) -> str:
    """The CSS class of a column: number (right-aligned), short (never wrapped) or long."""
    if column and all(is_number(value) for value in column):
        return "number"
    return "short" if all(len(get_plain_text(value)) <= SHORT_CELL for value in column) else "long"


def is_number(value: Content) -> bool:
    """Whether a cell is a number, or text that is one: "+0.71", "85 %", "–"."""
    if isinstance(value, str):
        return not isinstance(value, Html) and NUMBER.fullmatch(value) is not None
    return not isinstance(value, bool)


def format_cell(value: Content) -> Content:
    if value is None or value != value:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else value


def get_plain_text(value: Content) -> str:
    """What a reader sees of a cell."""
    return re.sub(r"<[^>]*>", "", value) if isinstance(value, Html) else str(value)


# --- width ------------------------------------------------------------------------------------------------------------


def estimate_width(head: Sequence[Content], columns: Sequence[Sequence[Content]], kinds: Sequence[str]) -> float:
    """About how wide a table must be for its rows to be readable, in rem."""
    total = 0.0
    for name, column, kind in zip(head, columns, kinds, strict=True):
        words = [len(word) for word in get_plain_text(name).split()]
        cells = [len(get_plain_text(format_cell(value))) for value in column]
        needed = max(cells, default=0) if kind != "long" else LONG_CELL
        total += max(needed, *words, 1) * CHARACTER + PADDING
    return total


def choose_fold(width: float) -> str:
    """The CSS class of a table that becomes cards in a box narrower than `width`, in rem."""
    return f"fold-{next((fold for fold in FOLD_WIDTHS if fold >= width), FOLD_WIDTHS[-1])}"


def make_fold_css() -> str:
    return "".join(FOLDED.format(width) for width in FOLD_WIDTHS)
