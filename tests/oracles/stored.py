"""Numbers of another library: stored, or compared with what is stored (`--check`)."""

import json
import sys
from pathlib import Path
from typing import Any

import torch


def store_or_check(found: dict[str, Any], place: Path, *, rtol: float, atol: float) -> None:
    """found: {"versions": {...}, "scores": {kind: {method: numbers}}}."""
    if "--check" not in sys.argv[1:]:
        place.write_text(json.dumps(found, indent=0) + "\n")
        return
    stored = json.loads(place.read_text())["scores"]
    for kind, methods in found["scores"].items():
        for name, scores in methods.items():
            again, before = (torch.tensor(numbers, dtype=torch.double) for numbers in (scores, stored[kind][name]))
            torch.testing.assert_close(again, before, rtol=rtol, atol=atol)
            print(f"captum {found['versions']['captum']}: {kind}, {name}: as stored")
