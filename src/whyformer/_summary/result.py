"""BulkSummary: the result of summarise_bulk(), to read, show and save."""

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table as Grid
from rich.text import Text

from whyformer._plain import archive
from whyformer._plain.json_value import JsonValue
from whyformer._summary.clusters import Outlier
from whyformer._summary.inputs import InputReader
from whyformer._summary.report import make_summary_fragment, make_summary_page
from whyformer._summary.scope import (
    CANNOT_FIND,
    EVIDENCE_HEAD,
    EVIDENCE_TITLE,
    LOOKED_FOR,
    NOT_FOUND,
    list_class_evidence,
    make_evidence_cells,
)
from whyformer._summary.suspicion import Finding
from whyformer._summary.tally import Tally, list_errors, list_pairs
from whyformer._summary.wording import describe_looks, explain_suspicion, write_summary_verdict
from whyformer.results.result import Result, to_plain_text
from whyformer.show import terminal
from whyformer.show.score_rows import as_csv_cell
from whyformer.show.terminal import Screen
from whyformer.show.visible import make_visible
from whyformer.show.wording import shorten_text

CLUSTER_COLUMNS = (
    "class cluster items class_items looks_at share expected_share error_rate outsiders_error_rate exclusivity "
    "hiding hiding_p inserting inserting_p sameness sameness_p off_object score suspicious untested"
).split()
SHOWN_WORDS, SHOWN_CLASSES, SHOWN_CLUSTERS, SHOWN_ITEMS = 8, 40, 15, 5  # in a terminal


