"""Distributions split by predicted class, as in the figures of Jain & Wallace: a mean over classes may hide them.

Up to `MOST_CLASSES` classes are drawn, those with the most examples; with one class there is nothing to split.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from whyformer._audit.checks import DELETED, GRADIENT, LARGEST_JSD, REMOVED
from whyformer._audit.report.findings import AuditFindings
from whyformer._audit.report.summary import AuditRow, group_by_largest_weight
from whyformer.show import charts
from whyformer.show.class_charts import draw_class_histograms, draw_class_violins
from whyformer.show.drawing import Drawing

MOST_CLASSES = 4
ClassValues = dict[str, list[float]]


def name_classes(audit: AuditFindings) -> dict[int, str]:
    """The predicted class of each example, for the classes that are drawn; empty with a single class."""
    labels = audit.labels
    name = lambda index: labels[index] if labels is not None and index < len(labels) else str(index)  # noqa: E731
    predicted = {row["example"]: row["predicted"] for row in audit.of("answer")}
    drawn = [index for index, _ in Counter(predicted.values()).most_common(MOST_CLASSES)]
    if len(drawn) < 2:
        return {}
    return {example: name(index) for example, index in predicted.items() if index in drawn}


def split_by_class(
    rows: Iterable[AuditRow], classes: Mapping[int, str], read: Callable[[AuditRow], float | None]
) -> ClassValues:
    """What `read` finds in the rows of each class, classes by name."""
    groups: ClassValues = {label: [] for label in sorted(set(classes.values()))}
    for row in rows:
        value = read(row) if row["example"] in classes else None
        if value is not None:
            groups[classes[row["example"]]].append(value)
    return groups if any(groups.values()) else {}


def draw_agreement_by_class(audit: AuditFindings, name: str) -> Iterator[Drawing]:
    """Histograms of tau, one for each measure of the paper."""
    classes, rows = name_classes(audit), audit.of("agreement", name)
    for measure in (GRADIENT, DELETED, REMOVED):
        pair = f"attention ~ {measure}"
        groups = split_by_class(rows, classes, lambda row: row["pairs"].get(pair, {}).get("tau"))  # noqa: B023
        if groups:
            yield draw_class_histograms(groups, between=(-1.0, 1.0), title=measure, xlabel="Kendall's tau")


def draw_permutation_by_class(audit: AuditFindings, name: str) -> Iterator[Drawing]:
    """Violins in the bins of the paper, and a dot for each example."""
    classes = name_classes(audit)
    rows = [row for row in audit.of("replacement", name) if "permutation" in row.get("kinds", {})]
    moved: Callable[[AuditRow], Any] = lambda row: row["kinds"]["permutation"]["tvd"]  # noqa: E731
    yield from draw_violins_by_class(rows, classes, moved, title="Permuted", xlabel="median TVD of the output")
    largest = split_by_class(rows, classes, lambda row: row["largest"])
    if largest:
        values = split_by_class(rows, classes, moved)
        dots = {label: (largest[label], values[label]) for label in largest}
        yield charts.draw_scatter(dots, title="Each example", xlabel="largest weight", ylabel="median TVD")


def draw_adversarial_by_class(audit: AuditFindings, name: str) -> Iterator[Drawing]:
    classes = name_classes(audit)
    rows = [row for row in audit.of("adversarial", name) if not row.get("undefined")]
    groups = split_by_class(rows, classes, lambda row: row["jsd"])
    if groups:
        yield draw_class_histograms(groups, between=(0.0, LARGEST_JSD), title="Distance found", xlabel="JSD")
    yield from draw_violins_by_class(
        rows, classes, lambda row: row["jsd"], title="By the largest weight", xlabel="JSD", between=(0.0, LARGEST_JSD)
    )


def draw_violins_by_class(
    rows: list[AuditRow], classes: Mapping[int, str], read: Callable[[AuditRow], float | None], **options: Any
) -> Iterator[Drawing]:
    bins = {label: split_by_class(group, classes, read) for label, group in group_by_largest_weight(rows).items()}
    if any(bins.values()):
        yield draw_class_violins(bins, ylabel="largest weight", **options)


CLASS_DRAWINGS = {
    "agreement": draw_agreement_by_class,
    "replacement": draw_permutation_by_class,
    "adversarial": draw_adversarial_by_class,
}
