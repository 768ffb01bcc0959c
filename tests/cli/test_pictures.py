"""Images with a text on the command line."""

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from whyformer.cli import app
from whyformer_papers.worlds import questions


def run(*words):
    return CliRunner().invoke(app, ["explain", *map(str, words), "-M", "demo/questions", "-m", "attnlrp"])


@pytest.fixture
def scene(tmp_path):
    file, scenes = tmp_path / "shapes.png", questions.generate(2, seed=0)
    Image.fromarray(scenes.images[1]).resize((96, 72)).save(file)
    return file, scenes.questions[1]


def test_an_image_with_a_question(scene, tmp_path):
    file, question = scene
    saved = tmp_path / "why.html"
    shown = run(file, question.text, "-o", saved)
    assert shown.exit_code == 0 and question.answer in shown.stdout
    assert "image: " in shown.stdout and "words: " in shown.stdout
    assert saved.read_text("utf-8").count("<img") == 3


def test_the_order_of_arguments_does_not_matter(scene):
    file, question = scene
    orders = [file, question.text], [question.text, file]
    first, second = (json.loads(run(*words, "--json").stdout) for words in orders)
    assert first["scores"] == second["scores"] and [part["name"] for part in first["parts"]] == ["image", "words"]


def test_two_questions_about_one_image(scene):
    file, question = scene
    fields = json.loads(run(file, question.text, "what colour is the cross ?", "--json").stdout)
    assert fields["scores"]["shape"] == [2, 44]


def test_without_arguments_a_generated_image_is_explained():
    shown = run()
    assert shown.exit_code == 0 and "image: " in shown.stdout


@pytest.mark.parametrize(("missing", "words"), [("text", 0), ("image", 1)])
def test_what_is_missing_is_named(scene, missing, words):
    shown = run((scene[0], "what colour is the cross ?")[words])
    assert shown.exit_code == 2 and f"there is no {missing}" in shown.output
