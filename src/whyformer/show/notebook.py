"""Explanations in a notebook: HTML without a style sheet, readable in light and dark mode."""

from collections.abc import Mapping, Sequence

from whyformer.show import overlay, panel_images
from whyformer.show.chips import ScoredText
from whyformer.show.html import Html, make_element
from whyformer.show.marked_text import mark_words_inline
from whyformer.show.panel import Panel
from whyformer.show.report import to_data_uri
from whyformer.show.wording import describe_considered, describe_sum, describe_sums, format_headline, format_score

SMALL_PRINT = "font-size:.85em;opacity:.7"


def make_explanation_fragment(panels: Sequence[Panel], *, max_examples: int = 3) -> str:
    """The first examples, one below the other."""
    parts = [make_panel_fragment(panel) for panel in panels[:max_examples]]
    if (more := len(panels) - max_examples) > 0:
        parts.append(make_element("p", f"... and {more} more. e[i] shows one, e.save('all.html') saves all."))
    return make_element("div", *parts, style="max-width:60rem;line-height:1.5")


def make_comparison_fragment(examples: Sequence[Mapping[str, Panel]], *, max_examples: int = 2) -> str:
    """The first examples, each by every method."""
    parts = []
    for panels in examples[:max_examples]:
        first = next(iter(panels.values()))
        parts.append(make_element("div", make_element("strong", format_headline(first)), style="margin:.5rem 0 .25rem"))
        cells = [make_labelled_cell(label, panel) for label, panel in panels.items()]
        style = "display:flex;flex-wrap:wrap;gap:.75rem" if first.is_image else "display:grid;gap:.35rem"
        parts += [
            make_element("div", *cells, style=style),
            make_element("div", describe_sums(panels), style=SMALL_PRINT),
        ]
    if (more := len(examples) - max_examples) > 0:
        parts.append(make_element("p", f"... and {more} more; .save('all.html') saves all."))
    return make_element("div", *parts, style="max-width:64rem;line-height:1.5")


def make_labelled_cell(label: str, panel: Panel) -> Html:
    """A small map or text with the name of its method."""
    name = make_element("code", label)
    if panel.is_image:
        image, _ = panel_images.make_cell_image(panel, max_side=240)
        alt = f"{label}: {format_headline(panel)}"
        shown = make_element("img", alt=alt, src=to_data_uri(image), style="width:100%;display:block")
        return make_element("div", shown, name, style="width:9.5rem;max-width:45%;font-size:.85em")
    return make_element("div", name, make_inline_text(panel.scored_text))


def make_panel_fragment(panel: Panel) -> Html:
    """Headline, map or text, and the colour limits of one panel."""
    by = f"by {panel.label}, {panel.model}" + ("" if panel.class_specific else " (the same for every class)")
    head = make_element(
        "div", make_element("strong", format_headline(panel)), " ", make_element("span", by, style="opacity:.7")
    )
    if panel.caution:
        head = make_element("div", head, make_element("div", panel.caution, style=SMALL_PRINT))
    if panel.check:
        head = make_element("div", head, *(make_element("div", line) for line in panel.check))
    parts = [make_part_fragment(part, named=bool(panel.streams)) for part in panel.drawn]
    lines = (describe_considered(panel.target), describe_sum(panel))
    below = [make_element("div", line, style=SMALL_PRINT) for line in lines if line]
    return make_element("div", head, *parts, *below, style="margin:.5rem 0")


def make_part_fragment(panel: Panel, *, named: bool) -> Html:
    """The map or text, and its colour limits; named: with its label above, as one of several streams."""
    head = [make_element("div", panel.label, style="margin-top:.5rem")] if named else []
    if panel.is_image:
        limits = overlay.choose_colour_scale(panel.finest, signed=panel.signed).describe(signed=panel.signed)
        limits += "; blue against, orange for" if panel.signed else ""
        shown = make_image_row(panel)
    else:
        text = panel.scored_text
        low, high = (format_score(limit, signed=text.signed) for limit in text.between)
        limits = f"{low} against (blue) to {high} for (orange)" if text.signed else f"{low} (clear) to {high} (purple)"
        shown = make_inline_text(text)
    return make_element("div", *head, shown, make_element("div", limits, style=SMALL_PRINT))


def make_image_row(panel: Panel) -> Html:
    """The image and its maps side by side, with captions."""
    cells = []
    for caption, image, _ in panel_images.make_panel_images(panel, max_side=360):
        alt = f"{format_headline(panel)}, {caption}"
        shown = make_element("img", alt=alt, src=to_data_uri(image), style="width:100%;display:block")
        below = make_element("div", caption, style=SMALL_PRINT)
        cells.append(make_element("div", shown, below, style="width:15rem;max-width:100%"))
    return make_element("div", *cells, style="display:flex;flex-wrap:wrap;gap:.75rem;margin:.35rem 0")


def make_inline_text(text: ScoredText) -> Html:
    return make_element("div", mark_words_inline(text), style="line-height:1.9;white-space:pre-wrap", dir="auto")
