"""The plan of a run: everything its rows depend on, with a fingerprint.

A folder holds one plan, in plan.json. Another plan is refused, and the error names the fields that differ. A plan holds
no time, process or path, so that a run that was interrupted ends with the same rows as one that was not.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whyformer._plain import archive
from whyformer.errors import OutputError

PLAN_FILE = "plan.json"


@dataclass(frozen=True)
class RunPlan:
    """What a run computes, and from what."""

    fields: Mapping[str, Any]  # JSON values only, see archive.as_json_value
    kind: str = "run"  # used in error messages: "judgement", "audit"

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.fields, sort_keys=True).encode()).hexdigest()


def write_or_check_plan(plan: RunPlan, folder: Path) -> None:
    """Write the plan to the folder, or check that the plan that is already there is the same."""
    path = folder / PLAN_FILE
    if not path.exists():
        if any(file.suffix == ".parquet" for file in (*folder.iterdir(), *folder.glob("parts/*"))):
            raise OutputError(
                f"{folder} has Parquet files but no {PLAN_FILE}. Use another folder.", code="E_OUT_MISMATCH"
            )
        contents = json.dumps({**plan.fields, "fingerprint": plan.fingerprint}, indent=1) + "\n"
        archive.write_file(path, contents.encode())
        return
    if differences := list_plan_differences(read_stored_plan(path, plan), plan.fields):
        is_old = "fingerprint" in differences
        holds = f"{folder} holds another {plan.kind}{', written by whyformer 0.1' if is_old else ''}"
        resume = "" if is_old else f", or repeat that {plan.kind} with the same settings to resume it"
        verb = "differs" if len(differences) == 1 else "differ"
        raise OutputError(
            f"{holds}: {', '.join(differences)} {verb}. Use another folder{resume}.", code="E_OUT_MISMATCH"
        )


def read_stored_plan(path: Path, plan: RunPlan) -> dict[str, Any]:
    """The fields of the plan in a file, checked against their fingerprint."""
    try:
        fields: Any = json.loads(path.read_bytes()) if path.is_file() else None  # reading a pipe would block for ever
        fingerprint = fields.pop("fingerprint", None)
        if fields and fingerprint is None:  # an audit of version 0.1
            return {**fields, "fingerprint": None}
        if fingerprint == RunPlan(fields).fingerprint:
            return fields
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        pass
    article = "an" if plan.kind[0] in "aeiou" else "a"
    raise OutputError(
        f"{path} is not the plan of {article} {plan.kind}, or it is damaged. Use another folder.", code="E_OUT_MISMATCH"
    )


def list_plan_differences(stored: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The names of the fields that differ; a field inside another is named by both: "data examples"."""
    names = []
    for name in sorted({*stored, *wanted}):
        old, new = stored.get(name), wanted.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            names += list_plan_differences(old, new, f"{prefix}{name} ")
        elif name not in stored or name not in wanted or json.dumps(old) != json.dumps(new):  # 1 == True, but not here
            names.append(f"{prefix}{name}")
    return names
