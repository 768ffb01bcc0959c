r"""The full extent of a mark in images, and images without it and with it.

**Growing.** A cluster holds the most relevant patches of a mark, seldom all of it. To the patches that match the
cluster are added: those around them; and patches that vary little between the items that show the mark, at the same
place of the image (a corner label, a frame) or at the same offset from the best match (a mark that moves). Varying
little means: the variance of the state after the first block is under half of that in items of the class that do not
show it.

**Hiding** fills the grown mark from the pixels around it: the mean of what is outside of the mark, weighted by a
Gaussian that widens until it reaches something. **Inserting** copies the pixels of the mark into another image, at the
same place, with a soft edge. The control copies the pixels at the same place of an item of the class that does not
show the mark; if all show it, as many of the donor's other patches, the most relevant ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.ndimage import binary_dilation, gaussian_filter
from torch import Tensor
from torch.nn import functional

from whyformer._engine import Probe
from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import AnswerChange, Effect, Sighting, measure_effect
from whyformer._summary.groups import StateGroup
from whyformer._summary.inputs import InputReader, compare_right, open_probe, to_array
from whyformer._summary.states import EARLY, LATE, Describer, run_states

COMPARED = 32  # items with the mark, and as many without
LESS_VARIED = 0.5  # ratio of variances
MAX_AREA = 0.6  # of the image
RECIPIENTS = 2  # for each donor
FEATHER = 0.25  # of the side of a patch: standard deviation of the soft edge
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

    def first(self, count: int) -> "ImageSet":
        return ImageSet(self.rows[:count], self.pixels[:count], self.early[:count], self.late[:count])


def read_images(rows: Sequence[BulkRow], describer: Describer, reader: InputReader, most: int) -> ImageSet | None:
    """The first `most` of these images that can be read; None if there is none."""
    kept, images = reader.load(rows, most)
    if not kept or kept[0].grid is None:
        return None
    grid, pixels, states = kept[0].grid, [], []
    for start in range(0, len(images), 32):
        some = images[start : start + 32]
        encoded = reader.model.encode(list(some))
        pixels.append(encoded.inputs[encoded.main].detach().cpu())
        states.append(run_states(reader.model, encoded, (EARLY, LATE)))
    early, late = (np.concatenate([one[i] for one in states if one[i] is not None]) for i in (0, 1))
    shape, patches = (len(kept), *grid, -1), np.arange(late.shape[1])
    described = describer.describe(late, patches)
    return ImageSet(kept, torch.cat(pixels), early.reshape(shape), described.reshape(shape))


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


def keep_connected(candidates: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The candidates that hang together with the start."""
    reached = start.copy()
    while True:
        wider = reached | (binary_dilation(reached, FULL) & candidates)
        if (wider == reached).all():
            return reached & (candidates | start)
        reached = wider


# --- images without and with it ---------------------------------------------------------------------------------------


def enlarge_mask(mask: np.ndarray, size: Sequence[int]) -> Tensor:
    """[n height width] of float: the pixels of the patches."""
    return functional.interpolate(torch.from_numpy(mask.astype(np.float32))[:, None], size=tuple(size), mode="nearest")[
        :, 0
    ]


def soften_mask(mask: np.ndarray, size: Sequence[int]) -> Tensor:
    """[n height width] from 0 to 1: the patches with a soft edge, which lies outside of them."""
    spread = FEATHER * size[0] / mask.shape[1]
    hard = enlarge_mask(mask, size).numpy()
    soft = np.stack([gaussian_filter(one, spread, mode="nearest") for one in hard])
    return torch.from_numpy(np.maximum(hard, np.clip(2 * soft, 0, 1)))


def fill_from_neighbours(pixels: Tensor, mask: np.ndarray) -> Tensor:
    """The images with the masked patches filled from around them."""
    hidden = enlarge_mask(mask, pixels.shape[-2:]).numpy() > 0
    filled = to_array(pixels).copy()
    for image, hole in zip(filled, hidden, strict=True):
        left, spread = hole.copy(), pixels.shape[-1] / mask.shape[2] / 2
        known = (~hole).astype(np.float64)
        while left.any() and spread < 4 * pixels.shape[-1]:
            weight = gaussian_filter(known, spread, mode="constant")
            reached = left & (weight > 1e-3)
            for channel in image:
                total = gaussian_filter(channel * known, spread, mode="constant")
                channel[reached] = (total / np.maximum(weight, 1e-12))[reached]
            left &= ~reached
            spread *= 2
    return torch.from_numpy(filled).to(pixels)


