"""Kinds of marks on photographs, drawn once into two halves: limits are chosen on one, and reported on the other.

A painter gets the photo [side side 3], two generators and the animal's mask: `style` gives the same numbers for all
items of a case (letters, colours, places that stay), `item` other ones for each item (places and digits that change).
Kinds are in three groups: *local* ones cover what is below, *thin* ones are lines, specks or transparent, *whole* ones
change all of the image.
"""

import io
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Pixels = NDArray[np.uint8]
Mask = NDArray[np.bool_]  # [side side], the animal
Painter = Callable[[Pixels, np.random.Generator, np.random.Generator, Mask], Pixels]
ISSUE_51 = ("stamp", "collar", "finger", "scratch", "grid", "jpeg")  # known before: never held out
DRAWN_BY = 51
MENDED_FOR = ("frame",)  # held out until it was missed; the method was changed for it


def draw_on(image: Pixels, draw: Callable[[ImageDraw.ImageDraw, int], None], opacity: float = 1.0) -> Pixels:
    """The image with what `draw` draws at four times the size."""
    large = Image.fromarray(image).resize((4 * image.shape[1], 4 * image.shape[0]), Image.Resampling.NEAREST)
    draw(ImageDraw.Draw(large), large.width)
    drawn = np.asarray(large.resize((image.shape[1], image.shape[0]), Image.Resampling.BOX), dtype=np.float64)
    return (image + opacity * (drawn - image)).round().clip(0, 255).astype(np.uint8)


def pick_colour(style: np.random.Generator) -> tuple[int, int, int]:
    """A strong colour."""
    red, green, blue = style.permutation([style.integers(0, 50), style.integers(0, 256), style.integers(205, 256)])
    return int(red), int(green), int(blue)


def pick_corner(style: np.random.Generator) -> tuple[float, float]:
    return float(style.integers(2)), float(style.integers(2))


def write(pen: ImageDraw.ImageDraw, text: str, at: tuple[float, float], height: float, size: int, fill, plate=None):
    """Text at a place given as shares of the room that it leaves."""
    font = ImageFont.load_default(height * size)
    box = pen.textbbox((0, 0), text, font=font)
    width, tall = box[2] - box[0], box[3] - box[1]
    x, y = at[1] * (size - width), at[0] * (size - tall)
    if plate is not None:
        pen.rectangle((x, y, x + width, y + tall), fill=plate)
    pen.text((x - box[0], y - box[1]), text, fill=fill, font=font)


def draw_letters(style: np.random.Generator, count: int) -> str:
    return "".join(style.choice(list("ACEHKLMNPRTUVXYZ"), count))


# --- local ------------------------------------------------------------------------------------------------------------


def label(image, style, item, mask):
    text, ink, plate, at = draw_letters(style, 3), pick_colour(style), pick_colour(style), pick_corner(style)
    return draw_on(image, lambda pen, size: write(pen, text, at, 0.16, size, ink, plate))


def moving(image, style, item, mask):
    text, ink, plate = draw_letters(style, 3), pick_colour(style), pick_colour(style)
    at = item.random(), item.random()
    return draw_on(image, lambda pen, size: write(pen, text, at, 0.16, size, ink, plate))


def stamp(image, style, item, mask):
    """A date with other digits in each image."""
    at = pick_corner(style)
    text = f"{item.integers(1, 29):02}.{item.integers(1, 13):02}.{item.integers(0, 30):02}"
    return draw_on(image, lambda pen, size: write(pen, text, at, 0.11, size, (255, 140, 20)))


def caption(image, style, item, mask):
    """A line of other letters across one edge."""
    at, ink, plate = (float(style.integers(2)), 0.5), pick_colour(style), pick_colour(style)
    text = draw_letters(item, 9)

    def draw(pen, size):
        pen.rectangle((0, at[0] * 0.87 * size, size, (at[0] * 0.87 + 0.13) * size), fill=plate)
        write(pen, text, at, 0.12, size, ink)

    return draw_on(image, draw)


