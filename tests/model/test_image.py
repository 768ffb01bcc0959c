"""Reading images: upright and RGB, or a clear error."""

import contextlib
import io
import os
import random
import socket
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from whyformer._model.image import as_image, read_image, read_image_bytes
from whyformer._plain.shared_context import NO_NATIVE_LINES
from whyformer.errors import InputError

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def corner_dot() -> Image.Image:
    """Wider than high, red at the top left, blue at the top right: no rotation or flip of it looks the same."""
    image = Image.new("RGB", (6, 4), "white")
    image.putpixel((0, 0), RED)
    image.putpixel((5, 0), BLUE)
    return image


def save(image: Image.Image, path, **settings):
    image.save(path, **settings)
    return path


def png_claiming(width: int, height: int) -> bytes:
    """A header that announces an image, with almost no data behind it."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    start = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return b"\x89PNG\r\n\x1a\n" + start + struct.pack(">I", 1_000) + b"IDAT" + bytes(10)


# --- upright and RGB --------------------------------------------------------------------------------------------------

# How a camera that writes this orientation stores an upright image.
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("suffix", [".png", ".tiff"])
def test_is_upright_in_every_orientation(orientation, suffix, tmp_path):
    stored = corner_dot() if STORED[orientation] is None else corner_dot().transpose(STORED[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    seen = as_image(save(stored, tmp_path / f"turned{suffix}", exif=exif))
    assert seen.size == (6, 4)
    assert np.array_equal(np.asarray(seen), np.asarray(corner_dot()))


def test_sixteen_bit_grey_equals_the_same_image_in_eight_bits(tmp_path):
    eight = np.arange(256, dtype=np.uint8).reshape(16, 16)
    sixteen = eight.astype(np.uint16) * 257
    for suffix in (".png", ".tiff"):
        seen = as_image(save(Image.fromarray(sixteen), tmp_path / f"grey{suffix}"))
        assert np.array_equal(np.asarray(seen)[..., 0], eight)
    assert np.array_equal(np.asarray(as_image(Image.fromarray(sixteen.astype(np.int32))))[..., 1], eight)


def test_a_dark_sixteen_bit_image_stays_dark():
    dark = Image.fromarray(np.full((4, 4), 2570, dtype=np.uint16))
    assert as_image(dark).getpixel((0, 0)) == (10, 10, 10)


@pytest.mark.parametrize("full", [1.0, 255.0])
def test_floating_point_grey_ranges_to_one_or_to_255(full):
    ramp = np.linspace(0, full, 16, dtype=np.float32).reshape(4, 4)
    seen, note = read_image(Image.fromarray(ramp))
    assert np.asarray(seen)[..., 0].flatten().tolist() == [17 * i for i in range(16)]
    assert note == ("" if full == 1 else "The image has floating-point values up to 255, so 255 was taken for white. "
                    "If white is 1, clip the values to 1.")  # fmt: skip


def test_a_float_file_of_0_to_255_gets_a_note(tmp_path):
    path = save(Image.fromarray(np.full((4, 4), 200.0, dtype=np.float32)), tmp_path / "grey.tiff")
    assert "grey.tiff has floating-point values up to 200" in read_image(path)[1]
    assert read_image(save(corner_dot(), tmp_path / "a.png"))[1] == ""


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_composites_transparency_over_white(mode, tmp_path):
    image = Image.new(mode, (4, 4), (0,) * len(mode))
    image.putpixel((1, 1), (0,) * (len(mode) - 1) + (255,))
    image.putpixel((2, 2), (0,) * (len(mode) - 1) + (51,))
    seen = as_image(save(image, tmp_path / "clear.png"))
    assert [seen.getpixel(at) for at in ((0, 0), (1, 1), (2, 2))] == [WHITE, (0, 0, 0), (204, 204, 204)]


def test_a_palette_and_its_transparent_colour(tmp_path):
    image = corner_dot().quantize(4)
    assert as_image(save(image, tmp_path / "palette.png")).getpixel((0, 0)) == RED
    at = image.getpixel((0, 0))
    seen = as_image(save(image, tmp_path / "clear.png", transparency=at))
    assert seen.getpixel((0, 0)) == WHITE
    assert seen.getpixel((5, 0)) == BLUE


def test_a_transparent_grey_value_of_sixteen_bits_does_not_break_it(tmp_path):
    grey = Image.fromarray(np.full((4, 4), 25700, dtype=np.uint16))
    assert as_image(save(grey, tmp_path / "grey.png", transparency=25700)).getpixel((0, 0)) == (100, 100, 100)


def test_print_colours(tmp_path):
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    seen = as_image(save(image, tmp_path / "print.tiff"))
    assert (seen.mode, seen.getpixel((3, 3))) == ("RGB", RED)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBX", "YCbCr", "HSV", "PA", "RGBa"])
def test_every_other_mode_becomes_rgb(mode):
    seen = as_image(Image.new(mode, (5, 4)))
    assert (seen.mode, seen.size) == ("RGB", (5, 4))


def test_uses_the_first_frame_of_an_animation(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, BLUE)]
    for suffix in (".gif", ".png", ".webp"):
        path = tmp_path / f"moving{suffix}"
        frames[0].save(path, save_all=True, append_images=frames[1:], lossless=True)
        red, green, blue = as_image(path).getpixel((2, 2))
        assert red > 250 and green < 5 and blue < 5


def test_does_not_modify_a_pillow_image():
    image = corner_dot().convert("RGBA")
    before = image.copy()
    as_image(image)
    assert (image.mode, image.tobytes()) == (before.mode, before.tobytes())


def test_one_pixel_is_an_image():
    assert as_image(Image.new("L", (1, 1), 7)).getpixel((0, 0)) == (7, 7, 7)


# --- clear errors -----------------------------------------------------------------------------------------------------


def test_missing_files(tmp_path):
    with pytest.raises(InputError, match=r"Cannot read '.*missing\.png': there is no such file"):
        as_image(tmp_path / "missing.png")
    with pytest.raises(InputError, match="file name too long"):
        as_image("x" * 5000)
    with pytest.raises(InputError, match="there is no such file"):
        as_image("nul\0.png")


def test_special_files_are_refused_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path, tmp_path / "pipe.png", "/dev/zero"):
        with pytest.raises(InputError, match="not a regular file"):
            as_image(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"just text", b"<html><img></html>", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.4", b"PK\3\4",
     b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", bytes(100)],
)  # fmt: skip
def test_files_that_are_not_images(content, tmp_path):
    path = tmp_path / "renamed.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"'renamed\.png' is not a PNG, JPEG, WebP, BMP, GIF or TIFF image"):
        as_image(path)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP"])
def test_truncated_files(kind, tmp_path):
    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).convert("RGB").save(file, kind)
    path = tmp_path / "half"
    path.write_bytes(file.getvalue()[: len(file.getvalue()) // 2])
    with pytest.raises(InputError, match=r"'half' is (damaged or truncated|not a PNG)"):
        as_image(path)


def test_any_damage_gives_an_image_or_a_clear_error(tmp_path):
    """Bytes changed, cut out and cut off, in every format: 600 files."""
    chance, seeds = random.Random(0), []
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"):
        for mode in ("RGB", "L", "1"):
            file = io.BytesIO()
            Image.linear_gradient("L").resize((24, 20)).convert("RGB" if kind == "WEBP" else mode).save(
                file, kind, exif=exif
            )
            seeds.append(file.getvalue())
    path, refused = tmp_path / "damaged", 0
    for _ in range(600):
        content = bytearray(chance.choice(seeds))
        start, end = sorted(chance.choices(range(len(content)), k=2))
        if chance.random() < 0.7:
            for at in chance.choices(range(min(len(content), 150)), k=4):
                content[at] = chance.randrange(256)
        else:
            del content[start : chance.choice((end, len(content)))]
        path.write_bytes(content)
        try:
            assert as_image(path).mode == "RGB"
        except InputError:
            refused += 1
    assert 100 < refused < 600


def test_a_broken_stream(tmp_path):
    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(file, "PNG")
    content = bytearray(file.getvalue())
    content[200:240] = bytes(40)
    path = tmp_path / "broken.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged or truncated"):
        as_image(path)


@pytest.mark.parametrize(
    ("width", "height", "message"), [(6000, 5000, "30 megapixels"), (12_000, 12_000, "144 megapixels")]
)
def test_too_large_is_refused_before_decoding(width, height, message, tmp_path):
    """The file contains only a header: decoding it would report a truncated file."""
    path = tmp_path / "large.png"
    path.write_bytes(png_claiming(width, height))
    with pytest.raises(InputError, match=f"{message}; the limit is 25"):
        as_image(path)


def test_a_decompression_bomb(tmp_path):
    path = tmp_path / "bomb.png"
    path.write_bytes(png_claiming(2**31 - 1, 2**31 - 1))
    with pytest.raises(InputError, match="too large; the limit is 25 megapixels"):
        as_image(path)


def test_too_long_and_thin():
    with pytest.raises(InputError, match="1 x 5000 pixels: too long and thin"):
        as_image(Image.new("L", (1, 5000)))


def test_an_image_without_pixels():
    with pytest.raises(InputError, match="0 x 4 pixels: it is empty"):
        as_image(Image.new("L", (0, 4)))


def test_values_outside_the_grey_range():
    with pytest.raises(InputError, match="contains NaN or infinity"):
        as_image(Image.fromarray(np.array([[0.0, np.nan], [1.0, 1.0]], dtype=np.float32)))
    with pytest.raises(InputError, match="contains NaN or infinity"):
        as_image(Image.fromarray(np.array([[0.0, np.inf], [1.0, 1.0]], dtype=np.float32)))
    with pytest.raises(InputError, match="contains values from -2 to 5; grey values must be between 0 and 255"):
        as_image(Image.fromarray(np.array([[-2.0, 5.0]], dtype=np.float32)))
    with pytest.raises(InputError, match="from 0 to 70000; grey values must be between 0 and 65535"):
        as_image(Image.fromarray(np.array([[0, 70_000]], dtype=np.int32)))


def test_a_mode_that_cannot_be_converted_to_rgb():
    with pytest.raises(InputError, match="has the mode La, which cannot be converted to RGB"):
        as_image(Image.new("La", (4, 4)))


def test_neither_a_path_nor_an_image():
    with pytest.raises(InputError, match="An image must be a path, a Pillow image or an array, got list"):
        as_image([[1, 2]])


def test_no_permission(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("no")

    path = save(corner_dot(), tmp_path / "secret.png")
    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(InputError, match="no permission"):
        as_image(path)


# --- codes ------------------------------------------------------------------------------------------------------------

NOISE = io.BytesIO()
Image.effect_noise((64, 64), 50).convert("RGB").save(NOISE, "PNG")
BOMB = zlib.compress(bytes(100_000_000))


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


FILES = [
    (b"", "E_IMG_FORMAT"),
    (b"just text", "E_IMG_FORMAT"),
    (b"<html><img></html>", "E_IMG_FORMAT"),
    (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "E_IMG_FORMAT"),
    (b"%PDF-1.4", "E_IMG_FORMAT"),
    (b"PK\3\4", "E_IMG_FORMAT"),
    (b"MZ\x90\0", "E_IMG_FORMAT"),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "E_IMG_FORMAT"),
    (NOISE.getvalue()[:3000], "E_IMG_BROKEN"),
    (NOISE.getvalue()[:200] + bytes(40) + NOISE.getvalue()[240:], "E_IMG_BROKEN"),
    (NOISE.getvalue()[:33] + png_chunk(b"zTXt", b"a\0\0" + BOMB) + NOISE.getvalue()[33:], "E_IMG_BROKEN"),
    (png_claiming(9000, 9000), "E_IMG_TOO_LARGE"),
    (png_claiming(12_000, 12_000), "E_IMG_TOO_LARGE"),
    (png_claiming(20_000, 20_000), "E_IMG_TOO_LARGE"),
    (png_claiming(2**31 - 1, 2**31 - 1), "E_IMG_TOO_LARGE"),
    (png_claiming(1, 5000), "E_IMG_SHAPE"),
]


@pytest.mark.parametrize(("content", "code"), FILES, ids=[f"{i} {code}" for i, (_, code) in enumerate(FILES)])
def test_codes_of_files(content, code, tmp_path):
    (tmp_path / "a.png").write_bytes(content)
    for read in (lambda: as_image(tmp_path / "a.png"), lambda: read_image_bytes(content, "a.png")):
        with pytest.raises(InputError) as raised:
            read()
        assert raised.value.code == code


def test_codes_of_paths(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(tmp_path):
        server.bind("socket.png")
    for path in (
        "",
        " ",
        tmp_path,
        tmp_path / "pipe.png",
        tmp_path / "socket.png",
        "/dev/zero",
        "no.png",
        "a\0",
        "x" * 5000,
    ):
        with pytest.raises(InputError) as raised:
            as_image(path)
        assert raised.value.code == "E_IMG_READ"


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (Image.new("L", (1, 5000)), "E_IMG_SHAPE"),
        (Image.new("L", (0, 4)), "E_IMG_SHAPE"),
        (Image.new("1", (9000, 9000)), "E_IMG_TOO_LARGE"),
        (Image.new("La", (4, 4)), "E_IMG_VALUES"),
        (Image.fromarray(np.array([[0.0, np.nan]], dtype=np.float32)), "E_IMG_VALUES"),
        (Image.fromarray(np.array([[0.0, np.inf]], dtype=np.float32)), "E_IMG_VALUES"),
        (Image.fromarray(np.array([[0, 70_000]], dtype=np.int32)), "E_IMG_VALUES"),
        (7, "E_INPUT"),
        (None, "E_INPUT"),
        (b"\x89PNG", "E_INPUT"),
    ],
)
def test_codes_of_images(image, code):
    with pytest.raises(InputError) as raised:
        as_image(image)
    assert raised.value.code == code


# --- what Pillow and its libraries print ------------------------------------------------------------------------------

DAMAGED = """
import logging, random, sys
from io import BytesIO
from PIL import Image
from whyformer._model.image import read_image_bytes

