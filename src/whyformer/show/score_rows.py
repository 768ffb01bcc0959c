"""Scores as a table, one row per patch or token: CSV for spreadsheets, Parquet for programs.

Of a pair of texts, `segment` is 1 or 2, and `start` and `end` count from the beginning of that text.

In CSV, text that starts like a formula gets an apostrophe in front, the convention of spreadsheets: untrusted text must
not run as a formula when the file is opened. Blanks and invisible characters in front of it do not hide a formula, and
full-width signs count. Control and invisible characters are spelled out. Parquet keeps text unchanged.
"""

import csv
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from io import BytesIO, StringIO
from typing import NamedTuple, TypeAlias, TypeVar, get_args, get_type_hints

from whyformer._plain.tokens import Grid
from whyformer.show.chips import get_piece_text
from whyformer.show.panel import Panel
from whyformer.show.visible import make_visible

FORMULA_SIGNS = frozenset("=+-@|%\N{MINUS SIGN}")  # full-width and small forms become these by normalisation
BLANK_CATEGORIES = ("Zs", "Zl", "Zp", "Cc", "Cf", "Mn", "Me")  # blanks, control and zero-width characters
BLANK_LETTERS = "\u115f\u1160\u3164\uffa0\u2800"  # Hangul fillers and the empty Braille pattern

CellValue: TypeAlias = str | bool | int | float | None
StoredValue = TypeVar("StoredValue", str, CellValue)


class ScoreRow(NamedTuple):
    """The score of one patch or token; None where a field does not apply."""

    example: int
    name: str
    model: str
    method: str
    target: str
    target_index: int
    versus: str | None
    probability: float | None
    place: int
    row: int | None = None
    column: int | None = None
    segment: int | None = None
    token: str | None = None
    start: int | None = None
    end: int | None = None
    special: bool | None = None
    score: float = 0.0
    top_hidden: float | None = None  # the answer with the highest words hidden, where that was checked
    all_hidden: float | None = None


def list_score_rows(panels: Sequence[Panel]) -> Iterator[ScoreRow]:
    """One row for every patch or token, without padding."""
    for example, panel in enumerate(panels):
        target, tokens = panel.target, panel.tokens
        about = (example, panel.name, panel.model, panel.label)
        hidden = panel.hidden_answers or (None, None)
        answer = (target.label, target.index, target.versus_label, target.probability)
        for place, score in enumerate(panel.scores.tolist()):
            row = ScoreRow(*about, *answer, place, score=score, top_hidden=hidden[0], all_hidden=hidden[1])
            if isinstance(tokens, Grid):
                yield row._replace(row=place // tokens.columns, column=place % tokens.columns)
            elif not tokens.padding[place]:
                start, end = tokens.find_place(place) or (None, None)
                segment = tokens.segments[place] if tokens.second is not None else None
                yield row._replace(
                    segment=None if segment is None else segment + 1, token=get_piece_text(tokens, place),
                    start=start, end=end, special=tokens.special[place],
                )  # fmt: skip


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[CellValue]]) -> bytes:
    file = StringIO(newline="")
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([as_csv_cell(value) for value in row] for row in rows)
    return file.getvalue().encode("utf-8", "backslashreplace")


def as_csv_cell(value: CellValue) -> CellValue:
    """Numbers at full precision; text that a spreadsheet would run as a formula gets an apostrophe in front."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(value)
    return escape_csv_text(value) if isinstance(value, str) else value


@lru_cache(maxsize=64)  # the rows of an example repeat its name, which may be a long text
def escape_csv_text(text: str) -> str:
    """Untrusted text in one line, safe in a spreadsheet."""
    return f"'{make_visible(text)}" if is_formula(text) else make_visible(text)


def is_formula(text: str) -> bool:
    """Whether the first character that can be seen is a sign with which spreadsheets start a formula."""
    first = next((character for character in text if not is_blank(character)), "")
    return unicodedata.normalize("NFKC", first)[:1] in FORMULA_SIGNS


def is_blank(character: str) -> bool:
    return unicodedata.category(character) in BLANK_CATEGORIES or character in BLANK_LETTERS


def as_parquet(rows: Iterable[ScoreRow]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    kinds = {int: pyarrow.int64(), str: pyarrow.string(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    hints = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(ScoreRow).items()}
    schema = pyarrow.schema([(name, kinds[hint[0]]) for name, hint in hints.items()])
    table = [{name: as_utf8(value) for name, value in row._asdict().items()} for row in rows]
    file = BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table, schema=schema), file, compression="zstd")
    return file.getvalue()


def as_utf8(value: StoredValue) -> StoredValue:
    """Escape what UTF-8 cannot encode, such as file names in another encoding; Parquet would reject it."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value