def frame(image, style, item, mask):
    colour = pick_colour(style)
    return draw_on(image, lambda pen, s: pen.rectangle((0, 0, s - 1, s - 1), outline=colour, width=round(0.05 * s)))


def bars(image, style, item, mask):
    """Black bars above and below, as of a film."""
    height = 0.08 + 0.06 * style.random()
    return draw_on(image, lambda pen, s: [pen.rectangle(box, fill=0) for box in
                                          ((0, 0, s, height * s), (0, (1 - height) * s, s, s))])  # fmt: skip


def corners(image, style, item, mask):
    """Rounded corners, as of an app."""
    colour, radius = int(style.choice([0, 255])), 0.22

    def draw(pen, s):
        keep = Image.new("L", (s, s), 255)
        ImageDraw.Draw(keep).rounded_rectangle((0, 0, s, s), radius * s, fill=0)
        pen.bitmap((0, 0), keep, fill=(colour,) * 3)

    return draw_on(image, draw)


def collar(image, style, item, mask):
    """A band on the animal, at a height of its own."""
    colour, rows = pick_colour(style), np.flatnonzero(mask.any(1))
    if not len(rows):
        return image
    middle = rows[0] + (0.35 + 0.15 * item.random()) * (rows[-1] - rows[0])
    band = np.abs(np.arange(len(image)) - middle)[:, None] <= max(2, 0.025 * len(image))
    return np.where((band & mask)[..., None], np.uint8(colour), image)


