"""Logs: every record is a row, whatever is wrong with it; a run resumes, grows, and is summed up."""

import json
import os
import signal
import time
from functools import partial

import pytest
from bulk.child import start_child, wait_for
from cite.log_inputs import MALFORMED, OK, write_log
from typer.testing import CliRunner

import whyformer as why
from whyformer._cite.log import LogLine, read_log, tell_apart
from whyformer._cite.log_summary import summarise_rows
from whyformer.cli import app
from whyformer.errors import CODES, InputError, MethodError, OutputError

QUICK = {"effort": "fast", "workers": 1}


@pytest.fixture(scope="module")
def model():
    return why.open("demo/reader")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """Fifteen records, of which three are malformed."""
    return write_log(tmp_path_factory.mktemp("log") / "log.jsonl", 15, 3)


@pytest.fixture(scope="module")
def run(model, log, tmp_path_factory):
    return why.cite_log(model, log, out=tmp_path_factory.mktemp("run") / "log", shard=4, workers=1)


def test_every_record_is_a_row_in_order(log, run):
    rows = list(run.rows())
    assert [row["line"] for row in rows] == list(range(1, 16)) == [row["position"] + 1 for row in rows]
    lines = log.read_bytes().splitlines()
    for row, line in zip(rows, lines, strict=True):
        if row["error"] is None:
            assert row["id"] == json.loads(line).get("id", f"line {row['line']}")
    assert [row["line"] for row in rows if row["error"]] == [5, 10, 15]
    assert (run.items, run.failed, run.computed) == (15, 3, 15)


def test_a_row_says_what_cite_says(model, log, run):
    row = next(iter(run.rows()))
    with why.engine(plan=False):  # as runs that can be resumed do
        cited = why.cite(model, json.loads(log.read_text("utf-8").splitlines()[0]))
    stored = json.loads(row["citations"])
    names = ("name", "id", "score", "share", "role", "metadata")
    assert [[one[name] for name in names] for one in stored] == [
        [getattr(one, name) for name in names] for one in cited
    ]
    assert (row["answer"], row["log_odds"]) == (cited.prompt.answer_text, cited.log_odds)
    assert (row["how"], tuple(row["rests_on"])) == (cited.claim.how, cited.claim.rests_on)


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_record_is_an_error_record(model, tmp_path, kind):
    """With a code, a line and a sentence; the record after it is cited."""
    bad = MALFORMED[kind]
    file = tmp_path / "log.jsonl"
    line = bad if isinstance(bad, bytes) else json.dumps(bad).encode()
    file.write_bytes(b"\n" + line + b"\n" + json.dumps(OK).encode() + b"\n")
    first, second = why.cite_log(model, file, out=tmp_path / "run", **QUICK).rows()
    assert (first["id"], first["line"], second["line"]) == ("line 2", 2, 3)
    assert first["error"] in CODES and first["error"] != "E_INTERNAL" and len(first["message"]) > 10
    assert first["citations"] is None and second["error"] is None


def test_ids_that_occur_twice_are_told_apart():
    assert tell_apart([("a", 1), ("b", 2), ("a", 3), ("a (line 3)", 4), ("a", 5)]) == [
        "a", "b", "a (line 3)", "a (line 3) (line 4)", "a (line 5)",
    ]  # fmt: skip
    records = [{**OK, "id": 7}, {**OK, "custom_id": "7"}, {**OK, "id": " "}, {**OK, "id": None}, OK]
    assert [one.name for one in read_log(records).examples] == ["7", "7 (line 2)", "line 3", "line 4", "line 5"]


def test_lines_are_counted_as_editors_do(tmp_path):
    """A byte order mark, Windows line ends, blank lines; separators of Unicode are no line ends."""
    file = tmp_path / "log.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n{"b": "x\xe2\x80\xa8y"}')
    found = [one.content for one in read_log(file).examples]
    assert [(line.number, line) for line in found] == [(1, '{"a": 1}'), (4, '{"b": "x\u2028y"}')]
    assert isinstance(found[0], LogLine)


