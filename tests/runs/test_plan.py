"""Plans on disk: the same plan is accepted, another one is refused by the names of the fields that differ."""

import json
import os

import pytest

from whyformer._runs.plan import PLAN_VERSION, RunPlan, list_plan_differences, write_or_check_plan
from whyformer.errors import OutputError

FIELDS = {"batch": 4, "data": {"name": "x", "examples": 10}, "target": "predicted", "seed": None}


def test_accepts_the_same_plan_and_does_not_write_it_again(tmp_path):
    write_or_check_plan(RunPlan(FIELDS), tmp_path)
    before = (tmp_path / "plan.json").stat()
    write_or_check_plan(RunPlan(dict(reversed(FIELDS.items()))), tmp_path)
    assert (tmp_path / "plan.json").stat() == before
    assert json.loads((tmp_path / "plan.json").read_text()) == {
        "version": PLAN_VERSION,
        **FIELDS,
        "fingerprint": RunPlan(FIELDS).fingerprint,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 3}, "holds another audit: batch differs"),
        ({"batch": 4.0}, "batch differs"),
        ({"batch": 3, "data": {"name": "x", "examples": 9}}, "batch, data examples differ"),
        ({"extra": None}, "extra differs"),
        ({"target": {"class": 1}}, "target differs"),
    ],
)
def test_refuses_another_plan_by_what_differs(tmp_path, change, message):
    write_or_check_plan(RunPlan(FIELDS, "audit"), tmp_path)
    with pytest.raises(OutputError, match=message) as raised:
        write_or_check_plan(RunPlan(FIELDS | change, "audit"), tmp_path)
    assert raised.value.code == "E_OUT_MISMATCH"


def test_differences_in_fields_and_fingerprints_agree():
    """Whatever changes the fingerprint has a name; otherwise shards would be computed again without a word."""
    plan = RunPlan({"a": 1, "b": [1, 2], "c": {"d": True}})
    for change in ({"a": True}, {"a": 1.0}, {"b": [1]}, {"b": (2, 1)}, {"c": {"d": 1}}, {"c": {}}, {"e": 0}):
        other = RunPlan({**plan.fields, **change})
        assert other.fingerprint != plan.fingerprint and list_plan_differences(plan.fields, other.fields)
    assert list_plan_differences(plan.fields, dict(plan.fields)) == []


@pytest.mark.parametrize("contents", [b"", b"{}", b"[]", b"\xff", b"7", b'{"batch": 4, "fingerprint": "wrong"}'])
def test_does_not_overwrite_a_damaged_plan(tmp_path, contents):
    (tmp_path / "plan.json").write_bytes(contents)
    with pytest.raises(OutputError, match="not the plan of a judgement, or it is damaged"):
        write_or_check_plan(RunPlan(FIELDS, "judgement"), tmp_path)
    assert (tmp_path / "plan.json").read_bytes() == contents


def test_a_pipe_in_place_of_a_plan_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "plan.json")
    with pytest.raises(OutputError, match="not the plan of a run"):
        write_or_check_plan(RunPlan(FIELDS), tmp_path)


def test_refuses_a_folder_with_tables_of_something_else(tmp_path):
    (tmp_path / "photos.parquet").write_text("somebody else's")
    with pytest.raises(OutputError, match=r"has Parquet files but no plan\.json"):
        write_or_check_plan(RunPlan(FIELDS), tmp_path)
