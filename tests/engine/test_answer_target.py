"""The answer to a prompt as the target: its score by definition, its parts, its contrasts, and its form as text."""

import pickle

import pytest
import torch
import transformers as hf
from conftest import IMAGES_ONLY, QUICK
from tiny_text import byte_pairs, gpt2

import whyformer as why
from whyformer import targets
from whyformer.errors import InputError, TargetError
from whyformer.targets import Answer, LogProbability, Token

torch.set_num_threads(1)

TEXT, ANSWER = "The Eiffel Tower is in the city of", " Paris. It is not good"
SLOPES = ["attnlrp", "cp_lrp", "libragrad", "lrp_gamma", "pa_lrp"]  # methods that send slopes and are linear
SETTINGS = {"pa_lrp": {"part": "token"}}  # positions count by their magnitude, which is not linear
LINEAR = ["attnlrp", "gradient_x_input", "leave_one_out"]


@pytest.fixture(scope="module")
def model():
    return why.open(gpt2(), tokenizer=byte_pairs())


@pytest.fixture(scope="module")
def prompt(model):
    return why.Prompt.from_text(model, TEXT, ANSWER)


@pytest.fixture(scope="module")
def logits(model, prompt):
    with torch.no_grad():
        return model.module(torch.tensor([prompt.ids])).logits[0].double()


def explain(model, prompt, method="attnlrp", **more):
    return why.explain(model, prompt, method, **QUICK.get(method, {}) | SETTINGS.get(method, {}), **more)


def sum_slowly(prompt, table, chosen, weights=None):
    """The definition: the entry of every chosen token, read one token before it."""
    total = 0.0
    for n, token in enumerate(chosen):
        place = prompt.prompt_length + token
        total += (1 if weights is None else weights[n]) * float(table[place - 1, prompt.ids[place]])
    return total


# --- scores -----------------------------------------------------------------------------------------------------------


def test_the_default_target_is_the_whole_answer(model, prompt, logits):
    e = explain(model, prompt)
    assert e.targets[0].score == pytest.approx(sum_slowly(prompt, logits, range(len(prompt.answer))))
    assert e.targets[0].label == repr(ANSWER.strip())
    assert e.spent["relevance"] == 1 and e.spent["forward"] == 1
    assert e.scores.shape == (1, len(prompt)) and e.scores[0, -1] == 0  # nothing is predicted after the last token


@pytest.mark.parametrize(
    ("select", "unit", "text"),
    [
        (0, "token", None),
        (-1, "token", None),
        ([2, 0], "token", None),
        (range(1, 4), "token", None),
        (slice(3, None), "token", None),
        ("Paris", "token", "Paris"),
        ("PARIS", "token", "Paris"),
        ((1, 6), "character", "Paris"),
        (1, "sentence", "It is not good"),
        ([0, -1], "sentence", "Paris. It is not good"),
    ],
)
def test_any_part_of_the_answer(model, prompt, logits, select, unit, text):
    e = explain(model, prompt, target=Answer(select, unit=unit))
    if text is None:
        every = list(range(len(prompt.answer)))
        numbers = [select] if isinstance(select, int) else select
        chosen = every[select] if isinstance(select, slice) else [every[n] for n in numbers]
    else:
        start = ANSWER.index(text)
        spans = [span and (span[0] - len(TEXT), span[1] - len(TEXT)) for span in prompt.pieces.spans]
        chosen = [
            n
            for n, place in enumerate(prompt.answer)
            if spans[place][0] < start + len(text) and start < spans[place][1]
        ]
        assert e.targets[0].label == repr(text)
    assert e.targets[0].score == pytest.approx(sum_slowly(prompt, logits, chosen))
    assert explain(model, prompt, target=targets.parse(e.targets[0].spec)).targets == e.targets


def test_weights_and_log_probabilities(model, prompt, logits):
    weights = [0.5, -2.0, 1.0]
    e = explain(model, prompt, target=Answer([0, 1, 3], weights))
    assert e.targets[0].score == pytest.approx(sum_slowly(prompt, logits, [0, 1, 3], weights))
    chosen = range(len(prompt.answer))
    expected = sum_slowly(prompt, logits.log_softmax(-1), chosen)
    for target in (Answer(score="logp"), LogProbability(), LogProbability(Answer())):
        found = explain(model, prompt, target=target)
        assert found.targets[0].score == pytest.approx(expected)
        assert found.targets[0].label == f"log p({ANSWER.strip()!r})"


