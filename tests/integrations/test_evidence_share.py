"""assert_looks_at: what a model looks at, as a line of a test suite."""

import pytest
import tiny_text
import torch
import transformers as hf
from PIL import Image

import whyformer as why
from whyformer.errors import InputError
from whyformer.integrations import assert_looks_at, measure_share
from whyformer.integrations.evidence_share import cover_patches

SENTENCE = "a gorgeous, witty film, despite its tedious first hour"


@pytest.fixture(scope="module")
def sentiment():
    return why.open("demo/sentiment")


@pytest.fixture(scope="module")
def text_model():
    return why.open(tiny_text.bert(), tokenizer=tiny_text.wordpiece(), labels=["negative", "neutral", "positive"])


def give(model, text, scores):
    return why.Explanation.from_scores(model, text, scores)


def test_the_share_by_hand(text_model):
    """2 of 2 + 1 + 1; special tokens and evidence against the target do not count."""
    e = give(text_model, "the film is bad", [9.0, 1.0, 2.0, -5.0, 1.0, 9.0])
    assert measure_share(e, words=["film"]) == 0.5
    assert measure_share(e, words=["the", "bad"]) == 0.5
    assert measure_share(e, words=["IS BAD"]) == 0.25
    assert measure_share(e, words=["is"]) == 0


def test_all_occurrences_count_and_parts_of_words_do_not(text_model):
    e = give(text_model, "the film the film is", [0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    assert measure_share(e, words=["film"]) == 0.5
    with pytest.raises(InputError, match="'fil' does not occur in the text"):
        measure_share(e, words=["fil"])


def test_a_model_of_sentiment_looks_at_the_praise(sentiment):
    assert assert_looks_at(sentiment, SENTENCE, words=["gorgeous", "witty"], share=0.5) > 0.5
    assert_looks_at(sentiment, SENTENCE, words=["its", "hour"], share=0, at_most=0.1)


def test_a_failure_names_the_share_the_limit_and_what_has_most(sentiment):
    with pytest.raises(AssertionError, match=r"'tedious' has 0% of the evidence for 'positive' by libragrad") as raised:
        assert_looks_at(sentiment, SENTENCE, words=["tedious"])
    first, second = str(raised.value).splitlines()
    assert first.endswith("expected at least 50%.") and second.startswith("Most has: 'gorgeous,'")
    with pytest.raises(AssertionError, match=r"expected at most 10%"):
        assert_looks_at(sentiment, SENTENCE, words=["gorgeous"], share=0, at_most=0.1)


def test_another_target_has_other_evidence(sentiment):
    assert assert_looks_at(sentiment, SENTENCE, words=["tedious"], share=0.3, target="negative") > 0.3


def test_a_box_covers_parts_of_patches():
    """2 x 2 patches; the box is the upper half, and the left quarter of it."""
    assert cover_patches(2, 2, (0, 0, 1, 0.5)).tolist() == [1, 1, 0, 0]
    assert cover_patches(2, 2, (0, 0, 0.25, 0.5)).tolist() == [0.5, 0, 0, 0]
    assert cover_patches(1, 1, (0.25, 0.25, 0.75, 0.75)).tolist() == [0.25]


def test_the_share_of_a_part_of_an_image():
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    vit = hf.ViTForImageClassification(hf.ViTConfig(**sizes, image_size=16, patch_size=8)).eval()
    model = why.open(vit, processor=hf.ViTImageProcessor(size={"height": 16, "width": 16}))
    e = give(model, Image.new("RGB", (16, 16)), [[3.0, 1.0], [0.0, -4.0]])
    assert measure_share(e, box=(0, 0, 0.5, 0.5)) == 0.75
    assert 0 <= assert_looks_at(model, Image.new("RGB", (16, 16), "red"), box=(0, 0, 1, 1), share=0) <= 1


def test_wrong_arguments_are_refused(text_model):
    e = give(text_model, "a film", [1.0, 2.0])
    for options, message in {
        (): "either words= .* or box=",
        ("words", ("film",), "box", (0, 0, 1, 1)): "either words= .* or box=",
        ("words", "film"): "words must be a list",
        ("box", (0, 0, 1, 1)): "words= belongs to a text",
    }.items():
        with pytest.raises(InputError, match=message):
            measure_share(e, **dict(zip(options[::2], options[1::2], strict=True)))
    with pytest.raises(InputError, match="Pass one input"):
        assert_looks_at(text_model, ["a film", "the film"], words=["film"])
