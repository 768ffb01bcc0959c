"""Options that the command line reads from the functions: all of them, with their types, defaults and a help text."""

import inspect
import subprocess
import sys

import pytest
from typer.main import get_command

import whyformer as why
from whyformer.cli import app
from whyformer.cli.signatures import read_parameters

COMMANDS = get_command(app).commands
OF = {
    "bulk": "bulk", "audit": "audit", "cite": "cite_log", "bulk-summary": "summarise_bulk",
    "compare-runs": "compare_runs", "generate": "generate", "trace": "trace_reasoning",
    "similarity": "explain_similarity", "doctor": "diagnose",
}  # fmt: skip
ONLY_IN_PYTHON = {"kinds", "steps", "top", "records", "versus"}
CALLED = {"columns": "column", "classes": "class", "methods": "method", "tests": "test", "checkpoints": "checkpoint"}


@pytest.mark.parametrize("verb", OF.values())
def test_what_is_read_is_what_python_has(verb):
    own = {name: one for name, one in inspect.signature(getattr(why, verb)).parameters.items() if name != "settings"}
    read = read_parameters(verb)
    assert list(read) == list(own)
    for name, one in own.items():
        if one.default is inspect.Parameter.empty:
            assert read[name].default is ...
        elif isinstance(one.default, bool | int | float | str | None):
            assert read[name].default in (one.default, None), name  # None: only Python knows it


@pytest.mark.parametrize(("command", "verb"), OF.items())
def test_every_parameter_is_an_option_and_is_explained(command, verb):
    options = {flag: one for one in COMMANDS[command].params for flag in one.opts}
    only_there = ONLY_IN_PYTHON | ({"target"} if command == "trace" else set())
    for name in set(read_parameters(verb)) - only_there:
        flag = f"--{CALLED.get(name, name).replace('_', '-')}"
        assert flag in options or name in options, f"{command} has no {flag}"
    assert not [one.name for one in COMMANDS[command].params if one.name != "help" and not one.help]


def test_a_new_parameter_is_an_option_without_a_further_line():
    """--shard is nowhere in the code of the command line: its type, default and help are those of bulk()."""
    (shard,) = (one for one in COMMANDS["bulk"].params if "--shard" in one.opts)
    assert (shard.metavar, shard.default, shard.help) == ("N", None, "Items per file.")


def test_reading_signatures_imports_no_torch():
    code = "import sys; from whyformer.cli.signatures import *; read_parameters('audit'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
