"""What is counted while the rows stream by: by hand, against scipy, and in any order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from summary.bulk_folder import image_row, text_row, write_run

from whyformer._summary.rows import open_stored_run
from whyformer._summary.shares import mark_border, resample_map, take_positive_shares
from whyformer._summary.tally import ClassSamples, Tally, correlate_scores


def count(folder, rows, method="rollout", **more):
    tally = Tally(method, 400, 0)
    for part in open_stored_run(write_run(folder, rows, **more)).iterate_parts():
        tally.add_part(part)
    return tally


# --- maps -------------------------------------------------------------------------------------------------------------


def test_shares_leave_negative_scores_out():
    np.testing.assert_allclose(take_positive_shares(np.array([-5.0, 1, 3])), [0, 0.25, 0.75])
    assert take_positive_shares(np.array([-1.0, 0])) is None


def test_a_map_on_a_coarser_grid_by_hand():
    shares = np.array([[1.0, 2, 3]])
    np.testing.assert_allclose(resample_map(shares, (1, 2)), [[2, 4]])  # the middle patch is split in two halves
    np.testing.assert_allclose(resample_map(shares, (1, 1)), [[6]])


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_resampling_keeps_the_sum(rows, columns, new_rows, new_columns):
    shares = np.random.default_rng(rows * 10 + columns).uniform(0, 1, (rows, columns))
    assert resample_map(shares, (new_rows, new_columns)).sum() == pytest.approx(shares.sum())


def test_the_border_of_a_grid():
    assert mark_border((3, 4)).astype(int).tolist() == [[1, 1, 1, 1], [1, 0, 0, 1], [1, 1, 1, 1]]


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_mean_map_and_error_rate_of_a_class(tmp_path):
    rows = [
        image_row("a", 0, [1, 0, 0, 3], (2, 2), label="class 0"),
        image_row("b", 1, [0, 2, 0, 0], (2, 2), label="class 1"),
        image_row("c", 2, [-1, -1, -1, -1], (2, 2)),
    ]
    tally = count(tmp_path, rows)
    one = tally.classes["class 0"]
    np.testing.assert_allclose(one.mean_map, [[0.125, 0.5], [0, 0.375]])
    assert (one.items, one.labelled, one.error_rate, tally.without_positive) == (3, 2, 0.5, 1)


def test_border_share_beside_that_of_even_relevance(tmp_path):
    scores = np.zeros((3, 3))
    scores[1, 1], scores[0, 0] = 3, 1
    tally = count(tmp_path, [image_row("a", 0, scores.ravel(), (3, 3))])
    place = tally.places["rollout"]
    assert place.sums["border patches"] == pytest.approx(0.25)
    assert place.expected["border patches"] == pytest.approx(8 / 9)


def test_special_tokens_of_a_text(tmp_path):
    row = text_row("a", 0, ["good", "film"], [1, 1])
    row["scores"][0] = 2.0  # [CLS]
    tally = count(tmp_path, [row])
    assert tally.places["rollout"].sums["special tokens"] == pytest.approx(0.5)
    assert tally.places["rollout"].expected["special tokens"] == pytest.approx(0.5)


def test_words_are_joined_counted_and_ranked(tmp_path):
    rows = [
        text_row("a", 0, ["Good", "film,", "good"], [1, 1, 2]),
        text_row("b", 1, ["bad", "film"], [1, 3]),
    ]
    tally = count(tmp_path, rows)
    words = tally.classes["class 0"].list_top_words(3)
    assert [(word, items) for word, _, items in words] == [("film", 2), ("good", 1), ("bad", 1)]
    np.testing.assert_allclose([share for _, share, _ in words], [0.5, 0.375, 0.125])


def test_errors_are_counted_by_code(tmp_path):
    failed = [{"id": f"{i}", "position": i, "method": "rollout", "kind": "image", "message": f"m{i}"} for i in range(3)]
    for row, code in zip(failed, ["E_IMG_READ", "E_IMG_BROKEN", "E_IMG_READ"], strict=True):
        row["error"] = code
    tally = count(tmp_path, failed)
    counts = {error.code: (error.rows, error.example, error.message) for error in tally.errors.values()}
    assert counts == {"E_IMG_READ": (2, "0", "m0"), "E_IMG_BROKEN": (1, "1", "m1")}


# --- several methods --------------------------------------------------------------------------------------------------


def test_rank_correlation_is_that_of_scipy():
    rng = np.random.default_rng(0)
    for _ in range(5):
        first, second = rng.integers(0, 5, (2, 30)).astype(float)
        assert correlate_scores(first, second) == pytest.approx(spearmanr(first, second).statistic)
    assert correlate_scores(np.ones(5), np.arange(5.0)) is None


def test_finds_the_items_on_which_methods_disagree(tmp_path):
    rows = []
    for i in range(6):
        rows.append(image_row(f"{i}", i, [1, 2, 3, 4], (2, 2)))
        rows.append(image_row(f"{i}", i, [4, 3, 2, 1] if i == 4 else [1, 2, 3, 5], (2, 2), method="grad_cam"))
    tally = count(tmp_path, rows, parts=2)
    assert [(one.id, one.correlation) for one in tally.disagreements][:2] == [("4", -1.0), ("0", 1.0)]
    assert tally.pair_sums["grad_cam", "rollout"] == pytest.approx(4.0)


# --- properties -------------------------------------------------------------------------------------------------------


def random_rows(items, classes, seed=0):
    rng = np.random.default_rng(seed)
    return [image_row(f"{i}.png", i, rng.uniform(0, 1, 4), (2, 2), target=i % classes) for i in range(items)]


def test_the_order_of_the_rows_does_not_matter(tmp_path):
    rows = random_rows(60, 3)
    order = np.random.default_rng(1).permutation(60)
    first, second = (
        count(tmp_path / name, chosen, parts=4) for name, chosen in (("a", rows), ("b", [rows[i] for i in order]))
    )
    assert list(first.samples.rows) == list(second.samples.rows)
    for name, one in first.classes.items():
        np.testing.assert_allclose(one.mean_map, second.classes[name].mean_map)
        assert [row.id for row in first.samples.rows[name]] == [row.id for row in second.samples.rows[name]]


@pytest.mark.parametrize(
    ("most", "left"), [(1000, 20), (40, 10), (20, 5), (63, 15)], ids=["all", "half", "quarter", "as many as fit"]
)
def test_memory_is_bounded_whatever_the_order(tmp_path, most, left):
    rows = [row for part in open_stored_run(write_run(tmp_path, random_rows(80, 4))).iterate_parts() for row in part]
    kept = []
    for order in (rows, rows[::-1], sorted(rows, key=lambda row: row.class_name)):
        samples = ClassSamples(per_class=20, seed=0, most=most)
        for row in order:
            samples.add(row)
        kept.append({name: [row.id for row in some] for name, some in samples.rows.items()})
    assert {len(ids) for ids in kept[0].values()} == {left}
    assert kept[0] == kept[1] == kept[2]