@dataclass(frozen=True, eq=False)
class BulkSummary(Result):
    """What a bulk run found, per class and per cluster of evidence, the most suspicious first."""

    folder: Path
    model: str | None
    data: str | None
    tally: Tally = field(repr=False)
    findings: tuple[Finding, ...] = field(repr=False)
    outliers: tuple[Outlier, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    reader: InputReader | None = field(default=None, repr=False)  # for the examples on the page
    plan: Mapping[str, JsonValue] = field(default_factory=dict, repr=False)  # of the bulk run

    formats: ClassVar[Mapping[str, Callable[[Any], bytes]]] = {
        ".html": lambda summary: make_summary_page(summary).encode("utf-8"),
        ".json": lambda summary: summary_to_json(summary),
        ".csv": lambda summary: clusters_to_csv(summary).encode("utf-8", "backslashreplace"),
        ".txt": to_plain_text,
    }

    @property
    def suspicious(self) -> tuple[Finding, ...]:
        """The clusters that meet every condition of suspicion."""
        return tuple(finding for finding in self.findings if finding.is_suspicious)

    @property
    def verdict(self) -> str:
        return write_summary_verdict(self)

    @property
    def evidence(self) -> dict[str, Finding | None]:
        """By class, the finding with the largest effect, suspicious or not; None for a class with too few items."""
        return list_class_evidence(self)

    @property
    def method(self) -> str:
        return self.tally.method

    def records(self) -> list[dict[str, Any]]:
        """One mapping per cluster, in the order of suspicion."""
        return [make_record(finding, number) for number, finding in enumerate(self.findings, 1)]

    # --- showing ------------------------------------------------------------------------------------------------------

    def render(self, screen: Screen | None = None) -> str:
        """As text for a terminal: verdict, clusters, classes, places, disagreements, errors and notes."""
        parts: list[Any] = [Text(make_visible(self.verdict), "bold")]
        for finding in self.suspicious:
            parts += [Text(make_visible(f"  - {line}")) for line in explain_suspicion(finding)]
        parts += [Text(line, "dim") for line in (LOOKED_FOR, NOT_FOUND)]
        evidence = [make_evidence_cells(*one) for one in list(self.evidence.items())[:SHOWN_CLASSES]]
        parts += make_block(EVIDENCE_TITLE, EVIDENCE_HEAD, evidence) if evidence else []
        parts += self._cluster_parts() + self._class_parts() + self._place_parts() + self._item_parts()
        if self.tally.errors:
            rows = [(one.code, str(one.rows), one.example) for one in list_errors(self.tally.errors.values())]
            parts += make_block("Errors", ("code", "rows", "for example"), rows, numbers=(1,))
        parts += ["", *(Text(make_visible(f"note: {note}"), "dim") for note in self.notes)] if self.notes else []
        return terminal.render_parts(parts, screen or Screen.from_stdout())

    def _cluster_parts(self) -> list[Any]:
        head = ("class", "items", "looks at", "hide", "insert", "same", "one class", "score", "")
        rows = [
            (
                one.cluster.sampled.name,
                f"{len(one.cluster.members)}/{len(one.cluster.sampled.rows)}",
                describe_looks(one.cluster),
                format_number(one.hiding.difference if one.hiding else None, "+.2f"),
                format_number(one.inserting.difference if one.inserting else None, "+.2f"),
                format_number(one.sameness.value if one.sameness else None, ".2f"),
                format_number(one.exclusivity, ".2f"),
                format_number(one.score if one.is_tested else None, ".3f"),
                "suspicious" if one.is_suspicious else "",
            )
            for one in self.findings[:SHOWN_CLUSTERS]
        ]
        return make_block("Clusters", head, rows, numbers=range(3, 8)) if rows else []

    def _class_parts(self) -> list[Any]:
        classes = sorted(self.tally.classes.values(), key=lambda one: (-one.items, one.name))[:SHOWN_CLASSES]
        has_words = any(one.word_sums for one in classes)
        rows = [
            (
                one.name,
                str(one.items),
                format_number(one.error_rate, ".1%"),
                *([", ".join(shorten_text(w, 20) for w, _, _ in one.list_top_words(SHOWN_WORDS))] if has_words else []),
            )
            for one in classes
        ]
        head = ("class", "items", "wrong", *(["words with most relevance"] if has_words else []))
        return make_block(f"Classes, by {self.method}", head, rows, numbers=(1, 2)) if rows else []

    def _place_parts(self) -> list[Any]:
        rows = [
            (one.method, place, f"{one.sums[place] / count:.1%}", f"{one.expected[place] / count:.1%}")
            for one in self.tally.places.values()
            for place, count in one.items.items()
        ]
        head = ("method", "on", "share", "if even")
        return make_block("Where relevance sits", head, rows, numbers=(2, 3)) if rows else []

    def _item_parts(self) -> list[Any]:
        parts = []
        pairs = [(f"{a} ~ {b}", f"{value:+z.2f}") for (a, b), value in list_pairs(self.tally).items()]
        if pairs:
            parts += make_block("Do methods agree?", ("methods", "mean rank correlation"), pairs, numbers=(1,))
            lowest = [(one.id, f"{one.correlation:+z.2f}") for one in self.tally.disagreements[:SHOWN_ITEMS]]
            parts += make_block("Least agreement", ("item", "rank correlation"), lowest, numbers=(1,))
        if self.outliers:
            rows = [(one.id, one.class_name, f"{one.score:.1f}") for one in self.outliers[:SHOWN_ITEMS]]
            parts += make_block("Outliers", ("item", "class", "deviations"), rows, numbers=(2,))
        return parts

    def to_html(self) -> str:
        """The verdict and the clusters as a fragment of HTML, for a notebook."""
        return make_summary_fragment(self)


def make_block(title: str, head: Any, rows: Any, numbers: Any = ()) -> list[Any]:
    """A heading and a table for a terminal."""
    grid = Grid(box=None, pad_edge=False, header_style="dim")
    for i, name in enumerate(head):
        grid.add_column(name, justify="right" if i in numbers else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(make_visible(shorten_text(cell, 80))) for cell in row))
    return ["", Text(make_visible(title), "bold"), grid]


def format_number(value: float | None, form: str) -> str:
    return "–" if value is None or value != value else format(value, form)


# --- files ------------------------------------------------------------------------------------------------------------


