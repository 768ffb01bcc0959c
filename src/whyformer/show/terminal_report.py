"""Blocks in a terminal: words and maps are in colour; charts, images and folds are left out.

A prompt is shown by its regions with bars, and the strongest words in context. Tokens and names are untrusted: all go
through `make_visible` before they are printed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from rich.cells import cell_len, set_cell_size
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table as Lines
from rich.text import Text

from whyformer.show import blocks as b
from whyformer.show import terminal
from whyformer.show.colours import paint_scores
from whyformer.show.footnotes import write_marked_text
from whyformer.show.page_tables import classify_column, format_cell
from whyformer.show.panel import Panel
from whyformer.show.prompt_view import PromptView, TopSpan, find_top_spans, view_panel
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible
from whyformer.show.wording import describe_considered, describe_sum, describe_sums, format_score, shorten_text

STYLES = {"": "", "strong": "bold", "dim": "dim"}
APART = (
    b.Fold,
    b.Facts,
    b.DataTable,
    b.ExampleView,
    b.Methods,
    b.MapGrid,
    b.Tabs,
    b.PageSection,
)  # empty lines around them
GAP = 2  # cells between columns
MAP_SIZE = 16  # of one of several maps


def render_report(made: b.Report, screen: Screen) -> str:
    """The report as text for that screen."""
    by = f" (by {made.facts['method']})" if "method" in made.facts else ""
    head: list[b.Block] = [b.Paragraph(made.title + by, "strong")] if made.is_titled else []
    blocks = made.blocks if made.brief is None else made.brief
    return terminal.render_parts(TerminalWriter(screen).write_all([*head, *blocks]), screen)


def write_plain(spans: b.Spans) -> str:
    """A line or a cell without looks."""
    if isinstance(spans, list):
        return "".join(map(write_plain, spans))
    return make_visible(str(spans[0] if isinstance(spans, b.Badge | b.Series) else format_cell(spans)))


class TerminalWriter(b.Writer):
    """What rich prints for each block, from top to bottom."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen

    def write_all(self, blocks: Iterable[b.Block]) -> Iterator[RenderableType]:
        above = None
        for block in blocks:
            if parts := list(self.write(block)):
                if above is not None and isinstance(block, APART) | isinstance(above, APART):
                    yield ""
                yield from parts
                above = block

    def text(self, block: str) -> Iterator[RenderableType]:
        yield Text(make_visible(block))

    def paragraph(self, block: b.Paragraph) -> Iterator[RenderableType]:
        yield Text(write_plain(block.spans), STYLES[block.style])

    def bullets(self, block: b.Bullets) -> Iterator[RenderableType]:
        for text, evidence in block.lines:
            lines = Lines.grid(padding=(0, 1))
            lines.add_row("  -", Text(f"{make_visible(text)} ({make_visible(evidence)})"))
            yield lines

    def notes(self, block: b.Notes) -> list[Text]:
        return terminal.render_notes(block.lines)

    def facts(self, block: b.Facts) -> Iterator[RenderableType]:
        lines = Lines.grid(padding=(0, GAP))
        for name, value in block.pairs.items():
            lines.add_row(Text(make_visible(name), "dim", no_wrap=True), Text(write_plain(value)))
        yield lines

    def datatable(self, block: b.DataTable) -> Iterator[RenderableType]:
        columns = [[write_plain(row[i]) for row in (block.head, *block.rows)] for i in range(len(block.head))]
        kinds = [classify_column([row[i] for row in block.rows]) for i in range(len(columns))]
        kept = choose_fitting(columns, block.droppable, self.screen.width)
        lines = Lines(box=None, pad_edge=False, header_style="dim", padding=(0, GAP, 0, 0))
        is_roomy = sum(max(map(cell_len, columns[i])) + GAP for i in kept) - GAP <= self.screen.width
        for i in kept:
            width = None if is_roomy or kinds[i] == "long" else measure_column(columns[i])
            lines.add_column(Text(columns[i][0]), justify="right" if kinds[i] == "number" else "left", width=width)
        for cells in zip(*(columns[i][1:] for i in kept), strict=True):
            lines.add_row(*map(Text, cells))
        yield from ([Text(make_visible(block.caption), "dim")] if block.caption else [])
        yield lines
        if dropped := [column[0] for i, column in enumerate(columns) if i not in kept]:
            yield Text(f"Left out to fit {self.screen.width} columns: {', '.join(dropped)}.", "dim")

    def fold(self, block: b.Fold) -> Iterator[RenderableType]:
        if block.is_printed:
            yield from (Text(make_visible(block.summary), "bold"), *self.write_all(block.blocks))

    def tabs(self, block: b.Tabs) -> Iterator[RenderableType]:
        yield from self.write_all(inside for _, blocks in block.options for inside in blocks)

    def pagesection(self, block: b.PageSection) -> Iterator[RenderableType]:
        inside = list(self.write_all(block.blocks))
        yield from [Text(make_visible(block.title), "bold")] if inside and not block.is_example else []
        yield from [Text(make_visible(block.remark), "dim")] if inside and block.remark else []
        yield from inside

    def markedanswer(self, block: b.MarkedAnswer) -> Iterator[RenderableType]:
        yield Text(make_visible(write_marked_text(block.sentences)))

    def promptregions(self, block: b.PromptRegions) -> Iterator[RenderableType]:
        yield from list_prompt_parts(block.view, self.screen)

    # --- examples ---

    def exampleview(self, block: b.ExampleView) -> Iterator[RenderableType]:
        panel = block.panel
        yield from [title_panel(panel, panel.label)] if block.is_titled else []
        yield from draw_small_print(describe_considered(panel.target))
        for part in panel.drawn:
            yield from [Text(part.label, "bold")] if panel.streams else []
            yield from self.draw_scores(part)
        yield from terminal.render_check(panel.check)
        yield from draw_small_print(describe_sum(panel))

    def draw_scores(self, panel: Panel) -> list[Text]:
        """The map or the words; of a prompt with regions their shares too."""
        if panel.is_image:
            return terminal.render_map(panel.grid, signed=panel.signed, screen=self.screen)
        if (view := view_panel(panel)) is not None:
            return render_scores(view, self.screen)
        return terminal.render_text(panel.pieces, panel.scores, signed=panel.signed, screen=self.screen)

    def methods(self, block: b.Methods) -> Iterator[RenderableType]:
        first = next(iter(block.panels.values()))
        yield from (title_panel(first, None), *draw_small_print(describe_considered(first.target)))
        yield from self.draw_side_by_side(block.panels)

    def mapgrid(self, block: b.MapGrid) -> Iterator[RenderableType]:
        for name, panels in block.rows:
            yield Text(make_visible(name), "bold")
            yield from self.draw_side_by_side(dict(zip(block.columns, panels, strict=True)))

    def draw_side_by_side(self, panels: Mapping[str, Panel]) -> Iterator[RenderableType]:
        """Small maps beside each other, or the words once for each method; without colour, only the sums."""
        if self.screen.colours is not None:
            named = [(Text(make_visible(label)), self.draw_small(panel)) for label, panel in panels.items()]
            lines = Lines.grid(padding=(0, GAP))
            for pair in named:
                lines.add_row(*pair)
            is_image = next(iter(panels.values())).is_image
            yield Columns((Group(*pair) for pair in named), padding=(1, 2)) if is_image else lines
        yield from draw_small_print(describe_sums(panels))

    def draw_small(self, panel: Panel) -> Text:
        if panel.is_image:
            return terminal.render_heat_map(panel.grid, signed=panel.signed, width=self.screen.width, size=MAP_SIZE)
        return terminal.render_words(panel.pieces, panel.scores, signed=panel.signed)


