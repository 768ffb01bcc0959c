"""From a finding to its cure: train with a mark, find it, hide it in the training images, train again.

    python benchmarks/shortcut_cure.py --out FOLDER [--seeds 0 1 2 3 4] [--kind corner]

1. A small ViT is trained on faint shapes; half of the images of one class carry a label (benchmarks/shortcuts.py).
2. `bulk` explains the training images, `summarise_bulk` finds what they share, and the first suspicious finding is
   exported: the images that show the mark, and the patches that it covers in each.
3. These patches are filled from images of other classes. Because that could be a mark as well, and because some marked
   images may not have been found, patches of the finding are filled in every other training image, too.
4. The same model is trained again, from the same start.

Prints the accuracy on new images with and without the mark, before and after, beside a model that never saw the mark.
Nothing that only the benchmark knows (which images are marked, and where) is used between 1 and 4. A seed takes about
five minutes on one CPU thread; its result is kept in FOLDER/<seed>/cure.json and not computed again.
"""

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from PIL import Image  # noqa: E402
from shortcut_cases.cases import Case  # noqa: E402
from shortcut_cases.image_models import (  # noqa: E402
    ImageModel,
    choose_recipe,
    make_image_model,
    predict,
    save_image_model,
    train_together,
)
from shortcut_cases.image_worlds import ImageWorld, load_world  # noqa: E402
from shortcut_cases.planting import PlantedImages, plant_images  # noqa: E402

import whyformer as why  # noqa: E402

PATCH = 8  # pixels
Patches = dict[str, list[int]]  # by item
Rows = dict[str, dict[str, float]]  # accuracies by model and images


def find_mark(model: Path, images: Path, run: Path) -> Patches:
    """The patches of the first suspicious finding in each item that shows it."""
    why.bulk(model, images, "attnlrp", out=run, workers=1)
    found = why.summarise_bulk(run, model)
    print(found.verdict)
    found.save(run.with_name("findings.json"))
    if not found.suspicious:
        return {}
    finding = found.suspicious[0]
    usual = [] if finding.where is None else np.flatnonzero(finding.where >= 0.5).tolist()
    return {one.row.id: list(one.patches) or usual for one in finding.sightings}


def hide_mark(
    images: NDArray[np.uint8], labels: NDArray[np.int64], names: list[str], mark: Patches, seed: int
) -> NDArray[np.uint8]:
    """The images with these patches filled from other classes, and all other images treated alike."""
    rng = np.random.default_rng([seed, 3])
    patterns = list(mark.values())
    own = int(np.bincount(labels[[name in mark for name in names]]).argmax())
    donors = np.flatnonzero(labels != own)
    cured, columns = images.copy(), images.shape[2] // PATCH
    for i, name in enumerate(names):
        patches = mark.get(name) or patterns[rng.integers(len(patterns))]
        donor = images[rng.choice(donors)]
        for patch in patches:
            down, across = PATCH * (patch // columns), PATCH * (patch % columns)
            cured[i, down : down + PATCH, across : across + PATCH] = donor[down : down + PATCH, across : across + PATCH]
    return cured


def train(images: NDArray[np.uint8], labels: NDArray[np.int64], world: ImageWorld, seed: int) -> ImageModel:
    model = make_image_model(world.name, world.classes, seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_together([model], [images], [labels], choose_recipe(world.name, seed), [seed], device)
    return model


def measure(model: ImageModel, planted: PlantedImages, world: ImageWorld) -> dict[str, float]:
    """Accuracy on new images: of the marked class with and without the mark, and of the other classes."""
    start, label = world.train + world.shown, planted.measured_labels[0]
    others = np.flatnonzero(world.labels[start:] != label) + start
    groups = {
        "with the mark": (planted.with_mark, planted.measured_labels),
        "without it": (planted.without_mark, planted.measured_labels),
        "other classes": (world.images[others], world.labels[others]),
    }
    device = torch.device("cpu")
    return {name: float(np.mean(predict(model, items, device) == right)) for name, (items, right) in groups.items()}


def cure(case: Case, out: Path) -> Rows:
    """Accuracies before, after, and of a model that never saw the mark; if nothing was found, after is before."""
    world = load_world(case.world, case.seed, out, None)
    planted, labels = plant_images(case, world), world.labels[: world.train]
    names = [f"{world.classes[label]}/{i:04}.png" for i, label in enumerate(labels)]
    for name, image in zip(names, planted.train, strict=True):
        (out / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(out / "images" / name)
    before = train(planted.train, labels, world, case.seed)
    save_image_model(before, out / "before")
    mark = find_mark(out / "before", out / "images", out / "run")
    after = before
    if mark:
        after = train(hide_mark(planted.train, labels, names, mark, case.seed), labels, world, case.seed)
        save_image_model(after, out / "after")
    never = train(world.images[: world.train], labels, world, case.seed)
    models = {"before": before, "after": after, "never marked": never}
    return {name: measure(model, planted, world) for name, model in models.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder for images, models and the run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--kind", default="corner", help="of mark: corner, moving, logo or border")
    arguments = parser.parse_args()
    tables: list[Rows] = []
    for seed in arguments.seeds:
        out = arguments.out / str(seed)
        if not (out / "cure.json").exists():
            rows = cure(Case("shapes", arguments.kind, 0.5, seed, "planted"), out)
            (out / "cure.json").write_text(json.dumps(rows) + "\n", "utf-8")
        tables.append(json.loads((out / "cure.json").read_text("utf-8")))
    print("| accuracy, mean (range) | with the mark | without it | other classes |\n|---|---|---|---|")
    for name, row in tables[0].items():
        cells = [[table[name][column] for table in tables] for column in row]
        print(
            f"| {name} | {' | '.join(f'{np.mean(all_):.0%} ({min(all_):.0%} to {max(all_):.0%})' for all_ in cells)} |"
        )


if __name__ == "__main__":
    main()
