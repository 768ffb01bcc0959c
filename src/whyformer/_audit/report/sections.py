"""The sections of the report: the charts and tables of each test."""

from collections.abc import Iterator, Sequence

from whyformer._audit.checks import DELETED, GRADIENT, LARGEST_JSD, REMOVED
from whyformer._audit.report.findings import AuditFindings
from whyformer._audit.report.found_views import make_found_blocks
from whyformer._audit.report.summary import AuditRow, Statistics, group_by_largest_weight
from whyformer._audit.report.wording import format_estimate
from whyformer.show import charts
from whyformer.show import report as html
from whyformer.show.drawing import Drawing
from whyformer.show.report import Html

# --- agreement --------------------------------------------------------------------------------------------------------


def chart_agreement(audit: AuditFindings, name: str, found: Statistics) -> Iterator[Html]:
    yield from draw_agreement(audit, name, found)
    head = ["", "tau", "95 %", "spread", "significant", "Spearman", "Pearson", "overlap", "by chance", "n", "undefined"]
    table = [
        [pair, values["tau"]["mean"], format_bounds(values["tau"]), values["tau"]["spread"], values["significant"],
         values["spearman"]["mean"], values["pearson"]["mean"], values["overlap"]["mean"], values["by_chance"],
         values["tau"]["n"], values["tau"]["undefined"]]
        for pair, values in found.items()
    ]  # fmt: skip
    yield html.make_table(head, table, caption="Agreement, means over examples")
    yield html.fold_content("By predicted class", tabulate_agreement_by_class(found))


def draw_agreement(audit: AuditFindings, name: str, found: Statistics) -> Iterator[Html]:
    rows = audit.of("agreement", name)
    taus = {
        pair: [row["pairs"][pair]["tau"] for row in rows if row["pairs"].get(pair, {}).get("tau") is not None]
        for pair in found
        if is_main_pair(pair)
    }
    groups = {pair: values for pair, values in taus.items() if len(values) > 2}
    if groups:
        drawing = charts.draw_densities(
            groups, title="Agreement over examples", xlabel="Kendall's tau", between=(-1.0, 1.0), reference=0.0
        )
        yield html.embed_drawing(drawing)


def tabulate_agreement_by_class(found: Statistics) -> Html:
    table = [
        [pair, label, group["mean"], group["spread"], group["significant"], group["n"]]
        for pair, values in found.items()
        if is_main_pair(pair)
        for label, group in values["classes"].items()
        if group["n"]
    ]
    head = ["", "predicted", "tau", "spread", "significant", "n"]
    return html.make_table(head, table, caption="Agreement by predicted class")


def is_main_pair(pair: str) -> bool:
    """Whether the pair is charted: attention against a measure, or the main yardstick."""
    return pair.startswith("attention ~ ") or pair in (f"{GRADIENT} ~ {DELETED}", f"{GRADIENT} ~ {REMOVED}")


# --- replacement ------------------------------------------------------------------------------------------------------


def chart_replacement(audit: AuditFindings, name: str, found: Statistics) -> Iterator[Html]:
    rows = [row for row in audit.of("replacement", name) if not row.get("undefined")]
    if not rows:
        return
    yield arrange_charts(list(draw_replacement(rows, list(found["kinds"]))))
    head = ["replacement", "change", "95 %", "TVD", "class changes", "accuracy before", "accuracy after", "n"]
    table = [
        [kind, values["change"]["median"], format_bounds(values["change"]), values["tvd"]["median"],
         values["flips"]["mean"], *((values["accuracy"] or {}).get(when) for when in ("before", "after")),
         values["change"]["n"]]
        for kind, values in found["kinds"].items()
    ]  # fmt: skip
    caption = "Change of the predicted probability and of the output, medians over examples"
    yield html.make_table(head, table, caption=caption)
    if "permutation" in found["kinds"]:
        yield html.fold_content("By class and largest weight", tabulate_bins(found["kinds"]["permutation"]))
        if found["undefined"]:
            yield html.make_notes([f"{found['undefined']} examples have no weight that can be moved and are excluded."])


def draw_replacement(rows: Sequence[AuditRow], kinds: Sequence[str]) -> Iterator[Drawing]:
    if "permutation" in kinds:
        groups = {
            label: [row["kinds"]["permutation"]["tvd"] for row in group]
            for label, group in group_by_largest_weight(rows).items()
        }
        yield charts.draw_violins(groups, title="Permuted, by the largest weight", ylabel="median TVD of the output")
    every = {kind: [row["kinds"][kind]["tvd"] for row in rows if kind in row["kinds"]] for kind in kinds}
    yield charts.draw_violins(every, title="By replacement", ylabel="TVD of the output")


def tabulate_bins(permutation: Statistics) -> Html:
    bins = list(permutation["bins"])
    groups = {"all": permutation, **permutation["classes"]}
    table = [[label, *(format_bin_cell(group["bins"].get(name)) for name in bins)] for label, group in groups.items()]
    return html.make_table(["predicted", *bins], table, caption="Median TVD (examples) by the largest weight, permuted")


def format_bin_cell(figure: Statistics | None) -> str | None:
    if figure is None or figure["median"] is None:
        return None
    return f"{format_estimate(figure['median'])} ({figure['n']})"


