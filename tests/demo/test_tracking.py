"""The world of assignments and its decoder: one statement sets the printed value, and the steps to it are known."""

from collections import Counter

import pytest
import torch

import whyformer as why
from whyformer.demo.draws import part_of
from whyformer.errors import InputError
from whyformer_papers.worlds import tracking

PROGRAMS = tracking.generate(60, 0)


@pytest.fixture(scope="module")
def model() -> why.Model:
    return why.open("demo/tracking")


def run_program(program: tracking.Assignments) -> str:
    """The definition: what the program prints."""
    values: dict[str, str] = {}
    for name, value in program.statements:
        assert name not in values
        values[name] = values.get(value, value)
    *_, printed, _ = program.prompt.split()
    return values[printed]


def test_a_program_by_hand():
    program = tracking.Assignments((("k", "47"), ("r", "12"), ("c", "k"), ("m", "r")), path=(2, 0))
    assert program.prompt == "k = 47 ; r = 12 ; c = k ; m = r ; print c :"
    assert program.continuation == " c = k ; k = 47 ; answer 47"
    assert (program.source, program.value) == (0, "47")
    assert [program.prompt[start:stop] for start, stop in program.spans] == list(program.lines)
    assert program.lines[2] == "c = k ;"


def test_the_path_leads_to_what_the_program_prints():
    for program in PROGRAMS:
        assert run_program(program) == program.value
        names = [program.statements[i][0] for i in program.path]
        assert [program.statements[i][1] for i in program.path] == [*names[1:], program.value]


def test_only_the_source_has_the_value():
    for program in PROGRAMS:
        values = [value for _, value in program.statements if value in tracking.VALUES]
        assert Counter(values)[program.value] == 1 and len(values) == len(set(values)) >= 2


def test_every_statement_uses_names_set_before_it():
    for program in PROGRAMS:
        for i, (_, value) in enumerate(program.statements):
            assert value in tracking.VALUES or value in [name for name, _ in program.statements[:i]]


def test_programs_depend_on_the_seed_and_their_number_only():
    assert tracking.generate(3, 0) == PROGRAMS[:3] != tracking.generate(3, 1)
    assert {len(program.path) - 1 for program in PROGRAMS} == {1, 2, 3}
    assert {len(program.path) - 1 for program in tracking.generate(20, 0, links=2)} == {2}


def test_no_program_is_in_both_parts():
    training = tracking.generate(60, 0, part="training")
    assert not {program.prompt for program in training} & {program.prompt for program in PROGRAMS}
    assert all(part_of(program.prompt) == "held-out" for program in PROGRAMS)
    assert all(part_of(program.prompt) == "training" for program in training)


def test_every_word_is_in_the_vocabulary():
    words = {word for program in PROGRAMS for word in (program.prompt + program.continuation).split()}
    assert words <= set(tracking.VOCABULARY)


@pytest.mark.parametrize("given", [{"count": -1}, {"links": 0}, {"links": 4}, {"part": "other"}], ids=repr)
def test_refuses_arguments_outside_their_range(given):
    with pytest.raises(InputError, match=next(iter(given))):
        tracking.generate(**{"count": 1, "seed": 0} | given)


def test_the_model_writes_the_chain_and_the_answer(model):
    for program in PROGRAMS[:3]:
        written = why.generate(model, program.prompt, max_new_tokens=40)
        assert written.answer_text.split() == program.continuation.split()


def find_answer(model: why.Model, text: str) -> str:
    ids = model.tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return model.tokenizer.decode([int(model.module(input_ids=ids).logits[0, -1].argmax())])


def test_the_answer_is_copied_from_the_chain(model):
    """Another value in the chain changes the answer, another one in the source does not: hop 0 must show the chain."""
    for program in PROGRAMS[:10]:
        other = next(value for value in tracking.VALUES if value not in program.prompt)
        steps = f" {program.chain} answer"
        assert find_answer(model, program.prompt + steps) == program.value
        assert find_answer(model, program.prompt + steps.replace(program.value, other)) == other
        assert find_answer(model, program.prompt.replace(program.value, other) + steps) == program.value


def trace_shares(model: why.Model, method: str, count: int) -> tuple[list[list[float]], list[float], list[bool]]:
    """Of programs with one link: the share of the source in hops 0 and 1, chance, and whether it is first in hop 1."""
    shares, chances, is_first = [], [], []
    for program in tracking.generate(count, 0, links=1):
        h = why.trace_reasoning(
            model, program.prompt, method, answer=program.continuation, select=-1, by=program.spans, hops=1, steps=False
        )
        shares.append(h.shares()[:2, program.source].tolist())
        chances.append(4 / (len(h.prompt) - 1))
        is_first.append(int(h.matrix()[1].argmax()) == program.source)
    return shares, chances, is_first


@pytest.mark.parametrize("method", ["cp_lrp", "attnlrp"])
def test_steps_lead_back_to_every_statement_of_the_path(model, method):
    """Hop by hop: the source, then the link to it, then the one before. Tokens on their own find fewer of them."""
    found = {True: 0, False: 0}
    programs = tracking.generate(4, 3, links=2)
    for program in programs:
        for steps in found:
            h = why.trace_reasoning(
                model, program.prompt, method, answer=program.continuation, select=-1, by=program.spans, steps=steps
            )
            best = h.matrix().sum(0).argsort(descending=True)[:3].tolist()
            found[steps] += len({*best} & {*program.path})
            if steps and method == "cp_lrp":
                assert int(h.matrix()[1].argmax()) == program.source
    assert found[True] >= 11 > found[False]


def test_a_program_that_prints_two_names_by_hand():
    program = tracking.Assignments((("k", "47"), ("r", "12"), ("c", "k"), ("m", "r")), path=(2, 0), other_path=(3, 1))
    assert program.prompt == "k = 47 ; r = 12 ; c = k ; m = r ; print c m :"
    assert program.continuation == " c = k ; k = 47 ; m = r ; r = 12 ; answer 47 12"
    for drawn in tracking.generate(20, 5, prints_two=True):
        assert not {*drawn.path} & {*drawn.other_path} and len(drawn.other_path) >= 2
        assert part_of(drawn.prompt) == "held-out"


@pytest.mark.parametrize("method", ["cp_lrp", "attnlrp"])
def test_the_source_gets_its_relevance_in_hop_1(model, method):
    shares, chances, is_first = trace_shares(model, method, 3)
    for (hop_0, hop_1), chance in zip(shares, chances, strict=True):
        assert hop_0 < hop_1 and hop_1 > 2 * chance
    assert all(is_first)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cp_lrp", "attnlrp"])
def test_the_source_gets_its_relevance_in_hop_1_on_100_programs(model, method):
    shares, chances, is_first = trace_shares(model, method, 100)
    assert all(hop_0 < hop_1 and hop_1 > chance for (hop_0, hop_1), chance in zip(shares, chances, strict=True))
    assert all(is_first)