def test_a_text_as_target_is_part_of_the_answer(model, prompt):
    assert explain(model, prompt, target="Paris").targets == explain(model, prompt, target=Answer("Paris")).targets
    after = explain(model, prompt, target=Token(" good", at="last"))  # other targets are as for a text
    assert after.targets[0].label == "'good' as the next token"


def test_an_answer_beside_a_text(model, prompt):
    assert explain(model, TEXT, answer=ANSWER).targets == explain(model, prompt).targets
    ids = explain(model, prompt.without_answer(), answer=list(prompt.answer_ids))
    torch.testing.assert_close(ids.scores, explain(model, prompt).scores)
    with pytest.raises(InputError, match=r"answer= belongs to one text, got list.*list of Prompts"):
        explain(model, [TEXT, TEXT], answer=ANSWER)
    with pytest.raises(InputError, match="cannot be split into windows"):
        explain(model, TEXT, answer=ANSWER, windows=True)


# --- sums -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", LINEAR)
def test_the_answer_is_the_sum_of_its_tokens(model, prompt, method):
    whole = explain(model, prompt, method)
    parts = [explain(model, prompt, method, target=Answer(n)) for n in range(len(prompt.answer))]
    torch.testing.assert_close(whole.scores, sum(part.scores for part in parts), rtol=1e-7, atol=1e-9)


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(1)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    return why.open(hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=60)).eval())


@pytest.mark.parametrize(("method", "score"), [*((method, "logit") for method in SLOPES), ("libragrad", "logp")])
def test_the_answer_is_the_sum_of_its_tokens_in_float32(llama, method, score):
    """In the precision and architecture that people use."""
    prompt = why.Prompt.from_tokens(llama, range(3, 20), range(30, 34))
    whole = explain(llama, prompt, method, target=Answer(score=score))
    assert whole.spent["relevance"] == 1
    parts = [explain(llama, prompt, method, target=Answer(n, score=score)) for n in range(4)]
    worst = (whole.scores - sum(part.scores for part in parts)).abs().max()
    assert worst <= 1e-5 * max(1.0, float(whole.scores.abs().max()))


def check_method(model, prompt, method):
    e = explain(model, prompt, method)
    assert e.scores.shape == (1, len(prompt)) and bool(e.scores.isfinite().all())
    assert e.targets[0].spec == f"answer-tokens:0-{len(prompt.answer) - 1}"


@pytest.mark.parametrize("method", ["rollout", "integrated_gradients"])
def test_some_methods_explain_an_answer(model, prompt, method):
    check_method(model, prompt, method)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(set(why.METHODS) - IMAGES_ONLY))
def test_every_method_explains_an_answer(model, prompt, method):
    check_method(model, prompt, method)


# --- contrasts --------------------------------------------------------------------------------------------------------


def test_a_contrast_of_as_many_tokens_is_taken_at_each_that_differs(model, prompt, logits):
    other = list(prompt.answer_ids)
    other[1], other[3] = 7, 8
    e = explain(model, prompt, target=Answer(versus=other))
    at = prompt.prompt_length - 1
    expected = sum(float(logits[at + n, prompt.ids[at + n + 1]] - logits[at + n, other[n]]) for n in (1, 3))
    assert e.targets[0].score == pytest.approx(expected)
    assert e.spent["relevance"] == 1 and e.notes == prompt.notes
    parts = [explain(model, prompt, target=Answer(n, versus=[other[n]])) for n in (1, 3)]
    torch.testing.assert_close(e.scores, sum(part.scores for part in parts))


def test_a_contrast_of_different_lengths_is_taken_at_the_first_that_differs(model, prompt, logits):
    e = explain(model, prompt, versus="London and Paris and all the others")
    other = model.tokenizer.encode(" London", add_special_tokens=False)[0]
    at = prompt.prompt_length - 1
    assert e.targets[0].score == pytest.approx(float(logits[at, prompt.ids[at + 1]] - logits[at, other]))
    assert "contrasted at the first token in which they differ, token 0 of the answer" in e.notes[-1]
    assert " rather than " in e.targets[0].label


def test_versus_stands_in_the_place_of_what_is_selected(model, prompt, logits):
    e = explain(model, prompt, target="good", versus="bad")  # the blank before "good" is put before "bad"
    chosen = Answer("good").choose_tokens(targets_text(model, prompt))
    other = model.tokenizer.encode(" bad", add_special_tokens=False)
    place = prompt.prompt_length + chosen[0]
    first = next(n for n, i in enumerate(other) if i != prompt.ids[place + n])
    place += first
    expected = float(logits[place - 1, prompt.ids[place]] - logits[place - 1, other[first]])
    if len(other) != len(chosen):
        assert e.targets[0].score == pytest.approx(expected)
    assert targets.parse(e.targets[0].spec).versus[0] == other[first]


