"""A log on two workers with kills: of a worker, which is replaced, and of the caller, whose run resumes.

    python tests/cite/test_log_kills.py 10000 50 5 [FOLDER]

cites that many records, so many of them malformed, with so many kills, and prints what is found: no row is lost, none
is doubled, malformed records are error records, and what was on disk before a kill is not computed again. The model is
the first block of demo/reader, because what is asked is how many rows there are, not what they say.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

import pytest
import torch
from bulk.child import start_child, wait_for
from cite.log_inputs import write_log

import whyformer as why

SETTINGS = {"effort": "fast"}


def find_children(process: int) -> list[int]:
    """The processes that a process has started."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False)
    return [int(one) for one in listed.stdout.split()]


def wait_until_gone(processes: list[int], seconds: float = 30.0) -> None:
    """Workers hold the lock of the folder until they see that their caller has gone."""
    end = time.monotonic() + seconds
    while any(Path(f"/proc/{process}").exists() for process in processes) and time.monotonic() < end:
        time.sleep(0.05)


def count_parts(out: Path) -> int:
    return len(list(out.glob("parts/part-*.parquet")))


def cut_model(folder: Path) -> str:
    """The first block of demo/reader, as a folder: a record takes a third of the time."""
    model = why.open("demo/reader")
    model.module.model.layers = model.module.model.layers[:1]
    model.module.config.num_hidden_layers = 1
    model.module.config.layer_types = None
    model.module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return str(folder)


def run_with_kills(model: str, log: Path, out: Path, kills: int, shard: int, seed: int = 0) -> list[str]:
    """Kill the caller and its workers in turn, evenly over the parts; returns what was done, in order."""
    random, told = Random(seed), []
    shards = -(-len(log.read_bytes().splitlines()) // shard)
    call = partial(why.cite_log, model, log, out=out, workers=2, shard=shard, **SETTINGS)
    child = start_child(call)
    for kill in range(kills):
        while count_parts(out) <= shards * (kill + 0.5) / (kills + 1):
            time.sleep(0.1)
            assert os.waitpid(child, os.WNOHANG) == (0, 0), "the run ended before it was killed"
        workers = find_children(child)
        is_caller = kill % 2 == 0
        victim = child if is_caller else random.choice(workers)
        os.kill(victim, signal.SIGKILL)
        told.append(f"killed {'the caller' if is_caller else 'a worker'} at {count_parts(out)} of {shards} parts")
        print(told[-1], flush=True)
        if is_caller:
            assert wait_for(child) == -signal.SIGKILL
            wait_until_gone(workers)
            child = start_child(call)
    assert wait_for(child) == 0
    return told


def check_rows(model: str, log: Path, out: Path, malformed: int) -> Counter[str]:
    """Every line once and in order; exactly the malformed ones failed. Returns the errors by code."""
    run = why.cite_log(model, log, out=out, workers=1, **SETTINGS)
    assert run.computed == 0
    rows = list(run.rows())
    lines = log.read_bytes().splitlines()
    assert [row["line"] for row in rows] == list(range(1, len(lines) + 1))
    assert len({row["id"] for row in rows}) == len(rows)
    failed = [row for row in rows if row["error"] is not None]
    every = len(lines) // malformed
    assert [row["line"] for row in failed] == [every * (n + 1) for n in range(malformed)]
    assert all(row["citations"] and json.loads(row["citations"]) for row in rows if row["error"] is None)
    return Counter(row["error"] for row in failed)


def test_kills_lose_nothing(tmp_path):
    log = write_log(tmp_path / "log.jsonl", 60, 3)
    run_with_kills("demo/reader", log, tmp_path / "run", kills=2, shard=4)
    check_rows("demo/reader", log, tmp_path / "run", 3)
    calm = why.cite_log("demo/reader", log, out=tmp_path / "calm", workers=1, shard=4, **SETTINGS)
    for path in sorted(calm.parts.glob("*.parquet")):
        assert path.read_bytes() == (tmp_path / "run" / "parts" / path.name).read_bytes()


@pytest.mark.slow
def test_ten_thousand_records_with_five_kills(tmp_path):
    log = write_log(tmp_path / "log.jsonl", 10_000, 50)
    model = cut_model(tmp_path / "model")
    run_with_kills(model, log, tmp_path / "run", kills=5, shard=64)
    assert sum(check_rows(model, log, tmp_path / "run", 50).values()) == 50


def main(count: int, malformed: int, kills: int, folder: str | None = None) -> None:
    torch.set_num_threads(1)  # a fork of a process with threads of OpenMP waits for them forever
    place = Path(folder or tempfile.mkdtemp())
    began = time.monotonic()
    log = write_log(place / "log.jsonl", count, malformed)
    model = cut_model(place / "model")
    run_with_kills(model, log, place / "run", kills, shard=min(64, max(1, count // 20)))
    print(f"{count:,} records, {kills} kills, {time.monotonic() - began:.0f} s")
    errors = check_rows(model, log, place / "run", malformed)
    print(f"no row lost or doubled; error records: {dict(errors)}")
    print((place / "run" / "summary.json").read_text()[:400])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])
