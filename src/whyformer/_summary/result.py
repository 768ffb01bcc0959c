"""BulkSummary: the result of summarise_bulk(), to read, show and save."""

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

from whyformer._plain import archive
from whyformer._plain.json_value import JsonValue
from whyformer._summary import wording
from whyformer._summary.finding import Confusion, Finding, Outlier
from whyformer._summary.inputs import InputReader
from whyformer._summary.report import make_summary_report
from whyformer._summary.rows import get_planned
from whyformer._summary.tally import ClassTally, Tally
from whyformer._summary.track_record import read_track_record
from whyformer.results.result import Result, choose_formats
from whyformer.show.blocks import Report
from whyformer.show.score_rows import as_csv_cell
from whyformer.show.visible import make_visible


@dataclass(frozen=True, eq=False, repr=False)
class BulkSummary(Result):
    """What a bulk run found: the evidence of each class, tested, the most suspicious first."""

    folder: Path
    model: str | None
    data: str | None
    tally: Tally = field(repr=False)
    findings: tuple[Finding, ...] = field(repr=False)
    outliers: tuple[Outlier, ...] = field(default=(), repr=False)
    confusions: tuple[Confusion, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    settings: Mapping[str, int | bool] = field(default_factory=dict)
    reader: InputReader | None = field(default=None, repr=False)  # for the examples on the page
    plan: Mapping[str, JsonValue] = field(default_factory=dict, repr=False)  # of the bulk run

    formats: ClassVar[Mapping[str, Callable[[Any], bytes]]] = {
        **choose_formats(".html .txt"),
        ".json": lambda summary: summary_to_json(summary),
        ".csv": lambda summary: findings_to_csv(summary).encode("utf-8", "backslashreplace"),
    }

    def __repr__(self) -> str:
        found = f"{len(self.findings)} findings, {len(self.suspicious)} suspicious"
        return f"<BulkSummary of {make_visible(str(self.folder))}: {found}>"

    @property
    def suspicious(self) -> tuple[Finding, ...]:
        """The findings that are called suspicious, the most suspicious first."""
        return tuple(finding for finding in self.findings if finding.is_suspicious)

    @property
    def verdict(self) -> str:
        return wording.write_summary_verdict(self)

    @property
    def evidence(self) -> dict[str, Finding | None]:
        """By class, its suspicious finding or else the one with the largest effect; None where nothing was found."""
        return {name: next(iter(found), None) for name, found in self.class_findings.items()}

    @property
    def class_findings(self) -> dict[str, list[Finding]]:
        """By class, all its findings: suspicious ones first, then the largest effect."""
        return wording.list_class_findings(self)

    @property
    def method(self) -> str:
        return self.tally.method

    def records(self) -> list[wording.FindingRecord]:
        """One mapping per finding, in the order of suspicion."""
        return [wording.make_record(finding, number) for number, finding in enumerate(self.findings, 1)]

    def _report(self) -> Report:
        return make_summary_report(self)


# --- files ------------------------------------------------------------------------------------------------------------


def findings_to_csv(summary: BulkSummary) -> str:
    """One row per finding."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(wording.FINDING_COLUMNS)
    writer.writerows(map(as_csv_cell, record.values()) for record in summary.records())
    return file.getvalue()


def summary_to_json(summary: BulkSummary) -> bytes:
    """Everything but the images, as JSON."""
    tally = summary.tally
    fields = {
        "verdict": summary.verdict,
        "looked_for": wording.LOOKED_FOR,
        "cannot_find": wording.CANNOT_FIND,
        "track_record": read_track_record(),
        "strongest": [describe_evidence(summary, name) for name in summary.evidence],
        "model": summary.model,
        "data": summary.data,
        "method": summary.method,
        "methods": dict(tally.methods),
        "rows": tally.rows,
        "errors": [asdict(error) for error in tally.error_list],
        "classes": [describe_class(tally.classes[name]) for name in sorted(tally.classes)],
        "places": [share._asdict() for share in tally.place_shares],
        "agreement": [{"methods": list(pair), "correlation": value} for pair, value in tally.agreement.items()],
        "disagreements": [asdict(one) for one in tally.disagreements],
        "outliers": [{"id": one.id, "class": one.class_name, "score": one.score} for one in summary.outliers],
        "confusions": [describe_confusion(summary, one) for one in summary.confusions],
        "findings": [
            {**record, **describe_finding(finding)}
            for record, finding in zip(summary.records(), summary.findings, strict=True)
        ],
        "notes": summary.notes,
        "settings": summary.settings,
        "made_with": {
            "weights": get_planned(summary.plan, "model", "weights"),
            **{name: summary.plan.get(name) for name in ("methods", "whyformer", "torch")},
        },
    }
    return (json.dumps(archive.as_json_value(fields), indent=1) + "\n").encode("ascii")


def describe_evidence(summary: BulkSummary, name: str) -> dict[str, Any]:
    """The strongest evidence of a class: its finding, by number, and its effect; null where nothing was tested."""
    finding = summary.evidence[name]
    if finding is None:
        return {"class": name, "finding": None, "effect": None, "suspicious": False}
    return {
        "class": name,
        "finding": summary.findings.index(finding) + 1,
        "looks_at": wording.name_evidence(finding),
        "effect": finding.effect if finding.is_tested else None,
        "suspicious": finding.is_suspicious,
    }


def describe_confusion(summary: BulkSummary, one: Confusion) -> dict[str, Any]:
    number = None if one.finding is None else summary.findings.index(one.finding) + 1
    return {
        "label": one.label, "prediction": one.class_name, "items": one.items, "ids": [row.id for row in one.rows],
        "finding": number, "shown": one.shown,
    }  # fmt: skip


def describe_class(one: ClassTally) -> dict[str, Any]:
    words = [{"word": word, "share": share, "items": items} for word, share, items in one.list_top_words(50)]
    mean = None if one.mean_map is None else one.mean_map.tolist()
    return {"name": one.name, "items": one.items, "error_rate": one.error_rate, "mean_map": mean, "words": words}


def describe_finding(finding: Finding) -> dict[str, Any]:
    """What has no place in a table: the items, where the evidence is, the tests in full."""
    return {
        "items_with_it": [
            {"id": one.row.id, "patches": one.patches, "spans": one.spans, "likeness": one.likeness}
            for one in finding.sightings
        ],
        "where": None if finding.where is None else finding.where.tolist(),
        "presence": [asdict(one) for one in finding.presence],
        "criteria": finding.criteria,
        "case": finding.case,
        "hiding_test": finding.hiding and asdict(finding.hiding),
        "inserting_test": finding.inserting and asdict(finding.inserting),
        "unusual_test": finding.unusual and asdict(finding.unusual),
        "uniformity_test": finding.uniformity and asdict(finding.uniformity),
        "without": finding.without and asdict(finding.without),
        "put_in": finding.put_in and asdict(finding.put_in),
        "links": [asdict(one) for one in finding.links],
        "sentences": wording.explain_finding(finding),
    }
