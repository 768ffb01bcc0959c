"""A map is drawn over the right patches, at the size and orientation of the image."""

import pytest
import torch
from PIL import Image

from whyformer._explain.explain import explain
from whyformer._model.kept_image import ImageView
from whyformer.errors import InputError
from whyformer.show import overlay
from whyformer.show.colours import AGAINST_COLOUR, FOR_COLOUR, WHITE

WHOLE = ImageView(0, 0, 40, 20, 20, 40)


def test_every_patch_is_a_square_of_its_colour():
    """Orange in the upper right, blue in the lower left."""
    shown = overlay.paint_map(torch.tensor([[0.0, 2.0], [-2.0, 0.0]]), (-2.0, 2.0), signed=True)
    assert shown.size == (overlay.MAP_SIDE, overlay.MAP_SIDE)
    edge = overlay.MAP_SIDE // 2
    corners = {
        (0, 0): WHITE,
        (edge, 0): FOR_COLOUR,
        (edge - 1, edge): AGAINST_COLOUR,
        (overlay.MAP_SIDE - 1, overlay.MAP_SIDE - 1): WHITE,
    }
    assert {place: shown.getpixel(place) for place in corners} == corners
    assert len(shown.getcolors()) == 3


def test_patch_by_patch_by_hand():
    """2 x 4 patches of 10 x 10 pixels each: pixel (x, y) belongs to patch (y // 10, x // 10)."""
    scores = torch.arange(8.0).reshape(2, 4)
    placed, inside = overlay.sample_at_pixels(scores, WHOLE, (40, 20), smooth=False)
    assert placed.shape == (20, 40)
    assert inside.all()
    for x, y in ((0, 0), (9, 9), (10, 9), (39, 10), (25, 19)):
        assert placed[y, x] == scores[y // 10, x // 10]


def test_smooth_is_linear_between_patch_centres():
    """From the centre of patch 0 at x = 10 to that of patch 1 at x = 30 the score rises from 0 to 1."""
    placed, _ = overlay.sample_at_pixels(
        torch.tensor([[0.0, 1.0]]), ImageView(0, 0, 40, 1, 1, 40), (40, 1), smooth=True
    )
    expected = ((torch.arange(40) + 0.5 - 10) / 20).clamp(0, 1).double()
    torch.testing.assert_close(placed[0], expected)


def test_outside_the_view_the_map_is_zero():
    placed, inside = overlay.sample_at_pixels(torch.ones(2, 2), ImageView(5, 5, 15, 15, 10, 10), (20, 20), smooth=True)
    assert inside[5:15, 5:15].all()
    assert inside.sum() == 100
    assert placed.sum() == 100


def test_pixels_outside_the_view_stay_grey():
    image = Image.new("RGB", (20, 20), (100, 100, 100))
    drawn = overlay.overlay_map(
        image, torch.ones(2, 2), ImageView(5, 5, 15, 15, 8, 8), (0.0, 1.0), signed=False, outline=False
    )
    assert drawn.size == image.size
    red, green, blue = drawn.getpixel((1, 1))
    assert red == green == blue
    red, green, blue = drawn.getpixel((10, 10))
    assert blue > green + 20


def test_the_view_is_outlined_unless_it_is_the_whole_image():
    image = Image.new("RGB", (100, 60), "white")
    flat = dict(signed=False, smooth=True)
    part = overlay.overlay_map(image, torch.zeros(2, 2), ImageView(20, 0, 80, 60, 8, 8), (0.0, 1.0), **flat)
    assert (0, 0, 0) in {part.getpixel((x, 30)) for x in range(18, 24)}
    whole = overlay.overlay_map(image, torch.zeros(2, 2), ImageView(0, 0, 100, 60, 8, 8), (0.0, 1.0), **flat)
    assert (0, 0, 0) not in {whole.getpixel((x, 30)) for x in range(100)}


def test_pixels_beyond_the_last_whole_patch_belong_to_none():
    """An input of 384 pixels holds 27 patches of 14: the last 6 pixels belong to no patch."""
    covered = ImageView(0, 0, 768, 384, 384, 384).crop_to_patches(27, 27)
    assert (covered.right, covered.bottom) == (756, 378)


def test_the_limits_are_robust_and_described():
    scores = torch.cat([torch.linspace(0, 1, 999), torch.tensor([100.0])])
    scale = overlay.choose_colour_scale(scores, signed=False)
    assert 0.98 < scale.between[1] < 1
    assert scale.describe_limits(signed=False) == "clipped at the 99th percentile of the scores; the largest is 1e+02"
    assert scale.describe(signed=False).startswith("colours from 0.01 to 0.99: clipped at the 99th")
    plain = overlay.choose_colour_scale(scores, signed=False, percentile=None)
    assert plain.between == (0.0, 100.0)
    assert plain.describe_limits(signed=False) == "the smallest and the largest score"


def test_signed_limits_are_symmetric():
    low, high = overlay.choose_colour_scale(torch.tensor([-1.0, -2.0, 0.5]), signed=True).between
    assert low == -high


def test_constant_scores_are_drawn():
    image = Image.new("RGB", (8, 8), "white")
    for value in (0.0, 3.0):
        between = overlay.choose_colour_scale(torch.full((2, 2), value), signed=False).between
        drawn = overlay.overlay_map(
            image, torch.full((2, 2), value), ImageView(0, 0, 8, 8, 8, 8), between, signed=False, contours=True
        )
        assert drawn.size == (8, 8)
        assert len(drawn.convert("RGB").getcolors()) == 1  # one score, one colour, and no line around it


def test_contours_go_around_the_peak():
    """A peak in the middle: the contour at half its height crosses the row through it twice."""
    scores = torch.zeros(5, 5)
    scores[2, 2] = 1.0
    image = Image.new("RGB", (100, 100), "white")
    drawn = overlay.overlay_map(image, scores, ImageView(0, 0, 100, 100, 5, 5), (0.0, 1.0), signed=False, contours=True)
    black = [x for x in range(100) if drawn.getpixel((x, 50)) == (0, 0, 0)]
    assert 38 < min(black) < 42 < 58 < max(black) < 62


def test_a_text_has_no_overlay(text_explanation):
    with pytest.raises(InputError, match="A text has no image"):
        text_explanation.overlay()


def test_tensors_have_no_overlay(zoo):
    animal = zoo("vit")
    e = explain(animal.module, animal.inputs, "rollout")
    assert e.images == ()
    with pytest.raises(InputError, match="The original image is not available"):
        e.overlay()
