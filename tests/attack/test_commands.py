"""Odd command lines: a documented exit code, one line on stderr with its code, no traceback, no harm to any file."""

import json
import os
import random as python_random
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from attack.found import Found
from attack.odd import SEED, SIZE, make_random
from PIL import Image
from typer.testing import CliRunner

from whyformer.cli import app
from whyformer.errors import CODES, find_exit_code

CALLS, PROCESSES = int(1000 * SIZE), int(40 * SIZE)
ERROR_EXIT_CODES = {2, 3, 4, 5, 130}
FAILED_ITEMS = 6
MODELS = [
    "demo/untrained-vit", "demo/untrained-bert", "demo/sentiment", "demo/decoder", "demo/nothing", "", "..",
    "/etc/passwd", "a/b/c", "\x00", "x" * 300, "photos", "red.png", "\x1b[31m", "\udcff", "~", "http://x/y",
]  # fmt: skip
GOOD_MODELS = 4
WORDS = [
    "a gorgeous film", "", " ", "-", "--", "-x", "--nonsense", "\x1b[31m", "\u202e\x9b\x07", "=1+1", "<b>", "../x",
    "/nodir/x.png", "\ud800", "\udcff", "a\x00b", "a" * 3000, "rollout", "rollout(", "rollout(start=1)",
    "rollout(start=open('x'))", "rollout(**{})", "no_such", "quick", "all", "0", "-1", "9" * 40, "1e9", "nan",
    "LABEL_0", "last", "start=1", "start=x", "=", "input=text", "label=gone", "0:each", "a=b=c", "cpu", "cuda:7",
    "replacement", "shape", "comprehensiveness", "deletion(steps=2)", "deletion(steps=[])", "[" * 500, "**/*", "[",
]  # fmt: skip
COMMANDS = [
    "explain", "compare", "inspect", "judge", "audit", "methods", "metrics", "reproduce", "generate", "demo",
    "inside", "write", "no-such", "", "--json", "--version",
]  # fmt: skip
FLAGS = ["--words", "--json", "--debug", "--help", "--words-only"]
OPTIONS = [
    "-m", "-t", "-s", "-o", "--versus", "--classes", "-k", "--limit", "-a", "--samples", "--device", "--batch-size",
    "--seed", "--test", "--preset", "-n", "--class", "--column", "--masks", "--mask-values", "--split", "--checkpoint",
    "--baseline", "--training", "--continuation", *FLAGS,
]  # fmt: skip
FILES = [
    "red.png", "text.png", "empty.jpg", "reviews.csv", "broken.csv", "rows.jsonl", "notes.txt", "photos",
    "photos/pipe.png", "photos/*.png", "photos/*.gif", "runs", ".", "ids.safetensors", "pipe.txt", "/dev/zero", "loop",
    "evil\x1b[31m\u202e.png",
]  # fmt: skip
OUTS = [
    "out.html", "out.png", "out.json", "out.csv", "out.nonsense", "/nodir/out.html", "folder.html", "runs", "runs/a",
    "red.png", "./photos/grey.png", "reviews.csv", "", "red.png/x.html", "x" * 300 + ".html", "\x1b[31m.html", "loop",
]  # fmt: skip
OUT_OF_REACH = {"demo": ["/nodir/out.html", "folder.html", "out.png", "red.png/x.html"]}  # the tour itself is slow


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with good and odd files, which is the current one."""
    monkeypatch.chdir(tmp_path)
    fill_folder()
    return tmp_path


def fill_folder() -> None:
    Image.new("RGB", (20, 30), "red").save("red.png")
    Image.new("RGB", (20, 30), "red").save("evil\x1b[31m\u202e.png")
    Path("text.png").write_text("no image")
    Path("empty.jpg").write_bytes(b"")
    Path("reviews.csv").write_text("text,label\na film,LABEL_0\nnot a film,LABEL_1\n")
    Path("broken.csv").write_bytes(b'text,label\n"unclosed,1\n\xff\xfe')
    Path("rows.jsonl").write_text('{"text": "a film"}\nnot json\n{"text": 3}\n')
    Path("notes.txt").write_text("a film\n")
    Path("ids.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
    Path("photos").mkdir()
    Image.new("L", (8, 8)).save("photos/grey.png")
    os.mkfifo("photos/pipe.png")
    os.mkfifo("pipe.txt")
    os.symlink("loop", "loop")
    Path("runs").mkdir()
    Path("folder.html").mkdir()


def read_inputs() -> dict[str, bytes]:
    """The files that no command may change."""
    names = ["red.png", "reviews.csv", "broken.csv", "rows.jsonl", "notes.txt", "ids.safetensors", "photos/grey.png"]
    return {name: Path(name).read_bytes() for name in names}


def draw_arguments(random: Random) -> list[str]:
    command = random.choice(COMMANDS if random.random() < 0.5 else COMMANDS[:9])
    arguments = [command]
    arguments += ["attcat"] if command == "reproduce" and random.random() < 0.7 else []
    arguments += [random.choice([*FILES, *WORDS]) for _ in range(random.choice([0, 1, 1, 1, 2]))]
    if random.random() < 0.9:
        arguments += ["-M", random.choice(MODELS[:GOOD_MODELS] if random.random() < 0.8 else MODELS)]
    for _ in range(random.choice([0, 1, 1, 2, 3])):
        option = random.choice(OPTIONS)
        arguments.append(option)
        if option not in FLAGS:
            arguments.append(random.choice(OUTS if option == "-o" else [*WORDS, *FILES, "1", "2"]))
    if command == "judge" and random.random() < 0.9:
        arguments += ["-m", "rollout", "-k", "comprehensiveness", "--limit", "2"]
    if command == "audit":
        arguments += [
            "--samples",
            "2",
            "--search-limit",
            "1",
            "--limit",
            "2",
            "--test",
            random.choice(["shape", "replacement"]),
        ]
    if command == "demo":
        arguments += ["-o", random.choice(OUT_OF_REACH["demo"])]
    return arguments


# --- what must be true ------------------------------------------------------------------------------------------------


def find_problem(arguments: list[str], exit_code: int, stdout: str, stderr: str) -> str | None:
    """What is wrong with the end of a command, or None."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    shown = (stdout + stderr).replace("\n", "")
    if not shown.isprintable():
        return f"a control character in the output: {next(c for c in shown if not c.isprintable())!r}"
    if exit_code in (0, FAILED_ITEMS):
        return "an error beside a result" if "error[" in stderr or "Traceback" in stderr else None
    if exit_code not in ERROR_EXIT_CODES:
        return f"exit {exit_code}"
    if "--json" in options:
        return check_json_error(stderr, exit_code)
    lines = stderr.splitlines()
    if "--debug" in options:
        lines = lines[-1:]
    elif "Traceback" in stdout + stderr:
        return "traceback"
    match = re.fullmatch(r"error\[(E_[A-Z_]+)\]: \S.*", lines[0]) if len(lines) == 1 else None
    if match is None:
        return "not one line with a code on stderr"
    return check_code(match[1], exit_code)


