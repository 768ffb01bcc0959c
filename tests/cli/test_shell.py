"""Errors on the command line: a code, one line or one JSON object, nothing that moves a cursor."""

import json
import random
import re

import pytest
from typer.testing import CliRunner

from whyformer import cli
from whyformer.cli import running
from whyformer.cli.shell import print_error
from whyformer.errors import CODES, InputError, NonFinite, OutputError, TargetError, find_exit_code

EVIL = "\x1b[31m\u202e\x07\u2028\x9b"
COMMANDS = (
    "explain",
    "compare",
    "inspect",
    "generate",
    "trace",
    "similarity",
    "judge",
    "audit",
    "reproduce",
    "demo",
    "methods",
    "metrics",
)


def fail_with(*arguments: str, error: BaseException | None = None, monkeypatch=None):
    """The result of a command that fails: when it opens the model if an error is given."""
    if error is not None:

        def fail(*_):
            raise error

        monkeypatch.setattr(running, "open_quietly", fail)
    return CliRunner().invoke(cli.app, list(arguments))


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (InputError("odd"), "E_INPUT", 3),
        (InputError("odd", code="E_IMG_BROKEN"), "E_IMG_BROKEN", 3),
        (InputError("odd", code="E_OPTION"), "E_OPTION", 2),
        (TargetError("odd"), "E_TARGET", 2),
        (OutputError("odd", code="E_OUT_LOCKED"), "E_OUT_LOCKED", 4),
        (NonFinite("odd"), "E_NON_FINITE", 5),
        (OSError(28, "No space left on device"), "E_DISK_FULL", 5),
        (OSError(27, "File too large", "rows.parquet"), "E_DISK_FULL", 5),
        (MemoryError(), "E_MEMORY", 5),
        (KeyboardInterrupt(), "E_INTERRUPTED", 130),
        (KeyError("odd"), "E_INTERNAL", 1),
        (OSError(5, "Input/output error"), "E_INTERNAL", 1),
    ],
)
def test_an_error_is_one_line_with_its_code(monkeypatch, error, code, status):
    result = fail_with("explain", "x", error=error, monkeypatch=monkeypatch)
    assert result.exit_code == status == find_exit_code(code)
    assert re.fullmatch(rf"error\[{code}\]: .+\n", result.stderr)
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [["--nonsense"], ["explian"], ["generate"], ["explain", "--classes", "x"]])
def test_wrong_usage_has_a_code(arguments):
    result = fail_with(*arguments)
    assert result.exit_code == 2
    assert re.fullmatch(r"error\[E_USAGE\]: .+ See whyformer --help\.\n", result.stderr)


def test_an_import_that_was_interrupted_is_an_interrupt(monkeypatch):
    error = ImportError("cannot import numpy")
    error.__context__ = KeyboardInterrupt()
    assert fail_with("explain", "x", error=error, monkeypatch=monkeypatch).exit_code == 130
    last = RuntimeError("torch cannot be imported")
    last.__cause__ = error
    assert fail_with("explain", "x", error=last, monkeypatch=monkeypatch).exit_code == 130


def test_an_unexpected_error_names_its_type_and_the_way_to_see_more(monkeypatch):
    result = fail_with("explain", "x", error=KeyError("odd"), monkeypatch=monkeypatch)
    assert result.stderr == "error[E_INTERNAL]: unexpected KeyError: 'odd' (--debug shows where)\n"


def test_a_command_leaves_the_random_numbers_of_its_caller_alone(monkeypatch):
    def draw(*_):
        random.random()
        raise InputError("odd")

    monkeypatch.setattr(running, "open_quietly", draw)
    state = random.getstate()
    assert fail_with("explain", "x").exit_code == 3
    assert random.getstate() == state


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_with_json_an_error_is_one_object_on_stderr(monkeypatch):
    result = fail_with("explain", "x", "--json", error=TargetError("There is no class\n'9'."), monkeypatch=monkeypatch)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert json.loads(result.stderr) == {
        "error": {"code": "E_TARGET", "message": "There is no class '9'.", "exit_code": 2}
    }
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reports_errors_as_json(command):
    for arguments in ([command, "--json", "--nonsense"], ["--json", command, "--nonsense"]):
        result = fail_with(*arguments)
        error = json.loads(result.stderr)["error"]
        assert (error["code"], error["exit_code"]) == ("E_USAGE", 2) and "--nonsense" in error["message"]
        assert result.exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "x", "-o", "/nodir/x.html", "--json"],
        ["generate", "x", "-o", "/nodir/x.html", "--json"],
        ["demo", "-o", "/nodir/x.html", "--json"],
        ["reproduce", "attcat", " ", "-M", "demo/sentiment", "--json"],
    ],
)
def test_commands_that_print_no_json_report_errors_as_json(arguments):
    result = fail_with(*arguments)
    error = json.loads(result.stderr)["error"]
    assert error["code"] in CODES and error["exit_code"] == result.exit_code in (3, 4)


def test_a_text_that_reads_json_is_not_the_option(monkeypatch):
    result = fail_with("explain", "--", "--json", error=InputError("odd"), monkeypatch=monkeypatch)
    assert result.stderr == "error[E_INPUT]: odd\n"


def test_debug_adds_the_traceback_to_the_object(monkeypatch):
    result = fail_with("explain", "x", "--json", "--debug", error=KeyError("odd"), monkeypatch=monkeypatch)
    error = json.loads(result.stderr)["error"]
    assert "Traceback" in error["traceback"] and "in fail" in error["traceback"]


# --- characters -------------------------------------------------------------------------------------------------------


def is_visible(text: str) -> bool:
    return text.removesuffix("\n").replace("\n", "").isprintable()


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("error", [InputError(f"a{EVIL}b"), KeyError(f"a{EVIL}b"), ValueError(f"a{EVIL}b")])
def test_an_error_never_prints_a_control_character(capsys, error, debug, as_json):
    print_error(error, debug=debug, as_json=as_json)
    shown = capsys.readouterr().err
    assert is_visible(shown)
    assert "x1b[31m" in shown and "u202e" in shown


def test_a_misspelt_option_never_prints_a_control_character():
    shown = fail_with(f"--{EVIL}").stderr
    assert is_visible(shown) and r"\x1b[31m" in shown
