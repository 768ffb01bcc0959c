"""The summary as a page, JSON, CSV and text, and on the command line; whatever ids, words and classes say."""

import csv
import json
import re
from dataclasses import replace
from html import unescape
from io import StringIO
from pathlib import Path

import html5lib
import numpy as np
import pytest
from PIL import Image
from summary.bulk_folder import image_row, text_row, write_run
from typer.testing import CliRunner

import whyformer
from whyformer import cli
from whyformer._summary.finding import (
    AnswerChange,
    Confusion,
    Effect,
    Finding,
    Link,
    Outlier,
    Presence,
    Sighting,
    Uniformity,
)
from whyformer._summary.pictures import crop_mark
from whyformer._summary.report import make_snippet
from whyformer._summary.track_record import write_track_record
from whyformer._summary.wording import CANNOT_FIND, EVIDENCE_TITLE, LOOKED_FOR, explain_finding, write_finding_caption
from whyformer.demo.tour import CAT
from whyformer.errors import InputError

EVIL = "</td><script>alert(1)</script><img src=x onerror=alert(2)>"


def image_rows(count=24, name="{}.png", **more):
    rng = np.random.default_rng(0)
    rows = []
    for i in range(count):
        scores = rng.uniform(0, 0.002, (8, 8))
        scores[7, 0] += 1
        rows.append(image_row(name.format(i), i, scores.ravel(), (8, 8), **more))
    return rows


def text_rows(count=24, word="tag", **more):
    rng = np.random.default_rng(0)
    rows = []
    for i in range(count):
        words = [word, *(f"w{n}" for n in rng.integers(0, 900, 6))]
        rows.append(text_row(f"{i}", i, words, [9, *rng.uniform(0, 0.2, 6)], **more))
    return rows


def failed_row(i, **more):
    return {"id": f"bad{i}", "position": i, "method": "rollout", "kind": "image", "error": "E_IMG_READ", **more}


def summarise(folder, rows, **more):
    return whyformer.summarise_bulk(write_run(folder, rows), test=False, **more)


def save(summary, path):
    summary.save(path)
    return path.read_text()


@pytest.mark.parametrize(
    "rows",
    [
        image_rows(name="{}" + EVIL, source=EVIL, label=EVIL),
        image_rows(name="{}" + EVIL, source=str(CAT), label=EVIL),
        image_rows(target_name=EVIL, prediction_name=EVIL),
        text_rows(word=EVIL.replace(" ", "_")),
        text_rows(target_name=EVIL),
        [*image_rows(), failed_row(90, id=EVIL, message=EVIL)],
        [*image_rows(method=EVIL)],
    ],
    ids=["ids", "captions", "classes", "words", "class of texts", "errors", "method"],
)
def test_nothing_in_the_rows_becomes_markup(tmp_path, rows):
    page = save(summarise(tmp_path, rows), tmp_path / "summary.html")
    html5lib.HTMLParser(strict=True).parse(page)
    assert "<script" not in page
    assert "onerror=alert(2)>" not in page
    assert "&lt;script&gt;" in page


def test_the_page_asks_nothing_of_the_network(tmp_path):
    page = save(summarise(tmp_path, image_rows()), tmp_path / "summary.html")
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page)
    assert "mean of all maps" in page


def test_a_notebook_shows_the_verdict(tmp_path):
    summary = summarise(tmp_path, image_rows())
    assert "Nothing was tested" in summary._repr_html_()


def test_says_what_it_cannot_find_and_the_strongest_evidence_of_each_class(tmp_path):
    """On the page, in a notebook, in a terminal and in JSON, whatever was found."""
    rows = [*text_rows(), *(row | {"target_name": "rare", "position": 90 + i} for i, row in enumerate(text_rows(3)))]
    summary = summarise(tmp_path, rows)
    fields = json.loads(save(summary, tmp_path / "summary.json"))
    assert fields["looked_for"] == LOOKED_FOR and fields["cannot_find"] == list(CANNOT_FIND)
    assert [(one["class"], one["finding"], one["effect"]) for one in fields["strongest"]] == [
        ("class 0", 1, None),
        ("rare", None, None),
    ]
    page, text = save(summary, tmp_path / "summary.html"), " ".join(str(summary).split())
    for hidden in CANNOT_FIND:
        assert hidden in unescape(page) and hidden in text and hidden in unescape(summary._repr_html_())
    for shown in (page, text):
        assert write_track_record() in shown
        assert LOOKED_FOR in shown and EVIDENCE_TITLE in shown and "rare" in shown
    assert "too few items: 3" in page and "not tested" in page


def test_no_page_promises_to_find_every_mark():
    root = Path(__file__).parents[2]
    pages = [root / "README.md", root / "CHANGELOG.md", *(root / "docs").glob("*.md")]
    assert not [page.name for page in pages if "stands out by itself" in " ".join(page.read_text().split())]


