"""Changes of whole items: what is measured and transferred, what sets a class apart, and a model that uses length."""

import numpy as np
import pytest
import torch

from whyformer._summary.global_changes import (
    MOST_CONTRAST,
    find_drawing,
    find_trait,
    measure_cast,
    measure_colour,
    measure_falloff,
    measure_lines,
    measure_punctuation,
    measure_sharpness,
    measure_texture,
    measure_tone,
    split_classes,
    transfer_cast,
    transfer_colour,
    transfer_falloff,
    transfer_length,
    transfer_lines,
    transfer_punctuation,
    transfer_sharpness,
    transfer_texture,
    transfer_tone,
)


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    fine = torch.rand(3, 32, 32, generator=generator)
    smooth = torch.nn.functional.avg_pool2d(torch.rand(3, 36, 36, generator=generator), 5, 1)
    return fine, smooth


def test_colour_is_the_donors_and_contrast_the_items_own(images):
    fine, smooth = images
    red = smooth + torch.tensor([0.5, 0.0, 0.0])[:, None, None]
    made = transfer_colour(fine, red)
    assert made.mean((1, 2)) == pytest.approx(red.mean((1, 2)), abs=1e-6)
    assert made - made.mean((1, 2), keepdim=True) == pytest.approx(fine - fine.mean((1, 2), keepdim=True), abs=1e-6)
    values = measure_colour([smooth, red])["more or less red"]
    assert values[1] - values[0] == pytest.approx(0.5, abs=1e-6)


def test_a_cast_is_seen_through_any_colour_and_taken_over(images):
    """Stretched channels are a cast, another mean colour is none; the donor's cast makes the item's own go away."""
    fine, smooth = images
    gains = torch.tensor([1.2, 0.9, 0.9])[:, None, None]
    values = measure_cast([fine, fine * gains, fine + torch.tensor([0.5, 0.0, 0.0])[:, None, None], smooth])
    plain, cast, painted, other = values["more or less red"]
    assert cast - plain == pytest.approx(np.log(1.2 / 0.9), abs=1e-4) and painted == pytest.approx(plain, abs=1e-4)
    undone = transfer_cast(fine * gains, smooth)
    assert measure_cast([undone])["more or less red"][0] == pytest.approx(other, abs=1e-3)
    assert transfer_cast(fine, fine) == pytest.approx(fine, abs=1e-5)


def test_sharpness_is_taken_away_and_given_back_up_to_a_limit(images):
    fine, smooth = images
    before = measure_sharpness([fine, smooth, transfer_sharpness(fine, smooth), transfer_sharpness(fine, fine)])[
        "sharper or blurrier"
    ]
    assert before[2] == pytest.approx(before[1], abs=0.3) and before[0] > before[1] + 1
    assert transfer_sharpness(fine, fine) == pytest.approx(fine, abs=1e-5)
    sharper = measure_sharpness([transfer_sharpness(smooth, fine)])["sharper or blurrier"][0]
    assert before[1] < sharper <= before[1] + np.log(MOST_CONTRAST) + 0.1


@pytest.mark.parametrize(
    ("measure", "transfer", "name"),
    [
        (measure_tone, transfer_tone, "more or less contrasted"),
        (measure_tone, transfer_tone, "more or less colourful"),
        (measure_texture, transfer_texture, "more or less fine texture"),
        (measure_lines, transfer_lines, "more or less lined"),
        (measure_falloff, transfer_falloff, "darker or lighter towards the edge"),
    ],
)
def test_an_item_gets_the_trait_of_the_donor_and_its_own_back(images, measure, transfer, name):
    fine, smooth = images
    own, other, made = measure([fine, smooth, transfer(fine, smooth)])[name]
    assert abs(made - other) <= 0.25 * abs(own - other) + 1e-3
    assert transfer(fine, fine) == pytest.approx(fine, abs=2e-3)


