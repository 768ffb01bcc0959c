"""Prompts as retrieval writes them: by their real templates, the sources are those that a person would list."""

import json

import pytest
from tiny_prompts import chat_decoder

import whyformer as why
from whyformer._cite.documents import choose_unit
from whyformer._cite.sources import find_sources
from whyformer.errors import InputError

A, B, C = "The Aurora left in March and carries tea.", "The fair opens in May.", "The Orion is loaded with salt."
TEXTS = (A, B, C)
Q = "What does the Aurora carry?"
BLANK = f"{A}\n\n{B}\n\n{C}"
LANGCHAIN = (
    "Use the following pieces of retrieved context to answer the question. If you don't know the answer, just say that "
    "you don't know. Use three sentences maximum and keep the answer concise.\n\n"
)
LLAMA_INDEX = (
    "Context information is below.\n---------------------\n{context}\n---------------------\nGiven the context "
    "information and not prior knowledge, answer the query.\nQuery: {query}\nAnswer: "
)
HUB = (
    "You are an assistant for question-answering tasks. Use the following pieces of retrieved context to answer the "
    "question. If you don't know the answer, just say that you don't know. Use three sentences maximum and keep the "
    "answer concise.\nQuestion: {query} \nContext: {context} \nAnswer:"
)


def ask(text, system=None):
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


def tags(name, between="\n", **attributes):
    inside = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return between.join(f"<{name}{inside}>{between}{text}{between}</{name}>" for text in TEXTS)


LAYOUTS = {
    "numbered after Context:": ask(f"Context:\n[1] {A}\n[2] {B}\n[3] {C}\n\nQuestion: {Q}"),
    "numbered without a blank line": ask(
        f"Answer from the context.\nContext:\n[1] {A}\n[2] {B}\n[3] {C}\nQuestion: {Q}\nAnswer:"
    ),
    "counted": ask(f"1. {A}\n2. {B}\n3. {C}\n\n{Q}"),
    "tags": ask(f"<documents>\n{tags('document', index=1)}\n</documents>\n\n{Q}"),
    "tags in one line": ask(f"{tags('doc', '')}\n{Q}"),
    "one tag around lines": ask(f"<context>\n{A}\n{B}\n{C}\n</context>\n\n{Q}"),
    "LangChain, context in the system prompt": ask(Q, LANGCHAIN + BLANK),
    "LangChain's hub": ask(HUB.format(context=BLANK, query=Q)),
    "LlamaIndex": ask(LLAMA_INDEX.format(context=BLANK, query=Q)),
    "an OpenAI-like server": ask(
        Q, f"You are a helpful assistant. Answer with the context below.\n\n<context>\n{A}\n{B}\n{C}\n</context>"
    ),
    "a JSON list": ask(json.dumps([{"id": n, "text": text} for n, text in enumerate(TEXTS)]) + f"\n\n{Q}"),
    "JSON lines": ask("\n".join(json.dumps({"id": n, "text": text}) for n, text in enumerate(TEXTS)) + f"\n\n{Q}"),
    "the question first": ask(f"{Q}\n\n{BLANK}"),
    "labels and an instruction after them": ask(
        f"Source 1: {A}\n\nSource 2: {B}\n\nSource 3: {C}\n\nAnswer with citations like [1].\n\n{Q}"
    ),
    "headings": ask(f"# Context\n\n## Document 1\n{A}\n\n## Document 2\n{B}\n\n## Document 3\n{C}\n\n# Question\n{Q}"),
    "the first passage in the line of the word": ask(f"Context: {BLANK}\n\nQuestion: {Q}\nAnswer:"),
    "context in an earlier turn": [
        *ask(f"Context:\n{BLANK}\n\nWho sails?"), {"role": "assistant", "content": "Anna."}, *ask(Q),
    ],
    "Anthropic's tags": ask("<documents>\n" + "\n".join(
        f'<document index="{n}">\n<source>{n}.md</source>\n<document_content>\n{text}\n</document_content>\n</document>'
        for n, text in enumerate(TEXTS, 1)
    ) + f"\n</documents>\n\n{Q}"),
    "Bedrock's search results": ask("<search_results>\n" + "\n".join(
        f"<search_result>\n<content>\n{text}\n</content>\n<source>\n{n}\n</source>\n</search_result>"
        for n, text in enumerate(TEXTS, 1)
    ) + f"\n</search_results>\n\n{Q}"),
    "LlamaIndex with metadata": ask(LLAMA_INDEX.format(
        context="\n\n".join(f"page_label: {n}\nfile_path: {n}.md\n\n{text}" for n, text in enumerate(TEXTS, 1)), query=Q
    )),
    "numbers after the word": ask(
        "\n".join(f"Document [{n}](Title: {n}) {text}" for n, text in enumerate(TEXTS, 1)) + f"\n\nQuestion: {Q}"
    ),
    "bullets": ask(f"Facts:\n- {A}\n- {B}\n- {C}\n\n{Q}"),
    "lines and then a blank one": ask(f"{A}\n{B}\n{C}\n\n{Q}"),
    "YAML": ask("\n".join(f"- title: {n}\n  text: {text}" for n, text in enumerate(TEXTS, 1)) + f"\n\n{Q}"),
    "blank lines": ask(f"{BLANK}\n\n{Q}"),
    "results of tools": [*ask(Q), *({"role": "tool", "content": text} for text in TEXTS)],
}  # fmt: skip


