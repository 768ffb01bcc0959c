"""The evidence of images: groups of alike patches per class, grown to whole marks, hidden and inserted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import Finding, Outlier, Presence, Sighting, Uniformity
from whyformer._summary.groups import StateGroup, find_patch_groups
from whyformer._summary.inputs import InputReader
from whyformer._summary.marks import (
    COMPARED,
    enlarge_mask,
    grow_mark,
    list_sightings,
    read_images,
    sketch_mark,
    try_hiding,
    try_inserting,
)
from whyformer._summary.outliers import find_outliers
from whyformer._summary.states import TOP, PatchStates, read_patch_states
from whyformer._summary.wording import FIXED, describe_place

MIN_CONTROLS = 4  # items of the class without the mark
TESTED_IN_CLASS = 3  # groups: the most uniform ones
MOST_TESTED = 48  # groups in all
LIMIT, HIGHEST_LIMIT = 0.62, 0.70  # uniformity that natural evidence seldom reaches
DEVIATIONS = 3.0  # above the median of all groups, in standard deviations estimated from the median one


@dataclass(frozen=True, eq=False)
class ImageEvidence:
    """The states of all sampled images, and the groups of each class."""

    evidence: PatchStates
    groups: Mapping[str, list[StateGroup]]  # by class
    reader: InputReader
    tested: int  # items per group
    seed: int

    def find(self) -> Iterator[Finding]:
        """A finding for each tested group."""
        limit = set_limit([one.uniformity[0] for groups in self.groups.values() for one in groups])
        for group in self.choose_groups():
            yield self.test(group, limit)

    def choose_groups(self) -> list[StateGroup]:
        """The most uniform groups of each class; of many classes, the first of each come before the second ones."""
        ranked = [(rank, one) for groups in self.groups.values() for rank, one in enumerate(groups[:TESTED_IN_CLASS])]
        ranked.sort(key=lambda pair: (pair[0], -pair[1].uniformity[0]))
        return [one for _, one in ranked[:MOST_TESTED]]

    def test(self, group: StateGroup, limit: float) -> Finding:
        """Grow the mark, hide it where it is, put it where it is not."""
        rows, target = self.evidence.rows, self.find_target(group.name)
        shown = group.find_shown(self.evidence)
        is_own = np.array([row.class_name == group.name for row in rows])
        describer, reader = self.evidence.describer, self.reader
        with_it = [rows[i] for i in np.flatnonzero(shown & is_own)]
        without = [rows[i] for i in np.flatnonzero(~shown & is_own)]
        others = mix_classes([rows[i] for i in np.flatnonzero(~shown & ~is_own)], target)
        inside = read_images(with_it, describer, reader, COMPARED)
        outside = read_images(without, describer, reader, COMPARED) if len(without) >= MIN_CONTROLS else None
        presence = self.count_presence(group.name, shown)
        uniformity = Uniformity(*group.uniformity, limit)
        known = Finding(group.name, target, "patches", "", int(is_own.sum()), presence=presence, uniformity=uniformity)
        if inside is None:
            return replace(known, untested="its items could not be read again")
        masks = grow_mark(group, inside, outside)
        sightings = list_sightings(group, inside, masks)
        sightings += self.sketch_sightings(
            group, shown & is_own, {row.id for row in inside.rows}, masks.mean(0) >= FIXED
        )
        tested, few = inside.first(self.tested), masks[: self.tested]
        hiding, left = try_hiding(tested, few, outside, target, reader, self.seed)
        recipients = read_images(others, describer, reader, self.tested)
        inserting, put_in = None, None
        if recipients is not None:
            inserting, put_in = try_inserting(tested, few, outside, recipients, target, reader, self.seed)
        return replace(
            known, what=describe_place(masks.mean(0)),
            sightings=tuple(sightings), where=masks.mean(0), hiding=hiding, inserting=inserting, without=left,
            put_in=put_in, off_object=measure_off_object(inside.rows, masks, reader),
        )  # fmt: skip

    def sketch_sightings(
        self, group: StateGroup, shown: np.ndarray, known: set[str], usual: np.ndarray
    ) -> list[Sighting]:
        """The mark in the items that were not run again."""
        found = []
        for i in np.flatnonzero(shown):
            row, states = self.evidence.rows[i], self.evidence.states[i]
            if row.id not in known:
                mark = sketch_mark(group, self.evidence.patches[i], states, usual)
                likeness = float((states @ group.centre).max())
                found.append(Sighting(row, tuple(np.flatnonzero(mark).tolist()), likeness=likeness))
        return found

    def find_target(self, name: str) -> int:
        target = next(row.target for row in self.evidence.rows if row.class_name == name)
        assert target is not None
        return target

    def count_presence(self, name: str, shown: np.ndarray) -> tuple[Presence, ...]:
        """Of the class itself first, then of the others by share."""
        counts: dict[str, list[int]] = {}
        for row, is_shown in zip(self.evidence.rows, shown, strict=True):
            count = counts.setdefault(row.class_name, [0, 0])
            count[0] += 1
            count[1] += int(is_shown)
        found = [Presence(one, items, there) for one, (items, there) in counts.items()]
        return tuple(sorted(found, key=lambda one: (one.class_name != name, -one.share, one.class_name)))

    def list_outliers(self) -> list[Outlier]:
        found = []
        for name in self.groups:
            own = [i for i, row in enumerate(self.evidence.rows) if row.class_name == name]
            points = self.evidence.states[own, :TOP].mean(1)
            found += find_outliers(points, [self.evidence.rows[i] for i in own])
        return found


def collect_image_evidence(
    classes: Mapping[str, Sequence[BulkRow]], reader: InputReader, tested: int, seed: int
) -> ImageEvidence | None:
    """Read and group the evidence; None if the model has no state for each patch, or no image can be read."""
    evidence = read_patch_states(mix_rows(list(classes.values())), reader)
    if evidence is None:
        return None
    groups = {}
    for name in classes:
        own = np.array([i for i, row in enumerate(evidence.rows) if row.class_name == name])
        groups[name] = find_patch_groups(name, evidence.pick(own), seed) if len(own) else []
    return ImageEvidence(evidence, groups, reader, tested, seed)


def set_limit(values: Sequence[float]) -> float:
    """The uniformity from which on a group stands out, given those of all groups of the model."""
    if not values:
        return LIMIT
    median = float(np.median(values))
    spread = 1.4826 * float(np.median(np.abs(np.array(values) - median)))
    return min(max(LIMIT, median + DEVIATIONS * spread), HIGHEST_LIMIT)


def mix_rows(classes: Sequence[Sequence[BulkRow]]) -> list[BulkRow]:
    """One item of each class in turn."""
    longest = max((len(rows) for rows in classes), default=0)
    return [rows[i] for i in range(longest) for rows in classes if i < len(rows)]


def mix_classes(rows: Sequence[BulkRow], target: int) -> list[BulkRow]:
    """Items that are not predicted as this class, one of each class in turn."""
    classes: dict[str, list[BulkRow]] = {}
    for row in rows:
        if row.prediction != target:
            classes.setdefault(row.class_name, []).append(row)
    return mix_rows(list(classes.values()))


def measure_off_object(rows: Sequence[BulkRow], masks: np.ndarray, reader: InputReader) -> float | None:
    """The mean share of the mark's patches that are off the object; None without masks."""
    shares = []
    for row, mask in zip(rows, masks, strict=True):
        inside = reader.load_mask(row) if reader.masks else None
        if inside is not None:
            covered = enlarge_mask(mask[None], inside.shape)[0].numpy() > 0
            known = covered & (inside >= 0)
            shares += [float((inside[known] == 0).mean())] if known.any() else []
    return float(np.mean(shares)) if shares else None
