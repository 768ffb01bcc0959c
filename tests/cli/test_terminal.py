"""What a person sees on a terminal: colours and not their codes, whatever the tokens, labels and names contain."""

import json
import re
import subprocess
import sys

import pytest
from cli.pseudo_terminal import Shown, run_in_terminal
from PIL import Image

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\r"
TEXT = "a gorgeous film"
ON_A_TEXT = [TEXT, "-M", "demo/sentiment"]
FILMS = "text,label\na good film,positive\na bad film,negative\nthe cast is charming,positive\ndull and slow,negative\n"
PROMPT = "the doors are old\n\nthe walls are old\n\nthe keys to the cabinet"
# Every command that prints a result, as short as it goes.
COMMANDS = {
    "explain": ["explain", *ON_A_TEXT, "-o", "why.html"],
    "explain an image": ["explain", "-M", "demo/shapes", "red.png", "-m", "rollout", "-o", "why.png"],
    "explain --health": ["explain", *ON_A_TEXT, "-m", "attnlrp", "--health"],
    "explain --answer": ["explain", "the keys", "--answer", " are gone", "-o", "answer.csv"],
    "explain --classes": ["explain", *ON_A_TEXT, "--classes", "2", "-m", "attcat", "-o", "classes.html"],
    "compare": ["compare", *ON_A_TEXT, "-m", "rollout", "-m", "libragrad", "-o", "compared.html"],
    "similarity": ["similarity", "a quiet basket", "my basket is old", "-o", "alike.json"],
    "generate": ["generate", "the keys to the cabinet", "-n", "2", "-o", "generated.html"],
    "inspect": ["inspect", *ON_A_TEXT, "-o", "heads.html"],
    "cite": ["cite", "prompt.txt", "--answer", " are", "--by", "paragraph", "--effort", "thorough", "-o", "cited.csv"],
    "trace": ["trace", "k = 47 ; print k :", "--answer", " k = 47 ; answer 47", "--hops", "1", "-o", "hops.json"],
    "judge": ["judge", "films.csv", "-M", "demo/sentiment", "-m", "rollout", "-k", "aopc", "-o", "judged"],
    "audit": ["audit", "films.csv", "-M", "demo/sentiment", "--test", "replacement", "--samples", "2", "-o", "audited"],
    "bulk": ["bulk", "films.csv", "-M", "demo/sentiment", "-m", "rollout", "--workers", "1", "-o", "run"],
    "bulk-summary": ["bulk-summary", "run", "--no-test", "-o", "summary.html"],
    "compare-runs": ["compare-runs", "run", "run", "-o", "changes.html"],
    "doctor": ["doctor", "demo/sentiment", "-m", "rollout", "-o", "doctor.txt"],
    "reproduce": ["reproduce"],
    "reproduce --published": ["reproduce", "chefer", "--published"],
    "methods": ["methods"],
    "metrics": ["metrics"],
    "--help": ["--help"],
}
SLOW_COMMANDS = {
    "audit with other attention": [
        "audit",
        TEXT,
        "dull",
        "-M",
        "demo/sentiment",
        "--test",
        "adversarial",
        "-o",
        "other",
    ],
    "demo": ["demo", "-o", "demo.html"],
}
WITHOUT_COLOURS = {"audit", "bulk", "metrics"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "films.csv").write_text(FILMS)
    (tmp_path / "prompt.txt").write_text(PROMPT)
    Image.new("RGB", (48, 48), "red").save(tmp_path / "red.png")
    return tmp_path


def assert_readable(shown: Shown, columns: int) -> None:
    assert shown.status == 0, shown.text
    assert "x1b" not in shown.text and shown.text.replace("\n", "").isprintable()
    assert shown.widest <= columns, max(shown.text.split("\n"), key=len)


@pytest.mark.parametrize("columns", [80, pytest.param(120, marks=pytest.mark.slow)])
def test_every_command_shows_colours_and_no_codes_and_fits(columns, folder, monkeypatch):
    for name, arguments in (COMMANDS | (SLOW_COMMANDS if columns == 120 else {})).items():
        shown = run_in_terminal(monkeypatch, *arguments, columns=columns)
        assert_readable(shown, columns)
        assert bool(re.search(r"\x1b\[[1-9][0-9;]*m", shown.raw)) == (name not in WITHOUT_COLOURS), name
        if "-o" in arguments:
            out = arguments[-1]
            assert (folder / out).exists() and re.search(rf"^saved {out}$", shown.text, re.MULTILINE), name


@pytest.mark.parametrize(
    "environment", [{"NO_COLOR": "1"}, {"term": "dumb"}, {"term": "unknown", "NO_COLOR": "1"}], ids=str
)
def test_no_codes_at_all_without_colours(environment, folder, monkeypatch):
    for arguments in (COMMANDS["explain"], COMMANDS["compare"], COMMANDS["explain an image"]):
        shown = run_in_terminal(monkeypatch, *arguments, **environment)
        assert_readable(shown, 80)
        assert not re.search(r"\x1b\[[0-9;]*[34]8", shown.raw)


