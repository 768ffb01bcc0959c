"""Queried scenes and creatures: what is generated, what the bundled models know of it, and reading them by name."""

import numpy as np
import pytest
import torch

import whyformer as why
from whyformer.data import read
from whyformer.demo import creatures, queried
from whyformer.errors import InputError


def answer(name, images):
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.no_grad():
        return why.open(name).module(pixel_values=pixels).logits.softmax(-1).numpy()


def test_a_scene_has_one_red_object_and_four_shapes():
    scenes = queried.generate(6, seed=2)
    assert all(len(set(labels)) == queried.OBJECTS for labels in scenes.labels.tolist())
    for image, masks in zip(scenes.images.astype(int), scenes.masks, strict=True):
        redness = [(image[mask][:, 0] - image[mask][:, 1:].max(1)).mean() for mask in masks]
        assert redness[0] > 100 > 50 > max(redness[1:])
    assert (scenes.masks.sum(1) <= 1).all()  # objects do not overlap


def test_an_image_depends_only_on_its_seed_and_number():
    for world in (queried, creatures):
        few, many = world.generate(2, 3), world.generate(4, 3)
        assert np.array_equal(few.images, many.images[:2])
        assert len(world.generate(0, 3)) == 0 and not np.array_equal(few.images, world.generate(2, 4).images)


def test_masks_are_exactly_the_pixels_that_changed():
    drawn = creatures.generate(6, seed=1)
    differs = (drawn.images != drawn.bare).any(-1)
    assert not (differs & ~drawn.evidence).any()
    assert (drawn.masks.any((2, 3)) == drawn.shown).all() and (drawn.shown.sum(1) == 2).all()
    for part in range(4):
        removed = (drawn.without(part) != drawn.images).any(-1)
        assert not (removed & ~drawn.masks[:, part]).any()


def test_any_two_classes_share_the_form_of_one_part():
    forms = creatures.CLASS_FORMS
    shared = [(forms[i] == forms[j]).sum() for i in range(9) for j in range(i)]
    assert shared == [1] * 36


def test_the_answers_by_hand():
    """No part: nine classes; one part: three; two or more: one."""
    for parts, probability in ((0, 1 / 9), (1, 1 / 3), (2, 1.0), (4, 1.0)):
        drawn = creatures.generate(5, seed=4, parts=parts)
        answers = drawn.answers()
        assert answers[np.arange(5), drawn.labels] == pytest.approx(probability)
        assert answers.sum(1) == pytest.approx(1)


def test_the_model_of_creatures_knows_what_each_part_says():
    drawn = creatures.generate(24, seed=6)
    own = np.arange(24), drawn.labels
    assert answer("demo/creatures", drawn.images)[own].min() > 0.9
    for part in range(4):
        shown = drawn.shown[:, part]
        left = answer("demo/creatures", drawn.without(part))[own][shown]
        assert left.mean() == pytest.approx(1 / 3, abs=0.05)  # one part remains: three classes


def test_the_model_of_queried_scenes_looks_at_the_red_object():
    scenes = queried.generate(24, seed=6)
    own = np.arange(24), scenes.labels[:, 0]
    assert answer("demo/queried", scenes.images)[own].mean() > 0.95
    assert answer("demo/queried", scenes.without(1))[own].mean() > 0.95  # another object
    assert answer("demo/queried", scenes.without(0))[own].mean() < 0.5  # the red one


@pytest.mark.parametrize("name", ["demo/shapes", "demo/queried", "demo/creatures"])
def test_worlds_are_read_by_name(name):
    data = read(name, limit=3)
    assert data.name == name and len(data) == 3 and data.fingerprint() == read(name, limit=3).fingerprint()
    model = why.open(name)
    for example in data.examples:
        assert example.label in model.labels and 0 < example.mask.sum() < example.mask.size
        assert example.load().size == example.mask.shape[::-1]


@pytest.mark.parametrize("limit", [0, -1, True, 2.5, "3"])
def test_the_size_of_a_world_is_a_whole_number(limit):
    with pytest.raises(InputError, match="whole number"):
        read("demo/queried", limit=limit)


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo" / "queried").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "demo" / "queried" / "cat.png")
    assert [example.name for example in read("demo/queried").examples] == ["cat.png"]
