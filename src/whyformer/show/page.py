"""Blocks as HTML: a whole page, or a fragment of a notebook. Elements, style and escaping come from `report`.

Words are tinted and carry their score as a tooltip; a map is drawn over its image, with its colour limits below; tables
of the numbers are folded away. In a fragment images are smaller, and there are no tables of numbers.
"""

from collections.abc import Iterator, Mapping

from whyformer._plain.words import join_words
from whyformer.show import blocks as b
from whyformer.show import overlay, panel_images, prompt_page, report
from whyformer.show.chips import Chip, ScoredText, join_spans, make_scored_text
from whyformer.show.footnotes import write_marked_text
from whyformer.show.html import Content, Html, join_html, make_element
from whyformer.show.marked_text import mark_words, mark_words_inline
from whyformer.show.page_facts import add_page_date
from whyformer.show.page_tables import choose_fold
from whyformer.show.panel import Panel
from whyformer.show.prompt_view import view_panel
from whyformer.show.wording import (
    describe_considered,
    describe_limits,
    describe_sum,
    describe_sums,
    format_headline,
    format_score,
)

IMAGE_SIDE, SMALL_SIDE = 640, 360  # pixels of the longer side of an image on a page, and in a notebook
TOP_PATCHES = 10
PANEL_WIDTH = 7.6  # rem of a map in a table, at least
MOST_EXAMPLES = 3  # in a notebook


def make_report_page(made: b.Report) -> str:
    """The whole file; a prompt has a page of its own kind."""
    for block in made.blocks:
        if isinstance(block, b.PromptRegions):
            return prompt_page.make_prompt_page(block.view)
    writer = HtmlWriter(made.title)
    sections = [block for block in made.blocks if isinstance(block, b.PageSection)]
    contents = report.make_anchors(one.name or one.title for one in sections)
    writer.anchors = {id(one): anchor for one, anchor in zip(sections, contents, strict=True)}
    facts = {name: write_content(value) for name, value in made.facts.items()}
    cases = sum(one.is_example for one in sections)
    writer.imprint = (
        make_element("div", report.make_fact_list(add_page_date(facts)), class_="paper")
        if cases > 1 and facts
        else None
    )
    parts, style = list(writer.write_all(made.blocks)), "".join(writer.style)
    return report.make_page(made.title, parts, lead=made.lead, about=facts, contents=contents, style=style)


def make_report_fragment(made: b.Report) -> str:
    """What a notebook shows: of many examples the first."""
    writer = HtmlWriter(is_brief=True)
    blocks = list(made.blocks if made.brief is None else made.brief)
    later = [n for n, one in enumerate(blocks) if isinstance(one, b.PageSection) and one.is_example][MOST_EXAMPLES:]
    parts = list(writer.write_all(one for n, one in enumerate(blocks) if n not in later))
    if later:
        parts.append(make_element("p", f"... and {len(later)} more; .save('all.html') saves all.", class_="dim"))
    head = [make_element("h3", made.title), make_element("p", made.lead)] if made.is_titled else []
    return report.make_fragment(*head, *parts)


def write_content(span: b.Span) -> Content:
    """A span of a line, or the content of a cell."""
    if isinstance(span, b.Badge):
        return report.make_verdict_badge(*span)
    if isinstance(span, b.Series):
        return make_element(
            "span", report.make_series_symbol(span.style), " ", make_method_name(span.name), class_="name"
        )
    return span


def write_spans(spans: b.Spans) -> list[Content]:
    return [write_content(span) for span in (spans if isinstance(spans, list) else [spans])]


