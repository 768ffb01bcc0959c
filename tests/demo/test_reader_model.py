"""The bundled reader: it answers held-out questions, from the passage that states the answer and from no other."""

from dataclasses import replace

import pytest
import torch

import whyformer as why
from whyformer.demo import reader
from whyformer.demo.reader_words import CITIES

torch.set_num_threads(1)

ASKED = reader.generate(20, 11)


@pytest.fixture(scope="module")
def model() -> why.Model:
    return why.open("demo/reader")


def says(model, text: str, answer: str, *, has_special_tokens: bool = False) -> bool:
    """Whether greedy decoding gives this answer and ends: each token is the most likely one after those before it."""
    prompt = model.tokenizer.encode(text, add_special_tokens=not has_special_tokens)
    wanted = [*model.tokenizer.encode(f" {answer}", add_special_tokens=False), model.tokenizer.eos_token_id]
    with torch.no_grad():
        logits = model.module(input_ids=torch.tensor([prompt + wanted])).logits[0]
    return logits[len(prompt) - 1 : -1].argmax(-1).tolist() == wanted


def swap_value(asked: reader.PassageQuestion, place: int, old: str, new: str) -> str:
    """The prompt with a value of one passage exchanged."""
    passages = list(asked.passages)
    passages[place] = replace(passages[place], text=passages[place].text.replace(old, new))
    return replace(asked, passages=tuple(passages)).text


def test_it_answers_held_out_questions(model):
    assert sum(says(model, asked.text, asked.answer) for asked in ASKED) >= 0.9 * len(ASKED)
    prompt = why.generate(model, ASKED[0].text)
    assert prompt.answer_text == f" {ASKED[0].answer}"


def test_it_reads_the_answer_in_the_passage_that_states_it(model):
    """Another city there is the new answer. Leaving another passage out and moving this one changes nothing."""
    followed = kept = 0
    cities = [a for a in reader.generate(120, 12) if a.answer in CITIES and "Oslo" not in a.text][:8]
    assert len(cities) == 8
    for asked in cities:
        followed += says(model, swap_value(asked, asked.source, asked.answer, "Oslo"), "Oslo")
        others = [place for place in range(len(asked.passages)) if place != asked.source]
        without = replace(asked, passages=tuple(asked.passages[place] for place in (*others[:-1], asked.source)))
        kept += says(model, without.text, asked.answer)
    assert followed >= 7 and kept >= 7


def test_it_reads_chats_and_documents(model):
    right = 0
    for asked in ASKED[:8]:
        template = {"add_generation_prompt": True, "tokenize": False}
        chat = model.tokenizer.apply_chat_template(asked.messages, **template)
        assert chat.startswith("<|begin|><|system|> Answer") and chat.endswith("?<|end|><|assistant|>")
        documents = model.tokenizer.apply_chat_template(
            [asked.messages[0], {"role": "user", "content": asked.question}],
            documents=[{"text": passage.text} for passage in asked.passages],
            **template,
        )
        assert documents.count("<|document|>") == len(asked.passages)
        right += sum(says(model, text, asked.answer, has_special_tokens=True) for text in (chat, documents))
    assert right >= 14


def test_its_tokens_lose_nothing(model):
    for asked in ASKED[:4]:
        for text in (asked.text, "Zoë paid 3.50 € at the café.\n\tIs that so?"):
            assert model.tokenizer.decode(model.tokenizer.encode(text, add_special_tokens=False)) == text
        words = model.tokenizer.tokenize(f" {asked.answer}")
        assert len(words) == len(asked.answer.split())


@pytest.mark.slow
@pytest.mark.parametrize("passages", [2, 4, 7, 10])
def test_it_answers_from_any_number_of_passages(model, passages):
    asked = reader.generate(100, 21, passages=passages)
    assert sum(says(model, one.text, one.answer) for one in asked) >= 90
