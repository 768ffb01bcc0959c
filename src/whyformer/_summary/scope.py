"""The scope of a summary: what was looked for, what cannot be found, and the strongest evidence of each class.

That nothing is suspicious says only that nothing of this kind was found, so the strongest evidence is shown either way.
"""

from typing import TYPE_CHECKING

from whyformer._summary.effect import Effect
from whyformer._summary.suspicion import Finding
from whyformer._summary.wording import describe_looks, format_p
from whyformer.show.wording import shorten_text

if TYPE_CHECKING:
    from whyformer._summary.result import BulkSummary

LOOKED_FOR = (
    "Looked for: relevance of many items of one class at one common place, or on common words, that changes the answer "
    "when it is hidden or put into items of other classes."
)
CANNOT_FIND = (
    "marks that move from item to item",
    "borders and frames",
    "marks on part of a class",
    "transparent marks",
    "changes of the whole input, such as its colour, brightness or style",
)
NOT_FOUND = f"Not found this way, or only by luck: {'; '.join(CANNOT_FIND)}; and whatever the maps do not show."
EVIDENCE_TITLE = "Strongest evidence of each class, suspicious or not"
EVIDENCE_HEAD = ("class", "items", "looks at", "hiding", "inserting", "conditions not met")
NAME_LENGTH = 60


def list_class_evidence(summary: "BulkSummary") -> dict[str, Finding | None]:
    """By class, the finding with the largest effect; None for a class that was not clustered."""
    findings: dict[str, list[Finding]] = {}
    for finding in summary.findings:
        findings.setdefault(finding.cluster.sampled.name, []).append(finding)
    classes = sorted(summary.tally.classes.values(), key=lambda one: (-one.items, one.name))
    return {one.name: max(findings.get(one.name, ()), key=rank_evidence, default=None) for one in classes}


def rank_evidence(finding: Finding) -> tuple[bool, float]:
    return finding.is_tested, finding.effect


def make_evidence_cells(name: str, finding: Finding | None) -> list[str]:
    """One row under EVIDENCE_HEAD."""
    name = shorten_text(name, NAME_LENGTH)
    if finding is None:
        return [name, "–", "too few items", "–", "–", "not examined"]
    cluster = finding.cluster
    missed = [condition for condition, holds in finding.criteria.items() if holds is False]
    unknown = [condition for condition, holds in list(finding.criteria.items())[:-1] if holds is None]
    parts = [", ".join(missed), f"not known: {', '.join(unknown)}" if unknown and cluster.has_common else ""]
    return [
        name,
        f"{len(cluster.members)} of {len(cluster.sampled.rows)}",
        describe_looks(cluster),
        format_effect(finding.hiding),
        format_effect(finding.inserting),
        "none: suspicious" if finding.is_suspicious else "; ".join(part for part in parts if part),
    ]


def format_effect(effect: Effect | None) -> str:
    """The change of the probability beyond that of the same change elsewhere, with its interval."""
    if effect is None:
        return "not tested"
    return f"{effect.difference:+z.2f} [{effect.low:+z.2f}, {effect.high:+z.2f}], {format_p(effect.adjusted_p)}"
