"""The figures of Jain & Wallace, from the rows of one model: histograms, violins by the largest weight, a scatter.

    for name, drawing in draw_jain_wallace(rows, "SST-2, BiLSTM").items():
        drawing.save(f"{name}.svg")

tau-gradient, tau-leave-one-out   Kendall's tau of each example, by predicted class (their figures 2 and 3)
tau-scatter                       attention ~ gradient against gradient ~ leave-one-out: below the diagonal attention
                                  agrees with the gradient less than leave-one-out does (their figure 4 as points)
permutation                       the median output difference by the largest weight (their figure 6)
adversarial, adversarial-violins  the epsilon-max JSD, and by the largest weight (their figures 7 and 8)
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from whyformer._audit.checks import LARGEST_JSD
from whyformer.show.charts import draw_scatter
from whyformer.show.class_charts import draw_class_histograms, draw_class_violins
from whyformer.show.drawing import Drawing
from whyformer_papers.jain_wallace_cells import MOST_CLASSES
from whyformer_papers.jain_wallace_rows import BIN_NAMES, JainWallaceRows

ALL = "all examples"
FOUND_DISTANCE = "largest JSD with the same output"


def split_by_prediction(rows: JainWallaceRows, column: str, chosen: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The values of a column by predicted class; in one group where there are many classes."""
    chosen = rows.of_class(None) if chosen is None else chosen
    if not 1 < len(rows.labels) <= MOST_CLASSES:
        return {ALL: rows.columns[column][chosen]}
    return {label: rows.columns[column][chosen & rows.of_class(index)] for index, label in enumerate(rows.labels)}


def draw_jain_wallace(rows: JainWallaceRows, name: str) -> dict[str, Drawing]:
    """Every figure that the rows have values for, by the name of its file."""
    permuted = (f"{name}: permuted attention", "median output difference", (0.0, 1.0))
    found = (f"{name}: adversarial attention", FOUND_DISTANCE, (0.0, LARGEST_JSD))
    figures: dict[str, tuple[str, Callable[[], Drawing]]] = {
        "tau-gradient": ("gradient_tau", partial(draw_tau, rows, "gradient", f"{name}: attention and gradient")),
        "tau-leave-one-out": (
            "leave_one_out_tau", partial(draw_tau, rows, "leave_one_out", f"{name}: attention and leave-one-out"),
        ),
        "tau-scatter": ("yardstick_tau", partial(draw_tau_scatter, rows, name)),
        "permutation": ("permuted", partial(draw_by_largest_weight, rows, "permuted", *permuted)),
        "adversarial": ("jsd", partial(draw_found_distance, rows, found[0])),
        "adversarial-violins": ("jsd", partial(draw_by_largest_weight, rows, "jsd", *found)),
    }  # fmt: skip
    return {file: draw() for file, (column, draw) in figures.items() if np.isfinite(rows.columns[column]).any()}


def draw_tau(rows: JainWallaceRows, pair: str, title: str) -> Drawing:
    found = rows.correlation(pair)
    note = f"mean {found.mean:z.2f} ± {found.spread:z.2f}, {found.significant:.0%} with p <= 0.05; dotted: class means"
    groups = split_by_prediction(rows, f"{pair}_tau")
    return draw_class_histograms(groups, between=(-1, 1), title=title, xlabel="Kendall's tau", note=note)


def draw_tau_scatter(rows: JainWallaceRows, name: str) -> Drawing:
    across, up = split_by_prediction(rows, "yardstick_tau"), split_by_prediction(rows, "gradient_tau")
    known = np.isfinite(rows.columns["yardstick_tau"]) & np.isfinite(rows.columns["gradient_tau"])
    lower = (rows.columns["gradient_tau"] < rows.columns["yardstick_tau"])[known]
    return draw_scatter(
        {label: (across[label], up[label]) for label in across},
        title=f"{name}: Kendall's tau of each example",
        xlabel="gradient ~ leave-one-out",
        ylabel="attention ~ gradient",
        diagonal=True,
        note=f"{lower.sum():,} of {known.sum():,} examples are below the diagonal",
    )


def draw_by_largest_weight(
    rows: JainWallaceRows, column: str, title: str, xlabel: str, between: tuple[float, float]
) -> Drawing:
    bins = {name: split_by_prediction(rows, column, rows.in_bin(name)) for name in BIN_NAMES}
    return draw_class_violins(bins, title=title, xlabel=xlabel, ylabel="largest weight", between=between)


def draw_found_distance(rows: JainWallaceRows, title: str) -> Drawing:
    found = rows.adversarial()
    note = f"mean {found.mean:z.2f} of at most {LARGEST_JSD:.3f}, {found.far:.0%} at 0.525 or more"
    groups = split_by_prediction(rows, "jsd")
    return draw_class_histograms(groups, between=(0, 0.7), bins=35, title=title, xlabel=FOUND_DISTANCE, note=note)