def paste_patches(donors: Tensor, recipients: Tensor, mask: np.ndarray) -> Tensor:
    """The recipients with the masked patches of the donors."""
    alpha = soften_mask(mask, donors.shape[-2:])[:, None].to(donors)
    return alpha * donors + (1 - alpha) * recipients


# --- tests ------------------------------------------------------------------------------------------------------------


def run_pixels(probe: Probe, pixels: Tensor, of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[n]: the probability of the probe's class, and the class that is predicted, for these pixels."""
    answers = probe.replace_inputs(pixels, torch.from_numpy(of))
    return to_array(answers.probability), to_array(answers.logits).argmax(1)


def try_hiding(
    inside: ImageSet, masks: np.ndarray, outside: ImageSet | None, target: int, reader: InputReader, seed: int
) -> tuple[Effect | None, AnswerChange]:
    """The fall of the probability without the mark; the control hides the same patches of items without it."""
    probe = open_probe(reader.model, list(inside.pixels), target)
    before = to_array(probe.before.probability)
    after, predicted = run_pixels(probe, fill_from_neighbours(inside.pixels, masks), np.arange(len(masks)))
    told = AnswerChange(
        len(masks), float(before.mean()), float(after.mean()), *compare_right(inside.rows, predicted, reader), 
        area=float(masks.mean()),
    )  # fmt: skip
    if outside is None:
        return None, told
    chosen = np.arange(len(masks)) % len(outside.rows)
    control = open_probe(reader.model, list(outside.pixels), target)
    was = to_array(control.before.probability)[chosen]
    now, _ = run_pixels(control, fill_from_neighbours(outside.pixels[chosen], masks), chosen)
    return measure_effect(before - after, was - now, seed), told


def try_inserting(
    inside: ImageSet,
    masks: np.ndarray,
    controls: ImageSet | None,
    recipients: ImageSet,
    target: int,
    reader: InputReader,
    seed: int,
) -> tuple[Effect | None, AnswerChange]:
    """The rise of the probability in images of other classes; the control pastes the same patches of other items."""
    count = len(masks) * RECIPIENTS
    donor = np.arange(count) % len(masks)
    into = np.arange(count) % len(recipients.rows)
    probe = open_probe(reader.model, list(recipients.pixels), target)
    before = to_array(probe.before.probability)[into]
    pasted = paste_patches(inside.pixels[donor], recipients.pixels[into], masks[donor])
    after, _ = run_pixels(probe, pasted, into)
    told = AnswerChange(count, float(before.mean()), float(after.mean()), area=float(masks.mean()))
    if controls is None:  # every item of the class shows it: as much other evidence of the donor
        other, pixels, areas = donor, inside.pixels, choose_other_evidence(inside.rows, masks)[donor]
    else:
        other, pixels, areas = np.arange(count) % len(controls.rows), controls.pixels, masks[donor]
    pasted = paste_patches(pixels[other], recipients.pixels[into], areas)
    null, _ = run_pixels(probe, pasted, into)
    by_donor = lambda values: values.reshape(RECIPIENTS, -1).mean(0)  # noqa: E731
    return measure_effect(by_donor(after - before), by_donor(null - before), seed), told


def choose_other_evidence(rows: Sequence[BulkRow], masks: np.ndarray) -> np.ndarray:
    """[item row column] of bool: the most relevant patches outside of the mark, as many as it has."""
    chosen = np.zeros_like(masks)
    for row, mask, other in zip(rows, masks, chosen, strict=True):
        assert row.scores is not None
        scores = np.where(mask.ravel(), -np.inf, row.scores)
        count = min(int(mask.sum()), int((~mask).sum()))
        other.ravel()[np.argsort(-scores, kind="stable")[:count]] = True
    return chosen


def list_sightings(group: StateGroup, images: ImageSet, masks: np.ndarray) -> list[Sighting]:
    """The mark in each image, the most typical first."""
    likeness = (images.late @ group.centre).reshape(len(masks), -1).max(1)
    order = np.argsort(-np.round(likeness, 9), kind="stable")
    return [
        Sighting(images.rows[i], tuple(np.flatnonzero(masks[i]).tolist()), likeness=float(likeness[i])) for i in order
    ]
