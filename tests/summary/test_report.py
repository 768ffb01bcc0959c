"""The summary as a page, JSON, CSV and text, and on the command line; whatever ids, words and classes say."""

import csv
import json
import re
from io import StringIO
from pathlib import Path

import html5lib
import numpy as np
import pytest
from summary.bulk_folder import image_row, text_row, write_run
from typer.testing import CliRunner

import whyformer
from whyformer import cli
from whyformer._summary.wording import CANNOT_FIND, EVIDENCE_TITLE, LOOKED_FOR
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
    assert "mean of 24 maps" in page


def test_a_notebook_shows_the_verdict(tmp_path):
    summary = summarise(tmp_path, image_rows())
    assert "1 cluster found, none tested" in summary._repr_html_()


def test_says_what_it_cannot_find_and_the_strongest_evidence_of_each_class(tmp_path):
    """On the page, in a notebook, in a terminal and in JSON, whatever was found."""
    rows = [*image_rows(), *(row | {"target_name": "rare", "position": 90 + i} for i, row in enumerate(image_rows(3)))]
    summary = summarise(tmp_path, rows)
    fields = json.loads(save(summary, tmp_path / "summary.json"))
    assert fields["looked_for"] == LOOKED_FOR and fields["cannot_find"] == list(CANNOT_FIND)
    assert [(one["class"], one["cluster"], one["effect"]) for one in fields["strongest"]] == [
        ("class 0", 1, None),
        ("rare", None, None),
    ]
    page, text = save(summary, tmp_path / "summary.html"), " ".join(str(summary).split())
    for hidden in CANNOT_FIND:
        assert hidden in page and hidden in text and hidden in summary._repr_html_()
    for shown in (page, text):
        assert LOOKED_FOR in shown and EVIDENCE_TITLE in shown and "too few items" in shown and "not tested" in shown


def test_no_page_promises_to_find_every_mark():
    root = Path(__file__).parents[2]
    pages = [root / "README.md", root / "CHANGELOG.md", *(root / "docs").glob("*.md")]
    assert not [page.name for page in pages if "stands out by itself" in " ".join(page.read_text().split())]


def test_json_holds_everything(tmp_path):
    rows = [*image_rows(label="class 0"), failed_row(50), failed_row(51)]
    fields = json.loads(save(summarise(tmp_path, rows), tmp_path / "summary.json"))
    assert fields["rows"] == 26
    assert fields["errors"] == [{"code": "E_IMG_READ", "rows": 2, "example": "bad50", "message": ""}]
    (cluster,) = fields["clusters"]
    assert sorted(cluster["ids"]) == sorted(row["id"] for row in image_rows())
    assert np.argwhere(np.array(cluster["region"])).tolist()[-1] == [7, 0]
    assert fields["classes"][0]["error_rate"] == 0
    assert np.sum(fields["classes"][0]["mean_map"]) == pytest.approx(1)
    assert cluster["suspicious"] is False and cluster["criteria"]["changes the answer"] is None


def test_csv_has_a_row_per_cluster_and_no_formula(tmp_path):
    text = save(summarise(tmp_path, text_rows(target_name="=cmd()")), tmp_path / "clusters.csv")
    (row,) = csv.DictReader(StringIO(text))
    assert row["class"] == "'=cmd()"
    assert (row["items"], row["looks_at"], row["suspicious"]) == ("24", "the word 'tag'", "no")


def test_text_for_a_terminal(tmp_path):
    rows = [*text_rows(), failed_row(77)]
    rows += [row | {"method": "attcat", "scores": row["scores"][::-1]} for row in text_rows()]
    text = save(summarise(tmp_path, rows), tmp_path / "summary.txt")
    for part in ("Clusters", "the word 'tag'", "words with most relevance", "special tokens", "Do methods agree?",
                 "Least agreement", "E_IMG_READ"):  # fmt: skip
        assert part in text
    assert "\x1b" not in save(summarise(tmp_path / "b", text_rows(target_name="\x1b[31mred")), tmp_path / "b.txt")


def test_says_how_many_items_were_sampled(tmp_path):
    summary = summarise(tmp_path, image_rows(60), class_limit=20)
    assert summary.notes == (
        "Clusters and outliers are found in a random sample of 20 of 60 items, at most 20 per class.",
    )
    assert len(summary.findings[0].cluster.sampled.rows) == 20
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
    summary = whyformer.summarise_bulk(write_run(tmp_path, image_rows(), plan={"methods": {}, **plan}))
    assert summary.notes[0].startswith("No cluster was tested: ")
    assert not summary.suspicious
    assert len(summary.findings) == 1


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
    assert "1 cluster found, none tested" in printed
    assert (tmp_path / "s.html").is_file() and (tmp_path / "s.csv").is_file()


def test_the_command_prints_json(tmp_path):
    folder = write_run(tmp_path / "run", image_rows())
    assert json.loads(run(folder, "--no-test", "--json"))["clusters"][0]["items"] == 24


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


def test_nothing_is_drawn_over_what_a_cluster_looks_at():
    """The outline of the region once hid the artefact in it."""
    from PIL import Image

    from whyformer._summary.report import mark_region

    pixels = np.random.default_rng(0).integers(0, 255, (256, 256, 3)).astype(np.uint8)
    region = np.zeros((8, 8), bool)
    region[6:, :2] = True
    marked = np.asarray(mark_region(Image.fromarray(pixels), region))
    assert (marked[192:, :64] == pixels[192:, :64]).all()
    assert marked[:180, 80:].mean() > pixels[:180, 80:].mean() + 20
