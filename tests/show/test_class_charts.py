"""Charts split by class: every value is drawn where it belongs, and nothing else."""

import numpy as np
import pytest

from whyformer.errors import InputError
from whyformer.show.class_charts import draw_class_histograms, draw_class_violins

BINS = {
    "[0, 0.25)": {"no": [0.1, 0.2, 0.3, 0.2, 0.15, 0.12], "yes": [0.5, 0.6]},
    "[0.25, 0.5)": {"yes": [0.4]},
    "[0.5, 0.75)": {},
}


def test_violins_keep_empty_bins_and_count():
    drawing = draw_class_violins(BINS, title="Permuted", xlabel="difference", ylabel="weight", between=(0, 1))
    axes = drawing.figure.axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [
        "[0, 0.25)\nn = 8",
        "[0.25, 0.5)\nn = 1",
        "[0.5, 0.75)\nn = 0",
    ]
    assert len(axes.collections) == 1  # one group has enough values for a violin
    assert "no: median 0.175 of 6" in drawing.alt and axes.get_xlim() == (0, 1)


def test_histograms_are_shares():
    rng = np.random.default_rng(0)
    values = {"no": rng.uniform(-1, 1, 300), "yes": rng.uniform(-1, 1, 40)}
    axes = draw_class_histograms(values, between=(-1, 1), title="tau").figure.axes[0]
    for patch in axes.patches[1::2]:
        heights = np.unique(patch.get_path().vertices[:, 1])
        assert heights.max() < 0.5
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["no (n = 300)", "yes (n = 40)"]


def test_labels_are_made_visible_and_nothing_is_refused():
    drawing = draw_class_violins({"a\u202eb": {"x\x1b[31m": [1.0, 2.0]}})
    assert b"\x1b" not in drawing.svg().encode()
    with pytest.raises(InputError, match="no bin"):
        draw_class_violins({})
    with pytest.raises(InputError, match="no class"):
        draw_class_histograms({}, between=(0, 1))


def test_a_long_title_does_not_run_beyond_the_axes():
    """The title is broken where the axes end; a short one stays on its line."""
    words = "a model of mine with a quite long name: attention, gradient and the rest"
    for title, lines in ((words, 2), ("short", 1)):
        drawn = draw_class_histograms({"all examples": [0.1, 0.2]}, between=(-1, 1), title=title, xlabel="tau").figure
        drawn.draw_without_rendering()
        axes = drawn.axes[0]
        text = next(text for text in (axes.title, axes._left_title) if text.get_text())
        assert text.get_text().count("\n") == lines - 1 and " ".join(text.get_text().split()) == title
        assert text.get_window_extent().x1 <= axes.get_window_extent().x1 + 1
        assert axes.get_legend().get_window_extent().y1 < axes.xaxis.label.get_window_extent().y0
