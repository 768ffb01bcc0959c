"""compare_runs(): what moved is found and measured, what did not is not, whatever the order of the rows."""

import itertools
import json
import re
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from summary.bulk_folder import image_row, text_row, write_run

import whyformer as why
from whyformer._summary.moves import (
    compare_shares,
    deal_counts,
    deal_items,
    stack_evidence,
    swap_pairs,
    total_variation,
)
from whyformer.errors import InputError

GRID = (4, 4)
GOOD, BAD = ["warm", "funny", "clever"], ["dull", "flat", "bland"]


def noisy_map(random, corner, strength=5.0):
    scores = [random.random() for _ in range(16)]
    scores[corner] += strength
    return scores


def image_rows(seed, *, corner=0, count=40, first=0, **more):
    """Two classes; class 0 looks at a corner, class 1 at the centre."""
    random = Random(seed)
    return [
        image_row(f"{n:03}", n - first, noisy_map(random, corner if n % 2 == 0 else 5), GRID, target=n % 2,
                  label=f"class {n % 2}", **more)
        for n in range(first, first + count)
    ]  # fmt: skip


def text_rows(seed, words, *, count=40):
    random, rows = Random(seed), []
    for n in range(count):
        word = random.choice(words if n % 2 == 0 else BAD)
        rows.append(text_row(f"{n:03}", n, ["the", "film", "is", word], [0.1, 0.2, 0.1, 3.0], target=n % 2))
    return rows


def compare(folder, one, other, **options):
    return why.compare_runs(write_run(folder / "a", one), write_run(folder / "b", other), **options)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_the_moved_part_by_hand():
    assert total_variation(np.array([0.5, 0.5, 0.0]), np.array([0.2, 0.5, 0.3])) == pytest.approx(0.3)
    x, y, words = stack_evidence([{"a": 1.0}, {"a": 0.5, "b": 0.5}], [{"b": 1.0}])
    assert words == ["a", "b"] and x.tolist() == [[1, 0, 0], [0.5, 0.5, 0]] and y.tolist() == [[0, 1, 0]]


def test_swapping_pairs_by_its_definition():
    """Every way to swap three items, computed one by one."""
    random = np.random.default_rng(0)
    x, y = random.random((3, 4)), random.random((3, 4))
    found = np.concatenate(list(swap_pairs(x, y, 100, 0)))
    slow = []
    for swapped in itertools.product([False, True], repeat=3):
        one = np.array([b if s else a for a, b, s in zip(x, y, swapped, strict=True)])
        other = np.array([a if s else b for a, b, s in zip(x, y, swapped, strict=True)])
        slow.append(one.mean(0) - other.mean(0))
    assert np.allclose(sorted(map(tuple, found)), sorted(map(tuple, slow)))


def test_dealing_items_by_its_definition():
    """Two and three items: every deal is one of the ten, and the first is as observed."""
    random = np.random.default_rng(0)
    x, y = random.random((2, 3)), random.random((3, 3))
    pool = np.concatenate([x, y])
    slow = []
    for chosen in itertools.combinations(range(5), 2):
        rest = [i for i in range(5) if i not in chosen]
        slow.append(pool[list(chosen)].mean(0) - pool[rest].mean(0))
    found = np.concatenate(list(deal_items(x, y, 500, 0)))
    assert np.allclose(found[0], x.mean(0) - y.mean(0))
    distances = np.abs(found[:, None] - np.array(slow)[None]).max(2)
    assert (distances.min(1) < 1e-12).all() and set(distances.argmin(1)) == set(range(10))


def labelled_rows(names, labels=("class 0", "class 1"), count=40):
    """Texts whose predictions alternate between classes of these names."""
    rows = text_rows(0, GOOD, count=count)
    return [
        {**row, "label": labels[n % 2], "prediction_name": names[n % 2], "target_name": names[n % 2]}
        for n, row in enumerate(rows)
    ]


def test_labels_that_are_no_classes_of_a_model_count_neither_as_right_nor_as_wrong(tmp_path):
    found = compare(tmp_path, labelled_rows(("class 0", "class 1")), labelled_rows(("LABEL_0", "LABEL_1")))
    assert found.foreign == ((), ("class 0", "class 1")) and not found.answers and not found.changes
    assert "The labels class 0, class 1 are no classes of the second model" in found.verdict
    assert "no class in common" in found.verdict and "predicted otherwise" not in found.verdict


