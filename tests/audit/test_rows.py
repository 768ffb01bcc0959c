"""Rows on disk: whole lines are kept, half a line is forgotten, another plan is refused."""

import json

import pytest

from whyformer._audit.rows import AuditRows
from whyformer.errors import InputError

ROW = {"test": "shape", "attention": "", "example": 3, "value": 0.1 + 0.2}


def test_rows_are_there_again_bit_for_bit(tmp_path):
    first = AuditRows(tmp_path / "run", {"seed": 0})
    first.add([ROW, {**ROW, "example": 4}])
    again = AuditRows(tmp_path / "run", {"seed": 0})
    assert again.of("shape", "") == [ROW, {**ROW, "example": 4}]
    assert not again.missing("shape", "", [3, 4]) and again.missing("shape", "", [3, 5])


def test_a_line_cut_off_in_the_middle_is_forgotten(tmp_path):
    AuditRows(tmp_path, {}).add([ROW])
    with (tmp_path / "rows.jsonl").open("ab") as file:
        file.write(b'{"test": "shape", "attention": "", "exam')
    again = AuditRows(tmp_path, {})
    again.add([{**ROW, "example": 9}])
    assert [row["example"] for row in AuditRows(tmp_path, {}).of("shape", "")] == [3, 9]


def test_another_plan_is_refused(tmp_path):
    AuditRows(tmp_path, {"seed": 0, "draws": 100})
    with pytest.raises(InputError, match="holds another audit: draws differ"):
        AuditRows(tmp_path, {"seed": 0, "draws": 50})


def test_what_is_no_plan_is_refused(tmp_path):
    (tmp_path / "plan.json").write_text("no json")
    with pytest.raises(InputError, match="is no plan of an audit"):
        AuditRows(tmp_path, {})


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "there").write_text("")
    with pytest.raises(InputError, match="Cannot write to"):
        AuditRows(tmp_path / "there", {})


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    AuditRows(None, {}).add([ROW])
    assert list(tmp_path.iterdir()) == []


def test_nan_never_reaches_the_disk(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        AuditRows(tmp_path, {}).add([{**ROW, "value": float("nan")}])
    assert all(json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines())
