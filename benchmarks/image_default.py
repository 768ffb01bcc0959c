r"""Which method should explain images by default? Measures and rule, written down before anything was measured.

    python evaluation/stage.py --data DATA pets
    python benchmarks/image_default.py demo/pets --photos 200 --out runs/default-pets
    python benchmarks/image_default.py timm:tiny_vit_5m_224 --weights DATA/tinyvit-5m-in22k/model.safetensors \
        --photos 100 --out runs/default-tinyvit

Photos: held-out photos of the Oxford-IIIT Pet data set that the evaluation of docs/judge-measured.md used neither to
choose the default (300) nor to report it (600), drawn by the seed. The predicted class is explained.

Four measures, each a number per photo, between methods always as a paired difference with a 95 % interval:

* **area**: the area between the curves of the probability of the class when the lowest and when the highest patches are
  replaced by the mean colour first, from a tenth to nine tenths (negative minus positive perturbation, in units of
  probability);
* **asked**: two animals of different breeds side by side, asked for one and then for the other: the share of the
  positive scores on the half of the animal asked for. A map that ignores the class has one half;
* **mass**: the share of the positive scores on the animal, and **pointing**: whether the highest pixel is on it.

The rule, in this order:

1. A method is *fit* on a model if its area is larger than that of every control, and its share on the animal asked for
   is above one half, each by the whole interval.
2. Of the methods that are fit on all models, a method takes the place of the default if its area is larger on at least
   one model, and smaller on none, each by the whole interval. Of several, the one with the largest mean area.
3. Where the default itself is not fit on a model, the fit method with the largest area there takes its place on models
   of that kind, and on all models if rule 2 holds for it on the others.
4. Outlines are what people see, not what the model uses: mass and pointing are reported beside, and do not decide.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image
from two_animals import HALVES, cut_half, join_halves

import whyformer as why
from whyformer._plain.statistics import bootstrap
from whyformer.data import Data, Example, read
from whyformer.data.masks import read_mask
from whyformer.integrations import measure_share

PHOTOS = Path(__file__).parents[1] / "evaluation" / "data" / "pets"
DEFAULT = "gamma_attribution"
METHODS = (DEFAULT, "libragrad", "attnlrp", "lrp_gamma")
CURVES = {"fractions": (0.1, 0.3, 0.5, 0.7, 0.9), "fill": "mean", "per": "patch", "against": "probability"}
METRICS = (
    partial(why.metrics.negative_perturbation, **CURVES),
    partial(why.metrics.positive_perturbation, **CURVES),
    why.metrics.mass_in_mask,
    why.metrics.pointing_game,
)
Values = Mapping[str, np.ndarray]  # [photo], by method


def draw_unused_photos(count: int, seed: int) -> Data:
    """Photos that docs/judge-measured.md was not made from."""
    data = read(PHOTOS, mask_values="trimap")
    halves = [replace(data, examples=data.examples[start::2]) for start in (0, 1)]
    used = {one.name for half, size in zip(halves, (300, 600), strict=True) for one in half.sample(size).examples}
    return replace(data, examples=tuple(one for one in data.examples if one.name not in used)).sample(count, seed)


def judge_photos(model: why.Model, data: Data, out: Path, batch: int) -> dict[str, Values]:
    """Area, mass and pointing of every photo, by measure and method; also of the controls."""
    judged = why.judge(model, data, METHODS, METRICS, out=out, batch_size=batch, report=False)
    negative, positive, mass, pointing = np.moveaxis(judged.rows.value, -1, 0)  # each [photo method]
    measures = {"area": (negative - positive) / 100, "mass": mass, "pointing": pointing}
    return {name: dict(zip(judged.rows.methods, one.T, strict=True)) for name, one in measures.items()}


def ask_for_each(model: why.Model, data: Data, seed: int, batch: int) -> Values:
    """The share on the animal asked for, [question], of photos in pairs of different breeds."""
    drawn = list(data.examples)
    Random(seed).shuffle(drawn)
    pairs = [(one, other) for one, other in zip(drawn[::2], drawn[1::2], strict=False) if one.label != other.label]
    images = [join_halves(*map(cut_animal, pair)) for pair in pairs for _ in pair]
    breeds = [number_breed(one) for pair in pairs for one in pair]
    boxes = list(HALVES.values()) * len(pairs)
    found: dict[str, list[float]] = {method: [] for method in METHODS}
    for start in range(0, len(images), batch):
        part = slice(start, start + batch)
        for method, explained in why.compare(model, images[part], METHODS, target=breeds[part]).explanations.items():
            shares = zip(explained, boxes[part], strict=True)
            found[method] += [measure_share(one, box=box) for one, box in shares]
    return {method: np.array(shares) for method, shares in found.items()}


def cut_animal(example: Example) -> Image.Image:
    """Half a square of the photo, around the animal."""
    photo, mask = Image.open(example.load()).convert("RGB"), read_mask(example.load_mask(), "trimap")
    rows, columns = np.nonzero(mask == 1)
    left, top, right, bottom = (
        (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) if len(rows) else (0, 0, *photo.size)
    )
    return cut_half(photo, (int(left), int(top), int(right), int(bottom)), "animal")


def number_breed(example: Example) -> int:
    """The class of a breed, in both models: its place in the alphabet, capitals or not."""
    breeds = [label.replace(" ", "_").lower() for label in why.open("demo/pets").labels or ()]
    return breeds.index(str(example.label).lower())


# --- the rule ---------------------------------------------------------------------------------------------------------


def is_fit(area: Values, asked: Values, method: str) -> bool:
    """Whether its area is larger than that of every control, and its share on the animal asked for above one half."""
    controls = [name for name in area if name not in METHODS]
    differences = [area[method] - area[control] for control in controls]
    return all(bootstrap(values)[1] > 0 for values in (*differences, asked[method] - 0.5))


def format_interval(values: np.ndarray) -> str:
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*bootstrap(values))


def print_results(measures: Mapping[str, Values]) -> None:
    """Means, what is fit, and the differences from the default."""
    print("| method | " + " | ".join(measures) + " | fit |\n" + "|---" * (len(measures) + 2) + "|")
    for method in measures["area"]:
        cells = [format_interval(values[method]) if method in values else "-" for values in measures.values()]
        fit = str(is_fit(measures["area"], measures["asked"], method)) if method in METHODS else "control"
        print(f"| {method} | " + " | ".join(cells) + f" | {fit} |")
    print(f"\n| less {DEFAULT} | " + " | ".join(measures) + " |\n" + "|---" * (len(measures) + 1) + "|")
    for method in METHODS[1:]:
        cells = [format_interval(values[method] - values[DEFAULT]) for values in measures.values()]
        print(f"| {method} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--weights")
    parser.add_argument("--photos", type=int, default=200)
    parser.add_argument("--seed", type=int, default=50)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    model, data = why.open(given.model, weights=given.weights), draw_unused_photos(given.photos, given.seed)
    print(f"{given.model} on {len(data)} photos, seed {given.seed}", flush=True)
    measures = judge_photos(model, data, given.out, given.batch)
    measures["asked"] = ask_for_each(model, data, given.seed, given.batch)
    print_results(measures)


if __name__ == "__main__":
    main()
