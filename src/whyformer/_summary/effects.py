"""What evidence in images does: hidden where it is, put where it is not.

**Hiding** removes the patches that the detector matches, by two fills (from the pixels around them; from an image of
another class at the same place), and grows them by one and two patches while the answer falls further. The control
removes as large an area of the same item's other evidence, its most relevant patches away from the mark, by the same
fill. What changes from item to item (digits, a scratch) is removed by area as well. **Inserting** copies the pixels
into an image of another class, with a soft edge; the control copies that other evidence of the same donor. Extent and
fill are chosen on some items, and the answer is told of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from scipy.ndimage import binary_dilation
from torch import Tensor
from torch.nn import functional

from whyformer._engine import Probe
from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import AnswerChange, Effect, measure_effect
from whyformer._summary.inputs import InputReader, compare_right, to_array
from whyformer._summary.patches import Detector, PatchStates, describe_both, run_states

GROWN = (0, 1, 2)  # patches
TRIED = 8  # items with which the extent and the fill are chosen
ENOUGH = 0.9  # of the largest fall: no need to grow further
MAX_AREA = 0.5  # of the image
FEATHER = 0.5  # of the side of a patch: standard deviation of the soft edge
FULL = np.ones((3, 3), dtype=bool)
FILLS = ("neighbours", "another image")


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images that were read again, with the descriptions of all their patches."""

    rows: list[BulkRow]
    pixels: Tensor  # [item channel height width]
    states: np.ndarray  # [item patch 2 direction]

    @property
    def grid(self) -> tuple[int, int]:
        assert self.rows[0].grid is not None
        return self.rows[0].grid

    @property
    def side(self) -> float:
        """Of a patch, in pixels."""
        return self.pixels.shape[-2] / self.grid[0]

    def first(self, count: int) -> "ImageSet":
        return ImageSet(self.rows[:count], self.pixels[:count], self.states[:count])


def read_images(rows: Sequence[BulkRow], most: int, reader: InputReader, known: PatchStates) -> ImageSet | None:
    """The first `most` of these images that can be read; None if there is none."""
    kept, images = reader.load([row for row in rows if row.grid == known.rows[0].grid], most)
    if not kept:
        return None
    encoded = reader.model.encode(images)
    states = run_states(reader.model, encoded)
    assert states is not None  # it had a state for each patch before
    places = np.broadcast_to(np.arange(states[0].shape[1]), states[0].shape[:2])
    pixels = encoded.inputs[encoded.main].detach().cpu()
    return ImageSet(kept, pixels, describe_both(known.describers, states, places))


def find_mask(one: Detector, images: ImageSet) -> np.ndarray:
    """[item row column] of bool: the patches that the detector matches, at least the best one of each image."""
    scores = one.score(images.states)
    matched = scores >= np.minimum(one.threshold, scores.max(1, keepdims=True))
    return np.asarray(matched.reshape(len(matched), *images.grid))


def grow_mask(masks: np.ndarray, by: int) -> np.ndarray:
    """Masks [item row column], larger by so many patches unless they would cover most of the image."""
    grown = binary_dilation(masks, FULL[None], by) if by else masks
    return np.where(grown.mean((1, 2), keepdims=True) <= MAX_AREA, grown, masks)


def choose_other_evidence(rows: Sequence[BulkRow], masks: np.ndarray) -> np.ndarray:
    """[item row column] of bool: as many patches as the mask has, the most relevant ones that do not touch it."""
    chosen = np.zeros_like(masks)
    for row, mask, close, other in zip(rows, masks, grow_mask(masks, 1), chosen, strict=True):
        assert row.scores is not None
        scores = np.where(mask.ravel(), -np.inf, row.scores) - 1e6 * (close & ~mask).ravel()
        count = min(int(mask.sum()), int((~mask).sum()))
        other.ravel()[np.argsort(-scores, kind="stable")[:count]] = True
    return chosen


# --- images without and with it ---------------------------------------------------------------------------------------


