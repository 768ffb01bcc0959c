"""Pages of explanations: one self-contained HTML file.

Words are tinted and carry their score as a tooltip; a map is drawn over its image, with its colour limits below; tables
of the numbers are folded away. The building blocks come from `report`.
"""

from collections.abc import Iterable, Mapping, Sequence

from whyformer._plain.words import join_words
from whyformer.show import overlay, panel_images, report
from whyformer.show.chips import Chip, ScoredText, join_spans, make_scored_text
from whyformer.show.html import Content, Html, join_html, make_element
from whyformer.show.marked_text import mark_words
from whyformer.show.page_facts import list_facts
from whyformer.show.page_tables import choose_fold
from whyformer.show.panel import Panel
from whyformer.show.wording import describe_considered, describe_sum, describe_sums, format_headline, shorten_text

IMAGE_SIDE = 640  # pixels of the longer side of an image on a page
TOP_PATCHES = 10
PANEL_WIDTH = 7.6  # rem of a map in a table, at least


def make_explanation_page(panels: Sequence[Panel]) -> str:
    """Every example with its map or coloured words, and its numbers."""
    first, several = panels[0], len(panels) > 1
    examples = []
    for panel in panels:
        blocks = [make_element("p", format_headline(panel))] * several + make_panel_blocks(panel)
        examples.append((shorten_text(panel.title, 60), shorten_text(panel.title, 120), blocks))
    title = f"{len(panels)} examples" if several else format_headline(first)
    lead = f"Explained by {first.label} for {first.model}. {describe_colours(first)}"
    return report.make_example_page(title, examples, lead=lead, about=collect_facts(first))


def make_panel_blocks(panel: Panel) -> list[Html]:
    """The map or words of one panel, then its numbers and notes."""
    blocks = report.make_check(panel.check)
    for part in panel.drawn:
        blocks += [make_element("h3", part.label)] if panel.streams else []
        blocks += make_image_blocks(part) if part.is_image else make_text_blocks(part)
    lines = [line for line in (describe_considered(panel.target), describe_sum(panel)) if line]
    return [*blocks, *(make_element("p", line, class_="dim") for line in lines), report.make_notes(panel.notes)]


def collect_facts(*panels: Panel) -> dict[str, Content]:
    """Facts for the footer of a page: one panel for each method on it."""
    return list_facts(panels[0].model, {panel.label: panel.settings for panel in panels}, panels[0].versions)


def describe_colours(panel: Panel) -> str:
    """How to read the colours."""
    if panel.signed:
        return "Orange counts for the target, blue against it."
    same = "" if panel.class_specific else " The scores are the same for every class."
    return f"The stronger the colour, the higher the score.{same}"


# --- images -----------------------------------------------------------------------------------------------------------


def make_image_blocks(panel: Panel) -> Iterable[Html]:
    alt = f"{panel.name}: {format_headline(panel)}"
    images = [
        report.embed_image(image, f"{alt}, {caption}", caption, crisp=crisp, is_map=not caption.startswith("image"))
        for caption, image, crisp in panel_images.make_panel_images(panel, max_side=IMAGE_SIDE)
    ]
    scale = overlay.choose_colour_scale(panel.finest, signed=panel.signed)
    yield report.arrange_figures(images, large=True)
    note = scale.describe_limits(signed=panel.signed)
    yield report.make_legend(scale.between, signed=panel.signed, note=note, of_image=True)
    rows, columns = panel.grid.shape
    best = panel.scores.abs().argsort(descending=True)[:TOP_PATCHES].tolist()
    positions = [[f"row {i // columns}, column {i % columns}", panel.scores[i].item()] for i in best]
    table = report.make_table(["patch, counted from the top left", "score"], positions)
    yield report.fold_content(f"The {len(positions)} strongest of {rows} x {columns} patches", table)


def make_map_figure(panel: Panel, caption: str | Html | None) -> Html:
    """One map over its image, as one of several."""
    image, crisp = panel_images.make_cell_image(panel, max_side=IMAGE_SIDE)
    limits = make_element("span", panel_images.format_limits(panel), class_="dim")
    lines = [limits] if caption is None else [caption, make_element("br"), limits]
    return report.embed_image(image, f"{panel.label}: {format_headline(panel)}", *lines, crisp=crisp, is_map=True)


def make_original_figure(panel: Panel) -> Html:
    """The image without a map, the model's view framed."""
    assert panel.image is not None
    image = panel_images.make_original_image(panel.image, max_side=IMAGE_SIDE)
    what = panel_images.describe_original(panel.image)
    caption = make_element("span", what, class_="dim")
    lines = [caption] if what.startswith(panel.name) else [panel.name, make_element("br"), caption]
    return report.embed_image(image, panel.name, *lines)


