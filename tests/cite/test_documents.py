"""Documents in every form give the same citations, with their ids and metadata; tool results and logs do too."""

import json
from datetime import date

import pytest
from cite.documents_held import ANSWER, FORMS, IDS, LIBRARIES, METADATA, QUESTION, TEXTS, PageDocument, rows
from tiny_prompts import chat_decoder

import whyformer as why
from whyformer.errors import InputError

QUICK = {"effort": "checked"}
MESSAGES = [{"role": "user", "content": "What does the Aurora carry?"}]
WHOLE = "\n\n".join([*TEXTS, QUESTION])


@pytest.fixture(scope="module")
def reader():
    return why.open("demo/reader")


@pytest.fixture(scope="module")
def expected(reader):
    """Of the prompt that has the documents in it as passages."""
    return why.cite(reader, WHOLE, "passage", answer=ANSWER, **QUICK)


def check_same(cited, expected, *, ids=IDS, metadata=METADATA):
    """Equal scores and roles; ids and metadata are those of the document, whatever its rank."""
    assert [(one.text, one.score, one.role) for one in cited] == [(one.text, one.score, one.role) for one in expected]
    known = {text: (id, facts) for id, text, facts in zip(ids, TEXTS, metadata, strict=True)}
    for one in cited:
        id, facts = known[one.text]
        assert one.id == id
        assert facts.items() <= one.metadata.items()
    in_order = sorted(cited, key=lambda one: one.start)
    assert [one.text for one in in_order] == list(TEXTS)
    assert [one.name for one in in_order] == ["document 1", "document 2", "document 3"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_citations(reader, expected, form):
    check_same(why.cite(reader, QUESTION, documents=FORMS[form](), answer=ANSWER, **QUICK), expected)


@pytest.mark.parametrize("library", LIBRARIES)
def test_documents_of_the_libraries_themselves(reader, expected, library):
    pytest.importorskip(library)
    documents = [LIBRARIES[library](*row) for row in rows()]
    check_same(why.cite(reader, QUESTION, documents=documents, answer=ANSWER, **QUICK), expected)


def test_texts_alone_have_no_ids(reader, expected):
    cited = why.cite(reader, QUESTION, documents=list(TEXTS), answer=ANSWER, **QUICK)
    check_same(cited, expected, ids=[None] * 3, metadata=[{}] * 3)


def test_a_document_beside_its_score(reader, expected):
    documents = [(PageDocument(text, facts, id), 0.25) for id, text, facts in rows()]
    cited = why.cite(reader, QUESTION, documents=documents, answer=ANSWER, **QUICK)
    check_same(cited, expected)
    assert {one.metadata["score"] for one in cited} == {0.25}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_documents_that_are_in_the_prompt_are_found_there(reader, expected, order):
    """In whichever order they are passed; numbers are the caller's."""
    documents = [list(rows())[n] for n in order]
    cited = why.cite(reader, WHOLE, documents=documents, answer=ANSWER, **QUICK)
    assert [(one.id, one.score) for one in cited] == [(IDS[TEXTS.index(one.text)], one.score) for one in expected]
    assert {one.name: one.id for one in cited} == {f"document {n}": IDS[own] for n, own in enumerate(order, 1)}
    assert [one.name for one in cited.apart] == ["question"]
    same = why.cite(reader, why.Prompt.from_text(reader, WHOLE, ANSWER), documents=documents, **QUICK)
    assert [one.score for one in same] == [one.score for one in cited]


def test_a_document_that_the_prompt_leaves_out_is_named(reader):
    documents = [*rows(), ("lost-9", "The Boreas is late.", {})]
    cited = why.cite(reader, WHOLE, documents=documents, answer=ANSWER, **QUICK)
    assert len(cited) == 3
    assert any("did not read it: lost-9" in note for note in cited.notes)


def test_a_document_inside_another_and_twice_the_same():
    model = chat_decoder("documents")
    text = "the film is good. the plot\n\nthe plot\n\nthe plot\n\nis it good?"
    documents = [("b", "the plot"), ("a", "the film is good. the plot"), ("c", "the plot")]
    prompt = why.Prompt.from_text(model, text, documents=documents)
    found = {one.id: one.characters for one in prompt.regions if one.kind == "document"}
    assert found == {"a": (0, 26), "b": (28, 36), "c": (38, 46)}


def test_the_template_writes_documents_or_they_go_before_the_question():
    documents = [("one", "the film is good."), ("two", "the plot is a mess.")]
    by_template = why.cite(
        chat_decoder("documents"), [{"role": "user", "content": "a bad film?"}], documents=documents, answer="good.",
        **QUICK,
    )  # fmt: skip
    assert {one.id for one in by_template} == {"one", "two"}
    assert not any("put before" in note for note in by_template.notes)
    put = why.cite(
        chat_decoder("chatml"), [{"role": "user", "content": "a bad film?"}], documents=documents, answer="good.",
        **QUICK,
    )  # fmt: skip
    assert {one.id for one in put} == {"one", "two"} and [one.text for one in put.apart] == ["a bad film?"]
    assert any("put before" in note for note in put.notes)


@pytest.mark.parametrize("around", [lambda found: found, lambda found: {"query": "ships", "results": found}])
def test_a_tool_result_is_a_list_of_sources(reader, around):
    found = [{"id": id, "text": text, **facts} for id, text, facts in rows()]
    chat = [*MESSAGES, {"role": "tool", "content": json.dumps(around(found))}]
    cited = why.cite(reader, chat, answer=ANSWER, **QUICK)
    assert {one.id: one.metadata for one in cited} == dict(zip(IDS, METADATA, strict=True))
    for one in cited:
        assert json.loads(one.text)["id"] == one.id
    assert all(reader.tokenizer.decode(cited.prompt.ids[one.start : one.stop]).count('"id"') == 1 for one in cited)


def test_plain_tool_results_are_one_source_each(reader):
    chat = [*MESSAGES, *({"role": "tool", "content": text} for text in TEXTS)]
    cited = why.cite(reader, chat, answer=ANSWER, **QUICK)
    assert sorted(one.name for one in cited) == ["tool result 1", "tool result 2", "tool result 3"]
    assert {one.text for one in cited} == set(TEXTS)


def test_a_field_with_a_list_of_words_does_not_divide_a_result():
    chat = [{"role": "user", "content": "a bad film?"}, *({"role": "tool", "content": text} for text in ("good.", '{"a": ["the", "plot"]}'))]  # fmt: skip  # noqa: E501
    cited = why.cite(chat_decoder("chatml"), chat, answer="good.", **QUICK)
    assert sorted(one.text for one in cited) == ["good.", '{"a": ["the", "plot"]}']


REQUEST = {"model": "x", "messages": MESSAGES, "documents": [{"id": id, "text": text} for id, text, _ in rows()]}
ANSWERED = {"choices": [{"index": 0, "message": {"role": "assistant", "content": ANSWER}}]}
PAIRS = {
    "side by side": {**REQUEST, **ANSWERED},
    "request and response": {"request": REQUEST, "response": ANSWERED},
    "bodies": {"request": {"body": REQUEST}, "response": {"status_code": 200, "body": ANSWERED}},
    "documents beside": {
        "request": {"messages": MESSAGES}, "documents": REQUEST["documents"], "response": ANSWERED,
    },
    "parts": {
        "request": {**REQUEST, "messages": [{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}]}]},  # noqa: E501
        "response": {"choices": [{"message": {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]}}]},
    },
}  # fmt: skip