def title_panel(panel: Panel, method: str | None) -> Text:
    name = None if not panel.is_image and panel.pieces.text is not None else panel.name
    is_specific = method is None or panel.class_specific
    return terminal.render_title(panel.target, method, name=name, class_specific=is_specific)


def draw_small_print(line: str) -> list[Text]:
    return [Text(line, "dim")] if line else []


def choose_fitting(columns: Sequence[Sequence[str]], droppable: Sequence[str], width: int) -> list[int]:
    """The columns that fit side by side."""
    kept = list(range(len(columns)))
    for name in droppable:
        if sum(measure_column(columns[i]) + GAP for i in kept) - GAP > width:
            kept = [i for i in kept if columns[i][0] != name]
    return kept


def measure_column(column: Sequence[str]) -> int:
    """The cells of the terminal that it needs; a heading may be wrapped, a cell not."""
    head, *cells = column
    return max(map(cell_len, [*cells, *head.split()]), default=0)


# --- prompts ----------------------------------------------------------------------------------------------------------


MOST_REGIONS = 12  # named one by one; the others are summed
MOST_SPANS = 5
CONTEXT_CHIPS = 5  # on each side of a span
LONGEST_NAME = 28  # cells of the terminal


def list_prompt_parts(view: PromptView, screen: Screen) -> Iterator[Text]:
    """The view as text for that screen, from top to bottom."""
    yield Text(f"{make_visible(view.headline)} by {make_visible(view.method)}", style="bold")
    yield from render_regions(view, screen)
    yield from render_spans(view, screen)
    yield from terminal.render_notes(view.notes)