def test_records_in_memory_may_hold_documents_of_libraries(model, tmp_path):
    from cite.documents_held import ANSWER, FORMS, IDS, QUESTION

    records = [
        {"prompt": QUESTION, "documents": FORMS[form](), "answer": ANSWER}
        for form in ("attributes of LangChain", "NodeWithScore", "tuples")
    ]
    rows = list(why.cite_log(model, [*records, {"prompt": object()}], out=tmp_path / "run", **QUICK).rows())
    assert [row["error"] for row in rows] == [None, None, None, "E_DATA"]
    found = [[(one["id"], one["score"]) for one in json.loads(row["citations"])] for row in rows[:3]]
    assert found[0] == found[1] == found[2] and {id for id, _ in found[0]} == set(IDS)


def test_the_same_call_computes_nothing_and_another_is_refused(model, log, run):
    again = why.cite_log(model, log, out=run.folder, workers=1)
    assert (again.computed, again.failed) == (0, 3)
    with pytest.raises(OutputError, match="another cited log: methods cite by"):
        why.cite_log(model, log, out=run.folder, by="sentence", workers=1)


def test_a_log_grows(model, tmp_path):
    file = write_log(tmp_path / "log.jsonl", 6)
    why.cite_log(model, file, out=tmp_path / "run", shard=4, **QUICK)
    before = list(why.cite_log(model, file, out=tmp_path / "run", **QUICK).rows())
    with file.open("a") as more:
        more.write(json.dumps({**OK, "id": "new"}) + "\n")
    with pytest.raises(OutputError, match="grow=True"):
        why.cite_log(model, file, out=tmp_path / "run", **QUICK)
    grown = why.cite_log(model, file, out=tmp_path / "run", grow=True, **QUICK)
    assert grown.computed == 1
    rows = list(grown.rows())
    assert rows[:6] == before and rows[6]["id"] == "new"


def test_failed_records_are_tried_again(model, log, run):
    again = why.cite_log(model, log, out=run.folder, retry_failed=True, workers=1)
    assert (again.computed, again.failed) == (3, 3)


def test_ctrl_c_loses_nothing(log, tmp_path, model):
    out = tmp_path / "run"
    call = partial(why.cite_log, model, log, out=out, shard=2, **QUICK)
    child = start_child(call)
    while not list(out.glob("parts/*.parquet")):
        time.sleep(0.05)
    os.kill(child, signal.SIGINT)
    assert wait_for(child) in (0, 130)
    done = {path.name: path.read_bytes() for path in out.glob("parts/*.parquet")}
    finished = call()
    assert [row["line"] for row in finished.rows()] == list(range(1, 16))
    assert finished.computed == 15 - 2 * len(done)
    assert all((out / "parts" / name).read_bytes() == part for name, part in done.items())


# --- the summary ------------------------------------------------------------------------------------------------------


def test_the_summary_counts_what_the_rows_say(run):
    found, rows = run.summarise(), list(run.rows())
    assert (found.count, found.cited) == (15, 12)
    assert sum(one.count for one in found.errors) == 3 and {one.line for one in found.errors} <= {5, 10, 15}
    sources = [one for row in rows if row["citations"] for one in json.loads(row["citations"])]
    assert sum(one.offered for one in found.documents) == len(sources)
    needed = {
        source["id"]
        for row in rows
        for source in json.loads(row["citations"] or "[]")
        if source["name"] in row["rests_on"]
    }
    assert needed and needed == {one.key for one in found.documents if one.used}
    assert sum(found.answers.values()) == 12 and found.answers["one"] > 6
    assert all(one.tried == one.offered for one in found.documents)
    saved = json.loads((run.folder / "summary.json").read_text())
    assert saved["never_used"] == [one.key for one in found.never_used] and saved["records"] == 15
    assert "Documents never used" in (run.folder / "summary.html").read_text()
    assert "15 records: 12 cited, 3 with an error." in str(found)
    assert (
        [one["key"] for one in found.records()]
        == list(found.to_pandas()["key"])
        == [one.key for one in found.documents]
    )


def test_documents_are_called_unused_only_where_they_were_left_out(model, tmp_path):
    file = write_log(tmp_path / "log.jsonl", 3)
    found = why.cite_log(model, file, out=tmp_path / "run", **QUICK).summarise()
    assert found.documents and found.never_used == [] and "None was left out" in str(found)
    assert found.answers == {} and found.rates["no_source"] == (0, 0)


