"""Runs of the four verbs that write to a folder, killed at random moments and begun again: every row is there once."""

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import psutil
import pyarrow.parquet
from attack.found import Found
from bulk.bulk_inputs import run_bulk, write_images
from bulk.child import start_child, wait_for
from cite.log_inputs import write_log
from cite.test_log_kills import find_children
from judge.test_judge import judge_all

import whyformer as why

TEXTS = [(text, "positive") for text in ("a film", "not a good film at all", "a witty plot", "the cast is tedious")]
TESTS = ("agreement", "replacement", "shape")


def list_runs(folder: Path) -> dict[str, Callable[[Path], object]]:
    """One run of each verb, into the folder that it is given, with workers of its own where the verb has them."""
    images, log = write_images(folder / "images", 40), write_log(folder / "log.jsonl", 24, 3)
    return {
        "bulk": lambda out: run_bulk(images, out, shard=2, batch_size=2),
        "bulk on two workers": lambda out: run_bulk(images, out, shard=2, batch_size=2, workers=2),
        "judge": judge_all,
        "cite_log": lambda out: why.cite_log("demo/reader", log, out=out, workers=1, shard=2, effort="fast"),
        "audit": lambda out: why.audit("demo/sentiment", TEXTS, samples=2, search_limit=1, tests=TESTS, out=out),
    }


def list_shards(out: Path) -> list[Path]:
    return sorted([*out.rglob("*.parquet"), *out.rglob("rows/*.jsonl")])


def read_rows(out: Path) -> Counter[str]:
    """Every row that is stored, as text."""
    rows: Counter[str] = Counter()
    for path in list_shards(out):
        if path.suffix == ".parquet":
            rows.update(map(repr, pyarrow.parquet.read_table(path).to_pylist()))
        else:
            rows.update(line for line in path.read_text("utf-8").splitlines() if '"test"' in line)
    return rows


def attack_runs(folder: Path, random: Random, count: int, found: Found) -> None:
    """So many kills, about the same number for each verb."""
    runs = list_runs(folder)
    for number, (name, run) in enumerate(runs.items()):
        calm = folder / f"calm {number}"
        run(calm)
        killed = KilledRun(name, run, folder / f"killed {number}", read_rows(calm), len(list_shards(calm)), found)
        killed.kill(random, count * (number + 1) // len(runs) - count * number // len(runs))


@dataclass
class KilledRun:
    """A run that is killed and begun again until it has ended, and then begun anew."""

    name: str
    run: Callable[[Path], object]
    out: Path
    rows: Counter[str]  # of a run that nobody kills
    shards: int
    found: Found
    child: int | None = None

    def kill(self, random: Random, count: int) -> None:
        """Kill it, or one of its workers, so often, at any number of shards from those that are there on."""
        kills = 0
        while kills < count:
            self.child = self.child or start_child(partial(self.run, self.out))
            if not self.wait(random.randint(min(len(list_shards(self.out)), self.shards - 1), self.shards - 1)):
                self.finish()
                continue
            time.sleep(random.uniform(0, 0.1))
            kills += self.kill_one(random)
        self.finish()

    def kill_one(self, random: Random) -> bool:
        """Whether the process or the worker was still there to be killed."""
        victim = random.choice([self.child, *find_children(self.child)])
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return False
        if victim == self.child:
            wait_for(self.child)
            self.child = None
        self.found.tried += 1
        return True

    def wait(self, shards: int) -> bool:
        """Whether it still runs once there are so many shards."""
        while len(list_shards(self.out)) < shards:
            if psutil.Process(self.child).status() == psutil.STATUS_ZOMBIE:
                return False
            time.sleep(0.01)
        return psutil.Process(self.child).status() != psutil.STATUS_ZOMBIE

    def finish(self) -> None:
        """Let it end, begun again if it was killed, and compare its rows with those of a calm run."""
        with self.found.limit(f"{self.name}, to end after kills"):
            status = wait_for(self.child or start_child(partial(self.run, self.out)))
            if status != 0:
                self.found.raw.append(f"{self.name}: the run after a kill ended with {status}")
            self.found.answered += status == 0
        self.child = None
        rows = read_rows(self.out)
        self.found.lost += (self.rows - rows).total()
        self.found.doubled += (rows - self.rows).total()
        shutil.rmtree(self.out)
