"""BulkRun: what a bulk run left in its folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from whyformer._plain.small_table import make_card
from whyformer._runs.parts import PARTS_FOLDER, read_part
from whyformer.results.result import require_pandas

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyarrow import Table


@dataclass(frozen=True)
class FinishedRun:
    """What a run left in its folder. The rows are Parquet files: pandas.read_parquet(run.parts)."""

    folder: Path
    items: int
    failed: int  # items with an error record
    computed: int  # items of this call; the others were done before

    @property
    def parts(self) -> Path:
        """The folder of Parquet files, one row for each item, and method if there are several."""
        return self.folder / PARTS_FOLDER

    def table(self, columns: list[str] | None = None) -> "Table":
        """All rows as a pyarrow table. A part that is damaged is refused."""
        from pyarrow import concat_tables

        return concat_tables(read_part(path, columns) for path in sorted(self.parts.glob("*.parquet")))

    def records(self) -> list[dict[str, object]]:
        """The rows as mappings; of a large run use `table` or the Parquet files."""
        return self.table().to_pylist()

    def to_pandas(self) -> "DataFrame":
        """The rows as a data frame of pandas."""
        require_pandas()
        return self.table().to_pandas()


@dataclass(frozen=True, repr=False)
class BulkRun(FinishedRun):
    """A finished run. The rows are Parquet files: pandas.read_parquet(run.parts)."""

    methods: tuple[str, ...]
    notes: tuple[str, ...] = ()  # on the data as a whole

    def errors(self) -> Iterator[dict[str, str]]:
        """id, method, error (a code) and message of every error record."""
        table = self.table(["id", "method", "error", "message"])
        yield from (row for row in table.to_pylist() if row["error"] is not None)

    def __repr__(self) -> str:
        return f"<BulkRun of {self.items:,} items by {', '.join(self.methods)} in {self.folder}>"

    def _repr_html_(self) -> str:
        """A small card for notebooks."""
        facts = {
            "items": f"{self.items:,}, {self.failed:,} failed",
            "methods": ", ".join(self.methods),
            "rows": self.parts,
            "notes": " ".join(self.notes),
        }
        return make_card(f"Bulk run {self.folder.name}", facts.items())

    def __str__(self) -> str:
        done = f"{self.items - self.failed:,} of {self.items:,} items explained by {', '.join(self.methods)}"
        failed = f"; {self.failed:,} failed, see the column error" if self.failed else ""
        return " ".join([f"{done}{failed}. Rows are in {self.parts}.", *self.notes])
