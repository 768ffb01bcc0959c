"""What an image's most relevant patches look like to the model: its own hidden states there.

A patch is described by the hidden state one block before the last, minus the median of that position over the data set
(which removes the position embedding), whitened along the main directions of all patches (which removes what the
patches of an image have in common), scaled to unit length. Of the layers, this one sets marks apart from natural
evidence best: it says what the model took the patch for, whatever is around it.

The states are computed anew, on the sampled items, instead of being stored by `bulk`: a run that was made before, by
any engine, has all that is needed, its parts stay small (16 states of 768 numbers would be ten times the scores), and
what is found is the same whoever computed the parts. It costs one forward for each sampled image.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from whyformer._engine import Probe, record
from whyformer._model import EncodedBatch, Model, OneInput
from whyformer._runs.parts import BulkRow
from whyformer._summary.inputs import InputReader, to_array
from whyformer.errors import InputError

TOP = 5  # most relevant patches, which are clustered
KEPT = 16  # patches of which the state is kept, to see where else a mark is
FOR_MEDIANS = 256  # images
FOR_TEMPLATES = 8000  # images of which the pixels are kept, shrunk to LONGEST
LONGEST = 112  # pixels of a side: larger images are shrunk by whole factors
DIRECTIONS = 64  # of largest variance
LEAST_SPREAD = 0.1  # of the largest, added to each: directions without variance stay small
BATCH = 32
EARLY, LATE = 1, -2  # hidden states: after the first block, and before the last


@dataclass(frozen=True, eq=False)
class Describer:
    """Turns hidden states into descriptions of patches."""

    medians: np.ndarray  # [patch channel]
    basis: np.ndarray  # [channel direction], scaled

    def describe(self, states: np.ndarray, patches: np.ndarray) -> np.ndarray:
        """[... direction] of unit length, from states [... channel] at these patches [...]."""
        described = (states - self.medians[patches]) @ self.basis
        return described / np.linalg.norm(described, axis=-1, keepdims=True).clip(min=1e-12)


def fit_describer(states: np.ndarray) -> Describer:
    """From the states [image patch channel] of some images."""
    medians = np.median(states, axis=0)
    centred = (states - medians).reshape(-1, states.shape[-1]).astype(np.float64)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    spreads = np.sqrt(values[::-1][:DIRECTIONS].clip(min=0.0))
    return Describer(medians, vectors[:, ::-1][:, :DIRECTIONS] / (spreads + LEAST_SPREAD * spreads[0] + 1e-12))


@dataclass(frozen=True, eq=False)
class PatchStates:
    """The states of the most relevant patches of images, the most relevant first."""

    rows: tuple[BulkRow, ...]
    patches: np.ndarray  # [item KEPT], numbered row by row
    states: np.ndarray  # [item KEPT direction], of unit length
    describer: Describer
    images: Tensor  # [item channel height width] of the first items, shrunk

    def pick(self, items: np.ndarray) -> "PatchStates":
        rows, images = tuple(self.rows[i] for i in items), self.images[items[items < len(self.images)]]
        return PatchStates(rows, self.patches[items], self.states[items], self.describer, images)


def read_patch_states(rows: Sequence[BulkRow], reader: InputReader) -> PatchStates | None:
    """The states of these images; None if none of them can be read, or the model has no state for each patch."""
    kept: list[BulkRow] = []
    patches: list[np.ndarray] = []
    states: list[np.ndarray] = []
    whole: list[np.ndarray] = []
    small: list[Tensor] = []
    for some, images in iterate_image_batches(rows, reader):
        encoded = reader.model.encode(images)
        late = run_states(reader.model, encoded, (LATE,))[0]
        if late is None or late.shape[1] != len(some[0].scores if some[0].scores is not None else ()):
            return None
        if sum(len(one) for one in whole) < FOR_MEDIANS:
            whole.append(late.astype(np.float32))
        if len(kept) < FOR_TEMPLATES:
            small.append(shrink_images(encoded.inputs[encoded.main].detach().cpu()))
        chosen = np.stack([rank_patches(row) for row in some])
        kept += some
        patches.append(chosen)
        states.append(np.take_along_axis(late, chosen[..., None], 1).astype(np.float32))
    if not kept:
        return None
    describer, places = fit_describer(np.concatenate(whole)[:FOR_MEDIANS]), np.concatenate(patches)
    described = [describer.describe(one, some) for one, some in zip(states, patches, strict=True)]
    return PatchStates(tuple(kept), places, np.concatenate(described), describer, torch.cat(small))


def shrink_images(pixels: Tensor) -> Tensor:
    """The images [item channel height width] by a whole factor smaller, in half precision."""
    factor = find_factor(pixels.shape[-2:])
    return functional.avg_pool2d(pixels.float(), factor).half() if factor > 1 else pixels.half()


def find_factor(size: Sequence[int]) -> int:
    """By which images of this size are shrunk."""
    return max(1, -(-max(size) // LONGEST))


def rank_patches(row: BulkRow) -> np.ndarray:
    """[KEPT]: the patches with the highest scores; equal ones in their order."""
    assert row.scores is not None
    return np.argsort(-row.scores, kind="stable")[:KEPT]


def iterate_image_batches(
    rows: Sequence[BulkRow], reader: InputReader
) -> Iterator[tuple[list[BulkRow], list[OneInput]]]:
    """The rows that can be read, with their inputs; those of one grid, which the first row sets."""
    grid = rows[0].grid if rows else None
    same = [row for row in rows if row.grid == grid]
    for start in range(0, len(same), BATCH):
        some, images = reader.load(same[start : start + BATCH], BATCH)
        if some:
            yield some, images


def run_states(model: Model, encoded: EncodedBatch, layers: Sequence[int]) -> list[np.ndarray | None]:
    """For each of these layers [item patch channel]; None where a layer has no state for each patch."""
    capture = record(model, encoded, keep={"hidden", "probe"})
    probe, hidden = capture["probe"], capture["hidden"]
    assert isinstance(probe, Probe)
    try:
        places = probe.places
    except InputError:
        return [None] * len(layers)
    found = [hidden[min(layer, len(hidden) - 1)] for layer in layers]
    return [to_array(one[:, places]) if one.size(1) > int(places.max()) else None for one in found]
