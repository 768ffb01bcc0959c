"""Which parts of a prompt are sources, and what is kept apart: questions, instructions, what the system says."""

import pytest
from tiny_prompts import chat_decoder, decoder

import whyformer as why
from whyformer._cite.sources import find_requests, find_sources

A, B, C = "the film is good.", "a bad film.", "the plot is a mess."
CONTEXT = f"{A}\n\n{B}\n\n{C}"
QUESTION = "Question: is the film good?\nAnswer:"


def divide(text, by="passage", within=None):
    found = find_sources(why.Prompt.from_text(decoder(), text, " good"), by, within)
    return [(one.name, one.text) for one in found.sources], [(one.name, one.text) for one in found.apart]


def number(*texts, unit="passage"):
    return [(f"{unit} {n}", text) for n, text in enumerate(texts, 1)]


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        (f"{CONTEXT}\n\n{QUESTION}", [("question", QUESTION)]),
        (f"{CONTEXT}\n\nis the film good?\n\nAnswer:", [("question", "is the film good?\n\nAnswer:")]),
        (f"is the film good?\n\n{CONTEXT}", [("question", "is the film good?")]),
        (f"is it good?\n\n{CONTEXT}\n\nAnswer:", [("question", "is it good?"), ("instruction", "Answer:")]),
        (
            f"Answer from the passages.\n\n{CONTEXT}\n\nTell me if it is good.",
            [("instruction", "Answer from the passages."), ("instruction", "Tell me if it is good.")],
        ),
        (f"Summarise the following passages:\n\n{CONTEXT}", [("instruction", "Summarise the following passages:")]),
        (f"{CONTEXT}\n\nthe best film is", [("instruction", "the best film is")]),
        (f"{A}\n{B}\n{C}\nQuestion: is it good?\nAnswer:", [("question", "Question: is it good?\nAnswer:")]),
    ],
)
def test_what_asks_is_kept_apart(text, apart):
    assert divide(text) == (number(A, B, C), apart)


def test_sentences_of_the_question_are_kept_apart_too():
    sources, apart = divide(f"{CONTEXT}\n\nlook at the film. is it good?", "sentence")
    assert sources == number(A, B, C, unit="sentence") and apart == [("question", "look at the film. is it good?")]
    sources, apart = divide("The film is good. A bad film. Is it good?", "sentence")
    assert sources == number("The film is good.", "A bad film.", unit="sentence") and apart == [
        ("question", "Is it good?")
    ]


def test_a_question_in_the_middle_is_part_of_a_passage():
    asks = "is it a film? it is."
    assert divide(f"{A}\n\nwhy not?\n\n{asks}\n\n{QUESTION}")[0] == number(A, "why not?", asks)


def test_what_the_caller_lists_or_draws_is_a_source():
    assert divide(f"{CONTEXT}\n\n{QUESTION}", [A, "Question: is the film"])[0][1][1] == "Question: is the film"
    sources, apart = divide(f"{CONTEXT}\n\n{QUESTION}", within=f"{B}\n\n{C}")
    assert sources == [("passage 2", B), ("passage 3", C)] and apart == [("question", QUESTION)]


def test_a_chat():
    """The system prompt is never "passage 1"; a single paragraph of the system can be asked for by its name."""
    messages = [
        {"role": "system", "content": f"be good.\n\n{A}"},
        {"role": "user", "content": f"{B}\n\n{C}\n\nis it good?"},
        {"role": "assistant", "content": "good."},
        {"role": "user", "content": "is it a mess?"},
    ]
    prompt = why.Prompt.from_messages(chat_decoder("chatml"), messages, answer="good.")
    found = find_sources(prompt, "passage", None)
    assert [(one.name, one.text) for one in found.sources] == number(B, C)
    assert [one.name for one in found.apart] == ["system", "question", "assistant", "question"]
    asked = find_sources(prompt, "passage", "system")
    assert [one.text for one in asked.sources] == ["be good.", A]
    with pytest.raises(
        why.errors.InputError, match="Only user 1 is there: questions, instructions and what the system"
    ):
        find_sources(prompt, "role", None)


def test_tool_results_are_sources():
    messages = [
        {"role": "user", "content": "is it good?"},
        {"role": "tool", "name": "look", "content": A},
        {"role": "tool", "name": "look", "content": B},
    ]
    prompt = why.Prompt.from_messages(chat_decoder("chatml"), messages, answer="good.")
    found = find_sources(prompt, "role", None)
    assert [one.text for one in found.sources] == [A, B] and {one.kind for one in found.sources} == {"tool"}
    assert [one.name for one in found.apart] == ["question"]


def test_requests_by_hand():
    assert find_requests(["a.", "b.", "c?"], is_last=True) == {2}
    assert find_requests(["a?", "b.", "c."], is_last=True) == {0}
    assert find_requests(["a?", "b.", "c?"], is_last=True) == {2}  # a passage may end with a question
    assert find_requests(["a.", "b."], is_last=True) == {1} and find_requests(["a.", "b."], is_last=False) == set()
    assert find_requests([], is_last=True) == set()
    long = "Given the following " + "word " * 200 + "."
    assert find_requests([long, "b.", "c?"], is_last=True) == {2}  # too long for an instruction