def test_a_model_that_does_not_predict_a_class_any_more_is_wrong(tmp_path):
    """With the same set of classes nothing is left out, whatever is predicted."""
    plan = {"methods": {"rollout": {}}, "model": {"labels": "same"}}
    one, other = labelled_rows(("class 0", "class 1")), labelled_rows(("class 0", "class 0"))
    folders = [write_run(tmp_path / name, rows, plan=plan) for name, rows in (("a", one), ("b", other))]
    found = why.compare_runs(*folders)
    assert found.foreign == ((), ()) and "Right predictions: 100.0% before, 50.0% after" in found.verdict


def test_a_label_that_only_one_of_two_models_has_is_left_out(tmp_path):
    plans = [{"methods": {"rollout": {}}, "model": {"labels": name}} for name in "ab"]
    rows = (labelled_rows(("class 0", "class 1")), labelled_rows(("class 0", "another")))
    folders = [
        write_run(tmp_path / plan["model"]["labels"], one, plan=plan) for one, plan in zip(rows, plans, strict=True)
    ]
    found = why.compare_runs(*folders)
    assert found.foreign == ((), ("class 1",))
    assert {one.what: one.items for one in found.answers}["right"] == (20, 20)


def test_the_test_of_two_shares_by_its_definition():
    """3 of 4 right against 0 of 4: of the 70 deals of 3 right ones, those with 3 or 0 on one side."""
    exact = (5 + 5) / 70 * 1  # C(5, 1) ways to choose the fourth of the first four; the same mirrored
    found = deal_counts(np.array([1, 1, 1, 0.0]), np.zeros(4), 0, tries=200_000)
    assert found == pytest.approx(exact, abs=0.005)
    assert compare_shares("right", [True] * 6, [False] * 6, True, 0).p == pytest.approx(2 / 64)
    assert compare_shares("right", [True, False], [True, False], True, 0).p == 1.0


# --- properties -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [image_rows(0), text_rows(0, GOOD)], ids=["images", "texts"])
def test_a_run_has_not_moved_from_itself(tmp_path, rows):
    found = compare(tmp_path, rows, rows)
    assert [(one.moved, one.p, one.is_paired) for one in found.classes] == [(0.0, 1.0, True)] * 2
    assert found.moved == () and found.changes == () and all(one.moved == 0 for one in found.moved_items)
    assert all(one.change == 0 and one.p == 1 for one in found.answers)
    assert found.shared == 40
    assert "none of 2 classes moved significantly" in found.verdict


def test_a_planted_move_is_found_and_the_other_class_is_not(tmp_path):
    """Class 0 looks at another corner in the second run; both have noise of their own."""
    found = compare(tmp_path, image_rows(0), image_rows(1, corner=15))
    assert [one.name for one in found.moved] == ["class 0"]
    move, other = found.classes
    assert move.is_paired and move.items == (20, 20) and move.adjusted_p < 0.01
    assert move.moved > 0.3 > 5 * other.moved and other.chance == pytest.approx(other.moved, abs=0.05)
    gained = np.unravel_index((move.after - move.before).argmax(), GRID)
    assert gained == (3, 3) and np.unravel_index((move.after - move.before).argmin(), GRID) == (0, 0)
    assert {one.before.class_name for one in found.moved_items[:10]} == {"class 0"}


def test_two_months_are_two_samples(tmp_path):
    """No item is shared; the same move is found."""
    found = compare(tmp_path, image_rows(0), image_rows(1, corner=15, first=100))
    assert found.shared == 0 and not found.moved_items
    assert [one.name for one in found.moved] == ["class 0"] and not found.classes[0].is_paired


def test_words_that_gained_and_lost_are_named(tmp_path):
    found = compare(tmp_path, text_rows(0, GOOD), text_rows(0, ["gorgeous"]))
    (move,) = found.moved
    gained, lost = move.list_words(5)
    assert [word for word, _ in gained] == ["gorgeous"] and {word for word, _ in lost} == set(GOOD)
    assert sum(change for _, change in gained) == pytest.approx(move.moved)
    assert found.records()[0]["gained"] == "gorgeous"


@given(st.integers(0, 1000))
@settings(max_examples=5, deadline=None)
def test_the_order_of_the_rows_does_not_matter(tmp_path_factory, seed):
    folder, random = tmp_path_factory.mktemp("order"), Random(seed)
    one, other = image_rows(0), image_rows(1, corner=15)
    expected = compare(folder, one, other).formats[".json"](compare(folder, one, other))
    for rows in (one, other):
        random.shuffle(rows)
    shuffled = [[{**row, "position": n} for n, row in enumerate(rows)] for rows in (one, other)]
    (folder / "again").mkdir()
    found = compare(folder / "again", *shuffled)
    assert found.formats[".json"](found) == expected


