"""Drawing: a static figure that saves as SVG, PDF or PNG, or goes into a page. Text stays text.

Figures are made by matplotlib without pyplot: no window, no global list of figures. matplotlib's process-wide settings
are changed under a lock and restored. Untrusted text is drawn literally: `$` starts no formula.
"""

import os
import re
import threading
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from whyformer._plain import archive
from whyformer.errors import InputError
from whyformer.show.html import escape_html
from whyformer.show.visible import make_visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1b1b1f"
DIM_INK = "#60606a"
LINE_COLOUR = "#d9d9e0"
# The palette of Okabe and Ito without yellow, which is hard to see on white, and two more colours.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C4A2F", "#5B3A8C")
SMALLEST = 0.6  # of its size, to which a drawing on a page shrinks in a narrow window; below it, it scrolls
GREYS = ("#8f8f99", "#3c3c44")  # for controls, besides the grey of chance, which is DIM_INK
FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans Devanagari", "Noto Sans Arabic", "Noto Emoji")
TICKS = {"color": DIM_INK, "labelcolor": INK, "major.width": 0.6, "labelsize": 8}
RC_PARAMS = {
    "text.parse_math": False,
    "axes.unicode_minus": True,
    "svg.fonttype": "none",  # text, not outlines
    "pdf.fonttype": 42,
    "pdf.use14corefonts": False,
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": DIM_INK,
    "axes.linewidth": 0.6,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    **{f"{axis}tick.{name}": value for axis in "xy" for name, value in TICKS.items()},
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "white",
    "axes.facecolor": "none",
    "savefig.facecolor": "white",
    "image.composite_image": False,
}
MATPLOTLIB_LOCK = threading.RLock()  # matplotlib's settings and the warning filters are process-wide


@contextmanager
def apply_style(**more: str) -> Iterator[None]:
    """Our style for every figure that is made or saved inside the block."""
    import matplotlib

    rc: dict[Any, Any] = {**RC_PARAMS, **more}
    with MATPLOTLIB_LOCK, warnings.catch_warnings(), matplotlib.rc_context(rc):
        warnings.filterwarnings("ignore", message=r".*[Gg]lyph .* missing")  # matplotlib draws a box instead
        matplotlib.rcParams["font.sans-serif"] = list(find_fonts())
        matplotlib.rcParams["font.family"] = ["sans-serif"]
        yield


def find_fonts() -> tuple[str, ...]:
    """The installed fonts of FONTS: later ones fill in scripts that the first one lacks."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return tuple(name for name in FONTS if name in installed) or FONTS[:1]


class Drawing:
    """A figure, and a description of it in words."""

    def __init__(self, figure: "Figure", alt: str) -> None:
        self.figure = figure
        self.alt = make_visible(alt)

    def svg(self) -> str:
        """A complete SVG file; its text can be selected and searched."""
        return self._svg()

    def html(self) -> str:
        """SVG to embed in a page: transparent, dark ink follows the text colour of the page."""
        body = self._svg(transparent=True)
        body = body[body.index("<svg") :].replace(INK, "currentColor")
        size = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', body)
        width = f"{float(size[1]) / 72 * 96:.0f}" if size else "640"
        least = f'style="min-width:{SMALLEST * float(width):.0f}px"'
        opening = f'<svg class="drawing" role="img" aria-label="{escape_html(self.alt)}"'
        own = r'^<svg[^>]*?(viewBox="[^"]*")[^>]*>'
        # replaced by a function, as the text may contain backslashes
        body = re.sub(own, lambda match: f'{opening} {match[1]} width="{width}" {least}>', body, count=1)
        return re.sub(r"<metadata>.*?</metadata>\s*", "", body, count=1, flags=re.DOTALL)

    def png(self, dpi: int = 200) -> bytes:
        return self._save_to_bytes("png", dpi=dpi, metadata={"Software": None})

    def pdf(self) -> bytes:
        return self._save_to_bytes("pdf", metadata={"Creator": None, "Producer": None, "CreationDate": None})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .svg, .pdf or .png file."""
        archive.write_file(path, WRITERS[archive.suffix_of(path, WRITERS)](self))

    def _svg(self, *, transparent: bool = False) -> str:
        no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        text = self._save_to_bytes("svg", metadata=no_metadata, transparent=transparent).decode("utf-8")
        return re.sub(r"<!DOCTYPE.*?>\s*", "", text, count=1, flags=re.DOTALL)

    def _save_to_bytes(self, kind: str, **options: Any) -> bytes:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        file = BytesIO()
        with apply_style(**{"svg.hashsalt": self.alt}), warnings.catch_warnings():
            # Labels too tall for the layout are drawn beyond it, and bbox_inches="tight" makes room for them.
            warnings.filterwarnings("ignore", message="constrained_layout not applied")
            if self.figure.canvas is None or not hasattr(self.figure.canvas, "print_png"):
                FigureCanvasAgg(self.figure)
            self.figure.savefig(file, format=kind, bbox_inches="tight", pad_inches=0.08, **options)
        return file.getvalue()

    def _repr_mimebundle_(self, **asked: Collection[str] | None) -> dict[str, str]:
        return {"image/svg+xml": self.svg(), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"<Drawing: {self.alt}>"


WRITERS = {".svg": lambda d: d.svg().encode("utf-8"), ".pdf": Drawing.pdf, ".png": Drawing.png}


def make_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches."""
    from matplotlib.figure import Figure

    if not (0 < width < 200 and 0 < height < 200):
        raise InputError(f"A figure of {width:.0f} x {height:.0f} inches cannot be drawn. Show fewer items at once.")
    return Figure(figsize=(width, height), layout="constrained")


# --- into axes of matplotlib ------------------------------------------------------------------------------------------


FOR, AGAINST = PALETTE[1], PALETTE[0]
MAX_BARS = 24


def find_axes(ax: "Axes | None") -> "Axes":
    """These axes, or the current ones of pyplot."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.gca()


def show_image(axes: "Axes", image: Image.Image) -> None:
    """An image without ticks."""
    with apply_style():
        axes.imshow(np.asarray(image.convert("RGB")))
        axes.set_axis_off()


def show_bars(axes: "Axes", pairs: Sequence[tuple[str, float]]) -> None:
    """Names with a score each, from top to bottom, orange above zero and blue below; the first ones of many."""
    names, values = [name for name, _ in pairs[:MAX_BARS]], [score for _, score in pairs[:MAX_BARS]]
    with apply_style():
        places = list(range(len(values)))
        axes.barh(places, values, color=[FOR if value >= 0 else AGAINST for value in values])
        name_rows(axes, names)
        axes.axvline(0, color="#8f8f99", linewidth=0.6)
        axes.set_xlabel("score")


def show_means(axes: "Axes", lines: Sequence[tuple[str, float, float, float]]) -> None:
    """Names with a mean and the ends of its interval, from top to bottom; those without a mean are left out."""
    known = [line for line in lines if line[1] == line[1]]
    means = [mean for _, mean, _, _ in known]
    ends = [[mean - low for _, mean, low, _ in known], [high - mean for _, mean, _, high in known]]
    with apply_style():
        places = list(range(len(known)))
        axes.errorbar(means, places, xerr=np.nan_to_num(np.clip(ends, 0, None)), fmt="o", color=FOR, capsize=3)
        name_rows(axes, [name for name, *_ in known])
        axes.set_xlabel("mean, 95 % interval")


def name_rows(axes: "Axes", names: Sequence[str]) -> None:
    """Names beside rows at 0, 1, ..., the first one on top."""
    axes.set_yticks(list(range(len(names))), labels=list(names))
    axes.invert_yaxis()
