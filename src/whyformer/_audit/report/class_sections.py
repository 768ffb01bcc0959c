"""Distributions split by predicted class, as in the figures of Jain & Wallace: a mean over classes may hide them.

Up to `DRAWN_CLASSES` classes are drawn, those with the most examples; with one class there is nothing to split.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from whyformer._audit.checks import DELETED, GRADIENT, LARGEST_JSD, REMOVED, AuditRow
from whyformer._audit.report.findings import AuditFindings
from whyformer._audit.report.summary import group_by_largest_weight, label_class
from whyformer.show import charts
from whyformer.show.class_charts import draw_class_histograms, draw_class_violins
from whyformer.show.drawing import Drawing

DRAWN_CLASSES = 4
ClassValues = dict[str, list[float]]
ReadValue = Callable[[AuditRow], float | None]


def name_classes(audit: AuditFindings) -> dict[int, str]:
    """The predicted class of each example, for the classes that are drawn; empty with a single class, and for spans."""
    predicted = {row["example"]: row["predicted"] for row in audit.of("answer")}
    drawn = [index for index, _ in Counter(predicted.values()).most_common(DRAWN_CLASSES)]
    if len(drawn) < 2 or audit.marks_spans:
        return {}
    return {example: label_class(index, audit.labels) for example, index in predicted.items() if index in drawn}


def split_values_by_class(rows: Iterable[AuditRow], classes: Mapping[int, str], read: ReadValue) -> ClassValues:
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
        taus = [{**row, **row["pairs"].get(f"attention ~ {measure}", {})} for row in rows]
        if groups := split_values_by_class(taus, classes, lambda row: row.get("tau")):
            yield draw_class_histograms(
                groups, between=(-1.0, 1.0), title=measure, xlabel="agreement of the rankings (Kendall's tau)"
            )


def draw_permutation_by_class(audit: AuditFindings, name: str) -> Iterator[Drawing]:
    """Violins in the bins of the paper, and a dot for each example."""
    classes = name_classes(audit)
    rows = [row for row in audit.of("replacement", name) if "permutation" in row.get("kinds", {})]
    moved: ReadValue = lambda row: row["kinds"]["permutation"]["tvd"]  # noqa: E731
    yield from draw_violins_by_class(rows, classes, moved, title="Permuted", xlabel="median change of the answer (TVD)")
    if largest := split_values_by_class(rows, classes, lambda row: row["largest"]):
        values = split_values_by_class(rows, classes, moved)
        dots = {label: (largest[label], values[label]) for label in largest}
        yield charts.draw_scatter(
            dots, title="Each example", xlabel="largest weight", ylabel="median change of the answer (TVD)"
        )


def draw_adversarial_by_class(audit: AuditFindings, name: str) -> Iterator[Drawing]:
    classes, between = name_classes(audit), (0.0, LARGEST_JSD)
    rows = [row for row in audit.of("adversarial", name) if not row.get("undefined")]
    found: ReadValue = lambda row: row["jsd"]  # noqa: E731
    if groups := split_values_by_class(rows, classes, found):
        yield draw_class_histograms(
            groups, between=between, title="Distance found", xlabel="distance of the attention (JSD)"
        )
    yield from draw_violins_by_class(
        rows, classes, found, title="By the largest weight", xlabel="distance of the attention (JSD)", between=between
    )


def draw_violins_by_class(
    rows: list[AuditRow],
    classes: Mapping[int, str],
    read: ReadValue,
    *,
    title: str,
    xlabel: str,
    between: tuple[float, float] | None = None,
) -> Iterator[Drawing]:
    groups = group_by_largest_weight(rows)
    bins = {label: split_values_by_class(group, classes, read) for label, group in groups.items()}
    if any(bins.values()):
        yield draw_class_violins(bins, title=title, xlabel=xlabel, ylabel="largest weight", between=between)


CLASS_DRAWINGS = {
    "agreement": draw_agreement_by_class,
    "replacement": draw_permutation_by_class,
    "adversarial": draw_adversarial_by_class,
}
