"""Parts: the schema that readers rely on, the same bytes for the same rows, and a seal that notices damage."""

import hashlib
import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from whyformer._bulk.plan import BulkPlan
from whyformer._runs.parts import BulkRow, PartStore, encode_part, fingerprint_parts, make_schema, read_part
from whyformer._runs.seal import make_unsealed_header, read_seal, seal_file
from whyformer.errors import ResourceError

PLAN = BulkPlan({"shard": 2, "batch": 1, "threads": 1, "data": {"items": 3}})
ROWS = (
    BulkRow(
        "a.png", 0, "rollout", "image", source="x/a.png", label="cat", prediction=1, prediction_name="dog",
        probability=0.5, target=1, target_name="dog", scores=np.arange(4, dtype=np.float32), rows=2, columns=2,
        map_png=b"png",
    ),
    BulkRow(
        "b", 1, "lrp(start=1)", "text", source="a b", scores=np.ones(3, np.float32), tokens=("[CLS]", "a", "\udc80"),
        special=[True, False, False], starts=[-1, 0, 2], ends=[-1, 1, 3],
    ),
    BulkRow("c", 2, "rollout", "image", error="E_IMG_READ", message="there is no such file"),
)  # fmt: skip

# What other programs read: a change here breaks them.
COLUMNS = {
    "id": pa.string(), "position": pa.int64(), "method": pa.string(), "error": pa.string(), "message": pa.string(),
    "kind": pa.string(), "source": pa.string(), "label": pa.string(), "prediction": pa.int32(),
    "prediction_name": pa.string(), "probability": pa.float32(), "target": pa.int32(), "target_name": pa.string(),
    "scores": pa.list_(pa.float32()), "rows": pa.int32(), "columns": pa.int32(), "tokens": pa.list_(pa.string()),
    "special": pa.list_(pa.bool_()), "starts": pa.list_(pa.int32()), "ends": pa.list_(pa.int32()),
    "map_png": pa.binary(), "content": pa.string(), "hidden_units": pa.int32(), "top_hidden": pa.float32(),
    "all_hidden": pa.float32(),
}  # fmt: skip


@pytest.fixture
def store(tmp_path):
    return PartStore(tmp_path, PLAN)


def make_part(number: int = 0, rows=ROWS) -> bytes:
    return encode_part(rows, number, fingerprint_parts(PLAN.fields))


def test_the_columns_are_those_of_the_schema(store):
    assert dict(zip(make_schema().names, make_schema().types, strict=True)) == COLUMNS
    store.write_file(0, make_part())
    stored = parquet.read_schema(store.path(0))
    assert stored.names == list(COLUMNS)
    assert [str(kind).replace("element", "item") for kind in stored.types] == [str(kind) for kind in COLUMNS.values()]


def test_rows_come_back_as_they_were_written(store):
    store.write_file(0, make_part())
    image, text, error = read_part(store.path(0)).to_pylist()
    assert image["scores"] == [0, 1, 2, 3] and (image["rows"], image["columns"]) == (2, 2)
    assert image["map_png"] == b"png" and image["tokens"] is None
    assert text["tokens"] == ["[CLS]", "a", "\\udc80"] and text["starts"] == [-1, 0, 2]
    assert (error["error"], error["message"]) == ("E_IMG_READ", "there is no such file") and error["scores"] is None


def test_the_same_rows_are_the_same_bytes():
    assert make_part() == make_part() and make_part() != make_part(1)


def test_a_part_is_named_by_its_number_and_tells_how_many_items_failed(store):
    assert store.write_file(0, make_part())["failed"] == 1
    assert [path.name for path in store.folder.iterdir()] == ["part-00000.parquet"]
    assert store.numbers() == [0]
    assert store.path(123456).name == "part-123456.parquet"


def test_a_failed_item_counts_once_for_several_methods():
    row = BulkRow("c", 2, "a", "image", error="E_IMG_READ")
    other = BulkRow("c", 2, "b", "image", error="E_IMG_READ")
    assert read_seal(make_part(rows=(row, other)))["failed"] == 1


def test_parts_of_another_plan_or_number_count_as_missing(store, tmp_path):
    store.write_file(0, make_part())
    assert PartStore(tmp_path, BulkPlan({**PLAN.fields, "batch": 2})).read_facts(0) is None
    os.rename(store.path(0), store.path(1))
    assert store.read_facts(1) is None and store.read_facts(0) is None


def test_every_flipped_bit_and_every_cut_is_noticed(store):
    whole = make_part()
    assert read_seal(whole) is not None
    for place in range(len(whole)):
        assert read_seal(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]) is None
    for length in range(0, len(whole), 7):
        assert read_seal(whole[:length]) is None
    assert read_seal(whole + b"x") is None


@given(st.binary(max_size=200))
def test_foreign_files_have_no_seal(contents):
    assert read_seal(contents) is None


def test_the_seal_by_hand():
    """SHA-256 of the file with 64 zeros in the place of the checksum."""
    unsealed = b"PAR1 rows whyformer.part " + make_unsealed_header({"shard": 3}) + b" end"
    checksum = hashlib.sha256(unsealed).hexdigest()
    sealed = b'PAR1 rows whyformer.part {"shard": 3, "sha256": "' + checksum.encode() + b'"} end'
    assert seal_file(unsealed) == sealed
    assert read_seal(sealed) == {"shard": 3}


def test_only_an_unsealed_file_can_be_sealed():
    with pytest.raises(ValueError, match="no header to seal"):
        seal_file(b"something else")
    with pytest.raises(ValueError, match="no header to seal"):
        seal_file(make_part())


def test_a_text_that_looks_like_a_seal_does_not_break_one(store):
    fake = '"sha256": "' + "0" * 64 + '"}'
    store.write_file(0, make_part(rows=(BulkRow(fake, 0, fake, "text", source=fake, scores=np.ones(1, np.float32)),)))
    assert store.read_facts(0) is not None


def test_a_part_is_forced_to_disk_before_and_after_it_gets_its_name(store, monkeypatch):
    """The order fsync(file), rename, fsync(folder) survives a power failure."""
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("replace"), replace(*names)))
    store.write_file(0, make_part())
    assert calls == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [(28, ResourceError, "E_DISK_FULL"), (122, ResourceError, "E_DISK_FULL"), (27, ResourceError, "E_DISK_FULL"),
     (5, ResourceError, "E_DISK"), (30, ResourceError, "E_DISK")],
    ids=["full", "quota", "file too large", "input/output error", "read-only"],
)  # fmt: skip
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_no_part_and_says_so(store, monkeypatch, number, kind, code, call):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(kind, match=r"part-00000\.parquet|parts") as failed:
            store.write_file(0, make_part())
    assert (failed.value.code, failed.value.exit_code) == (code, 5)
    assert not list(store.folder.iterdir())
    assert f"{len(make_part()):,} bytes are needed" in str(failed.value)
    store.write_file(0, make_part())  # after space was freed
