"""ROAD of an image: imputation by elimination against multigrid, and the forwards of the model apart.

    python benchmarks/imputation.py [--threads 1] [--repeats 5]

A smooth image with noise, 224 x 224 pixels, patches of 16 removed in the order of a random map: 10, 30, 50, 70 and
90 %, highest and lowest first, the ten variants of the metric's default. Both ways take turns; medians of processor
time.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from speed import make_vit
from torch import Tensor

from whyformer.metrics._imputation import impute_images

FRACTIONS = (0.1, 0.3, 0.5, 0.7, 0.9)


def make_variants() -> tuple[Tensor, Tensor]:
    """An image [3 224 224], and what each variant keeps [10 224 224]."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(1, 3, 14, 14, generator=generator, dtype=torch.float64)
    image = F.interpolate(coarse, size=(224, 224), mode="bicubic")[0]
    image += 0.2 * torch.randn(3, 224, 224, generator=generator, dtype=torch.float64)
    place = torch.rand(196, generator=generator).argsort().argsort()
    kept = [place < 196 - int(share * 196) for share in FRACTIONS] + [place >= int(share * 196) for share in FRACTIONS]
    patches = torch.stack(kept).view(-1, 1, 14, 14).to(torch.uint8)
    return image, F.interpolate(patches, size=(224, 224))[:, 0].bool()


def measure(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    image, kept = make_variants()
    vit = make_vit("vit_tiny")

    @torch.no_grad()
    def forward() -> None:
        vit(image.float().expand(len(kept), -1, -1, -1))

    works: dict[str, Callable[[], object]] = {
        "elimination (exact=True)": lambda: impute_images(image, kept, exactly=True),
        "multigrid": lambda: impute_images(image, kept, exactly=False),
        "ten forwards of a ViT-Tiny": forward,
    }
    difference = works["multigrid"]() - works["elimination (exact=True)"]()  # type: ignore[operator]
    times = {name: [measure(work)] for name, work in works.items()}
    for _ in range(options.repeats):
        for name, work in works.items():
            times[name].append(measure(work))
    medians = {name: statistics.median(seconds[1:]) for name, seconds in times.items()}
    slow = medians["elimination (exact=True)"]
    print(
        f"torch {torch.__version__}, {options.threads} thread(s); seconds for one image, medians of {options.repeats}"
    )
    for name, seconds in medians.items():
        print(f"  {name:28s} {seconds:7.3f} s   {slow / seconds:5.1f}")
    print(f"  largest difference of a pixel: {float(difference.abs().max() / image.std()):.1e} standard deviations")


if __name__ == "__main__":
    main()