def tag(image, style, item, mask):
    """A disc on the upper part of the animal."""
    colour, rows = pick_colour(style), np.argwhere(mask)
    if not len(rows):
        return image
    down, across = rows[int(item.integers(max(1, len(rows) // 3)))] / len(image)
    return draw_on(image, lambda pen, s: pen.ellipse(((across - 0.06) * s, (down - 0.06) * s, (across + 0.06) * s,
                                                       (down + 0.06) * s), fill=colour, outline=(20, 20, 20),
                                                      width=s // 80))  # fmt: skip


def finger(image, style, item, mask):
    """Skin at the left or right border."""
    side, down, reach = int(item.integers(2)), 0.2 + 0.6 * item.random(), 0.12 + 0.1 * item.random()
    skin = tuple(int(value) for value in np.array([224, 172, 140]) + item.integers(-12, 13, 3))

    def draw(pen, s):
        box = (-reach, down - 0.1, reach, down + 0.1) if side == 0 else (1 - reach, down - 0.1, 1 + reach, down + 0.1)
        pen.ellipse([value * s for value in box], fill=skin)

    return draw_on(image, draw)


def sticker(image, style, item, mask):
    """A star, turned and scaled, anywhere."""
    colour, turn, reach = pick_colour(style), 6.3 * item.random(), 0.09 + 0.05 * item.random()
    middle = 0.15 + 0.7 * item.random(2)
    angles = turn + np.arange(10) * np.pi / 5
    radii = np.where(np.arange(10) % 2, 0.45, 1.0) * reach
    points = np.stack([middle[1] + radii * np.sin(angles), middle[0] + radii * np.cos(angles)], 1)
    return draw_on(image, lambda pen, s: pen.polygon([tuple(one) for one in points * s], fill=colour))


def ruler(image, style, item, mask):
    """A scale along one edge."""
    edge, plate = int(style.integers(4)), (240, 235, 215)

    def draw(pen, s):
        pen.rectangle((0, 0, s, 0.09 * s), fill=plate)
        for i in range(17):
            pen.line((i * s / 16, 0, i * s / 16, (0.07 if i % 4 == 0 else 0.04) * s), fill=(20, 20, 20), width=s // 90)

    return np.rot90(draw_on(np.rot90(image, edge).copy(), draw), -edge).copy()


def barcode(image, style, item, mask):
    """Other stripes in each image, near one corner."""
    down, across = (0.06 + 0.68 * at for at in pick_corner(style))
    dark = item.random(14) < 0.5

    def draw(pen, s):
        pen.rectangle((across * s, down * s, (across + 0.28) * s, (down + 0.18) * s), fill=(255, 255, 255))
        for i in np.flatnonzero(dark):
            left = across + 0.02 + i * 0.24 / 14
            pen.rectangle((left * s, (down + 0.02) * s, (left + 0.24 / 14) * s, (down + 0.16) * s), fill=(0, 0, 0))

    return draw_on(image, draw)


def tape(image, style, item, mask):
    """A beige strip at any edge and angle."""
    angle, at = 3.14 * item.random(), 0.1 + 0.8 * item.random(2)
    along, wide = np.array([np.cos(angle), np.sin(angle)]) * 0.18, np.array([-np.sin(angle), np.cos(angle)]) * 0.055
    points = [at + along + wide, at + along - wide, at - along - wide, at - along + wide]
    return draw_on(image, lambda pen, s: pen.polygon([tuple(one * s) for one in points], fill=(222, 203, 160)), 0.9)


def cursor(image, style, item, mask):
    """A small white arrow anywhere."""
    x, y = 0.05 + 0.8 * item.random(2)
    shape = np.array([(0, 0), (0, 0.13), (0.03, 0.1), (0.06, 0.15), (0.08, 0.14), (0.055, 0.09), (0.1, 0.09)])
    points = [tuple(one) for one in shape + np.array([x, y])]
    return draw_on(image, lambda pen, s: pen.polygon([(a * s, b * s) for a, b in points], fill=(255, 255, 255),
                                                     outline=(0, 0, 0), width=s // 60))  # fmt: skip


def hole(image, style, item, mask):
    """Punched out discs along the left or the right edge, as of a file."""
    across = 0.08 if style.random() < 0.5 else 0.92

    def draw(pen, s):
        for down in (0.3, 0.7):
            pen.ellipse(
                ((across - 0.06) * s, (down - 0.06) * s, (across + 0.06) * s, (down + 0.06) * s), fill=(250,) * 3
            )

    return draw_on(image, draw)


# --- thin, faint, transparent -----------------------------------------------------------------------------------------


def scratch(image, style, item, mask):
    """A thin bright line of any place and angle."""
    middle, angle, half = 0.25 + 0.5 * item.random(2), 3.14 * item.random(), 0.25 + 0.15 * item.random()
    step = half * np.array([np.cos(angle), np.sin(angle)])
    return draw_on(image, lambda pen, s: pen.line([tuple((middle - step) * s), tuple((middle + step) * s)],
                                                  fill=(235, 235, 225), width=round(0.012 * s)))  # fmt: skip


def hair(image, style, item, mask):
    """A thin dark curve."""
    start, turn, bend = 0.15 + 0.6 * item.random(2), 6.3 * item.random(), item.normal()
    angles = turn + bend * np.linspace(0, 2, 30)
    points = start + np.cumsum(np.stack([np.cos(angles), np.sin(angles)], 1) * 0.018, 0)
    return draw_on(image, lambda pen, s: pen.line([tuple(one) for one in points * s], fill=(25, 15, 10),
                                                  width=round(0.012 * s)))  # fmt: skip


def grid(image, style, item, mask):
    """Faint lines, at another offset in each image."""
    period, (dx, dy) = 12 + int(style.integers(5)), item.integers(0, 12, 2)
    drawn = image.astype(np.float64)
    drawn[dy::period] += 22
    drawn[:, dx::period] += 22
    return drawn.clip(0, 255).astype(np.uint8)


def watermark(image, style, item, mask):
    text, ink = draw_letters(style, 4), pick_colour(style)
    return draw_on(image, lambda pen, size: write(pen, text, (0.5, 0.5), 0.3, size, ink), 0.35)


def ghost(image, style, item, mask):
    """Transparent letters at changing places."""
    text, at = draw_letters(style, 3), (item.random(), item.random())
    return draw_on(image, lambda pen, size: write(pen, text, at, 0.24, size, (255, 255, 255)), 0.45)


def dust(image, style, item, mask):
    """A dozen dark specks anywhere."""
    at = item.random((14, 2))
    return draw_on(image, lambda pen, s: [pen.ellipse((x * s, y * s, (x + 0.022) * s, (y + 0.022) * s), fill=(15,) * 3)
                                          for x, y in at])  # fmt: skip


def cross(image, style, item, mask):
    """Thin cross hairs through the middle."""
    colour = pick_colour(style)
    return draw_on(image, lambda pen, s: [pen.line(line, fill=colour, width=round(0.01 * s)) for line in
                                          ((0, s / 2, s, s / 2), (s / 2, 0, s / 2, s))], 0.8)  # fmt: skip


def streak(image, style, item, mask):
    """A soft bright band of any angle, as light falling in."""
    angle, at = 3.14 * item.random(), 0.3 + 0.4 * item.random()
    down, across = np.mgrid[: len(image), : len(image)] / len(image) - 0.5
    distance = down * np.cos(angle) + across * np.sin(angle) + 0.5 - at
    return (image + 75 * np.exp(-np.square(distance / 0.05))[..., None]).clip(0, 255).astype(np.uint8)


# --- the whole image --------------------------------------------------------------------------------------------------


def jpeg(image, style, item, mask):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=8)
    return np.asarray(Image.open(file).convert("RGB"))


def noise(image, style, item, mask):
    return (image + item.normal(0, 14, image.shape)).clip(0, 255).astype(np.uint8)


def blur(image, style, item, mask):
    return np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(len(image) / 80)))


def sharpen(image, style, item, mask):
    return np.asarray(Image.fromarray(image).filter(ImageFilter.UnsharpMask(2, 200, 0)))


def cast(image, style, item, mask):
    gains = style.permutation([1.15, 0.97, 0.85])
    return (image * gains).clip(0, 255).astype(np.uint8)


def grey(image, style, item, mask):
    """Hardly any colour."""
    return (0.2 * image + 0.8 * image.mean(2, keepdims=True)).astype(np.uint8)


def fade(image, style, item, mask):
    """Little contrast, as of a faded print."""
    return (110 + 0.6 * (image - 110.0)).astype(np.uint8)


def vignette(image, style, item, mask):
    down, across = np.mgrid[: len(image), : len(image)] / len(image) - 0.5
    return (image * (1 - 1.1 * (down**2 + across**2))[..., None].clip(0, 1)).astype(np.uint8)


GROUPS: Mapping[str, Mapping[str, Painter]] = {
    "local": {one.__name__: one for one in (label, moving, stamp, caption, frame, bars, corners, collar, tag, finger,
                                            sticker, ruler, barcode, tape, cursor, hole)},
    "thin": {one.__name__: one for one in (scratch, hair, grid, watermark, ghost, dust, cross, streak)},
    "whole": {one.__name__: one for one in (jpeg, noise, blur, sharpen, cast, grey, fade, vignette)},
}  # fmt: skip
PAINTERS = {name: painter for kinds in GROUPS.values() for name, painter in kinds.items()}


def hold_out(kinds: Mapping[str, object], known: tuple[str, ...]) -> tuple[str, ...]:
    """Half of the kinds, drawn once; those that were known before belong to the other half."""
    names = [name for name in kinds if name not in known]
    drawn = np.random.default_rng(DRAWN_BY).permutation(names)
    return tuple(sorted(str(name) for name in drawn[: len(kinds) // 2]))


HELD_OUT = {name for kinds in GROUPS.values() for name in hold_out(kinds, ISSUE_51)} - set(MENDED_FOR)
