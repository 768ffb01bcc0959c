"""The evidence of images: groups of alike patches per class, grown to whole marks, hidden and inserted.

Copies of the same pixels are searched first (templates), then faint drawings at one position (overlays), then patches
that are alike to the model (groups).
The uniformity that accuses falls as the effect rises: what changes the answer much needs to be less uniform to be
called a mark than what changes it little. The limits are those that seeds 0 to 4 of benchmarks/shortcuts.py gave.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from whyformer._runs.parts import BulkRow
from whyformer._summary.finding import EvidenceKind, Finding, Outlier, Presence, Sighting, Uniformity
from whyformer._summary.groups import SHARED, StateGroup, find_patch_groups
from whyformer._summary.inputs import InputReader
from whyformer._summary.marks import (
    COMPARED,
    GrownCopies,
    ImageSet,
    ImageShelf,
    enlarge_mask,
    find_patches,
    grow_copies,
    grow_mark,
    list_sightings,
    measure_likeness,
    sketch_mark,
    try_hiding,
    try_inserting,
    try_placements,
    widen_masks,
)
from whyformer._summary.outliers import find_outliers
from whyformer._summary.overlays import OVERLAY_LIMIT, Overlay, find_overlay, try_drawing, try_erasing
from whyformer._summary.states import TOP, PatchStates, find_factor, read_patch_states
from whyformer._summary.templates import DONORS, EXAMINED, NEAR, SEARCHED, Template, find_templates
from whyformer._summary.wording import FIXED, describe_place

MIN_CONTROLS, CONTROL_SHARE = 4, 0.2  # items of the class without the mark, and their share of it
TESTED_IN_CLASS = 2  # groups: the most uniform ones
MOST_TESTED = 48  # groups in all
LIMIT, LEAST_LIMIT = 0.85, 0.68  # uniformity that natural evidence seldom reaches, without effect and at a large one
LARGE_EFFECT = 0.5  # of a probability
OFTENER = 2.0  # than in any other class: only then is the limit lowered
MANY_CLASSES = 16  # with more of them, templates are taken from fewer items of each


@dataclass(frozen=True, eq=False)
class Shown:
    """Evidence of a class, and which items show it."""

    group: StateGroup | Template | Overlay
    items: np.ndarray  # [item] of bool
    examined: np.ndarray  # [item] of bool: which may serve as items without it
    likeness: np.ndarray  # [item], at most 1
    corners: np.ndarray | None = None  # [item 2] of the windows of a template, in pixels of the shrunk images


@dataclass(frozen=True, eq=False)
class ImageEvidence:
    """The states of all sampled images, and the groups of each class."""

    evidence: PatchStates
    groups: Mapping[str, list[StateGroup]]  # by class
    reader: InputReader
    tested: int  # items per group
    seed: int

    def find(self) -> Iterator[Finding]:
        """A finding for each tested template and group."""
        shelf = ImageShelf(self.reader, self.evidence.describer)
        copied: dict[str, np.ndarray] = {}  # class -> which items show copies
        for name in self.groups:
            for template in self.find_class_templates(name):
                shown = self.locate_copies(template)
                finding = self.test(shown, shelf)
                if finding.is_uniform:
                    copied[name] = copied.get(name, np.zeros_like(shown.items)) | shown.items
                yield finding
            overlay = self.find_class_overlay(name)
            if overlay is not None and not self.is_known(name, overlay.items, copied):
                copied[name] = copied.get(name, np.zeros_like(overlay.items)) | overlay.items
                yield self.test_overlay(overlay, shelf)
        for group in self.choose_groups():
            items = group.find_shown(self.evidence)
            if not self.is_known(group.name, items, copied):
                likeness = np.asarray((self.evidence.states @ group.centre).max(1))
                examined = items | ~copied.get(group.name, np.zeros_like(items))
                yield self.test(Shown(group, items, examined, likeness), shelf)

    def is_known(self, name: str, items: np.ndarray, copied: Mapping[str, np.ndarray]) -> bool:
        """Whether mostly the same items of the class show what was found before."""
        own, before = self.is_own(name), copied.get(name, np.zeros_like(items))
        return bool((items & before & own).sum() >= SHARED * ((items | before) & own).sum())

    def choose_groups(self) -> list[StateGroup]:
        """The most uniform groups of each class; of many classes, the first of each come before the second ones."""
        ranked = [(rank, one) for groups in self.groups.values() for rank, one in enumerate(groups[:TESTED_IN_CLASS])]
        ranked.sort(key=lambda pair: (pair[0], -pair[1].uniformity[0]))
        return [one for _, one in ranked[:MOST_TESTED]]

    def find_class_templates(self, name: str) -> list[Template]:
        images, examined = self.evidence.images, self.examine(name)
        own = np.flatnonzero(self.is_own(name)[: len(images)])[:SEARCHED]
        others = np.flatnonzero(examined & ~self.is_own(name))[:SEARCHED]
        donors = max(4, DONORS * MANY_CLASSES // max(MANY_CLASSES, len(self.groups)))
        return find_templates(name, [self.evidence.rows[i] for i in own], images[own], images[others], donors)

    def examine(self, name: str) -> np.ndarray:
        """[item] of bool: in which items templates of this class are searched, its own and some others."""
        own, kept = self.is_own(name), np.arange(len(self.evidence.rows)) < len(self.evidence.images)
        return kept & (own | (np.cumsum(~own & kept) <= EXAMINED))

    def find_class_overlay(self, name: str) -> Shown | None:
        examined = self.examine(name)
        overlay = find_overlay(name, self.evidence.images[np.flatnonzero(examined)], self.is_own(name)[examined])
        if overlay is None or overlay.uniformity[0] < OVERLAY_LIMIT:
            return None
        likeness = np.zeros(len(examined))
        likeness[examined] = overlay.likeness
        shown = Shown(overlay, likeness > overlay.threshold, examined, np.minimum(likeness, 1.0))
        return shown if is_oftener(self.count_presence(name, shown)) else None

    def test_overlay(self, shown: Shown, shelf: ImageShelf) -> Finding:
        """Take the drawing off where it is, draw it where it is not."""
        overlay, rows, own = shown.group, self.evidence.rows, self.is_own(shown.group.name)
        assert isinstance(overlay, Overlay)
        inside = [rows[i] for i in np.flatnonzero(shown.items & own)]
        target = inside[0].target
        assert target is not None
        known = Finding(
            overlay.name, target, "overlay", "", int(own.sum()), presence=self.count_presence(overlay.name, shown),
            uniformity=Uniformity(*overlay.uniformity, OVERLAY_LIMIT),
        )  # fmt: skip
        tested = shelf.read(inside, self.tested)
        if tested is None:
            return replace(known, untested="its items could not be read again")
        patches = np.repeat(find_patches(overlay.mask[None], tested.grid), len(inside), 0)
        asker = shelf.open_asker(tested, target)
        hiding, left = try_erasing(asker, overlay, tested, self.reader, self.seed)
        known = replace(
            known, what=describe_place(patches.mean(0), "a faint mark"), where=patches.mean(0), hiding=hiding,
            sightings=tuple(list_sightings(inside, patches, shown.likeness[shown.items & own])), without=left,
            off_object=measure_off_object(tested.rows, patches[: len(tested.rows)], self.reader),
        )  # fmt: skip
        others = [rows[i] for i in np.flatnonzero(~shown.items & shown.examined & ~own)]
        recipients = shelf.read(mix_classes(others, target), self.tested)
        if recipients is None:
            return known
        inserting, put_in = try_drawing(asker, overlay, recipients, self.seed)
        return replace(known, inserting=inserting, put_in=put_in)

    def locate_copies(self, template: Template) -> Shown:
        examined = self.examine(template.name)
        ratios, corners = np.full(len(examined), np.inf), np.zeros((len(examined), 2), dtype=int)
        ratios[examined], corners[examined] = template.locate(self.evidence.images[np.flatnonzero(examined)])
        return Shown(template, ratios < NEAR, examined, 1 - ratios, corners)

    def test(self, shown: Shown, shelf: ImageShelf) -> Finding:
        """Grow the mark, hide it where it is, put it where it is not."""
        name, rows, own = shown.group.name, self.evidence.rows, self.is_own(shown.group.name)
        target = next(row.target for row in rows if row.class_name == name)
        assert target is not None
        pick = lambda items: [rows[i] for i in np.flatnonzero(items)]  # noqa: E731
        without, others = pick(~shown.items & shown.examined & own), pick(~shown.items & shown.examined & ~own)
        assert not isinstance(shown.group, Overlay)
        kind: EvidenceKind = "copies" if isinstance(shown.group, Template) else "patches"
        uniformity = Uniformity(*shown.group.uniformity, LIMIT)
        presence = self.count_presence(name, shown)
        known = Finding(name, target, kind, "", int(own.sum()), presence=presence, uniformity=uniformity)
        inside = shelf.read(pick(shown.items & own), COMPARED)
        if inside is None:
            return replace(known, untested="its items could not be read again")
        recipients = shelf.read(mix_classes(others, target), self.tested)
        grown = self.grow_copies(shown, inside, recipients)
        outside = self.choose_controls(shown, without, grown, shelf)
        masks, sightings = self.outline(shown, inside, outside or recipients, grown)
        patches = find_patches(masks, inside.grid)
        tested, few = inside.first(self.tested), masks[: self.tested]
        asker = shelf.open_asker(inside, target)
        hiding, left = try_hiding(asker, tested, few, outside, self.reader, self.seed)
        known = replace(
            known, what=describe_place(patches.mean(0)), sightings=tuple(sightings), where=patches.mean(0),
            hiding=hiding, without=left, off_object=measure_off_object(inside.rows, patches, self.reader),
        )  # fmt: skip
        if recipients is None:
            return known
        inserting, put_in = try_inserting(asker, tested, few, outside, recipients, self.seed)
        known = replace(known, inserting=inserting, put_in=put_in)
        if is_oftener(presence):
            effect = inserting.difference if kind == "patches" and inserting is not None else known.effect
            known = replace(known, uniformity=replace(uniformity, limit=lower_limit(effect)))
        if not known.is_uniform:
            return known
        return replace(known, placements=try_placements(asker, tested, few, recipients, self.seed))

    def grow_copies(self, shown: Shown, inside: ImageSet, usual: ImageSet | None) -> GrownCopies | None:
        """The extent of copies, beside images of other classes; None of what is no copy."""
        if not isinstance(shown.group, Template):
            return None
        side = shown.group.window.shape[-1] * find_factor(inside.pixels.shape[-2:])
        return grow_copies(self.place_windows(shown, inside), side, inside.pixels, (usual or inside).pixels)

    def place_windows(self, shown: Shown, images: ImageSet) -> np.ndarray:
        """[item 2]: the top left corners of the windows of a template in these images."""
        assert shown.corners is not None
        number = {row.id: i for i, row in enumerate(self.evidence.rows)}
        corners = shown.corners[[number[row.id] for row in images.rows]]
        return np.asarray(corners * find_factor(images.pixels.shape[-2:]))

    def choose_controls(
        self, shown: Shown, without: Sequence[BulkRow], grown: GrownCopies | None, shelf: ImageShelf
    ) -> ImageSet | None:
        """Items of the class without the mark, as grown: not all that show it were matched. None if they are few."""
        outside = shelf.read(without, COMPARED)
        if outside is None:
            return None
        free = np.ones(len(outside.rows), dtype=bool)
        if grown is not None:
            free = ~grown.find_shown(outside.pixels, self.place_windows(shown, outside))
        enough = max(MIN_CONTROLS, CONTROL_SHARE * self.is_own(shown.group.name).sum())
        return outside.pick(free) if free.any() and free.mean() * len(without) >= enough else None

    def outline(
        self, shown: Shown, inside: ImageSet, usual: ImageSet | None, grown: GrownCopies | None
    ) -> tuple[np.ndarray, list[Sighting]]:
        """[item height width]: the pixels of the mark in these images; and the mark in all items of the class."""
        rows, group, size = self.evidence.rows, shown.group, inside.pixels.shape[-2:]
        own = np.flatnonzero(shown.items & self.is_own(group.name))
        if grown is not None:
            assert shown.corners is not None
            whole = np.stack([grown.cover(corner) for corner in shown.corners[own] * find_factor(size)])
            sightings = list_sightings([rows[i] for i in own], find_patches(whole, inside.grid), shown.likeness[own])
            masks = np.stack([grown.cover(corner) for corner in self.place_windows(shown, inside)])
            return widen_masks(masks, round(inside.side / 2)), sightings
        assert isinstance(group, StateGroup)
        patches = grow_mark(group, inside, usual)
        sightings = list_sightings(inside.rows, patches, measure_likeness(group, inside))
        known, core = {row.id for row in inside.rows}, patches.mean(0) >= FIXED
        for i in own:
            if rows[i].id not in known:
                mark = sketch_mark(group, self.evidence.patches[i], self.evidence.states[i], core)
                sightings.append(
                    Sighting(rows[i], tuple(np.flatnonzero(mark).tolist()), likeness=float(shown.likeness[i]))
                )
        return enlarge_mask(patches, size), sightings

    def is_own(self, name: str) -> np.ndarray:
        return np.array([row.class_name == name for row in self.evidence.rows])

    def count_presence(self, name: str, shown: Shown) -> tuple[Presence, ...]:
        """Of the class itself first, then of the others by share."""
        counts: dict[str, list[int]] = {}
        for row, is_shown, is_examined in zip(self.evidence.rows, shown.items, shown.examined, strict=True):
            count = counts.setdefault(row.class_name, [0, 0])
            count[0] += int(is_examined)
            count[1] += int(is_shown)
        found = [Presence(one, items, there) for one, (items, there) in counts.items() if items]
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


def is_oftener(presence: Sequence[Presence]) -> bool:
    """Whether the class itself, which is the first, shows it much more often than any other."""
    return presence[0].share >= OFTENER * max((one.share for one in presence[1:]), default=0.0)


def lower_limit(effect: float) -> float:
    """The uniformity that accuses evidence with this effect: the larger the effect, the lower."""
    return LIMIT - (LIMIT - LEAST_LIMIT) * float(np.clip(effect / LARGE_EFFECT, 0, 1))


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
            covered = enlarge_mask(mask[None], inside.shape)[0]
            known = covered & (inside >= 0)
            shares += [float((inside[known] == 0).mean())] if known.any() else []
    return float(np.mean(shares)) if shares else None
