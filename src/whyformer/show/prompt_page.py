"""A prompt and its answer on one page: regions that fold, with their share and their heat; answer tokens to click on.

The page is one file without any request. It shows the scores of the whole answer without a script too; the script
(prompt_page.js) adds the scores of a chosen answer token or span, from numbers stored in the page (prompt_matrix).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from whyformer._plain.tokens import NamedTokens
from whyformer.show import prompt_view, report
from whyformer.show.chips import ScoredText
from whyformer.show.html import Content, Html, join_html, make_element
from whyformer.show.marked_text import mark_words
from whyformer.show.page_colours import COLOUR_LEVELS, REGION_COLOURS, choose_colour_level
from whyformer.show.page_facts import list_facts
from whyformer.show.prompt_matrix import CELL_BUDGET, TOKEN_BUDGET, PackedRows, encode_bytes, pack_rows
from whyformer.show.prompt_view import CitationRow, HopRow, PromptCell, PromptView, TopSpan, find_top_spans
from whyformer.show.visible import make_visible
from whyformer.show.wording import shorten_text

SCRIPT = Path(__file__).with_name("prompt_page.js").read_text("utf-8")
STYLE = Path(__file__).with_name("prompt_page.css").read_text("utf-8")
READING = "How to read this page"
TOP_REGIONS = 5
CITED_TEXT = 160  # characters of a cited region in the table
CITED_METADATA = 400  # characters of the metadata of a document
HOP_COLOURS = len(REGION_COLOURS)  # regions with a colour of their own in the bar of a hop
BY_RELEVANCE = (
    "From one relevance pass. Citations rest on what changes without a source, and may rank sources otherwise."
)
ROLE_KINDS = {"rests on": "good", "against": "bad"}


def make_prompt_page(view: PromptView) -> str:
    """The whole page."""
    packed, sums = pack_steps(view)
    sections = {
        "citations": ("Citations", make_citation_section(view) if view.citations else None),
        "answer": ("Answer", make_answer_section(view)),
        "hops": ("Hops", make_hop_section(view) if view.hops else None),
        "prompt": ("Prompt", make_prompt_section(view)),
        "matrix": ("Matrix", make_matrix_section(view) if view.steps is not None else None),
        "how": (READING, report.make_section(READING, *explain_shares(view, packed), anchor="how")),
    }
    shown = {anchor: (title, section) for anchor, (title, section) in sections.items() if section is not None}
    return report.make_page(
        view.headline,
        [section for _, section in shown.values()],
        lead=describe_view(view),
        about=list_facts(view.model, {view.method: view.settings}, view.versions),
        contents={anchor: title for anchor, (title, _) in shown.items()},
        style=STYLE,
        script=SCRIPT,
        data=collect_page_numbers(view, packed, sums),
    )


def describe_view(view: PromptView) -> str:
    answers = len(view.pieces) - view.prompt_length
    tokens = f"{count_things(view.prompt_length, 'prompt token')} and {count_things(answers, 'answer token')}"
    colours = "Orange counts for the answer, blue against it." if view.signed else "The stronger, the higher the score."
    return f"{view.model}, {tokens}, explained by {view.method}. {colours} {view.summed}".rstrip()


def count_things(count: int, name: str) -> str:
    return f"{count:,} {name}" + "s" * (count != 1)


# --- the answer -------------------------------------------------------------------------------------------------------


def make_answer_section(view: PromptView) -> Html:
    """The answer to choose from, what is chosen, and the regions it comes from."""
    cells = [cell for cell in view.cells if cell.start >= view.prompt_length]
    tokens = [mark_cell(view, cell) for cell in cells] or [make_element("em", "no answer", class_="dim")]
    box = make_element("div", *tokens, class_="text answer-text", id="answer-text", dir="auto")
    whole = "all hops" if view.hops and view.steps is None else "the whole answer"
    chosen = make_element("p", f"Chosen: {whole}", id="chosen", aria_live="polite", data_whole=whole)
    reset = make_element("button", whole.removeprefix("the ").capitalize(), type="button", id="reset", hidden=True)
    needs_script = make_element("noscript", make_element("p", "Choosing answer tokens needs JavaScript."))
    hint = make_element("p", explain_choice(view), id="hint")
    head = report.make_section("Answer", *report.make_check(view.check), hint, needs_script, anchor="answer")
    sticky = make_element("div", box, make_element("div", chosen, reset, class_="chosen-row"), class_="sticky")
    percentile = "99.9th percentile of the" if len(view.scaled_chips) > 1000 else "strongest"
    limit = f"colours end at the {percentile} words of the prompt"
    top = make_element(
        "div",
        make_element("h3", "Relevance of the tokens" if view.has_fitted_scores else "Where it comes from"),
        make_element("p", BY_RELEVANCE) if view.has_fitted_scores else None,
        make_element("ol", *make_top_regions(view), class_="top-regions", id="top-regions"),
        report.make_legend(view.between, signed=view.signed, note=limit),
        id="origin",
    )
    return join_html([head, sticky, top])  # next to the other sections, so that it stays in sight below them


def explain_choice(view: PromptView) -> str:
    """What can be chosen, and how."""
    if view.prompt_length == len(view.pieces):
        return "The prompt has no answer; the title says what is explained."
    if view.hops and view.steps is None:
        return "The title says which tokens are traced; a hop below can be chosen."
    if view.steps is None:
        return "Only the scores of the answer as a whole were computed; explain_generation() gives those of each token."
    return (
        "Click on a token, drag over several, or use the arrow keys (with Shift for a span); Escape chooses the whole "
        "answer."
    )


def make_top_regions(view: PromptView) -> Iterable[Html]:
    """The cells with the largest shares, as links."""
    for i in view.ranked_cells[:TOP_REGIONS]:
        link = make_element("a", shorten_text(make_visible(view.name_cell(i)), 80), href=find_anchor(view, i))
        yield make_element("li", link, *make_share(view.cell_shares[i], view.largest_share, signed=view.signed))


def find_anchor(view: PromptView, i: int) -> str:
    """Where a cell is on the page."""
    section = view.cells[i].section
    if view.sections[section].kind == "answer":
        return "#answer"
    return f"#region-{section}" if view.counts[section] == 1 else f"#cell-{i}"


def make_share(share: float, largest: float, *, signed: bool) -> tuple[Html, Html]:
    """A bar, full for the largest share, and a percentage."""
    length = min(abs(share) / largest, 1) if largest > 0 else 0.0
    level = ("a14" if share < 0 else "f14") if signed else "u12"
    fill = make_element("span", class_=f"fill {level}", style=f"width:{length:.2%}")
    return (
        make_element("span", fill, class_="track", aria_hidden="true"),
        make_element("span", format_share(share, signed=signed), class_="share"),
    )


def format_share(share: float, *, signed: bool) -> str:
    """'+62.1 %'; never '-0.0 %'."""
    return f"{round(share * 100, 1) + 0.0:{'+' if signed else ''}.1f} %"


# --- the prompt -------------------------------------------------------------------------------------------------------


def make_prompt_section(view: PromptView) -> Html:
    """Every region with its share; those with the largest are open."""
    cells: dict[int, list[int]] = {}
    for i, cell in enumerate(view.cells):
        if cell.start < view.prompt_length:
            cells.setdefault(cell.section, []).append(i)
    regions = [fold_region(view, section, own) for section, own in cells.items()]
    remark = "" if view.is_short else "Regions with small shares are folded and name their strongest words."
    return report.make_section("Prompt", *regions, remark=remark, anchor="prompt")


def fold_region(view: PromptView, section: int, own: Sequence[int]) -> Html:
    """A region that folds: its text, or its cells, which fold too."""
    region, is_whole = view.sections[section], len(own) == 1
    strongest = max(own, key=lambda i: abs(view.cell_shares[i]))
    inside = [make_text(view, view.cells[own[0]])] if is_whole else [fold_cell(view, i) for i in own]
    classes = "region other" if region.kind == "other" and len(view.regions) > 1 else "region"
    summary = make_summary(view, region, view.section_shares[section], strongest, f"c{own[0]}" if is_whole else None)
    is_open = any(i in view.open_cells for i in own)
    return make_element("details", summary, *inside, class_=classes, id=f"region-{section}", open=is_open or None)


def fold_cell(view: PromptView, i: int) -> Html:
    cell = view.cells[i]
    tokens = NamedTokens(cell.name, "", cell.start, cell.stop)
    summary = make_summary(view, tokens, view.cell_shares[i], i, f"c{i}")
    is_open = i in view.open_cells
    return make_element("details", summary, make_text(view, cell), class_="cell", id=f"cell-{i}", open=is_open or None)


def make_summary(view: PromptView, tokens: NamedTokens, share: float, strongest: int, cell: str | None) -> Html:
    """The line that stays when tokens are folded, with the top words of their strongest cell."""
    kind = "" if tokens.kind in tokens.name or tokens.kind == "other" else f"{tokens.kind}, "
    count = count_things(tokens.stop - tokens.start, "token")
    top = [mark_span(view, span) for span in find_top_spans(view, view.cells[strongest])]
    return make_element(
        "summary",
        make_element("span", shorten_text(make_visible(tokens.name), 80), class_="name"),
        *make_share(share, view.largest_share, signed=view.signed),
        make_element("span", f"{kind}{count}", class_="dim"),
        make_element("span", *top, class_="top"),
        data_cell=cell,
    )


def mark_span(view: PromptView, span: TopSpan) -> Html:
    """The words of a span on the colour of their strongest chip."""
    strongest = max((chip.score for chip in view.chips[span.first : span.last + 1]), key=abs)
    level = choose_colour_level(strongest, view.between, signed=view.signed)
    return make_element("span", write_span(view, span), class_=f"mark {level}")


def write_span(view: PromptView, span: TopSpan) -> str:
    """The words of a span, in one line."""
    chips = view.chips[span.first : span.last + 1]
    return shorten_text("".join((" " if i and chip.before else "") + chip.text for i, chip in enumerate(chips)), 60)


def make_text(view: PromptView, cell: PromptCell) -> Html:
    return make_element("div", mark_cell(view, cell), class_="text", dir="auto")


def mark_cell(view: PromptView, cell: PromptCell) -> Html:
    """The chips of a cell on their colours."""
    own = view.chips_of(cell)
    chips = view.chips[own.start : own.stop]
    first = [replace(chip, before=chip.before.lstrip()) for chip in chips[:1]]
    tail = view.tail if own.stop == len(view.chips) else ""
    return mark_words(ScoredText((*first, *chips[1:]), tail, view.between, view.signed))


# --- citations and hops -----------------------------------------------------------------------------------------------


def make_citation_section(view: PromptView) -> Html:
    """What was measured, and the sources with the parts that they play."""
    largest = max(abs(row.share) for row in view.citations)
    rows = [make_citation_cells(view, row, largest) for row in view.citations]
    head = ["source", "share", "role", "p with all", "without it", "it alone", "with none", "text"]
    caption = "p: the probability of the answer, or of the sentence that names the source, per token"
    table = report.make_table(head, rows, caption=caption, bars=14)
    marked = make_element("p", *make_marked_answer(view), class_="marked") if view.marked else None
    notes = [make_element("p", line) for line in view.reading_notes[1 if view.marked else 0 :]]
    return report.make_section("Citations", marked, *notes, table, make_document_table(view), anchor="citations")


def make_marked_answer(view: PromptView) -> Iterable[Content]:
    """The sentences of the answer, each with links to the sources that it rests on."""
    rows = {row.mark: row for row in view.citations if row.mark is not None}
    for sentence in view.marked:
        yield make_visible(sentence.text)
        for mark in sentence.marks:
            anchor = find_anchor(view, view.find_cell(rows[mark].start)) if mark in rows else "#citations"
            yield from (" ", make_element("a", f"[{mark}]", href=anchor))
        if sentence.remark:
            yield from (" ", report.make_verdict_badge(sentence.remark, ROLE_KINDS.get(sentence.remark, "")))
        yield " "


def make_document_table(view: PromptView) -> Html | None:
    """Ids and metadata of the cited documents, folded; None if they have none."""
    rows = [(row.name, row.id or "", write_metadata(row)) for row in view.citations if row.id or row.metadata]
    if not rows:
        return None
    return report.fold_content("Ids and metadata", report.make_table(["region", "id", "metadata"], rows))


def write_metadata(row: CitationRow) -> str:
    pairs = (f"{name}: {' '.join(str(value).split())}" for name, value in row.metadata.items())
    return shorten_text(make_visible(", ".join(pairs)), CITED_METADATA)


def make_citation_cells(view: PromptView, row: CitationRow, largest: float) -> list[Content]:
    kind, anchor = ROLE_KINDS.get(row.role, ""), find_anchor(view, view.find_cell(row.start))
    badge = report.make_verdict_badge(row.role, kind) if row.role else ""
    number = "" if row.mark is None else f"[{row.mark}] "
    own = f" ({row.id})" if row.id is not None else ""
    link = make_element("a", shorten_text(make_visible(f"{number}{row.name}{own}"), 60), href=anchor)
    bar = make_element("span", *make_share(row.share, largest, signed=view.signed), class_="share-cell")
    text = shorten_text(make_visible(" ".join(row.text.split())), CITED_TEXT)
    return [link, bar, badge, *row.probabilities, text]


def make_hop_section(view: PromptView) -> Html:
    """One stacked bar per hop: how its relevance is shared among regions, generated tokens, and what is absorbed."""
    parts, colours = choose_hop_parts(view)
    names = [*parts.values(), "absorbed"]
    rows, numbers = [], []
    for number, hop in enumerate(view.hops):
        values = [*add_hop_parts(view, hop, parts), hop.absorbed]
        numbers.append([hop.name, hop.received, *values])
        button = make_element("button", "show", type="button", class_="show-hop", data_hop=number, hidden=True)
        rows += [
            make_element("div", make_element("span", hop.name), " ", button, class_="hop-name"),
            make_element("div", make_stacked_bar(names, values, colours), class_="hop-bar"),
            make_element("div", f"{hop.received:.3g}", class_="share"),
        ]
    legend = [
        make_element("span", make_element("i", style=f"background:{colour}"), name, class_="swatch")
        for name, colour in zip(names, colours, strict=True)
    ]
    head = [make_element("div", text, class_="dim") for text in ("hop", "where its relevance goes", "received")]
    return report.make_section(
        "Hops",
        make_element("div", *head, *rows, class_="hop-rows"),
        make_element("p", *legend, class_="legend"),
        report.fold_content("The numbers", report.make_table(["hop", "received", *names], numbers)),
        remark="Relevance that reaches generated tokens is sent on from them. The width of a segment is the magnitude "
        "of its share.",
        anchor="hops",
    )


def choose_hop_parts(view: PromptView) -> tuple[dict[int, str], list[str]]:
    """The sections named in the bars, by index (-1: all others), and their colours; the last colour is of absorbed."""
    sums = [view.add_by_section(view.sum_cells(hop.scores).tolist()) for hop in view.hops]
    total = torch.tensor(sums).double().abs().sum(0)
    prompt = [i for i, section in enumerate(view.sections) if section.kind != "answer"]
    ranked = sorted(prompt, key=lambda i: -total[i].item())
    named = sorted(ranked[:HOP_COLOURS])
    names = {i: shorten_text(make_visible(view.sections[i].name), 30) for i in named}
    colours = [f"var(--r{k})" for k in range(len(named))]
    if len(ranked) > len(named):
        names[-1] = "other regions"
        colours.append("var(--dim)")
    answer = [i for i, section in enumerate(view.sections) if section.kind == "answer"]
    names |= dict.fromkeys(answer, "generated tokens")
    colours += ["var(--ink)"] * len(answer)
    return names, [*colours, "var(--line)"]


def add_hop_parts(view: PromptView, hop: HopRow, names: dict[int, str]) -> list[float]:
    """The relevance of one hop by the parts named."""
    sums = view.add_by_section(view.sum_cells(hop.scores).tolist())
    rest = sum(value for i, value in enumerate(sums) if i not in names)
    return [rest if i == -1 else sums[i] for i in names]


def make_stacked_bar(names: Sequence[str], values: Sequence[float], colours: Sequence[str]) -> Html:
    total = sum(abs(value) for value in values) or 1.0
    parts = []
    for name, value, colour in zip(names, values, colours, strict=True):
        kind = "segment-part minus" if value < 0 else "segment-part"
        style = f"width:{abs(value / total):.2%};background-color:{colour}"
        parts.append(make_element("span", title=f"{name}: {value / total:+.1%}", class_=kind, style=style))
    described = ", ".join(f"{n} {v / total:+.0%}" for n, v in zip(names, values, strict=True))
    return make_element("div", *parts, class_="stacked", role="img", aria_label=described)


# --- matrix and explanation -------------------------------------------------------------------------------------------


def make_matrix_section(view: PromptView) -> Html:
    """Answer tokens by regions, or by the tokens of one region: drawn by the script."""
    options = [make_element("option", "all regions", value="")] + [
        make_element("option", shorten_text(make_visible(cell.name), 60), value=i) for i, cell in enumerate(view.cells)
    ]
    chooser = make_element("label", "Columns: ", make_element("select", *options, id="columns"))
    canvas = make_element("canvas", id="matrix-canvas", width=1, height=1, role="img", aria_label="Matrix of scores")
    without = make_element("noscript", make_element("p", "The matrix needs JavaScript."))
    return report.make_section(
        "Matrix",
        without,
        chooser,
        report.make_scrollable(canvas, "Matrix"),
        make_element("p", id="pointed", class_="dim", aria_live="off"),
        remark="One row per chosen answer token, one column per region, or per token of one region. Click on a region "
        "to see its tokens.",
        anchor="matrix",
    )


def explain_shares(view: PromptView, packed: PackedRows | None) -> list[Html]:
    whole = (
        "magnitudes of all regions or, where regions are divided, of all their parts, the answer among them; so shares "
        "keep their sign and their magnitudes add up to 100 %"
        if view.magnitude is None
        else "magnitudes of all sources and of the rest of the tokens as one; so shares keep their sign, and those of "
        "the sources and of the rest add up to 100 % in magnitude"
    )
    lines = [
        "The score of a region is the sum of the scores of its tokens. Its share is that score over the sum of the "
        f"{whole}. The largest share has a full bar."
    ]
    if view.has_fitted_scores:
        lines.append(
            "Under Citations, the score of a source is its weight in a linear model of the log-odds while sources are "
            "left out, and shares are of the magnitudes of all sources."
        )
    if packed is not None:
        some = f"the {packed.kept:,} of {packed.columns:,} tokens with the largest magnitude; the others count as 0"
        kept = "all tokens" if packed.kept == packed.columns else some
        lines.append(
            f"For each answer token this page keeps the scores of {kept}, rounded to 1/127 of the largest. Sums over "
            "regions are taken before that."
        )
    lines.append("The numbers of the whole answer are exact to the digits shown, with or without JavaScript.")
    return [*(make_element("p", line) for line in lines), report.make_notes(view.notes)]


# --- the numbers the script reads -------------------------------------------------------------------------------------


def pack_steps(view: PromptView) -> tuple[PackedRows | None, PackedRows | None]:
    """The scores of every answer token, by token and by cell."""
    if view.steps is None:
        return None, None
    steps = view.steps.double().nan_to_num(0.0, 0.0, 0.0)
    return (
        pack_rows(steps, width=1, budget=TOKEN_BUDGET),
        pack_rows(view.sum_cells(steps), width=2, budget=CELL_BUDGET),
    )


def collect_page_numbers(view: PromptView, packed: PackedRows | None, sums: PackedRows | None) -> dict[str, Any]:
    """What the script reads: numbers only, no text. Chips and cells are numbered as they stand on the page."""
    return {
        "signed": view.signed,
        "magnitude": view.magnitude,
        "levels": COLOUR_LEVELS,
        "promptLength": view.prompt_length,
        "tokens": len(view.pieces),
        "chips": view.chip_starts,
        "flags": "".join(
            str(int(chip.special) + 2 * (chip.before == "") + 4 * (i in view.scaled_chips))
            for i, chip in enumerate(view.chips)
        ),
        "cells": [[cell.start, cell.stop, cell.section] for cell in view.cells],
        "total": encode_row(view.scores),
        "hops": [encode_row(hop.scores) for hop in view.hops],
        "steps": packed and packed.to_json(),
        "sums": sums and sums.to_json(),
        "topRegions": TOP_REGIONS,
        "span": [prompt_view.SPAN_LENGTH, prompt_view.SPAN_SHARE, prompt_view.WEAKEST_SPAN],
    }


def encode_row(scores: torch.Tensor) -> str:
    return encode_bytes(scores.double().nan_to_num(0.0, 0.0, 0.0).numpy().astype("<f4", casting="same_kind"))


# --- in a notebook ----------------------------------------------------------------------------------------------------


def make_prompt_summary(view: PromptView) -> Html:
    """What a notebook shows: the regions with the largest shares and their strongest words."""
    rows = []
    for i in view.ranked_cells[: 2 * TOP_REGIONS]:
        words = " · ".join(write_span(view, span) for span in find_top_spans(view, view.cells[i]))
        rows.append([view.name_cell(i), format_share(view.cell_shares[i], signed=view.signed), words])
    table = report.make_table(["region", "share", "strongest words"], rows, caption=describe_view(view))
    hint = make_element("p", '.save("why.html") has the whole prompt and every answer token.', class_="dim")
    return report.make_section(view.headline, table, hint)
