"""What a summary says: what a finding is, why it is suspicious, what was looked for and cannot be found.

That nothing is suspicious says only that nothing of this kind was found, so the strongest evidence is shown either way.
"""

import re
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from whyformer._summary.finding import (
    MIN_CLASS,
    SMALLEST_OFF_OBJECT,
    AnswerChange,
    Effect,
    Finding,
    Uniformity,
    describe_link,
)
from whyformer.show.score_rows import CellValue
from whyformer.show.wording import shorten_text

if TYPE_CHECKING:
    from whyformer._summary.result import BulkSummary

VERTICAL, HORIZONTAL = ("upper", "middle", "lower"), ("left", "centre", "right")
LOOKED_FOR = (
    "Looked for, in each class: patches that are alike to the model early or late, wherever they are in the image "
    "(marks, labels, logos, borders, captions, lines); words, names, punctuation or phrases that decide many texts, "
    "and a few of them together. Each is tested by hiding it where it is and inserting it where it is not. Also: the "
    "colour, colour cast, tone, sharpness, texture (noise, compression), lines and falloff of images, faint drawings "
    "that a class has in common, the length and punctuation of texts, if they set a class apart; tested by undoing and "
    "applying the change on whole items."
)
CANNOT_FIND = (
    "marks that change the answer little more than other evidence of the same items does",
    "several marks of which each is enough, unless mostly the same items show them",
    "words and phrases in texts of which other words decide as much",
    "single words at changing positions in less than a quarter of a class",
    "marks in fewer than 8 items or a tenth of a class",
    "changes of the whole input that set no class apart, such as a slight colour cast, or are of another kind",
    "marks in classes that were not sampled, and whatever the maps do not show",
)
NOT_FOUND = f"Not found this way, or only by luck: {'; '.join(CANNOT_FIND)}."
NO_ALL_CLEAR = "This is no all-clear: look at the strongest evidence of each class below."
EVIDENCE_TITLE = "Strongest evidence of each class, suspicious or not"
EVIDENCE_HEAD = ("class", "items", "looks at", "hiding", "inserting", "uniformity", "")
NAME_LENGTH = 60
HARDLY = 0.05  # a smaller change of a probability is named as one
NO_EFFECT = 0.005  # of a probability: what two decimals show as 0.00
MARK = re.compile("^a (mark|band)")
FIXED = 0.5  # of the items cover a patch of a mark at a fixed place


def describe_place(where: np.ndarray) -> str:
    """What the grown mark is called, from the share of items that cover each patch."""
    core = where >= FIXED
    if not core.any():
        return "a mark at changing places"
    border = np.ones(core.shape, dtype=bool)
    border[1:-1, 1:-1] = False
    if core[border].mean() >= 0.75:
        return "a border around the image"
    rows, columns = core.shape
    down, across = (float(np.mean(places)) for places in np.nonzero(core))
    vertical = VERTICAL[min(2, int(3 * (down + 0.5) / rows))]
    horizontal = HORIZONTAL[min(2, int(3 * (across + 0.5) / columns))]
    if core.any(0).mean() >= 0.75 and core.any(1).mean() <= 0.5:
        return f"a band across the {vertical} part"
    is_central = (vertical, horizontal) == ("middle", "centre")
    return "a mark in the centre" if is_central else f"a mark, {vertical} {horizontal}"


def write_finding_caption(finding: Finding) -> str:
    """One sentence: the mark, the class, the effect, and where it is concentrated."""
    name, parts = shorten_text(finding.class_name, NAME_LENGTH), list[str]()
    hidden, inserted = ("undone", "applied") if finding.kind == "whole" else ("hidden", "inserted")
    if finding.without is not None:
        parts.append(f"{hidden}, the probability of {name} {describe_change(finding.without)}{describe_loss(finding)}")
    if finding.put_in is not None:
        parts.append(f"{inserted} elsewhere, it goes from {finding.put_in.before:.2f} to {finding.put_in.after:.2f}")
    parts += [describe_link(link) for link in finding.links if link.value != finding.class_name][:1]
    shown = "stand out by" if finding.kind == "whole" else "show"
    told_what = f"{len(finding.sightings)} of {finding.class_items} items of {name} {shown} {name_evidence(finding)}"
    return f"{told_what}: {'; '.join(parts)}." if finding.is_tested else f"{told_what}; not tested: {finding.untested}."


