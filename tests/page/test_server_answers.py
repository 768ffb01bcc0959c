"""What the process of a model answers is what the library's own functions say."""

import json
from functools import cache

import html5lib
import pytest
import torch
from PIL import Image
from show.payloads import MORE_PAYLOADS, PAYLOADS

pytest.importorskip("fastapi", reason="whyformer[page] is not installed")

import transformers as hf
from tiny_text import WORDS, wordpiece_pairs

import whyformer as why
from whyformer._page import bodies
from whyformer._page.answers import recipes
from whyformer._page.answers.citing import answer_cite
from whyformer._page.answers.describing import show_model
from whyformer._page.answers.explaining import answer_explain
from whyformer._page.answers.exporting import answer_case, answer_join
from whyformer._page.answers.inputs import InputMemory, PageQuestion
from whyformer._page.answers.predicting import answer_curve, answer_predict
from whyformer._page.answers.units import shorten_numbers
from whyformer._page.answers.writing import answer_generate, answer_passages
from whyformer._page.exports import make_notebook
from whyformer.demo.sample_files import SAMPLES
from whyformer.errors import WhyformerError

ID = "0" * 64
TEXT = "a gorgeous, witty film"
PROMPT = (SAMPLES / "passages.txt").read_text(encoding="utf-8")
MEMORY = InputMemory()


@cache
def open_once(name):
    return why.open(name)


def picture():
    return Image.open(SAMPLES / "cat.jpg").convert("RGB").resize((64, 64))


def ask(kind, model, given, **more):
    body = kind(model=0, input=given, **more).model_dump()
    return PageQuestion(open_once(model), body, {ID: picture()}, MEMORY)


def explain(model, given, **more):
    return answer_explain(ask(bodies.ExplainBody, model, given, **more), lambda *_: None)


def test_scores_of_a_text_are_those_of_explain_by_token_word_and_sentence():
    answer, expected = explain("demo/sentiment", {"text": TEXT}), why.explain(open_once("demo/sentiment"), TEXT)
    scores = answer["maps"][0]["scores"]
    assert scores["token"] == shorten_numbers(expected.scores[0])
    assert scores["word"] == shorten_numbers(expected.words().scores[0])
    assert scores["sentence"] == shorten_numbers(expected.sentences().scores[0])
    assert [one["text"] for one in answer["units"]["word"]] == ["[CLS]", "a", "gorgeous,", "witty", "film", "[SEP]"]
    assert answer["units"]["word"][2]["tokens"] == [2, 3]
    assert answer["classes"][0]["label"] == expected.targets[0].label == "positive"


def test_scores_of_an_image_are_those_of_explain_for_every_class():
    told = []
    question = ask(bodies.ExplainBody, "demo/shapes", {"image": ID}, top=2)
    answer = answer_explain(question, lambda *one: told.append(one))
    for shown in answer["maps"]:
        e = why.explain(open_once("demo/shapes"), picture(), target=shown["target"]["index"])
        torch.testing.assert_close(
            torch.tensor(shown["scores"]), torch.tensor(shorten_numbers(e.map())), rtol=1e-5, atol=0
        )
    assert [body["targets"] for _, body, _ in told] == [[one["index"]] for one in answer["classes"][:2]]
    alone = explain("demo/shapes", {"image": ID}, targets=[answer["classes"][1]["index"]])
    assert told[1][2] == alone  # what is kept is what would be computed


def test_several_methods_have_an_agreement_and_failures_have_reasons():
    answer = explain("demo/sentiment", {"text": TEXT}, methods=["libragrad", "rollout", "vit_cx"])
    expected = why.compare(open_once("demo/sentiment"), TEXT, ["libragrad", "rollout"]).agreement()
    assert answer["agreement"]["matrix"] == shorten_numbers(expected)
    assert list(answer["failures"]) == ["vit_cx"] and answer["failures"]["vit_cx"]
    with pytest.raises(WhyformerError):
        explain("demo/sentiment", {"text": TEXT}, methods=["vit_cx"])


def test_a_contrast_and_health_are_passed_on():
    answer = explain("demo/sentiment", {"text": TEXT}, targets=["positive"], versus="negative", health=True)
    expected = why.explain(open_once("demo/sentiment"), TEXT, target="positive", versus="negative", health=True)
    assert answer["maps"][0]["scores"]["token"] == shorten_numbers(expected.scores[0])
    assert answer["maps"][0]["cautions"]["conservation"] == expected.health.verdict


