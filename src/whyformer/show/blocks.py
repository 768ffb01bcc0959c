"""What a result says, as a list of blocks, which page.py, terminal_report.py and markdown_report.py draw.

    Report("Which method?", ["A paragraph.", PageSection("Methods", [DataTable(["method", "mean"], rows)])], lead="...")

A string is a paragraph. The text of blocks is untrusted, and the renderers alone escape it. What takes time to make,
such as a chart, is given as a function, so that it is made only where it is drawn.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from PIL import Image

from whyformer.show.chart_style import SeriesStyle
from whyformer.show.drawing import Drawing
from whyformer.show.footnotes import MarkedSentence
from whyformer.show.html import Html
from whyformer.show.panel import Panel
from whyformer.show.prompt_view import CitationRow, PromptView


class Badge(NamedTuple):
    """In a line or a cell: a word in a rounded frame."""

    text: str
    kind: Literal["good", "bad", ""] = ""


class Series(NamedTuple):
    """In a line or a cell: a name after the marker that it has in charts."""

    name: str
    style: SeriesStyle


Span: TypeAlias = str | int | float | Badge | Series | None
Spans: TypeAlias = Span | list[Span]  # in a line


class Paragraph(NamedTuple):
    """A paragraph of spans."""

    spans: Spans
    style: Literal["", "strong", "dim"] = ""


class Bullets(NamedTuple):
    """Sentences, each with its evidence."""

    lines: Sequence[tuple[str, str]]


class Notes(NamedTuple):
    """What to know before trusting the rest."""

    lines: Sequence[str]


class Facts(NamedTuple):
    """Names and values, a pair in a line."""

    pairs: Mapping[str, Span]


class DataTable(NamedTuple):
    """Rows under headings, the first cell of a row as its name; numbers are aligned to the right, None is a dash."""

    head: Sequence[Span]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    droppable: Sequence[str] = ()  # headings that a terminal leaves out where they do not fit, the first one first


class Charts(NamedTuple):
    """Charts beside each other, as many as fit."""

    draw: Callable[[], Iterable[Drawing]]


class Picture(NamedTuple):
    """An image with a description and a caption; crisp: pixels stay sharp; is_map: it shows scores, not the input."""

    image: Image.Image
    alt: str
    caption: Spans = ""
    crisp: bool = False
    is_map: bool = False


class ImageRow(NamedTuple):
    """Images beside each other, as many as fit."""

    make: Callable[[], Iterable[Picture]]


class ExampleView(NamedTuple):
    """One example explained by one method: the answer, its map or words, the test of it, and what the scores are."""

    panel: Panel
    is_titled: bool = True  # with the question and the method


class Methods(NamedTuple):
    """One example by several methods: its maps side by side, or its words once for each."""

    panels: Mapping[str, Panel]


class MapGrid(NamedTuple):
    """Maps in rows and columns, such as classes by methods; texts below each other."""

    rows: Sequence[tuple[str, Sequence[Panel]]]
    columns: Sequence[str]


class PromptRegions(NamedTuple):
    """A prompt and its answer: regions that fold, answer tokens to click on."""

    view: PromptView


class MarkedAnswer(NamedTuple):
    """An answer with the numbers of the sources that its sentences rest on; in Markdown the sources are footnotes."""

    sentences: Sequence[MarkedSentence]
    sources: Sequence[CitationRow]


class Fold(NamedTuple):
    """What is read on demand; is_printed: in a terminal too, which has no folds."""

    summary: str
    blocks: "Iterable[Block]"
    is_open: bool = False
    is_printed: bool = False


class Tabs(NamedTuple):
    """One of several at a time, chosen by click or arrow keys; is_prose: the labels form a running text."""

    options: "Sequence[tuple[str, Iterable[Block]]]"
    legend: str
    is_prose: bool = False


class PageSection(NamedTuple):
    """Blocks under a heading; name: in the contents, if it is shorter. An example names itself in a terminal."""

    title: str
    blocks: "Iterable[Block]"
    remark: str = ""
    name: str = ""
    is_example: bool = False


Block: TypeAlias = (
    str | Html | Paragraph | Bullets | Notes | Facts | DataTable | Charts | ImageRow | ExampleView | Methods | MapGrid
    | PromptRegions | MarkedAnswer | Fold | Tabs | PageSection
)  # fmt: skip


class Report(NamedTuple):
    """A whole page, what a terminal prints, or a fragment of a notebook."""

    title: str
    blocks: Sequence[Block]
    lead: str = ""
    facts: Mapping[str, Span] = {}
    is_titled: bool = True  # in a terminal and a notebook; False: its examples have titles of their own
    brief: Sequence[Block] | None = None  # what a terminal and a notebook show; None: the same


class Writer:
    """Draws blocks, each with the method of its name: `datatable` ...; blocks without one are left out."""

    def write(self, block: Block) -> Iterable[Any]:
        """The parts of one block."""
        name = "text" if isinstance(block, str) else type(block).__name__.lower()
        return getattr(self, name, lambda _: ())(block)

    def write_all(self, blocks: Iterable[Block]) -> Iterable[Any]:
        for block in blocks:
            yield from self.write(block)
