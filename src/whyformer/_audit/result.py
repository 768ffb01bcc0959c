"""Audit: what was found, to be read, shown and kept."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from whyformer._audit import verdict
from whyformer._audit.summary import summarise_audit
from whyformer._audit.verdict import VerdictSentence
from whyformer._plain import archive


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """The rows of all tests, and what they come to."""

    rows: tuple[Mapping[str, Any], ...]
    attention: tuple[str, ...]  # what was questioned, by name
    said: tuple[str, ...]  # what replacing it means, in a sentence each
    model: str
    data: str
    labels: tuple[str, ...] | None
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """All figures, with intervals and numbers of examples; see summary.py."""
        return summarise_audit(self.rows, self.attention, self.labels)

    @cached_property
    def sentences(self) -> dict[str, list[VerdictSentence]]:
        """What the figures say about each attention; under "" what they say about all of it."""
        found = {
            name: verdict.describe_attention_tests(name, self.summary["attention"][name]) for name in self.attention
        }
        return {
            "": verdict.describe_baseline(self.summary["baseline"]) + verdict.describe_shape(self.summary["shape"]),
            **found,
        }

    @cached_property
    def headlines(self) -> dict[str, str]:
        return {name: verdict.write_audit_headline(name, self.summary["attention"][name]) for name in self.attention}

    def of(self, test: str, attention: str = "") -> list[Mapping[str, Any]]:
        """The rows of one test, one an example."""
        return [row for row in self.rows if row["test"] == test and row["attention"] == attention]

    def __len__(self) -> int:
        return self.summary["answers"]["n"]

    def __repr__(self) -> str:
        return f"<Audit of {', '.join(self.attention)} in {self.model}: {len(self)} examples>"

    def __str__(self) -> str:
        return self.render()

    def render(self) -> str:
        """The verdict as plain text."""
        lines = [f"Is attention an explanation here? {self.model} on {len(self)} examples of {self.data}", ""]
        for name in self.attention:
            lines += [self.headlines[name]]
            lines += [f"  - {one.text} ({one.evidence})" for one in self.sentences[name]]
            lines.append("")
        lines += [f"  - {one.text} ({one.evidence})" for one in self.sentences[""]]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines).rstrip()

    # --- files --------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file: .html the report, .json all rows and figures, .txt the verdict."""
        archive.write_file(path, FORMATS[archive.suffix_of(path, FORMATS)](self))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Audit":
        """What was saved as .json."""
        return archive.read_archive(path, "audit", audit_from_fields)


def audit_to_json(audit: Audit) -> bytes:
    fields = {
        "model": audit.model, "data": audit.data, "attention": audit.attention, "said": audit.said,
        "labels": audit.labels, "settings": audit.settings, "versions": audit.versions, "notes": audit.notes,
        "headlines": audit.headlines, "sentences": audit.sentences, "summary": audit.summary, "rows": audit.rows,
    }  # fmt: skip
    return json.dumps(json.loads(archive.to_json_text("audit", fields)), indent=1).encode("ascii")


def audit_from_fields(held: Mapping[str, Any]) -> Audit:
    return Audit(
        rows=tuple(held["rows"]),
        attention=tuple(held["attention"]),
        said=tuple(held["said"]),
        model=held["model"],
        data=held["data"],
        labels=tuple(held["labels"]) if held["labels"] is not None else None,
        settings=held["settings"],
        versions=held["versions"],
        notes=tuple(held["notes"]),
    )


def audit_to_html(audit: Audit) -> bytes:
    from whyformer._audit.report import make_audit_page

    return make_audit_page(audit).encode("utf-8")


FORMATS: dict[str, Callable[[Audit], bytes]] = {
    ".html": audit_to_html,
    ".json": audit_to_json,
    ".txt": lambda audit: (audit.render() + "\n").encode("utf-8", "backslashreplace"),
}
