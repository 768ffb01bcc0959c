"""Observed and other attention side by side on the text, with both answers: for the report, a terminal, and a figure.

Both are drawn on one colour scale: the same colour is the same weight. An image is shown as its grid of patches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from whyformer._audit.checks import AuditRow, rebuild_tokens, split_span
from whyformer._audit.report.findings import AuditFindings
from whyformer._audit.report.summary import label_class
from whyformer._plain.tokens import Grid, Pieces, ScoredTokens
from whyformer.errors import InputError
from whyformer.show import report as html
from whyformer.show.canvas import Canvas
from whyformer.show.chips import ScoredText, find_chip_limits, make_scored_text
from whyformer.show.colours import paint_scores
from whyformer.show.drawing import DIM_INK, Drawing
from whyformer.show.figures import PAGE_WIDTH, draw_chips
from whyformer.show.head_figures import paint_tile
from whyformer.show.marked_text import mark_words
from whyformer.show.report import Html
from whyformer.show.terminal import DIM_STYLE, Screen, choose_text_style, render_heat_map
from whyformer.show.wording import shorten_text

OPEN_EXAMPLES = 5  # in the report; the others are folded
SHOWN_EXAMPLES = 30
DRAWN_EXAMPLES = 6  # in a figure
PRINTED_EXAMPLES = 2  # in a terminal
TOP_WORDS = 5  # in plain text
MOST_ANSWER = 80  # characters of a span
OBSERVED, OTHER = "observed attention", "other attention"


@dataclass(frozen=True)
class FoundPair:
    """The observed attention of one example and the farthest other one with the same answer."""

    row: AuditRow
    labels: Sequence[str] | None
    marks_spans: bool = False

    @property
    def title(self) -> str:
        return f"Example {self.row['example']}"

    @property
    def tvd(self) -> float:
        """Of the answers."""
        best = next((i for i, distance in enumerate(self.row["apart"]) if distance == self.row["jsd"]), 0)
        return float(self.row["tvd"][best])

    @property
    def answer(self) -> str:
        """Both predictions and how far the two attentions are apart."""
        found = self.row["found"]
        name = self.name_answer(found["classes"][0])
        return (
            f"{name} {found['before'][0]:.3f} with the observed, {found['after'][0]:.3f} with the other attention; "
            f"JSD {self.row['jsd']:.3f}, TVD of the answers {self.tvd:.4f}"
        )

    def name_answer(self, index: int) -> str:
        """The label of a class, or the text of a span."""
        if not self.marks_spans:
            return label_class(index, self.labels, "class ")
        first, last = split_span(index)
        known = [span for span in self.row["found"]["spans"][first : last + 1] if span is not None]
        text = self.row["found"]["text"] or ""
        return repr(shorten_text(text[known[0][0] : known[-1][1]], MOST_ANSWER)) if known else f"span {index}"

    @cached_property
    def tokens(self) -> ScoredTokens:
        return rebuild_tokens(self.row["found"])

    @property
    def weights(self) -> list[Tensor]:
        """The observed and the other ones [token]."""
        return [torch.tensor(self.row["found"][which], dtype=torch.double) for which in ("observed", "other")]

    @property
    def texts(self) -> list[ScoredText]:
        """The text with the observed and the other weights, on one colour scale."""
        assert isinstance(self.tokens, Pieces)
        made = [make_scored_text(self.tokens, weights, signed=False) for weights in self.weights]
        between = find_chip_limits([chip for text in made for chip in text.chips], signed=False)
        return [replace(text, between=between) for text in made]

    @property
    def grids(self) -> list[Tensor]:
        """The weights of the patches [rows columns]."""
        assert isinstance(self.tokens, Grid)
        return [weights.reshape(self.tokens.rows, self.tokens.columns) for weights in self.weights]


def list_found_pairs(audit: AuditFindings, name: str) -> list[FoundPair]:
    """The examples for which other attention was kept, the farthest first."""
    rows = [row for row in audit.of("adversarial", name) if row.get("found")]
    return [FoundPair(row, audit.labels, audit.marks_spans) for row in sorted(rows, key=lambda row: -row["jsd"])]


# --- report -----------------------------------------------------------------------------------------------------------


def make_found_blocks(audit: AuditFindings, name: str) -> Iterator[Html]:
    """Every example below the other, those beyond the first few folded."""
    pairs = list_found_pairs(audit, name)
    if not pairs:
        return
    yield html.make_element("h4", "Side by side on the input")
    for pair in pairs[:OPEN_EXAMPLES]:
        yield make_pair_block(pair)
    if more := pairs[OPEN_EXAMPLES:SHOWN_EXAMPLES]:
        yield html.fold_content(f"{len(more)} more", *(make_pair_block(pair) for pair in more))
    if len(pairs) > SHOWN_EXAMPLES:
        yield html.make_notes([f"{len(pairs) - SHOWN_EXAMPLES} more are in the saved audit (.json)."])


def make_pair_block(pair: FoundPair) -> Html:
    heading = html.make_element("p", html.make_element("strong", pair.title), ": ", pair.answer, class_="dim")
    if isinstance(pair.tokens, Grid):
        alt = f"{pair.title}, {{}}: weights of the patches"
        figures = [
            html.embed_image(paint_tile(grid, signed=False), alt.format(what), what, crisp=True, is_map=True)
            for what, grid in zip((OBSERVED, OTHER), pair.grids, strict=True)
        ]
        return html.make_element("div", heading, html.arrange_figures(figures, small=True))
    cells: list[Html] = []
    for what, text in zip((OBSERVED, OTHER), pair.texts, strict=True):
        cells.append(html.make_element("span", what, class_="dim"))
        cells.append(html.make_element("div", mark_words(text), class_="text"))
    legend = html.make_legend(pair.texts[0].between, signed=False, note="attention weight")
    return html.make_element("div", heading, html.make_element("div", *cells, legend, class_="rows"))


# --- terminal ---------------------------------------------------------------------------------------------------------


def render_found(audit: AuditFindings, name: str, screen: Screen) -> list[RenderableType]:
    """The farthest examples: words on their colours, or the words with the largest weights without colour."""
    parts: list[RenderableType] = []
    for pair in list_found_pairs(audit, name)[:PRINTED_EXAMPLES]:
        parts.append(Text(f"{pair.title}: {pair.answer}"))
        for what, line in zip((OBSERVED, OTHER), render_pair(pair, screen), strict=True):
            parts += [Text(f"  {what}: ", style=DIM_STYLE) + line if line.plain.count("\n") == 0 else line]
    return parts


def render_pair(pair: FoundPair, screen: Screen) -> Iterator[Text]:
    if isinstance(pair.tokens, Grid):
        for grid in pair.grids:
            rows, columns = divmod(int(grid.argmax()), grid.size(1))
            plain = Text(f"largest {float(grid.max()):.2f} at row {rows}, column {columns}")
            yield plain if screen.colours is None else render_heat_map(grid, signed=False, width=screen.width)
        return
    for text in pair.texts:
        if screen.colours is None:
            largest = sorted(text.chips, key=lambda chip: -chip.score)[:TOP_WORDS]
            yield Text(", ".join(f"{shorten_text(chip.text, 20)} {chip.score:.2f}" for chip in largest))
            continue
        line = Text()
        for chip in text.chips:
            colour = tuple(paint_scores(torch.tensor(chip.score), text.between, signed=False).tolist())
            line.append(chip.before).append(chip.text, choose_text_style(colour))
        yield line


# --- figure -----------------------------------------------------------------------------------------------------------


def draw_found(audit: AuditFindings) -> Drawing:
    """The farthest examples of the first audited attention that has any."""
    for name in audit.attention:
        if pairs := list_found_pairs(audit, name)[:DRAWN_EXAMPLES]:
            return draw_pairs(pairs, f"{audit.model}, {name}: attention with the same answer")
    raise InputError(
        "There is no other attention to draw: the audit has no search, or it found none. Run the test "
        '"adversarial", or save as .html, .json or .txt.'
    )


def draw_pairs(pairs: Sequence[FoundPair], title: str) -> Drawing:
    canvas = Canvas(PAGE_WIDTH + 60)
    canvas.add_title(12, title, 11)
    y, indent = 32.0, 90.0
    for pair in pairs:
        canvas.add_fitted_text(0, y, f"{pair.title}: {pair.answer}", 8, canvas.width, color=DIM_INK)
        y += 16
        if isinstance(pair.tokens, Grid):
            for i, (what, grid) in enumerate(zip((OBSERVED, OTHER), pair.grids, strict=True)):
                height = canvas.add_image(i * 130.0, y, 112.0, paint_tile(grid, signed=False), crisp=True)
                canvas.add_text(i * 130.0, y + height + 10, what, 8)
            y += height + 30
            continue
        for what, text in zip((OBSERVED, OTHER), pair.texts, strict=True):
            canvas.add_text(0, y + 2, what, 8)
            y = draw_chips(canvas, indent, y + 2, text, canvas.width - indent) + 19
        canvas.add_colour_bar(indent, y - 4, pair.texts[0].between, signed=False, width=60)
        y += 20
    return canvas.to_drawing("; ".join(f"{pair.title}: {pair.answer}" for pair in pairs))