def test_json_holds_everything(tmp_path):
    rows = [*text_rows(label="class 0"), failed_row(50), failed_row(51)]
    fields = json.loads(save(summarise(tmp_path, rows), tmp_path / "summary.json"))
    assert fields["rows"] == 26
    assert fields["errors"] == [{"code": "E_IMG_READ", "rows": 2, "example": "bad50", "message": ""}]
    finding = fields["findings"][0]
    assert sorted(one["id"] for one in finding["items_with_it"]) == sorted(row["id"] for row in text_rows())
    assert finding["items_with_it"][0]["spans"] == [[0, 3]] and finding["looks_at"] == "the word 'tag'"
    assert fields["classes"][0]["error_rate"] == 0 and fields["classes"][0]["words"][0]["word"] == "tag"
    assert finding["suspicious"] is False and finding["hiding_test"] is None


def test_csv_has_a_row_per_cluster_and_no_formula(tmp_path):
    text = save(summarise(tmp_path, text_rows(target_name="=cmd()")), tmp_path / "clusters.csv")
    (row,) = csv.DictReader(StringIO(text))
    assert row["class"] == "'=cmd()"
    assert (row["items"], row["looks_at"], row["suspicious"]) == ("24", "the word 'tag'", "no")


def test_text_for_a_terminal(tmp_path):
    rows = [*text_rows(), failed_row(77)]
    rows += [row | {"method": "attcat", "scores": row["scores"][::-1]} for row in text_rows()]
    text = save(summarise(tmp_path, rows), tmp_path / "summary.txt")
    for part in ("Findings", "the word 'tag'", "words with most relevance", "special tokens", "Do methods agree?",
                 "Least agreement", "E_IMG_READ"):  # fmt: skip
        assert part in text
    assert "\x1b" not in save(summarise(tmp_path / "b", text_rows(target_name="\x1b[31mred")), tmp_path / "b.txt")


def test_says_how_many_items_were_sampled(tmp_path):
    summary = summarise(tmp_path, text_rows(60), class_limit=20)
    assert "in a random sample of 20 of 60 items, at most 20 per class." in summary.notes[0]
    assert summary.findings[0].class_items == 20
    assert summary.tally.classes["class 0"].items == 60


def test_summarises_the_method_that_is_asked_for(tmp_path):
    rows = [*image_rows(), *(row | {"method": "attcat"} for row in image_rows())]
    folder = write_run(tmp_path, rows, plan={"methods": {"rollout": {}, "attcat": {}}})
    assert whyformer.summarise_bulk(folder, test=False).method == "rollout"
    assert whyformer.summarise_bulk(folder, test=False, method="attcat").method == "attcat"
    with pytest.raises(InputError, match=r"The run has no method 'lrp'\. Available: rollout, attcat\."):
        whyformer.summarise_bulk(folder, test=False, method="lrp")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_limit": 7}, "class_limit must be a whole number >= 8, got 7"),
        ({"test_limit": True}, "test_limit must be a whole number >= 2, got True"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"mask_values": "red"}, "There is no mask_values='red'"),
    ],
    ids=["class_limit", "test_limit", "seed", "mask_values"],
)
def test_wrong_settings_are_refused(tmp_path, settings, message):
    with pytest.raises(InputError, match=message) as caught:
        summarise(tmp_path, image_rows(8), **settings)
    assert caught.value.code == "E_OPTION"


@pytest.mark.parametrize("plan", [{}, {"model": {"name": "no/such/model"}}], ids=["no model", "unknown model"])
def test_a_run_whose_model_cannot_be_opened_is_summarised_without_tests(tmp_path, plan):
    summary = whyformer.summarise_bulk(write_run(tmp_path, text_rows(), plan={"methods": {}, **plan}))
    assert summary.notes[0].startswith("Nothing was tested: ")
    assert not summary.suspicious and summary.findings and not any(one.is_tested for one in summary.findings)


def test_a_model_that_was_passed_must_open(tmp_path):
    with pytest.raises(whyformer.errors.ModelNotFound):
        whyformer.summarise_bulk(write_run(tmp_path, image_rows()), "no/such/model")


def test_rows_of_tensors_are_counted_only(tmp_path):
    rows = image_rows(4, kind="tensors", source=None)
    summary = summarise(tmp_path, rows)
    assert "4 rows are of tensors" in summary.notes[0]
    assert not summary.findings


def test_a_run_of_errors_only(tmp_path):
    summary = summarise(tmp_path, [failed_row(i) for i in range(5)])
    assert summary.tally.errors["E_IMG_READ"].rows == 5
    html5lib.HTMLParser(strict=True).parse(save(summary, tmp_path / "s.html"))


