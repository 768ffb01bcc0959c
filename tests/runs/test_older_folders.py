"""Folders of older commits are refused by the version of their plan, and nothing in them is changed.

v0_1/judge and v0_1/audit are what these calls of commit 7a30e54 left there, without tables and reports:

    judge("demo/sentiment", TEXTS, ["rollout", "grad_cam"], ["comprehensiveness"], out=..., batch_size=2, report=False)
    audit("demo/sentiment", [text for text, _ in TEXTS], tests=["agreement", "shape"], out=...)
"""

import json
import re
import shutil
from pathlib import Path

import pytest

import whyformer as why
from whyformer._runs.plan import PLAN_VERSION
from whyformer.errors import InputError, OutputError

OLD = Path(__file__).parent / "v0_1"
TEXTS = [("a gorgeous , witty film", "positive"), ("an awful film", "negative"), ("not bad at all", "positive")]


def run_judge(folder):
    return why.judge(
        "demo/sentiment", TEXTS, ["rollout", "grad_cam"], ["comprehensiveness"], out=folder, batch_size=2, report=False
    )


def run_audit(folder):
    return why.audit("demo/sentiment", [text for text, _ in TEXTS], tests=["agreement", "shape"], out=folder)


def run_bulk(folder):
    return why.bulk("demo/sentiment", TEXTS, ["rollout"], out=folder, workers=1)


def stored_bytes(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize(("kind", "run"), [("judge", run_judge), ("audit", run_audit)])
def test_a_folder_of_version_0_1_is_refused_by_its_version(tmp_path, kind, run):
    folder = shutil.copytree(OLD / kind, tmp_path / "run")
    before = stored_bytes(folder)
    message = rf"holds another run: .*plan\.json has version 1, but this whyformer needs version {PLAN_VERSION}\."
    with pytest.raises(OutputError, match=message) as refused:
        run(folder)
    assert refused.value.code == "E_OUT_MISMATCH"
    assert stored_bytes(folder) == before


@pytest.mark.parametrize("run", [run_judge, run_audit, run_bulk])
@pytest.mark.parametrize("version", [1, PLAN_VERSION + 1])
def test_every_run_refuses_another_version_of_the_same_plan(tmp_path, run, version):
    run(tmp_path)
    write_version(tmp_path, version)
    before = stored_bytes(tmp_path)
    with pytest.raises(OutputError, match=f"has version {version}, but this whyformer needs version") as refused:
        run(tmp_path)
    assert refused.value.code == "E_OUT_MISMATCH"
    assert stored_bytes(tmp_path) == before


def test_a_summary_refuses_another_version(tmp_path):
    run_bulk(tmp_path)
    write_version(tmp_path, 1)
    message = re.escape(f"plan.json has version 1, but this whyformer needs version {PLAN_VERSION}. Run whyformer bulk")
    with pytest.raises(InputError, match=message) as refused:
        why.summarise_bulk(tmp_path, test=False)
    assert refused.value.code == "E_DATA"


def write_version(folder, version):
    """Version 1 is what a plan without a version has."""
    path = folder / "plan.json"
    fields = json.loads(path.read_text())
    del fields["version"]
    path.write_text(json.dumps(fields if version == 1 else {"version": version, **fields}))


def test_nothing_in_these_folders_is_a_path_of_a_machine():
    for path in OLD.rglob("*"):
        assert path.is_dir() or not any(root in path.read_bytes() for root in (b"/tmp", b"/home", b"/work", b"/root"))
