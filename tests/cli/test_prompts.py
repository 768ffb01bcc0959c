"""Prompts on the command line: answers, chats, logs of other engines, and what is refused."""

import json

import pytest
from chat_templates import make_chat_tokenizer
from tiny_text import gpt2
from typer.testing import CliRunner

from whyformer.cli import app
from whyformer.cli.gathering import read_text_file

TEXT = "the keys to the cabinet"


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    tokenizer = make_chat_tokenizer("chatml")
    gpt2(vocab_size=len(tokenizer), n_positions=128).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return path


def test_an_answer_to_a_text_and_to_a_file(tmp_path):
    shown = run("explain", TEXT, "--answer", " are old", "-t", "are", "--versus", "is", "-m", "attnlrp")
    assert shown.exit_code == 0 and shown.stdout.startswith("'are' rather than 'is'")
    file = write(tmp_path / "prompt.txt", TEXT)
    same = run("explain", "--prompt", file, "--answer", " are old", "-t", "answer-text:are/versus:is", "-m", "attnlrp")
    assert same.stdout == shown.stdout


def test_messages_and_a_log(tmp_path, chat_model):
    messages = [{"role": "user", "content": "the film"}, {"role": "assistant", "content": "is good"}]
    shown = run("explain", "--messages", write(tmp_path / "m.json", messages), "-M", chat_model, "-m", "attnlrp")
    assert shown.exit_code == 0 and shown.stdout.startswith("'is good'")
    record = {"messages": messages[:1], "choices": [{"message": messages[1]}]}
    logged = run(
        "explain", "--messages", write(tmp_path / "r.json", record), "-M", chat_model, "-m", "attnlrp", "--json"
    )
    assert json.loads(logged.stdout)["targets"][0]["label"] == "'is good'"


def test_tokens_of_another_engine_and_its_log_probabilities(tmp_path):
    record = {"prompt_token_ids": [30, 31, 32], "token_ids": [325, 602], "logprobs": [-0.1, -0.2]}
    saved = tmp_path / "scores.csv"
    shown = run("explain", "--tokens", write(tmp_path / "t.json", record), "-m", "attnlrp", "-o", saved)
    assert shown.exit_code == 0 and "The log disagrees" in shown.stdout
    assert saved.read_text("utf-8").count("\n") == 1 + 5


def test_generate_draws_and_explains_the_whole(tmp_path):
    drawn = [run("generate", TEXT, "-n", 3, "--temperature", 2, "--seed", seed, "-m", "rollout") for seed in (1, 1, 2)]
    assert drawn[0].stdout == drawn[1].stdout != drawn[2].stdout
    file = write(tmp_path / "prompt.txt", TEXT)
    whole = run("generate", "--prompt", file, "-n", 3, "--whole", "-m", "attnlrp")
    assert whole.exit_code == 0 and whole.stdout.startswith("'have changed.'")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "--answer", "x"], "got nothing"),
        (["explain", "a", "b", "--answer", "x"], "got 2 texts"),
        (["explain", "a", "--tokens", "t.json"], "got --tokens and INPUT"),
        (["explain", "--tokens", "t.json", "--answer", "x"], "--tokens has the answer in its file"),
        (["explain", "a", "--answer", "x", "--pair", "b"], "--pair cannot be combined with a prompt. Leave it out."),
        (
            ["explain", "a", "--answer", "x", "-m", "rollout", "-m", "attcat"],
            "Several methods cannot be combined with a",
        ),
        (["explain", "--tokens", "missing.json"], "Cannot read 'missing.json'"),
        (["generate"], "A prompt is one text"),
        (["generate", "a", "--top-p", "0"], "top_p must be above 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(words, message):
    refused = run(*words)
    assert refused.exit_code in (2, 3, 5) and message in refused.stderr


def test_files_that_are_no_prompt_are_refused(tmp_path):
    broken = run("explain", "--messages", write(tmp_path / "m.json", "{"))
    assert broken.exit_code == 3 and "is not valid JSON" in broken.stderr
    number = run("explain", "--tokens", write(tmp_path / "t.json", "3"))
    assert number.exit_code == 3 and "A log must be a dictionary, got int" in number.stderr
    without = run("explain", "--messages", write(tmp_path / "n.json", [{"role": "user", "content": "a"}]))
    assert without.exit_code == 3 and "has no chat template" in without.stderr


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_one_line_break_at_the_end_of_a_file_is_left_out(tmp_path, end):
    file = tmp_path / "prompt.txt"
    file.write_bytes((TEXT + end).encode())
    for words in (["generate", "-n", 2, "--whole"], ["explain", "--answer", " are", "-M", "demo/decoder"]):
        assert run(*words, file).stdout == run(*words, TEXT).stdout != ""
    assert read_text_file(str(file)) == TEXT
    file.write_text(f"{TEXT}\n\n")
    assert read_text_file(str(file)) == f"{TEXT}\n"  # exactly one
