"""Logs of other engines: read as they are, and checked against this model."""

import math

import pytest
import torch
import transformers as hf
from chat_templates import make_chat_tokenizer
from tiny_text import byte_pairs, gpt2

import whyformer as why
from whyformer.errors import InputError

TEXT = "the film is"


@pytest.fixture(scope="module")
def model():
    return why.open(gpt2(), tokenizer=byte_pairs())


@pytest.fixture(scope="module")
def answered(model):
    return why.generate(model, TEXT, max_new_tokens=4)


def log_probabilities_slowly(model, prompt):
    """One run per token."""
    found = []
    for place in prompt.answer:
        with torch.no_grad():
            logits = model.module(torch.tensor([prompt.ids[:place]])).logits[0, -1]
        found.append(float(logits.log_softmax(-1)[prompt.ids[place]]))
    return found


def test_log_probabilities_by_definition(model, answered):
    check = why.check_answer(model, answered)
    assert check.log_probabilities == pytest.approx(log_probabilities_slowly(model, answered))
    assert check.ranks == (0, 0, 0, 0)  # greedy
    assert check.perplexity == pytest.approx(math.exp(-check.mean))
    assert check.agrees is None and "4 of 4 tokens are the most likely ones" in str(check)


def test_a_log_of_vllm(model, answered):
    start, ids = list(answered.ids[: answered.prompt_length]), list(answered.answer_ids)
    values = log_probabilities_slowly(model, answered)
    record = {
        "prompt": TEXT,
        "prompt_token_ids": start,
        "outputs": [
            {
                "token_ids": ids,
                "text": answered.answer_text,
                "logprobs": [{str(i): {"logprob": v, "rank": 1}} for i, v in zip(ids, values, strict=True)],
            }
        ],
    }
    prompt = why.Prompt.from_log(model, record)
    assert prompt.ids == answered.ids and prompt.logged == pytest.approx(values) and prompt.notes == ()
    check = why.check_answer(model, prompt)
    assert check.agrees and "The log agrees" in check.verdict


def test_a_log_of_another_model_disagrees(model, answered):
    other = why.open(gpt2(initializer_range=0.1), tokenizer=byte_pairs())
    values = log_probabilities_slowly(other, answered)
    check = why.check_answer(model, answered, values)
    own = log_probabilities_slowly(model, answered)
    assert check.difference == pytest.approx(sum(abs(a - b) for a, b in zip(own, values, strict=True)) / 4)
    assert check.agrees is False and "another model or prompt" in str(check) and "logged" in str(check)
    assert why.check_answer(model, answered, values, tolerance=99).agrees


@pytest.fixture(scope="module")
def chat():
    tokenizer = make_chat_tokenizer("qwen")
    torch.manual_seed(0)
    sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    module = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, vocab_size=len(tokenizer)))
    return why.open(module.double().eval(), tokenizer=tokenizer)


def test_a_log_of_a_chat_api_with_its_tokens(chat):
    messages = [{"role": "user", "content": "Where is the Tower?"}]
    tokens = ["P", "ari", "s"]
    split = [{"token": token, "logprob": -0.5} for token in tokens]
    choice = {"message": {"role": "assistant", "content": "Paris"}, "logprobs": {"content": split}}
    prompt = why.Prompt.from_log(chat, {"messages": messages, "choices": [choice]})
    assert prompt.text == why.Prompt.from_messages(chat, messages, answer="Paris").text
    vocabulary = chat.tokenizer.get_vocab()
    if all(token in vocabulary for token in tokens):
        assert [chat.tokenizer.decode([i]) for i in prompt.answer_ids] == tokens
        assert prompt.logged == (-0.5, -0.5, -0.5) and prompt.notes == ()
    single = [{"token": c, "logprob": -0.1} for c in "Paris"]  # letters are tokens of every byte-level tokenizer
    prompt = why.Prompt.from_log(chat, {"messages": messages, "choices": [choice | {"logprobs": {"content": single}}]})
    assert len(prompt.answer) == 5 and prompt.logged == (-0.1,) * 5 and prompt.notes == ()


def test_a_log_with_tokens_and_messages_has_roles(chat):
    """Regions are those of the tokens of the log, also where the engine split a word differently."""
    messages = [{"role": "user", "content": "the film"}]
    by_text = why.Prompt.from_messages(chat, messages)
    letters = [chat.tokenizer.convert_tokens_to_ids(c) for c in "the"]
    start = by_text.regions[1].start
    ids = [*by_text.ids[:start], *letters, *by_text.ids[start + 1 :]]
    assert chat.tokenizer.decode(ids) == by_text.text and len(ids) == len(by_text) + 2
    prompt = why.Prompt.from_log(chat, {"prompt_token_ids": ids, "messages": messages, "token_ids": [5]})
    assert list(prompt.ids) == [*ids, 5]
    user = prompt.split("role")[0]
    assert (user.name, user.start, user.text, len(user)) == ("user", start, "the film", len(by_text.regions[1]) + 2)
    other = why.Prompt.from_log(chat, {"prompt_token_ids": ids[1:], "messages": messages})
    assert [r.name for r in other.regions] == ["prompt"] and "no roles are known" in other.notes[-1]


def test_a_log_of_texts_is_tokenised_once_and_says_so(model, chat):
    prompt = why.Prompt.from_log(model, {"prompt": TEXT, "choices": [{"text": " good"}]})
    assert prompt.text == TEXT + " good" and prompt.logged is None
    assert [("prompt was given as text" in n or "answer was given as text" in n) for n in prompt.notes] == [True, True]
    record = {
        "messages": [{"role": "user", "content": "hi"}],
        "choices": [{"message": {"content": "Paris", "role": "assistant"}}],
    }
    assert "answer was given as text" in why.Prompt.from_log(chat, record).notes[0]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("a text", "must be a dictionary, got str"),
        ({"answer": "good"}, "The log has no prompt: it has answer. Pass prompt_token_ids, messages or prompt"),
        ({"prompt": TEXT, "choices": ["good"]}, "first answer of the log must be a dictionary"),
        ({"prompt": TEXT, "choices": [{"message": "good"}]}, '"message" of the log must be a dictionary'),
        ({"prompt": TEXT, "answer": 3}, "answer of the log must be a text, got int"),
        ({"ids": [5, 6], "answer_ids": [7], "answer": "something else"}, "where the text says"),
    ],
)
def test_bad_logs_are_refused(model, record, reason):
    with pytest.raises(InputError, match=reason):
        why.Prompt.from_log(model, record)


def test_bad_checks_are_refused(model, answered):
    with pytest.raises(InputError, match=r"needs a Prompt with an answer.*Prompt\.from_tokens"):
        why.check_answer(model, answered.without_answer())
    with pytest.raises(InputError, match="one number for each of the 4 tokens of the answer, got 3 entries"):
        why.check_answer(model, answered, [-1.0, -2.0, -3.0])
    with pytest.raises(InputError, match="tolerance must be a number >= 0, got -1"):
        why.check_answer(model, answered, tolerance=-1)
    sentiment = why.open("demo/sentiment")
    with pytest.raises(InputError, match="Use a causal language model"):
        why.check_answer(sentiment, why.Prompt.from_text(sentiment, "a film", " good"))