# --- command line -----------------------------------------------------------------------------------------------------


def run(*arguments, code=0):
    result = CliRunner().invoke(cli.app, ["bulk-summary", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout


def test_the_command_prints_and_saves(tmp_path):
    folder = write_run(tmp_path / "run", image_rows())
    printed = run(folder, "--no-test", "-o", tmp_path / "s.html", "-o", tmp_path / "s.csv")
    assert "Nothing was tested" in printed
    assert (tmp_path / "s.html").is_file() and (tmp_path / "s.csv").is_file()


def test_the_command_prints_json(tmp_path):
    folder = write_run(tmp_path / "run", text_rows())
    assert json.loads(run(folder, "--no-test", "--json"))["findings"][0]["items"] == 24


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--no-test", "-m", "lrp"], 2, "The run has no method 'lrp'"),
        (["--no-test", "-o", "summary.pdf"], 2, "Unknown file format"),
        (["-M", "no/such/model"], 4, "no/such/model"),
        (["--no-test", "--class-limit", "1"], 2, "class_limit must be a whole number >= 8"),
    ],
    ids=["method", "format", "model", "per class"],
)
def test_the_command_says_what_is_wrong(tmp_path, options, code, message):
    assert message in run(write_run(tmp_path / "run", image_rows()), *options, code=code)


def test_the_command_refuses_a_folder_that_is_no_run(tmp_path):
    assert "is not the folder of a bulk run" in run(tmp_path, code=3)


# --- findings on the page ---------------------------------------------------------------------------------------------


def test_a_crop_shows_the_mark_and_nothing_is_drawn_over_it():
    """The outline of the region once hid the artefact in it. 512 pixels, 8 x 8 patches of 64."""
    pixels = np.random.default_rng(0).integers(0, 255, (512, 512, 3)).astype(np.uint8)
    pixels[128:192, 320:384] = (255, 0, 0)
    mark = [2 * 8 + 5]
    cut = np.asarray(crop_mark(Image.fromarray(pixels), (8, 8), mark)).astype(int)
    assert cut.shape == (256, 256, 3)  # of a square of 4 x 4 patches: the mark is a quarter of it wide
    red = (cut == (255, 0, 0)).all(-1)
    assert 60 <= red.any(0).sum() <= 64 and 60 <= red.any(1).sum() <= 64 and red[128, 128]
    black = (cut < 30).all(-1)
    assert black[128, 88:97].any() and black[128, 160:168].any()  # the outline, on both sides


@pytest.mark.parametrize("mark", [[0], [7], [56], [63], [0, 63], range(64), []], ids=str)
def test_a_crop_stays_inside_the_image(mark):
    assert crop_mark(Image.new("RGB", (512, 512)), (8, 8), list(mark)).size == (256, 256)


def test_of_several_groups_the_one_that_most_items_have_is_cropped():
    pixels = np.zeros((512, 512, 3), np.uint8)
    pixels[448:, :64] = (0, 255, 0)
    where = np.zeros((8, 8))
    where[7, 0] = 0.9
    cut = np.asarray(crop_mark(Image.fromarray(pixels), (8, 8), [0, 1, 2, 8, 9, 10, 56], where))
    assert (cut[-1, 0] == (0, 255, 0)).all()


def make_finding(summary, kind="patches", **more):
    rows = [row for rows in summary.tally.samples.rows.values() for row in rows]
    sightings = tuple(
        Sighting(row, patches=(56,)) if kind == "patches" else Sighting(row, spans=((0, 3), (4, 6))) for row in rows
    )
    effect = Effect(0.6, 0.1, 0.4, 0.6, 0.001, 20, 0.002)
    return Finding(
        "class 0", 0, kind, "a mark, lower left", 24, sightings, (Presence("class 0", 24, 20), Presence("other", 9, 0)),
        where=np.eye(8) if kind == "patches" else None, hiding=effect, without=AnswerChange(20, 0.9, 0.3, 1.0, 0.25),
        put_in=AnswerChange(18, 0.1, 0.7), links=(Link("folder", EVIL, 0.9, 0.1, 0.001),), is_suspicious=True, **more,
    )  # fmt: skip


def test_a_finding_has_twelve_crops_its_place_its_answers_and_three_items_to_open(tmp_path):
    summary = summarise(tmp_path, image_rows(source=str(CAT), label="class 1"))
    found = replace(summary, findings=(make_finding(summary),))
    page = save(found, tmp_path / "s.html")
    html5lib.HTMLParser(strict=True).parse(page)
    card = page[page.index("<h3>1. class 0: a mark, lower left") : page.index("All evidence")]
    assert len(re.findall(r"<img [^>]*the mark outlined", card)) == 12 and "where it is" in card
    assert write_finding_caption(found.findings[0]) in unescape(card)
    assert "hidden in its own items" in card and "100%" in card and "25%" in card and "put into items" in card
    assert "20 of 24" in card and "0 of 9" in card and "10% (p = 0.001)" in card
    assert card.count("<summary>Open ") == 3 and len(re.findall(r"<img [^>]*, whole", card)) == 3
    assert "file:" not in page and str(CAT.parent) not in page
    assert "<script" not in page and EVIL not in page


