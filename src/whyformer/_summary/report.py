"""The report of a summary: one self-contained HTML page, the most suspicious finding first."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from whyformer._summary import wording
from whyformer._summary.finding import Finding, Sighting
from whyformer.show import report
from whyformer.show.page_facts import list_facts
from whyformer.show.report import Html, make_element
from whyformer.show.score_rows import CellValue
from whyformer.show.wording import shorten_text

if TYPE_CHECKING:
    from whyformer._summary.result import BulkSummary
import numpy as np
from PIL import Image

from whyformer._model import as_image
from whyformer._runs.parts import BulkRow
from whyformer._summary.inputs import InputReader
from whyformer._summary.pictures import IMAGE_SIDE, crop_mark, draw_mean_map
from whyformer._summary.rows import get_planned
from whyformer._summary.tally import ClassTally
from whyformer._summary.track_record import write_track_record
from whyformer.errors import InputError
from whyformer.show.panel_images import render_model_input

TITLE = "What the model looks at"
SHOWN_CARDS, SHOWN_CROPS, SHOWN_CLASSES, SHOWN_WORDS, SHOWN_ROWS = 12, 12, 60, 15, 100
MARKED = "background:var(--raised);font-weight:600;text-decoration:underline"  # readable in both modes
ON_SHEET, CROPS_ON_SHEET = 3, 4  # findings of a class, and crops of each
NAME_LENGTH, CAPTION_LENGTH, CONTEXT = 80, 40, 60  # characters
FINDING_HEAD = ("no.", "", "class", "items", "looks at", "hiding", "inserting", "uniformity", "off object", "score")


def make_summary_page(summary: "BulkSummary") -> str:
    """The whole page."""
    sections = {
        "In short": make_overview(summary),
        "Findings": make_finding_blocks(summary),
        "Classes": make_class_blocks(summary),
        "Confusions": make_confusion_blocks(summary),
        "Items unlike their class": make_outlier_blocks(summary),
        "Where relevance sits": make_place_blocks(summary),
        "Methods": make_agreement_blocks(summary),
        "Errors": make_error_blocks(summary),
        "How": make_method_blocks(summary),
    }
    shown = {title: blocks for title, blocks in sections.items() if blocks}
    anchors = report.make_anchors(shown)
    content = [report.make_section(title, *shown[title], anchor=anchor) for anchor, title in anchors.items()]
    about = collect_run_facts(summary)
    return report.make_page(TITLE, content, lead=describe_summary_scope(summary), about=about, contents=anchors)


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


def make_summary_fragment(summary: "BulkSummary") -> str:
    """The verdict and the table of findings, for a notebook."""
    verdict, scope = make_element("p", make_element("strong", summary.verdict)), make_element("p", wording.NOT_FOUND)
    return report.make_fragment(report.make_section(TITLE, verdict, scope, tabulate_findings(summary.records())))


def describe_summary_scope(summary: "BulkSummary") -> str:
    items = sum(one.items for one in summary.tally.classes.values())
    data = f" of {summary.data}" if summary.data else ""
    return f"{summary.model or 'A model'} on {items} items{data}, explained by {summary.method}."


def make_overview(summary: "BulkSummary") -> list[Html]:
    rows = wording.list_evidence_cells(summary)[:SHOWN_ROWS]
    blocks: list[Html] = [
        make_element("p", make_element("strong", summary.verdict)),
        make_element("p", wording.LOOKED_FOR),
        make_element("p", wording.NOT_FOUND),
        make_element("p", write_track_record()),
        *([report.make_table(wording.EVIDENCE_HEAD, rows, caption=wording.EVIDENCE_TITLE)] if rows else []),
    ]
    return [*blocks, report.make_notes(summary.notes)] if summary.notes else blocks


# --- findings ---------------------------------------------------------------------------------------------------------


def make_finding_blocks(summary: "BulkSummary") -> list[Html]:
    """A card for each suspicious finding and each that is used, then the table of all."""
    if not summary.findings:
        return [make_element("p", "No class has evidence that enough of its items share.")]
    shown = [one for one in summary.findings if one.is_suspicious or one.is_used] or list(summary.findings[:3])
    blocks: list[Html] = []
    for finding in shown[:SHOWN_CARDS]:
        blocks += make_finding_card(finding, summary)
    table = tabulate_findings(summary.records())
    return [*blocks, report.fold_content(f"All evidence: {len(summary.findings)}", table)]


def tabulate_findings(records: Sequence[wording.FindingRecord]) -> Html:
    rows = [make_finding_cells(record) for record in records[:SHOWN_ROWS]]
    return report.make_table(FINDING_HEAD, rows, caption="Evidence, the most suspicious first")


def make_finding_cells(record: wording.FindingRecord) -> list[CellValue]:
    names = ("looks_at", "hiding", "inserting", "uniformity", "off_object")
    return [
        record["finding"],
        make_suspicion_badge(record) or "",
        shorten_text(str(record["class"]), NAME_LENGTH),
        f"{record['items']} of {record['class_items']}",
        *(record[name] for name in names),
        record["score"] if wording.is_tested(record) else None,
    ]


def make_suspicion_badge(record: wording.FindingRecord) -> Html | None:
    if record["suspicious"]:
        return report.make_verdict_badge("suspicious", "bad")
    return report.make_verdict_badge("probable shortcut", "bad") if record["probable"] else None


def make_finding_card(finding: Finding, summary: "BulkSummary") -> list[Html]:
    """The sentence, twelve crops, where they are, the answers, the items to open; folded if it is not suspicious."""
    number = summary.findings.index(finding) + 1
    title = f"{number}. {shorten_text(finding.class_name, NAME_LENGTH)}: {wording.name_evidence(finding)}"
    sentences = [make_element("li", line) for line in wording.explain_finding(finding)[1:]]
    content = [
        make_element("p", wording.write_finding_caption(finding)),
        make_element("p", f"The case: {'; '.join(finding.case)}.") if finding.is_suspicious else None,
        show_evidence(finding.sightings, finding, summary.reader, SHOWN_CROPS),
        tabulate_answers(finding),
        tabulate_presence(finding),
        *show_whole_items(finding.examples, summary.reader),
        report.fold_content("The tests", make_element("ul", *sentences)) if sentences else None,
        show_cure(number, summary) if finding.is_suspicious or finding.is_probable else None,
    ]
    blocks = [block for block in content if block is not None]
    if not finding.is_suspicious:
        return [report.fold_content(f"Look at this: {title}", *blocks, open_=number == 1)]
    return [make_element("h3", title, " ", report.make_verdict_badge("suspicious", "bad")), *blocks]


def show_cure(number: int, summary: "BulkSummary") -> Html:
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
    return report.fold_content("From this finding to its cure", make_element("ol", *items))


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


def tabulate_answers(finding: Finding) -> Html | None:
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
    return report.make_table(head, rows, caption="The answer without and with it") if rows else None


def describe_share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def tabulate_presence(finding: Finding) -> Html | None:
    """How often each class, folder and value of the metadata shows it."""
    rows: list[list[CellValue]] = [
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
    return report.make_table(head, rows, caption="How often it is shown")


def show_whole_items(rows: Sequence[BulkRow], reader: InputReader | None) -> list[Html]:
    """The items, folded. They are on the page: links would name files of this machine to whoever it is sent to."""
    return [
        report.fold_content(f"Open {shorten_text(row.id, NAME_LENGTH)}", shown)
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


def make_class_blocks(summary: "BulkSummary") -> list[Html]:
    """The table of classes, then a sheet of what each looks at."""
    classes = summary.tally.class_list
    if not classes:
        return []
    rows = [
        [shorten_text(one.name, NAME_LENGTH), one.items, describe_share(one.error_rate),
         ", ".join(f"'{shorten_text(word, 24)}'" for word, _, _ in one.list_top_words(SHOWN_WORDS)) or None]
        for one in classes[:SHOWN_ROWS]
    ]  # fmt: skip
    has_words = any(row[3] for row in rows)
    head = ["class", "items", "wrong", "words with most relevance"]
    table = report.make_table(head if has_words else head[:3], rows if has_words else [row[:3] for row in rows])
    sheets = [make_sheet(one, summary) for one in classes[:SHOWN_CLASSES]]
    return [table, *(sheet for sheet in sheets if sheet is not None)]


def make_sheet(one: ClassTally, summary: "BulkSummary") -> Html | None:
    """The mean map of a class and its strongest evidence, with a few crops of each."""
    name = shorten_text(one.name, NAME_LENGTH)
    blocks: list[Html] = []
    for finding in summary.class_findings.get(one.name, [])[:ON_SHEET]:
        shown = show_evidence(finding.sightings, finding, summary.reader, CROPS_ON_SHEET)
        blocks += [make_element("p", wording.write_finding_caption(finding)), *([shown] if shown is not None else [])]
    if one.mean_map is not None:
        mean = draw_mean_map(one.mean_map)
        figure = report.embed_image(mean, f"mean map of {name}", "mean of all maps", crisp=True, is_map=True)
        blocks.append(report.arrange_figures([figure], small=True))
    return report.fold_content(f"What {name} is recognised by", *blocks) if blocks else None


def make_place_blocks(summary: "BulkSummary") -> list[Html]:
    rows = summary.tally.place_shares
    head = ["method", "on", "share of relevance", "if it were even", "items"]
    return [report.make_table(head, rows, caption="Shares of the positive scores, means over items")] if rows else []


# --- confusions, items and errors -------------------------------------------------------------------------------------


def make_confusion_blocks(summary: "BulkSummary") -> list[Html]:
    """Which labels are taken for which class, and the evidence for it."""
    blocks: list[Html] = []
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
        blocks.append(report.fold_content(text, join_sightings(shown, sightings)))
    return blocks


def make_outlier_blocks(summary: "BulkSummary") -> list[Html]:
    """Items whose evidence is far from that of all others of their class."""
    if not summary.outliers:
        return []
    rows = [[shorten_text(o.id, NAME_LENGTH), shorten_text(o.class_name, 40), o.score] for o in summary.outliers]
    sightings = [point_at_strongest(one.row) for one in summary.outliers[:SHOWN_CROPS]]
    shown = [figure for sight in sightings if (figure := show_sighting(sight, summary)) is not None]
    table = report.make_table(["item", "class", "deviations from the class"], rows)
    return [join_sightings(shown, sightings), table]


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


def make_agreement_blocks(summary: "BulkSummary") -> list[Html]:
    pairs = [[f"{a} ~ {b}", value] for (a, b), value in summary.tally.agreement.items()]
    if not pairs:
        return []
    lowest = [[shorten_text(one.id, NAME_LENGTH), one.correlation] for one in summary.tally.disagreements]
    return [
        report.make_table(["methods", "mean rank correlation"], pairs, caption="Do methods agree?"),
        report.make_table(["item", "rank correlation"], lowest, caption="Items on which the methods agree least"),
    ]


def make_error_blocks(summary: "BulkSummary") -> list[Html]:
    rows = [
        [one.code, one.rows, shorten_text(one.example, NAME_LENGTH), one.message[:200]]
        for one in summary.tally.error_list
    ]
    return [report.make_table(["code", "rows", "for example", "message"], rows)] if rows else []


def make_method_blocks(summary: "BulkSummary") -> list[Html]:
    facts = {
        "evidence": "The hidden states of the most relevant patches, early and late, clustered per class; traits of "
        "whole items; words by how many texts they decide.",
        "sample": f"at most {summary.settings.get('per_class')} items per class, chosen by a hash of seed and id; "
        f"seed {summary.settings.get('seed')}",
        "tests": f"at most {summary.settings.get('tested')} items per finding; paired permutation tests, "
        "corrected by Holm over all findings",
    }
    return [report.make_fact_list(facts)]


def load_row_image(row: BulkRow, reader: InputReader | None) -> Image.Image | None:
    """The image as the model sees it; without the model, the whole image as a square. None if the file is gone."""
    try:
        if reader is None:
            return as_image(row.source or "").resize((IMAGE_SIDE, IMAGE_SIDE))
        encoded = reader.model.encode([reader.read_row_image(row)])
    except InputError:
        return None
    return render_model_input(encoded.inputs[encoded.main][0], IMAGE_SIDE)
