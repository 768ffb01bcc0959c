"""Threads of torch that wait for each other sleep in an audit, unless the user says otherwise."""

import os
import subprocess
import sys

import pytest


def read_wait_policy(**environment):
    """What the OpenMP library of torch says when `whyformer audit` loads it."""
    program = "from whyformer.cli import app; app(['audit', 'no-such-file.tsv'])"
    own = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    ran = subprocess.run(
        [sys.executable, "-c", program], env={**own, "OMP_DISPLAY_ENV": "TRUE", **environment}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert "no-such-file.tsv" in ran.stderr
    lines = [line.split("=")[1].strip(" '") for line in ran.stderr.splitlines() if "OMP_WAIT_POLICY" in line]
    if not lines:
        pytest.skip("torch has an OpenMP library that does not show its settings")
    return lines[0]


def test_an_audit_lets_idle_threads_sleep():
    assert read_wait_policy() == "PASSIVE"


@pytest.mark.slow
def test_a_setting_of_the_user_stays():
    assert read_wait_policy(OMP_WAIT_POLICY="active") == "ACTIVE"
