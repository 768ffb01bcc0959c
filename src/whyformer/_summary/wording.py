"""What a summary says: where a cluster looks, why it is suspicious, what was looked for and cannot be found.

That nothing is suspicious says only that nothing of this kind was found, so the strongest evidence is shown either way.
"""

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from whyformer._summary.clusters import Cluster
from whyformer._summary.hiding import find_usual_place
from whyformer._summary.suspicion import Effect, Finding, Recovery, compute_error_rate
from whyformer.show.score_rows import CellValue
from whyformer.show.wording import shorten_text

if TYPE_CHECKING:
    from whyformer._summary.result import BulkSummary

VERTICAL, HORIZONTAL = ("upper", "middle", "lower"), ("left", "centre", "right")
NO_ALL_CLEAR = (
    "This is no all-clear: a model may still depend on a mark that moves, a border, a mark on part of a class, a "
    "transparent mark or a change of the whole input, none of which is found this way."
)


def describe_looks(cluster: Cluster) -> str:
    """What the items of a cluster look at: "the lower left", "the word 'reuters'"."""
    if cluster.region is not None:
        return describe_region(cluster.region)
    if cluster.words:
        named = ", ".join(repr(shorten_text(word, 24)) for word in cluster.words)
        return f"the word{'s' if len(cluster.words) > 1 else ''} {named}"
    return "no common place or word"


def describe_region(region: np.ndarray) -> str:
    """The part of the image in which the centre of the region is."""
    rows, columns = region.shape
    down, across = (float(np.mean(places)) for places in np.nonzero(region))
    vertical = VERTICAL[min(2, int(3 * (down + 0.5) / rows))]
    horizontal = HORIZONTAL[min(2, int(3 * (across + 0.5) / columns))]
    return "the centre" if (vertical, horizontal) == ("middle", "centre") else f"the {vertical} {horizontal}"


def explain_suspicion(finding: Finding) -> list[str]:
    """One sentence per fact about a tested cluster."""
    cluster = finding.cluster
    size, total = len(cluster.members), len(cluster.sampled.rows)
    what = "patches" if cluster.region is not None else "words"
    lines = [
        f"{size} of {total} items of {cluster.sampled.name} look at {describe_looks(cluster)}: "
        f"{float(np.mean(cluster.shares)):.0%} of the relevance is on {cluster.expected:.1%} of the {what}."
        if cluster.has_common
        else f"{size} of {total} items of {cluster.sampled.name}; they have no place or word in common."
    ]
    if finding.untested:
        return [*lines, f"Not tested: {finding.untested}."] if cluster.has_common else lines
    if finding.hiding is not None:
        lines.append(f"Hiding it lowers the probability of the class by {describe_effect(finding.hiding)}.")
    if finding.inserting is not None:
        verb = "Writing it into texts" if cluster.region is None else "Pasting it into images"
        lines.append(f"{verb} of other classes raises it by {describe_effect(finding.inserting)}.")
    if finding.sameness is not None:
        lines.append(describe_sameness(finding))
    if finding.exclusivity is not None:
        lines.append(f"Items of other classes look there {1 - finding.exclusivity:.0%} as often.")
    if finding.off_object is not None:
        lines.append(f"{finding.off_object:.0%} of the relevance there is off the object.")
    if finding.recovery is not None:
        lines.append(describe_recovery(finding.recovery))
    return lines


def describe_effect(effect: Effect) -> str:
    return (
        f"{effect.change:z.2f}, the same elsewhere by {effect.elsewhere:z.2f} (difference {effect.difference:+z.2f}, "
        f"95 % interval {effect.low:+z.2f} to {effect.high:+z.2f}, {effect.items} items, {format_p(effect.adjusted_p)})"
    )


