"""Shards: complete, of this plan, or missing."""

import errno
import os
import signal

import pytest

from whyformer._plain import archive
from whyformer._runs.lock import lock_folder
from whyformer._runs.plan import RunPlan
from whyformer._runs.store import JSON_LINES, ShardFormat, ShardStore
from whyformer.errors import OutputError, ResourceError

PLAN = RunPlan({"seed": 0})
ROWS = ({"example": 0, "value": 0.1 + 0.2, "name": "é"}, {"example": 1, "value": [1, None, {"a": True}], "name": ""})


@pytest.fixture
def store(tmp_path):
    return ShardStore(tmp_path / "rows", PLAN, JSON_LINES)


def test_reads_what_it_wrote(store):
    store.write_rows(3, ROWS, at=[0.5])
    assert store.read_rows(3) == (ROWS, {"at": [0.5]})
    assert store.read_rows(0) is None and store.numbers() == [3]


def test_an_empty_shard_is_not_a_missing_one(store):
    store.write_rows(0, ())
    assert store.read_rows(0) == ((), {})


def test_the_same_rows_are_the_same_bytes(store):
    store.write_rows(0, ROWS)
    before = store.path(0).read_bytes()
    store.write_rows(0, ROWS)
    assert store.path(0).read_bytes() == before


def test_damaged_shards_read_as_missing(store):
    store.write_rows(0, ROWS)
    whole = store.path(0).read_bytes()
    for damaged in (b"", whole[:-7], whole[: len(whole) // 2], b"something else", b"[]\n", b"7\n", whole + b"{}\n"):
        store.path(0).write_bytes(damaged)
        assert store.read_rows(0) is None
    for place in range(len(whole)):  # one flipped bit is noticed, or it changes no row
        store.path(0).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = store.read_rows(0)
        assert found is None or found[0] == ROWS


def test_shards_of_another_plan_or_number_read_as_missing(store, tmp_path):
    store.write_rows(0, ROWS)
    assert ShardStore(tmp_path / "rows", RunPlan({"seed": 1}), JSON_LINES).read_rows(0) is None
    os.rename(store.path(0), store.path(1))
    assert store.read_rows(1) is None


def test_a_shard_is_on_disk_before_it_has_its_name(store, monkeypatch):
    """fsync of the file, rename, fsync of the folder: a power cut cannot leave half a shard."""
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (calls.append(name), real(*a))[1])
    store.write_rows(0, ROWS)
    assert calls == ["fsync", "replace", "fsync"]


def test_a_shard_that_does_not_read_back_is_an_error(store, monkeypatch):
    monkeypatch.setattr(archive, "write_file", lambda path, contents: path.write_bytes(contents[:-9]))
    with pytest.raises(ResourceError, match=r"000000\.jsonl was written but could not be read back"):
        store.write_rows(0, ROWS)


def test_a_row_that_cannot_be_encoded_leaves_no_file(store):
    with pytest.raises(ValueError, match="JSON"):
        store.write_rows(0, ({"value": float("nan")},))
    assert store.numbers() == [] and list(store.folder.iterdir()) == []


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_full_disk_is_named_and_leaves_no_file(store, monkeypatch, name):
    def fill(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store.write_rows(0, ROWS)
    with monkeypatch.context() as patch:
        patch.setattr(os, name, fill)
        with pytest.raises(ResourceError, match=r"No space left on device\. .* bytes are needed") as raised:
            store.write_rows(1, ROWS)
    assert raised.value.code == "E_DISK_FULL" and raised.value.exit_code == 5
    assert store.numbers() == [0] and len(list(store.folder.iterdir())) == 1
    assert store.read_rows(0) == (ROWS, {})


def test_pipes_and_folders_in_place_of_shards_do_not_block(store):
    os.mkfifo(store.path(0))
    store.path(1).mkdir()
    assert store.read_rows(0) is None and store.read_rows(1) is None and store.numbers() == []


def test_a_file_in_place_of_the_folder_of_shards(tmp_path):
    (tmp_path / "rows").write_text("x")
    with pytest.raises(OutputError, match="Cannot write to the folder"):
        ShardStore(tmp_path / "rows", PLAN, JSON_LINES)


def test_other_files_in_the_folder_are_ignored(store):
    (store.folder / "notes.jsonl").write_text("mine")
    (store.folder / "000001.txt").write_text("mine")
    assert store.numbers() == []


def test_any_format_will_do(tmp_path):
    def decode(path):
        header, *rows = path.read_text().splitlines()
        return rows, header

    words = ShardFormat(".txt", lambda rows, header: "\n".join([header, *rows]).encode(), decode)
    store = ShardStore(tmp_path, PLAN, words)
    store.write_rows(0, ["one", "two"])
    assert store.path(0).name == "000000.txt" and store.read_rows(0) == (("one", "two"), {})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("step", range(1, 7))
def test_killed_at_any_step_a_shard_is_complete_or_missing(tmp_path, step):
    """Before and after each of fsync, rename and fsync of the folder."""
    child = os.fork()
    if child == 0:
        kill_at(step)
        write_one_shard(tmp_path)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    with lock_folder(tmp_path):
        store = ShardStore(tmp_path / "rows", PLAN, JSON_LINES)
        assert {path.suffix for path in store.folder.iterdir()} <= {".jsonl"}
        assert store.read_rows(0) == (None if step <= 3 else (ROWS, {}))
    write_one_shard(tmp_path)
    assert store.read_rows(0) == (ROWS, {})


def write_one_shard(folder):
    with lock_folder(folder):
        ShardStore(folder / "rows", PLAN, JSON_LINES).write_rows(0, ROWS)


def kill_at(step):
    """Kill this process before (odd steps) or after (even steps) a call that puts a file on disk."""
    steps = iter(range(1, 100))

    def watch(real):
        def call(*given):
            for work in (lambda: None, lambda: real(*given)):
                work()
                if next(steps) == step:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call

    for name in ("fsync", "replace"):
        setattr(os, name, watch(getattr(os, name)))
