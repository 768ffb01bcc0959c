"""Pairs of texts on the command line: --pair, and tables with two text columns."""

import json

import pytest
from typer.testing import CliRunner

from whyformer.cli import app
from whyformer_papers.worlds import entailment

FIRST, SECOND = "the lamp is still old. it looks wet.", "the lamp is wet."


def run(*words, stdin=None):
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def test_explain_takes_the_second_text(tmp_path):
    shown = run("explain", FIRST, "--pair", SECOND, "-M", "demo/entailment", "-m", "attcat")
    assert shown.exit_code == 0 and "second text:" in shown.stdout and "entailment" in shown.stdout
    file = tmp_path / "second.txt"
    file.write_text(SECOND)
    saved = tmp_path / "pair.csv"
    assert run("explain", FIRST, "--pair", file, "-M", "demo/entailment", "-m", "attcat", "-o", saved).exit_code == 0
    assert saved.read_text("utf-8").count("\n") == 1 + 3 + 10 + 5


def test_one_second_text_for_all_inputs_or_one_each():
    for seconds in ([SECOND], [SECOND, "the lamp is dry."]):
        pairs = [word for second in seconds for word in ("--pair", second)]
        shown = run("explain", "-", *pairs, "-M", "demo/entailment", "-m", "attcat", stdin=f"{FIRST}\n{FIRST}\n")
        assert shown.exit_code == 0 and shown.stdout.count("second text:") == 2
    assert "contradiction" in shown.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([FIRST, "--pair", SECOND, "--pair", "a", "--pair", "b"], "Got --pair 3 times for 1 inputs"),
        (["--pair", SECOND], "Pass the first one too"),
        ([FIRST, "--pair", " "], "The second text of the pair is empty"),
    ],
    ids=["too many", "no first", "blank"],
)
def test_pairs_that_are_refused(words, message):
    refused = run("explain", *words, "-M", "demo/entailment", "-m", "attcat")
    assert refused.exit_code in (2, 3) and message in refused.stderr


def test_images_have_no_pairs():
    refused = run("explain", "cat.jpg", "--pair", "a", "-M", "demo/shapes", "-m", "attcat")
    assert refused.exit_code == 2 and "--pair is for texts, but demo/shapes takes images" in refused.stderr


def test_compare_and_classes_take_pairs():
    shown = run("compare", FIRST, "--pair", SECOND, "-M", "demo/entailment", "-m", "attcat", "-m", "rollout")
    assert shown.exit_code == 0 and "attcat" in shown.stdout
    assert run("explain", FIRST, "--pair", SECOND, "-M", "demo/entailment", "--classes", 2).exit_code == 0


@pytest.mark.slow
def test_judge_reads_a_table_of_pairs(tmp_path):
    file = tmp_path / "pairs.jsonl"
    rows = [
        {"premise": p.premise, "hypothesis": p.hypothesis, "label": p.label, "rationale": p.rationale}
        for p in entailment.generate(6, 0)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = run("judge", file, "-M", "demo/entailment", "-m", "attcat", "-k", "answer_tokens(k=5)")
    assert judged.exit_code == 0 and "answer_tokens" in judged.stdout
