"""The report of a summary, for a page, a notebook and a terminal: the most suspicious finding first."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from whyformer._model import as_image
from whyformer._runs.parts import BulkRow
from whyformer._summary import wording
from whyformer._summary.finding import Finding, Sighting
from whyformer._summary.inputs import InputReader
from whyformer._summary.pictures import IMAGE_SIDE, crop_mark, draw_mean_map
from whyformer._summary.rows import get_planned
from whyformer._summary.tally import ClassTally
from whyformer._summary.track_record import write_track_record
from whyformer.errors import InputError
from whyformer.show import report
from whyformer.show.blocks import Badge, Block, DataTable, Facts, Fold, Notes, PageSection, Paragraph, Report, Span
from whyformer.show.page_facts import list_facts
from whyformer.show.panel_images import render_model_input
from whyformer.show.report import Html, make_element
from whyformer.show.wording import shorten_text

if TYPE_CHECKING:
    from whyformer._summary.result import BulkSummary

TITLE = "What the model looks at"
SHOWN_CARDS, SHOWN_CROPS, SHOWN_CLASSES, SHOWN_WORDS, SHOWN_ROWS, BRIEFLY = 12, 12, 60, 15, 100, 15
MARKED = "background:var(--raised);font-weight:600;text-decoration:underline"  # readable in both modes
ON_SHEET, CROPS_ON_SHEET = 3, 4  # findings of a class, and crops of each
NAME_LENGTH, CAPTION_LENGTH, CONTEXT = 80, 40, 60  # characters
FINDING_HEAD = ("no.", "", "class", "items", "looks at", "hiding", "inserting", "uniformity", "off object", "score")


def make_summary_report(summary: "BulkSummary") -> Report:
    """Sections for a page; the verdict and all tables for a notebook and a terminal."""
    tables = tabulate_summary(summary)
    sections: dict[str, list[Block]] = {
        "In short": [*make_overview(summary), *pick_tables(tables, "evidence"), *make_note_blocks(summary)],
        "Findings": make_finding_blocks(summary, tables),
        "Classes": [*pick_tables(tables, "classes"), *make_class_sheets(summary)],
        "Confusions": make_confusion_blocks(summary),
        "Items unlike their class": [*make_outlier_figures(summary), *pick_tables(tables, "outliers")],
        "Where relevance sits": pick_tables(tables, "places"),
        "Methods": pick_tables(tables, "agreement", "disagreements"),
        "Errors": pick_tables(tables, "errors"),
        "How": [make_method_facts(summary)],
    }
    sentences = [line for one in summary.suspicious for line in wording.explain_finding(one)]
    brief = [*make_overview(summary), *(f"- {line}" for line in sentences), *pick_tables(tables, *tables, most=BRIEFLY)]
    return Report(
        TITLE,
        [PageSection(title, blocks) for title, blocks in sections.items() if blocks],
        lead=describe_summary_scope(summary),
        facts=collect_run_facts(summary),
        brief=[*brief, *make_note_blocks(summary)],
    )


def pick_tables(tables: Mapping[str, DataTable], *names: str, most: int = SHOWN_ROWS) -> list[Block]:
    """Those that have rows, with the first of them."""
    return [tables[name]._replace(rows=tables[name].rows[:most]) for name in names if tables[name].rows]


def collect_run_facts(summary: "BulkSummary") -> dict[str, Any]:
    """What the explanations were made with, as the plan of the run says."""
    plan = summary.plan
    versions = {name: str(plan[name]) for name in ("whyformer", "torch") if name in plan}
    if summary.reader is not None:
        versions = summary.reader.model.describe_versions() | versions
    more = {"run": summary.folder.name, "weights in plan.json": str(get_planned(plan, "model", "weights") or "")}
    settings = get_planned(plan, "methods", summary.method)
    method = {summary.method: settings if isinstance(settings, Mapping) else {}}
    return list_facts(summary.model or "unknown", method, versions, **more)


def describe_summary_scope(summary: "BulkSummary") -> str:
    items = sum(one.items for one in summary.tally.classes.values())
    data = f" of {summary.data}" if summary.data else ""
    return f"{summary.model or 'A model'} on {items} items{data}, explained by {summary.method}."


def make_overview(summary: "BulkSummary") -> list[Block]:
    said = (wording.LOOKED_FOR, wording.NOT_FOUND, write_track_record())
    return [Paragraph(summary.verdict, "strong"), *(Paragraph(line, "dim") for line in said)]


def make_note_blocks(summary: "BulkSummary") -> list[Block]:
    return [Notes(summary.notes)] if summary.notes else []


def tabulate_summary(summary: "BulkSummary") -> dict[str, DataTable]:
    """All tables, in their order in a terminal."""
    tally, short = summary.tally, partial(shorten_text, width=NAME_LENGTH)
    agreement = [[f"{a} ~ {b}", value] for (a, b), value in tally.agreement.items()]
    confusions = [
        [short(one.label), short(one.class_name), one.items,
         wording.name_evidence(one.finding) if one.finding else None, one.shown]
        for one in summary.confusions
    ]  # fmt: skip
    return {
        "evidence": DataTable(
            wording.EVIDENCE_HEAD, wording.list_evidence_cells(summary)[:SHOWN_ROWS], wording.EVIDENCE_TITLE
        ),
        "findings": DataTable(
            FINDING_HEAD, [make_finding_cells(one) for one in summary.records()[:SHOWN_ROWS]],
            "Findings, the most suspicious first", ("off object", "uniformity", "no."),
        ),
        "classes": tabulate_classes(summary),
        "places": DataTable(
            ["method", "on", "share of relevance", "if it were even", "items"], tally.place_shares,
            "Where relevance sits: shares of the positive scores, means over items",
        ),
        "agreement": DataTable(["methods", "mean rank correlation"], agreement, "Do methods agree?"),
        "disagreements": DataTable(
            ["item", "rank correlation"],
            [[short(one.id), one.correlation] for one in tally.disagreements if agreement],
            "Least agreement",
        ),
        "confusions": DataTable(["label", "taken for", "items", "evidence", "show it"], confusions, "Confusions"),
        "outliers": DataTable(
            ["item", "class", "deviations from the class"],
            [[short(one.id), short(one.class_name), one.score] for one in summary.outliers], "Outliers",
        ),
        "errors": DataTable(
            ["code", "rows", "for example", "message"],
            [[one.code, one.rows, short(one.example), one.message[:200]] for one in tally.error_list],
            "Items that failed",
        ),
    }  # fmt: skip


def tabulate_classes(summary: "BulkSummary") -> DataTable:
    rows = [
        [shorten_text(one.name, NAME_LENGTH), one.items, describe_share(one.error_rate),
         ", ".join(f"'{shorten_text(word, 24)}'" for word, _, _ in one.list_top_words(SHOWN_WORDS)) or None]
        for one in summary.tally.class_list[:SHOWN_ROWS]
    ]  # fmt: skip
    width = 4 if any(row[3] for row in rows) else 3
    head = ["class", "items", "wrong", "words with most relevance"]
    return DataTable(head[:width], [row[:width] for row in rows], f"Classes, by {summary.method}")


# --- findings ---------------------------------------------------------------------------------------------------------


def make_finding_blocks(summary: "BulkSummary", tables: Mapping[str, DataTable]) -> list[Block]:
    """A card for each suspicious finding and each that is used, then the table of all."""
    if not summary.findings:
        return ["No class has evidence that enough of its items share."]
    shown = [one for one in summary.findings if one.is_suspicious or one.is_used] or list(summary.findings[:3])
    cards = [block for one in shown[:SHOWN_CARDS] for block in make_finding_card(one, summary)]
    return [*cards, Fold(f"All evidence: {len(summary.findings)}", [tables["findings"]])]


def make_finding_cells(record: wording.FindingRecord) -> list[Span]:
    names = ("looks_at", "hiding", "inserting", "uniformity", "off_object")
    return [
        record["finding"],
        make_suspicion_badge(record) or "",
        shorten_text(str(record["class"]), NAME_LENGTH),
        f"{record['items']} of {record['class_items']}",
        *(record[name] for name in names),
        record["score"] if wording.is_tested(record) else None,
    ]


def make_suspicion_badge(record: wording.FindingRecord) -> Badge | None:
    if record["suspicious"]:
        return Badge("suspicious", "bad")
    return Badge("probable shortcut", "bad") if record["probable"] else None


def make_finding_card(finding: Finding, summary: "BulkSummary") -> list[Block]:
    """The sentence, twelve crops, where they are, the answers, the items to open; folded if it is not suspicious."""
    number = summary.findings.index(finding) + 1
    title = f"{number}. {shorten_text(finding.class_name, NAME_LENGTH)}: {wording.name_evidence(finding)}"
    sentences = [make_element("li", line) for line in wording.explain_finding(finding)[1:]]
    content: list[Block | None] = [
        wording.write_finding_caption(finding),
        f"The case: {'; '.join(finding.case)}." if finding.is_suspicious else None,
        show_evidence(finding.sightings, finding, summary.reader, SHOWN_CROPS),
        tabulate_answers(finding),
        tabulate_presence(finding),
        *show_whole_items(finding.examples, summary.reader),
        Fold("The tests", [make_element("ul", *sentences)]) if sentences else None,
        show_cure(number, summary) if finding.is_suspicious or finding.is_probable else None,
    ]
    blocks = [block for block in content if block is not None]
    if not finding.is_suspicious:
        told = (wording.name_suspicion(finding) or "evidence").capitalize()
        return [Fold(f"{told}: {title}", blocks, is_open=number == 1)]
    return [make_element("h3", title, " ", report.make_verdict_badge("suspicious", "bad")), *blocks]


def show_cure(number: int, summary: "BulkSummary") -> Fold:
    """From the finding to its cure: three commands with the names of this run."""
    run, data = summary.folder.name, summary.data or "DATA"
    model = summary.model or "MODEL"
    steps = {
        f"Export which items show it and where: findings[{number - 1}].items_with_it has their ids, patches and spans.":
            f"whyformer bulk-summary {run} -M {model} -o findings.json",
        "Train again with these patches filled or these words deleted, in all classes alike, and explain the new model "
        "(benchmarks/shortcut_cure.py does both for a small ViT).":
            f"whyformer bulk {data} -M {model}-without -o {run}-without",
        "See whether the evidence moved, and what happened to the predictions.":
            f"whyformer compare-runs {run} {run}-without -o moved.html",
    }  # fmt: skip
    items = [make_element("li", told, make_element("pre", command)) for told, command in steps.items()]
    return Fold("From this finding to its cure", [make_element("ol", *items)])


def show_evidence(
    sightings: Sequence[Sighting], finding: Finding, reader: InputReader | None, count: int
) -> Html | None:
    """The evidence in its most typical items: crops around it, or snippets of text with the words marked."""
    if sightings and sightings[0].row.kind == "text":
        snippets = [make_snippet(one) for one in sightings[:count]]
        return make_element("div", *snippets, class_="rows") if snippets else None
    figures = [figure for one in sightings[:count] if (figure := make_crop(one, reader, finding.where)) is not None]
    if not figures and sightings:
        return make_element("p", "The images are not at hand.", class_="dim")
    if finding.where is not None:
        caption = f"where it is: the share of {len(finding.sightings)} items that show it there"
        image = draw_mean_map(finding.where, limit=1.0)
        figures.append(report.embed_image(image, caption, caption, crisp=True, is_map=True))
    return report.arrange_figures(figures, small=count < SHOWN_CROPS)


def make_crop(one: Sighting, reader: InputReader | None, where: np.ndarray | None = None) -> Html | None:
    """What is around the mark, with the mark outlined; None if the file is gone."""
    image = load_row_image(one.row, reader)
    if image is None:
        return None
    name = shorten_text(one.row.id, CAPTION_LENGTH)
    told = "the mark outlined" if one.box is not None else "the whole image"
    cut = crop_mark(image, one.row.grid, one.patches, where) if one.row.grid is not None and one.patches else image
    return report.embed_image(cut, f"{name}, {told}", name, *describe_wrong(one.row))


def describe_wrong(row: BulkRow) -> list[str]:
    return [f" (predicted {row.prediction_name}, label {row.label})"] if row.is_right is False else []


def make_snippet(one: Sighting) -> Html:
    """The text around the first marked words; the words in bold and underlined."""
    text = one.row.source or ""
    first = min((start for start, _ in one.spans), default=0)
    begin, end = max(0, first - CONTEXT), min(len(text), max((end for _, end in one.spans[:1]), default=0) + CONTEXT)
    parts: list[str | Html] = ["… " if begin else ""]
    place = begin
    for start, stop in sorted(one.spans):
        if place <= start < stop <= end:
            parts += [text[place:start], make_element("mark", text[start:stop], style=MARKED)]
            place = stop
    parts += [text[place:end], " …" if end < len(text) else ""]
    name = make_element("span", shorten_text(one.row.id, CAPTION_LENGTH), class_="dim")
    return make_element("p", name, " ", *parts, *describe_wrong(one.row))


def tabulate_answers(finding: Finding) -> DataTable | None:
    """The answer with and without the evidence."""
    name = shorten_text(finding.class_name, NAME_LENGTH)
    hidden, put = ("undone", "applied to") if finding.kind == "whole" else ("hidden", "put into")
    named = {f"{hidden} in its own items": finding.without, f"{put} items of other classes": finding.put_in}
    rows = [
        [what, one.items, f"{one.before:.2f}", f"{one.after:.2f}", describe_share(one.right_before),
         describe_share(one.right_after)]
        for what, one in named.items() if one is not None
    ]  # fmt: skip
    head = ["the evidence is", "items", f"probability of {name} before", "after", "right before", "right after"]
    return DataTable(head, rows, "The answer without and with it") if rows else None


def describe_share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def tabulate_presence(finding: Finding) -> DataTable | None:
    """How often each class, folder and value of the metadata shows it."""
    rows: list[list[str]] = [
        [shorten_text(one.class_name, NAME_LENGTH), f"{one.shown} of {one.items}", f"{one.share:.0%}"]
        for one in finding.presence[:10]
    ]
    if not rows:
        return None
    head = ["class", "items that show it", "share"]
    if finding.links:
        rows = [[*row, ""] for row in rows] + [
            [f"{one.column} {shorten_text(one.value, NAME_LENGTH)}", "", f"{one.inside:.0%}",
             f"{one.outside:.0%} ({wording.format_p(one.p)})"]
            for one in finding.links
        ]  # fmt: skip
        head = ["class, folder or value", *head[1:], "of its class elsewhere"]
    return DataTable(head, rows, "How often it is shown")


def show_whole_items(rows: Sequence[BulkRow], reader: InputReader | None) -> list[Block]:
    """The items, folded. They are on the page: links would name files of this machine to whoever it is sent to."""
    return [
        Fold(f"Open {shorten_text(row.id, NAME_LENGTH)}", [shown])
        for row in rows if (shown := show_whole_item(row, reader)) is not None
    ]  # fmt: skip


def show_whole_item(row: BulkRow, reader: InputReader | None) -> Html | None:
    if row.kind != "image":
        return make_element("p", row.source or "")
    image = load_row_image(row, reader)
    if image is None:
        return None
    name = shorten_text(row.id, CAPTION_LENGTH)
    return report.arrange_figures([report.embed_image(image, f"{name}, whole", name, *describe_wrong(row))])


# --- classes and places -----------------------------------------------------------------------------------------------


def make_class_sheets(summary: "BulkSummary") -> list[Block]:
    """What each class looks at."""
    sheets = [make_sheet(one, summary) for one in summary.tally.class_list[:SHOWN_CLASSES]]
    return [sheet for sheet in sheets if sheet is not None]


def make_sheet(one: ClassTally, summary: "BulkSummary") -> Fold | None:
    """The mean map of a class and its strongest evidence, with a few crops of each."""
    name = shorten_text(one.name, NAME_LENGTH)
    blocks: list[Block] = []
    for finding in summary.class_findings.get(one.name, [])[:ON_SHEET]:
        shown = show_evidence(finding.sightings, finding, summary.reader, CROPS_ON_SHEET)
        blocks += [wording.write_finding_caption(finding), *([shown] if shown is not None else [])]
    if one.mean_map is not None:
        mean = draw_mean_map(one.mean_map)
        figure = report.embed_image(mean, f"mean map of {name}", "mean of all maps", crisp=True, is_map=True)
        blocks.append(report.arrange_figures([figure], small=True))
    return Fold(f"What {name} is recognised by", blocks) if blocks else None


# --- confusions, items and errors -------------------------------------------------------------------------------------


def make_confusion_blocks(summary: "BulkSummary") -> list[Block]:
    """Which labels are taken for which class, and the evidence for it."""
    blocks: list[Block] = []
    for one in summary.confusions:
        label, name = (shorten_text(text, 40) for text in (one.label, one.class_name))
        told = f"{one.items} items of {label} are taken for {name}"
        if one.finding is None:
            text = f"{told}; they show none of the evidence found for {name}."
            sightings: list[Sighting] = [Sighting(row) for row in one.rows]
        else:
            text = f"{told}; {one.shown} of them show {wording.name_evidence(one.finding)}."
            ids = {row.id for row in one.rows}
            sightings = [sighting for sighting in one.finding.sightings if sighting.row.id in ids]
        shown = [
            figure for sight in sightings[:CROPS_ON_SHEET] if (figure := show_sighting(sight, summary)) is not None
        ]
        blocks.append(Fold(text, [join_sightings(shown, sightings)]))
    return blocks


def make_outlier_figures(summary: "BulkSummary") -> list[Block]:
    """Items whose evidence is far from that of all others of their class."""
    sightings = [point_at_strongest(one.row) for one in summary.outliers[:SHOWN_CROPS]]
    shown = [figure for sight in sightings if (figure := show_sighting(sight, summary)) is not None]
    return [join_sightings(shown, sightings)] if shown else []


def show_sighting(one: Sighting, summary: "BulkSummary") -> Html | None:
    return make_snippet(one) if one.row.kind == "text" else make_crop(one, summary.reader)


def join_sightings(shown: Sequence[Html], sightings: Sequence[Sighting]) -> Html:
    if sightings and sightings[0].row.kind == "text":
        return make_element("div", *shown, class_="rows")
    return report.arrange_figures(shown, small=True)


def point_at_strongest(row: BulkRow) -> Sighting:
    """The patch or the token with the largest score."""
    best = 0 if row.scores is None else int(row.scores.argmax())
    if row.kind != "text":
        return Sighting(row, patches=() if row.grid is None else (best,))
    span = row.spans[best] if row.spans else None
    return Sighting(row, spans=() if span is None else (span,))


def make_method_facts(summary: "BulkSummary") -> Facts:
    facts = {
        "evidence": "The hidden states of the most relevant patches, early and late, clustered per class; traits of "
        "whole items; words by how many texts they decide.",
        "sample": f"at most {summary.settings.get('per_class')} items per class, chosen by a hash of seed and id; "
        f"seed {summary.settings.get('seed')}",
        "tests": f"at most {summary.settings.get('tested')} items per finding; paired permutation tests, "
        "corrected by Holm over all findings",
    }
    return Facts(facts)


def load_row_image(row: BulkRow, reader: InputReader | None) -> Image.Image | None:
    """The image as the model sees it; without the model, the whole image as a square. None if the file is gone."""
    try:
        if reader is None:
            return as_image(row.source or "").resize((IMAGE_SIDE, IMAGE_SIDE))
        encoded = reader.model.encode([reader.read_row_image(row)])
    except InputError:
        return None
    return render_model_input(encoded.inputs[encoded.main][0], IMAGE_SIDE)
