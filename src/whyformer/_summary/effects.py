"""What evidence in images does: hidden where it is, put where it is not.

**Hiding** removes the patches that the detector matches, by two fills (from the pixels around them; from an image of
another class at the same place), grows them by one and two patches while the answer falls further, and takes along what
is *fixed*: places where images with the evidence are alike to the first block of the model, and others are not (the
rest of a frame). The control removes as large an area of the same item's other evidence, its most relevant patches away
from the mark, by the same fill. What changes from item to item (digits, a scratch) is removed by area as well.

**Inserting** copies the pixels into an image of another class, with a soft edge. It is compared with that other
evidence of the same donor, and with the best evidence, as large, of items that do not show it, put into images of
classes other than theirs. Extents and fill are chosen on some items, and the answer is told of all; evidence that does
next to nothing on these items is not tested on more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import torch
from scipy.ndimage import binary_dilation, uniform_filter
from torch import Tensor
from torch.nn import functional

from whyformer._engine import Probe
from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import AnswerChange, Effect, measure_effect
from whyformer._summary.inputs import InputReader, compare_right, to_array
from whyformer._summary.patches import Detector, PatchStates, describe_both, run_states

TRIED = 8  # items with which evidence is screened, and the extent and the fill are chosen
PROMISING = 0.3  # of a probability, hiding and inserting together: what is weaker on these items is not tested on more
ENOUGH = 0.9  # of the largest fall: no need to grow further
FIXED = 0.5  # part of the variance of a place that is gone in images with the evidence: it belongs to the mark
MAX_AREA = 0.5  # of the image
FEATHER = 0.5  # of the side of a patch: standard deviation of the soft edge
FULL = np.ones((3, 3), dtype=bool)
FILLS = ("neighbours", "another image")


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images that were read again, with the descriptions of all their patches."""

    rows: list[BulkRow]
    pixels: Tensor  # [item channel height width]
    states: np.ndarray = field(default_factory=lambda: np.zeros(0))  # [item patch 2 direction]

    @property
    def grid(self) -> tuple[int, int]:
        assert self.rows[0].grid is not None
        return self.rows[0].grid

    @property
    def side(self) -> float:
        """Of a patch, in pixels."""
        return self.pixels.shape[-2] / self.grid[0]

    def without_class(self, name: str) -> "ImageSet | None":
        kept = [i for i, row in enumerate(self.rows) if row.class_name != name]
        return ImageSet([self.rows[i] for i in kept], self.pixels[kept]) if kept else None

    def first(self, count: int) -> "ImageSet":
        return ImageSet(self.rows[:count], self.pixels[:count], self.states[:count])


def read_images(
    rows: Sequence[BulkRow], most: int, reader: InputReader, known: PatchStates, *, describe: bool = True
) -> ImageSet | None:
    """The first `most` of these images that can be read; None if there is none."""
    kept, images = reader.load([row for row in rows if row.grid == known.rows[0].grid], most)
    if not kept:
        return None
    encoded = reader.model.encode(images)
    pixels = encoded.inputs[encoded.main].detach().cpu()
    if not describe:
        return ImageSet(kept, pixels)
    states = run_states(reader.model, encoded)
    assert states is not None  # it had a state for each patch before
    places = np.broadcast_to(np.arange(states[0].shape[1]), states[0].shape[:2])
    return ImageSet(kept, pixels, describe_both(known.describers, states, places))


def find_mask(one: Detector, images: ImageSet) -> np.ndarray:
    """[item row column] of bool: the patches that the detector matches, at least the best one of each image."""
    scores = one.score(images.states)
    matched = scores >= np.minimum(one.threshold, scores.max(1, keepdims=True))
    return np.asarray(matched.reshape(len(matched), *images.grid))


def find_fixed(inside: ImageSet, recipients: ImageSet) -> np.ndarray:
    """[row column] of bool: where the images with it are alike, early in the model, and the others are not."""
    own, others = (one.states[:, :, 1].var(0, ddof=1).mean(-1) for one in (inside, recipients))
    return np.asarray((own < FIXED * others).reshape(inside.grid))


def grow_mask(masks: np.ndarray, by: int) -> np.ndarray:
    """Masks [item row column], larger by so many patches unless they would cover most of the image."""
    grown = binary_dilation(masks, FULL[None], by) if by else masks
    return np.where(grown.mean((1, 2), keepdims=True) <= MAX_AREA, grown, masks)