def test_colours_can_be_forced_into_a_pipe(monkeypatch, capsys):
    from whyformer.cli import app

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    with pytest.raises(SystemExit):
        app(["explain", *ON_A_TEXT])
    printed = capsys.readouterr().out
    assert "\x1b[38;5;" in printed and r"\x1b" not in printed


@pytest.mark.slow
def test_a_pipe_gets_no_codes_from_a_terminal_session(folder):
    """The real program: standard error is a terminal, standard output is not."""
    command = f"{sys.executable} -m whyformer.cli explain '{TEXT}' -M demo/sentiment -o why.html | cat > out.txt"
    done = subprocess.run(["script", "-qec", command, "/dev/null"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "saved why.html" in done.stdout
    assert (folder / "out.txt").read_text().startswith("positive (99.1%), by libragrad\n")


def test_the_real_program_on_a_real_terminal(folder):
    command = f"stty cols 80; TERM=xterm-256color {sys.executable} -m whyformer.cli explain '{TEXT}' -M demo/sentiment"
    done = subprocess.run(["script", "-qec", command, "/dev/null"], capture_output=True, timeout=120)
    shown = Shown(done.stdout.decode(), done.returncode)
    assert_readable(shown, 80)
    assert shown.raw.count("\x1b[") > 20
    assert shown.text.startswith(
        "positive (99.1%), by libragrad\nNext likeliest: negative 0.9%.\n[CLS] a gorgeous film [SEP]\n"
    )


# --- hostile content --------------------------------------------------------------------------------------------------


def assert_harmless(shown: Shown) -> None:
    assert shown.status in (0, 6), shown.text
    assert shown.text.replace("\n", "").isprintable(), repr(shown.text)
    assert "\x1b[2J" not in shown.raw and "\x1b]" not in shown.raw


@pytest.mark.parametrize("environment", [{}, pytest.param({"NO_COLOR": "1"}, marks=pytest.mark.slow)], ids=str)
def test_hostile_tokens_and_names_stay_harmless(environment, folder, monkeypatch):
    (folder / f"films{EVIL}.csv").write_text(FILMS.replace("good", f"good {EVIL}"), newline="")
    Image.new("RGB", (48, 48), "red").save(f"red{EVIL}.png")
    judged = ["-m", "rollout", "-k", "aopc"]
    by_paragraph = ["--by", "paragraph", "--effort", "checked"]
    for arguments in (
        ["explain", f"a {EVIL} film", "-M", "demo/sentiment", "-o", f"why{EVIL}.html"],
        ["explain", f"red{EVIL}.png", "-M", "demo/shapes", "-m", "rollout"],
        ["compare", f"a {EVIL} film", "-M", "demo/sentiment", "-m", "rollout", "-m", "libragrad"],
        ["similarity", f"a {EVIL} basket", "my basket", "-o", f"alike{EVIL}.json"],
        ["generate", f"the {EVIL} keys", "-n", "1"],
        ["cite", f"the {EVIL} doors\n\nwalls\n\nkeys", "--answer", f" {EVIL} are", *by_paragraph],
        ["judge", f"films{EVIL}.csv", "-M", "demo/sentiment", *judged, "-o", f"judged{EVIL}"],
        ["audit", f"films{EVIL}.csv", "-M", "demo/sentiment", "--test", "replacement", "--samples", "2"],
        ["bulk", f"films{EVIL}.csv", "-M", "demo/sentiment", "-m", "rollout", "--workers", "1", "-o", f"run{EVIL}"],
        ["bulk-summary", f"run{EVIL}", "--no-test", "-o", f"summary{EVIL}.txt"],
        ["compare-runs", f"run{EVIL}", f"run{EVIL}", "-o", f"changes{EVIL}.txt"],
    ):
        shown = run_in_terminal(monkeypatch, *arguments, **environment)
        assert_harmless(shown)
        assert r"\x1b" in shown.text or arguments[0] in ("compare", "audit"), shown.text  # spelled out, not lost
    assert (folder / f"summary{EVIL}.txt").read_text().replace("\n", "").isprintable()


def test_a_hostile_label_and_model_stay_harmless(folder, monkeypatch):
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    labels = {0: f"cat{EVIL}", 1: f"dog{EVIL}"}
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8,
        id2label=labels, label2id={label: i for i, label in labels.items()},
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(f"vit{EVIL}")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(f"vit{EVIL}")
    for arguments in (["explain", "red.png"], ["inspect", "red.png"], ["compare", "red.png", "-m", "rollout"]):
        assert_harmless(run_in_terminal(monkeypatch, *arguments, "-M", f"vit{EVIL}"))
    assert_harmless(run_in_terminal(monkeypatch, "doctor", f"vit{EVIL}", "red.png", "-m", "rollout"))


def test_json_on_a_terminal_is_json(folder, monkeypatch):
    shown = run_in_terminal(monkeypatch, "explain", f"a {EVIL} film", "-M", "demo/sentiment", "--json", "-o", "why.svg")
    body, saved = shown.text.rstrip("\n").rsplit("\n", 1)
    assert json.loads(body)["model"] == "demo/sentiment" and saved == "saved why.svg" and "\x1b" not in shown.text
