"""The rows of an audit: on disk once added, read back when resumed, locked, and never mixed with another plan's."""

import json
import os

import pytest

from whyformer._audit.rows import AuditRows
from whyformer.errors import OutputError

ROW = {"test": "shape", "attention": "", "example": 3, "value": 0.1 + 0.2}


def add(folder, *rows, **plan):
    with AuditRows(folder, plan) as store:
        store.add(rows)


def test_rows_are_there_again_bit_for_bit(tmp_path):
    add(tmp_path / "run", ROW, {**ROW, "example": 4}, seed=0)
    with AuditRows(tmp_path / "run", {"seed": 0}) as again:
        assert again.of("shape", "") == [ROW, {**ROW, "example": 4}]
        assert not again.missing("shape", "", [3, 4]) and again.missing("shape", "", [3, 5])


def test_a_row_that_is_there_is_not_written_again(tmp_path):
    """After a kill a batch is computed again of which some rows were written."""
    others = [{**ROW, "example": 4}, {**ROW, "example": 5, "attention": "x"}]
    add(tmp_path, ROW)
    add(tmp_path, {**ROW, "value": 9}, *others)
    add(tmp_path, ROW, *others)
    written = [line for path in sorted((tmp_path / "rows").iterdir()) for line in path.read_text().splitlines()]
    rows = [row for row in map(json.loads, written) if "test" in row]
    assert rows == [ROW, *others]


def test_rows_in_memory_are_those_that_will_be_read(tmp_path):
    """JSON has no tuples and no numbers as keys."""
    row = {**ROW, "value": (1, 2), "kinds": {1: "a"}}
    with AuditRows(tmp_path, {}) as first:
        first.add([row])
        held = first.of("shape", "")
    with AuditRows(tmp_path, {}) as again:
        assert again.of("shape", "") == held == [{**ROW, "value": [1, 2], "kinds": {"1": "a"}}]


def test_a_damaged_shard_is_missing_and_its_place_is_used_again(tmp_path):
    with AuditRows(tmp_path, {}) as first:
        for example in range(3):
            first.add([{**ROW, "example": example}])
    (tmp_path / "rows" / "000001.jsonl").write_bytes(b'{"test": "shape", "attention": "", "exam')
    with AuditRows(tmp_path, {}) as again:
        assert [row["example"] for row in again.of("shape", "")] == [0, 2]
        again.add([{**ROW, "example": 1}])
        again.add([{**ROW, "example": 3}])
    assert sorted(path.name for path in (tmp_path / "rows").iterdir()) == [f"{i:06}.jsonl" for i in range(4)]
    with AuditRows(tmp_path, {}) as last:
        assert [row["example"] for row in last.of("shape", "")] == [0, 1, 2, 3]


def test_another_plan_is_refused_and_leaves_the_folder_unlocked(tmp_path):
    add(tmp_path, ROW, seed=0, draws=100)
    with pytest.raises(OutputError, match="holds another audit: draws differs"):
        AuditRows(tmp_path, {"seed": 0, "draws": 50})
    add(tmp_path, ROW, seed=0, draws=100)


def test_what_is_no_plan_is_refused(tmp_path):
    (tmp_path / "plan.json").write_text("no json")
    with pytest.raises(OutputError, match="is not the plan of an audit"):
        AuditRows(tmp_path, {})


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "there").write_text("")
    with pytest.raises(OutputError, match="Cannot write to"):
        AuditRows(tmp_path / "there", {})


def test_only_one_audit_writes_to_a_folder(tmp_path):
    first = AuditRows(tmp_path, {})
    with pytest.raises(OutputError, match=f"Process {os.getpid()} is writing to"):
        AuditRows(tmp_path, {})
    first.close()
    second = AuditRows(tmp_path, {})
    del second  # nothing refers to it any more: unlocked
    add(tmp_path, ROW)


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    add(None, ROW)
    assert list(tmp_path.iterdir()) == []


def test_nan_never_reaches_the_disk(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        add(tmp_path, {**ROW, "value": float("nan")})
    assert list((tmp_path / "rows").iterdir()) == []
