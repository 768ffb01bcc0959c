"""One writer at a time, and a clean folder to begin with."""

import os

import pytest

from whyformer._runs.lock import lock_folder
from whyformer.errors import InputError


def test_only_one_writes_at_a_time(tmp_path):
    with (
        lock_folder(tmp_path),
        pytest.raises(InputError, match=f"Process {os.getpid()} is writing to"),
        lock_folder(tmp_path),
    ):
        pass
    with lock_folder(tmp_path / "new" / "folder"):
        pass
    with lock_folder(tmp_path):
        pass


def test_is_released_after_an_error(tmp_path):
    with pytest.raises(KeyboardInterrupt), lock_folder(tmp_path):
        raise KeyboardInterrupt
    with lock_folder(tmp_path):
        pass


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="Cannot write to the folder"), lock_folder(tmp_path / "file"):
        pass


def test_removes_what_a_killed_process_left(tmp_path):
    (tmp_path / "rows").mkdir()
    for leftover in (tmp_path / ".ab.tmp", tmp_path / "rows" / ".cd.tmp", tmp_path / "mine.tmp"):
        leftover.write_text("x")
    with lock_folder(tmp_path):
        assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {".lock", "mine.tmp"}
