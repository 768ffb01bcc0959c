"""One writer at a time, and a clean folder to begin with."""

import errno
import os
from pathlib import Path

import pytest

from whyformer._runs.lock import lock_folder
from whyformer.errors import OutputError, ResourceError


def test_only_one_writes_at_a_time(tmp_path):
    with (
        lock_folder(tmp_path),
        pytest.raises(OutputError, match=f"Process {os.getpid()} is writing to"),
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
    for path in (tmp_path / "file", tmp_path / "nul\0", tmp_path / ("x" * 300)):
        with pytest.raises(OutputError, match="Cannot write to the folder") as raised, lock_folder(path):
            pass
        assert raised.value.code == "E_OUT_PATH"


def test_the_code_of_a_locked_folder(tmp_path):
    with lock_folder(tmp_path), pytest.raises(OutputError) as raised, lock_folder(tmp_path):
        pass
    assert raised.value.code == "E_OUT_LOCKED"


def test_a_full_disk(tmp_path, monkeypatch):
    def fill(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", fill)
    with pytest.raises(ResourceError, match="No space left on device") as raised, lock_folder(tmp_path / "new"):
        pass
    assert raised.value.code == "E_DISK_FULL"


def test_removes_what_a_killed_process_left(tmp_path):
    (tmp_path / "rows").mkdir()
    for leftover in (tmp_path / ".ab.tmp", tmp_path / "rows" / ".cd.tmp", tmp_path / "mine.tmp"):
        leftover.write_text("x")
    with lock_folder(tmp_path):
        assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {".lock", "mine.tmp"}