def test_lines_over_the_whole_image_are_taken_off(images):
    _, smooth = images
    lined = smooth.clone()
    lined[:, 3::6] += 0.3
    assert measure_lines([lined])["more or less lined"][0] > measure_lines([smooth])["more or less lined"][0] + 1
    left = transfer_lines(lined, smooth) - smooth
    assert float(left.square().mean()) < 0.3 * float((lined - smooth).square().mean())


def make_drawn(shown, strength=0.35, count=120):
    """Things of all sizes at all positions; through a grid of lines in the middle of some the image can be seen."""
    rng = np.random.default_rng(0)
    coarse = rng.normal(size=(count, 3, 8, 8)).repeat(4, 2).repeat(4, 3)
    images = torch.from_numpy(0.4 * coarse + 0.1 * rng.normal(size=(count, 3, 32, 32))).float()
    lines = torch.zeros(32, 32)
    lines[12:20:3, 6:26] = 1
    images[shown] += strength * lines * (2 - images[shown])
    return list(images)


def test_a_transparent_drawing_of_a_class_is_found_taken_off_and_drawn():
    own, shown = np.arange(120) < 60, np.arange(120) < 40
    images = make_drawn(np.flatnonzero(shown))
    drawing = find_drawing(images, own)
    trait = find_trait(drawing.measure(images), own)
    assert trait.name == "more of it" and (trait.shown == shown).mean() >= 0.9
    taken, drawn = drawing.transfer(images[0], images[100]), drawing.transfer(images[100], images[0])
    clean = make_drawn([])
    assert float((taken - clean[0]).square().mean()) < 0.3 * float((images[0] - clean[0]).square().mean())
    assert float((drawn - images[0] - clean[100] + clean[0]).square().mean()) < 0.02


@pytest.mark.parametrize("shown", [[], range(120)], ids=["nowhere", "everywhere"])
def test_what_a_class_does_not_have_alone_is_no_drawing_of_it(shown):
    assert find_drawing(make_drawn(list(shown)), np.arange(120) < 60) is None


def test_length_is_cut_or_continued_with_own_words():
    assert transfer_length("a b c d", "x y") == "a b"
    assert transfer_length("a b", "1 2 3 4 5") == "a b a b a"
    assert transfer_length("a b", "x y") == "a b"


def test_punctuation_is_that_of_the_donor_in_order():
    assert transfer_punctuation("one , two .", "so ; it is !") == "one ; two !"
    assert transfer_punctuation("one , two , three .", "well ?") == "one ? two ? three ?"
    assert transfer_punctuation("one .", "a , b !") == "one !", "the last one is the last one"
    assert transfer_punctuation("one .", "nothing") == "one "
    assert set(measure_punctuation(["a .", "b ;", "c ."])) == {"with or without '.'", "with or without ';'"}


def test_the_trait_that_sets_a_class_apart():
    own = np.array([True] * 10 + [False] * 10)
    values = np.concatenate([np.arange(10), np.arange(20, 30)]).astype(float)
    trait = find_trait({"longer or shorter": values, "more or less odd": np.tile([0.0, 1.0], 10)}, own)
    assert trait.name == "shorter" and trait.apart == 1 and (trait.shown == own).all()


def test_traits_are_named_by_their_side():
    own = np.array([True, True, False, False])
    values = np.array([1.0, 1.0, 0.0, 0.0])
    sides = {name: find_trait({name: values}, own).name for name in ("more or less red", "with or without ';'")}
    assert list(sides.values()) == ["more red", "with ';'"]
    assert find_trait({"with or without ';'": -values}, own).name == "without ';'"


def test_the_split_is_youdens_by_definition():
    rng = np.random.default_rng(0)
    own = rng.random(60) < 0.5
    values = np.round(rng.normal(size=60) + own, 1)
    best = max(np.mean(values[own] >= t) - np.mean(values[~own] >= t) for t in values)
    threshold, apart = split_classes(values, own)
    assert apart == pytest.approx(best)
    assert np.mean(values[own] >= threshold) - np.mean(values[~own] >= threshold) == pytest.approx(best)