# --- adversarial attention --------------------------------------------------------------------------------------------


def chart_adversarial(audit: AuditFindings, name: str, found: Statistics) -> Iterator[Html]:
    rows = [row for row in audit.of("adversarial", name) if not row.get("undefined")]
    if not rows:
        return
    values = {"found": [row["jsd"] for row in rows], "attainable": [row["attainable"] for row in rows]}
    searched = {row["example"] for row in rows}
    by_seed = [value for row in audit.of("seeds", name) if row["example"] in searched for value in row["jsd"]]
    groups = values | ({"other seeds": by_seed} if by_seed else {})
    drawings = [
        charts.draw_histogram(groups, title="Distance of other attention", xlabel="JSD", reference=LARGEST_JSD, bins=24)
    ]
    bins = {label: [row["jsd"] for row in group] for label, group in group_by_largest_weight(rows).items()}
    drawings.append(charts.draw_violins(bins, title="By the largest weight", ylabel="JSD"))
    yield arrange_charts(drawings)
    head = ["", "mean JSD", "95 %", "median", "of attainable", "at least 0.525", "none found", "n"]
    every = {"all": found, **found["classes"]}
    table = [
        [label, group["jsd"]["mean"], format_bounds(group["jsd"]), group["jsd"]["median"],
         group["of_attainable"]["mean"], group["many"], group["none"], group["jsd"]["n"]]
        for label, group in every.items()
    ]  # fmt: skip
    yield html.make_table(head, table, caption="The farthest attention with the same output, by predicted class")
    yield from make_found_blocks(audit, name)


def chart_seeds(audit: AuditFindings, name: str, found: Statistics) -> Iterator[Html]:
    rows = [[what, found[key]["mean"], format_bounds(found[key]), found[key]["n"]] for what, key in SEED_ROWS.items()]
    yield html.make_table(["", "mean", "95 %", "n"], rows, caption=f"{found['checkpoints']} other seeds")


SEED_ROWS = {"JSD of attention": "jsd", "the farthest seed": "most", "TVD of the output": "tvd"}


def chart_diagnostic(audit: AuditFindings, name: str, found: Statistics) -> Iterator[Html]:
    of = lambda guide, key: float("nan") if found[guide][key] is None else float(found[guide][key])  # noqa: E731
    rows = [(label, of(guide, "mean"), of(guide, "low"), of(guide, "high")) for guide, label in GUIDE_NAMES.items()]
    yield html.embed_drawing(
        charts.draw_ranking(rows, title="Diagnostic model, by its token weights", xlabel="accuracy")
    )
    table = [
        [label, found[guide]["mean"], format_bounds(found[guide]), found[guide]["n"]]
        for guide, label in GUIDE_NAMES.items()
    ]
    yield html.make_table(["weights", "accuracy", "95 %", "n"], table, caption="Diagnostic model on held-out examples")


GUIDE_NAMES = {"attention": "this attention", "uniform": "uniform weights", "learned": "learned weights"}


# --- shape ------------------------------------------------------------------------------------------------------------


def chart_shape(audit: AuditFindings) -> Iterator[Html]:
    shape = audit.summary["shape"]
    heads = max(len(row) for row in shape["entropy"])
    blocks, columns = [f"block {b}" for b in range(len(shape["entropy"]))], [f"head {h}" for h in range(heads)]
    filled = lambda what: [[*row, *[float("nan")] * (heads - len(row))] for row in shape[what]]  # noqa: E731
    drawings = [
        charts.draw_matrix(blocks, filled(what), columns=columns, title=title, between=(0.0, 1.0), signed=False)
        for what, title in (("entropy", "Normalised entropy"), ("special", "Share on special tokens"))
    ]
    if len(shape["blocks_jsd"]) > 1:
        drawings.append(
            charts.draw_matrix(
                blocks, shape["blocks_jsd"], title="JSD between blocks", between=(0.0, LARGEST_JSD), signed=False
            )
        )
    yield arrange_charts(drawings)
    table = [
        [block, *(sum(shape[what][b]) / len(shape[what][b]) for what in ("entropy", "largest", "special")),
         shape["heads_jsd"][b], shape["heads_kl"][b]]
        for b, block in enumerate(blocks)
    ]  # fmt: skip
    head = ["", "entropy", "largest weight", "on special tokens", "JSD between heads", "KL between heads"]
    yield html.make_table(head, table, caption=f"Means over heads, queries and {shape['n']} examples")


# --- shared -----------------------------------------------------------------------------------------------------------


def arrange_charts(drawings: Sequence[Drawing]) -> Html:
    """Charts side by side, as many as fit."""
    return html.make_element("div", *(html.embed_drawing(drawing) for drawing in drawings), class_="charts")


def format_bounds(figure: Statistics) -> str | None:
    return None if figure["low"] is None else f"{format_estimate(figure['low'])} to {format_estimate(figure['high'])}"


CHARTS = {
    "agreement": chart_agreement,
    "replacement": chart_replacement,
    "adversarial": chart_adversarial,
    "seeds": chart_seeds,
    "diagnostic": chart_diagnostic,
}
