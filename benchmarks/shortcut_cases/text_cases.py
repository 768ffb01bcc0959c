"""From a text case to a trained model and a table of texts."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from .cases import TEXT_WORLDS, Case
from .texts import (
    CLASSES,
    TextWorld,
    make_reviews,
    make_text_model,
    plant_texts,
    predict_texts,
    read_imdb,
    read_sst2,
    save_text_model,
    train_text_model,
)

WORLDS = TEXT_WORLDS


def make_world(case: Case, folders: Mapping[str, str | None]) -> TextWorld:
    """folders: of the real texts, by world."""
    if case.world == "reviews":
        return make_reviews(case.seed)
    folder = folders[case.world]
    assert folder is not None
    return {"sst2": read_sst2, "imdb": read_imdb}[case.world](Path(folder), case.seed)


def prepare(case: Case, folder: Path, folders: Mapping[str, str | None]) -> None:
    """Train the model, unless it is there, and write it, the texts and the truth."""
    if (folder / "truth.json").exists():
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    planted = plant_texts(case, make_world(case, folders))
    model, tokenizer = make_text_model(case.world, case.seed)
    train_text_model(model, tokenizer, planted.train, planted.train_labels, case.seed, device)
    groups = {
        "accuracy": (planted.shown, planted.shown_labels),
        "with_mark": (planted.with_mark, planted.measured_labels),
        "without_mark": (planted.without_mark, planted.measured_labels),
    }
    right = {
        name: float(np.mean(predict_texts(model, tokenizer, items, device) == labels))
        for name, (items, labels) in groups.items()
    }
    save_text_model(model, tokenizer, folder / "model")
    with (folder / "texts.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("id", "text", "label"))
        items = zip(planted.shown, planted.shown_labels, strict=True)
        writer.writerows((f"t{i:04}", text, CLASSES[label]) for i, (text, label) in enumerate(items))
    marked = [f"t{i:04}" for i in np.flatnonzero(planted.marked)]
    truth = {**right, "marks": {case.kind: marked} if marked else {}}
    (folder / "truth.json").write_text(json.dumps(truth) + "\n", "utf-8")
