"""whyformer bulk: exit codes, and what it prints."""

import json
import os
import subprocess
import sys

import pytest
from bulk.bulk_inputs import MODEL, write_images
from typer.testing import CliRunner

from whyformer import cli


def run(*arguments: str, code: int = 0, given: str | None = None) -> str:
    """Standard output of the command; for an error, its stderr."""
    result = CliRunner().invoke(cli.app, ["bulk", *map(str, arguments)], input=given)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout if code in (0, 6) else result.stderr


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"), 6)


def test_a_folder_of_images(images, tmp_path):
    out = tmp_path / "run"
    text = run(images, "-M", MODEL, "-m", "rollout", "-m", "attcat", "-o", out, "--workers", "1")
    assert text == f"6 of 6 items explained by rollout, attcat. Rows are in {out / 'parts'}.\n"
    fields = json.loads(run(images, "-M", MODEL, "-m", "rollout", "-m", "attcat", "-o", out, "--json"))
    assert fields == {
        "folder": str(out), "items": 6, "failed": 0, "computed": 0, "methods": ["rollout", "attcat"], "notes": [],
    }  # fmt: skip


def test_paths_on_standard_input_and_exit_status_6(images, tmp_path):
    paths = [*sorted(map(str, images.rglob("*.png"))), "missing.png"]
    out = tmp_path / "run"
    text = run("-", "-M", MODEL, "-m", "rollout", "-o", out, given="\n".join(paths), code=6)
    assert "6 of 7 items explained by rollout; 1 failed, see the column error" in text


def test_settings_and_targets(images, tmp_path):
    run(images, "-M", MODEL, "-m", "rollout(start=1)", "-t", "1", "-o", tmp_path / "run", "--limit", "2")
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert list(plan["methods"]) == ["rollout(start=1)"] and plan["target"] == 1 and plan["data"]["items"] == 2


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["-m", "rolout"], 2, "error[E_METHOD]: No method 'rolout'. Did you mean 'rollout'?"),
        (["--engine", "spark"], 2, "error[E_OPTION]: There is no engine 'spark'."),
        (["--memory", "-1"], 2, "error[E_OPTION]: --memory must be > 0, got -1."),
        (["--batch-size", "0"], 2, "error[E_OPTION]: batch_size must be >= 1, got 0."),
        (["-M", "no/such/model"], 4, "error[E_MODEL_NOT_FOUND]"),
    ],
)
def test_errors_are_one_line_with_their_exit_status(images, tmp_path, options, code, message):
    text = run(images, "-M", MODEL, "-m", "rollout", "-o", tmp_path / "run", *options, code=code)
    assert text.startswith(message) and text.count("\n") == 1


def test_an_output_folder_is_needed(images):
    assert "Missing option '-o'" in run(images, "-M", MODEL, code=2)


def test_another_run_in_the_folder_has_exit_status_4(images, tmp_path):
    run(images, "-M", MODEL, "-m", "rollout", "-o", tmp_path / "run")
    text = run(images, "-M", MODEL, "-m", "attcat", "-o", tmp_path / "run", code=4)
    assert text.startswith("error[E_OUT_MISMATCH]") and "methods attcat, methods rollout differ" in text


def test_data_that_is_missing_has_exit_status_3(tmp_path):
    assert run(tmp_path / "nothing", "-M", MODEL, "-o", tmp_path / "run", code=3).startswith("error[E_DATA]")


@pytest.mark.slow
def test_a_closed_standard_error_and_output_do_not_stop_a_run(images, tmp_path):
    command = [sys.executable, "-m", "whyformer.cli", "bulk", str(images), "-M", MODEL, "-m", "rollout"]
    process = subprocess.Popen([*command, "-o", str(tmp_path / "run")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    process.stderr.close()
    process.wait(300)
    assert os.listdir(tmp_path / "run" / "parts") == ["part-00000.parquet"]
