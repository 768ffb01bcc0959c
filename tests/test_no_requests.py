"""Explaining, judging and auditing make no request, and neither does opening a folder or a bundled model."""

import subprocess
import sys

SCRIPT = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto", "urllib.Request"):
        raise SystemExit(f"{event} {arguments!r}")

sys.addaudithook(refuse)
from pathlib import Path
import whyformer as why
from whyformer._model.loading import DEMO_MODELS

examples = [("a gorgeous film", "positive"), ("an awful film", "negative")]
why.explain(why.open(DEMO_MODELS / "sentiment"), "a gorgeous film", "rollout")
why.judge("demo/sentiment", examples, ["rollout"], metrics=["comprehensiveness"])
why.audit("demo/sentiment", examples, tests=["shape"], samples=2)
print("no request")
"""


def test_explaining_judging_and_auditing_make_no_request():
    """An audit hook of Python sees every attempt, whatever would have come of it."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("no request\n"), done.stderr[-800:]


def test_the_hook_sees_a_request():
    script = SCRIPT.replace(
        'print("no request")', 'import urllib.request; urllib.request.urlopen("http://127.0.0.1:9")'
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "urllib.Request" in done.stderr