def test_a_struck_word_has_the_answer_of_the_probe_and_an_edited_text_its_own():
    hidden = {"tokens": [2], "fill": "mask"}
    variants = [{"hidden": hidden}, {"input": {"text": "a bad film"}}]
    answer = answer_predict(ask(bodies.PredictBody, "demo/sentiment", {"text": TEXT}, variants=variants))
    model = open_once("demo/sentiment")
    edited = why.explain(model, {"text": "a bad film"}, target="positive").targets[0].probability
    shown = [one["of_before"][0]["probability"] for one in answer["variants"]]
    assert shown[1] == pytest.approx(edited, abs=1e-6)
    capture = why.record(model, model.encode({"text": TEXT}), keep={"probe"})
    keep = torch.tensor([[True, True, False, True, True, True, True]])
    assert shown[0] == pytest.approx(float(capture["probe"].keep_only(keep, torch.tensor([0])).probability), abs=1e-6)


def test_painted_cells_hide_the_pixels_below_them():
    whole = {"mask": {"rows": 2, "columns": 2, "cells": "1111"}, "fill": "zero"}
    units = len(why.explain(open_once("demo/shapes"), picture()).scores[0])
    patches = {"patches": list(range(units)), "fill": "zero"}
    nothing = {"mask": {"rows": 1, "columns": 1, "cells": "0"}}
    asked = [{"hidden": one} for one in (whole, patches, nothing)]
    answer = answer_predict(ask(bodies.PredictBody, "demo/shapes", {"image": ID}, variants=asked))
    painted, by_patch, untouched = (one["classes"] for one in answer["variants"])
    assert painted == by_patch != untouched == answer["before"]["classes"]


def test_a_curve_begins_and_ends_with_everything_and_nothing():
    answer = answer_curve(ask(bodies.CurveBody, "demo/sentiment", {"text": TEXT}, steps=4))
    e = why.explain(open_once("demo/sentiment"), TEXT)
    assert answer["hide_top"][0] == answer["show_only_top"][-1] == pytest.approx(e.targets[0].probability, abs=1e-6)
    assert answer["hide_top"][-1] == answer["show_only_top"][0]
    assert answer["order"][0] == int(e.scores[0].argmax())


def test_the_answer_to_nothing_is_that_of_the_input_with_every_word_hidden():
    answer = answer_curve(ask(bodies.CurveBody, "demo/sentiment", {"text": TEXT}, target="negative"))["nothing"]
    hidden = {"tokens": [1, 2, 3, 4, 5], "fill": "mask"}
    variant = ask(bodies.PredictBody, "demo/sentiment", {"text": TEXT}, variants=[{"hidden": hidden}])
    expected = answer_predict(variant)["variants"][0]["classes"]
    assert [row["index"] for row in answer["classes"]] == [row["index"] for row in expected]
    assert answer["classes"][0]["probability"] == pytest.approx(expected[0]["probability"], abs=1e-6)
    top = answer["classes"][0]
    still = "still " * (top["label"] == "positive")
    assert answer["words"] == f"With everything hidden the model {still}says {top['label']} ({top['probability']:.1%})."


# --- answers that are marked in a text --------------------------------------------------------------------------------

QUESTION = {"text": "is the film good", "second": "the film is not good , a bad film"}


@pytest.fixture(scope="module")
def reader():
    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=len(WORDS), hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48,
        max_position_embeddings=40, type_vocab_size=2, initializer_range=0.3,
    )  # fmt: skip
    return why.open(hf.BertForQuestionAnswering(config).double().eval(), tokenizer=wordpiece_pairs())


def ask_reader(reader, kind, **more):
    return PageQuestion(reader, kind(model=0, input=QUESTION, **more).model_dump(), {}, InputMemory())


@torch.no_grad()
def compute_share(reader, inputs, span):
    """The probability of the first token as a start times that of the last one as an end."""
    out = reader.module(**inputs)
    first, last = map(int, span.removeprefix("answer:").split("-"))
    return float(out.start_logits.softmax(1)[0, first] * out.end_logits.softmax(1)[0, last])


def test_a_reader_answers_spans_the_best_of_which_is_explained(reader):
    shown = answer_explain(ask_reader(reader, bodies.ExplainBody), lambda *_: None)
    e = why.explain(reader, why.TextPair(*QUESTION.values()))
    best, target = shown["classes"][0], shown["maps"][0]["target"]
    assert best["index"] == target["spec"] == e.targets[0].spec
    assert target["probability"] == best["probability"] and best["label"][1:-1] in e.targets[0].label
    inputs = reader.encode(why.TextPair(*QUESTION.values())).inputs
    assert best["probability"] == pytest.approx(compute_share(reader, inputs, best["index"]), rel=1e-6)
    another = shown["classes"][3]["index"]
    chosen = answer_explain(ask_reader(reader, bodies.ExplainBody, targets=[another]), lambda *_: None)
    assert chosen["maps"][0]["target"]["spec"] == another


