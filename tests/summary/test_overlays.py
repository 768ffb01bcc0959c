"""Faint drawings at one position: found by the mean of the details, in the images that have them, and in no others."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from summary.bulk_folder import image_row

import whyformer
from whyformer._runs.parts import BulkRow
from whyformer._summary.image_evidence import ImageEvidence
from whyformer._summary.inputs import InputReader
from whyformer._summary.marks import ImageShelf
from whyformer._summary.overlays import OVERLAY_LIMIT, draw_difference, find_overlay, measure_coefficients, take_details
from whyformer._summary.states import read_patch_states


def make_images(count=120, side=32, seed=0):
    """Smooth noise: things of all sizes at all positions."""
    rng = np.random.default_rng(seed)
    coarse = rng.normal(size=(count, 3, side // 4, side // 4)).repeat(4, 2).repeat(4, 3)
    return torch.from_numpy(0.4 * coarse + 0.1 * rng.normal(size=(count, 3, side, side))).float()


def plant(images, shown, strength):
    """A grid of lines in the middle, through which the image can be seen."""
    marked = images.clone()
    lines = torch.zeros(images.shape[-2:])
    lines[12:20:3, 6:26] = 1
    marked[shown] += strength * lines * (2 - marked[shown])
    return marked, lines.bool().numpy()


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_transparent_drawing_is_found_where_it_is(share):
    images, is_own = make_images(), np.arange(120) < 60
    shown = np.arange(120) < 60 * share
    marked, lines = plant(images, np.flatnonzero(shown), 0.35)
    found = find_overlay("a", marked, is_own)
    assert found is not None and found.uniformity[0] >= OVERLAY_LIMIT
    assert found.uniformity[1] <= found.uniformity[0] <= found.uniformity[2]
    is_shown = found.likeness > found.threshold
    assert (is_shown == shown).mean() >= 0.95
    assert found.mask[lines].mean() > 0.9 and found.mask.mean() < 0.4


def test_images_without_one_have_none():
    assert find_overlay("a", make_images(), np.arange(120) < 60) is None


def test_a_drawing_that_every_class_has_is_of_none():
    marked, _ = plant(make_images(), np.arange(120), 0.35)
    assert find_overlay("a", marked, np.arange(120) < 60) is None


def test_a_class_that_is_too_small_is_not_examined():
    marked, _ = plant(make_images(), np.arange(10), 1.0)
    assert find_overlay("a", marked, np.arange(120) < 10) is None


def test_more_images_than_the_drawing_is_made_from(monkeypatch):
    monkeypatch.setattr("whyformer._summary.overlays.DRAWN_FROM", 40)
    marked, _ = plant(make_images(), np.arange(60), 0.35)
    found = find_overlay("a", marked, np.arange(120) < 60)
    assert found is not None and len(found.likeness) == 120
    assert (found.likeness[40:60] > found.threshold).all() and (found.likeness[60:] < found.threshold).all()


def test_subtracting_the_drawing_takes_it_off():
    images, is_own = make_images(), np.arange(120) < 60
    marked, _ = plant(images, np.arange(60), 0.35)
    found = find_overlay("a", marked, is_own)
    assert found is not None
    drawing = draw_difference(take_details(marked[:60].numpy()), take_details(marked[60:].numpy()))
    left = found.shift(marked[:60], -1)
    assert measure_coefficients(take_details(left.numpy()), drawing).mean() == pytest.approx(0, abs=0.2)
    added = found.shift(images[60:], 1)
    assert measure_coefficients(take_details(added.numpy()), drawing).mean() == pytest.approx(1, abs=0.2)
    assert np.square(found.control).sum() == pytest.approx(np.square(found.drawing).sum(), rel=1e-4)
    assert ((found.control != 0) <= (found.drawing != 0)).all()


def test_the_drawing_is_taken_off_and_drawn_and_has_a_position(tmp_path):
    """In the images of one class; by a model that need not use it."""
    reader, rng = InputReader(whyformer.open(Path(__file__).with_name("watermark"))), np.random.default_rng(0)
    marked, _ = plant(make_images(48, 96), np.arange(24), 0.35)
    rows = []
    for i, image in enumerate((90 + 40 * marked).clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()):
        source = tmp_path / f"{i:02}.png"
        Image.fromarray(image).save(source)
        known = {"target": i // 24, "prediction": None, "source": str(source)}
        rows.append(BulkRow(**image_row(source.name, i, [], (12, 12), **known) | {"scores": rng.random(144)}))
    evidence = ImageEvidence(read_patch_states(rows, reader), {}, reader, 8, 0)
    assert evidence.find_class_overlay("class 1") is None
    finding = evidence.test_overlay(
        evidence.find_class_overlay("class 0"), ImageShelf(reader, evidence.evidence.describer)
    )
    assert finding.kind == "overlay" and finding.what.startswith("a faint ") and finding.is_uniform
    assert {row.id for row in finding.rows} <= {f"{i:02}.png" for i in range(24)} and len(finding.rows) >= 20
    assert finding.hiding is not None and finding.inserting is not None and finding.put_in.items == 8
    assert len({one.patches for one in finding.sightings}) == 1 and finding.sightings[0].box is not None
