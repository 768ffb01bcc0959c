"""Try every class of transformers, each in a process of its own, and write the table behind docs/models.md.

python tests/families/sweep.py                         all classes, about an hour on one core
python tests/families/sweep.py --only bert seq_cls     these architectures, tasks or classes; the others stay
python tests/families/sweep.py --resume --jobs 2       what is missing from the table
"""

import argparse
import importlib
import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

from families import support

MEMORY = 12 << 30
PREPARED = (
    "families.checks",
    "transformers.generation",
    "transformers.modeling_layers",
    "transformers.modeling_utils",
    "transformers.models.bert.modeling_bert",
    "transformers.models.llama.modeling_llama",
    "transformers.models.vit.modeling_vit",
    "whyformer._explain.explain",
    "whyformer._model.loading",
)
Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=support.TABLE)
    parser.add_argument("--only", nargs="*", default=[], help="tasks, architectures or classes")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the table")
    parser.add_argument("--shuffle", action="store_true", help="in random order: what is done is a fair sample")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=240, help="of the processor, for each class")
    arguments = parser.parse_args()
    from families import cases  # here, so that --help needs no torch

    kept = read_rows(arguments.out) if arguments.resume or arguments.only else {}
    chosen = [
        one
        for one in cases.list_classes()
        if (set(arguments.only) & {one.task, one.architecture, one.name})
        or (not arguments.only and (one.task, one.architecture, one.name) not in kept)
    ]
    if arguments.shuffle:
        random.Random(0).shuffle(chosen)
    for row in run_in_children(chosen, arguments.jobs, arguments.seconds):
        kept[row["task"], row["architecture"], row["class"]] = row
        support.write_table(kept.values(), arguments.out)
    print(support.summarise(support.read_table(arguments.out)))


def read_rows(path: Path) -> dict[tuple[str, str, str], Row]:
    import csv

    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {(row["task"], row["architecture"], row["class"]): row for row in csv.DictReader(file)}


def run_in_children(chosen: list[Any], jobs: int, seconds: int) -> Any:
    """Rows as they are done, from at most `jobs` children at once."""
    import torch
    import transformers

    for name in PREPARED:  # once, so that children need not
        importlib.import_module(name)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    running: dict[int, tuple[Any, int]] = {}
    waiting, done = list(chosen), 0
    while waiting or running:
        while waiting and len(running) < jobs:
            one = waiting.pop(0)
            reading, writing = os.pipe()
            if (child := os.fork()) == 0:
                os.close(reading)
                run_child(one, writing, seconds)
            os.close(writing)
            running[child] = (one, reading)
        child, status = os.wait()  # what a child writes fits into its pipe
        one, reading = running.pop(child)
        with os.fdopen(reading, "rb") as pipe:
            row = make_row(one, pipe.read().decode(), status)
        done += 1
        if done % 20 == 0:
            print(f"{done} of {len(chosen)}: {row['class']} {time.strftime('%H:%M')}", flush=True)
        yield row


def make_row(one: Any, text: str, status: int) -> Row:
    if not text:
        text = json.dumps({"words": {"chance": "FOREIGN"}, "reasons": {"chance": f"The process ended with {status}."}})
    import torch
    import transformers

    found = json.loads(text)
    versions = f"torch {torch.__version__.partition('+')[0]}, transformers {transformers.__version__}"
    return support.format_row(one.task, one.architecture, one.name, found["words"], found["reasons"], versions)


def run_child(one: Any, writing: int, seconds: int) -> None:
    """Check one class, write what was found, and leave without the parent's clean-up."""
    found = check_class(one, seconds)
    with os.fdopen(writing, "w") as pipe:
        json.dump(found, pipe)
    os._exit(0)


def check_class(one: Any, seconds: int) -> dict[str, dict[str, str]]:
    """What was found of a class: words and reasons. Under limits of time and memory."""
    import warnings

    from families import cases, checks

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, raise_timeout)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # of the processor: other programs do not count
    try:
        try:
            case = cases.build_case(one)
        except TimeoutError:
            raise
        except Exception as error:
            return {"words": {}, "reasons": {"built": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}}
        outcome = checks.check_case(case)
        return {"words": outcome.words, "reasons": outcome.reasons}
    except TimeoutError:
        return {"words": {"chance": "TIMEOUT"}, "reasons": {"chance": f"Not done after {seconds} s."}}
    except Exception as error:
        return {"words": {"chance": "FOREIGN"}, "reasons": {"chance": checks.describe_crash(error)}}


def raise_timeout(*_: Any) -> None:
    raise TimeoutError


if __name__ == "__main__":
    main()
