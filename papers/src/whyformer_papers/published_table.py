"""PublishedTable: numbers as they were printed, and where they come from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from whyformer_papers.published_numbers import PublishedNumber, Source, Spread
from whyformer_papers.table_result import MOST_COLUMNS, TableOutline, TableResult, TextRows


@dataclass(frozen=True)
class PublishedTable(TableResult):
    """One published table."""

    title: str
    source: Source
    columns: Sequence[str]
    rows: Mapping[str, Sequence[PublishedNumber]]
    note: str = ""

    def __post_init__(self) -> None:
        for row, numbers in self.rows.items():
            if len(numbers) != len(self.columns):
                raise ValueError(f"{self.title}: the row {row!r} has {len(numbers)} of {len(self.columns)} numbers")

    def numbers(self) -> Iterator[float]:
        """Every number, in reading order."""
        for row in self.rows.values():
            for cell in row:
                if isinstance(cell, Spread):
                    yield from (number for number in cell if number is not None)
                elif cell is not None:
                    yield cell

    def text_rows(self) -> TextRows:
        """The table as text; the first row is the header. With many columns it is turned round."""
        rows = [["", *self.columns], *([row, *map(format_published, cells)] for row, cells in self.rows.items())]
        return rows if len(self.columns) <= MOST_COLUMNS else [list(row) for row in zip(*rows, strict=True)]

    def outline(self) -> TableOutline:
        source = f"Source: {self.source}."
        remarks = [self.note] if self.note else []
        return TableOutline(self.title, self.text_rows(), source, remarks=remarks, lead=f"{source} {self.note}")


def format_published(number: PublishedNumber) -> str:
    if number is None:
        return "–"
    return str(number) if isinstance(number, Spread) else f"{number:g}"
