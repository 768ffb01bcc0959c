"""The rows of a judgement on disk: complete, in order and of this plan, or missing."""

import os
from dataclasses import fields, replace

import pytest
from judge.bench_parts import a_plan

from whyformer._judge import rows
from whyformer._judge.rows import JudgeStore, Row, RowTable, Shard
from whyformer.errors import InputError


def a_shard(plan, number=0, value=1.0) -> Shard:
    held = [
        Row(e, f"é {e}", m, k, value=value * e, curve=(0.5, float("nan")), parts=(1.0, 2.0), forward=1.0)
        for e in plan.indices(number)
        for m in plan.methods
        for k in plan.metrics
    ]
    return Shard(tuple(held), {"first_score": [0.1, 0.2]})


@pytest.fixture
def store(tmp_path):
    return JudgeStore(tmp_path, a_plan(batch=4))


def test_reads_what_it_wrote(store):
    store.write(1, a_shard(store.plan, 1))
    found = store.read(1)
    assert repr(found.rows) == repr(a_shard(store.plan, 1).rows)  # as text, NaN equals NaN
    assert found.at == {"first_score": [0.1, 0.2]}
    assert store.read(0) is None


def test_the_same_rows_are_the_same_bytes(store):
    store.write(0, a_shard(store.plan))
    before = store.path(0).read_bytes()
    store.write(0, a_shard(store.plan))
    assert store.path(0).read_bytes() == before


def test_a_damaged_shard_reads_as_missing(store):
    store.write(0, a_shard(store.plan))
    whole = store.path(0).read_bytes()
    for damaged in (b"", whole[:-7], whole[: len(whole) // 2], b"something else"):
        store.path(0).write_bytes(damaged)
        assert store.read(0) is None
    for place in range(0, len(whole), 97):  # one flipped bit is noticed, or it changes no row
        store.path(0).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = store.read(0)
        assert found is None or repr(found.rows) == repr(a_shard(store.plan).rows)


def test_a_shard_of_another_plan_or_number_reads_as_missing(store):
    store.write(0, a_shard(store.plan))
    other = JudgeStore(store.folder.parent, a_plan(batch=4, target="label"))
    assert other.read(0) is None
    os.rename(store.path(0), store.path(1))
    assert store.read(1) is None


def test_rows_are_neither_lost_nor_doubled(store):
    good = a_shard(store.plan)
    for wrong in (good.rows[:-1], (*good.rows, good.rows[0]), good.rows[::-1]):
        with pytest.raises(ValueError, match="does not hold exactly the rows of its plan"):
            store.write(0, replace(good, rows=wrong))


def test_all_rows_as_arrays(store):
    for number in range(store.plan.shards):
        store.write(number, a_shard(store.plan, number))
    held = RowTable(store)
    assert held.value.shape == (10, 1, 1) and held.value[:, 0, 0].tolist() == [float(e) for e in range(10)]
    assert held.parts(0, 0).tolist() == [[1.0, 2.0]] * 10
    assert [row.example for row in held.examples()] == list(range(10))
    store.path(1).unlink()
    with pytest.raises(InputError, match="Rows are missing"):
        RowTable(store)


def test_a_shard_written_before_a_column_was_added_can_be_read(store, monkeypatch):
    monkeypatch.setattr(rows, "fields", lambda kind: [f for f in fields(kind) if f.name != "undetermined"])
    store.write(0, a_shard(store.plan))
    monkeypatch.undo()
    assert repr(store.read(0).rows) == repr(a_shard(store.plan).rows)
