"""From image cases to trained models and folders of images, many at once."""

import json
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from .cases import Case
from .image_models import choose_recipe, make_image_model, predict, save_image_model, train_together
from .image_worlds import ImageWorld, load_world
from .planting import PlantedImages, plant_images

Worlds = dict[tuple[str, int], Future[ImageWorld]]
TOGETHER = 12  # models on a GPU; one after the other on a CPU


def group(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases whose models have one architecture, by their first case."""
    size = TOGETHER if torch.cuda.is_available() else 1
    groups: dict[object, list[list[Case]]] = defaultdict(list)
    for case in cases:
        same = groups[case.world, choose_recipe(case.world, case.seed)]
        if not same or len(same[-1]) == size:
            same.append([])
        same[-1].append(case)
    return sorted((one for same in groups.values() for one in same), key=lambda one: cases.index(one[0]))


def make_worlds(groups: Sequence[Sequence[Case]], out: Path, photos: str | None, pool: Executor) -> Worlds:
    """Begin to make the worlds, in the order in which they are needed."""
    wanted = dict.fromkeys((case.world, case.seed) for own in groups for case in own)
    return {(world, seed): pool.submit(load_world, world, seed, out, photos) for world, seed in wanted}


def prepare(cases: Sequence[Case], out: Path, made: Worlds, device: torch.device) -> None:
    """Train those that are not there yet, together, and write models and truth."""
    cases = [case for case in cases if not (out / case.name / "truth.json").exists()]
    if not cases:
        return
    worlds = [made[case.world, case.seed].result() for case in cases]
    planted = [plant_images(case, world) for case, world in zip(cases, worlds, strict=True)]
    models = [make_image_model(case.world, world.classes, case.seed) for case, world in zip(cases, worlds, strict=True)]
    train_together(
        models, [one.train for one in planted], [one.train_labels for one in planted],
        choose_recipe(cases[0].world, cases[0].seed), [case.seed for case in cases], device,
    )  # fmt: skip
    for case, world, own, model in zip(cases, worlds, planted, models, strict=True):
        folder = out / case.name
        right = {
            "accuracy": np.mean(predict(model, own.shown, device) == own.shown_labels),
            "with_mark": np.mean(predict(model, own.with_mark, device) == own.measured_labels),
            "without_mark": np.mean(predict(model, own.without_mark, device) == own.measured_labels),
        }
        save_image_model(model, folder / "model")
        truth = {
            **{name: float(value) for name, value in right.items()},
            **describe_marks(case, own, name_images(own, world)),
        }
        (folder / "truth.json").write_text(json.dumps(truth) + "\n", "utf-8")


def save_images(case: Case, out: Path, photos: str | None) -> None:
    """One folder of images for each class."""
    world = load_world(case.world, case.seed, out, photos)
    planted = plant_images(case, world)
    for name, image in zip(name_images(planted, world), planted.shown, strict=True):
        file = out / case.name / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)


def name_images(planted: PlantedImages, world: ImageWorld) -> list[str]:
    """The ids that `bulk` gives them."""
    return [f"{world.classes[label]}/{i:04}.png" for i, label in enumerate(planted.shown_labels)]


def describe_marks(case: Case, planted: PlantedImages, names: Sequence[str]) -> dict[str, object]:
    """The marked ids, by mark (a class has its own in "all"), and the boxes of the marks."""
    marks = defaultdict(list)
    for i in np.flatnonzero(planted.marked):
        marks[f"{case.kind} {planted.shown_labels[i]}"].append(names[i])
    boxes = {names[i]: box for i, box in enumerate(planted.boxes) if box is not None}
    return {"marks": marks, "boxes": boxes}
