"""Does a method look at the object it is asked about? Two objects in one image, both classes asked for.

    python benchmarks/class_specificity.py [--model demo/shapes] [--images 200] [--seed 5] [--methods ...]

Images of `whyformer.demo.shapes` with two objects, explained once for each of the two classes. The score of a patch
counts for an object by how much of the patch the object covers; the share on the right object and on the other one is
of all positive scores. Intervals: 95 %, bootstrap over images.
"""

import argparse
from typing import Any

import numpy as np
import torch
from PIL import Image

import whyformer as why
from whyformer.demo import shapes

METHODS = (
    "gamma_attribution", "transformer_attribution", "libragrad", "generic_attention", "grad_cam", "partial_lrp",
    "rollout", "chance",
)  # fmt: skip


def cover_patches(masks: np.ndarray, side: int) -> torch.Tensor:
    """How much of every patch each object covers: [image object patch]."""
    images, objects, height, _ = masks.shape
    size = height // side
    tiles = masks.reshape(images, objects, side, size, side, size).mean((3, 5))
    return torch.from_numpy(tiles.reshape(images, objects, -1))


def measure_shares(model: why.Model, method: Any, scenes: shapes.Scenes, asked: int) -> torch.Tensor:
    """[image 2]: the share on the object asked about, and on the other."""
    rows = []
    for start in range(0, len(scenes.images), 50):
        part = slice(start, start + 50)
        images = [Image.fromarray(image) for image in scenes.images[part]]
        e = why.explain(model, images, method, target=scenes.labels[part, asked].tolist())
        covered = cover_patches(scenes.masks[part], e.tokens[0].rows)
        scores = e.scores.double().clamp(min=0).cpu()
        total = scores.sum(1, keepdim=True).clamp(min=1e-300)
        on = torch.einsum("ip,iop->io", scores, covered) / total
        rows.append(torch.stack([on[:, asked], on[:, 1 - asked]], 1))
    return torch.cat(rows)


def measure_both(model: why.Model, method: Any, scenes: shapes.Scenes) -> np.ndarray:
    """[class image 2]: the shares when the first class is asked for, and when the second is."""
    return np.stack([measure_shares(model, method, scenes, asked).numpy() for asked in (0, 1)])


def cell(values: np.ndarray, rng: np.random.Generator) -> str:
    """Mean and 95 % interval."""
    picked = values[rng.integers(0, len(values), (2000, len(values)))].mean(1)
    low, high = np.quantile(picked, [0.025, 0.975])
    return f"{100 * values.mean():5.1f} % [{100 * low:4.1f}, {100 * high:4.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="demo/shapes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = why.open(options.model, device=options.device)
    scenes = shapes.generate(options.images, seed=options.seed, objects=2)
    print(f"{options.model}, {options.images} images with two objects, seed {options.seed}, both classes asked for")
    print(f"{'method':26s} right object         other object         ratio  changes with the class")
    for method in options.methods:
        both = measure_both(model, method, scenes)
        right, other = both.mean(0).T
        rng = np.random.default_rng(0)
        cells = [cell(values, rng) for values in (right, other)]
        changes = "yes" if not np.array_equal(both[0], both[1][:, ::-1]) else "no"
        print(f"{method:26s} {cells[0]:20s} {cells[1]:20s} {right.mean() / other.mean():5.2f}  {changes}", flush=True)


if __name__ == "__main__":
    main()
