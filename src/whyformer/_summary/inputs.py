"""The inputs of a run, read again: images from their paths or from the data, texts as they were stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from whyformer._engine import Probe, TargetLike, record
from whyformer._model import Model, OneInput, as_image, tokenize_text
from whyformer._runs.parts import BulkRow
from whyformer._runs.preparation import cut_to_fit
from whyformer.data import Example
from whyformer.data.masks import align_mask, read_mask
from whyformer.errors import InputError

BATCH = 64
BLANK = "."  # models refuse an empty text
MOST_SPECIAL = 8  # tokens around a text
AGREEING = 0.9  # of the predictions must be those of the run


@dataclass(frozen=True, eq=False)
class InputReader:
    """Reads inputs again, and keeps count of those that cannot be read."""

    model: Model
    masks: Mapping[str, Path] = field(default_factory=dict)
    mask_values: str | Mapping[int, int] = "binary"
    given: Mapping[str, Example] = field(default_factory=dict)  # id -> the input that the caller passed again
    failed: dict[str, str] = field(default_factory=dict)  # id -> why
    probes: dict[int, Probe] = field(default_factory=dict)  # by class: to make one costs more than to ask

    def open_probe(self, example: OneInput, target: int) -> Probe:
        """The probe that asks for this class, made once from any input."""
        if target not in self.probes:
            self.probes[target] = open_probe(self.model, [example], target)
        return self.probes[target]

    def ask(self, inputs: Sequence[OneInput], target: int) -> tuple[np.ndarray, np.ndarray]:
        """[input]: the probability of a class, and the class that is predicted."""
        probabilities, predictions = [], []
        readable = [make_readable(one, self.model) if isinstance(one, str) else one for one in inputs]
        for start in range(0, len(readable), BATCH):
            encoded = self.model.encode(readable[start : start + BATCH])
            probe = self.open_probe(readable[0], target)
            answers = probe.run_batch(encoded, torch.zeros(len(readable[start : start + BATCH]), dtype=torch.long))
            probabilities.append(to_array(answers.probability))
            predictions.append(to_array(answers.logits).argmax(1))
        return np.concatenate(probabilities), np.concatenate(predictions)

    def load(self, rows: Sequence[BulkRow], most: int) -> tuple[list[BulkRow], list[OneInput]]:
        """The first `most` items that can be read, and their inputs."""
        kept: list[BulkRow] = []
        inputs: list[OneInput] = []
        for row in rows:
            if len(kept) == most:
                break
            try:
                inputs.append(self._load_one(row))
                kept.append(row)
            except InputError as error:
                self.failed[row.id] = str(error)
        return kept, inputs

    def _load_one(self, row: BulkRow) -> OneInput:
        if row.kind != "text" or row.source is None:
            return self.read_row_image(row)
        if tokenize_text(self.model.tokenizer, row.source, row.id).pieces != row.tokens:  # which the scores belong to
            raise InputError("The tokenizer of the model finds other tokens than the run did.")
        return row.source

    def read_row_image(self, row: BulkRow) -> Image.Image:
        """The image of a row, from the data that was passed, else from its path."""
        if row.id in self.given:
            return as_image(self.given[row.id].load())
        if row.source is None:
            raise InputError("The run did not store where the input is. Pass the data of the run with data= (--data).")
        return as_image(Path(row.source))

    def load_mask(self, row: BulkRow) -> np.ndarray | None:
        """[height width] of 1 (object), 0 and -1 as the model sees it; None if there is no mask."""
        source = Path(row.source or "")
        names = (str(Path(row.id).with_suffix("")), str(source.with_suffix("")), source.stem, Path(row.id).stem)
        path = next((self.masks[name] for name in names if name in self.masks), None)
        if path is None:
            return None
        try:
            size = self.read_row_image(row).size
            mask = align_mask(read_mask(path, self.mask_values), size, self.model)
        except InputError as error:
            self.failed[row.id] = str(error)
            return None
        return mask if (mask == 1).any() else None

    def check_predictions(self, rows: Sequence[BulkRow]) -> None:
        """Refuse a model that does not predict what the run stored."""
        if not rows:
            raise InputError("No class has enough items to be clustered. Run bulk on more of them.")
        kept, inputs = self.load(rows, 16)
        if not kept:
            reason = next(iter(self.failed.values()))
            raise InputError(f"No input could be read again: {reason} Run it where bulk ran, with the inputs in place.")
        now = open_probe(self.model, inputs, None).before.logits.argmax(1).tolist()
        same = np.mean([row.prediction in (None, found) for row, found in zip(kept, now, strict=True)])
        if same < AGREEING:
            raise InputError(
                f"{self.model.name} gives the stored prediction for {same:.0%} of {len(kept)} items only. Pass the "
                "model that the run used."
            )


def open_probe(model: Model, inputs: Sequence[OneInput], target: TargetLike) -> Probe:
    """A probe that reruns the model on variants of these inputs, for this class or the class of each."""
    probe = record(model, model.encode(list(inputs)), target=target, keep={"probe"})["probe"]
    assert isinstance(probe, Probe)
    return probe


def make_readable(text: str, model: Model) -> OneInput:
    """BLANK for an empty text; one that became too long for the model is cut at its end."""
    if not text.strip():
        return BLANK
    can_be_too_long = model.max_length is not None and len(text.encode()) + MOST_SPECIAL > model.max_length
    return cut_to_fit(model, text) if can_be_too_long else text


def to_array(values: torch.Tensor) -> np.ndarray:
    return values.detach().cpu().double().numpy()


def compare_right(
    rows: Sequence[BulkRow], predicted: np.ndarray, reader: InputReader
) -> tuple[float | None, float | None]:
    """The shares of right predictions before and after; None without labels."""
    labels = dict(enumerate(reader.model.labels or ()))
    pairs = [
        (bool(row.is_right), bool(replace(row, prediction=int(now), prediction_name=labels.get(int(now))).is_right))
        for row, now in zip(rows, predicted, strict=True)
        if row.is_right is not None
    ]
    if not pairs:
        return None, None
    before, after = np.mean(pairs, axis=0)
    return float(before), float(after)