def make_method_name(label: str) -> Html:
    """The name of a method, which may wrap after an underscore."""
    parts = label.split("_")
    return make_element("code", parts[0], *(piece for part in parts[1:] for piece in ("_", make_element("wbr"), part)))


# --- text -------------------------------------------------------------------------------------------------------------


def make_text_blocks(panel: Panel) -> Iterable[Html]:
    text = panel.scored_text
    yield make_text_block(text)
    yield report.make_legend(text.between, signed=text.signed)
    yield from make_word_blocks(panel)
    rows = [
        [chip.text, "special" if chip.special else "", describe_characters(panel, chip), chip.score]
        for chip in text.chips
    ]
    table = report.make_table(["token", "kind", "characters", "score"], rows)
    yield report.fold_content(f"Scores of all {len(rows)} tokens", table)


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


def make_word_blocks(panel: Panel) -> Iterable[Html]:
    """The text scored by whole words, if the tokenizer split any."""
    if panel.pieces.text is None:
        return
    pieces, scores = join_words(panel.pieces, panel.scores, "sum")
    if len(pieces) == sum(not padding for padding in panel.pieces.padding):
        return
    text = make_scored_text(pieces, scores, signed=panel.signed)
    legend = report.make_legend(text.between, signed=text.signed)
    yield report.fold_content("Scores summed over whole words", make_text_block(text), legend)


def make_text_block(text: ScoredText) -> Html:
    return make_element("div", mark_words(text), class_="text", dir="auto")


def make_word_rows(panels: Mapping[str, Panel]) -> Html:
    """The same text explained by several methods, one per row."""
    cells = []
    for label, panel in panels.items():
        text = panel.scored_text
        note = "" if panel.class_specific else "the same for every class"
        legend = report.make_legend(text.between, signed=text.signed, note=note)
        cells += [
            make_element("div", make_method_name(label)),
            make_element("div", make_text_block(text), legend),
        ]
    return make_element("div", *cells, class_="rows")


# --- several methods --------------------------------------------------------------------------------------------------


def make_comparison_page(
    examples: Sequence[Mapping[str, Panel]], extra: Sequence[Html], *, title: str, lead: str
) -> str:
    """Every example by every method, followed by the extra sections."""
    sections = []
    for panels in examples:
        first = next(iter(panels.values()))
        sums = make_element("p", describe_sums(panels), class_="dim")
        blocks = [make_element("p", format_headline(first)), make_panel_row(panels), sums]
        sections.append((shorten_text(first.title, 60), shorten_text(first.title, 120), blocks))
    about = collect_facts(*examples[0].values())
    return report.make_example_page(title, sections, extra, lead=lead, about=about)


def make_panel_row(panels: Mapping[str, Panel]) -> Html:
    """One example by several methods: the image and its maps side by side, or the text once per method."""
    first = next(iter(panels.values()))
    if not first.is_image:
        return make_word_rows(panels)
    figures = [make_original_figure(first)] if first.image is not None else []
    figures += [make_map_figure(panel, make_method_name(label)) for label, panel in panels.items()]
    return report.arrange_figures(figures)


def make_panel_table(rows: Sequence[tuple[str, Sequence[Panel]]], columns: Sequence[str]) -> Html:
    """Maps in rows and columns, such as classes x methods; texts below each other."""
    first = rows[0][1][0]
    if not first.is_image:
        blocks = [
            join_html(
                [make_element("h3", name), make_word_rows(own), make_element("p", describe_sums(own), class_="dim")]
            )
            for name, own in ((name, dict(zip(columns, panels, strict=True))) for name, panels in rows)
        ]
        return join_html(blocks)
    head = make_element("tr", *(make_element("th", make_method_name(column), scope="col") for column in columns))
    groups = []
    for name, panels in rows:
        title = make_element("tr", make_element("th", name, scope="rowgroup", colspan=len(columns), class_="row"))
        cells = [
            make_element("td", make_map_figure(panel, None), data_label=column)
            for panel, column in zip(panels, columns, strict=True)
        ]
        groups.append(make_element("tbody", title, make_element("tr", *cells)))
        sums = make_element("td", describe_sums(dict(zip(columns, panels, strict=True))), colspan=len(columns))
        groups[-1] = join_html([groups[-1], make_element("tbody", make_element("tr", sums), class_="dim")])
    folds = choose_fold(PANEL_WIDTH * len(columns))
    table = make_element("table", make_element("thead", head), *groups, class_=f"panel-table {folds}")
    return make_element("div", report.make_scrollable(table, "Maps by row and column"), class_="table-box")
