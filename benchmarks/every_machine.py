"""Does a processor change an explanation? Every method, on the shipped models and the zoo, under each instruction set.

    python benchmarks/every_machine.py [--methods ...] [--scores FOLDER] [--print]

Writes docs/machines.md; with --print it only prints the table. With --methods only these rows are measured, the others
stay as they are on the page. --scores keeps the scores of each run in a folder, and reads those that are already there.
Models, inputs and runs are in tests/machines.py. About half an hour on one core for all methods.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import machines  # noqa: E402
from conftest import IMAGE_FAMILIES, TEXT_FAMILIES  # noqa: E402
from machines import ILL_CONDITIONED, RUNS, SETTINGS, SUBJECTS, TOLERANCE, Difference, Scores  # noqa: E402

from whyformer.methods._registry import METHODS  # noqa: E402

PAGE = ROOT / "docs" / "machines.md"
DECODERS = ("gpt2", "llama", "gpt")
COLUMNS: dict[str, tuple[str, ...]] = {
    **{
        name.removeprefix("demo/"): (name,) for name in SUBJECTS if name.startswith("demo/") and "untrained" not in name
    },
    "ViT": ("demo/untrained-vit", *IMAGE_FAMILIES),
    "BERT": ("demo/untrained-bert", *(name for name in TEXT_FAMILIES if name not in DECODERS)),
    "GPT": DECODERS,
}
LEAD = (
    "Whether scores depend on the machine: another processor, number of threads or batch size adds the same numbers in "
    "another order. A method is the same on every machine if that changes no score by more than 1e-4 of the largest "
    "one, and the five highest scores are the same but for ties within that."
)
HOW = (
    "The largest difference between any two runs, as a share of the largest score, in float32, five examples a model. "
    "The columns ViT, BERT and GPT show the largest of any of the random models of that kind that the tests use."
)
MARKS = (
    "**Bold**: more than 1e-4. \\*: the five highest scores changed. †: marked as ill-conditioned, see below. A dash: "
    "the method cannot be used, or takes minutes per image."
)
SETTINGS_ARE = (
    "Newest is `ATEN_CPU_CAPABILITY=avx512`, `ONEDNN_MAX_CPU_ISA=AVX512_CORE` and no `MKL_CBWR`; avx2 is AVX2 in all "
    "three; oldest is `ATEN_CPU_CAPABILITY=default`, `ONEDNN_MAX_CPU_ISA=SSE41` and `MKL_CBWR=COMPATIBLE`. A single "
    "variable: the others are those of newest."
)
COSTLY = (
    "Methods that rerun the model have small budgets, and are measured with the newest and the oldest instructions "
    "only, on pets and shapes with one image. Examples alone are the first two of the five. `atman` and `grad_cam` "
    "subtract numbers that may cancel: their largest score counts as at least 0.005 and 0.002."
)
MEANING = (
    "Only literal rules of LRP may be marked, never a default. They divide by sums that may nearly cancel, and what is "
    "left of such a sum is rounding. A test fails if any other method depends on the machine, and if a marked one does "
    "not."
)


Rows = dict[str, list[str]]  # method -> the cells of its row
RUNS_ARE = "Runs: "


def measure(methods: Sequence[str], folder: Path) -> tuple[Rows, list[str]]:
    """The rows of these methods, and the runs that were compared."""
    found: dict[str, Scores] = {}
    for run in RUNS:
        if not machines.can_run(SETTINGS[run.setting]):
            print(f"{run.name}: this processor lacks the instructions", file=sys.stderr)
            continue
        path, began = folder / f"{run.name}.npz", time.monotonic()
        if not path.exists() and machines.start_run(run, path, "--methods", *methods).wait():
            raise SystemExit(f"{run.name} failed")
        found[run.name] = dict(np.load(path))
        print(f"{run.name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    differences = machines.measure_differences([*found.values()])
    return {method: [make_cell(method, column, differences) for column in COLUMNS] for method in methods}, [*found]


def make_cell(method: str, column: str, differences: Mapping[str, Difference]) -> str:
    """The largest difference on the models of a column."""
    of = [d for key, d in differences.items() if key.split()[0] == method and key.split()[1] in COLUMNS[column]]
    if not of:
        return "-"
    largest = max(difference.largest for difference in of)
    number = "0" if largest == 0 else f"{largest:.2f}" if largest >= 0.1 else f"{largest:.1e}"
    return f"{number} \\*" if any(difference.has_other_top for difference in of) else number


def read_page() -> tuple[Rows, list[str]]:
    """The rows as they are now, of methods that still exist, and the runs behind them."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    cells = [[part.replace("**", "").strip(" `†") for part in line.strip("| ").split(" | ")] for line in lines]
    runs = [run for line in lines if line.startswith(RUNS_ARE) for run in line[len(RUNS_ARE) : -1].split("; ")]
    return {row[0]: row[1:] for row in cells if row[0] in METHODS and len(row) == 1 + len(COLUMNS)}, runs


def is_same(cell: str) -> bool:
    return cell == "-" or ("*" not in cell and float(cell) <= TOLERANCE)


def make_table(rows: Mapping[str, Sequence[str]]) -> list[str]:
    lines = ["| method | " + " | ".join(COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS)]
    for method, texts in sorted(rows.items()):
        mark = " †" if method in ILL_CONDITIONED else ""
        cells = [text if is_same(text) else f"**{text}**" for text in texts]
        lines.append(f"| `{method}`{mark} | " + " | ".join(cells) + " |")
    return lines


def make_page(rows: Mapping[str, Sequence[str]], runs: Sequence[str]) -> str:
    reasons: dict[str, list[str]] = {}
    for method, reason in ILL_CONDITIONED.items():
        reasons.setdefault(reason, []).append(f"`{method}`")
    parts = [
        "# The same on every machine",
        LEAD,
        HOW,
        MARKS,
        "\n".join(make_table(rows)),
        RUNS_ARE + "; ".join(runs) + ".",
        SETTINGS_ARE,
        COSTLY,
        "To measure again, run `python benchmarks/every_machine.py` (half an hour on one core).",
        "## Ill-conditioned methods",
        MEANING,
        "\n".join(f"* {', '.join(methods)}: {reason}." for reason, methods in reasons.items()),
        "Next: [Benchmarks](benchmarks.md#rounding).",
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), default=sorted(METHODS), metavar="METHOD")
    parser.add_argument("--scores", type=Path, help="a folder for the scores of each run")
    parser.add_argument("--print", action="store_true", help="print the table instead of writing the page")
    options = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = options.scores or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rows, runs = measure(options.methods, folder)
    if options.print:
        print("\n".join(make_table(rows)))
        return
    others, earlier = read_page()
    if others.keys() - rows.keys():  # a row that stays was measured by the earlier runs only
        runs = [run for run in runs if run in earlier]
    PAGE.write_text(make_page(others | rows, runs))


if __name__ == "__main__":
    main()
