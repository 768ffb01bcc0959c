"""The world of questions: its ground truth is right, and the bundled model answers by it and points at it."""

import numpy as np
import pytest
import torch
from PIL import Image

import whyformer as why
from whyformer_papers.worlds import captions, questions

torch.set_num_threads(1)
FRESH = 20_26  # a seed that was never used for training or evaluation
GREY = Image.new("RGB", (48, 48), (120, 120, 120))


@pytest.fixture(scope="module")
def explained():
    """Twenty questions that the model answers right, with their explanations by the default method."""
    model, scenes = why.open("demo/questions"), questions.generate(20, FRESH)
    rows = []
    for image, masks, question in zip(scenes.images, scenes.masks, scenes.questions, strict=True):
        e = why.explain(model, {"image": Image.fromarray(image), "text": question.text})
        rows.append((e, masks, question))
    return rows


def test_an_example_depends_only_on_its_seed_and_number():
    few, many = questions.generate(3, 5), questions.generate(6, 5)
    np.testing.assert_array_equal(few.images, many.images[:3])
    assert few.questions == many.questions[:3]


def test_the_answer_is_about_the_object_that_the_question_names():
    scenes = questions.generate(60, 1)
    for labels, question in zip(scenes.labels, scenes.questions, strict=True):
        asked, other = ({*captions.NAMES[labels[i]].split()} for i in (question.asked, 1 - question.asked))
        assert {question.word, question.answer} == asked
        assert question.decoy in other and not other & {*question.text.split()}
        assert question.text.split()[question.position] == question.word


def test_every_word_is_known_to_the_tokenizer():
    tokenizer = why.open("demo/questions").tokenizer
    assert tokenizer.unk_token_id not in tokenizer(" ".join(questions.VOCABULARY)).input_ids


def test_it_answers(explained):
    assert np.mean([e.targets[0].label == question.answer for e, _, question in explained]) >= 0.9


def test_the_highest_patch_is_on_the_object(explained):
    hits, decoys = [], []
    for e, masks, question in explained:
        patches = masks.reshape(2, 6, 8, 6, 8).mean((2, 4)).reshape(2, 36)
        best = int(e.stream("image").scores[0].argmax())
        hits.append(patches[question.asked, best] >= 0.2)
        decoys.append(patches[1 - question.asked, best] >= 0.2)
    assert np.mean(hits) >= 0.65 and np.mean(decoys) <= 0.35


def test_the_word_that_names_the_object_is_among_the_highest(explained):
    """The last token is where the answer is read, and scores highest itself."""
    hits = [question.word in [word for word, _ in e.stream("words").top(3)] for e, _, question in explained]
    assert np.mean(hits) >= 0.7


def test_a_grey_image_has_less_share_than_chance_would_give_it(explained):
    model = why.open("demo/questions")
    for e, _, question in explained[:5]:
        grey = why.explain(model, {"image": GREY, "text": question.text}, target=question.answer)
        assert grey.share("image") < 36 / e.scores.shape[1]


def test_scores_sum_to_the_logit(explained):
    model, scenes = why.open("demo/questions"), questions.generate(3, FRESH)
    for image, question in zip(scenes.images, scenes.questions, strict=True):
        e = why.explain(model, {"image": Image.fromarray(image), "text": question.text}, "cp_lrp")
        assert float(e.scores.sum()) == pytest.approx(e.targets[0].score, rel=1e-5, abs=1e-5)


def test_it_is_shown_in_one_picture(explained, tmp_path):
    e = explained[0][0]
    shown = str(e)
    assert "image: " in shown and "words: " in shown and "% of the total magnitude" in shown
    for name in ("e.html", "e.png", "e.svg", "e.txt", "e.csv", "e.tex"):
        e.save(tmp_path / name)
    html = (tmp_path / "e.html").read_text()
    assert html.count("<img") == 3 and "what" in html.lower()
    assert e.to_html().count("<img") == 3
    assert (tmp_path / "e.csv").read_text().count("\n") == e.scores.shape[1] + 1
    loaded = why.Explanation.load(e.save(tmp_path / "e.json") or tmp_path / "e.json")
    assert loaded.stream("image").overlay().size == (48, 48)


def test_methods_are_compared_by_image_and_by_words(explained, tmp_path):
    scenes = questions.generate(1, FRESH)
    record = {"image": Image.fromarray(scenes.images[0]), "text": scenes.questions[0].text}
    c = why.compare(why.open("demo/questions"), record, ["rollout", "attnlrp"])
    assert [next(iter(row.values())).is_image for row in c.panels()] == [True, False]
    for name in ("c.html", "c.png"):
        c.save(tmp_path / name)
