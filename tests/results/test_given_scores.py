"""Scores of other libraries as explanations: placed on tokens, words, patches or pixels, then judged like a method."""

from types import SimpleNamespace

import numpy as np
import pytest
import tiny_text
import torch
import transformers as hf
from PIL import Image

import whyformer as why
from whyformer.errors import InputError, MethodError

TEXTS = ["the film is bad", "a film", "the film the film is"]


@pytest.fixture(scope="module")
def text_model():
    return why.open(tiny_text.bert(), tokenizer=tiny_text.wordpiece(), labels=["negative", "neutral", "positive"])


@pytest.fixture(scope="module")
def image_model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
    config = hf.ViTConfig(**sizes, image_size=16, patch_size=8, id2label={0: "cat", 1: "dog"})
    processor = hf.ViTImageProcessor(size={"height": 16, "width": 16})
    return why.open(hf.ViTForImageClassification(config).eval(), processor=processor)


def test_scores_of_all_tokens_are_as_given(text_model):
    own = why.explain(text_model, TEXTS[0], "gradient_x_input")
    given = why.Explanation.from_scores(text_model, TEXTS[0], own.scores, method="mine")
    assert torch.equal(given.scores, own.scores) and given.tokens == own.tokens
    assert given.targets == own.targets and given.method == "mine" and given.signed


def test_scores_without_special_tokens_leave_these_at_zero(text_model):
    given = why.Explanation.from_scores(text_model, "a film", [1.0, 2.0])
    assert given.scores.tolist() == [[0, 1, 2, 0]] and not given.signed


def test_the_score_of_a_word_is_split_among_its_tokens(text_model):
    tokens = why.explain(text_model, "the wordless film", "rollout")
    count = len(tokens.words().tokens[0]) - 2
    given = why.Explanation.from_scores(text_model, "the wordless film", np.arange(1.0, count + 1))
    assert given.words().scores[0, 1:-1].tolist() == pytest.approx([1.0, 2.0, 3.0])


def test_channels_of_an_embedding_are_summed(text_model):
    given = why.Explanation.from_scores(text_model, "a film", torch.ones(1, 4, 5))
    assert given.scores.tolist() == [[5, 5, 5, 5]]


def test_a_list_has_one_row_per_input_and_padding_gets_zero(text_model):
    rows = [[1.0] * (len(text.split()) + 2) for text in TEXTS]
    given = why.Explanation.from_scores(text_model, TEXTS, rows)
    assert given.scores.sum(1).tolist() == [6, 4, 7] and given.scores[1, -1] == 0


def test_an_object_of_shap_is_read_by_its_values(text_model):
    given = why.Explanation.from_scores(text_model, "a film", SimpleNamespace(values=np.array([[0.5, -1.0]])))
    assert given.scores.tolist() == [[0, 0.5, -1, 0]] and given.signed


@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 4), (16, 16), (3, 16, 16), (1, 3, 16, 16)])
def test_an_image_takes_patches_pixels_and_channels(image_model, shape):
    given = why.Explanation.from_scores(image_model, Image.new("RGB", (16, 16), "red"), torch.ones(shape))
    share = given.scores / given.scores.sum()
    assert torch.allclose(share, torch.full((1, 4), 0.25))
    assert (given.pixels is not None) == (shape[-1] == 16)
    given.draw()


def test_wrong_shapes_are_refused_with_what_fits(text_model, image_model):
    with pytest.raises(InputError, match="3 scores do not fit this text: it has 4 tokens, 2 without special ones"):
        why.Explanation.from_scores(text_model, "a film", [1.0, 2.0, 3.0])
    with pytest.raises(InputError, match=r"\[5 5\].* do not fit this image: pass 4 patches".replace("5 5", "5, 5")):
        why.Explanation.from_scores(image_model, Image.new("RGB", (16, 16)), torch.ones(5, 5))
    with pytest.raises(InputError, match="There are scores for 3 examples, but 2 inputs"):
        why.Explanation.from_scores(text_model, TEXTS[:2], torch.ones(3, 6))
    with pytest.raises(InputError, match="NaN or infinity"):
        why.Explanation.from_scores(text_model, "a film", [1.0, float("nan")])
    with pytest.raises(InputError, match="must be numbers"):
        why.Explanation.from_scores(text_model, "a film", ["one", "two"])
    with pytest.raises(InputError, match="There are no scores"):
        why.Explanation.from_scores(text_model, "a film", [])


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_saved_scores_are_found_again(text_model, tmp_path, suffix):
    given = why.Explanation.from_scores(text_model, TEXTS, [[1.0] * (len(t.split()) + 2) for t in TEXTS], method="mine")
    given.save(tmp_path / f"given{suffix}")
    loaded = why.load(tmp_path / f"given{suffix}")
    both = why.compare(text_model, TEXTS[::-1], ["rollout", loaded])
    assert both["mine"].scores.sum(1).tolist() == [7, 4, 6]


def test_given_scores_are_judged_as_the_method_that_computed_them(text_model):
    """Whatever batches judge() makes, the numbers of both rows are the same."""
    own = why.explain(text_model, TEXTS, "gradient_x_input")
    given = why.Explanation.from_scores(text_model, TEXTS, own.scores, method="captum gxi")
    judged = why.judge(text_model, TEXTS, ["gradient_x_input", given], ["comprehensiveness", "aopc"], batch_size=2)
    lines = {(line.metric, line.method): line.mean for line in judged.table.lines}
    for metric in ("comprehensiveness", "aopc"):
        assert lines[metric, "captum gxi"] == pytest.approx(lines[metric, "gradient_x_input"], abs=1e-6)


def test_given_pixels_are_judged(image_model):
    photos = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue", "green")]
    pixels = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))
    given = why.Explanation.from_scores(image_model, photos, pixels, method="mine")
    judged = why.judge(image_model, photos, [given], ["deletion"])
    assert next(line for line in judged.table.lines if line.method == "mine").count == 3


def test_metrics_that_compute_the_scores_again_say_that_they_cannot(text_model):
    given = why.Explanation.from_scores(text_model, TEXTS[:1], [[1.0] * 6], method="mine")
    judged = why.judge(text_model, TEXTS[:1], [given, "gradient_x_input"], ["parameter_randomisation"])
    reasons = {row.reason for row in judged.rows.of(0, 0)}
    assert any("computed elsewhere" in reason for reason in reasons)


def test_examples_without_scores_and_other_targets_are_refused(text_model):
    given = why.Explanation.from_scores(text_model, "a film", [1.0, 2.0], method="mine", target="positive")
    with pytest.raises(InputError, match="mine has no scores for"):
        why.compare(text_model, "the film", [given], target="positive")
    with pytest.raises(InputError, match="The scores of mine explain 'positive', not 'negative'"):
        why.compare(text_model, "a film", [given], target="negative")


def test_explanations_of_a_method_are_no_method(text_model):
    with pytest.raises(MethodError, match=r"name the method, or pass scores .* by Explanation.from_scores"):
        why.compare(text_model, "a film", [why.explain(text_model, "a film", "rollout")])


def test_a_given_method_with_the_name_of_ours_is_told_apart(text_model):
    given = why.Explanation.from_scores(text_model, "a film", [1.0, 2.0], method="rollout")
    compared = why.compare(text_model, "a film", ["rollout", given])
    assert [e.method for e in compared] == ["rollout", "rollout (given)"]
