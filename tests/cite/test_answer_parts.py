"""Sentences of answers: which are claims, what their marks point to, and where their quotations are."""

import pytest
from tiny_prompts import decoder

import whyformer as why
from whyformer._cite.answer_parts import (
    check_cited_marks,
    divide_answer,
    find_marks,
    find_quotations,
    find_sentence_kind,
    number_labels,
    split_sentences,
)
from whyformer.results.citations import Claim


def region(n, text):
    return why.Region(f"passage {n}", "passage", n, n + 1, text)


def kinds(text):
    return [find_sentence_kind(text, *place) for place in split_sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The Aurora carries tea.", ["claim"]),
        ("tea", ["claim"]),
        ("", []),
        ("The Aurora carries tea. It left in", ["claim", "unfinished"]),
        ("The Aurora carries tea. It left in March [2]", ["claim", "unfinished"]),
        ("The Aurora carries tea. [1] It left in March. [2]", ["claim", "claim"]),
        ("I do not know.", ["abstention"]),
        ("I'm sorry, but I don't know the answer to that question.", ["abstention"]),
        ("The passages do not mention the captain.", ["abstention"]),
        ("The provided context does not contain this information.", ["abstention"]),
        ("There is not enough information to answer.", ["abstention"]),
        ("It is not stated in the documents.", ["abstention"]),
        ("Unknown", ["abstention"]),
        ("Ich weiß es nicht.", ["abstention"]),
        ("Sure! The Aurora carries tea. I hope this helps!", ["greeting", "claim", "greeting"]),
        ("Of course. Here is the answer: The Aurora carries tea.", ["greeting", "claim"]),
        ("Let me know if you need anything else.", ["greeting"]),
        ("The report does not recommend tea.", ["claim"]),  # a report is what the sentence is about
        ("Sure, here is what I found: The Aurora carries tea.", ["claim"]),
        ("Sure, the Aurora carries tea.", ["claim"]),
        ("Sure winds carried the ship to Lisbon.", ["claim"]),
        ("The ships are:\n- Aurora\n- Orion", ["claim"]),
    ],
)
def test_what_a_sentence_is(text, expected):
    assert kinds(text) == expected


def test_a_mark_after_the_stop_belongs_to_the_sentence_before_it():
    text = "The Aurora carries tea. [1] It left in March. [2, 3]"
    assert [text[a:b].strip() for a, b in split_sentences(text)] == [
        "The Aurora carries tea. [1]", "It left in March. [2, 3]",
    ]  # fmt: skip


def test_every_token_of_an_answer_is_in_one_sentence_and_numbers_of_a_list_are_none():
    prompt = why.Prompt.from_text(decoder(), "is it good?", " It is good. Not bad. 1. The plot. 2. The film.")
    parts = divide_answer(prompt)
    tokens = [token for part in parts for token in part.tokens]
    assert sorted(tokens) == list(range(len(prompt.answer))) and len(tokens) == len(set(tokens))
    assert [part.text for part in parts][:2] == ["It is good.", "Not bad."]
    assert all(any(letter.isalpha() for letter in part.text) for part in parts)


def test_the_tokens_of_marks_are_measured_with_no_sentence():
    prompt = why.Prompt.from_text(decoder(), "the film.\n\nis it good?", " good. [1] not bad [2, 3].")
    told = [[prompt.pieces.pieces[prompt.prompt_length + n] for n in one.tokens] for one in divide_answer(prompt)]
    assert not any(piece.strip("▁Ġ ") in {"[", "]", "1", "2", "3", ","} for some in told for piece in some)
    assert len(told) == 2 and all(told)
    only = why.Prompt.from_text(decoder(), "the film.\n\nis it good?", "[1]")
    assert len(divide_answer(only)[0].tokens) == len(only.answer)  # nothing else is there


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Tea [1].", [1]),
        ("Tea [2, 3] and salt [4].", [2, 3, 4]),
        ("Tea [1-3].", [1, 2, 3]),
        ("Tea (Source 2).", [2]),
        ("Tea (see Sources 2 and 3).", [2, 3]),
        ("Tea (document 12).", [12]),
        ("Tea[^1] and salt.[^2]", [1, 2]),
        ("Tea [Source 3].", [3]),
        ("Tea (about 3).", []),
        ("In 1998 [sic] it left.", []),
        ("Tea [1][2].", [1, 2]),
    ],
)
def test_marks(text, numbers):
    assert [number for _, number in find_marks(text)] == numbers


def test_marks_against_what_the_claim_rests_on():
    labels = {1: "passage 1", 2: "passage 2"}
    claim = Claim("Tea [1], [2] and [7].", "claim", "one", ("passage 1",))
    assert [one.finding for one in check_cited_marks(claim, labels).marks] == [
        "right",
        "another source",
        "no such number",
    ]
    also = Claim("Tea [2].", "claim", "one", ("passage 1",), also=("passage 2",))
    assert [one.finding for one in check_cited_marks(also, labels).marks] == ["right"]
    unused = Claim("Tea [2].", "claim", "hardly any")
    assert [one.finding for one in check_cited_marks(unused, labels).marks] == ["unused"]
    opposed = Claim("Tea [2].", "claim", "against", (), also=("passage 2",), against=("passage 1",))
    assert [one.finding for one in check_cited_marks(opposed, labels).marks] == ["unused"]
    unmeasured = Claim("Tea [2].", "claim", "")
    assert [one.finding for one in check_cited_marks(unmeasured, labels).marks] == [""]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["[3] tea.", "[5] salt."], {3: "passage 1", 5: "passage 2"}),
        (["Source 0: tea.", "Source 1: salt."], {0: "passage 1", 1: "passage 2"}),
        (["1. tea.", "2) salt."], {1: "passage 1", 2: "passage 2"}),
        (["tea.", "[1] salt."], {1: "passage 1", 2: "passage 2"}),  # not all are numbered: by their order
        (["[1] tea.", "[1] salt."], {1: "passage 1", 2: "passage 2"}),
    ],
)
def test_the_numbers_of_sources(texts, expected):
    prompt = why.Prompt.from_text(decoder(), "it is good.")
    assert number_labels(prompt, [region(n, text) for n, text in enumerate(texts, 1)]) == expected


def test_quotations_are_found_verbatim_in_part_or_nowhere():
    sources = [region(1, "The Aurora carries tea."), region(2, "It left the harbour\nin March at dawn.")]
    found = find_quotations(
        'It “left the harbour in March”, with "left the harbour in May", says «the Orion carries gold», and "tea".',
        sources,
    )
    assert [(one.finding, one.source) for one in found] == [
        ("verbatim", "passage 2"), ("in part", "passage 2"), ("nowhere", None),
    ]  # fmt: skip
