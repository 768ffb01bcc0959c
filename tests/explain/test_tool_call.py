"""Tool calls: where their parts are in an answer, and which words they come from by leaving them out."""

import json

import pytest
import torch
from tiny_prompts import chat_decoder, decoder

import whyformer as why
from whyformer._model.prompt import find_tool_calls
from whyformer.errors import InputError


def list_parts(answer: str) -> list[tuple[int, str, str]]:
    parts = find_tool_calls(answer)
    assert all(answer[part.start : part.stop] == part.text for part in parts)
    return [(part.call, part.name, part.text) for part in parts]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            '{"name": "weather", "arguments": {"city": "Rome", "days": 3}}',
            [(0, "function", "weather"), (0, "argument city", "Rome"), (0, "argument days", "3")],
        ),
        (
            'Yes. <tool_call>\n{ "name":"f" , "arguments" : { "a": {"b": [1, "}"]} } }\n</tool_call>',
            [(0, "function", "f"), (0, "argument a", '{"b": [1, "}"]}')],
        ),
        (
            '[{"name": "f", "arguments": {}}, {"name": "g", "parameters": {"x": null}}]',
            [(0, "function", "f"), (1, "function", "g"), (1, "argument x", "null")],
        ),
        (
            '{"type": "function", "function": {"name": "f", "arguments": "{\\"city\\": \\"Rome\\"}"}}',
            [(0, "function", "f"), (0, "arguments", '{\\"city\\": \\"Rome\\"}')],
        ),
        (
            'I look: weather(city="Zürich", days=2) (now)',
            [(0, "function", "weather"), (0, "argument city", "Zürich"), (0, "argument days", "2")],
        ),
        ('{"name": "f", "arguments": {"note": ""}}', [(0, "function", "f")]),
        ("Rome is warm (today).", []),
        ('{"name": "Rome", "country": "Italy"}', []),
        ('{"name": "f", "arguments": {"city": "Ro', []),
        ("{{{{{", []),
        ("f(**x) and g(1)", []),
        ('{"a":' * 3000, []),
        ("x" * 30_000 + '{"name": "f", "arguments": {}}', []),
    ],
)
def test_finds_names_and_arguments_where_they_are(answer, expected):
    assert list_parts(answer) == expected


# --- which words ------------------------------------------------------------------------------------------------------

CALL = '{"name": "f", "arguments": {"x": "film"}}'
MESSAGES = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "is the film good"}]


def measure_log_odds(model: why.Model, ids: list[int], places: list[int]) -> float:
    """Of the tokens at these places, each after those before it."""
    with torch.no_grad():
        scores = model.module(torch.tensor([ids])).logits[0].log_softmax(-1)
    logs = [scores[place - 1, ids[place]] for place in places]
    return float(sum(log - torch.log1p(-log.exp()) for log in logs))


def test_a_score_is_what_the_part_loses_without_the_word():
    model = chat_decoder("chatml")
    prompt = why.Prompt.from_messages(model, MESSAGES, answer=CALL)
    found = why.explain_tool_call(model, prompt)
    assert [part.name for part in found.parts] == ["function", "argument x"]
    part = found.parts[1]
    begin = prompt.answer_start + part.start
    places = [i for i in prompt.answer if prompt.pieces.spans[i][0] < begin + 4 and prompt.pieces.spans[i][1] > begin]
    whole = measure_log_odds(model, list(prompt.ids), places)
    start = prompt.text.index("film")
    gone = [i for i in range(prompt.prompt_length) if start - 1 <= prompt.pieces.spans[i][0] < start + 4]
    gone = [i for i in gone if prompt.text[slice(*prompt.pieces.spans[i])].strip()]
    left = [token for i, token in enumerate(prompt.ids) if i not in gone]
    without = measure_log_odds(model, left, [place - len(gone) for place in places])
    scores = {word: adds for _, word, adds in found.top("argument x", 20)}
    assert scores["film"] == pytest.approx(whole - without)
    assert {message for message, _, _ in found.top("function", 20)} == {"user"} and len(scores) == 4


