"""The plan of a run: everything its rows depend on, with a fingerprint.

A folder holds one plan, in plan.json. Another plan is refused, and the error names the fields that differ; a plan of
another version of the file is refused by that version. A plan holds no time, process or path, so that a run that was
interrupted ends with the same rows as one that was not.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from whyformer._plain import archive
from whyformer.errors import OutputError

PLAN_FILE = "plan.json"
PLAN_VERSION = 2  # of plan.json and of what is beside it; 1: plans that do not name a version
PlanFields = Mapping[str, Any]  # JSON values only, see archive.as_json_value


class DamagedPlan(ValueError):
    """What is wrong with a plan file."""


class OtherPlanVersion(ValueError):
    """Which version a plan file has, and which one is needed."""


@dataclass(frozen=True)
class RunPlan:
    """What a run computes, and from what."""

    fields: PlanFields
    kind: str = "run"  # used in error messages: "judgement", "audit"

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.fields, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class ShardedPlan(RunPlan):
    """A plan that cuts its data into shards of one size, in order."""

    counted: ClassVar[str]  # the field of `data` that says how many there are
    shard_field: ClassVar[str]  # the field that says how many are in a shard

    @property
    def total(self) -> int:
        return int(self.fields["data"][self.counted])

    @property
    def shards(self) -> int:
        return -(-self.total // int(self.fields[self.shard_field]))

    def indices(self, shard: int) -> range:
        """Which of the data are in one shard."""
        size = int(self.fields[self.shard_field])
        return range(shard * size, min(self.total, (shard + 1) * size))


def write_or_check_plan(plan: RunPlan, folder: Path, *, growing: Collection[str] = (), grow: bool = False) -> None:
    """Write the plan to the folder, or check that the plan that is already there is the same.

    growing: fields that may have more than those of the plan that is there, which is replaced if `grow`.
    """
    path = folder / PLAN_FILE
    if not path.exists():
        if any(file.suffix == ".parquet" for file in (*folder.iterdir(), *folder.glob("parts/*"))):
            raise OutputError(
                f"{folder} has Parquet files but no {PLAN_FILE}. Use another folder.", code="E_OUT_MISMATCH"
            )
        write_plan(plan, path)
        return
    try:
        stored = get_plan_fields(read_plan_file(path))
    except OtherPlanVersion as error:
        raise OutputError(
            f"{folder} holds another run: {path} {error}. Use another folder.", code="E_OUT_MISMATCH"
        ) from None
    except DamagedPlan:
        article = "an" if plan.kind[0] in "aeiou" else "a"
        raise OutputError(
            f"{path} is not the plan of {article} {plan.kind}, or it is damaged. Use another folder.",
            code="E_OUT_MISMATCH",
        ) from None
    if differences := list_plan_differences(stored, plan.fields):
        can_grow = all(name.split(" ")[0] in growing for name in differences)
        if can_grow and grow:
            write_plan(plan, path)
            return
        verb = "differs" if len(differences) == 1 else "differ"
        advice = f" To add {' and '.join(growing)} to it, pass grow=True (--grow)." if can_grow else ""
        raise OutputError(
            f"{folder} holds another {plan.kind}: {', '.join(differences)} {verb}. Use another folder, or repeat that "
            f"{plan.kind} with the same settings to resume it.{advice}",
            code="E_OUT_MISMATCH",
        )


def write_plan(plan: RunPlan, path: Path) -> None:
    contents = {"version": PLAN_VERSION, **plan.fields, "fingerprint": plan.fingerprint}
    archive.write_file(path, f"{json.dumps(contents, indent=1)}\n".encode())


def read_plan_file(path: Path) -> dict[str, Any]:
    """What plan.json holds, checked against its fingerprint; DamagedPlan or OtherPlanVersion if it cannot be used."""
    try:
        stored = json.loads(path.read_bytes()) if path.is_file() else None  # reading a pipe would block for ever
    except OSError as error:
        raise DamagedPlan(f"it cannot be read ({archive.describe_os_error(error)})") from None
    except (ValueError, RecursionError):
        raise DamagedPlan("it is not JSON") from None
    if not isinstance(stored, dict) or not stored:
        raise DamagedPlan("it does not hold the fields of a plan")
    is_checked = "version" in stored or "fingerprint" in stored  # the first audits had neither
    if is_checked and stored.get("fingerprint") != RunPlan(get_plan_fields(stored)).fingerprint:
        raise DamagedPlan("its fields do not match their fingerprint")
    if (version := stored.get("version", 1)) != PLAN_VERSION:
        raise OtherPlanVersion(f"has version {version!r:.20}, but this whyformer needs version {PLAN_VERSION}")
    return stored


def get_plan_fields(stored: PlanFields) -> dict[str, Any]:
    return {name: value for name, value in stored.items() if name not in ("version", "fingerprint")}


def list_plan_differences(stored: PlanFields, wanted: PlanFields, prefix: str = "") -> list[str]:
    """The names of the fields that differ; a field inside another is named by both: "data examples"."""
    names = []
    for name in sorted({*stored, *wanted}):
        old, new = stored.get(name), wanted.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            names += list_plan_differences(old, new, f"{prefix}{name} ")
        elif name not in stored or name not in wanted or json.dumps(old) != json.dumps(new):  # 1 == True, but not here
            names.append(f"{prefix}{name}")
    return names
