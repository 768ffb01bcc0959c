"""What rounding costs: scores in float32 and with TF32 products against those in float64, on photos and demo/pets.

    python benchmarks/precision.py photos --device cuda
    python benchmarks/precision.py photos --methods transformer_attribution attnlrp --limit 16

For each method: Spearman's rank correlation of the scores of an image, and the largest difference, relative to the
largest score of that image in float64. TF32 exists on GPUs alone.
"""

import argparse
from pathlib import Path

import torch
from scipy.stats import spearmanr
from torch import Tensor

import whyformer as why

METHODS = (
    "transformer_attribution", "gamma_attribution", "generic_attention", "attcat", "attnlrp", "libragrad",
    "gradient_x_input", "rollout",
)  # fmt: skip


def score_photos(photos: list[Path], method: str, device: str, dtype: torch.dtype, tf32: bool) -> Tensor:
    """[image patch], of the class that float64 predicts as well as any other: the first one."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    model = why.open("demo/pets", device=device, dtype=dtype)
    return why.explain(model, photos, method, target=0).scores.double().cpu()


def compare_scores(found: Tensor, exact: Tensor) -> tuple[list[float], Tensor]:
    """Rank correlation and largest relative difference, image by image."""
    ranks = [float(spearmanr(a, b).statistic) for a, b in zip(found, exact, strict=True)]
    return ranks, (found - exact).abs().amax(1) / exact.abs().amax(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a folder of images, searched with its subfolders")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=int, default=64)
    options = parser.parse_args()
    photos = sorted(options.photos.rglob("*.jpg"))[: options.limit]
    print(f"{len(photos)} photos, demo/pets on {options.device}, against float64")
    print(f"{'method':<26}{'':<9}{'rank correlation':>18}{'lowest':>9}{'largest difference':>20}{'worst':>10}")
    for method in options.methods:
        exact = score_photos(photos, method, options.device, torch.float64, tf32=False)
        for name, tf32 in (("float32", False), *((("TF32", True),) if options.device != "cpu" else ())):
            ranks, moved = compare_scores(score_photos(photos, method, options.device, torch.float32, tf32), exact)
            middle = torch.tensor(ranks).median()
            print(f"{method:<26}{name:<9}{middle:18.5f}{min(ranks):9.4f}{moved.median():20.2e}{moved.max():10.2e}")


if __name__ == "__main__":
    main()