def name_evidence(finding: Finding) -> str:
    """What it is; a mark or a band only if it is suspected, and not on the object: a part of the thing is no mark."""
    on_object = finding.off_object is not None and finding.off_object < SMALLEST_OFF_OBJECT
    if on_object and MARK.match(finding.what):
        return finding.part or "a part of the object"
    return (
        finding.what if finding.is_suspicious or finding.is_probable else MARK.sub("a part of the image", finding.what)
    )


def describe_loss(finding: Finding) -> str:
    """The accuracy that goes with it, if it is known and falls."""
    told = finding.without
    if told is None or told.right_before is None or told.right_after is None or told.right_after >= told.right_before:
        return ""
    return f" ({told.right_before:.0%} -> {told.right_after:.0%} of them right)"


def describe_change(told: AnswerChange) -> str:
    """'falls from 0.98 to 0.47', 'hardly changes (0.98 to 0.97)', 'does not change (0.98)'"""
    if f"{told.before:.2f}" == f"{told.after:.2f}":
        return f"does not change ({told.before:.2f})"
    if abs(told.before - told.after) < HARDLY:
        return f"hardly changes ({told.before:.2f} to {told.after:.2f})"
    return f"{'falls' if told.after < told.before else 'rises'} from {told.before:.2f} to {told.after:.2f}"


def explain_finding(finding: Finding) -> list[str]:
    """One sentence per fact."""
    lines = [write_finding_caption(finding)]
    hiding, inserting = ("Undoing", "Applying") if finding.kind == "whole" else ("Hiding", "Inserting")
    if finding.hiding is not None:
        lines.append(f"{hiding} it lowers the probability by {describe_effect(finding.hiding)}.")
    if finding.inserting is not None:
        lines.append(f"{inserting} it raises the probability by {describe_effect(finding.inserting)}.")
    if (usual := finding.unusual) is not None:
        lines.append(
            f"The best evidence of items without it, as large, raises the probability of their classes by "
            f"{usual.elsewhere:z.2f} (it: {usual.change:z.2f}, {format_p(usual.adjusted_p)})."
        )
    if finding.uniformity is not None:
        one = finding.uniformity
        lines.append(
            f"Uniformity {one.value:.2f} (95 % interval {one.low:.2f} to {one.high:.2f}; {describe_limit(one)})."
        )
    if finding.without is not None:
        lines += describe_right(finding.without)
    if finding.case:
        lines.append(f"The case: {'; '.join(finding.case)}.")
    if finding.off_object is not None:
        lines.append(f"{finding.off_object:.0%} of it is off the object.")
    return lines


def describe_limit(uniformity: Uniformity) -> str:
    """From which value on it speaks for a mark; evidence that other classes show as often has no such value."""
    if uniformity.limit == float("inf"):
        return "other classes show it as often"
    return f"natural evidence seldom has {uniformity.limit:.2f}" if uniformity.limit <= 1 else "too rare to say more"


def describe_right(told: AnswerChange) -> list[str]:
    if told.right_before is None or told.right_after is None:
        return []
    area = f" ({told.area:.0%} of the image)" if told.area is not None else ""
    return [
        f"With it hidden{area}, {told.right_after:.0%} of the predictions are right (before: {told.right_before:.0%})."
    ]


def describe_effect(effect: Effect) -> str:
    return (
        f"{effect.change:z.2f}, control evidence by {effect.elsewhere:z.2f} (difference {effect.difference:+z.2f}, "
        f"95 % interval {effect.low:+z.2f} to {effect.high:+z.2f}, {effect.items} items, {format_p(effect.adjusted_p)})"
    )


def format_p(p: float) -> str:
    if p != p:
        return "p unknown"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.0995 else f"p = {p:z.2f}"


