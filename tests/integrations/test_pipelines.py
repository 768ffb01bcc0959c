"""A pipeline of transformers is a model wherever one is taken."""

import pytest
import tiny_text
import transformers as hf

import whyformer as why
from whyformer.integrations import Watch, assert_looks_at

TEXTS = ["the film is bad", "a film"]


@pytest.fixture(scope="module")
def classifier():
    return hf.pipeline("text-classification", model=tiny_text.bert(), tokenizer=tiny_text.wordpiece())


@pytest.fixture(scope="module")
def writer():
    return hf.pipeline("text-generation", model=tiny_text.gpt2(), tokenizer=tiny_text.byte_pairs())


ON_A_CLASSIFIER = {
    "explain": lambda p, out: why.explain(p, TEXTS),
    "compare": lambda p, out: why.compare(p, TEXTS, ["rollout"]),
    "explain_classes": lambda p, out: why.explain_classes(p, TEXTS[0], ["rollout"], classes=2),
    "inspect_attention": lambda p, out: why.inspect_attention(p, TEXTS[0]),
    "diagnose": lambda p, out: why.diagnose(p, TEXTS[0], ["rollout"]),
    "judge": lambda p, out: why.judge(p, TEXTS, ["rollout"], ["comprehensiveness"]),
    "judge_metrics": lambda p, out: why.judge_metrics(p, TEXTS, ["comprehensiveness"], "gradient_x_input"),
    "audit": lambda p, out: why.audit(p, TEXTS, samples=2, search_limit=1, steps=2),
    "compare_redistribution": lambda p, out: why.compare_redistribution(p, TEXTS[0]),
    "bulk": lambda p, out: why.bulk(p, TEXTS, out=out),
    "from_scores": lambda p, out: why.Explanation.from_scores(p, "a film", [1, 2]),
    "assert_looks_at": lambda p, out: assert_looks_at(p, "a film", words=["film"], share=0),
    "watch": lambda p, out: Watch(TEXTS).look(p),
}
ON_A_LANGUAGE_MODEL = {
    "generate": lambda p: why.generate(p, "the film", max_new_tokens=2),
    "explain_generation": lambda p: why.explain_generation(p, "the film", max_new_tokens=2),
    "prompt": lambda p: why.Prompt.from_text(p, "the film", " is"),
    "cite": lambda p: why.cite(p, why.Prompt.from_text(p, "the film. a film.", " is"), by=["the film.", "a film."]),
    "check_answer": lambda p: why.check_answer(p, why.Prompt.from_text(p, "the film", " is")),
}


@pytest.mark.parametrize("verb", ON_A_CLASSIFIER)
def test_a_pipeline_of_a_classifier(verb, classifier, tmp_path):
    assert ON_A_CLASSIFIER[verb](classifier, tmp_path / "run") is not None


@pytest.mark.parametrize("verb", ON_A_LANGUAGE_MODEL)
def test_a_pipeline_of_a_language_model(verb, writer):
    assert ON_A_LANGUAGE_MODEL[verb](writer) is not None
