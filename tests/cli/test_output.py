"""Standard output that is closed, full or a pipe nobody reads; and what is printed there."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from whyformer import cli
from whyformer.cli.output import print_text

EVIL = "\x1b[31m\u202e\x07"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2]), "HF_HUB_OFFLINE": "1"}
PROGRAM = f"{sys.executable} -m whyformer.cli"


def run_in_shell(line: str, **more) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["bash", "-c", line.replace("whyformer", PROGRAM, 1)],
        env=ENVIRONMENT, capture_output=True, text=True, timeout=120, **more,
    )  # fmt: skip


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["methods", "--help"])
def test_a_full_disk_behind_standard_output_is_reported(command):
    done = run_in_shell(f"whyformer {command} > /dev/full")
    assert done.stderr.startswith("error[E_DISK_FULL]: Cannot write to standard output: no space left on device")
    assert done.stderr.count("\n") == 1
    assert done.returncode == 5


def test_a_full_disk_is_reported_as_json():
    done = run_in_shell("whyformer methods --json > /dev/full")
    assert json.loads(done.stderr)["error"]["code"] == "E_DISK_FULL"
    assert done.returncode == 5


@pytest.mark.parametrize("command", ["methods", "--help", "explain --help", "", "--version"])
def test_standard_output_that_cannot_be_written_is_reported(command):
    done = run_in_shell(f"whyformer {command} 1< /dev/null")
    assert done.stderr.startswith("error[E_OUT_PATH]: Cannot write to standard output: bad file descriptor")
    assert (done.stderr.count("\n"), done.returncode) == (1, 4)


@pytest.mark.parametrize("command", ["methods", "--help"])
def test_closed_standard_output_is_like_none(command):
    done = run_in_shell(f"whyformer {command} >&-")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["2>/dev/full", "<&- >&- 2>&-"])
def test_an_error_that_cannot_be_printed_still_has_its_exit_code(closed):
    done = run_in_shell(f"whyformer explian {closed}")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_closed_standard_input_is_reported():
    done = run_in_shell("whyformer explain - -M demo/sentiment <&-")
    assert done.stderr == "error[E_INPUT]: Standard input is closed.\n"
    assert done.returncode == 3


def test_a_pipe_that_is_read_no_further_is_silent():
    done = run_in_shell("set -o pipefail; whyformer methods --json | head -c 1")
    assert done.stderr == ""
    assert done.returncode in (0, 1)  # 0: all of it fitted into the pipe


def test_a_file_that_grows_too_large_is_a_full_disk(tmp_path):
    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    done = run_in_shell("whyformer explain 'a film' -M demo/sentiment -o x.html", cwd=tmp_path, preexec_fn=limit_files)
    assert done.stderr.startswith("error[E_DISK_FULL]: ")
    assert done.returncode == 5
    assert os.listdir(tmp_path) == []


def test_an_interrupt_while_torch_is_imported_is_one_line():
    with subprocess.Popen(
        [sys.executable, "-m", "whyformer.cli", "explain", "-", "-M", "demo/sentiment"],
        env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 60
        while "torch" not in Path(f"/proc/{process.pid}/maps").read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert said == b"error[E_INTERRUPTED]: interrupted\n"
    assert process.returncode == 130


# --- characters -------------------------------------------------------------------------------------------------------


def is_visible(text: str) -> bool:
    return text.replace("\n", "").isprintable()


def test_lines_stay_lines_and_everything_else_is_spelled_out(capsys):
    print_text(f"a{EVIL}\nb\r\x1b]0;title\x07\u2028c")
    assert capsys.readouterr().out == "a\\x1b[31m\\u202e\\x07\nb\\r\\x1b]0;title\\x07\\u2028c\n"


@pytest.mark.parametrize("command", ["explain", "compare", "inspect"])
def test_the_name_of_a_file_is_spelled_out(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (20, 30), "red").save(f"red{EVIL}.png")
    quick = {"compare": ["-m", "rollout", "-m", "chance"], "explain": ["-m", "rollout"]}.get(command, [])
    arguments = [command, f"red{EVIL}.png", "-M", "demo/untrained-vit", *quick, "-o", f"out{EVIL}.html"]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    assert is_visible(result.output) and r"\x1b[31m" in result.output


@pytest.mark.parametrize("command", ["judge", "audit"])
def test_names_in_data_and_of_folders_are_spelled_out(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(f"films{EVIL}.csv").write_text(f"text,label\na good{EVIL} film,pos{EVIL}\na bad film,neg\n")
    some = {"judge": ["-m", "rollout", "-k", "comprehensiveness"], "audit": ["--samples", "2", "--test", "replacement"]}
    arguments = [command, f"films{EVIL}.csv", "-M", "demo/sentiment", *some[command], "-o", f"run{EVIL}"]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code in (0, 6), result.output
    assert is_visible(result.output) and r"\x1b[31m" in result.output


def test_the_name_and_the_labels_of_a_model_are_spelled_out(tmp_path, monkeypatch):
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    monkeypatch.chdir(tmp_path)
    labels = {0: f"cat{EVIL}", 1: f"dog{EVIL}"}
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8,
        id2label=labels, label2id={label: i for i, label in labels.items()},
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(f"vit{EVIL}")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(f"vit{EVIL}")
    Image.new("RGB", (20, 30), "red").save("red.png")
    for arguments in (["explain", "red.png"], ["explain", "red.png", "-t", "7"], ["inspect", "red.png"]):
        result = CliRunner().invoke(cli.app, [*arguments, "-M", f"vit{EVIL}"])
        assert result.exit_code in (0, 2), result.output
        assert is_visible(result.output) and r"\x1b[31m" in result.output