def test_words_are_marked_in_twelve_snippets(tmp_path):
    summary = summarise(tmp_path, text_rows(word="tag"))
    page = save(replace(summary, findings=(make_finding(summary, "words"),)), tmp_path / "s.html")
    card = page[page.index("<h3>1. class 0") : page.index("All evidence")]
    assert len(re.findall(r"<mark [^>]*>tag</mark>", card)) == 12


@pytest.mark.parametrize("spans", [(), ((5, 5),), ((900, 905),), ((0, 4), (2, 8))], ids=str)
def test_odd_spans_do_not_break_a_snippet(tmp_path, spans):
    (row,) = (row for rows in summarise(tmp_path, text_rows(1)).tally.samples.rows.values() for row in rows)
    text = re.sub("<[^>]*>", "", make_snippet(Sighting(row, spans=spans)))
    assert not spans or spans[0][0] >= 900 or row.source[:4] in text


def test_confusions_and_outliers_are_shown_with_their_evidence(tmp_path):
    summary = summarise(tmp_path, image_rows(source=str(CAT), label="class 1"))
    finding = make_finding(summary)
    confusion = Confusion("class 1", "class 0", 5, tuple(finding.rows[:5]), finding, 4)
    outlier = Outlier("odd.png", "class 0", 7.5, finding.rows[0])
    page = save(
        replace(summary, findings=(finding,), confusions=(confusion,), outliers=(outlier,)), tmp_path / "s.html"
    )
    assert "5 items of class 1 are taken for class 0; 4 of them show a mark, lower left." in page
    assert "odd.png" in page and "Items unlike their class" in page and "What class 0 is recognised by" in page


# --- sentences --------------------------------------------------------------------------------------------------------


def summarise_findings(tmp_path, *findings):
    return replace(summarise(tmp_path, image_rows()), findings=findings)


def test_the_evidence_of_a_class_is_what_is_suspicious_whatever_else_has_a_larger_effect(tmp_path):
    weak, strong = (Effect(change, 0.0, 0.1, 0.9, 0.001, 24, 0.001) for change in (0.2, 0.8))
    stamp = Finding("class 0", 0, "copies", "a mark, lower right", 24, hiding=weak, is_suspicious=True)
    face = Finding("class 0", 0, "patches", "a mark in the centre", 24, hiding=strong)
    summary = summarise_findings(tmp_path, stamp, face)
    assert summary.evidence["class 0"] is stamp
    (row,) = [line for line in str(summary).split("Findings")[0].splitlines() if line.startswith("class 0")]
    assert "suspicious" in row and "a mark" in row


def test_a_class_with_enough_items_and_no_evidence_is_not_called_too_small(tmp_path):
    page = save(summarise_findings(tmp_path), tmp_path / "summary.html")
    assert "nothing that enough of its 24 items share" in page and "too few items" not in page


def test_words_of_all_classes_have_no_limit_in_the_sentence(tmp_path):
    same = Uniformity(0.3, 0.2, 0.4, float("inf"))
    finding = Finding("class 0", 0, "words", "the word 'the'", 24, uniformity=same)
    shown = str(summarise_findings(tmp_path, finding)) + " ".join(explain_finding(finding))
    assert "other classes show it as often" in shown and not re.search(r"\binf\b", shown)


@pytest.mark.parametrize("what", ["a mark in the centre", "a mark, upper left", "a band across the lower part"])
def test_what_is_not_suspicious_is_called_no_mark_anywhere(tmp_path, what):
    finding = Finding("class 0", 0, "patches", what, 24, untested="a reason")
    confusion = Confusion("class 1", "class 0", 3, (), finding, 2)
    summary = replace(summarise_findings(tmp_path, finding), confusions=(confusion,))
    for name in ("s.txt", "s.csv", "s.json", "s.html"):
        text = save(summary, tmp_path / name).split("Looked for")[-1]
        assert what not in text and "a part of the image" in text


def test_one_kind_of_evidence_is_one(tmp_path):
    tested = Finding("class 0", 0, "patches", "a mark", 24, hiding=Effect(0.0, 0.0, 0.0, 0.0, 1.0, 24, 1.0))
    assert summarise_findings(tmp_path, tested).verdict.startswith("1 kind of evidence tested, none is suspicious.")
