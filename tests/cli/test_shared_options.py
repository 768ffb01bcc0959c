"""--open, --device and --json on every verb; wrong paths fail before torch is imported; `whyformer` alone."""

import json
import subprocess
import sys
import webbrowser
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from whyformer.cli import app
from whyformer.cli.shared_options import WITHOUT_MODEL

VERBS = get_command(app).commands
SENTENCE = "a gorgeous film"


def list_options(verb: str) -> set[str]:
    return {name for option in VERBS[verb].params for name in option.opts}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_the_shared_options(verb):
    assert "--json" in list_options(verb)
    assert "--open" in list_options(verb)
    assert ("--device" in list_options(verb)) == (verb not in WITHOUT_MODEL)


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """The addresses that a browser would open."""
    addresses = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda address: addresses.append(address) or True)
    return addresses


def run(*arguments: str, status: int = 0):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == status, result.output
    return result


def test_open_opens_the_page_that_was_saved(opened, tmp_path):
    run("explain", SENTENCE, "-M", "demo/sentiment", "-o", "why.html", "--open")
    assert opened == [(tmp_path / "why.html").as_uri()]


def test_open_without_a_file_opens_a_temporary_page(opened):
    run("explain", SENTENCE, "-M", "demo/sentiment", "--open")
    (address,) = opened
    assert "<html" in Path(address.removeprefix("file://")).read_text()


@pytest.mark.parametrize(("verb", "name"), [("methods", "libragrad"), ("metrics", "comprehensiveness")])
def test_open_shows_the_listing_as_a_page(opened, verb, name):
    run(verb, "--open")
    (address,) = opened
    assert name in Path(address.removeprefix("file://")).read_text()


def test_serve_opens_its_link_and_hands_on_the_device(opened, monkeypatch):
    served = {}
    monkeypatch.setattr("whyformer._page.serving.serve", lambda *models, **options: served.update(options))
    run("serve", "--open", "--device", "cpu")
    served["visit"]("http://127.0.0.1:1/")
    assert opened == ["http://127.0.0.1:1/"] and served["device"] == "cpu"


def test_open_of_a_run_needs_a_folder(opened):
    result = run("judge", "reviews.csv", "--open", status=2)
    assert "--open needs a folder" in result.stderr and not opened


def test_without_a_browser_the_address_is_printed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    assert "no browser was found; open file://" in run("demo", "--sample", "reviews.csv", "--open").stderr


def test_the_device_reaches_the_model():
    result = run("compare", SENTENCE, "-M", "demo/sentiment", "-m", "rollout", "--device", "nowhere", status=2)
    assert "error[E_DEVICE]" in result.stderr
    run("compare", SENTENCE, "-M", "demo/sentiment", "-m", "rollout", "--device", "cpu")


@pytest.mark.parametrize(
    "command",
    [
        ["generate", "the keys", "-n", "1"],
        ["inspect", SENTENCE, "-M", "demo/sentiment"],
        ["explain", SENTENCE, "-M", "demo/sentiment", "--classes", "2", "-m", "rollout"],
        ["demo", "--sample", "reviews.csv"],
        ["metrics"],
    ],
    ids=lambda command: " ".join(command[:1]),
)
def test_json_is_json(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert json.loads(run(*command, "--json").stdout)


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        (["explain", "dog.jpg"], 3, "error[E_IMG_READ]: Cannot read 'dog.jpg': there is no such file."),
        (["explain", "notes.txt", "-M", "demo/sentiment"], 3, "error[E_INPUT]: Cannot read 'notes.txt'"),
        (["judge", "nowhere.csv"], 3, "error[E_DATA]: Cannot read 'nowhere.csv': there is no such file or folder."),
        (["compare", "-M", "./nowhere"], 4, "error[E_MODEL_NOT_FOUND]: './nowhere' is neither an existing model"),
        (["doctor", "/no/model"], 4, "error[E_MODEL_NOT_FOUND]: '/no/model' is neither an existing model folder"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_a_wrong_path_fails_before_torch_is_imported(command, status, message, tmp_path):
    code = (
        "import sys\nfrom whyformer.cli import app\n"
        f"try:\n    app({command!r})\nfinally:\n    assert 'torch' not in sys.modules, 'torch'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == status and done.stderr.startswith(message), done.stderr


def test_alone_it_says_three_things_to_do_first():
    lines = run().stdout.splitlines()
    commands = [line.split()[1] for line in lines if line.startswith("  whyformer ")]
    assert commands == ["explain", "judge", "cite"] and max(map(len, lines)) <= 100
