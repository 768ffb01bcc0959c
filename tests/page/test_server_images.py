"""Images are decoded in a process of their own: whatever a file holds, the server gets an image or a reason."""

import io
import random
import struct
import zlib

import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="whyformer[page] is not installed")

from whyformer._page.decoding import Decoder
from whyformer._page.kept import Kept
from whyformer._page.limits import Limits
from whyformer._page.problems import PageProblem
from whyformer.demo.sample_files import SAMPLES


@pytest.fixture(scope="module")
def decoder():
    made = Decoder(Limits(decode_seconds=20))
    yield made
    made.stop()


def encode(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def make_png(width, height, data=b""):
    """A PNG that claims this size."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def refusal(decoder, data):
    with pytest.raises(PageProblem) as caught:
        decoder.decode(data)
    return caught.value.code


def test_an_image_comes_back_upright_with_a_preview_and_the_same_name_each_time(decoder):
    image = Image.effect_noise((60, 40), 50).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees
    data = encode(image, "PNG", exif=exif)
    first, second = decoder.decode(data), decoder.decode(data)
    assert (first.width, first.height) == (40, 60)
    assert first.pixels == image.transpose(Image.Transpose.ROTATE_270).tobytes()
    assert first.id == second.id != decoder.decode(encode(image)).id
    assert Image.open(io.BytesIO(first.preview)).size == (40, 60)


def test_a_preview_is_small_and_has_no_metadata(decoder):
    exif = Image.Exif()
    exif[0x010E] = "SECRET"
    made = decoder.decode(encode(Image.new("RGB", (3000, 2000), "red"), "JPEG", exif=exif, comment=b"SECRET"))
    assert made.preview_size == (1024, 683)
    assert b"SECRET" not in made.preview


def test_bombs_are_refused_before_they_are_decoded(decoder):
    assert refusal(decoder, make_png(50_000, 50_000)) == "E_IMG_TOO_LARGE"
    assert refusal(decoder, make_png(6_000, 6_000, b"\0" * 1000)) == "E_IMG_TOO_LARGE"
    assert refusal(decoder, make_png(20_000, 1)) == "E_IMG_SHAPE"
    assert refusal(decoder, make_png(2_000, 2_000, b"\0" * 1000)) == "E_IMG_BROKEN"
    assert refusal(decoder, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9") == "E_IMG_FORMAT"
    assert refusal(decoder, b"<svg xmlns='http://www.w3.org/2000/svg'/>") == "E_IMG_FORMAT"


def test_a_decoder_that_dies_is_replaced(decoder):
    decoder.start()
    decoder._process.kill()
    decoder._process.wait()
    assert decoder.decode(encode(Image.new("RGB", (2, 2)))).width == 2


def test_a_decoder_that_is_too_slow_is_given_up():
    slow = Decoder(Limits(decode_seconds=0))
    try:
        assert refusal(slow, encode(Image.new("RGB", (3000, 3000)))) == "E_IMG_BROKEN"
    finally:
        slow.stop()


def test_mutated_files_give_an_image_or_a_reason(decoder):
    mutate_images(decoder, 40)


@pytest.mark.slow
def test_many_mutated_files_give_an_image_or_a_reason(decoder):
    mutate_images(decoder, 1000)


def mutate_images(decoder, count):
    draw = random.Random(1)
    small = Image.open(SAMPLES / "cat.jpg").resize((40, 40))
    seeds = [encode(small, kind) for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")]
    for number in range(count):
        data = bytearray(seeds[number % len(seeds)])
        for _ in range(draw.randint(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        data = data[: draw.randrange(len(data))] if number % 3 == 0 else data
        codes = []
        try:
            decoder.decode(bytes(data))
        except PageProblem as problem:
            codes.append(problem.code)
        assert all(code.startswith("E_IMG") for code in codes)


def test_the_oldest_goes_first_when_too_much_is_kept():
    kept = Kept(10)
    for name in "abc":
        kept.put(name, name.encode() * 4)
        kept.get("a")
    assert kept.get("a") and kept.get("c") and kept.get("b") is None and kept.total == 8
    kept.put("a", b"x")
    assert kept.total == 5
