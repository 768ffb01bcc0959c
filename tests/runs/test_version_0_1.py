"""Folders that version 0.1 wrote (commit 7a30e54): a judgement is resumed, an audit is refused by what differs.

v0_1/judge and v0_1/audit are what these calls left there, without tables and reports:

    judge("demo/sentiment", TEXTS, ["rollout", "grad_cam"], ["comprehensiveness"], out=..., batch=2, report=False)
    audit("demo/sentiment", [text for text, _ in TEXTS], tests=["agreement", "shape"], out=...)
"""

import json
import shutil
from pathlib import Path

import pytest

import whyformer as why
from whyformer._judge import plan as judge_plan
from whyformer._judge.bench import Bench
from whyformer.errors import OutputError

OLD = Path(__file__).parent / "v0_1"
TEXTS = [("a gorgeous , witty film", "positive"), ("an awful film", "negative"), ("not bad at all", "positive")]


def judge_again(folder, **changes):
    settings = dict(methods=["rollout", "grad_cam"], metrics=["comprehensiveness"], batch=2, report=False) | changes
    return why.judge("demo/sentiment", TEXTS, out=folder, **settings)


@pytest.fixture
def old_judgement(tmp_path, monkeypatch):
    """A copy of the folder, resumed with the versions that are part of its plan."""
    pytest.importorskip("pyarrow")
    plan = json.loads((OLD / "judge" / "plan.json").read_text())
    monkeypatch.setattr(judge_plan, "__version__", plan["whyformer"])
    monkeypatch.setattr(judge_plan, "torch_version", plan["torch"])
    return shutil.copytree(OLD / "judge", tmp_path / "run")


def stored_bytes(folder):
    return {path.name: path.read_bytes() for path in (folder / "plan.json", *sorted((folder / "rows").iterdir()))}


def test_a_judgement_is_resumed_without_computing_a_row(old_judgement, monkeypatch):
    before = stored_bytes(old_judgement)
    monkeypatch.setattr(Bench, "make_shard", lambda *_: pytest.fail("a shard was computed again"))
    judgement = judge_again(old_judgement)
    assert stored_bytes(old_judgement) == before
    assert [row.name for row in judgement.rows.examples()] == ["example 0", "example 1", "example 2"]
    assert judgement.failed == 0


def test_a_judgement_without_controls_stays_without(old_judgement):
    """Its plan has chance alone, so there is nothing else to hold methods against; another folder has all controls."""
    judgement = judge_again(old_judgement)
    assert judgement.plan.methods == ("rollout", "grad_cam", "chance")
    assert judgement.verdict.startswith("On this data no method is significantly better than chance in any")
    fresh = judge_again(old_judgement.parent / "fresh")
    assert fresh.plan.methods == ("rollout", "grad_cam", "chance", "first_words", "last_words")
    assert fresh.verdict.startswith("On this data no method is significantly better than every control in any")


def test_a_judgement_that_was_interrupted_is_finished(old_judgement):
    finished = judge_again(shutil.copytree(old_judgement, old_judgement.parent / "finished"))
    (old_judgement / "rows" / "000001.parquet").unlink()
    first = (old_judgement / "rows" / "000000.parquet").read_bytes()
    resumed = judge_again(old_judgement)
    assert (old_judgement / "rows" / "000000.parquet").read_bytes() == first
    assert resumed.rows.value == pytest.approx(finished.rows.value, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (dict(batch=3), "batch differs"),
        (dict(methods=["rollout"]), "methods grad_cam differs"),
        (dict(limit=2), "data examples, data fingerprint differ"),
    ],
)
def test_another_judgement_is_refused_by_what_differs(old_judgement, changes, names):
    with pytest.raises(OutputError, match=f"holds another judgement: {names}"):
        judge_again(old_judgement, **changes)


def test_another_version_of_torch_is_named(old_judgement, monkeypatch):
    monkeypatch.setattr(judge_plan, "torch_version", "9.9")
    with pytest.raises(OutputError, match="holds another judgement: torch differs"):
        judge_again(old_judgement)


def test_an_audit_is_refused_because_its_hash_of_the_weights_says_too_little(tmp_path):
    folder = shutil.copytree(OLD / "audit", tmp_path / "run")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    texts = [text for text, _ in TEXTS]
    with pytest.raises(OutputError, match=r"holds another audit, written by whyformer 0\.1: fingerprint, model differ"):
        why.audit("demo/sentiment", texts, tests=["agreement", "shape"], out=folder)
    with pytest.raises(OutputError, match=r": draws, fingerprint, model differ\. Use another folder"):
        why.audit("demo/sentiment", texts, tests=["agreement", "shape"], draws=7, out=folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"} == before


def test_nothing_in_these_folders_is_a_path_of_a_machine():
    for path in OLD.rglob("*"):
        assert path.is_dir() or not any(root in path.read_bytes() for root in (b"/tmp", b"/home", b"/work", b"/root"))
