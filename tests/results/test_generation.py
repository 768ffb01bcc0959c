"""A generation: every token is explained as if it had been asked about alone."""

import pytest
import torch

from whyformer._explain.explain import explain
from whyformer._explain.generation import explain_generation
from whyformer._model.loading import open as opened
from whyformer._model.spans import decode_with_spans
from whyformer.errors import InputError, TargetError

PROMPT = "the keys to the cabinet near the doors"


@pytest.fixture(scope="module")
def gpt():
    return opened("demo/decoder")


@pytest.fixture(scope="module")
def generation(gpt):
    return explain_generation(gpt, PROMPT, tokens=5)


def test_decoding_is_greedy(gpt, generation):
    text = PROMPT
    for step in generation:
        target = explain(gpt, text, "rollout").targets[0]
        assert step.targets[0].index == target.index
        assert step.targets[0].predicted
        text += target.label
    assert generation.text == text
    assert generation.words == [step.targets[0].label for step in generation]


def test_a_token_is_explained_as_if_alone(gpt, generation):
    """In a batch with padding the scores are the same as without."""
    for place, step in enumerate(generation):
        before = PROMPT + "".join(generation.words[:place])
        alone = explain(gpt, before, step.method, target=step.targets[0].index)
        torch.testing.assert_close(step.scores, alone.scores, rtol=1e-4, atol=1e-6)
        assert step.tokens[0].pieces == alone.tokens[0].pieces
        assert step.tokens[0].text == before


def test_the_scores_as_a_matrix(generation):
    scores = generation.matrix()
    assert scores.shape == (len(generation), generation.prompt_length + len(generation) - 1)
    assert scores[0].isnan().sum() == len(generation) - 1
    assert not scores[-1].isnan().any()


def test_a_given_continuation(gpt):
    found = explain_generation(gpt, PROMPT, continuation=" is lost")
    assert found.words == [" is", " lost"]
    assert not found[0].targets[0].predicted
    with pytest.raises(TargetError, match="does not continue the prompt token by token"):
        explain_generation(gpt, "the ke", continuation="ys")


def test_spans_of_tokens_that_are_parts_of_a_character():
    class Bytes:
        """One token per byte."""

        def decode(self, ids, **_):
            return bytes(ids).decode("utf-8", "replace")

    text, spans = decode_with_spans(Bytes(), list("né👍!".encode()))
    assert text == "né👍!"
    assert spans == [(0, 1), (1, 2), (1, 2), (2, 3), (2, 3), (2, 3), (2, 3), (3, 4)]


def test_invalid_requests_are_refused(gpt):
    with pytest.raises(InputError, match="tokens must be >= 1, got 0"):
        explain_generation(gpt, PROMPT, tokens=0)
    with pytest.raises(InputError, match="cannot generate text"):
        explain_generation("demo/pets", "a")
    with pytest.raises(InputError, match="predicts classes, not a next token"):
        explain_generation("demo/sentiment", "a film")


def test_files(generation, tmp_path):
    for suffix in (".html", ".svg", ".txt", ".csv", ".parquet", ".pdf", ".png"):
        generation.save(tmp_path / f"w{suffix}")
    page = (tmp_path / "w.html").read_text()
    assert page.count('type="radio"') == len(generation)
    assert "<script" not in page
    assert "<mark" in generation._repr_html_()
    assert "Generation of" in repr(generation)


def test_prompt_is_the_old_name_of_prompt_length(generation):
    with pytest.warns(DeprecationWarning, match=r"Generation\.prompt is now prompt_length\."):
        assert generation.prompt == generation.prompt_length
