"""The bundled reader of sources: it answers held-out questions of every kind, and says when nothing is stated."""

from dataclasses import replace

import pytest
import torch

import whyformer as why
from whyformer_papers.worlds import sources
from whyformer_papers.worlds.sources_words import SOURCE_WORLDS

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> why.Model:
    return why.open("demo/sources")


def says(model: why.Model, asked: sources.SourceQuestion) -> bool:
    """Whether greedy decoding gives this answer and ends."""
    prompt = model.tokenizer.encode(asked.text)
    wanted = [*model.tokenizer.encode(f" {asked.answer}", add_special_tokens=False), model.tokenizer.eos_token_id]
    with torch.no_grad():
        logits = model.module(input_ids=torch.tensor([prompt + wanted])).logits[0]
    return logits[len(prompt) - 1 : -1].argmax(-1).tolist() == wanted


@pytest.mark.parametrize("world", SOURCE_WORLDS)
@pytest.mark.parametrize(
    ("kind", "least"), [("one", 3), ("reworded", 3), ("either", 3), ("both", 2), ("unanswerable", 3), ("sentences", 2)]
)
def test_it_answers_held_out_questions_of_every_kind(model, world, kind, least):
    assert sum(says(model, asked) for asked in sources.generate(4, 11, world=world, kind=kind)) >= least


def test_it_says_one_of_two_values_that_contradict_each_other(model):
    right = 0
    for asked in sources.generate(4, 11, kind="contradicted"):
        values = sources.find_values(
            SOURCE_WORLDS[asked.world], sources.list_statements(asked.passages), asked.claims[0].query
        )
        right += any(says(model, asked.answer_with([value])) for _, value in values)
    assert right >= 3


def test_without_the_passage_that_decides_it_says_that_nothing_is_stated(model):
    said = 0
    for asked in sources.generate(4, 12, kind="one"):
        ((source,),) = asked.claims[0].support
        left = tuple(passage for i, passage in enumerate(asked.passages) if i != source)
        said += says(model, replace(asked.answer_with([sources.NOT_STATED]), passages=left))
    assert said >= 3


def test_it_reads_fifty_passages(model):
    assert sum(says(model, asked) for asked in sources.generate(2, 13, kind="one", passages=50)) >= 1


def test_its_tokens_lose_nothing_and_are_words(model):
    for asked in sources.generate(4, 14, world="valley"):
        assert model.tokenizer.decode(model.tokenizer.encode(asked.text, add_special_tokens=False)) == asked.text
        assert len(model.tokenizer.tokenize(f" {asked.answer}")) == len(asked.answer.replace(".", " .").split())
