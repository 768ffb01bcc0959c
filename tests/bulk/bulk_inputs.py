"""What the tests of bulk share: small images, a run on them, and the oracle for a folder of parts."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import whyformer as why

MODEL = "demo/untrained-vit"
METHODS = ("rollout", "transformer_attribution")


def write_images(folder: Path, count: int, *, side: int = 20, first: int = 0) -> Path:
    """PNG files of noise in two class folders; from number `first` on, which is the name of each."""
    for number in range(first, first + count):
        rng = np.random.default_rng(number)
        path = folder / ("cat", "dog")[number % 2] / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (side, side, 3), dtype=np.uint8)).save(path)
    return folder


def run_bulk(data: Any, out: Path, **options: Any) -> why.BulkRun:
    """A run in this process, in small shards and batches."""
    settings: dict[str, Any] = {"methods": METHODS, "shard": 4, "batch_size": 3, "workers": 1, **options}
    return why.bulk(settings.pop("model", MODEL), data, settings.pop("methods"), out=out, **settings)


def hash_parts(out: Path) -> str:
    """SHA-256 of all parts, in order of their names."""
    paths = sorted((out / "parts").glob("part-*.parquet"))
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in paths)).hexdigest()


def check_complete(run: why.BulkRun, ids: list[str], methods: tuple[str, ...] = METHODS) -> None:
    """Every id once per method, in the order of the input; every file readable; nothing left behind."""
    table = run.table(["id", "method", "position"])
    assert table.column("id").to_pylist() == [id for id in ids for _ in methods]
    assert table.column("method").to_pylist() == list(methods) * len(ids)
    positions = table.column("position").to_pylist()
    assert positions == sorted(positions)
    assert not list(run.folder.rglob("*.tmp")) and not list(run.folder.rglob(".*.tmp"))
