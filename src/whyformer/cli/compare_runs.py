"""whyformer compare-runs: what changed between two bulk runs."""

from pathlib import Path
from typing import Any

import whyformer as why
from whyformer.cli import destination, running
from whyformer.cli.shell import app

EXAMPLES = (
    "whyformer compare-runs runs/epoch-3 runs/epoch-9 -o changes.html",
    "whyformer compare-runs runs/march runs/april -m attnlrp --json",
)


@app.command(
    "compare-runs",
    of="compare_runs",
    examples=EXAMPLES,
    a="The folder of a bulk run: plan.json and parts/.",
    b="The folder of another run, which A is compared with.",
    method="The method to compare. Default: the first of A.",
)
def run_compare_runs(*, a: Path, b: Path, out_files: list[Path] | None, **settings: Any) -> None:
    """Compare two bulk runs, of two checkpoints or two months: whose evidence moved, with tests and effect sizes."""
    for path in out_files or []:
        destination.check_out_file(path, None, why.RunComparison.formats)
    running.show_result(why.compare_runs(a, b, **settings), *(out_files or []))