def render_scores(view: PromptView, screen: Screen) -> list[Text]:
    """A short prompt in full, of a long one the strongest words; before it the shares of its regions, if several."""
    if not view.is_short:
        return [*render_regions(view, screen), *render_spans(view, screen)]
    words = terminal.render_text(view.pieces, view.scores, signed=view.signed, screen=screen)
    return [*render_regions(view, screen), Text(), *words] if len(view.regions) > 1 else words


def render_regions(view: PromptView, screen: Screen) -> Iterator[Text]:
    """The cells with the largest shares, in the order of the prompt, and the sum of the others: name, share and bar."""
    shares, ranked = view.cell_shares, view.ranked_cells
    rows = [(view.name_cell(i), shares[i]) for i in sorted(ranked[:MOST_REGIONS])]
    if rest := ranked[MOST_REGIONS:]:
        rows.append((f"{len(rest)} other regions", sum(shares[i] for i in rest)))
    yield Text()
    largest = max((abs(share) for _, share in rows), default=0.0)
    width = min(LONGEST_NAME, max((cell_len(make_visible(name)) for name, _ in rows), default=0))
    for name, share in rows:
        length = round(terminal.BAR_LENGTH * abs(share) / largest) if largest else 0
        line = Text(f"{pad_name(name, width)} {share:{'+' if view.signed else ''}7.1%} ")
        if screen.colours is None:
            yield line.append(("-" if share < 0 else "+" if view.signed else "#") * length)
            continue
        sign = torch.tensor(share).sign() * 0.8
        yield line.append(" " * length, style_score(sign.item(), (-1.0 if view.signed else 0.0, 1.0), view.signed))


def pad_name(name: str, width: int) -> str:
    return set_cell_size(shorten_text(make_visible(name), width), width)


def style_score(score: float, between: tuple[float, float], signed: bool) -> Style:
    red, green, blue = paint_scores(torch.tensor(score, dtype=torch.double), between, signed=signed).tolist()
    return terminal.choose_text_style((red, green, blue))


# --- words in context -------------------------------------------------------------------------------------------------


def render_spans(view: PromptView, screen: Screen) -> Iterator[Text]:
    """The strongest words of the prompt, each with a few words before and after it; in brackets without colour."""
    cells = [cell for cell in view.cells if cell.start < view.prompt_length]
    found = [(cell.name, span) for cell in cells for span in find_top_spans(view, cell)]
    spans = sorted(found, key=lambda pair: -abs(pair[1].score))[:MOST_SPANS]
    yield Text("\nStrongest words:" if spans else "")
    width = min(LONGEST_NAME, max((cell_len(make_visible(name)) for name, _ in spans), default=0))
    for name, span in spans:
        score = format_score(span.score, signed=view.signed)
        line = Text(f"{score:>9} ", no_wrap=True, overflow="ellipsis")
        line.append(f"{pad_name(name, width)} ", terminal.DIM_STYLE)
        yield line.append_text(render_span(view, span, screen))


def render_span(view: PromptView, span: TopSpan, screen: Screen) -> Text:
    """A span between its neighbours, on one line."""
    plain = screen.colours is None
    line = Text()
    first, last = max(span.first - CONTEXT_CHIPS, 0), min(span.last + CONTEXT_CHIPS, len(view.chips) - 1)
    for i in range(first, last + 1):
        chip, inside = view.chips[i], span.first <= i <= span.last
        line.append(" " if chip.before and i > first else "")
        line.append("[" if plain and i == span.first else "")
        style = style_score(chip.score, view.between, view.signed) if inside and not plain else terminal.DIM_STYLE
        line.append(chip.text, style)
        line.append("]" if plain and i == span.last else "")
    return line