def test_only_words_of_the_regions_that_are_named_are_left_out():
    model = chat_decoder("chatml")
    prompt = why.Prompt.from_messages(model, MESSAGES, answer=CALL)
    found = why.explain_tool_call(model, prompt, within=["system"])
    assert {(message, word) for message, word, _ in found.top(0, 20)} == {("system", "be"), ("system", "kind")}
    with pytest.raises(InputError, match="no region 'user 7'"):
        why.explain_tool_call(model, prompt, within=["user 7"])


def test_a_text_without_roles_and_a_relevance_method():
    model = decoder()
    prompt = why.Prompt.from_text(model, "is the film good", answer=' f(x="film")')
    removed = why.explain_tool_call(model, prompt)
    assert {word for _, word, _ in removed.top("function", 20)} <= {"is", "the", "film", "good"}
    passed = why.explain_tool_call(model, prompt, "attnlrp")
    e = why.explain(model, prompt, "attnlrp", target=why.targets.Answer("film", score="log_odds"))
    assert torch.equal(passed.explanations[1].scores, e.scores)


def test_says_so_where_nothing_is_called():
    prompt = why.Prompt.from_messages(chat_decoder("chatml"), MESSAGES, answer="yes (it is)")
    with pytest.raises(InputError, match=r"calls no function: 'yes \(it is\)'"):
        why.explain_tool_call(chat_decoder("chatml"), prompt)
    found = why.explain_tool_call(
        chat_decoder("chatml"), why.Prompt.from_messages(chat_decoder("chatml"), MESSAGES, answer=CALL)
    )
    with pytest.raises(InputError, match="It has: function, argument x"):
        found.top("argument y")


# --- logs -------------------------------------------------------------------------------------------------------------


def make_log(arguments: object) -> dict:
    function = {"name": "f", "arguments": arguments}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    return {"request": {"messages": MESSAGES}, "response": {"choices": [{"message": message}]}}


@pytest.mark.parametrize("arguments", [{"x": "film"}, '{"x": "film"}'])
@pytest.mark.parametrize("style", ["chatml", "qwen"])
def test_reads_the_call_of_a_log_like_that_of_openai(style, arguments):
    found = why.explain_tool_call(chat_decoder(style), make_log(arguments))
    assert [(part.name, part.text) for part in found.parts] == [("function", "f"), ("argument x", "film")]
    notes = (
        " ".join(found.explanations[0].notes) + why.Prompt.from_log(chat_decoder(style), make_log(arguments)).notes[-1]
    )
    assert ("writes no tool calls" in notes) == (style == "chatml")


def test_a_call_put_as_json_is_the_one_of_the_log():
    prompt = why.Prompt.from_log(chat_decoder("chatml"), make_log("not json"))
    assert json.loads(prompt.answer_text) == {"name": "f", "arguments": "not json"}


def test_messages_that_the_template_refuses_are_still_refused():
    log = make_log({})
    log["request"]["messages"] = [{"role": "user", "content": 3}, *MESSAGES]
    with pytest.raises(InputError):
        why.Prompt.from_log(chat_decoder("chatml"), log)


def test_shows_each_part_and_escapes_what_was_said(tmp_path):
    model = chat_decoder("chatml")
    said = [{"role": "user", "content": "is <b>film</b> good"}]
    prompt = why.Prompt.from_messages(model, said, answer='{"name": "f", "arguments": {"x": "<i>film"}}')
    found = why.explain_tool_call(model, prompt)
    assert "argument x <i>film" in str(found) and "user " in str(found)
    found.save(tmp_path / "call.html")
    page = (tmp_path / "call.html").read_text()
    assert "<i>film" not in page and "<b>film" not in page and "&lt;i&gt;film" in page
    found.save(tmp_path / "call.csv")
    assert "argument x" in (tmp_path / "call.csv").read_text()
