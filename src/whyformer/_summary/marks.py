r"""The full extent of a mark in images, and images without it and with it.

**Growing.** A cluster holds the most relevant patches of a mark, seldom all of it. To the patches that match the
cluster are added: those around them; and patches that vary little between the items that show the mark, at the same
place of the image (a corner label, a frame) or at the same offset from the best match (a mark that moves). Varying
little means: the variance of the state after the first block is under half of that in items of the class that do not
show it. Copies that were found by a template are grown in the same way by their pixels, to the pixel.

**Hiding** fills the grown mark from the pixels around it: the mean of what is outside of the mark, weighted by a
Gaussian that widens until it reaches something. **Inserting** copies the pixels of the mark into another image, at the
same place, with a soft edge; and, to tell what else would do, at another place, smaller and larger. The control copies
the pixels at the same place of an item of the class that does not show the mark; if nearly all show it, as many of the
donor's other patches, the most relevant ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from scipy.ndimage import binary_closing, binary_dilation, label, uniform_filter
from torch import Tensor
from torch.nn import functional

from whyformer._engine import Probe
from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import AnswerChange, Effect, Sighting, measure_effect
from whyformer._summary.groups import StateGroup
from whyformer._summary.inputs import InputReader, compare_right, open_probe, to_array
from whyformer._summary.states import EARLY, LATE, Describer, run_states

COMPARED = 32  # items with the mark, and as many without
LESS_VARIED = 0.5  # ratio of variances of states
COPIED_PIXELS = 0.25  # ratio of variances of pixels
MAX_AREA = 0.6  # of the image
COVERED = 0.25  # of a patch's pixels: it belongs to the mark
FEATHER = 0.5  # of the side of a patch: standard deviation of the soft edge
SHELF = 256  # images that are kept with their states
PLACEMENTS = {"at another place": 1.0, "at 0.7 of its size": 0.7, "at 1.4 times its size": 1.4}
FULL = np.ones((3, 3), dtype=bool)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images that were read again, with the states of all their patches."""

    rows: list[BulkRow]
    pixels: Tensor  # [item channel height width]
    early: np.ndarray  # [item row column channel]
    late: np.ndarray  # [item row column direction], described

    @property
    def grid(self) -> tuple[int, int]:
        return self.early.shape[1], self.early.shape[2]

    @property
    def side(self) -> float:
        """Of a patch, in pixels."""
        return self.pixels.shape[-2] / self.grid[0]

    def first(self, count: int) -> "ImageSet":
        return self.pick(np.arange(len(self.rows)) < count)

    def pick(self, chosen: np.ndarray) -> "ImageSet":
        """chosen: [item] of bool."""
        at = np.flatnonzero(chosen)
        return ImageSet([self.rows[i] for i in at], self.pixels[at], self.early[at], self.late[at])


@dataclass(frozen=True, eq=False)
class ImageShelf:
    """Reads images with their states, and keeps the latest: the groups of a class share their images."""

    reader: InputReader
    describer: Describer
    kept: dict[str, tuple[Tensor, np.ndarray, np.ndarray]] = field(default_factory=dict)
    askers: dict[int, "Asker"] = field(default_factory=dict)  # by class

    def open_asker(self, images: ImageSet, target: int) -> "Asker":
        if target not in self.askers:
            self.askers[target] = Asker(open_probe(self.reader.model, list(images.pixels[:1]), target))
        return self.askers[target]

    def read(self, rows: Sequence[BulkRow], most: int) -> ImageSet | None:
        """The first `most` of these images that can be read; None if there is none."""
        found: list[BulkRow] = []
        for start in range(0, len(rows), 32):
            self.add([row for row in rows[start : start + 32] if row.id not in self.kept][: most - len(found)])
            found += [row for row in rows[start : start + 32] if row.id in self.kept]
            if len(found) >= most:
                break
        if not found:
            return None
        pixels, early, late = zip(*(self.kept[row.id] for row in found[:most]), strict=True)
        while len(self.kept) > SHELF:
            del self.kept[next(iter(self.kept))]
        return ImageSet(found[:most], torch.stack(pixels), np.stack(early), np.stack(late))

    def add(self, rows: Sequence[BulkRow]) -> None:
        kept, images = self.reader.load(rows, len(rows))
        if not kept or kept[0].grid is None:
            return
        encoded = self.reader.model.encode(images)
        early, late = run_states(self.reader.model, encoded, (EARLY, LATE))
        assert early is not None and late is not None  # the model has a state for each patch
        shape, described = (len(kept), *kept[0].grid, -1), self.describer.describe(late, np.arange(late.shape[1]))
        early, late = early.astype(np.float32).reshape(shape), described.reshape(shape)
        pixels = encoded.inputs[encoded.main].detach().cpu()
        self.kept.update({row.id: (pixels[i], early[i], late[i]) for i, row in enumerate(kept)})


