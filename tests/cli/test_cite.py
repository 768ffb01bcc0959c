"""whyformer cite: a prompt from a text, a file, a chat or tokens; table, files and refusals."""

import json

import pytest
from cli.pseudo_terminal import run_in_terminal
from typer.testing import CliRunner

import whyformer as why
from whyformer.cli import app

TEXT = "the keys are old.\nthe men near the door are late.\nthe cabinet is new.\nthe keys to the cabinet"
QUICK = ("--effort", "fast")


def run(*words):
    return CliRunner().invoke(app, ["cite", *(str(word) for word in words)])


def test_prints_what_the_answer_rests_on(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text(TEXT)
    shown = run(file, "--answer", " are old.", *QUICK)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("are old.\nThe answer was not measured: nothing was left out.\n")
    assert "passage 1 contains old" in shown.stdout and "what the\nanswer rests on is not known" in shown.stdout
    assert run(TEXT, "--answer", " are old.", *QUICK).stdout == shown.stdout
    measured = run(TEXT, "--answer", " are old.").stdout
    assert measured.startswith("are old. (hardly any)\nThe answer hardly rests on any source.\n")


def test_the_model_answers_itself_if_there_is_no_answer():
    shown = run(TEXT, "-n", 2, *QUICK, "--json")
    found = json.loads(shown.stdout)
    assert len(found["prompt"]["ids"]) - found["prompt"]["prompt_length"] == 2


@pytest.mark.parametrize("suffix", ["html", "json", "csv", "txt"])
def test_saves_what_is_asked_for(tmp_path, suffix):
    saved = tmp_path / f"c.{suffix}"
    assert run(TEXT, "--answer", " are old.", *QUICK, "-o", saved).exit_code == 0
    assert "passage 1" in saved.read_text("utf-8")


def test_takes_the_tokens_of_another_engine(tmp_path):
    given = why.Prompt.from_text("demo/decoder", "The keys are old. The men are late. The keys", " are old.")
    log = tmp_path / "log.json"
    ids = {"prompt_token_ids": given.ids[: given.prompt_length], "token_ids": given.answer_ids}
    log.write_text(json.dumps(ids))
    shown = run("--tokens", log, "--by", "sentence", *QUICK, "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["prompt"]["ids"] == list(given.ids)


@pytest.mark.parametrize(
    ("words", "code", "match"),
    [
        ([], 2, "--messages FILE or --tokens FILE, got nothing"),
        ([TEXT, "--tokens", "{log}"], 2, "got --tokens and INPUT"),
        (["--tokens", "{log}"], 3, "Pass prompt_token_ids, messages or prompt"),
        (["--messages", "{broken}"], 3, "is not valid JSON"),
        (["--tokens", "{whole}", "--answer", "a"], 2, "Leave --answer out"),
        ([TEXT, "--by", "chapter"], 2, "cannot be split by 'chapter'"),
        ([TEXT, "--answer", " are", "--select", "Paris"], 2, "does not occur in the answer"),
        ([TEXT, "-m", "rolout"], 2, "No method 'rolout'"),
        ([TEXT, "-o", "why.docx"], 2, "Unknown file format"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else None,
)
def test_refuses_what_it_cannot_read(tmp_path, words, code, match):
    files = {"log": '{"numbers": [1]}', "broken": "[", "whole": '{"prompt_token_ids": [1, 2], "token_ids": [3]}'}
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(content)
    places = {f"{{{name}}}": str(tmp_path / f"{name}.json") for name in files}
    shown = run(*(places.get(word, word) for word in words))
    assert shown.exit_code == code and match in shown.stderr


def test_documents_come_from_a_file_with_ids(tmp_path):
    """A JSON list, or one a line; the Markdown names them by id."""
    documents = [{"id": "keys", "text": "the keys are old."}, {"id": "men", "text": "the men are late."}]
    (tmp_path / "d.json").write_text(json.dumps(documents))
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, documents)))
    given = ("the keys to the cabinet", "--answer", " are old.", *QUICK)
    shown = [run(*given, "--documents", tmp_path / name) for name in ("d.json", "d.jsonl")]
    assert shown[0].exit_code == 0, shown[0].output
    assert shown[0].stdout == shown[1].stdout and "document 1 contains old" in shown[0].stdout
    assert run(*given, "--documents", tmp_path / "d.json", "-o", tmp_path / "c.md").exit_code == 0
    assert "| document 1 (keys) |" in (tmp_path / "c.md").read_text()
    (tmp_path / "d.json").write_text("[")
    assert "is not valid JSON" in run(*given, "--documents", tmp_path / "d.json").stderr


SOURCES = "\n\n".join(
    [*(f"The old keys of house number {n} hang beside the door of the cabinet." for n in range(3)), "the keys"]
)


@pytest.mark.parametrize(("effort", "forwards"), [("fast", "3 forwards;"), ("checked", "at most 14 forwards")])
def test_says_what_it_costs_in_a_terminal_before_it_begins(monkeypatch, effort, forwards):
    shown = run_in_terminal(monkeypatch, "cite", SOURCES, "--answer", " are old.", "--effort", effort)
    cost = f"{effort}: {forwards}"
    assert shown.status == 0 and cost in shown.text
    assert shown.text.index(cost) < shown.text.index("The answer")
    assert cost not in run(SOURCES, "--answer", " are old.", "--effort", effort).output  # nobody watches


def test_a_log_says_what_each_record_costs(monkeypatch, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"prompt": SOURCES, "answer": " are old."}) + "\n")
    shown = run_in_terminal(monkeypatch, "cite", str(log), "--effort", "fast", "-o", str(tmp_path / "run"))
    assert "fast: 3 forwards" in shown.text and "for each record" in " ".join(shown.text.split())


@pytest.mark.parametrize("columns", [80, 140])
def test_the_sentences_fit_the_terminal(monkeypatch, columns):
    shown = run_in_terminal(monkeypatch, "cite", SOURCES, "--answer", " hang beside the door.", columns=columns)
    assert shown.status == 0 and 0.8 * columns < shown.widest <= columns
    assert "The answer is made less likely by passage 1, passage 2 and passage 3." in shown.text.split("\n")
