"""Scores as a table, one row per patch or token: CSV for spreadsheets, Parquet for programs.

Of a pair of texts, `segment` is 1 or 2, and `start` and `end` count from the beginning of that text.

In CSV, text that starts like a formula gets an apostrophe in front, the convention of spreadsheets: untrusted text must
not run as a formula when the file is opened. Blanks and invisible characters in front of it do not hide a formula, and
full-width signs count. Control and invisible characters are spelled out. Parquet keeps text unchanged.
"""

import csv
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO, StringIO
from typing import Any

from whyformer._plain.tokens import Grid
from whyformer.show.chips import get_piece_text
from whyformer.show.panel import Panel
from whyformer.show.visible import make_visible

FORMULA_SIGNS = frozenset("=+-@|%\N{MINUS SIGN}")  # full-width and small forms become these by normalisation
BLANK_CATEGORIES = ("Zs", "Zl", "Zp", "Cc", "Cf", "Mn", "Me")  # blanks, control and zero-width characters
BLANK_LETTERS = "\u115f\u1160\u3164\uffa0\u2800"  # Hangul fillers and the empty Braille pattern
FIELDS: dict[str, type] = {
    "example": int,
    "name": str,
    "model": str,
    "method": str,
    "target": str,
    "target_index": int,
    "versus": str,
    "probability": float,
    "place": int,
    "row": int,
    "column": int,
    "segment": int,
    "token": str,
    "start": int,
    "end": int,
    "special": bool,
    "score": float,
}


def list_score_rows(panels: Sequence[Panel], examples: Sequence[int] | None = None) -> Iterator[dict[str, Any]]:
    """One row for every patch or token, without padding; None where a field does not apply."""
    for example, panel in zip(examples or range(len(panels)), panels, strict=True):
        common = {
            "example": example,
            "name": panel.name,
            "model": panel.model,
            "method": panel.label,
            "target": panel.target.label,
            "target_index": panel.target.index,
            "versus": panel.target.versus_label,
            "probability": panel.target.probability,
        }
        for place, score in enumerate(panel.scores.tolist()):
            location = locate_score(panel, place)
            if location is not None:
                yield dict.fromkeys(FIELDS) | common | location | {"place": place, "score": score}


def locate_score(panel: Panel, place: int) -> dict[str, Any] | None:
    """The fields that say which patch or token a score belongs to; None for padding."""
    if isinstance(panel.tokens, Grid):
        row, column = divmod(place, panel.tokens.columns)
        return {"row": row, "column": column}
    if panel.tokens.padding[place]:
        return None
    start, end = panel.tokens.find_place(place) or (None, None)
    token = get_piece_text(panel.tokens, place)
    segment = panel.tokens.segments[place] if panel.tokens.second is not None else None
    return {
        "segment": None if segment is None else segment + 1,
        "token": token,
        "start": start,
        "end": end,
        "special": panel.tokens.special[place],
    }


def as_csv(table: Iterator[Mapping[str, Any]]) -> bytes:
    file = StringIO(newline="")
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(FIELDS)
    for row in table:
        writer.writerow([as_csv_cell(row[field]) for field in FIELDS])
    return file.getvalue().encode("utf-8", "backslashreplace")


def as_csv_cell(value: Any) -> Any:
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


def as_parquet(table: Iterator[Mapping[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    kinds = {int: pyarrow.int64(), str: pyarrow.string(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    rows = [{field: as_utf8(value) for field, value in row.items()} for row in table]
    schema = pyarrow.schema([(field, kinds[kind]) for field, kind in FIELDS.items()])
    file = BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), file, compression="zstd")
    return file.getvalue()


def as_utf8(value: Any) -> Any:
    """Escape what UTF-8 cannot encode, such as file names in another encoding; Parquet would reject it."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value
