"""What a bulk run costs beside the bare computation: images per second, side by side in one process.

    python benchmarks/bulk_overhead.py [--threads 1] [--images 64]                         ViT-Tiny, batch 32
    python benchmarks/bulk_overhead.py --device cuda --size base --batch 128 --images 4096 [--tf32]

A ViT with random weights at 224 pixels, transformer attribution. *Bare* is a loop over batches of pixels that are on
the device already: explain(), nothing else. *Bulk, tensors* is why.bulk on the same pixels, one item each: batches,
rows, Parquet, fsync, verification; the difference is the bookkeeping. *Bulk, files* begins with JPEG files of 300 x 300
pixels: read, decoded and resized by threads meanwhile. The three take turns; the fastest of the repeats counts. What a
run costs once (plan, hash of the weights) is measured by repeating a finished run, and printed apart.
"""

import argparse
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

import whyformer as why

METHOD = "transformer_attribution"
SHAPES = {"tiny": (192, 3), "base": (768, 12)}  # width, heads


def make_model(size: str, device: str) -> why.Model:
    width, heads = SHAPES[size]
    torch.manual_seed(0)
    config = ViTConfig(hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width, num_labels=1000)
    module = ViTForImageClassification(config).eval().to(device)
    return why.open(module, processor=ViTImageProcessor())


def write_photos(folder: Path, count: int) -> list[Path]:
    """JPEG files of smooth noise, which are about as large as photos."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{number:06}.jpg" for number in range(count)]
    for path in paths:
        small = Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8))
        small.resize((300, 300), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def explain_bare(model: why.Model, batches: list[Tensor]) -> None:
    for batch in batches:
        why.explain(model, batch, METHOD)


def run_fresh(model: why.Model, data: Any, out: Path, **options: Any) -> Callable[[], None]:
    def run() -> None:
        shutil.rmtree(out, ignore_errors=True)
        why.bulk(model, data, METHOD, out=out, **options)

    return run


def repeat_run(model: why.Model, data: Any, out: Path, **options: Any) -> Callable[[], None]:
    """A run that is finished already: what it costs is paid once."""
    return lambda: why.bulk(model, data, METHOD, out=out, **options) and None


def measure(run: Callable[[], None]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - clock, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", choices=SHAPES, default="tiny")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--shard", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--loaders", type=int)
    parser.add_argument("--tf32", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.tf32:
        torch.set_float32_matmul_precision("high")
    model = make_model(options.size, options.device)
    with tempfile.TemporaryDirectory(prefix="bulk-") as name:
        folder = Path(name)
        (folder / "photos").mkdir()
        paths = write_photos(folder / "photos", options.images)
        pixels = torch.cat([model.process_images([Image.open(path)]) for path in paths])
        batches = list(pixels.to(options.device).split(options.batch))
        settings = {"batch": options.batch, "shard": options.shard, "threads": options.threads,
                    "loaders": options.loaders}  # fmt: skip
        runs = {
            "bare": lambda: explain_bare(model, batches),
            "bulk, tensors": run_fresh(model, list(pixels), folder / "tensors", **settings),
            "bulk, files": run_fresh(model, folder / "photos", folder / "files", **settings),
        }
        explain_bare(model, batches[:1])
        times: dict[str, list[tuple[float, float]]] = {label: [] for label in runs}
        for _ in range(options.repeats):
            for label, run in runs.items():
                times[label].append(measure(run))
        once = {"bulk, tensors": measure(repeat_run(model, list(pixels), folder / "tensors", **settings)),
                "bulk, files": measure(repeat_run(model, folder / "photos", folder / "files", **settings))}  # fmt: skip
    device = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    print(f"{device}, torch {torch.__version__}, ViT-{options.size}, batch {options.batch}, {options.images} images")
    print(f"{'':15} {'seconds':>9} {'once':>7} {'images/s':>9} {'of bare':>8} {'processor time / bare':>22}")
    bare, bare_processor = (min(column) for column in zip(*times["bare"], strict=True))
    for label, measured in times.items():
        clock, processor = (min(column) for column in zip(*measured, strict=True))
        start, start_processor = once.get(label, (0.0, 0.0))
        steady, steady_processor = clock - start, processor - start_processor
        print(
            f"{label:15} {clock:9.2f} {start:7.2f} {options.images / steady:9.1f} {bare / steady:8.3f} "
            f"{steady_processor / bare_processor:22.3f}"
        )


if __name__ == "__main__":
    main()
