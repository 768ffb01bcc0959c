"""Where results are saved is checked before anything runs."""

import os
import re
from importlib import import_module

import pytest
from PIL import Image
from typer.testing import CliRunner

from whyformer import cli, data
from whyformer.cli import running


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty folder, the current one. No model may be opened, no data read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(running, "open_quietly", lambda *_: pytest.fail("a model was opened"))
    monkeypatch.setattr(running, "silence_libraries", lambda *_: pytest.fail("the tour began"))
    for module in ("whyformer._audit.protocol", "whyformer._judge.run", "whyformer_papers.reproduction"):
        import_module(module)  # before the stand-in
    monkeypatch.setattr(data, "read", lambda *_, **__: pytest.fail("data was read"))
    return tmp_path


def error_of(*arguments: str, code: str = "E_OUT_PATH", status: int = 4) -> str:
    before = sorted(os.listdir())
    result = CliRunner().invoke(cli.app, list(arguments))
    assert result.exit_code == status, result.output
    assert re.fullmatch(rf"error\[{code}\]: .+\n", result.stderr), result.stderr
    assert sorted(os.listdir()) == before
    return result.stderr


FILE_COMMANDS = [["explain", "x"], ["explain", "x", "--classes", "2"], ["compare", "x"], ["inspect", "x"],
                 ["generate", "x"], ["trace", "x"], ["similarity", "x", "y"], ["demo"]]  # fmt: skip
FOLDER_COMMANDS = [["judge", "x.csv"], ["audit", "x.csv"], ["reproduce", "attcat", "x.csv", "-M", "demo/sentiment"]]


@pytest.mark.parametrize("command", FILE_COMMANDS, ids=" ".join)
def test_a_file_that_cannot_be_written_is_refused_first(command, monkeypatch):
    os.mkdir("folder.html")
    open("file", "w").close()
    assert "there is no folder '/nodir'" in error_of(*command, "-o", "/nodir/x.html")
    assert "it is a folder" in error_of(*command, "-o", "folder.html")
    assert "'file' is not a folder" in error_of(*command, "-o", "file/x.html")
    assert "too long" in error_of(*command, "-o", f"{'x' * 300}.html")
    assert "null" in error_of(*command, "-o", "x\0/y.html", code="E_USAGE", status=2)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "no permission to write to '.'" in error_of(*command, "-o", "x.html")


@pytest.mark.parametrize("word", ["cat.png", "./cat.png", "link.png", "..", "*.png", "**/cat.png"])
def test_no_input_is_overwritten(folder, monkeypatch, word):
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    place = folder if word == ".." else folder / "below"
    Image.new("RGB", (8, 8)).save(place / "cat.png")
    os.symlink(place / "cat.png", folder / "below" / "link.png")
    assert "would overwrite the input" in error_of("explain", word, "-o", str(place / "cat.png"))


@pytest.mark.parametrize("command", FOLDER_COMMANDS, ids=" ".join)
def test_a_folder_that_cannot_be_written_is_refused_first(command, monkeypatch):
    open("file", "w").close()
    assert "looks like a file" in error_of(*command, "-o", "audit.html")
    assert "looks like a file" in error_of(*command, "-o", "runs/rows.CSV")
    assert "'file' is a file" in error_of(*command, "-o", "file")
    assert "'file' is not a folder" in error_of(*command, "-o", "file/run")
    assert "but it is empty" in error_of(*command, "-o", "")
    assert "too long" in error_of(*command, "-o", "x" * 300)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "no permission to write to '.'" in error_of(*command, "-o", "run")


@pytest.mark.parametrize("blank", ["", " ", "\t\n", "\u3000"])
@pytest.mark.parametrize("command", [["judge"], ["audit"], ["reproduce", "attcat", "-M", "demo/pets"]], ids=" ".join)
def test_blank_data_is_refused(command, blank):
    assert "DATA is blank" in error_of(*command, blank, code="E_INPUT", status=3)


def test_a_blank_among_texts_is_refused():
    assert "DATA is blank" in error_of("audit", "a film", "", code="E_INPUT", status=3)
