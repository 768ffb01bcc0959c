"""Study every model of another library, each in a process of its own.

    PYTHONPATH=tests python -m others.sweep [-o FILE] [--only WORD ...]

writes one row per model to tests/others/results.csv, from which docs/models-others.md is made.
"""

import argparse
import csv
import importlib
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from others import conftest as conftest  # makes torchvision importable
from others.study import CHECKS, METHODS, Finding, study
from others.subject import Subject

HERE = Path(__file__).parent
RESULTS = HERE / "results.csv"
FIELDS = ("library", "model", *METHODS, *CHECKS, "reason")
SECONDS = 120
LIBRARIES = (  # loaded once, before a child is made for every model
    "timm", "torchvision.models", "open_clip", "peft", "sentence_transformers", "sentence_transformers.sparse_encoder",
    "bitsandbytes", "torchao.quantization", "accelerate", "x_transformers", "vit_pytorch", "transformers.pipelines",
    "transformers.models.bert.modeling_bert", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.vit.modeling_vit",
)  # fmt: skip
CaseMaker = Callable[[], Subject]


def iterate_cases() -> Iterator[tuple[str, str, CaseMaker]]:
    """(library, model, function that builds it) of every file cases_*.py."""
    for file in sorted(HERE.glob("cases_*.py")):
        if file.stem != "cases_handwritten":  # cases_written_out.py makes subjects of these
            yield from importlib.import_module(f"others.{file.stem}").iterate_cases()


def load_libraries() -> None:
    for name in LIBRARIES:
        importlib.import_module(name)


def study_apart(build: CaseMaker) -> list[Finding]:
    """The findings about one model, from a child process: libraries change global state, and may end the process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        findings = _study_in_child(build)
        with os.fdopen(writer, "wb") as sink:
            sink.write(repr(findings).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as source:
        text = source.read().decode()
    _, status = os.waitpid(child, 0)
    return eval(text) if text else [("process", "DIED", str(status), "")]


def _study_in_child(build: CaseMaker) -> list[Finding]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.alarm(SECONDS)
    try:
        subject = build()
        if subject.run is not None:
            subject.run(subject.inputs)
    except Exception as error:
        return [("build", "NOT_BUILT", "", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")]
    return study(subject)


def make_row(library: str, model: str, findings: list[Finding]) -> dict[str, str]:
    """One line of the table: a status for each method and check, and the first reason of a refusal or fault."""
    row = {"library": library, "model": model} | {what: status for what, status, _, _ in findings if what in FIELDS}
    telling = [f for f in findings if f[1].isupper()] + [f for f in findings if f[1] == "refused"]
    return row | {"reason": f"{telling[0][0]}: {telling[0][3] or telling[0][2]}" if telling else ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="*", default=[], help="study these again and keep the other rows")
    options = parser.parse_args()
    load_libraries()
    cases = list(iterate_cases())
    rows = {key: row for key, row in read_rows(options.o).items() if key in {case[:2] for case in cases}}
    for library, model, build in cases:
        if options.only and not any(word in f"{library} {model}" for word in options.only):
            continue
        start = time.monotonic()
        findings = study_apart(build)
        row = rows[library, model] = make_row(library, model, findings)
        count = sum(status == "ok" for what, status, _, _ in findings if what in METHODS)
        seconds = time.monotonic() - start
        print(f"{seconds:4.0f} s  {library:22} {model:45} {count:2} ok  {row['reason'][:200]}", flush=True)
        write_rows(options.o, [rows[case[:2]] for case in cases if case[:2] in rows])


def read_rows(file: Path) -> dict[tuple[str, str], dict[str, str]]:
    """The rows of a table by library and model; none if there is no such file."""
    if not file.is_file():
        return {}
    with file.open(newline="") as opened:
        return {(row["library"], row["model"]): row for row in csv.DictReader(opened)}


def write_rows(file: Path, rows: list[dict[str, str]]) -> None:
    with file.open("w", newline="") as opened:
        table = csv.DictWriter(opened, FIELDS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


if __name__ == "__main__":
    main()
