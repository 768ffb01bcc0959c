"""Drawing: a static figure that can be written as SVG, PDF or PNG, or put into a page. Text stays text.

Figures are made by matplotlib without pyplot: no window, no global list of figures. What it keeps for the whole process
(its settings) is changed under a lock and put back. Text from anybody is drawn as it is: `$` is no formula here.
"""

import os
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any

from whyformer.errors import InputError
from whyformer.show.visible import make_visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#1b1b1f"
DIM_INK = "#60606a"
LINE_COLOUR = "#d9d9e0"
# Okabe and Ito's colours without yellow, which is lost on white, and two more.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C4A2F", "#5B3A8C")
FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans Devanagari", "Noto Sans Arabic", "Noto Emoji")
RC_PARAMS = {
    "text.parse_math": False,
    "axes.unicode_minus": True,
    "svg.fonttype": "none",  # words, not outlines
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
    "xtick.color": DIM_INK,
    "ytick.color": DIM_INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": "white",
    "axes.facecolor": "none",
    "savefig.facecolor": "white",
    "image.composite_image": False,
}
MATPLOTLIB_LOCK = threading.RLock()  # matplotlib's settings and the filters of warnings belong to the whole process


@contextmanager
def apply_style(**more: Any) -> Iterator[None]:
    """Our look, for what is made and drawn inside."""
    import matplotlib

    rc: dict[Any, Any] = {**RC_PARAMS, **more}
    with MATPLOTLIB_LOCK, warnings.catch_warnings(), matplotlib.rc_context(rc):
        warnings.filterwarnings("ignore", message=r".*[Gg]lyph .* missing")  # a box is drawn instead
        matplotlib.rcParams["font.sans-serif"] = list(find_fonts())
        matplotlib.rcParams["font.family"] = ["sans-serif"]
        yield


def find_fonts() -> tuple[str, ...]:
    """The fonts that are installed, for the scripts that the first one has no letters of."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return tuple(name for name in FONTS if name in installed) or FONTS[:1]


class Drawing:
    """A figure and what to say to those who cannot see it."""

    def __init__(self, figure: "Figure", alt: str, *, salt: str = "") -> None:
        self.figure = figure
        self.alt = make_visible(alt)
        self.salt = salt or self.alt

    def svg(self) -> str:
        """A whole SVG file; its text can be selected and searched."""
        return self._svg()

    def html(self) -> str:
        """The same for the middle of a page: dark ink follows the page's own, the ground is the page's."""
        body = self._svg(transparent=True)
        body = body[body.index("<svg") :].replace(INK, "currentColor")
        size = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', body)
        width = f"{float(size[1]) / 72 * 96:.0f}" if size else "640"
        opening = f'<svg class="drawing" role="img" aria-label="{escape(self.alt, quote=True)}"'
        body = re.sub(r'^<svg[^>]*?(viewBox="[^"]*")[^>]*>', rf'{opening} \1 width="{width}">', body, count=1)
        return re.sub(r"<metadata>.*?</metadata>\s*", "", body, count=1, flags=re.DOTALL)

    def png(self, dpi: int = 200) -> bytes:
        return self._save_to_bytes("png", dpi=dpi, metadata={"Software": None})

    def pdf(self) -> bytes:
        return self._save_to_bytes("pdf", metadata={"Creator": None, "Producer": None, "CreationDate": None})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file: .svg, .pdf or .png."""
        from whyformer._plain import archive

        archive.write_file(path, WRITERS[archive.suffix_of(path, WRITERS)](self))

    def _svg(self, **how: Any) -> str:
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        text = self._save_to_bytes("svg", metadata=nothing, **how).decode("utf-8")
        return re.sub(r"<!DOCTYPE.*?>\s*", "", text, count=1, flags=re.DOTALL)

    def _save_to_bytes(self, kind: str, **how: Any) -> bytes:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        file = BytesIO()
        with apply_style(**{"svg.hashsalt": self.salt}):
            if self.figure.canvas is None or not hasattr(self.figure.canvas, "print_png"):
                FigureCanvasAgg(self.figure)
            self.figure.savefig(file, format=kind, bbox_inches="tight", pad_inches=0.08, **how)
        return file.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"image/svg+xml": self.svg(), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"<Drawing: {self.alt}>"


WRITERS = {".svg": lambda d: d.svg().encode("utf-8"), ".pdf": Drawing.pdf, ".png": Drawing.png}


def make_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches."""
    from matplotlib.figure import Figure

    if not (0 < width < 200 and 0 < height < 200):
        raise InputError(f"A figure of {width:.0f} x {height:.0f} inches cannot be drawn. Show fewer things at once.")
    return Figure(figsize=(width, height), layout="constrained")