def test_few_false_alarms_without_a_move(tmp_path):
    """40 pairs of runs that differ by noise alone: at 5 %, more than 6 with any alarm would be unlikely (2 %)."""
    alarms = 0
    for seed in range(40):
        (tmp_path / str(seed)).mkdir()
        found = compare(tmp_path / str(seed), image_rows(2 * seed), image_rows(2 * seed + 1, first=(seed % 2) * 100))
        alarms += bool(found.moved)
    assert alarms <= 6


# --- predictions, notes, files ----------------------------------------------------------------------------------------


def test_predictions_and_accuracy(tmp_path):
    """Ten of twenty items of class 0 are taken for class 1 by the second checkpoint."""
    other = image_rows(0)
    for row in other[:20:2]:
        row.update(prediction=1, prediction_name="class 1", target=1, target_name="class 1")
    found = compare(tmp_path, image_rows(0), other)
    assert found.changes == (("class 0", "class 1", 10),)
    right = {one.what: one for one in found.answers}
    assert (right["right"].before, right["right"].after) == (1.0, 0.75)
    assert right["right"].p == pytest.approx(2 / 2**10) and right["right, of class 1"].p == 1.0
    assert right["predicted class 1"].change == pytest.approx(0.25)
    assert "Right predictions: 100.0% before, 75.0% after" in found.verdict and "10 of 40 shared items" in found.verdict


def test_the_same_id_with_other_content_is_another_item(tmp_path):
    found = compare(tmp_path, image_rows(0, content="x"), image_rows(0, content="y"))
    assert found.shared == 0 and any("40 ids are in both runs with other contents" in note for note in found.notes)


def test_grids_of_two_sizes_are_compared_on_the_coarser_one(tmp_path):
    fine = [
        image_row(row["id"], n, np.kron(np.reshape(row["scores"], GRID), np.ones((2, 2))).ravel(), (8, 8),
                  target=row["target"], label=row["label"])
        for n, row in enumerate(image_rows(0))
    ]  # fmt: skip
    found = compare(tmp_path, image_rows(0), fine)
    assert all(one.moved == pytest.approx(0, abs=1e-6) for one in found.classes) and not found.moved


def test_the_page_lists_words_by_the_size_of_their_change(tmp_path):
    one, other = text_rows(0, ["calm", "x", "y", "z"]), text_rows(1, ["warm", "x", "y", "z"])
    page = why.RunComparison.formats[".html"](compare(tmp_path, one, other)).decode()
    sizes = [abs(float(found)) for found in re.findall(r"([+-][0-9.]+) points", page.split("Predictions</h2>")[0])]
    assert len(sizes) > 2 and sizes == sorted(sizes, reverse=True)


def test_runs_are_named_by_the_folders_in_which_they_differ(tmp_path):
    first, second = (write_run(tmp_path / month / "run", image_rows(0)) for month in ("may", "june"))
    assert why.compare_runs(first, second).names == ("may", "june")
    same = why.compare_runs(first, first)
    assert same.names == ("A", "B") and not same.moved_items


@pytest.mark.parametrize(
    ("options", "message"),
    [({"class_limit": 3}, "class_limit must be >= 8"), ({"seed": -1}, "seed must be >= 0"),
     ({"method": "lrp"}, "has no method 'lrp'")],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        compare(tmp_path, image_rows(0), image_rows(0), **options)


def test_runs_of_two_methods_are_refused(tmp_path):
    other = [{**row, "method": "attcat"} for row in image_rows(0)]
    b = write_run(tmp_path / "b", other, plan={"methods": {"attcat": {}}})
    with pytest.raises(InputError, match=r"has no method 'rollout'\. Available: attcat") as refused:
        why.compare_runs(write_run(tmp_path / "a", image_rows(0)), b)
    assert refused.value.code == "E_METHOD"


def test_every_format(tmp_path):
    found = compare(tmp_path, text_rows(0, ["<b>warm</b>"]), text_rows(0, GOOD))
    for suffix in why.RunComparison.formats:
        found.save(tmp_path / f"out{suffix}")
    page = (tmp_path / "out.html").read_text()
    assert "<b>warm" not in page and "The evidence of class 0 moved by" in page and "<script" not in page
    assert json.loads((tmp_path / "out.json").read_text())["classes"][0]["class"] == "class 0"
    assert (tmp_path / "out.csv").read_text().splitlines()[0].startswith("class,items_a,items_b,paired,moved")
    assert "class 0" in found.to_html() and found.verdict.split(".")[0] in " ".join(str(found).split())
