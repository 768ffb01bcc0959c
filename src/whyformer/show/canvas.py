"""Canvas: text, boxes and images placed by hand, in points from the upper left corner. Nothing moves anything else."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from whyformer.show.colours import paint
from whyformer.show.drawing import DIM_INK, INK, LINE_COLOUR, Drawing, apply_style, make_figure
from whyformer.show.text_width import measure_text, shorten_to_width
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOTTOM_MARGIN = 4.0


@dataclass(frozen=True)
class TextItem:
    x: float
    y: float  # of the baseline
    text: str
    size: float
    style: dict[str, Any]  # keyword arguments of matplotlib's Text


@dataclass(frozen=True)
class BoxItem:
    x: float
    y: float
    width: float
    height: float
    colour: str
    radius: float  # of the corners


@dataclass(frozen=True)
class ImageItem:
    x: float
    y: float
    width: float
    height: float
    image: Image.Image
    crisp: bool  # enlarge without smoothing


class Canvas:
    """A figure under construction; y grows downwards, and the height grows with what is added."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.height = 0.0
        self.items: list[TextItem | BoxItem | ImageItem] = []

    def add_text(self, x: float, y: float, text: str, size: float = 9, **style: Any) -> None:
        """A line of text with its baseline at y."""
        self._add(TextItem(x, y, make_visible(text), size, style), bottom=y + 0.3 * size)

    def add_fitted_text(self, x: float, y: float, text: str, size: float, width: float, **style: Any) -> None:
        """A line of text, cut with an ellipsis where it is wider than `width`."""
        self.add_text(x, y, shorten_to_width(text, size, width), size, **style)

    def add_title(self, y: float, title: str, size: float) -> None:
        """A bold line across the canvas."""
        self.add_fitted_text(0, y, title, size, self.width, fontweight="bold")

    def add_box(self, x: float, y: float, width: float, height: float, colour: str, radius: float = 0.0) -> None:
        self._add(BoxItem(x, y, width, height, colour, radius), bottom=y + height)

    def add_image(self, x: float, y: float, width: float, image: Image.Image, *, crisp: bool = False) -> float:
        """An image scaled to the width. Returns its height."""
        height = width * image.height / image.width
        self._add(ImageItem(x, y, width, height, image, crisp), bottom=y + height)
        return height

    def add_colour_bar(
        self, x: float, y: float, between: tuple[float, float], *, signed: bool, width: float = 90.0
    ) -> float:
        """A colour bar with its two limits. Returns where it ends."""
        low, high = (format_score(limit, signed=signed, digits=2) for limit in between)
        low, high = (f"{low} against", f"{high} for") if signed else (low, high)
        start = x + measure_text(low, 7.5) + 4
        self.add_text(x, y, low, 7.5, color=DIM_INK)
        steps = torch.linspace(0, 1, 65, dtype=torch.double)
        colours = paint(steps, (0.0, 1.0), signed=signed).numpy()[None]
        self.add_box(start - 0.4, y - 6.2, width + 0.8, 6.8, LINE_COLOUR)
        self._add(ImageItem(start, y - 5.8, width, 6.0, Image.fromarray(colours), crisp=False), bottom=y)
        self.add_text(start + width + 4, y, high, 7.5, color=DIM_INK)
        return start + width + 4 + measure_text(high, 7.5)

    def _add(self, item: TextItem | BoxItem | ImageItem, bottom: float) -> None:
        self.items.append(item)
        self.height = max(self.height, bottom)

    def to_drawing(self, alt: str) -> Drawing:
        """Draw all items; `alt` describes the figure in words."""
        height = self.height + BOTTOM_MARGIN
        with apply_style():
            figure = make_figure(self.width / 72, height / 72)
            figure.set_layout_engine("none")
            for item in self.items:
                if isinstance(item, TextItem):
                    style = {"color": INK} | item.style
                    x, y = item.x / self.width, 1 - item.y / height
                    figure.text(x, y, item.text, fontsize=item.size, va="baseline", **style)
                elif isinstance(item, BoxItem):
                    self._draw_box(figure, item, height)
                else:
                    self._draw_image(figure, item, height)
            return Drawing(figure, alt)

    def _draw_box(self, figure: "Figure", item: BoxItem, height: float) -> None:
        from matplotlib.patches import FancyBboxPatch, Patch, Rectangle
        from matplotlib.transforms import Affine2D

        corner = (item.x, height - item.y - item.height)
        shape: Patch = Rectangle(corner, item.width, item.height)
        if item.radius:
            style = f"round,pad=0,rounding_size={item.radius}"
            shape = FancyBboxPatch(corner, item.width, item.height, boxstyle=style)
        in_points = Affine2D().scale(1 / self.width, 1 / height) + figure.transFigure
        shape.set(facecolor=item.colour, linewidth=0, transform=in_points, zorder=-1)
        figure.add_artist(shape)

    def _draw_image(self, figure: "Figure", item: ImageItem, height: float) -> None:
        left, bottom = item.x / self.width, 1 - (item.y + item.height) / height
        axes = figure.add_axes((left, bottom, item.width / self.width, item.height / height))
        axes.imshow(np.asarray(item.image), aspect="auto", interpolation="nearest" if item.crisp else "none")
        axes.set_axis_off()
