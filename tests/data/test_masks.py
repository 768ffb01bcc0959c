"""Masks: what their values mean, and that they are aligned with the image that the model sees."""

import numpy as np
import pytest
from PIL import Image

import whyformer as why
from whyformer.data.masks import align_mask, read_mask
from whyformer.errors import InputError


def test_meanings_by_hand(tmp_path):
    numbers = np.array([[1, 2], [3, 2]], dtype=np.uint8)
    assert read_mask(numbers, "trimap").tolist() == [[1, 0], [-1, 0]]
    assert read_mask(np.array([[0, 255], [7, 0]]), "voc").tolist() == [[0, -1], [1, 0]]
    assert read_mask(np.array([[0, 255], [7, 0]]), "binary").tolist() == [[0, 1], [1, 0]]
    assert read_mask(np.array([[0, -1], [1, 0]]), "binary").tolist() == [[0, -1], [1, 0]]
    assert read_mask(np.array([[5, 6]]), {5: 1, 6: -1}).tolist() == [[1, -1]]
    Image.fromarray(numbers).save(tmp_path / "mask.png")
    assert read_mask(tmp_path / "mask.png", "trimap").tolist() == [[1, 0], [-1, 0]]
    colour = np.zeros((1, 2, 3), dtype=np.uint8)
    colour[0, 1, 2] = 9
    assert read_mask(colour, "binary").tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("source", "meaning", "message"),
    [
        (np.array([[4]]), "trimap", "has the value 4; mask_values has only"),
        (np.array([[4]]), "quadmap", "There is no mask_values='quadmap'"),
        (np.zeros(3), "binary", r"shape \[height width\]"),
        ("nothing.png", "binary", "there is no such file"),
    ],
)
def test_masks_that_cannot_be_used(source, meaning, message):
    with pytest.raises(InputError, match=message):
        read_mask(source, meaning)


@pytest.fixture(scope="module")
def pets():
    return why.open("demo/pets")


@pytest.mark.parametrize("size", [(144, 144), (200, 144), (150, 311)])
def test_a_mask_is_resized_and_cropped_like_its_image(pets, size):
    """A white square on black: where the model sees white, the mask is 1; edges may be off by a pixel."""
    white = np.zeros((size[1], size[0]), dtype=np.uint8)
    white[size[1] // 3 : size[1] // 2, size[0] // 4 : size[0] // 2] = 1
    image = Image.fromarray(np.repeat(white[..., None] * 255, 3, axis=2))
    pixels = pets.encode([image]).inputs["pixel_values"][0, 0].numpy()
    mask = align_mask(white.astype(np.int8), size, pets)
    assert mask.shape == pixels.shape
    seen = pixels > (pixels.min() + pixels.max()) / 2
    assert (seen != (mask == 1)).mean() < 0.02
    assert set(np.unique(mask)) == {0, 1}


def test_ignored_pixels_stay_ignored(pets):
    mask = np.full((144, 144), -1, dtype=np.int8)
    mask[:, 72:] = 1
    found = align_mask(mask, (144, 144), pets)
    assert set(np.unique(found)) == {-1, 1} and 0.4 < (found == 1).mean() < 0.6


def test_a_mask_of_another_size(pets):
    with pytest.raises(InputError, match="The mask is 10 x 20 pixels, its image 30 x 20"):
        align_mask(np.zeros((20, 10), dtype=np.int8), (30, 20), pets)