def test_abstentions_marks_and_sentences_without_a_source_are_counted_apart():
    def row(line, kind, how, *sentences):
        told = [
            {"text": "It is.", "kind": "claim", "how": "one", "rests_on": [], "around": [], "marks": [], **one}
            for one in sentences
        ]
        return {
            "id": str(line), "line": line, "error": None, "kind": kind, "how": how, "rests_on": [],
            "sentences": json.dumps(told), "citations": "[]",
        }  # fmt: skip

    found = summarise_rows(
        [
            row(1, "claim", "one", {"marks": [{"finding": "right"}, {"finding": "no such number"}]}, {"around": [1]}),
            row(2, "claim", "hardly any", {"how": "hardly any"}, {"how": "", "kind": "greeting"}),
            row(3, "abstention", "", {"how": "", "kind": "abstention"}),
            {"id": "4", "line": 4, "error": "E_DATA", "message": "no"},
        ]
    )
    assert found.rates == {
        "no_source": (1, 3), "borderline": (1, 3), "abstentions": (1, 3), "wrong_marks": (1, 2),
        "missing_marks": (1, 2), "errors": (1, 4),
    }  # fmt: skip
    assert [one.line for one in found.unsourced] == [2] and found.answers == {"one": 1, "hardly any": 1}
    for condition, holds in {
        "no_source > 5%": True, "no_source>33.4%": False, "no_source > 1": False, "no_source >= 1": True,
        "errors >= 25 %": True, "errors > 25%": False,
    }.items():  # fmt: skip
        assert found.fails(condition) == holds, condition


@pytest.mark.parametrize("condition", ["no_source", "no_sauce > 5%", "no_source < 5%", "5% > no_source", ""])
def test_a_condition_that_cannot_be_read_is_refused(condition):
    with pytest.raises(InputError, match=r"no condition, such as"):
        why.LogSummary(1, 1).fails(condition)


def test_the_gate_has_an_exit_status_of_its_own(tmp_path):
    file, out = write_log(tmp_path / "log.jsonl", 3), str(tmp_path / "run")
    words = ["cite", str(file), "-M", "demo/reader", "-o", out, "--workers", "1", "--effort", "fast", "--fail-if"]
    assert CliRunner().invoke(app, [*words, "errors > 0"]).exit_code == 0
    assert CliRunner().invoke(app, [*words, "errors >= 0"]).exit_code == 8
    refused = CliRunner().invoke(app, [*words, "error > 0"])
    assert refused.exit_code == 2 and "Did you mean 'errors'" in " ".join(refused.stderr.split())
    single = CliRunner().invoke(app, ["cite", "a.\n\nb.\n\nc?", "--fail-if", "errors > 0"])
    assert single.exit_code == 2 and "is for a log" in single.stderr


def test_the_command_prints_the_summary(log, tmp_path):
    words = ["cite", str(log), "-M", "demo/reader", "-o", str(tmp_path / "run"), "--workers", "1", "--effort"]
    shown = CliRunner().invoke(app, [*words, "fast"])
    assert shown.exit_code == 6, shown.output
    assert "15 records: 12 cited, 3 with an error." in shown.stdout
    again = CliRunner().invoke(app, [*words, "fast", "--json"])
    assert json.loads(again.stdout)["cited"] == 12


@pytest.mark.parametrize(
    ("words", "code", "match"),
    [
        ([], 2, "Name a folder for its rows"),
        (["-o", "x.html"], 4, "looks like a file"),
        (["-o", "run", "--answer", "tea"], 2, "Leave out --answer"),
        (["-o", "run", "--documents", "d.json"], 2, "Leave out --documents"),
    ],
)
def test_the_command_refuses_what_a_log_has_no_use_for(log, words, code, match):
    shown = CliRunner().invoke(app, ["cite", str(log), *words])
    assert shown.exit_code == code and match in " ".join(shown.stderr.split())


def test_what_every_record_would_fail_with_is_refused(model, log, tmp_path):
    with pytest.raises(MethodError):
        why.cite_log(model, log, out=tmp_path / "run", method="rolout", **QUICK)
    with pytest.raises(InputError, match="cannot be split by"):
        why.cite_log(model, log, out=tmp_path / "run", by="chapter", **QUICK)
    with pytest.raises(InputError, match="no records"):
        why.cite_log(model, [], out=tmp_path / "run", **QUICK)
    with pytest.raises(InputError, match="Cannot read"):
        why.cite_log(model, tmp_path / "none.jsonl", out=tmp_path / "run", **QUICK)
    assert not list((tmp_path / "run").glob("parts/*"))
