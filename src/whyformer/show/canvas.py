"""Canvas: text, boxes and images placed by hand, in points from the upper left corner. Nothing moves anything else."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from whyformer.show.colours import paint_scores
from whyformer.show.drawing import DIM_INK, INK, LINE_COLOUR, Drawing, apply_style, make_figure
from whyformer.show.text_width import measure_text, shorten_to_width, wrap_text
from whyformer.show.visible import make_visible
from whyformer.show.wording import format_score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOTTOM_MARGIN = 4.0


class Canvas:
    """A figure under construction; y grows downwards, and the height grows with what is added."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.height = 0.0
        self.items: list[Callable[[Figure, float], None]] = []  # each draws itself on a figure of this height

    def add_text(self, x: float, y: float, text: str, size: float = 9, **style: Any) -> None:
        """A line of text with its baseline at y; style: keyword arguments of matplotlib's Text."""

        def draw(figure: "Figure", total: float) -> None:
            index = x / self.width, 1 - y / total
            figure.text(*index, make_visible(text), fontsize=size, va="baseline", **{"color": INK} | style)

        self._add(draw, bottom=y + 0.3 * size)

    def add_fitted_text(self, x: float, y: float, text: str, size: float, width: float, **style: Any) -> None:
        """A line of text, cut with an ellipsis where it is wider than `width`."""
        self.add_text(x, y, shorten_to_width(text, size, width), size, **style)

    def add_title(self, y: float, title: str, size: float) -> None:
        """A bold line across the canvas."""
        self.add_fitted_text(0, y, title, size, self.width, fontweight="bold")

    def add_small_print(self, y: float, text: str) -> None:
        """Dim lines across the canvas."""
        for i, line in enumerate(wrap_text(text, 7, self.width)):
            self.add_text(0, y + 9 * i, line, 7, color=DIM_INK)

    def add_box(self, x: float, y: float, width: float, height: float, colour: str, radius: float = 0.0) -> None:
        """A filled box; radius: of its corners."""

        def draw(figure: "Figure", total: float) -> None:
            from matplotlib.patches import FancyBboxPatch, Patch, Rectangle
            from matplotlib.transforms import Affine2D

            corner = (x, total - y - height)
            shape: Patch = Rectangle(corner, width, height)
            if radius:
                shape = FancyBboxPatch(corner, width, height, boxstyle=f"round,pad=0,rounding_size={radius}")
            in_points = Affine2D().scale(1 / self.width, 1 / total) + figure.transFigure
            shape.set(facecolor=colour, linewidth=0, transform=in_points, zorder=-1)
            figure.add_artist(shape)

        self._add(draw, bottom=y + height)

    def add_image(
        self, x: float, y: float, width: float, image: Image.Image, *, crisp: bool = False, height: float | None = None
    ) -> float:
        """An image scaled to the width, or to this height too; crisp: without smoothing. Returns its height."""
        tall = width * image.height / image.width if height is None else height

        def draw(figure: "Figure", total: float) -> None:
            axes = figure.add_axes((x / self.width, 1 - (y + tall) / total, width / self.width, tall / total))
            axes.imshow(np.asarray(image), aspect="auto", interpolation="nearest" if crisp else "none")
            axes.set_axis_off()

        self._add(draw, bottom=y + tall)
        return tall

    def add_colour_bar(
        self, x: float, y: float, between: tuple[float, float], *, signed: bool, width: float = 90.0
    ) -> float:
        """A colour bar with its two limits. Returns where it ends."""
        low, high = (format_score(limit, signed=signed, digits=2) for limit in between)
        low, high = (f"{low} against", f"{high} for") if signed else (low, high)
        start = x + measure_text(low, 7.5) + 4
        self.add_text(x, y, low, 7.5, color=DIM_INK)
        steps = torch.linspace(0, 1, 65, dtype=torch.double)
        colours = paint_scores(steps, (0.0, 1.0), signed=signed).numpy()[None]
        self.add_box(start - 0.4, y - 6.2, width + 0.8, 6.8, LINE_COLOUR)
        self.add_image(start, y - 5.8, width, Image.fromarray(colours), height=6.0)
        self.add_text(start + width + 4, y, high, 7.5, color=DIM_INK)
        return start + width + 4 + measure_text(high, 7.5)

    def _add(self, item: "Callable[[Figure, float], None]", bottom: float) -> None:
        self.items.append(item)
        self.height = max(self.height, bottom)

    def to_drawing(self, alt: str) -> Drawing:
        """Draw all items; `alt` describes the figure in words."""
        height = self.height + BOTTOM_MARGIN
        with apply_style():
            figure = make_figure(self.width / 72, height / 72)
            figure.set_layout_engine("none")
            for draw in self.items:
                draw(figure, height)
            return Drawing(figure, alt)
