"""Odd command lines: a documented exit code, at most one line on stderr, no traceback."""

import os
import random as python_random
from pathlib import Path
from random import Random

import pytest
from attack.odd import SEED, make_random
from PIL import Image
from typer.testing import CliRunner

from whyformer.cli import app

CALLS = 1000
EXIT_CODES = {0, 2, 3, 4, 5, 6, 130}
MODELS = [
    "demo/untrained-vit",
    "demo/untrained-bert",
    "demo/nothing",
    "",
    "..",
    "/etc/passwd",
    "a/b/c",
    "\x00",
    "x" * 300,
]
WORDS = [
    "a gorgeous film", "", " ", "-", "--", "-x", "--nonsense", "\x1b[31m", "=1+1", "<b>", "../x", "/nodir/x.png",
    "\ud800", "a" * 3000, "rollout", "rollout(", "rollout(start=1)", "rollout(start=open('x'))", "no_such", "quick",
    "all", "0", "-1", "9" * 40, "1e9", "nan", "LABEL_0",
]  # fmt: skip
COMMANDS = ["explain", "compare", "inspect", "judge", "audit", "methods", "metrics", "reproduce", "generate", "no-such"]
OPTIONS = [
    "-m",
    "-t",
    "-s",
    "-o",
    "--versus",
    "--classes",
    "--words",
    "--json",
    "--debug",
    "-k",
    "--limit",
    "--help",
    "-a",
    "--draws",
    "--steps",
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with good and odd files, which is the current one."""
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (20, 30), "red").save("red.png")
    Path("text.png").write_text("no image")
    Path("empty.jpg").write_bytes(b"")
    Path("reviews.csv").write_text("text,label\na film,LABEL_0\nnot a film,LABEL_1\n")
    Path("broken.csv").write_bytes(b'text,label\n"unclosed,1\n\xff\xfe')
    Path("rows.jsonl").write_text('{"text": "a film"}\nnot json\n{"text": 3}\n')
    Path("notes.txt").write_text("a film\n")
    Path("photos").mkdir()
    Image.new("L", (8, 8)).save("photos/grey.png")
    os.mkfifo("photos/pipe.png")
    Path("runs").mkdir()
    Path("folder.html").mkdir()
    return tmp_path


FILES = [
    "red.png",
    "text.png",
    "empty.jpg",
    "reviews.csv",
    "broken.csv",
    "rows.jsonl",
    "notes.txt",
    "photos",
    "photos/pipe.png",
    "runs",
    ".",
]
OUTS = ["out.html", "out.png", "out.json", "out.nonsense", "/nodir/out.html", "folder.html", "runs", "red.png", ""]


def draw_arguments(random: Random) -> list[str]:
    command = random.choice(COMMANDS)
    arguments = [command]
    arguments += [random.choice([*FILES, *WORDS]) for _ in range(random.choice([0, 1, 1, 2]))]
    arguments += ["-M", random.choice(MODELS[:2] if random.random() < 0.7 else MODELS)] if random.random() < 0.9 else []
    for _ in range(random.choice([0, 1, 1, 2, 3])):
        option = random.choice(OPTIONS)
        arguments.append(option)
        if option not in ("--words", "--json", "--debug", "--help"):
            arguments.append(random.choice(OUTS if option == "-o" else [*WORDS, "1", "2"]))
    if command == "judge" and "-m" not in arguments:
        arguments += ["-m", "rollout"]
    if command == "audit":
        arguments += ["--draws", "2", "--steps", "2", "--searched", "1"]
    return arguments


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_every_command_line_ends_with_a_documented_code_and_one_line(folder, part):
    random, wrong = make_random(f"commands {part}"), []
    for number in range(CALLS // 5):
        arguments = draw_arguments(random)
        state = python_random.getstate()
        result = CliRunner().invoke(app, arguments, input="a film\n")
        problem = None
        if result.exit_code not in EXIT_CODES:
            problem = f"exit {result.exit_code} {result.exception!r}"
        elif "Traceback" in result.output and "--debug" not in arguments:
            problem = "traceback"
        elif (
            result.exit_code
            and "--debug" not in arguments
            and result.stderr.strip().count("\n") > 0
            and "error" not in result.stderr.splitlines()[-1]
        ):
            problem = "more than one line on stderr"
        elif "\x1b[31m" in result.output:
            problem = "escape sequence in the output"
        elif python_random.getstate() != state:
            problem = "the state of Python's random numbers moved"
        if problem:
            wrong.append(f"call {number}: {arguments}: {problem}: {result.stderr.strip()[-200:]}")
    assert not wrong, f"seed {SEED}, {len(wrong)} wrong\n" + "\n".join(wrong[:30])
