"""The bookkeeping of a bulk run of a million items: time and memory to plan it and to check all finished parts.

    python benchmarks/bulk_million.py [--items 1000000] [--shard 64] [--folder DIR]
    python benchmarks/bulk_million.py --summary [--items 100000] [--classes 10] [--class-limit 2000]

A table of a million ids and texts is written, and a folder with every part that a run on it would leave: full-size rows
(196 scores) under the seal of the plan. Then a fresh process makes the same call as a user who resumes: it reads the
table, checks the ids, makes the plan, compares it, and verifies the SHA-256 of every part. Nothing is left to compute.

--summary: a small untrained ViT with 196 patches explains 200 images, and their rows, each with noise of its own in the
scores, are repeated until there are as many items as asked for. A fresh process on two cores summarises them, with the
tests, from a sample of at most class-limit items of each class, and compares the run with itself.
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
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import whyformer as why
from whyformer._bulk.items import ItemList, mark_content
from whyformer._bulk.plan import BatchSettings, BulkPlan, make_bulk_plan
from whyformer._bulk.worker import WorkerSetup
from whyformer._runs.parts import BulkRow, PartStore, encode_part
from whyformer._runs.plan import get_plan_fields, read_plan_file, write_or_check_plan

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
    plan = make_bulk_plan(model, listed, setup, torch.device("cpu"), settings)
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


DISTINCT = 200  # images


def write_explained_run(folder: Path, items: int, classes: int) -> None:
    """A model, images, and a run on as many items as asked for, each of which is one of the images."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128, num_labels=classes
    )
    module = ViTForImageClassification(config)
    random = np.random.default_rng(0)
    (folder / "images").mkdir()
    for number in range(DISTINCT):
        pixels = random.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((224, 224)).save(folder / "images" / f"{number:03}.jpg")
    module.eval()
    with torch.no_grad():  # so that every class is predicted about as often as the others
        paths = sorted((folder / "images").iterdir())
        processor = ViTImageProcessor()
        inputs = [processor(Image.open(path), return_tensors="pt")["pixel_values"] for path in paths]
        states = torch.cat([module.vit(one).last_hidden_state[:, 0] for one in inputs])
        module.classifier.weight /= states.std(0)
        module.classifier.weight *= 10
        module.classifier.bias -= (states @ module.classifier.weight.T).mean(0)
    module.save_pretrained(folder / "model")
    processor.save_pretrained(folder / "model")
    run = why.bulk(folder / "model", folder / "images", "attnlrp", out=folder / "small", workers=1, shard=64)
    stored = read_plan_file(run.folder / "plan.json")
    plan = BulkPlan({**get_plan_fields(stored), "shard": 512, "data": {"items": items, "fingerprint": "made up"}})
    out = folder / "run"
    out.mkdir()
    write_or_check_plan(plan, out)
    (out / "model-folder.txt").write_bytes((run.folder / "model-folder.txt").read_bytes())
    store = PartStore(out, plan)
    rows = [BulkRow(**{**row, "tokens": None}) for row in run.table().to_pylist()]
    for number in range(plan.shards):
        noisy = []
        for position in plan.indices(number):
            row = rows[position % DISTINCT]
            scores = np.asarray(row.scores, np.float32) * random.uniform(0.9, 1.1, SCORES).astype(np.float32)
            noisy.append(replace(row, id=f"{position:07}", position=position, scores=scores))
        store.path(number).write_bytes(encode_part(noisy, number, store.fingerprint))


def summarise(folder: Path, class_limit: int) -> None:
    """What a user's process does; prints time and memory."""
    torch.set_num_threads(2)
    for name in ("summary", "comparison"):
        began, processor = time.perf_counter(), time.process_time()
        if name == "summary":
            found: why.BulkSummary | why.RunComparison = why.summarise_bulk(folder / "run", class_limit=class_limit)
            print(f"{len(found.findings)} findings; {' '.join(found.notes)}")
        else:
            found = why.compare_runs(folder / "run", folder / "run", class_limit=class_limit)
            print(found.verdict)
        seconds, busy = time.perf_counter() - began, time.process_time() - processor
        found.save(folder / f"{name}.html")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(f"{name}: {seconds:.0f} s, {busy:.0f} s of processor time ({busy / 2:.0f} a core of two), ", end="")
        print(f"peak memory {peak / 1e9:.2f} GB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int)
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--class-limit", type=int, default=2_000)
    parser.add_argument("--shard", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="where to put a gigabyte of parts; default: a temporary folder")
    parser.add_argument("--resume", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--summarise", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.resume is not None:
        resume(options.resume)
        return
    if options.summarise is not None:
        summarise(options.summarise, options.class_limit)
        return
    folder = Path(tempfile.mkdtemp(prefix="bulk-", dir=options.folder))
    try:
        if options.summary:
            write_explained_run(folder, options.items or 100_000, options.classes)
            again = [sys.executable, __file__, "--summarise", folder, "--class-limit", str(options.class_limit)]
            subprocess.run(again, check=True)
            return
        write_finished_run(folder, options.items or 1_000_000, options.shard)
        size = sum(path.stat().st_size for path in (folder / "run" / "parts").iterdir())
        print(f"{platform.machine()}, torch {torch.__version__}, parts of {size / 1e6:,.0f} MB")
        subprocess.run([sys.executable, __file__, "--resume", folder], check=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
