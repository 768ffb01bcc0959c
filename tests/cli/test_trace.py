"""whyformer trace: an answer traced through generated tokens."""

import json

import pytest
from typer.testing import CliRunner

from whyformer import cli
from whyformer.cli.trace import split_after

PROGRAM = "k = 47 ; r = 12 ; c = k ; m = r ; print c :"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli.app, ["trace", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def error_of(*arguments: str, code: int) -> str:
    result = CliRunner().invoke(cli.app, ["trace", *arguments])
    assert result.exit_code == code, result.output
    return result.stderr


def test_traces_what_the_model_generates(tmp_path):
    out = tmp_path / "hops.json"
    printed = run(PROGRAM, "--select", "-1", "--by", ";", "-o", str(out))
    assert (
        printed.startswith("Where does '47' come from? (by cp_lrp)")
        and "passage 1: k = 47 ;" in printed
        and "to generated" in printed
    )
    stored = json.loads(out.read_text())
    assert stored["text"].split() == (PROGRAM + " c = k ; k = 47 ; answer 47").split()
    assert [region["name"] for region in stored["regions"]] == [f"passage {i}" for i in (1, 2, 3, 4, 5)]


def test_traces_a_given_answer_as_json():
    stored = json.loads(run(PROGRAM, "--answer", " c = k ; k = 47 ; answer 47", "--hops", "1", "--health", "--json"))
    assert len(stored["hops"]) == 2 and stored["hops"][1]["absorbed_by"]
    assert stored["tokens"][-1].strip() == "47"


def test_explains_a_part_of_the_answer():
    assert run(PROGRAM, "--select", "k = 47", "--hops", "0").startswith("Where does 'k = 47' come from?")


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--select", "99"], "There is no token 99 in the answer", 2),
        (["--select", "nothing"], "does not occur in the answer", 2),
        (["-m", "rollout"], "Use one of: attnlrp, cp_lrp, lrp_gamma", 2),
        (["--by", "pasage"], "cannot be split by 'pasage'", 2),
        (["--hops", "-1"], "--hops", 2),
    ],
)
def test_refuses_what_cannot_be_traced(arguments, message, code):
    assert message in " ".join(error_of(PROGRAM, *arguments, code=code).split())


@pytest.mark.parametrize(
    ("text", "parts"),
    [("a ; b ; c", ["a ;", " b ;", " c"]), ("a ;", ["a ;"]), ("a", ["a"]), ("a ;; b", ["a ;", ";", " b"])],
)
def test_regions_end_with_a_sign(text, parts):
    assert [text[start:stop] for start, stop in split_after(";", text)] == parts


def test_a_file_is_read_and_its_name_is_not_explained(tmp_path):
    """And its last line break, which an editor adds, is not part of the prompt."""
    file = tmp_path / "program.txt"
    file.write_text(PROGRAM + "\n")
    assert run(str(file), "--select", "-1", "--by", ";") == run(PROGRAM, "--select", "-1", "--by", ";")
    assert "would overwrite the input" in error_of(str(file), "-o", str(file), code=4)
