"""Charts show their numbers, also in words for a screen reader."""

from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from whyformer.errors import InputError
from whyformer.show import charts
from whyformer.show.chart_style import assign_styles, choose_line_style, estimate_density
from whyformer.show.drawing import DIM_INK, GREYS, PALETTE
from whyformer.show.page_colours import to_css_colour

X = [0.0, 0.5, 1.0]
SVG = "{http://www.w3.org/2000/svg}"


def list_texts(drawing):
    root = ElementTree.fromstring(drawing.svg())
    return ["".join(node.itertext()).strip() for node in root.iter(f"{SVG}text")]


def test_curves_show_their_labels_and_final_values():
    drawing = charts.draw_curves(
        {"rollout": (X, [1, 0.5, 0.25], [0.9, 0.4, 0.2], [1, 0.6, 0.3]), "chance": (X, [1, 1, 1], None, None)},
        title="Deletion",
        xlabel="removed",
        ylabel="probability",
        note="95 %",
        percent=True,
    )
    assert {"Deletion", "removed", "probability", "95 %", "rollout", "chance", "100%"} <= set(list_texts(drawing))
    assert drawing.alt == "Deletion: rollout ends at 0.25, chance ends at 1."


def test_chance_has_the_same_style_everywhere():
    assert choose_line_style("chance", 3) == choose_line_style("chance(seed=2)", 0)
    looks = [str(choose_line_style(str(i), i)) for i in range(32)]
    assert len(set(looks)) == 32


def test_styles_differ_and_controls_are_grey():
    labels = [f"method {i}" for i in range(96)]
    styles = assign_styles(labels, ["blob", "chance(seed=1)", "dust"])
    looks = [(style.colour, str(style.dashes), style.marker) for style in styles.values()]
    assert len(set(looks)) == 99
    assert [styles[label].colour for label in labels[:9]] == [*PALETTE, PALETTE[0]]
    assert [styles[label].colour for label in ("chance(seed=1)", "blob", "dust")] == [DIM_INK, *GREYS]
    assert len({to_css_colour(style.colour) for style in styles.values()}) == len(PALETTE) + 3


def test_a_series_looks_the_same_in_curves_and_in_a_ranking():
    styles = assign_styles(["a", "b"], ["chance"])
    curves = charts.draw_curves(dict.fromkeys(("b", "chance", "a"), (X, X, None, None)), styles=styles)
    drawn = {line.get_label(): line.get_color() for line in curves.figure.axes[0].lines}
    assert drawn == {label: style.colour for label, style in styles.items()}
    ranking = charts.draw_ranking([("a", 2, 1, 3), ("b", 3, 2, 4), ("chance", 1, 0, 2)], styles=styles)
    dots = [line for line in ranking.figure.axes[0].lines if len(line.get_xdata()) == 1]
    assert [dot.get_color() for dot in dots] == [styles[label].colour for label in ("b", "a", "chance")]


def test_a_ranking_is_sorted_best_first():
    rows = [("b", 0.5, 0.4, 0.6), ("a", 0.9, 0.8, 1.0), ("nothing", float("nan"), float("nan"), float("nan"))]
    assert [t for t in list_texts(charts.draw_ranking(rows)) if t in ("a", "b", "nothing")] == ["a", "b", "nothing"]
    lower = list_texts(charts.draw_ranking(rows, better="lower", xlabel="AUC"))
    assert [t for t in lower if t in ("a", "b", "nothing")] == ["b", "a", "nothing"]
    assert "undefined" in lower
    assert "AUC (lower is better)" in lower


def test_a_matrix_shows_every_number_and_a_dash_for_nan():
    texts = list_texts(charts.draw_matrix(["a", "b"], torch.tensor([[1.0, -0.5], [float("nan"), 1.0]])))
    assert [t for t in texts if t not in ("a", "b")] == ["1.00", "-0.50", "–", "1.00"]
    with pytest.raises(InputError, match=r"does not fit 2 rows and 1 columns"):
        charts.draw_matrix(["a", "b"], np.zeros((2, 2)), columns=["c"])


@pytest.mark.parametrize("chart", [charts.draw_violins, charts.draw_histogram, charts.draw_densities])
def test_distributions_leave_out_nan(chart):
    drawing = chart({"a": [1.0, 2.0, 3.0, 4.0, 5.0, float("nan")], "b": [2.0] * 6, "none": []}, title="T", reference=0)
    assert drawing.alt == "T: a: median 3 of 5, b: median 2 of 6, none: no values."
    assert drawing.png().startswith(b"\x89PNG")


def test_a_density_integrates_to_one():
    values = np.random.default_rng(0).normal(size=400)
    x = np.linspace(-8, 8, 2000)
    assert np.trapezoid(estimate_density(values, x), x) == pytest.approx(1, abs=1e-3)


def test_a_scatter():
    assert charts.draw_scatter({"a": ([1, 2], [3, 4])}, diagonal=True, title="S").alt == "S: a: 2."


def test_charts_without_data_are_errors():
    for chart in (charts.draw_curves, charts.draw_violins, charts.draw_densities, charts.draw_scatter):
        with pytest.raises(InputError, match="There is no"):
            chart({})
    with pytest.raises(InputError, match="3 x values and 2 y values"):
        charts.draw_curves({"a": (X, [1, 2], None, None)})


def test_labels_that_matplotlib_would_hide_or_misread():
    long = "x" * 200
    drawing = charts.draw_curves({"_hidden": (X, X, None, None), long: (X, X, None, None), "日本": (X, X, None, None)})
    texts = list_texts(drawing)
    assert any("_hidden" in t for t in texts)
    assert any(t.endswith("…") for t in texts)
    assert "日本" in texts


def test_the_settings_of_matplotlib_are_restored():
    import matplotlib

    before = dict(matplotlib.rcParams)
    charts.draw_histogram([1.0, 2.0]).svg()
    assert dict(matplotlib.rcParams) == before


def test_an_axis_of_layers_has_whole_numbers():
    layers = charts.draw_curves({"rollout": ([1, 2, 3], [0.1, 0.2, 0.3], None, None)}, xlabel="layer")
    shares = charts.draw_curves({"rollout": (X, [1, 0.5, 0.25], None, None)})
    assert not [label for label in list_x_labels(layers) if "." in label] and "2" in list_x_labels(layers)
    assert [label for label in list_x_labels(shares) if "." in label]


def list_x_labels(drawing):
    drawing.svg()  # places the ticks
    return [tick.get_text() for tick in drawing.figure.axes[0].get_xticklabels()]