def write_summary_verdict(summary: "BulkSummary") -> str:
    """What is suspicious; or that nothing of the kind was found, which clears no model."""
    tested = sum(finding.is_tested for finding in summary.findings)
    if not tested:
        return "Nothing was tested, so nothing is called suspicious or harmless."
    probable = [one for one in summary.findings if one.is_probable]
    if probable and not summary.suspicious:
        return f"A probable shortcut: {write_finding_caption(probable[0])} {NO_ALL_CLEAR}"
    if not summary.suspicious:
        kinds = "1 kind" if tested == 1 else f"{tested} kinds"
        return f"{kinds} of evidence tested, none is suspicious. {NO_ALL_CLEAR}"
    count = len(summary.suspicious) + len(probable) - 1
    more = f" {count} more below." if count else ""
    return f"Suspicious: {write_finding_caption(summary.suspicious[0])}{more}"


FindingRecord: TypeAlias = dict[str, CellValue]  # by column
FINDING_COLUMNS = (
    "class finding kind items class_items looks_at uniformity uniformity_low limit hiding hiding_p inserting "
    "inserting_p unusual unusual_p right_before right_after off_object score suspicious probable untested"
).split()


def make_record(finding: Finding, number: int) -> FindingRecord:
    """The record of a finding. number: its place in the order of suspicion."""
    effects = (finding.hiding, finding.inserting, finding.unusual)
    tests = [value for one in effects for value in ((None, None) if one is None else (one.difference, one.adjusted_p))]
    same, told = finding.uniformity, finding.without
    values = (
        finding.class_name,
        number,
        finding.kind,
        len(finding.sightings),
        finding.class_items,
        name_evidence(finding),
        *((None, None, None) if same is None else (same.value, same.low, same.limit)),
        *tests,
        *((None, None) if told is None else (told.right_before, told.right_after)),
        finding.off_object,
        finding.score,
        finding.is_suspicious,
        finding.is_probable,
        finding.untested,
    )
    return dict(zip(FINDING_COLUMNS, values, strict=True))


def is_tested(record: FindingRecord) -> bool:
    return record["hiding"] is not None or record["inserting"] is not None


def list_class_findings(summary: "BulkSummary") -> dict[str, list[Finding]]:
    """By class, its findings: suspicious ones first, then the largest effect; none where nothing was found."""
    findings: dict[str, list[Finding]] = {one.name: [] for one in summary.tally.class_list}
    for finding in summary.findings:
        findings.setdefault(finding.class_name, []).append(finding)
    return {name: sorted(some, key=rank_evidence) for name, some in findings.items()}


def rank_evidence(finding: Finding) -> tuple[bool, bool, bool, float]:
    return not finding.is_suspicious, not finding.is_probable, not finding.is_tested, -finding.effect


def list_evidence_cells(summary: "BulkSummary") -> list[list[str]]:
    """For each class one row under EVIDENCE_HEAD."""
    return [make_evidence_cells(summary, name, finding) for name, finding in summary.evidence.items()]


def make_evidence_cells(summary: "BulkSummary", name: str, finding: Finding | None) -> list[str]:
    shown_name = shorten_text(name, NAME_LENGTH)
    if finding is None:
        items = summary.tally.classes[name].items
        is_small = items < MIN_CLASS
        reason = f"too few items: {items}" if is_small else f"nothing that enough of its {items} items share"
        return [shown_name, "–", reason, "–", "–", "–", "–"]
    same = finding.uniformity
    return [
        shown_name,
        f"{len(finding.sightings)} of {finding.class_items}",
        name_evidence(finding),
        format_effect(finding.hiding),
        format_effect(finding.inserting),
        "–" if same is None else f"{same.value:.2f} ({describe_limit(same)})",
        name_suspicion(finding),
    ]


def name_suspicion(finding: Finding) -> str:
    if finding.is_suspicious or finding.is_probable:
        return "suspicious" if finding.is_suspicious else "probable shortcut"
    return "look at this" if finding.is_used else ""


def format_effect(effect: Effect | None) -> str:
    """The change of the probability beyond that of control evidence, with its interval."""
    if effect is None:
        return "not tested"
    if abs(effect.difference) < NO_EFFECT:
        return "no effect (0.00)"
    return f"{effect.difference:+z.2f} [{effect.low:+z.2f}, {effect.high:+z.2f}], {format_p(effect.adjusted_p)}"