def make_record(finding: Finding, number: int) -> dict[str, Any]:
    """The facts of a cluster, one value per column."""
    cluster = finding.cluster
    values = (
        cluster.sampled.name,
        number,
        len(cluster.members),
        len(cluster.sampled.rows),
        describe_looks(cluster),
        float(cluster.shares.mean()) if cluster.has_common else None,
        cluster.expected if cluster.has_common else None,
        finding.error_rate,
        finding.outsiders_error_rate,
        finding.exclusivity,
        finding.hiding and finding.hiding.difference,
        finding.hiding and finding.hiding.adjusted_p,
        finding.inserting and finding.inserting.difference,
        finding.inserting and finding.inserting.adjusted_p,
        finding.sameness and finding.sameness.value,
        finding.sameness and finding.sameness.adjusted_p,
        finding.off_object,
        finding.score,
        finding.is_suspicious,
        finding.untested,
    )
    return dict(zip(CLUSTER_COLUMNS, values, strict=True))


def clusters_to_csv(summary: BulkSummary) -> str:
    """One row per cluster."""
    file = StringIO()
    writer = csv.DictWriter(file, CLUSTER_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for record in summary.records():
        writer.writerow({key: as_csv_cell(value) for key, value in record.items()})
    return file.getvalue()


def summary_to_json(summary: BulkSummary) -> bytes:
    """Everything but the images, as JSON."""
    tally = summary.tally
    fields = {
        "verdict": summary.verdict,
        "looked_for": LOOKED_FOR,
        "cannot_find": CANNOT_FIND,
        "strongest": [describe_evidence(summary, name) for name in summary.evidence],
        "model": summary.model,
        "data": summary.data,
        "method": summary.method,
        "methods": dict(tally.methods),
        "rows": tally.rows,
        "errors": [asdict(error) for error in list_errors(tally.errors.values())],
        "classes": [describe_class(summary, name) for name in sorted(tally.classes)],
        "places": [
            {"method": one.method, "place": place, "share": one.sums[place] / count,
             "expected": one.expected[place] / count, "items": count}
            for one in tally.places.values() for place, count in one.items.items()
        ],
        "agreement": [{"methods": list(pair), "correlation": value} for pair, value in list_pairs(tally).items()],
        "disagreements": [asdict(one) for one in tally.disagreements],
        "outliers": [asdict(one) for one in summary.outliers],
        "clusters": [
            make_record(one, number) | describe_cluster(one) for number, one in enumerate(summary.findings, 1)
        ],
        "notes": summary.notes,
        "settings": summary.settings,
        "made_with": describe_making(summary.plan),
    }  # fmt: skip
    return (json.dumps(archive.as_json_value(fields), indent=1) + "\n").encode("ascii")


def describe_evidence(summary: BulkSummary, name: str) -> dict[str, Any]:
    """The strongest evidence of a class: its cluster, by number, and its effect; null where nothing was tested."""
    finding = summary.evidence[name]
    if finding is None:
        return {"class": name, "cluster": None, "effect": None, "suspicious": False}
    return {
        "class": name,
        "cluster": summary.findings.index(finding) + 1,
        "looks_at": describe_looks(finding.cluster),
        "effect": finding.effect if finding.is_tested else None,
        "suspicious": finding.is_suspicious,
    }


def describe_class(summary: BulkSummary, name: str) -> dict[str, Any]:
    one = summary.tally.classes[name]
    words = [{"word": word, "share": share, "items": items} for word, share, items in one.list_top_words(50)]
    mean = None if one.mean_map is None else one.mean_map.tolist()
    return {"name": name, "items": one.items, "error_rate": one.error_rate, "mean_map": mean, "words": words}


def describe_cluster(finding: Finding) -> dict[str, Any]:
    """What has no place in a table: the items, the region, the tests in full."""
    cluster = finding.cluster
    return {
        "ids": [row.id for row in cluster.rows],
        "region": None if cluster.region is None else cluster.region.astype(int).tolist(),
        "words": cluster.words,
        "mean_map": None if cluster.mean_map is None else cluster.mean_map.tolist(),
        "criteria": finding.criteria,
        "hiding_test": finding.hiding and asdict(finding.hiding),
        "inserting_test": finding.inserting and asdict(finding.inserting),
        "recovery": finding.recovery and asdict(finding.recovery),
        "sentences": explain_suspicion(finding),
    }


def describe_making(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What the bulk run was made with: the hash of the weights, the settings of every method, the versions."""
    model = plan.get("model")
    weights = model.get("weights") if isinstance(model, Mapping) else None
    return {"weights": weights, **{name: plan.get(name) for name in ("methods", "whyformer", "torch")}}
