"""`whyformer reproduce` finds the package with the papers, or says how to get it."""

import subprocess
import sys
from importlib import import_module

import pytest
from typer.testing import CliRunner

from whyformer import cli


@pytest.mark.parametrize("arguments", [[], ["chefer", "--published"], ["attcat"]], ids=str)
def test_without_the_package_one_line_says_how_to_get_it(arguments, monkeypatch):
    monkeypatch.setattr(import_module("whyformer.cli.reproduce"), "find_spec", lambda _: None)
    result = CliRunner().invoke(cli.app, ["reproduce", *arguments])
    assert result.exit_code == 2 and result.stdout == ""
    assert "pip install 'whyformer[papers]'" in result.stderr and result.stderr.count("\n") == 1


def test_a_checkout_has_it_beside_the_first():
    """Also where only the first is on the path of the interpreter."""
    code = (
        "import sys; sys.path = [folder for folder in sys.path if 'papers' not in folder];"
        "from whyformer.cli import app; app(['reproduce'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "jain-wallace" in done.stdout, done.stderr


def test_help_does_not_need_it(monkeypatch):
    monkeypatch.setattr(import_module("whyformer.cli.reproduce"), "find_spec", lambda _: None)
    assert CliRunner().invoke(cli.app, ["reproduce", "--help"]).exit_code == 0
