"""The findings of an audit: the rows of all tests, their summary, and the verdict in sentences."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from whyformer._audit.checks import AuditRow
from whyformer._audit.report import verdict
from whyformer._audit.report.summary import Statistics, summarise_audit
from whyformer._audit.report.verdict import VerdictSentence
from whyformer._plain import archive


def write_indented_json(kind: str, fields: archive.Fields) -> bytes:
    return json.dumps(json.loads(archive.to_json_text(kind, fields)), indent=1).encode("ascii")


@dataclass(frozen=True, eq=False, repr=False)
class AuditFindings:
    """What was measured, and what follows from it."""

    rows: tuple[AuditRow, ...]
    attention: tuple[str, ...]  # names of the audited attention
    descriptions: tuple[str, ...]  # what replacing each of them means, in a sentence
    model: str
    data: str
    labels: tuple[str, ...] | None
    settings: archive.Fields
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def marks_spans(self) -> bool:
        """Whether the model marks an answer in a text: its classes are spans, see checks/span_model.py."""
        return self.settings.get("answers") == "spans"

    @cached_property
    def summary(self) -> Statistics:
        """All statistics, with intervals and numbers of examples; see summary.py."""
        return summarise_audit(self.rows, self.attention, self.labels, marks_spans=self.marks_spans)

    @cached_property
    def sentences(self) -> dict[str, list[VerdictSentence]]:
        """The verdict on each attention; under "" what holds for all attention of the model."""
        by_attention = self.summary["attention"]
        return {
            "": verdict.describe_model_tests(self.summary["baseline"], self.summary["shape"]),
            **{name: verdict.describe_attention_tests(name, by_attention[name]) for name in self.attention},
        }

    @cached_property
    def headlines(self) -> dict[str, str]:
        """The verdict on each attention in one sentence."""
        by_attention, shape = self.summary["attention"], self.summary["shape"]
        return {name: verdict.write_audit_headline(name, by_attention[name], shape) for name in self.attention}

    def of(self, test: str, attention: str = "") -> list[AuditRow]:
        """The rows of one test, one per example."""
        return [row for row in self.rows if row["test"] == test and row["attention"] == attention]

    def __len__(self) -> int:
        return self.summary["answers"]["n"]