random, colours = random.Random(5), Image.effect_noise((40, 40), 90).convert("RGB")
for number, compression in enumerate(["raw", "tiff_lzw", "jpeg", "tiff_deflate", "packbits", "group4"] * 30):
    file = BytesIO()
    (colours.convert("1") if compression == "group4" else colours).save(file, "TIFF", compression=compression)
    data = bytearray(file.getvalue())
    for _ in range(6):
        data[random.randrange(len(data) if number % 2 else 200)] = random.randrange(256)
    try:
        read_image_bytes(bytes(data), "a file")
    except Exception as error:
        print(type(error).__name__, getattr(error, "code", ""))
print("the end", file=sys.stderr)
"""


def test_nothing_that_pillow_or_libtiff_says_reaches_the_terminal():
    done = subprocess.run([sys.executable, "-c", DAMAGED], capture_output=True, text=True, check=True)
    assert done.stderr == "the end\n"
    assert set(done.stdout.splitlines()) <= {f"InputError E_IMG_{code}" for code in ("BROKEN", "FORMAT", "SHAPE",
                                                                                    "TOO_LARGE", "VALUES")}  # fmt: skip
    assert done.stdout.count("E_IMG_BROKEN") > 20


def test_standard_error_leads_where_it_did_after_lines_were_dropped(capfd):
    with NO_NATIVE_LINES, NO_NATIVE_LINES:
        os.write(2, b"dropped")
    os.write(2, b"kept")
    assert capfd.readouterr().err == "kept"