def describe_sameness(finding: Finding) -> str:
    assert finding.sameness is not None
    same, p = finding.sameness, format_p(finding.sameness.adjusted_p)
    if finding.cluster.region is None:
        end, place, share = find_usual_place(finding.cluster)
        where = f"in {share:.0%} of the texts within a word of place {place + 1} from the {end}"
        return f"The word is {where} (sameness {same.value:z.2f}, {p})."
    other = "other items of the class" if same.in_class else "items of other classes"
    return f"What is there varies {1 - same.value:.0%} as much as in {other} (sameness {same.value:z.2f}, {p})."


def describe_recovery(recovery: Recovery) -> str:
    parts = []
    if recovery.object_before is not None and recovery.object_after is not None:
        parts.append(
            f"{recovery.object_after:.0%} of the relevance for what is predicted then is on the object (before: "
            f"{recovery.object_before:.0%})"
        )
    if recovery.right_before is not None and recovery.right_after is not None:
        parts.append(f"{recovery.right_after:.0%} of the predictions are right (before: {recovery.right_before:.0%})")
    hidden = f"With all that is the same there hidden ({recovery.area:.0%} of the image)"
    return f"{hidden}, {' and '.join(parts)}." if parts else f"{hidden}, neither labels nor masks say more."


def format_p(p: float) -> str:
    if p != p:
        return "p unknown"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.0995 else f"p = {p:z.2f}"


def write_summary_verdict(summary: "BulkSummary") -> str:
    """What is suspicious; or that nothing of the kind was found, which clears no model."""
    tested = sum(finding.is_tested for finding in summary.findings)
    clusters = f"{len(summary.findings)} cluster{'' if len(summary.findings) == 1 else 's'}"
    if summary.findings and not any(finding.cluster.has_common for finding in summary.findings):
        return f"{clusters} found, none with a common place or word, so none tested. {NO_ALL_CLEAR}"
    if not tested:
        return f"{clusters} found, none tested: so nothing can be called suspicious or harmless."
    if not summary.suspicious:
        return f"{clusters} found, {tested} tested, none meets all conditions of suspicion. {NO_ALL_CLEAR}"
    first = summary.suspicious[0].cluster
    more = f" {len(summary.suspicious) - 1} more below." if len(summary.suspicious) > 1 else ""
    constant = "is at the same place" if first.region is None else "shows the same thing"
    return (
        f"Suspicious: {len(first.members)} of {len(first.sampled.rows)} items of {first.sampled.name} depend on "
        f"{describe_looks(first)}, which {constant} in all of them.{more}"
    )


ClusterRecord: TypeAlias = dict[str, CellValue]  # by column
CLUSTER_COLUMNS = (
    "class cluster items class_items looks_at share expected_share error_rate outsiders_error_rate exclusivity "
    "hiding hiding_p inserting inserting_p sameness sameness_p off_object score suspicious untested"
).split()


def make_record(finding: Finding, number: int) -> ClusterRecord:
    """The record of a cluster. number: its place in the order of suspicion."""
    cluster, effects = finding.cluster, (finding.hiding, finding.inserting)
    tests = [value for one in effects for value in ((None, None) if one is None else (one.difference, one.adjusted_p))]
    same = finding.sameness
    values = (
        cluster.sampled.name,
        number,
        len(cluster.members),
        len(cluster.sampled.rows),
        describe_looks(cluster),
        float(cluster.shares.mean()) if cluster.has_common else None,
        cluster.expected if cluster.has_common else None,
        compute_error_rate(cluster.rows),
        compute_error_rate(cluster.outsiders),
        finding.exclusivity,
        *tests,
        *((None, None) if same is None else (same.value, same.adjusted_p)),
        finding.off_object,
        finding.score,
        finding.is_suspicious,
        finding.untested,
    )
    return dict(zip(CLUSTER_COLUMNS, values, strict=True))


def is_tested(record: ClusterRecord) -> bool:
    return record["hiding"] is not None or record["inserting"] is not None


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
    return {
        one.name: max(findings.get(one.name, ()), key=lambda finding: (finding.is_tested, finding.effect), default=None)
        for one in summary.tally.class_list
    }


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