def targets_text(model, prompt):
    from whyformer._engine.targets.answer_target import AnswerText

    start = len(TEXT)
    spans = tuple(
        None if s is None else (s[0] - start, s[1] - start) for s in prompt.pieces.spans[prompt.prompt_length :]
    )
    return AnswerText(TEXT, prompt.answer_text, spans)


def test_a_contrast_that_is_none_is_refused(model, prompt):
    with pytest.raises(TargetError, match="are both 'Paris"):
        explain(model, prompt, versus=ANSWER)
    with pytest.raises(TargetError, match="versus is given twice"):
        explain(model, prompt, target=Answer(versus="Rome"), versus="London")
    with pytest.raises(TargetError, match="versus is empty"):
        explain(model, prompt, versus=" ")


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (Answer(99), "no token 99 in the answer"),
        (Answer([0, 0]), "at most once"),
        (Answer([]), "at least one"),
        (Answer("Rome"), r"'Rome' does not occur in the answer.*targets\.Token"),
        (Answer((3, 2), unit="character"), "not 3 to 2"),
        (Answer("x", unit="character"), "does not occur"),
        (Answer(3, unit="character"), r"select must be \(start, stop\)"),
        (Answer(7, unit="sentence"), "no sentence 7 in the answer: it has 2"),
        (Answer(1.5), "numbers of tokens or sentences"),
        (Answer([0, 1], [1.0]), "2 selected tokens, but 1 weights"),
        (3, r"targets\.Answer\(3\) or targets\.Token\(3\)"),
    ],
)
def test_what_cannot_be_selected_is_refused(model, prompt, target, reason):
    with pytest.raises(TargetError, match=reason):
        explain(model, prompt, target=target)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(score="probability"), "score must be one of logit, logp, log_odds, tempered"),
        (dict(unit="word"), "unit must be one of token, character, sentence"),
        (dict(weights=["a"]), "weights must be numbers"),
    ],
)
def test_bad_settings_are_refused(settings, reason):
    with pytest.raises(TargetError, match=reason):
        Answer(**settings)


def test_a_text_without_an_answer_is_refused_with_two_ways_out(model):
    with pytest.raises(TargetError, match=r"explain\(model, text, answer=\.\.\.\), or a Prompt with an answer"):
        explain(model, TEXT, target=Answer())
    explain(model, TEXT, answer=ANSWER)
    explain(model, why.Prompt.from_text(model, TEXT, ANSWER), target=Answer())


def test_a_classifier_has_no_answer():
    with pytest.raises(TargetError, match="Answer needs a causal language model"):
        why.explain("demo/sentiment", "a film", target=Answer())


# --- as text ----------------------------------------------------------------------------------------------------------

FORMS = {
    "answer-tokens": Answer(),
    "answer-tokens:0-3,7": Answer([0, 1, 2, 3, 7]),
    "answer-tokens:-1": Answer([-1]),
    "answer-tokens:[2:]": Answer(slice(2, None)),
    "answer-text:Paris": Answer("Paris"),
    "answer-characters:3-9": Answer((3, 9), unit="character"),
    "answer-sentences:0,2": Answer([0, 2], unit="sentence"),
    "logp:answer-tokens:0-1": Answer([0, 1], score="logp"),
    "answer-tokens:0-1/weights:0.5,2": Answer([0, 1], [0.5, 2.0]),
    "answer-text:Paris/versus:Rome": Answer("Paris", versus="Rome"),
    "logp:answer-tokens:4/weights:2/versus:#17": Answer([4], [2.0], score="logp", versus=[17]),
}


@pytest.mark.parametrize("text", FORMS)
def test_the_form_as_text_and_back(text):
    assert targets.parse(text) == FORMS[text]
    assert str(FORMS[text]) == text
    assert pickle.loads(pickle.dumps(FORMS[text])) == FORMS[text]
    assert targets.is_target_text(text)


@pytest.mark.parametrize("text", ["answer-tokens:a", "answer-text:", "answer-characters:3", "answer-tokens:[1]"])
def test_a_form_that_is_none_is_refused(text):
    with pytest.raises(TargetError, match="Write it like answer-"):
        targets.parse(text)