def test_words_are_struck_out_for_a_reader_and_its_spans_move(reader):
    variants = [{"hidden": {"tokens": [3], "fill": "mask"}}]
    answer = answer_predict(ask_reader(reader, bodies.PredictBody, variants=variants))
    inputs = dict(reader.encode(why.TextPair(*QUESTION.values())).inputs)
    inputs["input_ids"] = inputs["input_ids"].clone()
    inputs["input_ids"][0, 3] = reader.tokenizer.mask_token_id
    for row in answer["variants"][0]["of_before"]:
        assert row["probability"] == pytest.approx(compute_share(reader, inputs, row["index"]), rel=1e-6)
    curve = answer_curve(ask_reader(reader, bodies.CurveBody, steps=4))
    assert curve["hide_top"][0] == pytest.approx(answer["before"]["classes"][0]["probability"], rel=1e-6)
    assert curve["nothing"]["words"].startswith("With everything hidden the model ")


def test_the_page_describes_a_reader(reader):
    shown = show_model(reader)
    assert (shown["kind"], shown["task"], shown["labels"]) == ("pair", "answer span", None)
    assert set(shown["samples"][0]["input"]) == {"text", "second"}
    assert "delete" not in [one["name"] for one in shown["fills"]]  # the places of spans would move


def test_a_language_model_writes_cites_and_writes_again_without_a_passage():
    given = {"prompt": PROMPT}
    written = answer_generate(ask(bodies.GenerateBody, "demo/reader", given))
    model = open_once("demo/reader")
    assert written["answer"] == why.generate(model, PROMPT, max_new_tokens=40).answer_text == " tea"
    answered = given | {"answer": written["ids"]}
    cited = answer_cite(ask(bodies.CiteBody, "demo/reader", answered))
    expected = why.cite(model, why.Prompt.from_text(model, PROMPT, written["ids"]))
    assert [one["name"] for one in cited["sources"]] == [one.name for one in expected]
    assert cited["reading"]["words"] == str(expected.claim) and cited["reading"]["rests_on"] == ["passage 1"]
    passages = answer_passages(ask(bodies.PassagesBody, "demo/reader", given))["passages"]
    assert passages[cited["sources"][0]["index"]]["text"] == cited["sources"][0]["text"]
    without = answer_generate(ask(bodies.GenerateBody, "demo/reader", given, without=[0]))
    assert "Aurora sails" not in without["prompt_text"] and without["answer"] != " tea"


def test_a_part_of_an_answer_is_the_target():
    given = {"prompt": PROMPT, "answer": " tea"}
    answer = explain("demo/reader", given, span={"start": 1, "stop": 4})
    model = open_once("demo/reader")
    part = why.targets.Answer((1, 4), unit="character")
    expected = why.explain(model, why.Prompt.from_text(model, PROMPT, " tea"), target=part)
    assert answer["maps"][0]["scores"]["token"] == shorten_numbers(expected.scores[0])


def test_the_code_of_a_view_runs_and_shows_the_same(capsys):
    answer = explain("demo/sentiment", {"text": TEXT}, targets=["negative"], methods=["rollout"])
    exec(answer["code"], {})
    printed = capsys.readouterr().out
    assert printed.strip() == str(why.explain(open_once("demo/sentiment"), TEXT, "rollout", target="negative")).strip()


@pytest.mark.parametrize("payload", [*PAYLOADS[::6], *MORE_PAYLOADS[::6]])
def test_no_text_leaves_its_quotes_in_code_or_in_files(payload):
    body = {"text": payload, "second": None, "image": None, "log": None}
    assert eval(recipes.write_input(body)) == payload
    part = {"title": payload, "note": payload, "code": "", "content": ""}
    page = answer_join(PageQuestion(open_once("demo/sentiment"), {"cases": [part]}, {}))["content"]
    elements = list(html5lib.parse(page, namespaceHTMLElements=False).iter())
    assert not {"script", "img", "svg", "iframe", "base", "link", "form"} & {one.tag for one in elements}
    assert not [name for one in elements for name in one.attrib if name.startswith("on")]
    text = json.dumps(make_notebook([part]))
    assert "<script" not in text and "<img" not in text


def test_a_case_is_the_librarys_own_json(tmp_path):
    request = bodies.ExplainCase(route="explain", model=0, input=bodies.Input(text=TEXT)).model_dump()
    asked = PageQuestion(open_once("demo/sentiment"), {"format": "json", "request": request}, {}, MEMORY)
    (tmp_path / "e.json").write_text(answer_case(asked)["content"])
    loaded = why.load(tmp_path / "e.json")
    torch.testing.assert_close(loaded.scores, why.explain(open_once("demo/sentiment"), TEXT).scores)
