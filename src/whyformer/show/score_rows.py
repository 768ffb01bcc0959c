"""The numbers as a table, one row a patch or token: CSV for spreadsheets, Parquet for programs.

A cell of a CSV that begins like a formula gets an apostrophe in front, as spreadsheets ask for: text from anybody must
not become a command when the file is opened. Parquet keeps text as it is.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO, StringIO
from typing import Any

from whyformer._plain.tokens import Grid
from whyformer.show.panel import Panel
from whyformer.show.terminal import characters_of_piece

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")
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
    "token": str,
    "start": int,
    "end": int,
    "special": bool,
    "score": float,
}


def list_score_rows(cases: Sequence[Panel], examples: Sequence[int] | None = None) -> Iterator[dict[str, Any]]:
    """One row for every patch, or token that is no padding; None where a field means nothing."""
    for example, case in zip(examples or range(len(cases)), cases, strict=True):
        common = {
            "example": example,
            "name": case.name,
            "model": case.model,
            "method": case.label,
            "target": case.target.label,
            "target_index": case.target.index,
            "versus": case.target.versus_label,
            "probability": case.target.probability,
        }
        for place, score in enumerate(case.scores.tolist()):
            found = locate_score(case, place)
            if found is not None:
                yield dict.fromkeys(FIELDS) | common | found | {"place": place, "score": score}


def locate_score(case: Panel, place: int) -> dict[str, Any] | None:
    if isinstance(case.tokens, Grid):
        row, column = divmod(place, case.tokens.columns)
        return {"row": row, "column": column}
    if case.tokens.padding[place]:
        return None
    start, end = case.tokens.spans[place] or (None, None)
    token = characters_of_piece(case.tokens, place)
    return {"token": token, "start": start, "end": end, "special": case.tokens.special[place]}


def as_csv(table: Iterator[Mapping[str, Any]]) -> bytes:
    file = StringIO(newline="")
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(FIELDS)
    for row in table:
        writer.writerow([as_csv_cell(row[field]) for field in FIELDS])
    return file.getvalue().encode("utf-8", "backslashreplace")


def as_csv_cell(value: Any) -> Any:
    """Numbers as they are, exactly; text that a spreadsheet would carry out with an apostrophe in front."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        value = value.replace("\0", "\\x00")
        return f"'{value}" if value.lstrip(" ").startswith(FORMULA_STARTS) else value
    return value


def as_parquet(table: Iterator[Mapping[str, Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    kinds = {int: pyarrow.int64(), str: pyarrow.string(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    listed = [{field: as_utf8(value) for field, value in row.items()} for row in table]
    schema = pyarrow.schema([(field, kinds[kind]) for field, kind in FIELDS.items()])
    file = BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(listed, schema=schema), file, compression="zstd")
    return file.getvalue()


def as_utf8(value: Any) -> Any:
    """File names that are not UTF-8 would be refused."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value
