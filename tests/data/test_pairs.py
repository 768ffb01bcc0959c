"""Pairs of texts from tables and lists: which columns, which content, and where the evidence is."""

import json

import pytest

from whyformer import TextPair
from whyformer.data import read
from whyformer.data.records import PAIR_COLUMNS

ROWS = [("anna sings", "someone sings", 0), ("a dog, asleep", "it runs", 2)]


def write_jsonl(folder, *rows):
    file = folder / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


@pytest.mark.parametrize("columns", PAIR_COLUMNS, ids="-".join)
def test_the_usual_names_of_two_columns_make_pairs(tmp_path, columns):
    rows = [dict(zip((*columns, "label"), row, strict=True)) for row in ROWS]
    for data in (read(write_jsonl(tmp_path, *rows)), read(rows)):
        assert [e.content for e in data.examples] == [TextPair(*row[:2]) for row in ROWS]
        assert [e.label for e in data.examples] == [0, 2]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_tables_of_every_format(tmp_path, suffix):
    file = tmp_path / f"pairs.{suffix}"
    if suffix == "parquet":
        import pyarrow
        import pyarrow.parquet

        table = {"premise": [r[0] for r in ROWS], "hypothesis": [r[1] for r in ROWS], "label": [r[2] for r in ROWS]}
        pyarrow.parquet.write_table(pyarrow.table(table), file)
    else:
        lines = ['premise,hypothesis,label\nanna sings,someone sings,0\n"a dog, asleep",it runs,2\n',
                 "premise\thypothesis\tlabel\nanna sings\tsomeone sings\t0\na dog, asleep\tit runs\t2\n"]  # fmt: skip
        file.write_text(lines[suffix == "tsv"], "utf-8")
    assert [(e.content, e.label) for e in read(file).examples] == [(TextPair(*r[:2]), r[2]) for r in ROWS]


def test_a_hugging_face_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    labels = datasets.ClassLabel(names=["entailment", "neutral", "contradiction"])
    features = datasets.Features(
        {"premise": datasets.Value("string"), "hypothesis": datasets.Value("string"), "label": labels}
    )
    rows = [{"premise": r[0], "hypothesis": r[1], "label": r[2]} for r in ROWS]
    data = read(datasets.Dataset.from_list(rows, features=features))
    assert [(e.content, e.label) for e in data.examples] == [
        (TextPair(*ROWS[0][:2]), "entailment"),
        (TextPair(*ROWS[1][:2]), "contradiction"),
    ]


def test_columns_that_are_named(tmp_path):
    file = write_jsonl(tmp_path, {"claim": "a", "source": "b", "premise": "c", "hypothesis": "d"})
    assert read(file, columns={"input": "claim", "pair": "source"}).examples[0].content == TextPair("a", "b")
    assert read(file, columns={"input": "premise"}).examples[0].content == "c"  # one text, as asked for
    assert read(file).examples[0].content == TextPair("c", "d")


def test_snli_has_a_sign_for_no_label(tmp_path):
    rows = [{"sentence1": "a", "sentence2": "b", "gold_label": label} for label in ("-", "neutral")]
    assert [e.label for e in read(write_jsonl(tmp_path, *rows)).examples] == [None, "neutral"]


def test_lists_of_pairs():
    pair = TextPair("anna sings", "someone sings")
    data = read([pair, (pair, "yes"), (("a", "b"), 1), ("a text", 0)])
    assert [(e.content, e.label) for e in data.examples] == [
        (pair, None), (pair, "yes"), (TextPair("a", "b"), 1), ("a text", 0)
    ]  # fmt: skip
    assert read([TextPair("a", "b c")]).fingerprint() != read([TextPair("a b", "c")]).fingerprint()


def test_a_pair_with_an_empty_or_missing_text_is_a_problem(tmp_path):
    rows = [{"premise": "a", "hypothesis": " "}, {"premise": "a"}, {"premise": "a", "hypothesis": 5},
            {"premise": "a", "hypothesis": "b"}]  # fmt: skip
    data = read(write_jsonl(tmp_path, *rows))
    assert [p.reason for p in data.problems] == [
        "hypothesis is empty", "hypothesis is empty", "hypothesis is not a text"
    ]  # fmt: skip
    assert len(data) == 1


@pytest.mark.parametrize(
    "rationale",
    [
        [[0, 4], [19, 24]],  # characters of both texts, joined by a line break
        {"premise": [[0, 4]], "hypothesis": [[8, 13]]},
        {"premise": [1, 0], "hypothesis": [0, 1]},
        [1, 0, 0, 1],
        json.dumps({"premise": [1, 0], "hypothesis": [0, 1]}),
    ],
    ids=["spans", "spans by text", "marks by text", "marks", "json"],
)
def test_evidence_in_both_texts(tmp_path, rationale):
    row = {"premise": "anna sings", "hypothesis": "someone sings", "rationale": rationale}
    example = read(write_jsonl(tmp_path, row)).examples[0]
    joined = "\n".join(example.content)
    assert [joined[a:b] for a, b in example.rationale] == ["anna", "sings"]
    assert example.rationale[1][0] >= len("anna sings")


def test_evidence_that_names_another_column(tmp_path):
    row = {"premise": "anna sings", "hypothesis": "b", "rationale": {"claim": [[0, 4]]}}
    with pytest.raises(Exception, match="'claim', which is not one of premise, hypothesis"):
        read(write_jsonl(tmp_path, row))


def test_the_answer_of_squad_is_the_evidence(tmp_path):
    row = {"question": "who sings?", "context": "today anna sings", "answers": {"text": ["anna", "she"],
           "answer_start": [6, 0]}}  # fmt: skip
    example = read(write_jsonl(tmp_path, row, row | {"answers": {"text": [], "answer_start": []}})).examples
    assert example[0].content == TextPair("who sings?", "today anna sings")
    assert ["\n".join(example[0].content)[a:b] for a, b in example[0].rationale] == ["anna"]
    assert example[1].rationale == ()


@pytest.mark.parametrize("answers", [["anna"], "anna", None], ids=["list", "text", "missing"])
def test_answers_of_another_kind_are_no_evidence(tmp_path, answers):
    data = read(write_jsonl(tmp_path, {"question": "who?", "context": "anna sings", "answers": answers}))
    assert data.examples[0].rationale is None and not data.problems


def test_an_answer_at_another_place_is_a_problem(tmp_path):
    answers = {"text": ["anna"], "answer_start": [2]}
    rows = [{"question": "who?", "context": "anna sings", "answers": a} for a in (answers, None)]
    data = read(write_jsonl(tmp_path, *rows))
    assert [p.reason for p in data.problems] == ["the answer 'anna' is not at character 2 of the context"]
