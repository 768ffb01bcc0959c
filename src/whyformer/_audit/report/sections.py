"""The sections of the report: the charts and tables of each test.

Distributions split by predicted class, as in the figures of Jain & Wallace: a mean over classes may hide them.

Up to `DRAWN_CLASSES` classes are drawn, those with the most examples; with one class there is nothing to split.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from whyformer._audit.checks import DELETED, GRADIENT, LARGEST_JSD, REMOVED, AuditRow
from whyformer._audit.report.findings import AuditFindings
from whyformer._audit.report.found_views import make_found_blocks
from whyformer._audit.report.summary import Statistics, group_by_largest_weight, label_class, look_up
from whyformer._audit.report.verdict import format_estimate
from whyformer.show import charts
from whyformer.show.blocks import Block, Charts, DataTable, Fold, Notes
from whyformer.show.class_charts import draw_class_histograms, draw_class_violins
from whyformer.show.drawing import Drawing

# The columns of tables: where their values are in the statistics of a row; "95 %" is the interval of what is there.
AGREEMENT_COLUMNS = {
    "tau": "tau.mean", "95 %": "tau", "spread": "tau.spread", "significant": "significant",
    "Spearman": "spearman.mean", "Pearson": "pearson.mean", "overlap": "overlap.mean", "by chance": "by_chance",
    "n": "tau.n", "undefined": "tau.undefined",
}  # fmt: skip
REPLACEMENT_COLUMNS = {
    "change": "change.median", "95 %": "change", "TVD": "tvd.median", "prediction changes": "flips.mean",
    "accuracy before": "accuracy.before", "accuracy after": "accuracy.after", "F1 before": "accuracy.f1_before",
    "F1 after": "accuracy.f1_after", "n": "change.n",
}  # fmt: skip
SEARCH_COLUMNS = {
    "mean JSD": "jsd.mean", "95 %": "jsd", "median": "jsd.median", "of attainable": "of_attainable.mean",
    "at least 0.525": "many", "none found": "none", "n": "jsd.n",
}  # fmt: skip
SEED_ROWS = {"JSD of attention": "jsd", "the farthest seed": "most", "TVD of the output": "tvd"}
ADVERSARY_ROWS = {
    "JSD of attention": "jsd", "of the attainable": "of_attainable", "TVD of the answers": "tvd",
    "same prediction": "same", "accuracy": "accuracy",
}  # fmt: skip
GUIDE_NAMES = {"attention": "this attention", "uniform": "uniform weights", "learned": "learned weights"}


def tabulate(rows: Mapping[str, Statistics], columns: Mapping[str, str], *, caption: str, first: str = "") -> DataTable:
    """A row for each name, with the values at the paths of the columns. first: the heading of the names."""
    table = [[name, *(read_figure(found, *column) for column in columns.items())] for name, found in rows.items()]
    return DataTable([first, *columns], table, caption=caption)


def read_figure(found: Statistics, heading: str, path: str) -> str | float | None:
    value = look_up(found, path)
    if heading != "95 %":
        return value
    return None if value["low"] is None else f"{format_estimate(value['low'])} to {format_estimate(value['high'])}"


def arrange_charts(*drawings: Drawing) -> Charts:
    """Charts side by side, as many as fit."""
    return Charts(lambda: drawings)


# --- agreement --------------------------------------------------------------------------------------------------------


def chart_agreement(audit: AuditFindings, name: str, found: Statistics) -> Iterator[Block]:
    rows, main = audit.of("agreement", name), {pair: values for pair, values in found.items() if is_main_pair(pair)}
    taus = {
        pair: [row["pairs"][pair]["tau"] for row in rows if row["pairs"].get(pair, {}).get("tau") is not None]
        for pair in main
    }
    groups = {pair: values for pair, values in taus.items() if len(values) > 2}
    if groups:
        drawing = charts.draw_densities(
            groups,
            title="Agreement over examples",
            xlabel="agreement of the rankings (Kendall's tau)",
            between=(-1.0, 1.0),
            reference=0.0,
        )
        yield arrange_charts(drawing)
    yield tabulate(found, AGREEMENT_COLUMNS, caption="Agreement, means over examples")
    by_class = [
        [pair, label, group["mean"], group["spread"], group["significant"], group["n"]]
        for pair, values in main.items()
        for label, group in values["classes"].items()
        if group["n"]
    ]
    if by_class:
        head = ["", "predicted", "tau", "spread", "significant", "n"]
        table = DataTable(head, by_class, caption="Agreement by predicted class")
        yield Fold("By predicted class", [table])


def is_main_pair(pair: str) -> bool:
    """Whether the pair is charted: attention against a measure, or the main yardstick."""
    return pair.startswith("attention ~ ") or pair in (f"{GRADIENT} ~ {DELETED}", f"{GRADIENT} ~ {REMOVED}")


# --- replacement ------------------------------------------------------------------------------------------------------


def chart_replacement(audit: AuditFindings, name: str, found: Statistics) -> Iterator[Block]:
    rows, kinds = [row for row in audit.of("replacement", name) if not row.get("undefined")], found["kinds"]
    if not rows:
        return
    yield arrange_charts(*draw_replacement(rows, list(kinds)))
    caption = "Change of the predicted probability and of the output, medians over examples"
    yield tabulate(kinds, REPLACEMENT_COLUMNS, caption=caption, first="replacement")
    if "permutation" in kinds:
        yield Fold("By class and largest weight", [tabulate_bins(kinds["permutation"])])
        if found["undefined"]:
            yield Notes([f"{found['undefined']} examples have no weight that can be moved and are excluded."])


def draw_replacement(rows: Sequence[AuditRow], kinds: Sequence[str]) -> Iterator[Drawing]:
    of = lambda group, kind: [row["kinds"][kind]["tvd"] for row in group if kind in row["kinds"]]  # noqa: E731
    if "permutation" in kinds:
        groups = {label: of(group, "permutation") for label, group in group_by_largest_weight(rows).items()}
        yield charts.draw_violins(
            groups, title="Permuted, by the largest weight", ylabel="median change of the answer (TVD)"
        )
    every = {kind: of(rows, kind) for kind in kinds}
    yield charts.draw_violins(every, title="By replacement", ylabel="change of the answer (TVD)")


def tabulate_bins(permutation: Statistics) -> DataTable:
    bins, groups = list(permutation["bins"]), {"all": permutation, **permutation["classes"]}
    table = [[label, *(format_bin_cell(group["bins"].get(name)) for name in bins)] for label, group in groups.items()]
    return DataTable(["predicted", *bins], table, caption="Median TVD (examples) by the largest weight, permuted")


def format_bin_cell(figure: Statistics | None) -> str | None:
    if figure is None or figure["median"] is None:
        return None
    return f"{format_estimate(figure['median'])} ({figure['n']})"


# --- the other tests --------------------------------------------------------------------------------------------------


def chart_adversarial(audit: AuditFindings, name: str, found: Statistics) -> Iterator[Block]:
    rows = [row for row in audit.of("adversarial", name) if not row.get("undefined")]
    if not rows:
        return
    values = {"found": [row["jsd"] for row in rows], "attainable": [row["attainable"] for row in rows]}
    searched = {row["example"] for row in rows}
    by_seed = [value for row in audit.of("seeds", name) if row["example"] in searched for value in row["jsd"]]
    groups = values | ({"other seeds": by_seed} if by_seed else {})
    bins = {label: [row["jsd"] for row in group] for label, group in group_by_largest_weight(rows).items()}
    title = "Distance of other attention"
    drawings = [
        charts.draw_histogram(
            groups, title=title, xlabel="distance of the attention (JSD)", reference=LARGEST_JSD, bins=24
        ),
        charts.draw_violins(bins, title="By the largest weight", ylabel="distance of the attention (JSD)"),
    ]
    yield arrange_charts(*drawings)
    caption = "The farthest attention with the same output, by predicted class"
    yield tabulate({"all": found, **found["classes"]}, SEARCH_COLUMNS, caption=caption)
    yield from make_found_blocks(audit, name)


def chart_seeds(audit: AuditFindings, name: str, found: Statistics) -> Iterator[Block]:
    rows = {what: found[key] for what, key in SEED_ROWS.items()}
    yield tabulate(rows, {"mean": "mean", "95 %": "", "n": "n"}, caption=f"{found['checkpoints']} other seeds")


def chart_adversary(audit: AuditFindings, name: str, found: Statistics) -> Iterator[Block]:
    rows = [row for row in audit.of("adversary", name) if not row.get("undefined")]
    points = {"examples": ([row["tvd"] for row in rows], [row["jsd"] for row in rows])}
    yield arrange_charts(
        charts.draw_scatter(
            points, title="Each example", xlabel="change of the answer (TVD)", ylabel="distance of the attention (JSD)"
        )
    )
    figures = {what: found[key] for what, key in ADVERSARY_ROWS.items() if found[key] is not None}
    caption = "The trained adversary on examples that it was not trained on"
    yield tabulate(figures, {"mean": "mean", "95 %": "", "n": "n"}, caption=caption)


def chart_diagnostic(audit: AuditFindings, name: str, found: Statistics) -> Iterator[Block]:
    figures = {label: found[guide] for guide, label in GUIDE_NAMES.items()}
    of = lambda figure, key: float("nan") if figure[key] is None else float(figure[key])  # noqa: E731
    rows = [(label, of(one, "mean"), of(one, "low"), of(one, "high")) for label, one in figures.items()]
    drawing = charts.draw_ranking(rows, title="Diagnostic model, by its token weights", xlabel="accuracy")
    yield arrange_charts(drawing)
    columns = {"accuracy": "mean", "95 %": "", "n": "n"}
    yield tabulate(figures, columns, caption="Diagnostic model on held-out examples", first="weights")


def chart_shape(audit: AuditFindings) -> Iterator[Block]:
    shape = audit.summary["shape"]
    heads = max(len(row) for row in shape["entropy"])
    blocks, columns = [f"block {b}" for b in range(len(shape["entropy"]))], [f"head {h}" for h in range(heads)]
    filled = lambda what: [[*row, *[float("nan")] * (heads - len(row))] for row in shape[what]]  # noqa: E731
    drawings = [
        charts.draw_matrix(blocks, filled(what), columns=columns, title=title, between=(0.0, 1.0), signed=False)
        for what, title in (("entropy", "Normalised entropy"), ("special", "Share on special tokens"))
    ]
    if len(shape["blocks_jsd"]) > 1:
        title, between = "JSD between blocks", (0.0, LARGEST_JSD)
        drawings.append(charts.draw_matrix(blocks, shape["blocks_jsd"], title=title, between=between, signed=False))
    yield arrange_charts(*drawings)
    table = [
        [block, *(sum(shape[what][b]) / len(shape[what][b]) for what in ("entropy", "largest", "special")),
         shape["heads_jsd"][b], shape["heads_kl"][b]]
        for b, block in enumerate(blocks)
    ]  # fmt: skip
    head = ["", "entropy", "largest weight", "on special tokens", "JSD between heads", "KL between heads"]
    yield DataTable(head, table, caption=f"Means over heads, queries and {shape['n']} examples")


CHARTS = {
    "agreement": chart_agreement,
    "replacement": chart_replacement,
    "adversarial": chart_adversarial,
    "adversary": chart_adversary,
    "seeds": chart_seeds,
    "diagnostic": chart_diagnostic,
}


# --- split by predicted class -----------------------------------------------------------------------------------------


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