def enlarge_mask(mask: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """[n height width] of bool: the pixels of the patches."""
    given = torch.from_numpy(mask.astype(np.float32))[:, None]
    return np.asarray(functional.interpolate(given, size=tuple(size), mode="nearest")[:, 0].numpy() > 0)


def blur(images: np.ndarray, spread: float, *, mirror: bool = False) -> np.ndarray:
    """Images [... height width] under a Gaussian of this spread; beyond the edge is 0, or what is at the edge."""
    down, across = (make_gaussian(size, spread, mirror) for size in images.shape[-2:])
    return np.asarray(down @ images @ across.T)


@lru_cache(64)
def make_gaussian(size: int, spread: float, mirror: bool) -> np.ndarray:
    """[size size]: the weights of each pixel of a line in the blurred one; cut off at four spreads."""
    reach = int(4 * spread + 0.5)
    weights = np.exp(-0.5 * np.square(np.arange(-reach, reach + 1) / spread))
    matrix, rows = np.zeros((size, size)), np.arange(size)
    for offset, weight in zip(range(-reach, reach + 1), weights / weights.sum(), strict=True):
        at = (rows + offset).clip(0, size - 1)
        valid = mirror | (at == rows + offset)
        matrix[rows[valid], at[valid]] += weight
    return matrix


def fill_from_neighbours(pixels: Tensor, mask: np.ndarray, side: float) -> Tensor:
    """The images with the masked pixels filled from around them; side: of a patch."""
    filled, left, spread = to_array(pixels).copy(), mask.copy(), side / 2
    known = (~mask).astype(np.float64)
    while left.any() and spread < 4 * pixels.shape[-1]:
        some = np.flatnonzero(left.any((1, 2)))
        weight = blur(known[some], spread)
        values = blur(filled[some] * known[some, None], spread) / np.maximum(weight, 1e-12)[:, None]
        reached = left[some] & (weight > 1e-3)
        filled[some] = np.where(reached[:, None], values, filled[some])
        left[some] &= ~reached
        spread *= 2
    return torch.from_numpy(filled).to(pixels)


def paste_pixels(donors: Tensor, recipients: Tensor, mask: np.ndarray, side: float) -> Tensor:
    """The recipients with the masked pixels of the donors, with a soft edge outside of the mask; side: of a patch."""
    hard = mask.astype(np.float64)
    soft = np.maximum(hard, np.clip(2 * blur(hard, FEATHER * side, mirror=True), 0, 1))
    alpha = torch.from_numpy(soft)[:, None].to(donors)
    return alpha * donors + (1 - alpha) * recipients


# --- tests ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ImageTest:
    """The images with the evidence, those of other classes, and a probe that asks for the class."""

    inside: ImageSet
    recipients: ImageSet
    probe: Probe
    masks: np.ndarray  # [item row column] of bool: what the detector matches in `inside`
    seed: int

    def ask(self, pixels: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """[n]: the probability, and the class that is predicted, for these pixels."""
        answers = self.probe.replace_inputs(pixels, torch.zeros(len(pixels), dtype=torch.long))
        return to_array(answers.probability), to_array(answers.logits).argmax(1)

    def first(self, count: int) -> "ImageTest":
        return replace(self, inside=self.inside.first(count), masks=self.masks[:count])

    def remove(self, masks: np.ndarray, fill: str) -> Tensor:
        pixels, side = self.inside.pixels, self.inside.side
        mask = enlarge_mask(masks, pixels.shape[-2:])
        if fill == "neighbours":
            return fill_from_neighbours(pixels, mask, side)
        donors = self.recipients.pixels[torch.arange(len(pixels)) % len(self.recipients.pixels)]
        return paste_pixels(donors, pixels, mask, side)

    def measure_falls(self, by: int, fill: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """[item]: the probability without the mark, the class then predicted, and the probability of the control."""
        masks = grow_mask(self.masks, by)
        after, predicted = self.ask(self.remove(masks, fill))
        control, _ = self.ask(self.remove(choose_other_evidence(self.inside.rows, masks), fill))
        return after, predicted, control

    def choose_extent(self) -> tuple[int, str]:
        """The smallest growth that loses nearly as much as the best, and its fill."""
        few = self.first(TRIED)
        before, _ = few.ask(few.inside.pixels)
        net: dict[tuple[int, str], float] = {}
        for by in GROWN:
            for fill in FILLS:
                after, _, control = few.measure_falls(by, fill)
                net[by, fill] = float((control - after).mean() + 0.5 * (before - after).mean())
        best = max(net.values())
        return next(key for key, fall in net.items() if fall >= best - (1 - ENOUGH) * abs(best))

    def hide(self, by: int, fill: str, reader: InputReader) -> tuple[Effect, AnswerChange]:
        before, _ = self.ask(self.inside.pixels)
        after, predicted, control = self.measure_falls(by, fill)
        told = AnswerChange(
            len(before), float(before.mean()), float(after.mean()),
            *compare_right(self.inside.rows, predicted, reader), area=float(grow_mask(self.masks, by).mean()),
        )  # fmt: skip
        return measure_effect(before - after, before - control, self.seed), told

    def insert(self, by: int) -> tuple[Effect, AnswerChange]:
        masks, pixels = grow_mask(self.masks, by), self.inside.pixels
        into = self.recipients.pixels[torch.arange(len(pixels)) % len(self.recipients.pixels)]
        before, _ = self.ask(into)
        pasted, control = (
            self.ask(paste_pixels(pixels, into, enlarge_mask(one, pixels.shape[-2:]), self.inside.side))[0]
            for one in (masks, choose_other_evidence(self.inside.rows, masks))
        )
        told = AnswerChange(len(before), float(before.mean()), float(pasted.mean()), area=float(masks.mean()))
        return measure_effect(pasted - before, control - before, self.seed), told
