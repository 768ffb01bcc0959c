"""The evidence of images: patches that are alike, found in each class, hidden and inserted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from whyformer._plain.statistics import bootstrap
from whyformer._runs.parts import BulkRow
from whyformer._summary.effects import (
    FILLS,
    PROMISING,
    TRIED,
    ImageSet,
    ImageTest,
    choose_best_evidence,
    find_fixed,
    find_mask,
    grow_mask,
    list_extents,
    read_images,
)
from whyformer._summary.finding import Finding, Outlier, Presence, Sighting, Uniformity, compare_items
from whyformer._summary.inputs import InputReader
from whyformer._summary.outliers import find_outliers
from whyformer._summary.patches import TOP, Detector, PatchStates, find_detectors, read_patch_states
from whyformer._summary.wording import VERTICAL, describe_place

TESTED_IN_CLASS, MOST_TESTED = 3, 48  # detectors of a class: those that set it apart most; and in all
USUAL_UNIFORMITY = 0.5  # that natural evidence seldom reaches: it speaks for a mark


@dataclass(frozen=True, eq=False)
class ImageEvidence:
    """The states of all sampled images, and the detectors of each class."""

    known: PatchStates
    detectors: Mapping[str, list[Detector]]  # by class
    reader: InputReader
    tested: int  # items per detector
    seed: int

    def find(self) -> Iterator[Finding]:
        """A finding for each detector; of many classes, the first of each come before the second ones."""
        recipients = {name: self.read_recipients(name, some) for name, some in self.detectors.items() if some}
        ranked = [(rank, one) for some in self.detectors.values() for rank, one in enumerate(some[:TESTED_IN_CLASS])]
        for _, one in sorted(ranked, key=lambda pair: (pair[0], -pair[1].apart))[:MOST_TESTED]:
            yield self.test(one, recipients[one.class_name])

    def read_recipients(self, name: str, detectors: Sequence[Detector]) -> ImageSet | None:
        """Images of other classes that show none of the evidence of this class."""
        shown = np.any([one.shown for one in detectors], axis=0)
        rows = [self.known.rows[i] for i in np.flatnonzero(~shown & ~self.is_own(name))]
        target = next(row.target for row in self.known.rows if row.class_name == name)
        return read_images(mix_classes(rows, target), self.tested, self.reader, self.known)

    def test(self, one: Detector, recipients: ImageSet | None) -> Finding:
        """Hide it where it is, put it where it is not."""
        rows, own = self.known.rows, self.is_own(one.class_name)
        shown = sorted(
            np.flatnonzero(one.shown & own).tolist(), key=lambda i: (-round(float(one.likeness[i]), 9), rows[i].id)
        )
        target = rows[shown[0]].target
        assert target is not None
        late, early = one.uniformity
        _, low, high = bootstrap(one.spreads, self.seed)
        value = max(late, early)
        finding = Finding(
            one.class_name, target, "patches", "", int(own.sum()), presence=self.count_presence(one),
            uniformity=Uniformity(value, value - (high - low) / 2, value + (high - low) / 2, USUAL_UNIFORMITY),
        )  # fmt: skip
        inside = read_images([rows[i] for i in shown], self.tested, self.reader, self.known)
        if inside is None:
            return replace(finding, untested="its items could not be read again")
        if recipients is None:
            return replace(finding, untested="there are no items of other classes without it")
        probe = self.reader.open_probe(inside.pixels[0], target)
        matched, fixed = find_mask(one, inside), find_fixed(inside, recipients)
        test = ImageTest(inside, recipients, probe, grow_mask(matched | fixed, 1), self.seed)
        few, unusual = test.first(TRIED), None
        (hiding, without), (inserting, put_in, _) = few.hide(FILLS[0], self.reader), few.insert()
        if hiding.difference + inserting.difference >= PROMISING:
            test, fill, pasted = test.choose_extent(list_extents(matched, fixed))
            hiding, without = test.hide(fill, self.reader)
            inserting, put_in, rises = pasted.insert()
            unusual = compare_items(rises, self.measure_usual_rises(one, pasted), self.seed)
        masks = test.masks
        off_object, part = compare_with_object(inside.rows, masks, self.reader)
        sightings = [self.sight(one, i, masks[k] if k < len(masks) else None) for k, i in enumerate(shown)]
        return replace(
            finding, what=describe_place(masks.mean(0)), sightings=tuple(sightings), where=masks.mean(0),
            hiding=hiding, without=without, inserting=inserting, put_in=put_in, unusual=unusual,
            off_object=off_object, part=part,
        )  # fmt: skip

    def measure_usual_rises(self, one: Detector, test: ImageTest) -> np.ndarray:
        """[item]: what the best evidence of items without it, as large, gives to their classes in other images."""
        by_class: dict[str, list[BulkRow]] = {}
        for row, shown in zip(self.known.rows, one.shown, strict=True):
            if not shown:
                by_class.setdefault(row.class_name, []).append(row)
        rows = mix_rows(list(by_class.values()))[: self.tested]
        patches, rises = round(float(test.masks.sum((1, 2)).mean())), []
        for name in dict.fromkeys(row.class_name for row in rows):
            own = [row for row in rows if row.class_name == name]
            inside = read_images(own, self.tested, self.reader, self.known, describe=False)
            recipients = test.recipients.without_class(name) or test.inside.without_class(name)  # of two classes
            if inside is None or recipients is None:
                continue
            target = inside.rows[0].target
            assert target is not None
            probe = self.reader.open_probe(inside.pixels[0], target)
            masks = choose_best_evidence(inside.rows, patches, inside.grid)
            usual = ImageTest(inside, recipients, probe, masks, self.seed)
            rises.append(usual.ask(usual.paste(masks))[0] - usual.ask(usual.list_others())[0])
        return np.concatenate(rises) if rises else np.zeros(0)

    def sight(self, one: Detector, item: int, mask: np.ndarray | None) -> Sighting:
        """The mark in one item: as tested, or else its relevant patches that match."""
        if mask is None:
            patches = self.known.patches[item][one.score(self.known.states[item]) >= one.threshold]
        else:
            patches = np.flatnonzero(mask)
        return Sighting(self.known.rows[item], tuple(sorted(patches.tolist())), likeness=float(one.likeness[item]))

    def is_own(self, name: str) -> np.ndarray:
        return np.array([row.class_name == name for row in self.known.rows])

    def count_presence(self, one: Detector) -> tuple[Presence, ...]:
        """Of the class itself first, then of the others by share."""
        counts: dict[str, list[int]] = {}
        for row, is_shown in zip(self.known.rows, one.shown, strict=True):
            count = counts.setdefault(row.class_name, [0, 0])
            count[0] += 1
            count[1] += int(is_shown)
        found = [Presence(name, items, there) for name, (items, there) in counts.items()]
        return tuple(sorted(found, key=lambda it: (it.class_name != one.class_name, -it.share, it.class_name)))

    def list_outliers(self) -> list[Outlier]:
        found = []
        for name in self.detectors:
            own = np.flatnonzero(self.is_own(name))
            points = self.known.states[own, :TOP, 0].mean(1)
            found += find_outliers(points, [self.known.rows[i] for i in own])
        return found


def collect_image_evidence(
    classes: Mapping[str, Sequence[BulkRow]], reader: InputReader, tested: int, seed: int
) -> ImageEvidence | None:
    """Read the states and find the evidence; None if the model has no state for each patch, or no image is there."""
    known = read_patch_states(mix_rows(list(classes.values())), reader)
    if known is None:
        return None
    return ImageEvidence(known, {name: find_detectors(name, known, seed) for name in classes}, reader, tested, seed)


def mix_rows(classes: Sequence[Sequence[BulkRow]]) -> list[BulkRow]:
    """One item of each class in turn."""
    longest = max((len(rows) for rows in classes), default=0)
    return [rows[i] for i in range(longest) for rows in classes if i < len(rows)]


def mix_classes(rows: Sequence[BulkRow], target: int | None) -> list[BulkRow]:
    """Items that are not predicted as this class, one of each class in turn."""
    classes: dict[str, list[BulkRow]] = {}
    for row in rows:
        if row.prediction != target:
            classes.setdefault(row.class_name, []).append(row)
    return mix_rows(list(classes.values()))


def compare_with_object(rows: Sequence[BulkRow], masks: np.ndarray, reader: InputReader) -> tuple[float | None, str]:
    """The mean share of the evidence that is off the object, and which part of the object it is on; without masks
    None and no part."""
    shares, heights = [], []
    for row, mask in zip(rows, masks, strict=True):
        inside = reader.load_mask(row) if reader.masks else None
        if inside is None:
            continue
        ys, xs = (np.arange(size) * cells // size for size, cells in zip(inside.shape, mask.shape, strict=True))
        covered, thing = mask[np.ix_(ys, xs)], np.flatnonzero((inside == 1).any(1))
        if (covered & (inside >= 0)).any():
            shares.append(float((inside[covered & (inside >= 0)] == 0).mean()))
        if (on := np.flatnonzero((covered & (inside == 1)).any(1))).size:
            heights.append((float(on.mean()) - thing[0]) / max(thing[-1] - thing[0], 1))
    if not shares:
        return None, ""
    part = VERTICAL[min(2, int(3 * float(np.mean(heights))))] if heights else ""
    return float(np.mean(shares)), f"the {part} part of the object" if part else ""