# --- growing ----------------------------------------------------------------------------------------------------------


def grow_mark(group: StateGroup, inside: ImageSet, outside: ImageSet | None) -> np.ndarray:
    """[item row column] of bool: the patches of the mark in each image that shows it."""
    matched = group.match_parts(inside.late)
    best = (inside.late @ group.centre).reshape(len(matched), -1).argmax(1)
    matched.reshape(len(matched), -1)[np.arange(len(matched)), best] = True
    grown = np.stack([binary_dilation(one, FULL) for one in matched])
    if outside is None or len(inside.rows) < 4 or len(outside.rows) < 4:
        return grown
    # At the same place of the image
    usual = outside.early.var(0).sum(-1)
    fixed = inside.early.var(0).sum(-1) < LESS_VARIED * usual
    # At the same offset from the best match
    rows, columns = inside.grid
    anchors = np.stack(np.divmod(best, columns), 1)
    moving = find_constant_offsets(inside.early, anchors, float(usual.mean()))
    for item, (down, across) in enumerate(anchors):
        near = np.zeros((rows, columns), dtype=bool)
        for dy, dx in moving:
            if 0 <= down + dy < rows and 0 <= across + dx < columns:
                near[down + dy, across + dx] = True
        added = keep_connected(near | fixed, grown[item])
        if added.mean() <= MAX_AREA:
            grown[item] |= added
    return grown


