"""Transformer attribution beside a plain reference and beside one forward pass, in one run.

    python benchmarks/transformer_attribution.py [--repeats 9] [--batch 1 8] [--device cpu]

ViT-B/16 at 224 pixels with random weights. Ours, the reference (reference.py, one image at a time) and a plain
forward pass take turns; the figures are ratios of medians. The maps are compared first: a fast wrong answer would be
no figure.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch
from reference import transformer_attribution
from transformers import ViTConfig, ViTForImageClassification

import whyformer as why


def timed(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def check(vit: torch.nn.Module, image: torch.Tensor, target: int) -> None:
    """Ours and the reference agree, in float64."""
    exact = vit.double()
    ours = why.explain(exact, image[:1].double(), target=target).scores[0]
    theirs = transformer_attribution(exact, image[:1].double(), target)
    difference = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"largest difference of the two maps, float64: {difference:.1e} of the largest value")
    assert difference < 1e-6
    vit.float()


def measure(vit: torch.nn.Module, images: torch.Tensor, target: int, repeats: int, device: str) -> dict[str, float]:
    model = why.open(vit)

    @torch.no_grad()
    def forward() -> None:
        vit(images)

    def ours() -> None:
        why.explain(model, images, target=target)

    def reference() -> None:
        for image in images:
            transformer_attribution(vit, image[None], target)

    works = {"forward": forward, "ours": ours, "reference": reference}
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            times[name].append(timed(work, device))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    vit = ViTForImageClassification(ViTConfig(num_labels=1000)).eval().to(options.device)
    images = torch.randn(max(options.batch), 3, 224, 224, device=options.device)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.device}, {platform.machine()}")
    if options.device == "cpu":
        check(vit, images, target=7)
    print("batch  ours / forward  reference / forward  reference / ours")
    for batch in options.batch:
        found = measure(vit, images[:batch], 7, options.repeats, options.device)
        ours, reference = (found[name] / found["forward"] for name in ("ours", "reference"))
        print(f"{batch:5d}  {ours:14.2f}  {reference:19.2f}  {reference / ours:16.2f}", flush=True)


if __name__ == "__main__":
    main()
