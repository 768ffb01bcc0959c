"""The rows of CSV, TSV, JSON lines and Parquet files, each with its place; the lines of standard input."""

import csv
import gzip
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from whyformer._plain.progress import hide_status_line
from whyformer.data.example import Cells, Data, DataError, Example, Problem, collect_examples
from whyformer.data.records import Record, is_image_name

INVALID_BYTE = re.compile("[\udc80-\udcff]")  # what `surrogateescape` makes of a byte that is not UTF-8


def open_text(path: Path) -> TextIO:
    """A text file, gzipped or not, without a byte order mark. Bytes that are not UTF-8 become surrogates."""
    raw = gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # noqa: SIM115
    return io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="")  # type: ignore[arg-type]


def read_json_lines(path: Path) -> Iterator[Record]:
    """One JSON object per line."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            place = f"{path.name}:{number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield place, Problem(place, f"not valid JSON ({str(error)[:80]})")
                continue
            if has_invalid_utf8(line):
                yield place, Problem(place, "not valid UTF-8")
            else:
                yield place, row if isinstance(row, dict) else Problem(place, "not a JSON object")


def read_delimited_rows(path: Path, delimiter: str) -> Iterator[Record]:
    """Comma- or tab-separated rows, with a header unless the first row is a sentence and its class."""
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    with open_text(path) as file:
        reader = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)  # type: ignore[arg-type]
        header: list[str] | None = None
        while True:
            place = f"{path.name}:{reader.line_num + 1}"
            try:
                row = next(reader, None)
            except csv.Error as error:
                yield place, Problem(place, f"the row cannot be read ({error})")
                continue
            if row is None:
                return
            if header is None:
                header = ["text", "label"] if is_sst_row(row) else parse_header(row, path)
                if not is_sst_row(row):
                    continue
            if row:
                yield place, as_record(place, row, header)


def is_sst_row(row: Sequence[str]) -> bool:
    """A sentence and its class: SST-2 files come without a header."""
    return len(row) == 2 and re.fullmatch("[0-9]{1,18}", row[1].strip()) is not None


def parse_header(row: list[str], path: Path) -> list[str]:
    names = [name.strip() for name in row]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{path.name} has two columns named {repeated[0]!r}. Rename one.")
    return names


def as_record(place: str, row: Sequence[str], header: Sequence[str]) -> Cells | Problem:
    if len(row) != len(header):
        return Problem(place, f"{len(row)} cells under {len(header)} columns")
    if any(has_invalid_utf8(cell) for cell in row):
        return Problem(place, "not valid UTF-8")
    return dict(zip(header, row, strict=True))


def has_invalid_utf8(text: str) -> bool:
    return not text.isascii() and INVALID_BYTE.search(text) is not None


def read_parquet_rows(path: Path) -> Iterator[Record]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches(256) for row in batch.to_pylist())
            yield from ((f"{path.name}:{number}", row) for number, row in enumerate(rows))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a Parquet file, or it is damaged ({str(error)[:80]}).") from None


# --- lines on standard input ------------------------------------------------------------------------------------------


STANDARD_INPUT = "-"


def read_input_lines() -> Data:
    """An example for every line that is not blank. A path is its own name; a text is called by its line number."""
    if sys.stdin is None:
        raise DataError("Standard input is closed.")
    stream = sys.stdin.buffer if hasattr(sys.stdin, "buffer") else None
    lines = (line.decode("utf-8", "surrogateescape") for line in stream) if stream is not None else sys.stdin
    with hide_status_line():
        return collect_examples("standard input", parse_lines(lines))


def parse_lines(lines: Iterable[str]) -> Iterator[Example | Problem]:
    stripped = ((number, line.rstrip("\r\n")) for number, line in enumerate(lines, 1) if line.strip())
    for number, line in stripped:
        if is_image_name(line):
            yield Example(line, line)
        elif has_invalid_utf8(line):
            yield Problem(f"line {number}", "not valid UTF-8")
        else:
            yield Example(f"line {number}", line)
