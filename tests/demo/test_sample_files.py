"""Sample files: one line puts them where the examples look for them."""

import csv

import pytest
from PIL import Image
from typer.testing import CliRunner

import whyformer as why
from whyformer import cli
from whyformer.demo.sample_files import SAMPLE_NAMES, SAMPLES
from whyformer.errors import InputError, OutputError


def test_a_photograph_is_put_into_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert why.demo.sample("cat.jpg") == why.demo.sample()  # a second time is no error
    with Image.open("cat.jpg") as photograph:
        assert photograph.size == (288, 288)


def test_every_sample_that_ships_can_be_had(tmp_path):
    assert {file.name for file in SAMPLES.iterdir()} == {*SAMPLE_NAMES, "ATTRIBUTION.md"}
    for name in SAMPLE_NAMES:
        assert why.demo.sample(name, tmp_path).read_bytes() == (SAMPLES / name).read_bytes()


def test_the_reviews_have_texts_and_labels_of_the_model():
    rows = list(csv.DictReader((SAMPLES / "reviews.csv").read_text().splitlines()))
    assert {row["label"] for row in rows} == {*why.open("demo/sentiment").labels} and all(row["text"] for row in rows)


def test_a_file_that_is_something_else_is_left_alone(tmp_path):
    (tmp_path / "cat.jpg").write_bytes(b"mine")
    with pytest.raises(OutputError, match="is there already and is not the sample"):
        why.demo.sample("cat.jpg", tmp_path)
    assert (tmp_path / "cat.jpg").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["dog.jpg", "../tour.py", "", 3])
def test_unknown_samples_are_refused(name, tmp_path):
    with pytest.raises(InputError, match=r"There is no sample .* Available: cat.jpg, passages.txt, question.png, rev"):
        why.demo.sample(name, tmp_path)


def test_the_command_line_says_what_it_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.app, ["demo", "--sample", "cat.jpg", "--sample", "reviews.csv"])
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "saved cat.jpg\nsaved reviews.csv\n")
    assert {file.name for file in tmp_path.iterdir()} == {"cat.jpg", "reviews.csv"}
