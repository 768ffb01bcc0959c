"""The report of a summary: one self-contained HTML page, the most suspicious cluster first."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from whyformer._summary import wording
from whyformer._summary.finding import Finding
from whyformer.show import report
from whyformer.show.page_facts import list_facts
from whyformer.show.report import Html, make_element
from whyformer.show.score_rows import CellValue
from whyformer.show.wording import shorten_text

if TYPE_CHECKING:
    from whyformer._summary.result import BulkSummary
import numpy as np
import torch
from PIL import Image, ImageDraw

from whyformer._model import as_image
from whyformer._runs.parts import BulkRow
from whyformer._summary.inputs import InputReader
from whyformer._summary.rows import get_planned
from whyformer.errors import InputError
from whyformer.show.colours import find_limits, paint_scores
from whyformer.show.panel_images import render_model_input

TITLE = "What the model looks at"
SHOWN_FINDINGS, SHOWN_EXAMPLES, SHOWN_CLASSES, SHOWN_WORDS, SHOWN_ROWS = 30, 6, 60, 15, 100
NAME_LENGTH = 80
SIDE = 256  # pixels of an example
PALENESS = 0.3  # of what is outside the region
MAX_WORDS = 60  # of a text
CAPTION_LENGTH = 40
FINDING_HEAD = ("no.", "", "class", "items", "looks at", "hiding", "inserting", "uniformity", "off object", "score")


def make_summary_page(summary: "BulkSummary") -> str:
    """The whole page."""
    sections = {
        "In short": make_overview(summary),
        "Findings": make_finding_blocks(summary),
        "Classes": make_class_blocks(summary),
        "Where relevance sits": make_place_blocks(summary),
        "Items": make_item_blocks(summary),
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
    rows = [wording.make_evidence_cells(*one) for one in list(summary.evidence.items())[:SHOWN_ROWS]]
    blocks: list[Html] = [
        make_element("p", make_element("strong", summary.verdict)),
        make_element("p", wording.LOOKED_FOR),
        make_element("p", wording.NOT_FOUND),
        *([report.make_table(wording.EVIDENCE_HEAD, rows, caption=wording.EVIDENCE_TITLE)] if rows else []),
    ]
    return [*blocks, report.make_notes(summary.notes)] if summary.notes else blocks


# --- findings ---------------------------------------------------------------------------------------------------------


def make_finding_blocks(summary: "BulkSummary") -> list[Html]:
    """The table of all findings, then one block for each of the first ones."""
    if not summary.findings:
        return [make_element("p", "No class has enough items to be examined.")]
    blocks = [tabulate_findings(summary.records())]
    for number, finding in enumerate(summary.findings[:SHOWN_FINDINGS], 1):
        blocks += make_finding_card(finding, number, summary)
    return blocks


def tabulate_findings(records: Sequence[wording.FindingRecord]) -> Html:
    rows = [make_finding_cells(record) for record in records[:SHOWN_ROWS]]
    return report.make_table(FINDING_HEAD, rows, caption="Evidence, the most suspicious first")


def make_finding_cells(record: wording.FindingRecord) -> list[CellValue]:
    names = ("looks_at", "hiding", "inserting", "uniformity", "off_object")
    return [
        record["finding"],
        report.make_verdict_badge("suspicious", "bad") if record["suspicious"] else "",
        shorten_text(str(record["class"]), NAME_LENGTH),
        f"{record['items']} of {record['class_items']}",
        *(record[name] for name in names),
        record["score"] if wording.is_tested(record) else None,
    ]


def make_finding_card(finding: Finding, number: int, summary: "BulkSummary") -> list[Html]:
    """A heading, the facts and example items; folded if it is neither suspicious nor among the first."""
    name = shorten_text(finding.class_name, NAME_LENGTH)
    title = f"Finding {number}: {name}, {finding.what}"
    sentences = make_element("ul", *(make_element("li", line) for line in wording.explain_finding(finding)))
    content = [sentences, make_examples(finding, summary.reader, SHOWN_EXAMPLES)]
    if not finding.is_suspicious and number > 3:
        return [report.fold_content(title, *content)]
    badge = report.make_verdict_badge("suspicious", "bad") if finding.is_suspicious else None
    return [make_element("h3", title, " ", badge), *content]


# --- classes and places -----------------------------------------------------------------------------------------------


def make_class_blocks(summary: "BulkSummary") -> list[Html]:
    """Mean maps, or a table of words."""
    classes = summary.tally.class_list
    if not classes:
        return []
    rows = [
        [shorten_text(one.name, NAME_LENGTH), one.items, one.error_rate,
         ", ".join(f"'{shorten_text(word, 24)}'" for word, _, _ in one.list_top_words(SHOWN_WORDS)) or None]
        for one in classes[:SHOWN_ROWS]
    ]  # fmt: skip
    has_words = any(row[3] for row in rows)
    head = ["class", "items", "wrong", "words with most relevance"]
    table = report.make_table(head if has_words else head[:3], rows if has_words else [row[:3] for row in rows])
    maps = [
        report.embed_image(draw_mean_map(one.mean_map), f"mean map of {shorten_text(one.name, NAME_LENGTH)}",
                           shorten_text(one.name, NAME_LENGTH), crisp=True, is_map=True)
        for one in classes[:SHOWN_CLASSES] if one.mean_map is not None
    ]  # fmt: skip
    return [table, report.arrange_figures(maps, small=True)] if maps else [table]


def make_place_blocks(summary: "BulkSummary") -> list[Html]:
    rows = summary.tally.place_shares
    head = ["method", "on", "share of relevance", "if it were even", "items"]
    return [report.make_table(head, rows, caption="Shares of the positive scores, means over items")] if rows else []


# --- items and errors -------------------------------------------------------------------------------------------------


def make_item_blocks(summary: "BulkSummary") -> list[Html]:
    blocks: list[Html] = []
    if pairs := [[f"{a} ~ {b}", value] for (a, b), value in summary.tally.agreement.items()]:
        blocks.append(report.make_table(["methods", "mean rank correlation"], pairs, caption="Do methods agree?"))
        lowest = [[shorten_text(one.id, NAME_LENGTH), one.correlation] for one in summary.tally.disagreements]
        head = ["item", "rank correlation"]
        blocks.append(report.make_table(head, lowest, caption="Items on which the methods agree least"))
    if summary.outliers:
        rows = [[shorten_text(o.id, NAME_LENGTH), shorten_text(o.class_name, 40), o.score] for o in summary.outliers]
        caption = "Outliers: items whose evidence is far from that of all others of their class"
        blocks.append(report.make_table(["item", "class", "deviations"], rows, caption=caption))
    return blocks


def make_error_blocks(summary: "BulkSummary") -> list[Html]:
    rows = [
        [one.code, one.rows, shorten_text(one.example, NAME_LENGTH), one.message[:200]]
        for one in summary.tally.error_list
    ]
    return [report.make_table(["code", "rows", "for example", "message"], rows)] if rows else []


def make_method_blocks(summary: "BulkSummary") -> list[Html]:
    facts = {
        "evidence": "The hidden states of the most relevant patches, clustered per class; words by how many texts they "
        "decide.",
        "sample": f"at most {summary.settings.get('per_class')} items per class, chosen by a hash of seed and id; "
        f"seed {summary.settings.get('seed')}",
        "tests": f"at most {summary.settings.get('tested')} items per finding; paired permutation tests, "
        "corrected by Holm over all findings",
    }
    return [report.make_fact_list(facts)]


# --- examples ---------------------------------------------------------------------------------------------------------


def make_examples(finding: Finding, reader: InputReader | None, count: int) -> Html:
    """The most typical items side by side, or texts."""
    if finding.kind == "words":
        return make_element("div", *(make_element("p", one.row.source) for one in finding.sightings[:count]))
    figures = []
    for one in finding.sightings[:count]:
        region = np.zeros(one.row.grid or (1, 1), dtype=bool)
        region.ravel()[list(one.patches)] = True
        figures.append(make_cluster_figure(one.row, region, reader))
    return report.arrange_figures([figure for figure in figures if figure is not None])


def make_cluster_figure(row: BulkRow, region: np.ndarray | None, reader: InputReader | None) -> Html | None:
    """The image with the region marked and its name; None if the file is gone."""
    image = load_thumbnail(row, reader)
    if image is None:
        return None
    if region is not None:
        image = mark_region(image, region)
    name = shorten_text(row.id, CAPTION_LENGTH)
    caption = f"{name} (predicted {row.prediction_name}, label {row.label})" if row.is_right is False else name
    return report.embed_image(image, f"the image {name}", caption)


def load_thumbnail(row: BulkRow, reader: InputReader | None) -> Image.Image | None:
    """The image as the model sees it; without the model, the whole image as a square."""
    try:
        if reader is None:
            return as_image(row.source or "").resize((SIDE, SIDE))
        encoded = reader.model.encode([reader.read_row_image(row)])
    except InputError:
        return None
    return render_model_input(encoded.inputs[encoded.main][0], SIDE)


def mark_region(image: Image.Image, region: np.ndarray) -> Image.Image:
    """The image, paler outside the region. Nothing is drawn inside it, so that what is there can be read."""
    inside = Image.fromarray((255 * region).astype(np.uint8)).resize(image.size, Image.Resampling.NEAREST)
    pale = Image.blend(image, Image.new("RGB", image.size, "white"), PALENESS)
    outline_region(pale, region)
    pale.paste(image, mask=inside)
    return pale


def outline_region(image: Image.Image, region: np.ndarray) -> None:
    """Draw the border between the region and the rest, black on white so that it shows on any image."""
    draw = ImageDraw.Draw(image)
    for colour, width in (("white", 6), ("black", 3)):
        for line in list_edges(region, image.width, image.height):
            draw.line(line, fill=colour, width=width)


def list_edges(region: np.ndarray, width: int, height: int) -> list[tuple[float, float, float, float]]:
    """The sides of patches that are between the region and the rest, in pixels."""
    rows, columns = region.shape
    padded = np.pad(region, 1)
    across, down = width / columns, height / rows
    above = np.argwhere(padded[1:] != padded[:-1])  # between row y - 1 and row y of the region
    left = np.argwhere(padded[:, 1:] != padded[:, :-1])
    lines = [((x - 1) * across, y * down, x * across, y * down) for y, x in above]
    return lines + [(x * across, (y - 1) * down, x * across, y * down) for y, x in left]


def draw_mean_map(shares: np.ndarray, region: np.ndarray | None = None) -> Image.Image:
    """A mean map in the colours of unsigned scores."""
    scores = torch.from_numpy(np.ascontiguousarray(shares))
    limits = find_limits(scores, signed=False, floor=0.0)
    image = Image.fromarray(paint_scores(scores, limits, signed=False).byte().numpy())
    image = image.resize((SIDE, SIDE), Image.Resampling.NEAREST)
    if region is not None:
        outline_region(image, region)
    return image
