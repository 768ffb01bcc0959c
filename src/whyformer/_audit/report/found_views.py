"""Observed and other attention side by side on the text, with both answers: for the report, a terminal, and a figure.

Both are drawn on one colour scale: the same colour is the same weight. An image is shown as its grid of patches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from rich.console import RenderableType
from rich.text import Text
from torch import Tensor

from whyformer._audit.checks import FoundAttention, read_found
from whyformer._audit.report.findings import AuditFindings
from whyformer._plain.tokens import Grid, Pieces
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
OBSERVED, OTHER = "observed attention", "other attention"


@dataclass(frozen=True)
class FoundPair:
    """One example, ready to show."""

    title: str
    answer: str
    found: FoundAttention

    @property
    def texts(self) -> tuple[ScoredText, ScoredText]:
        """The text with the observed and the other weights, on one colour scale."""
        assert isinstance(self.found.tokens, Pieces)
        made = [make_scored_text(self.found.tokens, w, signed=False) for w in (self.found.observed, self.found.other)]
        between = find_chip_limits([chip for text in made for chip in text.chips], signed=False)
        return replace(made[0], between=between), replace(made[1], between=between)

    @property
    def grids(self) -> tuple[Tensor, Tensor]:
        """The weights of the patches [rows columns]."""
        tokens = self.found.tokens
        assert isinstance(tokens, Grid)
        return tuple(w.reshape(tokens.rows, tokens.columns) for w in (self.found.observed, self.found.other))  # type: ignore[return-value]


def list_found(audit: AuditFindings, name: str) -> list[FoundPair]:
    """The examples for which other attention was kept, the farthest first."""
    pairs = []
    for row in audit.of("adversarial", name):
        found = read_found(row)
        if found is not None:
            answer = describe_answers(found, audit.labels)
            pairs.append(FoundPair(f"Example {row['example']}", answer, found))
    return sorted(pairs, key=lambda pair: -pair.found.jsd)


def describe_answers(found: FoundAttention, labels: Sequence[str] | None) -> str:
    """Both predictions and how far the two attentions are apart."""
    index = found.classes[0]
    name = labels[index] if labels is not None and index < len(labels) else f"class {index}"
    return (
        f"{name} {found.before[0]:.3f} with the observed, {found.after[0]:.3f} with the other attention; "
        f"JSD {found.jsd:.3f}, TVD of the answers {found.tvd:.4f}"
    )


# --- report -----------------------------------------------------------------------------------------------------------


def make_found_blocks(audit: AuditFindings, name: str) -> Iterator[Html]:
    """Every example below the other, those beyond the first few folded."""
    pairs = list_found(audit, name)
    if not pairs:
        return
    yield html.make_element("h4", "Side by side on the input")
    for pair in pairs[:OPEN_EXAMPLES]:
        yield make_pair_block(pair)
    more = pairs[OPEN_EXAMPLES:SHOWN_EXAMPLES]
    if more:
        yield html.fold_content(f"{len(more)} more", *(make_pair_block(pair) for pair in more))
    if len(pairs) > SHOWN_EXAMPLES:
        yield html.make_notes([f"{len(pairs) - SHOWN_EXAMPLES} more are in the saved audit (.json)."])


def make_pair_block(pair: FoundPair) -> Html:
    heading = html.make_element("p", html.make_element("strong", pair.title), ": ", pair.answer, class_="dim")
    if isinstance(pair.found.tokens, Grid):
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
    for pair in list_found(audit, name)[:PRINTED_EXAMPLES]:
        parts.append(Text(f"{pair.title}: {pair.answer}"))
        for what, line in zip((OBSERVED, OTHER), render_pair(pair, screen), strict=True):
            parts += [Text(f"  {what}: ", style=DIM_STYLE) + line if line.plain.count("\n") == 0 else line]
    return parts


def render_pair(pair: FoundPair, screen: Screen) -> Iterator[Text]:
    if isinstance(pair.found.tokens, Grid):
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
        pairs = list_found(audit, name)[:DRAWN_EXAMPLES]
        if pairs:
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
        if isinstance(pair.found.tokens, Grid):
            for place, (what, grid) in enumerate(zip((OBSERVED, OTHER), pair.grids, strict=True)):
                height = canvas.add_image(place * 130.0, y, 112.0, paint_tile(grid, signed=False), crisp=True)
                canvas.add_text(place * 130.0, y + height + 10, what, 8)
            y += height + 30
            continue
        for what, text in zip((OBSERVED, OTHER), pair.texts, strict=True):
            canvas.add_text(0, y + 2, what, 8)
            y = draw_chips(canvas, indent, y + 2, text, canvas.width - indent) + 19
        canvas.add_colour_bar(indent, y - 4, pair.texts[0].between, signed=False, width=60)
        y += 20
    return canvas.to_drawing("; ".join(f"{pair.title}: {pair.answer}" for pair in pairs))
