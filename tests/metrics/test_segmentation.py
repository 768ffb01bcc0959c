"""Segmentation by hand: a map above its mean against a mask, one image and a data set of two."""

import numpy as np
import pytest
import torch
from combined_values import combine_values
from fake_probe import picture

from whyformer.errors import MetricError
from whyformer.metrics import mean_average_precision, mean_f1, mean_iou, pixel_accuracy
from whyformer.metrics._registry import METRICS
from whyformer.metrics.segmentation import otsu_threshold, scale_to_unit_range, threshold_map

# Above their means (2.5 and 0.75): the last two pixels, and the last one.
E = picture([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 3.0]], 2, 2)
MASKS = [[[0, 1], [1, 1]], [[0, -1], [-1, 1]]]


def near(found, wanted):
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12, equal_nan=True)


def test_pixel_accuracy_by_hand():
    """3 of 4 right, and 2 of the 2 labelled; together 5 of 6, which is not the mean of the two."""
    found = pixel_accuracy(E, MASKS)
    near(found.value, [0.75, 1.0])
    near(found.parts, [[3.0, 4.0], [2.0, 2.0]])
    assert combine_values(METRICS["pixel_accuracy"], found.value, found.parts) == pytest.approx(5 / 6, abs=1e-12)


def test_mean_iou_by_hand():
    """Background 1 of 2 (the second pixel is missed), object 2 of 3; in the second image 1 of 1 and 1 of 1.
    Together 2 of 3 and 3 of 4."""
    found = mean_iou(E, MASKS)
    near(found.value, [(1 / 2 + 2 / 3) / 2, 1.0])
    assert combine_values(METRICS["mean_iou"], found.value, found.parts) == pytest.approx(
        (2 / 3 + 3 / 4) / 2, abs=1e-12
    )


def test_a_class_that_is_nowhere_does_not_count():
    found = mean_iou(picture([[1.0, 1.0, 1.0, 1.0]], 2, 2), [[[0, 0], [0, 0]]])  # flat: all background, and right
    near(found.value, [1.0])


def test_mean_f1_by_hand():
    """First image: 2 pixels found, 3 of the object, 2 of them the same: 4/5; rows 0 and 2/2. Second: 1, 1 and 1: 2/2,
    and in its rows 0 (nothing found, nothing there) and 2/2."""
    near(mean_f1(E, MASKS).value, [4 / 5, 1.0])
    near(mean_f1(E, MASKS, per="row").value, [1 / 2, 1 / 2])
    near(mean_f1(E, [MASKS[0], [[-1, -1], [-1, -1]]]).value, [4 / 5, float("nan")])
    assert mean_f1(picture([[1.0, 1.0, 1.0, 1.0]], 2, 2), [[[0, 1], [0, 0]]]).value.tolist() == [0.0]  # flat


def test_mean_f1_equals_sklearn_and_the_rows_of_the_released_code():
    """The released code flattens the image, cuts it into rows again and averages the F1 of every row."""
    from sklearn.metrics import f1_score

    generator = np.random.default_rng(5)
    scores, truth = generator.uniform(size=(3, 64)), generator.integers(0, 2, (3, 8, 8))
    e = picture(scores.tolist(), 8, 8)
    found, rows = mean_f1(e, list(truth)).value, mean_f1(e, list(truth), per="row").value
    for i in range(3):
        above = (scores[i] > scores[i].mean()).reshape(8, 8)
        assert float(found[i]) == pytest.approx(f1_score(truth[i].ravel(), above.ravel()), abs=1e-6)
        by_row = [f1_score(t, p, zero_division=0) for t, p in zip(truth[i], above, strict=True)]
        assert float(rows[i]) == pytest.approx(np.mean(by_row), abs=1e-6)


def test_mean_average_precision_by_hand():
    """Map scaled to 0, 1/4, 3/4, 1, object is the last pixel and the second. Sorted list of both:
    1 (pixel 1 is background, right), 1 (pixel 4 is object, right), then 3/4 twice: pixel 3 as object, wrong, and pixel
    2 as background, wrong; then 1/4 twice: pixel 2 as object and pixel 3 as background, right; 0 twice: wrong.
    Precision is 2/2 up to half of the recall, then 4/6: 1/2 + 2/3 * 1/2."""
    found = mean_average_precision(picture([[0.0, 1.0, 3.0, 4.0]], 2, 2), [[[0, 1], [0, 1]]])
    near(found.value, [0.5 + 0.5 * 2 / 3])


def test_mean_average_precision_is_one_for_the_mask_itself_and_undefined_without_a_label():
    e = picture([[0.0, 1.0, 1.0, 0.0]] * 2, 2, 2)
    near(mean_average_precision(e, [[[0, 1], [1, 0]], [[-1, -1], [-1, -1]]]).value, [1.0, float("nan")])


def test_undefined_pictures_take_no_part_in_the_figure():
    found = pixel_accuracy(E, [MASKS[0], [[-1, -1], [-1, -1]]])
    near(found.value, [0.75, float("nan")])
    assert combine_values(METRICS["pixel_accuracy"], found.value, found.parts) == 0.75


def test_thresholds():
    """0.6 lies below the mean of 0.65, but nearer to the high ones: Otsu's threshold is under it."""
    values = scale_to_unit_range(
        torch.tensor([0.0, 0.0, 0.0, 6.0, 9.0, 10.0, 10.0, 10.0, 10.0, 10.0], dtype=torch.float64)
    )
    assert threshold_map(values, "mean").tolist() == [False] * 4 + [True] * 6
    assert threshold_map(values, "otsu").tolist() == [False] * 3 + [True] * 7
    assert threshold_map(values, 0.95).sum() == 5
    with pytest.raises(MetricError, match="'mean', 'otsu'"):
        mean_iou(E, MASKS, threshold="median")


def test_otsu_is_the_definition_written_slowly():
    rng = np.random.default_rng(0)
    for _ in range(5):
        values = rng.beta(0.5, 0.8, 400)
        counts, edges = np.histogram(values, 256, (0, 1))
        centres = (edges[:-1] + edges[1:]) / 2
        best, chosen = -1.0, None
        for k in range(255):
            low, high = counts[: k + 1], counts[k + 1 :]
            if low.sum() and high.sum():
                means = (low @ centres[: k + 1]) / low.sum(), (high @ centres[k + 1 :]) / high.sum()
                between = low.sum() * high.sum() * (means[0] - means[1]) ** 2
                if between > best + 1e-9:
                    best, chosen = between, edges[k + 1]
        assert otsu_threshold(torch.from_numpy(values)) == pytest.approx(chosen, abs=1e-12)


def test_a_flat_map_is_all_background():
    found = pixel_accuracy(picture([[3.0] * 4], 2, 2), [[[0, 0], [0, 1]]])
    near(found.value, [0.75])