def list_extents(matched: np.ndarray, fixed: np.ndarray) -> list[np.ndarray]:
    """Masks [item row column] to try, the smallest first: what matches, grown, and with what is fixed in the image."""
    extents = [grow_mask(matched, by) for by in (0, 1, 2)]
    if (fixed & ~matched).any():
        extents += [matched | fixed, grow_mask(matched | fixed, 1)]
    return extents


def choose_other_evidence(rows: Sequence[BulkRow], masks: np.ndarray) -> np.ndarray:
    """[item row column] of bool: as many patches as the mask has, the most relevant ones that do not touch it."""
    chosen = np.zeros_like(masks)
    for row, mask, close, other in zip(rows, masks, grow_mask(masks, 1), chosen, strict=True):
        assert row.scores is not None
        scores = np.where(mask.ravel(), -np.inf, row.scores) - 1e6 * (close & ~mask).ravel()
        count = min(int(mask.sum()), int((~mask).sum()))
        other.ravel()[np.argsort(-scores, kind="stable")[:count]] = True
    return chosen


def choose_best_evidence(rows: Sequence[BulkRow], patches: int, grid: tuple[int, int]) -> np.ndarray:
    """[item row column] of bool: so many patches of each item, the most relevant ones together with those beside."""
    chosen = np.zeros((len(rows), *grid), dtype=bool)
    for row, mask in zip(rows, chosen, strict=True):
        assert row.scores is not None
        around = uniform_filter(np.reshape(row.scores, grid).clip(min=0.0).astype(np.float64), 3, mode="constant")
        mask.ravel()[np.argsort(-np.round(around.ravel(), 12), kind="stable")[:patches]] = True
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
    masks: np.ndarray  # [item row column] of bool: where the evidence is in `inside`
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
        return paste_pixels(self.list_others(), pixels, mask, side)

    def list_others(self) -> Tensor:
        """An image of another class for each with the evidence."""
        return self.recipients.pixels[torch.arange(len(self.masks)) % len(self.recipients.pixels)]

    def choose_control(self) -> np.ndarray:
        return choose_other_evidence(self.inside.rows, self.masks)

    def measure_net_fall(self, fill: str, before: np.ndarray) -> float:
        """What is lost beyond the control, and half of what is lost: a control may be as good."""
        after, control = (self.ask(self.remove(masks, fill))[0] for masks in (self.masks, self.choose_control()))
        return float((control - after).mean() + 0.5 * (before - after).mean())

    def choose_extent(self, extents: Sequence[np.ndarray]) -> tuple["ImageTest", str, "ImageTest"]:
        """The masks to hide by, their fill, and those to insert by: the first that do nearly as much as the best."""
        few = [replace(self, masks=masks).first(TRIED) for masks in extents]
        before, _ = few[0].ask(few[0].inside.pixels)
        net = [one.measure_net_fall(FILLS[0], before) for one in few]
        rises = [float(one.ask(one.paste(one.masks))[0].mean()) for one in few]
        hidden, inserted = pick_smallest(net), pick_smallest(rises)
        other = few[hidden].measure_net_fall(FILLS[1], before)
        return replace(self, masks=extents[hidden]), FILLS[other > net[hidden]], replace(self, masks=extents[inserted])

    def hide(self, fill: str, reader: InputReader) -> tuple[Effect, AnswerChange]:
        before, _ = self.ask(self.inside.pixels)
        after, predicted = self.ask(self.remove(self.masks, fill))
        control, _ = self.ask(self.remove(self.choose_control(), fill))
        told = AnswerChange(
            len(before), float(before.mean()), float(after.mean()),
            *compare_right(self.inside.rows, predicted, reader), area=float(self.masks.mean()),
        )  # fmt: skip
        return measure_effect(before - after, before - control, self.seed), told

    def paste(self, masks: np.ndarray) -> Tensor:
        """These parts of the images, in images of other classes."""
        mask = enlarge_mask(masks, self.inside.pixels.shape[-2:])
        return paste_pixels(self.inside.pixels, self.list_others(), mask, self.inside.side)

    def insert(self) -> tuple[Effect, AnswerChange, np.ndarray]:
        """Beside the same donor's other evidence; and [item] the rises."""
        before, _ = self.ask(self.list_others())
        pasted, control = (self.ask(self.paste(masks))[0] for masks in (self.masks, self.choose_control()))
        told = AnswerChange(len(before), float(before.mean()), float(pasted.mean()), area=float(self.masks.mean()))
        return measure_effect(pasted - before, control - before, self.seed), told, pasted - before


def pick_smallest(values: Sequence[float]) -> int:
    """The first that is nearly the largest."""
    return next(i for i, value in enumerate(values) if value >= max(values) - (1 - ENOUGH) * abs(max(values)))
