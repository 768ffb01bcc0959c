"""Pages of explanations: one self-contained HTML file, and the small one that a notebook shows.

Words are marked with a tint and carry their score; a map lies over its picture, with the limits of its colours written
below; the numbers themselves are folded away under each. The blocks are those of `report`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from whyformer.show import image, plate
from whyformer.show.case import Case
from whyformer.show.chips import Chip, chip_limits, chips
from whyformer.show.colours import AGAINST, FOR, UNSIGNED, Colour, hexadecimal, ink, paint
from whyformer.show.report import (
    Html,
    anchors,
    data_uri,
    element,
    folded,
    joined,
    legend,
    level,
    maps,
    notes,
    page,
    picture,
    section,
    table,
)
from whyformer.show.said import headline, shortened
from whyformer.words import join_words

WIDE = 640  # pixels of the longer side of a picture on a page
TOP = 10


def explanation_page(cases: Sequence[Case]) -> str:
    """Every example with its picture or words, and its numbers."""
    first = cases[0]
    titles = anchors(shortened(case.title, 60) for case in cases)
    several = len(cases) > 1
    parts = [
        section(
            shortened(case.title, 120), element("p", headline(case)) if several else None, *shown(case), anchor=anchor
        )
        for anchor, case in zip(titles, cases, strict=True)
    ]
    title = f"{len(cases)} examples" if several else headline(first)
    lead = f"Explained by {first.label} for {first.model}. {read_as(first)}"
    return page(title, parts, lead=lead, about=about(first), contents=titles)


def shown(case: Case) -> list[Html]:
    """One case: its map or words, then its numbers."""
    return [*(picture_parts(case) if case.is_picture else text_parts(case)), notes(case.notes)]


def about(case: Case) -> dict[str, Any]:
    """Facts for the foot of a page."""
    settings = ", ".join(f"{name}={value}" for name, value in case.settings.items())
    made = ", ".join(f"{name} {value}" for name, value in case.versions.items())
    facts = {"method": case.label, "settings": settings, "model": case.model, "made with": made}
    return {name: value for name, value in facts.items() if value}


def read_as(case: Case) -> str:
    """How the colours are to be read."""
    if case.signed:
        return "Orange speaks for it, blue against it."
    return "The stronger the colour, the more it counted." + (
        "" if case.class_specific else " It is the same for every class."
    )


# --- pictures ---------------------------------------------------------------------------------------------------------


def picture_parts(case: Case) -> Iterable[Html]:
    alt = f"{case.name}: {headline(case)}"
    figures = [
        picture(drawn, f"{alt}, {caption}", caption, crisp=crisp)
        for caption, drawn, crisp in plate.pictures_of(case, most=WIDE)
    ]
    scale = image.scale(case.finest, signed=case.signed)
    yield maps(figures, large=True)
    yield legend(scale.between, signed=case.signed, note=scale.why(signed=case.signed))
    rows, columns = case.grid.shape
    best = case.scores.abs().argsort(descending=True)[:TOP].tolist()
    places = [[f"row {i // columns}, column {i % columns}", case.scores[i].item()] for i in best]
    yield folded(
        f"The {len(places)} strongest of {rows} x {columns} patches",
        table(["patch, counted from the upper left", "score"], places),
    )


def map_figure(case: Case, caption: Any, *, smooth: bool = True) -> Html:
    """One map over its picture, as one of several."""
    drawn, crisp = plate.cell_picture(case, most=WIDE, smooth=smooth)
    limits = element("span", plate.limits_said(case), class_="dim")
    alt = f"{case.label}: {headline(case)}"
    caption = [limits] if caption is None else [caption, element("br"), limits]
    return picture(drawn, alt, *caption, crisp=crisp)


def named(label: str) -> Html:
    """A method by its name, which may be cut at an underscore where room is short."""
    parts = label.split("_")
    return element("code", parts[0], *(piece for part in parts[1:] for piece in ("_", element("wbr"), part)))


# --- words ------------------------------------------------------------------------------------------------------------


def text_parts(case: Case) -> Iterable[Html]:
    made, tail = chips(case.pieces, case.scores)
    between = chip_limits(made, signed=case.signed)
    yield element("div", marks(made, between, signed=case.signed, tail=tail), class_="text", dir="auto")
    yield legend(between, signed=case.signed)
    yield from whole_words(case)
    yield folded(
        f"The scores of {len(made)} tokens",
        table(
            ["token", "kind", "score"],
            [[chip.text, "special" if chip.special else "", chip.score] for chip in made],
        ),
    )


def whole_words(case: Case) -> Iterable[Html]:
    """The same text by words, where the tokenizer has cut some of them."""
    if case.pieces.text is None:
        return
    pieces, scores = join_words(case.pieces, case.scores, "sum")
    if len(pieces) == sum(not padding for padding in case.pieces.padding):
        return
    made, tail = chips(pieces, scores)
    between = chip_limits(made, signed=case.signed)
    text = element("div", marks(made, between, signed=case.signed, tail=tail), class_="text", dir="auto")
    yield folded("The same for whole words", text, legend(between, signed=case.signed))


def marks(made: Sequence[Chip], between: tuple[float, float], *, signed: bool, tail: str = "") -> Html:
    """The words with their tints and, under the pointer, their scores."""
    parts: list[Any] = []
    for chip in made:
        kind = level(chip.score, between, signed=signed) + (" special" if chip.special else "")
        parts += [chip.before, element("mark", chip.text, class_=kind, title=score_said(chip.score, signed=signed))]
    return joined([keep_lines(part) if not isinstance(part, Html) else part for part in [*parts, tail]])


def keep_lines(text: str) -> Html:
    """Text between words: its line ends stay line ends."""
    return joined(text.split("\n"), "\n")


def score_said(score: float, *, signed: bool) -> str:
    return f"{score:+.3g}" if signed else f"{score:.3g}"


def word_rows(cases: Mapping[str, Case]) -> Html:
    """The same text under several methods, a row each."""
    cells = []
    for label, case in cases.items():
        made, tail = chips(case.pieces, case.scores)
        between = chip_limits(made, signed=case.signed)
        text = element("div", marks(made, between, signed=case.signed, tail=tail), class_="text", dir="auto")
        note = "" if case.class_specific else "the same for every class"
        cells += [element("div", named(label)), element("div", text, legend(between, signed=case.signed, note=note))]
    return element("div", *cells, class_="rows")


# --- several methods --------------------------------------------------------------------------------------------------


def comparison_page(examples: Sequence[Mapping[str, Case]], extra: Sequence[Html], *, title: str, lead: str) -> str:
    """Every example under every method, then what else there is to say."""
    firsts = [next(iter(cases.values())) for cases in examples]
    titles = anchors([shortened(case.title, 60) for case in firsts])
    parts = []
    for anchor, cases in zip(titles, examples, strict=True):
        first = next(iter(cases.values()))
        parts.append(
            section(shortened(first.title, 120), element("p", headline(first)), side_by_side(cases), anchor=anchor)
        )
    return page(
        title, [*parts, *extra], lead=lead, about=about(firsts[0]) | {"method": ", ".join(examples[0])}, contents=titles
    )


def side_by_side(cases: Mapping[str, Case]) -> Html:
    first = next(iter(cases.values()))
    if not first.is_picture:
        return word_rows(cases)
    figures = [original(first)] if first.picture is not None else []
    figures += [map_figure(case, named(label)) for label, case in cases.items()]
    return maps(figures)


def original(case: Case) -> Html:
    assert case.picture is not None
    drawn = image.fitted(image.framed(case.picture.image, case.picture.view), WIDE)
    kept = case.picture
    view = ", what the model sees framed" if kept.view is not None and image.is_part(kept.view, kept.image.size) else ""
    return picture(drawn, case.name, case.name, element("br"), element("span", f"the picture{view}", class_="dim"))


def sheet_table(rows: Sequence[tuple[str, Sequence[Case]]], columns: Sequence[str]) -> Html:
    """Maps in rows and columns, such as classes x methods; texts line by line."""
    first = rows[0][1][0]
    if not first.is_picture:
        blocks = [
            joined([element("h3", name), word_rows(dict(zip(columns, cases, strict=True)))]) for name, cases in rows
        ]
        return joined(blocks)
    head = element("tr", *(element("th", named(column), scope="col") for column in columns))
    groups = []
    for name, cases in rows:
        title = element("tr", element("th", name, scope="rowgroup", colspan=len(columns), class_="row"))
        cells = [element("td", map_figure(case, None)) for case in cases]
        groups.append(element("tbody", title, element("tr", *cells)))
    made = element("table", element("thead", head), *groups, class_="sheet")
    return element("div", made, class_="wide", tabindex="0", role="region", aria_label="Maps by row and column")


# --- in a notebook ----------------------------------------------------------------------------------------------------


def fragment(cases: Sequence[Case], *, most: int = 3) -> str:
    """For a notebook: no style sheet, colours that hold on a light and on a dark ground."""
    parts = [case_fragment(case) for case in cases[:most]]
    if len(cases) > most:
        parts.append(element("p", f"... and {len(cases) - most} more. e[i] shows one, e.save('all.html') all of them."))
    return element("div", *parts, style="max-width:60rem;line-height:1.5")


def comparison_fragment(examples: Sequence[Mapping[str, Case]], *, most: int = 2) -> str:
    """Every method on the first examples, for a notebook."""
    parts = []
    for cases in examples[:most]:
        first = next(iter(cases.values()))
        parts.append(element("div", element("strong", headline(first)), style="margin:.5rem 0 .25rem"))
        cells = [labelled_cell(label, case) for label, case in cases.items()]
        style = "display:flex;flex-wrap:wrap;gap:.75rem" if first.is_picture else "display:grid;gap:.35rem"
        parts.append(element("div", *cells, style=style))
    if len(examples) > most:
        parts.append(element("p", f"... and {len(examples) - most} more; .save('all.html') shows all of them."))
    return element("div", *parts, style="max-width:64rem;line-height:1.5")


def labelled_cell(label: str, case: Case) -> Html:
    name = element("code", label)
    if case.is_picture:
        drawn, _ = plate.cell_picture(case, most=240)
        shown = element("img", alt=f"{label}: {headline(case)}", src=data_uri(drawn), style="width:100%;display:block")
        return element("div", shown, name, style="width:9.5rem;max-width:45%;font-size:.85em")
    made, tail = chips(case.pieces, case.scores)
    between = chip_limits(made, signed=case.signed)
    marked = inline_marks(made, between, signed=case.signed, tail=tail)
    return element("div", name, element("div", marked, style="line-height:1.9;white-space:pre-wrap", dir="auto"))


def case_fragment(case: Case) -> Html:
    by = f"by {case.label}, {case.model}" + ("" if case.class_specific else " (the same for every class)")
    head = element("div", element("strong", headline(case)), " ", element("span", by, style="opacity:.7"))
    if case.is_picture:
        figures = [
            element(
                "div",
                element(
                    "img", alt=f"{headline(case)}, {caption}", src=data_uri(drawn), style="width:100%;display:block"
                ),
                element("div", caption, style="font-size:.85em;opacity:.7"),
                style="width:15rem;max-width:100%",
            )
            for caption, drawn, _ in plate.pictures_of(case, most=360)
        ]
        scale = image.scale(case.finest, signed=case.signed)
        foot = element("div", scale.said(signed=case.signed), style="font-size:.85em;opacity:.7")
        row = element("div", *figures, style="display:flex;flex-wrap:wrap;gap:.75rem;margin:.35rem 0")
        return element("div", head, row, foot, style="margin:.5rem 0")
    made, tail = chips(case.pieces, case.scores)
    between = chip_limits(made, signed=case.signed)
    text = element("div", inline_marks(made, between, signed=case.signed, tail=tail),
                   style="line-height:1.9;white-space:pre-wrap", dir="auto")  # fmt: skip
    low, high = (score_said(limit, signed=case.signed) for limit in between)
    said = f"{low} against (blue) to {high} for (orange)" if case.signed else f"{low} (clear) to {high} (dark)"
    return element("div", head, text, element("div", said, style="font-size:.85em;opacity:.7"), style="margin:.5rem 0")


def inline_marks(made: Sequence[Chip], between: tuple[float, float], *, signed: bool, tail: str = "") -> Html:
    parts: list[Any] = []
    for chip in made:
        style = f"padding:.1em .15em;border-radius:3px;{inline_style(chip.score, between, signed=signed)}"
        style += ";font-style:italic" if chip.special else ""
        said = score_said(chip.score, signed=signed)
        parts += [keep_lines(chip.before), element("mark", chip.text, style=style, title=said)]
    return joined([*parts, keep_lines(tail)])


def inline_style(score: float, between: tuple[float, float], *, signed: bool) -> str:
    """A faint score lets the ground through, be it light or dark; a strong one has a ground and ink of its own."""
    value = torch.tensor(score, dtype=torch.double)
    strength = image.share(value, between, signed=signed).item()
    if strength < 0.3:
        red, green, blue = (AGAINST if score < 0 else FOR) if signed else UNSIGNED[1]
        return f"background:rgba({red},{green},{blue},{strength:.2f});color:inherit"
    colour: Colour = tuple(paint(value, between, signed=signed).tolist())  # type: ignore[assignment]
    return f"background:{hexadecimal(colour)};color:{hexadecimal(ink(colour))}"
