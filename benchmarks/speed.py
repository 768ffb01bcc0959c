"""Methods as multiples of one plain forward pass, with peak memory, in one run.

    python benchmarks/speed.py                                       ViT-B/16, ViT-Tiny and a text of 12 tokens, here
    python benchmarks/speed.py --device cuda --batch 1 8 32 128 --tf32
    python benchmarks/speed.py --models vit_tiny --methods rollout --no-replay

Each method and the plain forward take turns; the figures are medians, and a multiple is a ratio of two medians of the
same turns. `--clock process` counts the time of this process on a busy CPU. Memory is the peak above what is held
before, per example: on the CPU it is not measured, and a CUDA graph holds what it needs all the time. Weights are
random, except for the text, which goes to `demo/sentiment`. Programs are recorded as for everybody, without being asked
for, unless an option says otherwise.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

import whyformer as why

METHODS = (
    "transformer_attribution",
    "generic_attention",
    "attcat",
    "attnlrp",
    "gradient_x_input",
    "rollout",
)
TEXT = "a gorgeous and witty film with a warm heart"  # 12 tokens with the two special ones
VITS = {"vit_tiny": (192, 3, 12), "vit_s16": (384, 6, 12), "vit_b16": (768, 12, 12), "vit_l16": (1024, 16, 24)}


def make_vit(name: str) -> nn.Module:
    width, heads, layers = VITS[name]
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=width,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        intermediate_size=4 * width,
        num_labels=1000,
    )
    return ViTForImageClassification(config).eval()


def prepare(name: str, batch: int, device: str) -> tuple[why.Model, Any, Callable[[], Tensor]]:
    """The model, the inputs to explain, and the plain forward on them."""
    if name == "text12":
        model = why.open("demo/sentiment", device=device)
        inputs: Any = [TEXT] * batch
        encoded = model.encode(inputs).inputs
        return model, inputs, lambda: model.module(**encoded).logits
    module = make_vit(name).to(device)
    model = why.open(module)
    images = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(1)).to(device)
    return model, images, lambda: module(images).logits


def measure_time(work: Callable[[], object], device: str, clock: Callable[[], float]) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    start = clock()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - start


def measure_peak(work: Callable[[], object], device: str) -> float:
    """GiB above what is held before; 0 on the CPU."""
    if device == "cpu":
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def measure(name: str, batch: int, options: argparse.Namespace) -> None:
    model, inputs, run = prepare(name, batch, options.device)
    clock = time.process_time if options.clock == "process" and options.device == "cpu" else time.perf_counter

    @torch.no_grad()
    def forward() -> None:
        run()

    def explain_by(method: str) -> Callable[[], object]:
        return lambda: why.explain(model, inputs, method)

    works = {"forward": forward, **{method: explain_by(method) for method in options.methods}}
    first = {label: measure_time(work, options.device, clock) for label, work in works.items()}
    for work in works.values():
        for _ in range(8):
            work()
    times: dict[str, list[float]] = {label: [] for label in works}
    for _ in range(options.repeats):
        for label, work in works.items():
            times[label].append(measure_time(work, options.device, clock))
    plain = statistics.median(times["forward"])
    for label, work in works.items():
        took = statistics.median(times[label])
        peak = measure_peak(work, options.device)
        print(
            f"{name:8s}  {batch:5d}  {label:24s}  {took / plain:9.2f}  {took / batch * 1e3:12.3f}  "
            f"{first[label] / plain:10.2f}  {peak * 1024 / batch:10.1f}  {peak:5.2f}",
            flush=True,
        )


def choose_replay(options: argparse.Namespace) -> AbstractContextManager[None]:
    """The default of the library, unless an option asks for something else."""
    if not (options.no_replay or options.recompute):
        return nullcontext()
    return why.engine(replay=not options.no_replay, recompute=options.recompute)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vit_b16", "vit_tiny", "text12"], choices=[*VITS, "text12"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tf32", action="store_true", help="let matrix products round to TF32")
    parser.add_argument("--clock", choices=["process", "wall"], default="wall")
    parser.add_argument("--no-replay", action="store_true", help="without recorded programs")
    parser.add_argument("--recompute", action="store_true", help="less memory: compute MLPs again")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    torch.backends.cudnn.allow_tf32 = options.tf32
    where = torch.cuda.get_device_name() if options.device != "cpu" else f"{options.threads} threads"
    print(f"torch {torch.__version__}, {options.device}, {where}, {platform.machine()}, TF32 {options.tf32}")
    print(
        f"{'model':8s}  {'batch':>5s}  {'method':24s}  {'/ forward':>9s}  {'ms / example':>12s}  "
        f"{'first call':>10s}  {'MiB / ex.':>10s}  {'GiB':>5s}"
    )
    for name in options.models:
        for batch in options.batch:
            with choose_replay(options):
                measure(name, batch, options)


if __name__ == "__main__":
    main()
