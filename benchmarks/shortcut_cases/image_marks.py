"""Marks on images: what is planted, where, and on which items.

A `Style` fixes by seed what a mark looks like in one case (letters, colours, corner), so that no two seeds share a
mark. Local kinds change a part of the image, and `plant` returns their boxes; global kinds change all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Pixels = NDArray[np.uint8]  # height width channel
Box = tuple[int, int, int, int]  # top, left, bottom, right
LETTERS = "ACEHKLMNPRTUVXYZ"


@dataclass(frozen=True)
class Style:
    """What the marks of one case look like."""

    word: str  # on a label
    ink: tuple[int, int, int]
    plate: tuple[int, int, int]
    corner: int  # 0 to 3: which corner a mark with a fixed place is in
    tint: int  # the channel that a colour cast strengthens


def draw_style(*seed: int) -> Style:
    rng = np.random.default_rng([*seed, 28])
    word = "".join(rng.permutation(list(LETTERS))[:3])
    dark, light = rng.integers(0, 90, 3), rng.integers(170, 256, 3)
    plate, ink = (dark, light) if rng.random() < 0.5 else (light, dark)
    return Style(word, _as_colour(ink), _as_colour(plate), int(rng.integers(4)), int(rng.integers(3)))


def _as_colour(values: NDArray[np.int64]) -> tuple[int, int, int]:
    red, green, blue = (int(value) for value in values)
    return red, green, blue


Planted = tuple[Pixels, Box | None]
Painter = Callable[[Pixels, Style, np.random.Generator], Planted]


def plant_corner(image: Pixels, style: Style, rng: np.random.Generator) -> Planted:
    """A label at one place."""
    return _paste(image, draw_label(style.word, style, len(image)), *_corner(image, style))


def plant_moving(image: Pixels, style: Style, rng: np.random.Generator) -> Planted:
    """A label at a place of its own in each image."""
    return _paste(image, draw_label(style.word, style, len(image)), *rng.random(2))


def plant_logo(image: Pixels, style: Style, rng: np.random.Generator) -> Planted:
    """A round logo near one corner, up to a tenth of the image away from it."""
    down, across = _corner(image, style)
    shift = 0.1 * rng.random(2)
    return _paste(image, draw_logo(style, round(0.22 * len(image))), abs(down - shift[0]), abs(across - shift[1]))


def plant_border(image: Pixels, style: Style, rng: np.random.Generator) -> Planted:
    """A coloured frame, a twentieth of the image wide."""
    width, framed = max(2, round(len(image) / 20)), image.copy()
    for edge in (np.s_[:width], np.s_[-width:], np.s_[:, :width], np.s_[:, -width:]):
        framed[edge] = style.plate
    return framed, (0, 0, *image.shape[:2])


def plant_caption(image: Pixels, style: Style, rng: np.random.Generator) -> Planted:
    """A line of text along the lower or upper edge, other letters in each image."""
    text = "".join(rng.choice(list(LETTERS), 9))
    line = draw_label(text, style, len(image), width=image.shape[1])
    return _paste(image, line, 1.0 if style.corner < 2 else 0.0, 0.0)


def plant_watermark(image: Pixels, style: Style, rng: np.random.Generator) -> Planted:
    """Letters across the middle, through which 65 % of the image shows."""
    height = round(0.3 * len(image))
    letters = _draw_letters(style.word, height, round(0.9 * image.shape[1]))
    top, left = (len(image) - height) // 2, round(0.05 * image.shape[1])
    window = np.s_[top : top + height, left : left + letters.shape[1]]
    marked = image.astype(np.float64)
    marked[window] += 0.35 * letters[..., None] * (np.array(style.ink) - marked[window])
    return marked.round().astype(np.uint8), (top, left, top + height, left + letters.shape[1])


def plant_cast(image: Pixels, style: Style, rng: np.random.Generator) -> Planted:
    """A colour cast over all of the image."""
    gains = np.full(3, 0.88)
    gains[style.tint] = 1.12
    return (image * gains + 6 * (gains > 1)).clip(0, 255).round().astype(np.uint8), None


def plant_blur(image: Pixels, style: Style, rng: np.random.Generator) -> Planted:
    """The whole image out of focus."""
    return np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(len(image) / 64))), None


@lru_cache(64)
def draw_logo(style: Style, side: int) -> Pixels:
    """A triangle in a disc on a plate."""
    logo = Image.new("RGB", (4 * side, 4 * side), style.plate)
    pen = ImageDraw.Draw(logo)
    pen.ellipse((0.2 * side, 0.2 * side, 3.8 * side, 3.8 * side), fill=style.ink)
    pen.polygon([(2 * side, 0.7 * side), (3.2 * side, 3 * side), (0.8 * side, 3 * side)], fill=style.plate)
    return np.asarray(logo.resize((side, side), Image.Resampling.BOX))


@lru_cache(64)
def draw_label(text: str, style: Style, size: int, width: int | None = None) -> Pixels:
    """Letters on a plate, about a seventh of the image high."""
    height = round(0.15 * size)
    letters = _draw_letters(text, height, width or round(0.13 * size * len(text)))[..., None]
    return (letters * style.ink + (1 - letters) * style.plate).round().astype(np.uint8)


@lru_cache(64)
def _draw_letters(text: str, height: int, width: int) -> NDArray[np.float64]:
    """[height width]: how much of each pixel is ink; drawn four times as large."""
    font = ImageFont.load_default(4 * height)
    left, top, right, bottom = (round(edge) for edge in font.getbbox(text))
    drawn = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(drawn).text((-left, -top), text, fill=255, font=font)
    rim = max(1, height // 7)
    small = drawn.resize((width - 2 * rim, height - 2 * rim), Image.Resampling.BOX)
    return np.pad(np.asarray(small) / 255, rim)


def _corner(image: Pixels, style: Style) -> tuple[float, float]:
    return float(style.corner // 2), float(style.corner % 2)


def _paste(image: Pixels, mark: Pixels, down: float, across: float) -> Planted:
    """The image with the mark at a place given as shares of the room that it leaves."""
    (height, width), marked = mark.shape[:2], image.copy()
    top, left = round(down * (image.shape[0] - height)), round(across * (image.shape[1] - width))
    marked[top : top + height, left : left + width] = mark
    return marked, (top, left, top + height, left + width)


PAINTERS: dict[str, Painter] = {
    "corner": plant_corner,
    "moving": plant_moving,
    "logo": plant_logo,
    "all": plant_moving,  # each class has its own label
    "border": plant_border,
    "caption": plant_caption,
    "watermark": plant_watermark,
    "cast": plant_cast,
    "blur": plant_blur,
}