class HtmlWriter(b.Writer):
    """The elements of each block."""

    def __init__(self, title: str = "", *, is_brief: bool = False) -> None:
        self.title = title  # of the page, which is not repeated
        self.is_brief = is_brief  # in a notebook
        self.anchors: dict[int, str] = {}  # of the sections in the contents, by their identity
        self.imprint: Html | None = None  # on paper below each of several cases, which is handed over alone
        self.style: list[str] = []  # what the blocks turned out to need
        self.side = SMALL_SIDE if is_brief else IMAGE_SIDE

    def text(self, block: str) -> Iterator[Html]:
        yield block if isinstance(block, Html) else make_element("p", block)

    html = text

    def paragraph(self, block: b.Paragraph) -> Iterator[Html]:
        inside = write_spans(block.spans)
        strong = [make_element("strong", *inside)] if block.style == "strong" else inside
        yield make_element("p", *strong, class_="dim" if block.style == "dim" else None)

    def bullets(self, block: b.Bullets) -> Iterator[Html]:
        items = [make_element("li", text, " ", make_element("span", why, class_="dim")) for text, why in block.lines]
        yield from [make_element("ul", *items)] if items else []

    def notes(self, block: b.Notes) -> Iterator[Html]:
        yield report.make_notes(block.lines)

    def facts(self, block: b.Facts) -> Iterator[Html]:
        yield report.make_fact_list({name: write_content(value) for name, value in block.pairs.items()})

    def datatable(self, block: b.DataTable) -> Iterator[Html]:
        rows = [[write_content(cell) for cell in row] for row in block.rows]
        yield report.make_table([write_content(name) for name in block.head], rows, caption=block.caption)

    def charts(self, block: b.Charts) -> Iterator[Html]:
        drawn = block.draw()
        if self.is_brief:  # some readers of notebooks drop vector images
            yield from (report.embed_png(drawing.png(110), drawing.alt) for drawing in drawn)
        else:
            yield make_element("div", *map(report.embed_drawing, drawn), class_="charts")

    def imagerow(self, block: b.ImageRow) -> Iterator[Html]:
        figures = [
            report.embed_image(image, alt, *write_spans(caption), crisp=crisp, is_map=is_map)
            for image, alt, caption, crisp, is_map in block.make()
        ]
        yield report.arrange_figures(figures, small=True)

    def fold(self, block: b.Fold) -> Iterator[Html]:
        yield report.fold_content(block.summary, *self.write_all(block.blocks), open_=block.is_open)

    def tabs(self, block: b.Tabs) -> Iterator[Html]:
        options = [(label, join_html(self.write_all(inside))) for label, inside in block.options]
        if self.is_brief:  # the buttons of two outputs would have the same names
            yield from (inside for _, inside in options)
            return
        chooser, style = report.make_chooser(options, name=block.legend, legend=block.legend, prose=block.is_prose)
        self.style.append(style)
        yield chooser

    def pagesection(self, block: b.PageSection) -> Iterator[Html]:
        anchor, inside = self.anchors.get(id(block)), self.write_all(block.blocks)
        if self.is_brief and block.is_example:
            yield from inside
        else:
            title, remark, imprint = block.title, block.remark, self.imprint if block.is_example else None
            yield report.make_section(title, *inside, imprint, remark=remark, anchor=anchor, is_case=block.is_example)

    def markedanswer(self, block: b.MarkedAnswer) -> Iterator[Html]:
        yield make_element("p", write_marked_text(block.sentences))

    def promptregions(self, block: b.PromptRegions) -> Iterator[Html]:
        yield prompt_page.make_prompt_summary(block.view)

    # --- one example ---

    def exampleview(self, block: b.ExampleView) -> Iterator[Html]:
        panel = block.panel
        view = view_panel(panel) if self.is_brief else None
        if view is not None and not view.is_short:
            yield prompt_page.make_prompt_summary(view)
            return
        if block.is_titled and format_headline(panel) != self.title:
            by = f" by {panel.label}, {panel.model}" if self.is_brief else ""
            yield make_element("p", make_element("strong", format_headline(panel)), by)
        yield from write_small(describe_considered(panel.target), panel.caution)
        for part in panel.drawn:
            yield from [make_element("h3", part.label)] if panel.streams else []
            yield from self.write_image(part) if part.is_image else self.write_text(part)
        yield from report.make_check(panel.check)
        is_whole = block.is_titled and not self.is_brief
        yield from write_small(describe_sum(panel), describe_limits(panel) if is_whole else "")

    def write_image(self, panel: Panel) -> Iterator[Html]:
        alt = f"{panel.name}: {format_headline(panel)}"
        images = [
            report.embed_image(image, f"{alt}, {caption}", caption, crisp=crisp, is_map=not caption.startswith("image"))
            for caption, image, crisp in panel_images.make_panel_images(panel, max_side=self.side)
        ]
        scale = overlay.choose_colour_scale(panel.finest, signed=panel.signed)
        note = scale.describe_limits(signed=panel.signed)
        yield report.arrange_figures(images, large=True)
        yield self.legend(scale.between, signed=panel.signed, note=note, of_image=True)
        if not self.is_brief:
            rows, columns = panel.grid.shape
            positions = panel_images.list_strongest_patches(panel, TOP_PATCHES)
            table = report.make_table(["patch, counted from the top left", "score"], positions)
            yield report.fold_content(f"The {len(positions)} strongest of {rows} x {columns} patches", table)

    def write_text(self, panel: Panel) -> Iterator[Html]:
        text = panel.scored_text
        yield from self.mark(text)
        if self.is_brief:
            return
        if panel.pieces.text is not None:
            pieces, scores = join_words(panel.pieces, panel.scores, "sum")
            if len(pieces) < sum(not padding for padding in panel.pieces.padding):  # the tokenizer split some words
                whole = make_scored_text(pieces, scores, signed=panel.signed)
                yield report.fold_content("Scores summed over whole words", *self.mark(whole))
        rows = [
            [chip.text, "special" if chip.special else "", describe_characters(panel, chip), chip.score]
            for chip in text.chips
        ]
        table = report.make_table(["token", "kind", "characters", "score"], rows)
        yield report.fold_content(f"Scores of all {len(rows)} tokens", table)

    def mark(self, text: ScoredText, note: str = "") -> Iterator[Html]:
        """The words in colour and a legend; inline in a notebook, where some readers drop style sheets."""
        marks = (mark_words_inline if self.is_brief else mark_words)(text)
        yield make_element("div", marks, class_="text", dir="auto")
        yield self.legend(text.between, signed=text.signed, note=note)

    def legend(self, between: tuple[float, float], *, signed: bool, note: str = "", of_image: bool = False) -> Html:
        """A colour bar between its limits; in a notebook in words."""
        if not self.is_brief:
            return report.make_legend(between, signed=signed, note=note, of_image=of_image)
        low, high = (format_score(limit, signed=signed) for limit in between)
        words = f"{low} against (blue) to {high} for (orange)" if signed else f"{low} (clear) to {high} (purple)"
        return make_element("div", words, f"; {note}" if note else None, class_="dim")

    # --- several maps ---

    def methods(self, block: b.Methods) -> Iterator[Html]:
        first = next(iter(block.panels.values()))
        if format_headline(first) != self.title:
            yield make_element("p", make_element("strong", format_headline(first)))
        yield from write_small(describe_considered(first.target))
        if first.is_image:
            maps = [self.make_map(panel, make_method_name(label)) for label, panel in block.panels.items()]
            yield report.arrange_figures([*self.list_originals(first), *maps], small=self.is_brief)
        else:
            yield self.write_word_rows(block.panels)
        yield from write_small(describe_sums(block.panels))

    def write_word_rows(self, panels: Mapping[str, Panel]) -> Html:
        """The same text explained by several methods, one per row."""
        cells = []
        for label, panel in panels.items():
            shown = self.mark(panel.scored_text, "" if panel.class_specific else "the same for every class")
            cells += [make_element("div", make_method_name(label)), make_element("div", *shown)]
        return make_element("div", *cells, class_="rows")

    def mapgrid(self, block: b.MapGrid) -> Iterator[Html]:
        first = block.rows[0][1][0]
        if not first.is_image:
            for name, panels in block.rows:
                named = dict(zip(block.columns, panels, strict=True))
                yield from (make_element("h3", name), self.write_word_rows(named), *write_small(describe_sums(named)))
            return
        head = make_element("tr", *(make_element("th", make_method_name(name), scope="col") for name in block.columns))
        groups = []
        for name, panels in block.rows:
            title = make_element("th", name, scope="rowgroup", colspan=len(block.columns), class_="row")
            cells = [
                make_element("td", self.make_map(panel, None), data_label=column)
                for panel, column in zip(panels, block.columns, strict=True)
            ]
            sums = make_element("td", describe_sums(dict(zip(block.columns, panels, strict=True))), colspan=len(panels))
            rows = [make_element("tr", row) for row in (title, join_html(cells))]
            groups.append(make_element("tbody", *rows, make_element("tr", sums, class_="dim")))
        folds = choose_fold(PANEL_WIDTH * len(block.columns))
        table = make_element("table", make_element("thead", head), *groups, class_=f"panel-table {folds}")
        yield report.arrange_figures(self.list_originals(first))
        yield make_element("div", report.make_scrollable(table, "Maps by row and column"), class_="table-box")

    def make_map(self, panel: Panel, caption: Html | None) -> Html:
        """One map over its image, as one of several."""
        image, crisp = panel_images.make_cell_image(panel, max_side=self.side)
        limits = make_element("span", panel_images.format_limits(panel), class_="dim")
        lines = [limits] if caption is None else [caption, make_element("br"), limits]
        return report.embed_image(image, f"{panel.label}: {format_headline(panel)}", *lines, crisp=crisp, is_map=True)

    def list_originals(self, panel: Panel) -> list[Html]:
        """The image without a map, the model's view framed, if it is there."""
        if panel.image is None:
            return []
        image = panel_images.make_original_image(panel.image, max_side=self.side)
        what = panel_images.describe_original(panel.image)
        caption = make_element("span", what, class_="dim")
        lines = [caption] if what.startswith(panel.name) else [panel.name, make_element("br"), caption]
        return [report.embed_image(image, panel.name, *lines)]


def write_small(*lines: str) -> list[Html]:
    return [make_element("p", line, class_="dim") for line in lines if line]


def describe_characters(panel: Panel, chip: Chip) -> str:
    """Which characters of the text a chip covers, from 0: "4-8" ends before character 8. Empty if it covers none.

    Of a pair, "2: 4-8" are characters of the second text.
    """
    span, second = join_spans(panel.pieces, chip.positions), panel.pieces.second
    if span is None:
        return ""
    shift = second if second is not None and span[0] >= second else 0
    segment = "" if second is None else f"{1 + bool(shift)}: "
    return f"{segment}{span[0] - shift}-{span[1] - shift}"


def make_method_name(label: str) -> Html:
    """The name of a method, which may wrap after an underscore."""
    parts = label.split("_")
    return make_element("code", parts[0], *(piece for part in parts[1:] for piece in ("_", make_element("wbr"), part)))