def check_json_error(stderr: str, exit_code: int) -> str | None:
    try:
        error = json.loads(stderr)["error"]
    except (ValueError, KeyError, TypeError):
        return "not one JSON object on stderr"
    if not error["message"] or error["exit_code"] != exit_code:
        return f"wrong fields: {error}"
    return check_code(error["code"], exit_code)


def check_code(code: str, exit_code: int) -> str | None:
    if code not in CODES:
        return f"unknown code {code}"
    return None if find_exit_code(code) == exit_code else f"exit {exit_code} with {code}"


def test_the_checks_see_every_kind_of_problem():
    fine = "error[E_INPUT]: There is nothing.\n"
    assert find_problem(["explain"], 3, "", fine) is None
    assert find_problem(["explain"], 0, "cat\n", "") is None
    assert (
        find_problem(["explain", "--json"], 2, "", '{"error": {"code": "E_USAGE", "message": "x", "exit_code": 2}}')
        is None
    )
    wrong = [
        (["explain"], 1, "", "error[E_INTERNAL]: unexpected KeyError: 3\n"),
        (["explain"], 4, "", fine),
        (["explain"], 3, "", "error: There is nothing.\n"),
        (["explain"], 3, "", "error[E_NOTHING]: There is nothing.\n"),
        (["explain"], 3, "", "warning\n" + fine),
        (["explain"], 3, "", ""),
        (["explain"], 3, "", "Traceback (most recent call last)\n" + fine),
        (["explain"], 3, "", fine.replace("nothing", "\x1b[31m")),
        (["explain"], 0, "a\u202e\n", ""),
        (["explain"], 0, "cat\n", fine),
        (["explain", "--json"], 3, "", fine),
        (["explain", "--", "--json"], 3, "", '{"error": {"code": "E_INPUT", "message": "x", "exit_code": 3}}'),
    ]
    assert all(find_problem(*case) for case in wrong)