def sketch_mark(group: StateGroup, patches: np.ndarray, states: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """[row column] of bool, without another run: kept patches that match, those around them, the usual place."""
    matched = np.zeros(usual.shape, dtype=bool)
    matched.ravel()[patches[group.match_parts(states)]] = True
    return np.asarray(binary_dilation(matched, FULL) | usual)


def find_constant_offsets(early: np.ndarray, anchors: np.ndarray, usual: float) -> list[tuple[int, int]]:
    """Offsets from the anchors at which the images that have them vary little."""
    _, rows, columns, _ = early.shape
    found = []
    for dy in range(1 - rows, rows):
        for dx in range(1 - columns, columns):
            places = anchors + np.array([dy, dx])
            valid = ((places >= 0) & (places < (rows, columns))).all(1)
            if valid.sum() >= max(4, len(anchors) // 2):
                at = early[valid, places[valid, 0], places[valid, 1]]
                if at.var(0).sum() < LESS_VARIED * usual:
                    found.append((dy, dx))
    return found


def grow_copies(corners: np.ndarray, side: int, pixels: Tensor, usual: Tensor) -> "GrownCopies":
    """The extent of copies whose windows lie at these corners, from images with them and usual images without."""
    own, other = to_array(pixels), to_array(usual)
    elsewhere = corners[np.arange(len(other)) % len(corners)]
    height, width = pixels.shape[-2:]
    moving = find_copied(measure_aligned(own, corners), measure_aligned(other, elsewhere))
    still = find_copied(measure_aligned(own, np.zeros_like(corners)), measure_aligned(other, np.zeros_like(elsewhere)))
    return GrownCopies(side, moving, still.crop(np.zeros(2, dtype=int), height, width))


@dataclass(frozen=True, eq=False)
class Aligned:
    """Images that are laid over each other: what they have in common, by the offset from their corners."""

    same: np.ndarray  # [... height width] of bool: where they vary little
    means: np.ndarray  # [channel height width]
    usual: np.ndarray  # [height width]: the variance of other images

    def crop(self, corner: np.ndarray, height: int, width: int) -> "Aligned":
        """What belongs to an image with this corner."""
        top, left = (size - 1 - int(at) for size, at in zip((height, width), corner, strict=True))
        at = np.s_[..., top : top + height, left : left + width]
        return Aligned(self.same[at], self.means[at], self.usual[at])


def find_copied(own: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> Aligned:
    """own, other: variance and means of images with and without the mark."""
    return Aligned(own[0] < COPIED_PIXELS * other[0], own[1], other[0])


@dataclass(frozen=True, eq=False)
class GrownCopies:
    """Where copies are the same: by the offset from their window, and at the same place of the image."""

    side: int
    moving: Aligned  # [2 height - 1, 2 width - 1]: offsets from the corner of the window
    fixed: Aligned  # [height width]

    def cover(self, corner: np.ndarray) -> np.ndarray:
        """[height width] of bool: the mark in an image whose window lies at this corner."""
        (height, width), (top, left) = self.fixed.same.shape, (int(at) for at in corner)
        same = self.moving.crop(corner, height, width).same | self.fixed.same
        window = np.zeros((height, width), dtype=bool)
        window[top : top + self.side, left : left + self.side] = True
        start = window & same if (window & same).any() else window
        grown = keep_connected(same, start)
        if grown.mean() > MAX_AREA:
            return start
        return np.asarray(binary_closing(np.pad(grown, 3), FULL, 2)[3:-3, 3:-3] | grown)

    def find_shown(self, pixels: Tensor, corners: np.ndarray) -> np.ndarray:
        """[image] of bool: whose pixels are those of the mark, where it would be if its window lay at the corner."""
        found = []
        for image, corner in zip(to_array(pixels), corners, strict=True):
            covered = self.cover(corner)
            distance = usual = 0.0
            for part in (self.moving.crop(corner, *covered.shape), self.fixed):
                at = covered & part.same
                distance += float(np.square(image - part.means)[:, at].sum()) / len(image)
                usual += float(part.usual[at].sum())
            found.append(distance < COPIED_PIXELS * usual)
        return np.array(found)


def measure_aligned(images: np.ndarray, corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By the offset from the corners: the variance [2 height - 1, 2 width - 1], nan where few images are; the means."""
    _, channels, height, width = images.shape
    count = np.zeros((2 * height - 1, 2 * width - 1))
    total, squares = np.zeros((2, channels, *count.shape))
    for image, (top, left) in zip(images, corners, strict=True):
        at = np.s_[..., height - 1 - top : 2 * height - 1 - top, width - 1 - left : 2 * width - 1 - left]
        count[at] += 1
        total[at] += image
        squares[at] += image**2
    enough = count >= max(4, len(images) / 2)
    means = total / np.maximum(count, 1)
    varied = (squares / np.maximum(count, 1) - means**2).mean(0)
    return np.where(enough, uniform_filter(varied, 3), np.nan), means


def keep_connected(candidates: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The start and the candidates that hang together with it."""
    labels, _ = label(candidates | start, FULL)
    return np.isin(labels, np.unique(labels[start]))


def widen_masks(masks: np.ndarray, by: int) -> np.ndarray:
    """Masks [item height width], wider by so many pixels: a mark that is pasted with its surroundings adds no edge."""
    return np.asarray(binary_dilation(masks, FULL[None], by)) if by else masks


def find_patches(masks: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """[item row column] of bool: the patches that are covered by masks [item height width], at least one of each."""
    shares = functional.adaptive_avg_pool2d(torch.from_numpy(masks.astype(np.float32))[:, None], grid)[:, 0].numpy()
    return np.asarray(shares >= np.minimum(COVERED, shares.max((1, 2), keepdims=True)))


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


def soften_mask(mask: np.ndarray, side: float) -> Tensor:
    """[n height width] from 0 to 1: the mask with a soft edge, which lies outside of it; side: of a patch."""
    hard = mask.astype(np.float64)
    return torch.from_numpy(np.maximum(hard, np.clip(2 * blur(hard, FEATHER * side, mirror=True), 0, 1)))


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
    """The recipients with the masked pixels of the donors; side: of a patch."""
    alpha = soften_mask(mask, side)[:, None].to(donors)
    return alpha * donors + (1 - alpha) * recipients


def move_mark(pixels: Tensor, masks: np.ndarray, centres: np.ndarray, size: float) -> tuple[Tensor, np.ndarray]:
    """Images and masks [n height width], moved so that the middle of each mark comes to its new centre, and resized.

    centres: [n 2], row and column as shares of the image; nan stays where it is.
    """
    height, width = masks.shape[1:]
    middles = np.array([[(at.min() + at.max() + 1) / 2 for at in np.nonzero(one)] for one in masks]) / (height, width)
    middles, goals = 2 * middles - 1, 2 * np.where(np.isnan(centres), middles, centres) - 1
    theta = np.zeros((len(masks), 2, 3))
    theta[:, 0, 0] = theta[:, 1, 1] = 1 / size
    theta[:, :, 2] = (middles - goals / size)[:, ::-1]
    grid = functional.affine_grid(torch.from_numpy(theta).to(pixels), [*pixels.shape], align_corners=False)
    moved = functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
    covered = torch.from_numpy(masks).to(pixels)[:, None]
    return moved, functional.grid_sample(covered, grid, align_corners=False)[:, 0].numpy() > 0.5


# --- tests ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Asker:
    """Asks the model for the probability of one class, and for known images only once."""

    probe: Probe
    known: dict[str, float] = field(default_factory=dict)  # id -> probability

    def run(self, pixels: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """[n]: the probability, and the class that is predicted, for these pixels."""
        answers = self.probe.replace_inputs(pixels, torch.zeros(len(pixels), dtype=torch.long))
        return to_array(answers.probability), to_array(answers.logits).argmax(1)

    def ask(self, images: ImageSet) -> np.ndarray:
        """[item]: the probability for the images as they are."""
        new = [i for i, row in enumerate(images.rows) if row.id not in self.known]
        if new:
            found, _ = self.run(images.pixels[new])
            self.known.update({images.rows[i].id: float(one) for i, one in zip(new, found, strict=True)})
        return np.array([self.known[row.id] for row in images.rows])


def try_hiding(
    asker: Asker, inside: ImageSet, masks: np.ndarray, outside: ImageSet | None, reader: InputReader, seed: int
) -> tuple[Effect | None, AnswerChange]:
    """The fall of the probability without the mark; the control hides the same pixels of items without it."""
    before = asker.ask(inside)
    after, predicted = asker.run(fill_from_neighbours(inside.pixels, masks, inside.side))
    told = AnswerChange(
        len(masks), float(before.mean()), float(after.mean()), *compare_right(inside.rows, predicted, reader), 
        area=float(masks.mean()),
    )  # fmt: skip
    if outside is None:
        return None, told
    chosen = np.arange(len(masks)) % len(outside.rows)
    was = asker.ask(outside)
    now, _ = asker.run(fill_from_neighbours(outside.pixels[chosen], masks, inside.side))
    return measure_effect(before - after, was[chosen] - now, seed), told


def try_inserting(
    asker: Asker, inside: ImageSet, masks: np.ndarray, controls: ImageSet | None, recipients: ImageSet, seed: int
) -> tuple[Effect | None, AnswerChange]:
    """The rise of the probability in images of other classes; the control pastes the same pixels of other items."""
    into = np.arange(len(masks)) % len(recipients.rows)
    before = asker.ask(recipients)[into]
    after, _ = asker.run(paste_pixels(inside.pixels, recipients.pixels[into], masks, inside.side))
    told = AnswerChange(len(masks), float(before.mean()), float(after.mean()), area=float(masks.mean()))
    if controls is None:  # nearly every item of the class shows it: as much other evidence of the donor
        other = choose_other_evidence(inside.rows, find_patches(masks, inside.grid))
        pixels, areas = inside.pixels, enlarge_mask(other, masks.shape[1:])
    else:
        pixels, areas = controls.pixels[np.arange(len(masks)) % len(controls.rows)], masks
    null, _ = asker.run(paste_pixels(pixels, recipients.pixels[into], areas, inside.side))
    return measure_effect(after - before, null - before, seed), told


def try_placements(
    asker: Asker, inside: ImageSet, masks: np.ndarray, recipients: ImageSet, seed: int
) -> Mapping[str, AnswerChange]:
    """What inserting the mark at another place and at other sizes does, one recipient for each donor."""
    into = np.arange(len(masks)) % len(recipients.rows)
    before = asker.ask(recipients)[into]
    found = {}
    for name, size in PLACEMENTS.items():
        drawn = np.random.default_rng(seed).uniform(0.2, 0.8, (len(masks), 2))
        centres = drawn if size == 1 else np.full_like(drawn, np.nan)
        pixels, moved = move_mark(inside.pixels, masks, centres, size)
        after, _ = asker.run(paste_pixels(pixels, recipients.pixels[into], moved, inside.side))
        found[name] = AnswerChange(len(into), float(before.mean()), float(after.mean()), area=float(moved.mean()))
    return found


def choose_other_evidence(rows: Sequence[BulkRow], masks: np.ndarray) -> np.ndarray:
    """[item row column] of bool: the most relevant patches outside of the mark, as many as it has."""
    chosen = np.zeros_like(masks)
    for row, mask, other in zip(rows, masks, chosen, strict=True):
        assert row.scores is not None
        scores = np.where(mask.ravel(), -np.inf, row.scores)
        count = min(int(mask.sum()), int((~mask).sum()))
        other.ravel()[np.argsort(-scores, kind="stable")[:count]] = True
    return chosen


def measure_likeness(group: StateGroup, images: ImageSet) -> np.ndarray:
    """[item]: how like its most like patch is to the centre of the group."""
    return np.asarray((images.late @ group.centre).reshape(len(images.rows), -1).max(1))


def list_sightings(rows: Sequence[BulkRow], masks: np.ndarray, likeness: np.ndarray) -> list[Sighting]:
    """The mark in each image, from masks [item row column] of patches; the most typical first."""
    order = np.argsort(-np.round(likeness, 9), kind="stable")
    return [Sighting(rows[i], tuple(np.flatnonzero(masks[i]).tolist()), likeness=float(likeness[i])) for i in order]