def divide(messages):
    prompt = why.Prompt.from_messages(chat_decoder("chatml"), messages, answer="tea")
    return find_sources(prompt, choose_unit(prompt, None), None).sources


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_sources_are_those_that_a_person_would_list(layout):
    found = divide(LAYOUTS[layout])
    assert len(found) == 3
    for text, own in zip(TEXTS, found, strict=True):
        others = [other for other in TEXTS if other != text]
        assert text in own.text and Q not in own.text and not any(other in own.text for other in others)
        assert len(own.text) < len(text) + 75  # a label or metadata, not an instruction


@pytest.mark.parametrize("layout", ["LangChain, context in the system prompt", "LlamaIndex", "tags in one line"])
def test_they_are_left_out_one_by_one(layout):
    cited = why.cite(chat_decoder("chatml"), LAYOUTS[layout], answer="tea")
    assert len(cited) == 3 and cited.claim.how and cited.spent["cost"] < 14


def test_one_block_is_refused_with_the_arguments_that_work():
    messages = ask(f"{A} {B} {C} {Q}")
    with pytest.raises(InputError, match=r'Pass by="sentence" \(3 sources\), or by= a list of texts'):
        divide(messages)
    prompt = why.Prompt.from_messages(chat_decoder("chatml"), messages, answer="tea")
    assert len(find_sources(prompt, "sentence", None).sources) == 3


def test_passages_of_the_system_are_named_where_nothing_tells_that_they_are_a_context():
    messages = ask(Q, f"{A}\n\n{B}\n\n{C}")
    with pytest.raises(InputError, match=r'by="passage", within="system" \(3 sources\)'):
        divide(messages)
    prompt = why.Prompt.from_messages(chat_decoder("chatml"), messages, answer="tea")
    assert [one.text for one in find_sources(prompt, "passage", "system").sources] == list(TEXTS)


def test_a_list_inside_a_passage_does_not_divide_the_others():
    first = "To brew:\n1. Boil water.\n2. Add tea."
    assert [one.text for one in divide(ask(f"{first}\n\n{B}\n\n{Q}"))] == [first, B]


def test_lines_that_break_sentences_are_no_passages():
    with pytest.raises(InputError, match="at least two sources"):
        divide(ask(f"The Aurora left\nin March and carries\ntea.\n\n{Q}"))


def test_a_system_prompt_of_rules_is_no_context():
    with pytest.raises(InputError, match="at least two sources"):
        divide(ask(Q, "You are kind.\n\nBe brief.\n\nNever lie."))


def test_a_document_without_a_text_is_skipped_and_said():
    cited = why.cite(chat_decoder("chatml"), ask(Q), documents=[A, " \n", C], answer="tea", effort="fast")
    assert sorted(one.text for one in cited) == sorted([A, C])
    assert any("number 2 has no text and was skipped" in note for note in cited.notes)


def test_a_template_that_drops_tools_and_their_calls_is_noted():
    tool = {"type": "function", "function": {"name": "look", "description": "looks", "parameters": {}}}
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]}
    messages = [*ask(Q), call, {"role": "tool", "content": A}]
    prompt = why.Prompt.from_messages(chat_decoder("chatml"), messages, tools=[tool], answer="tea")
    assert any("leaves out tools=" in note for note in prompt.notes)
    assert any("leaves out tool_calls" in note for note in prompt.notes)