# --- the attack -------------------------------------------------------------------------------------------------------


def attack_commands(random: Random, count: int, found: Found) -> None:
    """Command lines in this process."""
    inputs = read_inputs()
    for number in range(count):
        arguments = draw_arguments(random)
        name = f"call {number}: {[word[:60] for word in arguments]}"
        state = python_random.getstate()
        with found.attempt(name):
            result = CliRunner().invoke(app, arguments, input="a film\n")
            problem = find_problem(arguments, result.exit_code, result.stdout, result.stderr)
            if python_random.getstate() != state:
                problem = "the state of Python's random numbers moved"
            if problem:
                found.raw.append(f"{name}: {problem}: {result.stderr.strip()[-200:]!r}")
            found.answered += result.exit_code in (0, FAILED_ITEMS)
        if read_inputs() != inputs:
            found.raw.append(f"{name}: an input was changed")
            inputs = read_inputs()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_every_command_line_ends_with_a_documented_code_and_one_line(folder, part):
    found = Found()
    attack_commands(make_random(f"commands {part}"), CALLS // 5, found)
    assert not found.faults, f"seed {SEED}, {len(found.faults)} wrong\n" + "\n".join(found.faults[:30])


STREAMS = ["", "", "", "> /dev/full", ">&-", "| head -c 1", "2> /dev/full", "<&-", "< /dev/zero"]


def attack_processes(random: Random, count: int, found: Found) -> None:
    """Command lines in processes of their own, with odd streams."""
    inputs = read_inputs()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HF_HUB_OFFLINE": "1"}
    for number in range(count):
        arguments = draw_arguments(random)
        while any("\x00" in word or "\ud800" in word for word in arguments):  # no process can be given these
            arguments = draw_arguments(random)
        stream = random.choice(STREAMS)
        name = f"process {number}: {[word[:60] for word in arguments]} {stream}"
        with found.attempt(name):
            line = ["bash", "-c", f'set -o pipefail; "$@" {stream}', "bash", sys.executable, "-m", "whyformer.cli"]
            done = subprocess.run([*line, *arguments], env=environment, input=b"a film\n", capture_output=True)
            stdout, stderr = done.stdout.decode("utf-8"), done.stderr.decode("utf-8")
            is_silent = "2>" in stream or ("head" in stream and done.returncode == 1)
            if is_silent:
                problem = "not silent" if stderr else None
            else:
                problem = find_problem(arguments, done.returncode, stdout, stderr)
            if problem:
                found.raw.append(f"{name}: {problem}: {stderr.strip()[-200:]!r}")
            found.answered += done.returncode in (0, FAILED_ITEMS)
        if read_inputs() != inputs:
            found.raw.append(f"{name}: an input was changed")
            inputs = read_inputs()


@pytest.mark.slow
def test_real_processes_end_the_same_way(folder):
    found = Found()
    attack_processes(make_random("processes"), PROCESSES, found)
    assert not found.faults, f"seed {SEED}, {len(found.faults)} wrong\n" + "\n".join(found.faults[:30])
