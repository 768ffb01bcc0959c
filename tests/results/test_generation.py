"""A generation: every token is explained as if it had been asked about alone."""

import pytest
import torch
from tiny_text import llama

from whyformer._engine import engine
from whyformer._explain.explain import explain
from whyformer._explain.generation import explain_generation
from whyformer._model.loading import open as opened
from whyformer._model.prompt import Prompt
from whyformer._model.spans import decode_with_spans
from whyformer.errors import InputError, TargetError

PROMPT = "the keys to the cabinet near the doors"


@pytest.fixture(scope="module")
def gpt():
    return opened("demo/decoder")


@pytest.fixture(scope="module")
def generation(gpt):
    return explain_generation(gpt, PROMPT, max_new_tokens=5)


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
    with pytest.raises(InputError, match="max_new_tokens must be a whole number >= 1, got 0"):
        explain_generation(gpt, PROMPT, max_new_tokens=0)
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


@pytest.mark.parametrize(
    "method",
    ["attnlrp", "rollout"] + [pytest.param(name, marks=pytest.mark.slow) for name in ("cp_lrp", "lrp_gamma", "pa_lrp")],
)
def test_one_forward_gives_what_a_run_per_token_gives(gpt, method):
    """Also for methods that run on the prefixes: they see the same tokens."""
    g = explain_generation(gpt, PROMPT, method, max_new_tokens=2)
    for place, step in enumerate(g):
        prefix = list(g.sequence.ids[: g.prompt_length + place])
        alone = explain(gpt, {"input_ids": torch.tensor(prefix)}, method, target=step.targets[0].index)
        torch.testing.assert_close(step.scores, alone.scores, rtol=1e-4, atol=1e-5)
        assert step.targets[0].score == pytest.approx(alone.targets[0].score, rel=1e-4)
        assert step.targets[0].probability == pytest.approx(alone.targets[0].probability, rel=1e-3)


def test_the_continuation_as_one_target(gpt, generation):
    whole = generation.whole
    assert whole.spent["relevance"] == 1
    summed = torch.zeros_like(whole.scores)
    for step in generation:
        summed[:, : step.scores.shape[1]] += step.scores
    torch.testing.assert_close(whole.scores, summed, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(explain(gpt, generation.sequence).scores, whole.scores, rtol=1e-4, atol=1e-4)
    assert generation[0].spent["forward"] == pytest.approx(1 / len(generation))


def test_a_prompt_with_an_answer_is_explained_as_it_is(gpt):
    ids = [3, 4, 5, 6]
    g = explain_generation(gpt, Prompt.from_tokens(gpt, ids, [7, 8]), "attnlrp")
    assert [step.targets[0].index for step in g] == [7, 8] and list(g.sequence.ids) == [*ids, 7, 8]
    assert [s.targets[0].index for s in explain_generation(gpt, PROMPT, "rollout", continuation=[7, 8])] == [7, 8]


@pytest.mark.parametrize("method", ["attnlrp", "libragrad"])
def test_a_planned_run_explains_the_same_tokens(method):
    """Long inputs run by plan; the tokens of an answer share its forward pass too."""
    model = opened(llama())
    prompt = Prompt.from_tokens(model, range(3, 20), range(30, 34))
    with engine(plan=True):
        ours = explain_generation(model, prompt, method)
    with engine(plan=False):
        theirs = explain_generation(model, prompt, method)
    assert "conditioning" not in " ".join(ours[1].details)  # a planned run has no estimate of rounding
    for one, other in zip([*ours, ours.whole], [*theirs, theirs.whole], strict=True):
        torch.testing.assert_close(one.scores, other.scores, rtol=1e-6, atol=1e-9)
        assert one.targets[0].label == other.targets[0].label
        assert one.targets[0].score == pytest.approx(other.targets[0].score)