@pytest.mark.parametrize("form", [form for form in PAIRS if form != "parts"])
def test_requests_and_responses_give_the_same_citations(reader, form):
    expected = why.cite(reader, [*MESSAGES, {"role": "assistant", "content": ANSWER}], documents=REQUEST["documents"], **QUICK)  # fmt: skip  # noqa: E501
    cited = why.cite(reader, PAIRS[form], **QUICK)
    assert [(one.id, one.score, one.role) for one in cited] == [(one.id, one.score, one.role) for one in expected]


def test_content_parts_of_a_template_that_takes_them(reader):
    prompt = why.Prompt.from_log(reader, {"prompt": QUESTION, "documents": list(TEXTS), "choices": [{"text": ANSWER}]})
    parts = {"choices": [{"message": {"content": [{"type": "text", "text": ANSWER}]}}]}
    assert why.Prompt.from_log(reader, {"prompt": QUESTION, "documents": list(TEXTS), **parts}).ids == prompt.ids


def test_a_plain_completion_and_the_first_of_several_choices(reader, expected):
    record = {"prompt": [QUESTION], "documents": list(rows()), "choices": [{"text": ANSWER}, {"text": " salt"}]}
    cited = why.cite(reader, record, **QUICK)
    check_same(cited, expected)
    assert any("has 2 choices; the first" in note for note in cited.notes)


