"""The benchmark of shortcuts: its marks, its scores, and one used and one clean case from end to end."""

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from shortcut_cases import photo_marks, text_cases  # noqa: E402
from shortcut_cases.cases import Case, choose_marked  # noqa: E402
from shortcut_cases.image_marks import PAINTERS, draw_style  # noqa: E402
from shortcut_cases.scores import holds_mark, name_role, score_findings  # noqa: E402
from shortcut_cases.texts import WRITERS, make_reviews  # noqa: E402

from whyformer._summary.track_record import read_track_record, write_track_record  # noqa: E402


@pytest.mark.parametrize("kind", PAINTERS)
def test_a_mark_changes_its_box_alone_and_follows_from_its_seed(kind):
    image = np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)
    style = draw_style(3, 0)
    marked, box = PAINTERS[kind](image, style, np.random.default_rng(5))
    again, _ = PAINTERS[kind](image, style, np.random.default_rng(5))
    assert np.array_equal(marked, again)
    changed = (marked != image).any(-1)
    assert changed.any()
    if box is None:  # the whole image
        assert changed.mean() > 0.9
    else:
        top, left, bottom, right = box
        changed[top:bottom, left:right] = False
        assert not changed.any()


@pytest.mark.parametrize("kind", WRITERS)
def test_a_text_mark_adds_to_the_text(kind):
    text = "the plot is dull , and the cast flat ."
    marked = WRITERS[kind](text, 4, np.random.default_rng(0))
    assert marked != text
    if kind != "punctuation":
        assert len(marked.split()) > len(text.split())


def test_which_items_are_marked():
    labels = np.arange(120) % 3
    planted = Case("shapes", "corner", 0.5, 1, "planted")
    marked = choose_marked(planted, labels, 3, training=True)
    assert marked.sum() == 20
    assert set(labels[marked]) == {1}
    ignoring = Case("shapes", "corner", 0.5, 1, "ignoring")
    assert choose_marked(ignoring, labels, 3, training=True).sum() == 60  # of every class alike
    assert set(labels[choose_marked(ignoring, labels, 3, training=False)]) == {1}
    assert not choose_marked(Case("shapes", "none", 0.0, 1, "clean"), labels, 3, training=True).any()


def test_the_halves_are_drawn_once_and_what_was_known_before_is_not_held_out():
    import shortcuts

    for kinds in photo_marks.GROUPS.values():
        assert len(photo_marks.HELD_OUT & set(kinds)) == len(kinds) // 2 - len(set(photo_marks.MENDED_FOR) & set(kinds))
    assert not photo_marks.HELD_OUT & {*photo_marks.ISSUE_51, *photo_marks.MENDED_FOR}
    halves = [
        {case.kind for case in shortcuts.list_cases(half, [5], ["pets", "sst2"], ())} - {"none"}
        for half in ("held_out", "fitted")
    ]
    assert not halves[0] & halves[1]
    assert halves[0] | halves[1] == {
        *photo_marks.PAINTERS,
        *(one for kinds in shortcuts.TEXT_KINDS.values() for one in kinds),
    }


@pytest.mark.parametrize("kind", photo_marks.PAINTERS)
def test_a_mark_on_a_photo_follows_from_its_seeds_and_stays_where_it_belongs(kind):
    image = np.random.default_rng(0).integers(60, 200, (96, 96, 3), dtype=np.uint8)
    animal = np.zeros((96, 96), bool)
    animal[30:80, 20:70] = True
    generators = lambda: (np.random.default_rng(1), np.random.default_rng(2))  # noqa: E731
    marked = photo_marks.PAINTERS[kind](image, *generators(), animal)
    assert np.array_equal(marked, photo_marks.PAINTERS[kind](image, *generators(), animal))
    changed = (marked != image).any(-1).mean()
    assert marked.shape == image.shape and marked.dtype == np.uint8
    assert changed > 0.5 if kind in photo_marks.GROUPS["whole"] else 0.002 < changed < 0.5


def finding(ids, suspicious, **criteria):
    rows = [SimpleNamespace(id=name) for name in ids]
    return SimpleNamespace(rows=rows, is_suspicious=suspicious, criteria=criteria)


def test_scores_by_hand():
    marked = [f"m{i}" for i in range(10)]
    assert holds_mark(["m0", "m1", "m2", "m3", "m4", "x"], marked)  # half, 5 of 6
    assert not holds_mark(marked[:4], marked)  # fewer than half
    assert not holds_mark([*marked[:7], "x", "y"], marked)  # 7 of 9 are too few
    other, own = finding(["x", "y"], True), finding(marked, True)
    assert score_findings([own], {"m": marked}).found
    third = score_findings([other, other, own], {"m": marked})
    assert (third.found, third.rank) == (True, 3)
    fourth = score_findings([other, other, other, own], {"m": marked})
    assert (fourth.found, fourth.missed) == (False, "not among the first 3")
    calm = score_findings([finding(marked, False, used=True, uniform=False)], {"m": marked})
    assert (calm.found, calm.accused, calm.missed) == (False, False, "gathered, but not called uniform")
    assert score_findings([other], {}).accused


def test_roles_are_measured():
    assert name_role("planted", 0.95, 0.85) == "used"
    assert name_role("planted", 0.95, 0.90) == "weak"
    assert name_role("ignoring", 0.90, 0.88) == "ignoring"
    assert name_role("ignoring", 0.90, 0.70) == "weak"
    assert name_role("clean", 0.9, 0.9) == "clean"


def test_one_used_and_one_clean_case(tmp_path, monkeypatch):
    """Trains two small BERTs; the word must be used and found, the twin not accused."""
    import shortcuts

    monkeypatch.setattr(text_cases, "make_reviews", partial(make_reviews, train=400, shown=160, measured=160))
    settings = {"photos": None, "texts": None}
    used = Case("reviews", "word", 0.5, 0, "planted")
    row = shortcuts.evaluate(used, tmp_path / used.name, settings)
    assert row["role"] == "used"
    assert row["found"], row["missed"]
    clean = Case("reviews", "none", 0.0, 0, "clean")
    row = shortcuts.evaluate(clean, tmp_path / clean.name, settings)
    assert (row["role"], row["accused"]) == ("clean", False)
    assert json.loads((tmp_path / clean.name / "score.json").read_text("utf-8")) == row


def test_the_published_table_is_that_of_the_rows():
    import shortcuts

    rows = json.loads((ROOT / "docs" / "data" / "shortcuts.json").read_text("utf-8"))
    assert all(row["seed"] >= 5 or not shortcuts.is_held_out(row) for row in rows)
    assert shortcuts.make_table(rows) in shortcuts.PAGE.read_text("utf-8")
    assert read_track_record() == shortcuts.count_rows(rows)


def test_the_track_record_counts_every_kind():
    record = {
        "local": {"corner": {"used": 5, "found": 4}, "word": {"used": 3, "found": 3}},
        "apart": {"blur": {"used": 2, "found": 0}},
        "clean": {"models": 6, "accused": 0},
        "ignoring": {"models": 4, "accused": 1},
        "outside": {"finger": {"used": 2, "found": 0}, "stamp": {"used": 1, "found": 1}},
    }
    sentence = write_track_record(record)
    assert "7 of 8 with a place (corner 4/5, word 3/3) and 0 of 2 thin, faint or without one (blur 0/2)" in sentence
    assert "Of marks drawn by others an earlier version found 1 of 3 (finger 0/2" in sentence
    assert "1 of 10 models" in sentence
