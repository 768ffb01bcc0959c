"""The peak of the map lies over the red dot in the image, however the image is rotated, stretched or cropped.

The model is made by hand: its attention goes to the reddest patch alone. The image is saved as a camera would save it:
rotated, with an EXIF orientation that says how to rotate it back.
"""

import numpy
import pytest
import torch
from PIL import Image

from whyformer._explain.explain import explain
from whyformer._model.kept_image import find_view
from whyformer.results.explanation import load
from whyformer.show import overlay

ORIENTATIONS = range(1, 9)
TURN_BACK = {  # what a viewer does for each orientation; the camera did the inverse
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
TURNED = TURN_BACK | {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
SIZES = {"square": (240, 240), "wide": (360, 240), "tall": (200, 330)}


def draw_dot(size, at, radius=11):
    """Grey noise with a red dot; `at` is its centre."""
    noise = numpy.random.default_rng(0).integers(90, 130, (size[1], size[0], 1))
    pixels = numpy.broadcast_to(noise, (size[1], size[0], 3)).astype("uint8").copy()
    y, x = numpy.ogrid[: size[1], : size[0]]
    pixels[(x - at[0]) ** 2 + (y - at[1]) ** 2 <= radius**2] = (250, 20, 20)
    return Image.fromarray(pixels)


def save_as_camera(image, path, orientation):
    """As a camera saves it when held in another orientation."""
    stored = image if orientation == 1 else image.transpose(TURNED[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(path, exif=exif)
    return path


def find_peak(e):
    """Where the map is strongest, in pixels of the upright image."""
    kept = e.images[0]
    scores = e.map()
    placed, _ = overlay.sample_at_pixels(scores, kept.view.crop_to_patches(*scores.shape), kept.image.size, smooth=True)
    y, x = divmod(int(placed.argmax()), placed.shape[1])
    return x, y


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("kind", ["squeezed", "cropped", "shortest"])
def test_the_dot_lies_under_the_peak(tmp_path, model_by_hand, kind, shape, orientation):
    size = SIZES[shape]
    dot = (round(size[0] * 0.62), round(size[1] * 0.40))
    path = save_as_camera(draw_dot(size, dot), tmp_path / "dot.png", orientation)
    e = explain(model_by_hand(kind), str(path), "raw_attention")
    kept = e.images[0]
    assert kept.image.size == size  # upright, not as it was stored
    x, y = find_peak(e)
    patch = (kept.view.right - kept.view.left) / 8, (kept.view.bottom - kept.view.top) / 8
    assert abs(x - dot[0]) <= 0.75 * patch[0] + 1
    assert abs(y - dot[1]) <= 0.75 * patch[1] + 1


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_the_colour_lies_over_the_dot(tmp_path, model_by_hand, orientation):
    """The same on the drawn pixels: the most purple one is at the dot."""
    dot = (230, 80)
    path = save_as_camera(draw_dot((360, 240), dot), tmp_path / "dot.jpg", orientation)
    drawn = numpy.asarray(explain(model_by_hand("cropped"), str(path), "raw_attention").overlay()).astype(int)
    purple = drawn[..., 2] - drawn[..., 1]
    y, x = divmod(int(purple.argmax()), purple.shape[1])
    assert abs(x - dot[0]) < 35 and abs(y - dot[1]) < 35


def test_a_dot_outside_the_crop_has_no_effect(tmp_path, model_by_hand):
    path = save_as_camera(draw_dot((400, 200), (12, 100)), tmp_path / "dot.png", 1)
    e = explain(model_by_hand("cropped"), str(path), "raw_attention")
    view = e.images[0].view
    assert view.left > 100
    assert e.map().max() < 2 * e.map().min()


def test_an_image_and_its_view_survive_saving_and_loading(tmp_path, model_by_hand):
    path = save_as_camera(draw_dot((360, 240), (230, 80)), tmp_path / "dot.jpg", 6)
    e = explain(model_by_hand("cropped"), str(path), "raw_attention")
    for suffix in (".safetensors", ".json"):
        e.save(tmp_path / f"e{suffix}")
        loaded = load(tmp_path / f"e{suffix}")
        assert loaded.images == e.images
        assert loaded.images[0].image.size == (360, 240)
        assert find_peak(loaded) == find_peak(e)


def test_a_kept_image_has_no_metadata(tmp_path, model_by_hand):
    exif = Image.Exif()
    exif[0x010E] = "taken at home, 52.5 N 13.4 E"
    draw_dot((360, 240), (230, 80)).save(tmp_path / "dot.jpg", exif=exif, comment=b"secret")
    e = explain(model_by_hand("squeezed"), str(tmp_path / "dot.jpg"), "raw_attention")
    assert b"taken at home" not in e.images[0].data
    assert b"secret" not in e.images[0].data


def test_a_large_image_is_kept_smaller_and_its_view_is_scaled(model_by_hand):
    big = draw_dot((2400, 1800), (1488, 720), radius=110)
    e = explain(model_by_hand("cropped"), big, "raw_attention")
    kept = e.images[0]
    assert kept.image.size == (1200, 900)
    x, y = find_peak(e)
    assert abs(x - 744) < 90 and abs(y - 360) < 90


# --- the view of a processor ------------------------------------------------------------------------------------------


def view_through(processor, width, height):
    return find_view(lambda one: processor(images=[one], return_tensors="pt")["pixel_values"], width, height)


def edges(view):
    return [round(edge, 1) for edge in (view.left, view.top, view.right, view.bottom)]


@pytest.mark.parametrize(
    ("name", "settings", "size", "expected"),
    [
        ("ViTImageProcessor", {}, (500, 375), [0, 0, 500, 375]),  # squeezed into a square
        # resized to 256 x 256, the middle 224 of it: 16/256 of each side is cut off
        ("DeiTImageProcessor", {}, (512, 256), [32 - 0.25, 16, 480 + 0.25, 240]),
        # the shorter side becomes 224, the middle is kept: a square as wide as the image is high
        ("CLIPImageProcessor", {}, (500, 250), [125, 0, 375, 250]),
        ("CLIPImageProcessor", {}, (250, 500), [0, 125, 250, 375]),
        # nothing is resized: 224 pixels from the middle, or padding around a smaller image
        ("CLIPImageProcessor", {"do_resize": False}, (424, 424), [100, 100, 324, 324]),
        ("CLIPImageProcessor", {"do_resize": False}, (100, 100), [-62, -62, 162, 162]),
        # size means something else here: 224 / 0.875 = 256 for the shorter side, then 224 from the middle
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 224}}, (512, 256), [144, 16, 368, 240]),
        ("LevitImageProcessor", {}, (512, 256), [144, 16, 368, 240]),
        ("MobileViTImageProcessor", {}, (448, 224), [96, -16, 352, 240]),  # swaps blue and red
    ],
)
def test_the_view_of_a_processor(name, settings, size, expected):
    import transformers

    view = view_through(getattr(transformers, name)(**settings), *size)
    assert edges(view) == pytest.approx(expected, abs=0.6)


def test_a_processor_that_is_not_a_crop_has_no_view():
    def folded(image):
        half = torch.from_numpy(numpy.asarray(image).astype("float32")).permute(2, 0, 1)[None]
        return torch.cat([half, half.flip(-1)], -1)

    assert find_view(folded, 64, 64) is None
    assert find_view(lambda _: torch.zeros(1, 3, 8, 8), 64, 64) is None
    assert find_view(lambda _: torch.zeros(1, 4, 3, 8, 8), 64, 64) is None
