"""What a bulk run costs beside the bare computation: images per second, side by side in one process.

    python benchmarks/bulk_overhead.py [--threads 1] [--images 64]                         ViT-Tiny, batch 32
    python benchmarks/bulk_overhead.py --device cuda --size base --batch 128 --images 4096 [--tf32]
    python benchmarks/bulk_overhead.py --size thin --batch 128 --images 1536 --pretend 3.5     a GPU that is not there

A ViT with random weights at 224 pixels, transformer attribution. *Bare* is a loop over batches of pixels that are on
the device already: explain(), nothing else. *Bulk, tensors* is why.bulk on the same pixels, one item each: batches,
rows, Parquet, fsync, verification. *Bulk, files* begins with JPEG files of 300 x 300 pixels: read, decoded and resized
meanwhile. The three take turns; the fastest of the repeats counts.

Images per second of a run are those of its second half, by the times at which its parts were written: take enough
images, since loader processes take seconds to start. *Seconds* are those of the whole run; *plan* (ids, hash of the
weights, hashes of tensors, verification) is what repeating a finished run takes.

With --pretend MS the engine only takes the time that a GPU would: MS milliseconds per image, a third of it Python that
launches small operations and the rest waiting. All else is real, so what remains is what bulk adds; loaders are
processes, as they are next to a GPU.
"""

import argparse
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pyarrow import parquet
from torch import Tensor
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

import whyformer as why
from whyformer._bulk import run, worker
from whyformer._explain.method_call import label_methods
from whyformer._explain.sharing import explain_by_call, record_for_methods
from whyformer.results.explanation import Explanation

METHOD = "transformer_attribution"
DISTINCT = 1024  # images; more are the same ones again
SHAPES = {"thin": (16, 1), "tiny": (192, 3), "base": (768, 12)}  # width, heads
LAUNCHING = 1 / 3  # of the pretended time is Python
Times = tuple[float, float]  # seconds by the clock, and of the processor


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
    for number, path in enumerate(paths):
        if number >= DISTINCT:
            os.link(paths[number % DISTINCT], path)
            continue
        small = Image.fromarray(rng.integers(0, 255, (40, 40, 3), dtype=np.uint8))
        small.resize((300, 300), Image.Resampling.BICUBIC).save(path, quality=90)
    return paths


def explain_bare(model: why.Model, batches: list[Tensor]) -> None:
    for batch in batches:
        why.explain(model, batch, METHOD)


class PretendedGpu:
    """Stands in for the engine: takes the time that a batch would take, and answers with scores that it has."""

    def __init__(self, model: why.Model, pixels: Tensor, milliseconds: float) -> None:
        self.seconds = milliseconds / 1000
        call = label_methods([METHOD])[METHOD]
        encoded = model.encode(pixels[:2])
        self.capture = record_for_methods([call], model, encoded, None, None)
        self.explanation = explain_by_call(call, model, encoded, self.capture)

    def compute(self, count: int) -> Explanation:
        began, small = time.perf_counter(), torch.zeros(8)
        while time.perf_counter() - began < self.seconds * count * LAUNCHING:
            small.add_(1)
        time.sleep(self.seconds * count * (1 - LAUNCHING))
        one = self.explanation
        scores = one.scores[:1].repeat(count, 1)
        return replace(one, scores=scores, tokens=one.tokens[:1] * count, targets=one.targets[:1] * count,
                       names=one.names[:1] * count, details={}, special=None)  # fmt: skip

    def take_over(self) -> None:
        """From now on, bulk runs explain with this."""
        worker.share_captures = lambda calls, run, tolerate: [self.capture] * len(calls)
        worker.explain_by_each = lambda methods, captures, model, encoded, tolerate: (
            {label: self.compute(encoded.batch) for label in methods},
            {},
        )
        worker.describe_predictions = lambda model, encoded, capture: [{}] * encoded.batch
        run.uses_loader_processes = lambda site: True
        run.count_loaders = lambda site: 8


@dataclass(frozen=True)
class MeasuredRun:
    """A bulk run, and the same run when it is finished already."""

    seconds: float
    processor: float
    plan: float
    rate: float  # images per second of the second half


def measure_run(model: why.Model, data: Sequence[Any], out: Path, **options: Any) -> MeasuredRun:
    shutil.rmtree(out, ignore_errors=True)

    def run_once() -> None:
        why.bulk(model, data, METHOD, out=out, **options)

    seconds, processor = measure(run_once)
    rate = read_rate(out)
    plan, plan_processor = measure(run_once)
    return MeasuredRun(seconds, processor - plan_processor, plan, rate)


def read_rate(out: Path) -> float:
    """Images per second, from the times at which the parts of the second half were written."""
    written = sorted((path.stat().st_mtime, path) for path in (out / "parts").glob("*.parquet"))
    if len(written) < 2:
        return float("nan")
    half = written[(len(written) - 1) // 2 :]
    count = sum(len(parquet.read_table(path, columns=["id"])) for _, path in half[1:])
    return count / (half[-1][0] - half[0][0])


def measure(start: Callable[[], None]) -> Times:
    """Seconds by the clock, and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    start()
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
    parser.add_argument("--pretend", type=float, metavar="MS", help="pretend a GPU that takes this long per image")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.tf32:
        torch.set_float32_matmul_precision("high")
    model = make_model(options.size, options.device)
    with tempfile.TemporaryDirectory(prefix="bulk-") as name:
        folder = Path(name)
        (folder / "photos").mkdir()
        paths = write_photos(folder / "photos", options.images)
        pixels = torch.cat([model.process_images([Image.open(path)]) for path in paths[:DISTINCT]])
        batches = list(pixels.to(options.device).split(options.batch))
        batches = [batches[number % len(batches)] for number in range(-(-options.images // options.batch))]
        settings = {"batch_size": options.batch, "shard": options.shard, "threads": options.threads,
                    "loaders": options.loaders}  # fmt: skip
        compute: Callable[[], None] = lambda: explain_bare(model, batches)  # noqa: E731
        if options.pretend:
            gpu = PretendedGpu(model, pixels, options.pretend)
            gpu.take_over()
            compute = lambda: [gpu.compute(len(batch)) for batch in batches] and None  # noqa: E731
        else:
            explain_bare(model, batches[:1])
        tensors = [pixels[number % DISTINCT] for number in range(options.images)]
        sources: dict[str, Sequence[Any]] = {"bulk, tensors": tensors, "bulk, files": paths}
        bare: list[Times] = []
        found: dict[str, list[MeasuredRun]] = {label: [] for label in sources}
        for _ in range(options.repeats):
            bare.append(measure(compute))
            for label, data in sources.items():
                found[label].append(measure_run(model, data, folder / "run", **settings))
    device = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    print(f"{device}, torch {torch.__version__}, ViT-{options.size}, batch {options.batch}, {options.images} images")
    print(f"{'':15} {'seconds':>8} {'plan':>6} {'images/s':>9} {'of bare':>8} {'processor time / bare':>22}")
    fastest, least = (min(column) for column in zip(*bare, strict=True))
    explained = sum(len(batch) for batch in batches)
    print(f"{'bare':15} {fastest:8.2f} {0:6.2f} {explained / fastest:9.1f} {1:8.3f} {1:22.3f}")
    for label, runs in found.items():
        rate = max(one.rate for one in runs)
        print(
            f"{label:15} {min(one.seconds for one in runs):8.2f} {min(one.plan for one in runs):6.2f} {rate:9.1f} "
            f"{rate * fastest / explained:8.3f} {min(one.processor for one in runs) / least:22.3f}"
        )


if __name__ == "__main__":
    main()