def test_objects_of_a_client(reader, expected):
    class Response:
        def model_dump(self):
            return {"choices": [{"text": ANSWER}]}

    record = {"request": {"prompt": QUESTION}, "response": Response(), "documents": list(rows())}
    check_same(why.cite(reader, record, **QUICK), expected)


def test_ids_and_metadata_are_saved_and_loaded(reader, tmp_path):
    odd = {"date": date(2026, 1, 2), "nested": {"a": [1, None, float("inf")]}, 3: "three"}
    documents = [(7, TEXTS[0], odd), *list(rows())[1:]]
    cited = why.cite(reader, QUESTION, documents=documents, answer=ANSWER, **QUICK)
    file = tmp_path / "c.json"
    cited.save(file)
    loaded = why.Citations.load(file)
    plain = {"date": "2026-01-02", "nested": {"a": [1, None, "inf"]}, "3": "three"}
    for one in (cited, loaded):
        first = next(c for c in one if c.text == TEXTS[0])
        assert (first.id, first.metadata) == ("7", plain)
    assert loaded.citations == cited.citations and loaded.prompt.regions == cited.prompt.regions


def test_sentences_have_the_id_of_their_document(reader):
    cited = why.cite(reader, QUESTION, "sentence", documents=list(rows()), answer=ANSWER, **QUICK)
    assert len(cited) == 5
    assert all(one.text in TEXTS[IDS.index(one.id)] for one in cited)


@pytest.mark.parametrize(
    ("documents", "match"),
    [
        ("The Aurora", "must be a list, got str"),
        ([], "documents is empty"),
        ([TEXTS[0], 7], "Document 2 is int"),
        ([TEXTS[0], {"title": "Ships"}], "Document 2 is dict with title"),
        (["", " \n"], "Document 1 has no text"),
        ([("a", "b", "c", "d")], "Document 1 is tuple"),
        ([TEXTS[0], None], "Document 2 is NoneType"),
    ],
)
def test_refuses_what_is_no_document(reader, documents, match):
    with pytest.raises(InputError, match=match):
        why.cite(reader, QUESTION, documents=documents, answer=ANSWER, **QUICK)


def test_a_prompt_without_any_of_the_documents_is_refused(reader):
    with pytest.raises(InputError, match="None of the documents occurs"):
        why.cite(reader, why.Prompt.from_text(reader, WHOLE, ANSWER), documents=["The Boreas is late."], **QUICK)


def test_a_list_of_prompts_gives_a_list_of_citations(reader, expected):
    record = {"prompt": QUESTION, "documents": list(rows()), "answer": ANSWER}
    prompts = [why.Prompt.from_text(reader, QUESTION, ANSWER, documents=list(rows())), record, record]
    found = why.cite(reader, prompts, **QUICK)
    assert len(found) == 3
    for one in found:
        check_same(one, expected)
    with pytest.raises(InputError, match="Prompt 2 of 2: The prompt has no answer"):
        why.cite(reader, [prompts[0], WHOLE], **QUICK)
    with pytest.raises(InputError, match="are for one prompt"):
        why.cite(reader, prompts, answer=ANSWER, **QUICK)
