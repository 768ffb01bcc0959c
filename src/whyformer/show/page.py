"""Pages of explanations: one self-contained HTML file, and the small one that a notebook shows.

Words are marked with a tint and carry their score; a map lies over its picture, with the limits of its colours written
below; the numbers themselves are folded away under each. The blocks are those of `report`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from whyformer._plain.words import join_words
from whyformer.show import figures, overlay
from whyformer.show.chips import Chip, find_chip_limits, make_chips
from whyformer.show.colours import AGAINST_COLOUR, FOR_COLOUR, UNSIGNED_STOPS, Colour, choose_ink, paint, to_hex
from whyformer.show.panel import Panel
from whyformer.show.report import (
    Html,
    arrange_figures,
    choose_colour_level,
    embed_image,
    fold_content,
    join_html,
    make_anchors,
    make_element,
    make_legend,
    make_notes,
    make_page,
    make_section,
    make_table,
    to_data_uri,
)
from whyformer.show.wording import format_headline, shorten_text

IMAGE_SIDE = 640  # pixels of the longer side of a picture on a page
TOP_PATCHES = 10


def make_explanation_page(cases: Sequence[Panel]) -> str:
    """Every example with its picture or words, and its numbers."""
    first = cases[0]
    titles = make_anchors(shorten_text(case.title, 60) for case in cases)
    several = len(cases) > 1
    parts = [
        make_section(
            shorten_text(case.title, 120),
            make_element("p", format_headline(case)) if several else None,
            *make_panel_blocks(case),
            anchor=anchor,
        )
        for anchor, case in zip(titles, cases, strict=True)
    ]
    title = f"{len(cases)} examples" if several else format_headline(first)
    lead = f"Explained by {first.label} for {first.model}. {describe_colours(first)}"
    return make_page(title, parts, lead=lead, about=collect_facts(first), contents=titles)


def make_panel_blocks(case: Panel) -> list[Html]:
    """One case: its map or words, then its numbers."""
    return [*(make_image_blocks(case) if case.is_image else make_text_blocks(case)), make_notes(case.notes)]


def collect_facts(case: Panel) -> dict[str, Any]:
    """Facts for the foot of a page."""
    settings = ", ".join(f"{name}={value}" for name, value in case.settings.items())
    made = ", ".join(f"{name} {value}" for name, value in case.versions.items())
    facts = {"method": case.label, "settings": settings, "model": case.model, "made with": made}
    return {name: value for name, value in facts.items() if value}


def describe_colours(case: Panel) -> str:
    """How the colours are to be read."""
    if case.signed:
        return "Orange speaks for it, blue against it."
    return "The stronger the colour, the more it counted." + (
        "" if case.class_specific else " It is the same for every class."
    )


# --- pictures ---------------------------------------------------------------------------------------------------------


def make_image_blocks(case: Panel) -> Iterable[Html]:
    alt = f"{case.name}: {format_headline(case)}"
    images = [
        embed_image(drawn, f"{alt}, {caption}", caption, crisp=crisp)
        for caption, drawn, crisp in figures.make_panel_images(case, most=IMAGE_SIDE)
    ]
    scale = overlay.choose_colour_scale(case.finest, signed=case.signed)
    yield arrange_figures(images, large=True)
    yield make_legend(scale.between, signed=case.signed, note=scale.describe_limits(signed=case.signed))
    rows, columns = case.grid.shape
    best = case.scores.abs().argsort(descending=True)[:TOP_PATCHES].tolist()
    places = [[f"row {i // columns}, column {i % columns}", case.scores[i].item()] for i in best]
    yield fold_content(
        f"The {len(places)} strongest of {rows} x {columns} patches",
        make_table(["patch, counted from the upper left", "score"], places),
    )


def make_map_figure(case: Panel, caption: Any, *, smooth: bool = True) -> Html:
    """One map over its picture, as one of several."""
    drawn, crisp = figures.make_cell_image(case, most=IMAGE_SIDE, smooth=smooth)
    limits = make_element("span", figures.format_limits(case), class_="dim")
    alt = f"{case.label}: {format_headline(case)}"
    caption = [limits] if caption is None else [caption, make_element("br"), limits]
    return embed_image(drawn, alt, *caption, crisp=crisp)


def make_method_name(label: str) -> Html:
    """A method by its name, which may be cut at an underscore where room is short."""
    parts = label.split("_")
    return make_element("code", parts[0], *(piece for part in parts[1:] for piece in ("_", make_element("wbr"), part)))


# --- words ------------------------------------------------------------------------------------------------------------


def make_text_blocks(case: Panel) -> Iterable[Html]:
    made, tail = make_chips(case.pieces, case.scores)
    between = find_chip_limits(made, signed=case.signed)
    yield make_element("div", mark_words(made, between, signed=case.signed, tail=tail), class_="text", dir="auto")
    yield make_legend(between, signed=case.signed)
    yield from make_word_blocks(case)
    yield fold_content(
        f"The scores of {len(made)} tokens",
        make_table(
            ["token", "kind", "score"],
            [[chip.text, "special" if chip.special else "", chip.score] for chip in made],
        ),
    )


def make_word_blocks(case: Panel) -> Iterable[Html]:
    """The same text by words, where the tokenizer has cut some of them."""
    if case.pieces.text is None:
        return
    pieces, scores = join_words(case.pieces, case.scores, "sum")
    if len(pieces) == sum(not padding for padding in case.pieces.padding):
        return
    made, tail = make_chips(pieces, scores)
    between = find_chip_limits(made, signed=case.signed)
    text = make_element("div", mark_words(made, between, signed=case.signed, tail=tail), class_="text", dir="auto")
    yield fold_content("The same for whole words", text, make_legend(between, signed=case.signed))


def mark_words(made: Sequence[Chip], between: tuple[float, float], *, signed: bool, tail: str = "") -> Html:
    """The words with their tints and, under the pointer, their scores."""
    parts: list[Any] = []
    for chip in made:
        kind = choose_colour_level(chip.score, between, signed=signed) + (" special" if chip.special else "")
        parts += [
            chip.before,
            make_element("mark", chip.text, class_=kind, title=format_score(chip.score, signed=signed)),
        ]
    return join_html([keep_lines(part) if not isinstance(part, Html) else part for part in [*parts, tail]])


def keep_lines(text: str) -> Html:
    """Text between words: its line ends stay line ends."""
    return join_html(text.split("\n"), "\n")


def format_score(score: float, *, signed: bool) -> str:
    return f"{score:+.3g}" if signed else f"{score:.3g}"


def make_word_rows(cases: Mapping[str, Panel]) -> Html:
    """The same text under several methods, a row each."""
    cells = []
    for label, case in cases.items():
        made, tail = make_chips(case.pieces, case.scores)
        between = find_chip_limits(made, signed=case.signed)
        text = make_element("div", mark_words(made, between, signed=case.signed, tail=tail), class_="text", dir="auto")
        note = "" if case.class_specific else "the same for every class"
        cells += [
            make_element("div", make_method_name(label)),
            make_element("div", text, make_legend(between, signed=case.signed, note=note)),
        ]
    return make_element("div", *cells, class_="rows")


# --- several methods --------------------------------------------------------------------------------------------------


def make_comparison_page(
    examples: Sequence[Mapping[str, Panel]], extra: Sequence[Html], *, title: str, lead: str
) -> str:
    """Every example under every method, then what else there is to say."""
    firsts = [next(iter(cases.values())) for cases in examples]
    titles = make_anchors([shorten_text(case.title, 60) for case in firsts])
    parts = []
    for anchor, cases in zip(titles, examples, strict=True):
        first = next(iter(cases.values()))
        parts.append(
            make_section(
                shorten_text(first.title, 120),
                make_element("p", format_headline(first)),
                make_panel_row(cases),
                anchor=anchor,
            )
        )
    return make_page(
        title,
        [*parts, *extra],
        lead=lead,
        about=collect_facts(firsts[0]) | {"method": ", ".join(examples[0])},
        contents=titles,
    )


def make_panel_row(cases: Mapping[str, Panel]) -> Html:
    first = next(iter(cases.values()))
    if not first.is_image:
        return make_word_rows(cases)
    figures = [make_original_figure(first)] if first.image is not None else []
    figures += [make_map_figure(case, make_method_name(label)) for label, case in cases.items()]
    return arrange_figures(figures)


def make_original_figure(case: Panel) -> Html:
    assert case.image is not None
    drawn = overlay.shrink_image(overlay.frame_view(case.image.image, case.image.view), IMAGE_SIDE)
    kept = case.image
    view = (
        ", what the model sees framed"
        if kept.view is not None and overlay.is_partial_view(kept.view, kept.image.size)
        else ""
    )
    return embed_image(
        drawn, case.name, case.name, make_element("br"), make_element("span", f"the picture{view}", class_="dim")
    )


def make_panel_table(rows: Sequence[tuple[str, Sequence[Panel]]], columns: Sequence[str]) -> Html:
    """Maps in rows and columns, such as classes x methods; texts line by line."""
    first = rows[0][1][0]
    if not first.is_image:
        blocks = [
            join_html([make_element("h3", name), make_word_rows(dict(zip(columns, cases, strict=True)))])
            for name, cases in rows
        ]
        return join_html(blocks)
    head = make_element("tr", *(make_element("th", make_method_name(column), scope="col") for column in columns))
    groups = []
    for name, cases in rows:
        title = make_element("tr", make_element("th", name, scope="rowgroup", colspan=len(columns), class_="row"))
        cells = [make_element("td", make_map_figure(case, None)) for case in cases]
        groups.append(make_element("tbody", title, make_element("tr", *cells)))
    made = make_element("table", make_element("thead", head), *groups, class_="sheet")
    return make_element("div", made, class_="wide", tabindex="0", role="region", aria_label="Maps by row and column")


# --- in a notebook ----------------------------------------------------------------------------------------------------


def make_explanation_fragment(cases: Sequence[Panel], *, most: int = 3) -> str:
    """For a notebook: no style sheet, colours that hold on a light and on a dark ground."""
    parts = [make_panel_fragment(case) for case in cases[:most]]
    if len(cases) > most:
        parts.append(
            make_element("p", f"... and {len(cases) - most} more. e[i] shows one, e.save('all.html') all of them.")
        )
    return make_element("div", *parts, style="max-width:60rem;line-height:1.5")


def make_comparison_fragment(examples: Sequence[Mapping[str, Panel]], *, most: int = 2) -> str:
    """Every method on the first examples, for a notebook."""
    parts = []
    for cases in examples[:most]:
        first = next(iter(cases.values()))
        parts.append(make_element("div", make_element("strong", format_headline(first)), style="margin:.5rem 0 .25rem"))
        cells = [make_labelled_cell(label, case) for label, case in cases.items()]
        style = "display:flex;flex-wrap:wrap;gap:.75rem" if first.is_image else "display:grid;gap:.35rem"
        parts.append(make_element("div", *cells, style=style))
    if len(examples) > most:
        parts.append(make_element("p", f"... and {len(examples) - most} more; .save('all.html') shows all of them."))
    return make_element("div", *parts, style="max-width:64rem;line-height:1.5")


def make_labelled_cell(label: str, case: Panel) -> Html:
    name = make_element("code", label)
    if case.is_image:
        drawn, _ = figures.make_cell_image(case, most=240)
        shown = make_element(
            "img", alt=f"{label}: {format_headline(case)}", src=to_data_uri(drawn), style="width:100%;display:block"
        )
        return make_element("div", shown, name, style="width:9.5rem;max-width:45%;font-size:.85em")
    made, tail = make_chips(case.pieces, case.scores)
    between = find_chip_limits(made, signed=case.signed)
    marked = mark_words_inline(made, between, signed=case.signed, tail=tail)
    return make_element(
        "div", name, make_element("div", marked, style="line-height:1.9;white-space:pre-wrap", dir="auto")
    )


def make_panel_fragment(case: Panel) -> Html:
    by = f"by {case.label}, {case.model}" + ("" if case.class_specific else " (the same for every class)")
    head = make_element(
        "div", make_element("strong", format_headline(case)), " ", make_element("span", by, style="opacity:.7")
    )
    if case.is_image:
        images = [
            make_element(
                "div",
                make_element(
                    "img",
                    alt=f"{format_headline(case)}, {caption}",
                    src=to_data_uri(drawn),
                    style="width:100%;display:block",
                ),
                make_element("div", caption, style="font-size:.85em;opacity:.7"),
                style="width:15rem;max-width:100%",
            )
            for caption, drawn, _ in figures.make_panel_images(case, most=360)
        ]
        scale = overlay.choose_colour_scale(case.finest, signed=case.signed)
        foot = make_element("div", scale.said(signed=case.signed), style="font-size:.85em;opacity:.7")
        row = make_element("div", *images, style="display:flex;flex-wrap:wrap;gap:.75rem;margin:.35rem 0")
        return make_element("div", head, row, foot, style="margin:.5rem 0")
    made, tail = make_chips(case.pieces, case.scores)
    between = find_chip_limits(made, signed=case.signed)
    text = make_element("div", mark_words_inline(made, between, signed=case.signed, tail=tail),
                   style="line-height:1.9;white-space:pre-wrap", dir="auto")  # fmt: skip
    low, high = (format_score(limit, signed=case.signed) for limit in between)
    said = f"{low} against (blue) to {high} for (orange)" if case.signed else f"{low} (clear) to {high} (dark)"
    return make_element(
        "div", head, text, make_element("div", said, style="font-size:.85em;opacity:.7"), style="margin:.5rem 0"
    )


def mark_words_inline(made: Sequence[Chip], between: tuple[float, float], *, signed: bool, tail: str = "") -> Html:
    parts: list[Any] = []
    for chip in made:
        style = f"padding:.1em .15em;border-radius:3px;{make_inline_style(chip.score, between, signed=signed)}"
        style += ";font-style:italic" if chip.special else ""
        said = format_score(chip.score, signed=signed)
        parts += [keep_lines(chip.before), make_element("mark", chip.text, style=style, title=said)]
    return join_html([*parts, keep_lines(tail)])


def make_inline_style(score: float, between: tuple[float, float], *, signed: bool) -> str:
    """A faint score lets the ground through, be it light or dark; a strong one has a ground and ink of its own."""
    value = torch.tensor(score, dtype=torch.double)
    strength = overlay.measure_strength(value, between, signed=signed).item()
    if strength < 0.3:
        red, green, blue = (AGAINST_COLOUR if score < 0 else FOR_COLOUR) if signed else UNSIGNED_STOPS[1]
        return f"background:rgba({red},{green},{blue},{strength:.2f});color:inherit"
    colour: Colour = tuple(paint(value, between, signed=signed).tolist())  # type: ignore[assignment]
    return f"background:{to_hex(colour)};color:{to_hex(choose_ink(colour))}"
