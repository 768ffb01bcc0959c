"""The bookkeeping of a bulk run of a million items: time and memory to plan it and to check all finished parts.

    python benchmarks/bulk_million.py [--items 1000000] [--shard 64] [--folder DIR]

A table of a million ids and texts is written, and a folder with every part that a run on it would leave: full-size rows
(196 scores) under the seal of the plan. Then a fresh process makes the same call as a user who resumes: it reads the
table, checks the ids, makes the plan, compares it, and verifies the SHA-256 of every part. Nothing is left to compute.
"""

import argparse
import json
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import whyformer as why
from whyformer._bulk.items import ItemList, mark_content
from whyformer._bulk.plan import BatchSettings, make_bulk_plan
from whyformer._bulk.worker import WorkerSetup
from whyformer._explain.method_call import label_methods
from whyformer._runs.parts import BulkRow, PartStore, encode_part
from whyformer._runs.plan import write_or_check_plan

MODEL, METHOD = "demo/sentiment", "rollout"
SCORES = 196  # of a ViT-B/16


def write_finished_run(folder: Path, items: int, shard: int) -> None:
    """A table, and every part of a run on it."""
    with open(folder / "items.jsonl", "w") as file:
        for number in range(items):
            file.write(
                json.dumps({"id": f"ticket {number:08}", "text": f"the printer on floor {number} is jammed"}) + "\n"
            )
    model, listed = why.open(MODEL), ItemList(why.data.read(folder / "items.jsonl"))
    setup = WorkerSetup(MODEL, (METHOD,), "predicted", truncate=False, maps=False, loaders=1)
    settings = BatchSettings(shard, 16, 1)
    plan = make_bulk_plan(model, listed, label_methods([METHOD]), setup, device=torch.device("cpu"), settings=settings)
    out = folder / "run"
    out.mkdir()
    write_or_check_plan(plan, out)
    store = PartStore(out, plan)
    scores = np.random.default_rng(0).normal(size=(shard, SCORES)).astype(np.float32)
    for number in range(plan.shards):
        same = zip((listed[index] for index in plan.indices(number)), scores, strict=False)
        rows = [
            BulkRow(item.id, item.position, METHOD, "text", scores=row, content=mark_content(item.content, "text"))
            for item, row in same
        ]
        store.path(number).write_bytes(encode_part(rows, number, store.fingerprint))


def resume(folder: Path) -> None:
    """What a user's process does; prints time and memory."""
    began = time.perf_counter()
    why.open(MODEL)
    imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    opened, processor = time.perf_counter(), time.process_time()
    run = why.bulk(MODEL, folder / "items.jsonl", METHOD, out=folder / "run", workers=1)
    assert run.computed == 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = time.perf_counter() - opened
    print(f"{run.items:,} items, {len(list(run.parts.iterdir())):,} parts")
    busy = time.process_time() - processor
    print(f"imports: {opened - began:.1f} s; plan and resume scan: {seconds:.1f} s, {busy:.1f} s of the processor")
    print(f"peak memory: {peak / 1e9:.2f} GB, of which {imported / 1e9:.2f} GB were there after the imports")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--shard", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="where to put a gigabyte of parts; default: a temporary folder")
    parser.add_argument("--resume", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.resume is not None:
        resume(options.resume)
        return
    folder = Path(tempfile.mkdtemp(prefix="bulk-", dir=options.folder))
    try:
        write_finished_run(folder, options.items, options.shard)
        size = sum(path.stat().st_size for path in (folder / "run" / "parts").iterdir())
        print(f"{platform.machine()}, torch {torch.__version__}, parts of {size / 1e6:,.0f} MB")
        subprocess.run([sys.executable, __file__, "--resume", folder], check=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
