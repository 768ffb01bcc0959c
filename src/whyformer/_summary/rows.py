"""The rows of a bulk run: plan.json, and one Parquet part after another.

Only one part is in memory at a time. A file that is damaged by the checksum inside it, belongs to another run, or whose
rows contradict themselves, is an error that names it; a missing part is a note.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from whyformer._model import name_source
from whyformer._plain.json_value import JsonValue
from whyformer._runs.parts import PARTS_FOLDER, BulkRow, iterate_part_rows
from whyformer._runs.plan import PLAN_FILE, DamagedPlan, OtherPlanVersion, PlanFields, read_plan_file
from whyformer.errors import InputError


@dataclass(frozen=True)
class StoredRun:
    """The folder of a bulk run."""

    folder: Path
    plan: PlanFields = field(repr=False)
    parts: Mapping[int, Path] = field(repr=False)  # by number
    notes: tuple[str, ...] = ()

    def find_name(self, of: str) -> str | None:
        """The name of the model or the data, if the plan has one."""
        name = get_planned(self.plan, of, "name")
        return name if isinstance(name, str) else None

    @property
    def model_name(self) -> str | None:
        name = self.find_name("model")
        return None if name is None else name_source(name)

    def iterate_parts(self) -> Iterator[list[BulkRow]]:
        """The rows of each part, with a row that occurs twice (the same item and method) only once."""
        seen = SeenRows()
        for number in self.parts:
            yield [row for row in self.iterate_rows(number) if seen.add(row.method, row.position)]

    def iterate_rows(self, number: int) -> Iterator[BulkRow]:
        return iterate_part_rows(self.parts[number], self.plan, number)


def get_planned(plan: JsonValue, *names: str) -> JsonValue:
    """A field of a plan inside others; None if there is none."""
    for name in names:
        plan = plan.get(name) if isinstance(plan, Mapping) else None
    return plan


class SeenRows:
    """Which rows were read already: one bit per item and method."""

    PAGE = 2**16

    def __init__(self) -> None:
        self.pages: dict[tuple[str, int], np.ndarray] = {}

    def add(self, method: str, position: int) -> bool:
        """Whether the row is new."""
        page, offset = divmod(position, self.PAGE)
        bits = self.pages.setdefault((method, page), np.zeros(self.PAGE // 8, np.uint8))
        byte, bit = divmod(offset, 8)
        is_new = not bits[byte] >> bit & 1
        bits[byte] |= 1 << bit
        return is_new


def open_stored_run(folder: Path) -> StoredRun:
    """The plan and the parts of a finished or unfinished run."""
    plan = read_run_plan(folder / PLAN_FILE)
    paths = {path.stem.removeprefix("part-"): path for path in (folder / PARTS_FOLDER).glob("part-*.parquet")}
    parts = {int(number): path for number, path in sorted(paths.items()) if number.isdecimal() and path.is_file()}
    if not parts:
        raise InputError(
            f"{folder} has no finished part: no {PARTS_FOLDER}/part-*.parquet. Run whyformer bulk first.", code="E_DATA"
        )
    missing = sorted(set(range(max(parts) + 1)) - set(parts))
    notes = (f"{describe_parts(missing)} missing; the summary covers the others.",) if missing else ()
    return StoredRun(folder, plan, dict(sorted(parts.items())), notes)


def describe_parts(numbers: list[int]) -> str:
    named = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
    return f"Part {named} is" if len(numbers) == 1 else f"Parts {named} are"


def read_run_plan(path: Path) -> PlanFields:
    """What plan.json holds."""
    if not path.is_file():  # missing, or a pipe that would block for ever
        raise InputError(f"{path.parent} is not the folder of a bulk run: it has no {path.name}.", code="E_DATA")
    repair = "Restore it, or run whyformer bulk again into another folder."
    try:
        return read_plan_file(path)
    except OtherPlanVersion as error:
        raise InputError(f"{path} {error}. Run whyformer bulk again into another folder.", code="E_DATA") from None
    except DamagedPlan as error:
        raise InputError(f"{path} is damaged: {error}. {repair}", code="E_DATA") from None
