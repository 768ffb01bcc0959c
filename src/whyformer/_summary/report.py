"""The report of a summary: one self-contained HTML page, the most suspicious cluster first."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from whyformer._summary.examples import draw_mean_map, make_examples
from whyformer._summary.suspicion import CONDITIONS, Finding
from whyformer._summary.wording import (
    EVIDENCE_HEAD,
    EVIDENCE_TITLE,
    LOOKED_FOR,
    NOT_FOUND,
    ClusterRecord,
    describe_looks,
    explain_suspicion,
    is_tested,
    make_evidence_cells,
)
from whyformer.show import report
from whyformer.show.page_facts import list_facts
from whyformer.show.report import Html, make_element
from whyformer.show.wording import shorten_text

if TYPE_CHECKING:
    from whyformer._summary.result import BulkSummary

TITLE = "What the model looks at"
SHOWN_CLUSTERS, SHOWN_EXAMPLES, SHOWN_CLASSES, SHOWN_WORDS, SHOWN_ROWS = 30, 6, 60, 15, 100
NAME_LENGTH = 80
CLUSTER_HEAD = (
    "no.", "", "class", "items", "looks at", "wrong", "wrong outside", "hiding", "inserting", "same", "one class",
    "off object", "score",
)  # fmt: skip


def make_summary_page(summary: "BulkSummary") -> str:
    """The whole page."""
    sections = {
        "In short": make_overview(summary),
        "Clusters": make_cluster_blocks(summary),
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
    more = {"run": summary.folder.name, "weights in plan.json": plan.get("model", {}).get("weights", "")}
    method = {summary.method: plan.get("methods", {}).get(summary.method, {})}
    return list_facts(summary.model or "unknown", method, versions, **more)


def make_summary_fragment(summary: "BulkSummary") -> str:
    """The verdict and the table of clusters, for a notebook."""
    verdict, scope = make_element("p", make_element("strong", summary.verdict)), make_element("p", NOT_FOUND)
    return report.make_fragment(report.make_section(TITLE, verdict, scope, tabulate_clusters(summary.records())))


def describe_summary_scope(summary: "BulkSummary") -> str:
    items = sum(one.items for one in summary.tally.classes.values())
    data = f" of {summary.data}" if summary.data else ""
    return f"{summary.model or 'A model'} on {items} items{data}, explained by {summary.method}."


def make_overview(summary: "BulkSummary") -> list[Html]:
    rows = [make_evidence_cells(*one) for one in list(summary.evidence.items())[:SHOWN_ROWS]]
    blocks: list[Html] = [
        make_element("p", make_element("strong", summary.verdict)),
        make_element("p", LOOKED_FOR),
        make_element("p", NOT_FOUND),
        *([report.make_table(EVIDENCE_HEAD, rows, caption=EVIDENCE_TITLE)] if rows else []),
    ]
    return [*blocks, report.make_notes(summary.notes)] if summary.notes else blocks


# --- clusters ---------------------------------------------------------------------------------------------------------


def make_cluster_blocks(summary: "BulkSummary") -> list[Html]:
    """The table of all clusters, then one block for each of the first ones."""
    if not summary.findings:
        return [make_element("p", "No class has enough items to be clustered.")]
    blocks = [tabulate_clusters(summary.records()), make_element("p", CONDITIONS, class_="dim")]
    for number, finding in enumerate(summary.findings[:SHOWN_CLUSTERS], 1):
        blocks += make_cluster_card(finding, number, summary)
    return blocks


def tabulate_clusters(records: Sequence[ClusterRecord]) -> Html:
    rows = [make_cluster_cells(record) for record in records[:SHOWN_ROWS]]
    return report.make_table(CLUSTER_HEAD, rows, caption="Clusters of evidence, the most suspicious first")


def make_cluster_cells(record: ClusterRecord) -> list[str | float | None]:
    return [
        record["cluster"],
        report.make_verdict_badge("suspicious", "bad") if record["suspicious"] else "",
        shorten_text(record["class"], NAME_LENGTH),
        f"{record['items']} of {record['class_items']}",
        record["looks_at"],
        record["error_rate"],
        record["outsiders_error_rate"],
        record["hiding"],
        record["inserting"],
        record["sameness"],
        record["exclusivity"],
        record["off_object"],
        record["score"] if is_tested(record) else None,
    ]


def make_cluster_card(finding: Finding, number: int, summary: "BulkSummary") -> list[Html]:
    """A heading, the facts, the mean map and example items; folded if it is neither suspicious nor among the first."""
    name = shorten_text(finding.cluster.sampled.name, NAME_LENGTH)
    title = f"Cluster {number}: {name}, {describe_looks(finding.cluster)}"
    sentences = make_element("ul", *(make_element("li", line) for line in explain_suspicion(finding)))
    content = [sentences, make_examples(finding.cluster, summary.reader, SHOWN_EXAMPLES)]
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
    pairs = [[f"{a} ~ {b}", value] for (a, b), value in summary.tally.agreement.items()]
    if pairs:
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
        "clusters": "Spectral relevance analysis (Lapuschkin et al. 2019): the positive shares of relevance of the "
        "items of a class, their nearest neighbours, the normalised Laplacian, the gap in its eigenvalues, k-means.",
        "sample": f"at most {summary.settings.get('per_class')} items per class, chosen by a hash of seed and id; "
        f"seed {summary.settings.get('seed')}",
        "tests": f"at most {summary.settings.get('tested')} items per cluster; paired permutation tests, "
        "corrected by Holm over all clusters",
        "outliers": "mean distance to the nearest neighbours above 0.5 (at most 1.41), its modified z-score above 5",
    }
    return [report.make_fact_list(facts)]
