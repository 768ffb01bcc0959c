"""DocumentFigure: a figure of the kind that a document has, drawn from what was measured here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text

from whyformer.results.result import DRAWING_FORMATS, Result, to_plain_text
from whyformer.show import report, terminal
from whyformer.show.drawing import Drawing
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible


@dataclass(frozen=True, eq=False)
class DocumentFigure(Result):
    """A figure and what it shows, as one sentence; without one, what the drawing says of itself."""

    drawing: Drawing | Callable[[], Drawing]
    caption: str = ""

    formats: ClassVar[Mapping[str, Callable[..., bytes]]] = {**DRAWING_FORMATS, ".txt": to_plain_text}

    def draw(self) -> Drawing:
        return self.drawing if isinstance(self.drawing, Drawing) else self.drawing()

    def render(self, screen: Screen | None = None) -> str:
        if not self.caption:
            return self.draw().alt
        return terminal.render_parts([Text(make_visible(f"Figure: {self.caption}"))], screen or Screen.from_stdout())

    def to_html(self) -> str:
        return report.make_fragment(report.embed_drawing(self.draw(), self.caption))
