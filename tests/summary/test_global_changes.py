"""Changes of whole items: what is measured and transferred, what sets a class apart, and a model that uses length."""

import numpy as np
import pytest
import torch

from whyformer._summary.global_changes import (
    MOST_CONTRAST,
    find_trait,
    measure_cast,
    measure_colour,
    measure_punctuation,
    measure_sharpness,
    split_classes,
    transfer_cast,
    transfer_colour,
    transfer_length,
    transfer_punctuation,
    transfer_sharpness,
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
