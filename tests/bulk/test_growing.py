"""A run grows by items and methods, and failed items are tried again: what is there is kept and not computed again."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from bulk.bulk_inputs import METHODS, MODEL, check_complete, hash_parts, run_bulk, write_images
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import whyformer as why
from whyformer._bulk.items import ItemList
from whyformer._bulk.worker import ShardWorker
from whyformer.errors import InputError, OutputError

SHARD = 4  # of run_bulk


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Twelve images: three shards."""
    return write_images(tmp_path_factory.mktemp("images"), 12)


@pytest.fixture
def explained(monkeypatch):
    """(id, method) of everything that is computed, in order."""
    cells = []
    inner = ShardWorker.explain_together

    def explain_and_note(self, batch, methods, *rest):
        cells.extend((one.item.id, label) for one in batch for label in methods)
        return inner(self, batch, methods, *rest)

    monkeypatch.setattr(ShardWorker, "explain_together", explain_and_note)
    return cells


def list_images(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.png"))


def copy_images(paths: list[Path], root: Path, folder: Path) -> Path:
    for path in paths:
        (folder / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path.relative_to(root))
    return folder


def list_rows(run: why.BulkRun):
    return {(row["id"], row["method"]): (row["scores"], row["error"]) for row in run.table().to_pylist()}


# --- items ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [4, 8])
def test_items_added_after_full_shards_give_the_bytes_of_one_run(images, tmp_path, explained, first):
    data = tmp_path / "data"
    paths = list_images(images)
    golden = run_bulk(images, tmp_path / "golden")
    run_bulk(copy_images(paths[:first], images, data), tmp_path / "run")
    parts = {path: path.read_bytes() for path in (tmp_path / "run" / "parts").iterdir()}
    copy_images(paths[first:], images, data)
    explained.clear()
    run = run_bulk(data, tmp_path / "run", grow=True)
    new = [str(path.relative_to(images)) for path in paths[first:]]
    assert run.computed == len(new) and sorted(explained[2:]) == sorted((id, m) for id in new for m in METHODS)
    assert {path: path.read_bytes() for path in parts} == parts  # not a byte of what was there
    assert strip_sources(run) == strip_sources(golden)
    assert (tmp_path / "run" / "plan.json").read_bytes() == (tmp_path / "golden" / "plan.json").read_bytes()
    assert run_bulk(data, tmp_path / "run").computed == 0  # the plan has grown: no need to say it again


def strip_sources(run: why.BulkRun):
    return run.table().drop_columns(["source"]).to_pylist()


def test_two_steps_are_the_bytes_of_one_run(images, tmp_path):
    """The same files under the same paths, through lists of paths."""
    paths = [str(path) for path in list_images(images)]
    golden = hash_parts(run_bulk(paths, tmp_path / "golden").folder)
    for count in (4, 8, 12):
        run_bulk(paths[:count], tmp_path / "run", grow=True)
    assert hash_parts(tmp_path / "run") == golden


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_steps_are_one_run_up_to_the_last_digits(images, tmp_path_factory, steps):
    """A shard that was begun keeps its rows, which then shared their batch with fewer items."""
    folder = tmp_path_factory.mktemp("steps")
    paths = [str(path) for path in list_images(images)]
    for step in range(len(steps)):
        count = min(12, sum(steps[: step + 1]))
        run = run_bulk(paths[:count], folder / "run", methods="rollout", grow=True)
    golden = run_bulk(paths[:count], folder / "golden", methods="rollout")
    for one, two in zip(run.table().to_pylist(), golden.table().to_pylist(), strict=True):
        scores = [row.pop("scores") for row in (one, two)]
        chances = [row.pop("probability") for row in (one, two)]
        assert one == two
        assert scores[0] == pytest.approx(scores[1], abs=1e-5) and chances[0] == pytest.approx(chances[1], abs=1e-5)


def test_items_between_the_others_come_after_them(images, tmp_path, explained):
    """A folder is read in the order of names, but what is there keeps its place."""
    data, paths = tmp_path / "data", list_images(images)
    run_bulk(copy_images(paths[1::2], images, data), tmp_path / "run", methods="rollout")
    copy_images(paths, images, data)
    explained.clear()
    run = run_bulk(data, tmp_path / "run", methods="rollout", grow=True)
    ids = [str(path.relative_to(images)) for path in (*paths[1::2], *paths[::2])]
    check_complete(run, ids, ("rollout",))
    assert run.table().column("position").to_pylist() == list(range(12))
    assert {id for id, _ in explained[1:]} == set(ids[6:])
    (run.parts / "part-00001.parquet").unlink()  # holds items of both steps
    assert run_bulk(data, tmp_path / "run", methods="rollout").computed == 4
    check_complete(run, ids, ("rollout",))
    summary = why.summarise_bulk(run.folder, test=False)
    assert summary.tally.rows == 12


def test_growth_that_was_interrupted_goes_on(images, tmp_path, monkeypatch):
    data, paths = tmp_path / "data", list_images(images)
    run_bulk(copy_images(paths[1::2], images, data), tmp_path / "run")
    copy_images(paths, images, data)
    with monkeypatch.context() as patch:
        patch.setattr("whyformer._bulk.job.merge_part", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_bulk(data, tmp_path / "run", grow=True)
    run = run_bulk(data, tmp_path / "run")
    ids = [str(path.relative_to(images)) for path in (*paths[1::2], *paths[::2])]
    check_complete(run, ids)


def test_a_run_does_not_grow_unless_asked(images, tmp_path):
    paths = [str(path) for path in list_images(images)]
    run_bulk(paths[:5], tmp_path / "run", methods="rollout")
    before = hash_parts(tmp_path / "run")
    with pytest.raises(OutputError, match=r"data fingerprint, data items differ.*pass grow=True \(--grow\)"):
        run_bulk(paths, tmp_path / "run", methods="rollout")
    with pytest.raises(OutputError, match=r"methods attcat differs.*pass grow=True"):
        run_bulk(paths[:5], tmp_path / "run", methods=["rollout", "attcat"])
    with pytest.raises(OutputError, match="batch, data fingerprint, data items differ") as refused:
        run_bulk(paths, tmp_path / "run", methods="rollout", batch_size=2, grow=True)
    assert "grow=True" not in str(refused.value)
    assert hash_parts(tmp_path / "run") == before


def test_growing_loses_nothing(images, tmp_path):
    """Items and methods of the run that the call has not are named."""
    data, paths = tmp_path / "data", list_images(images)
    run_bulk(copy_images(paths[:5], images, data), tmp_path / "run")
    (data / paths[0].relative_to(images)).unlink()
    with pytest.raises(OutputError, match=r"has rows of '.*0000\.png', which are not in the data") as refused:
        run_bulk(data, tmp_path / "run", grow=True)
    assert refused.value.code == "E_OUT_MISMATCH"
    copy_images(paths[:6], images, data)
    with pytest.raises(OutputError, match="has rows of 'rollout', which are not among the methods"):
        run_bulk(data, tmp_path / "run", methods=["transformer_attribution"], grow=True)
    with pytest.raises(InputError, match="grow and limit cannot be combined"):
        run_bulk(data, tmp_path / "run", grow=True, limit=3)
    copy_images(paths[:5], images, tmp_path / "five")
    assert run_bulk(tmp_path / "five", tmp_path / "run").computed == 0


# --- methods ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [METHODS, METHODS[::-1]], ids=["in order", "the other way round"])
def test_an_added_method_gives_the_bytes_of_one_run(images, tmp_path, explained, named):
    golden = run_bulk(images, tmp_path / "golden")
    run_bulk(images, tmp_path / "run", methods=METHODS[:1])
    explained.clear()
    run = run_bulk(images, tmp_path / "run", methods=named, grow=True)
    assert run.methods == METHODS and run.computed == 12
    assert {label for _, label in explained[2:]} == set(METHODS[1:])
    assert hash_parts(run.folder) == hash_parts(golden.folder)
    assert run_bulk(images, tmp_path / "run", methods=METHODS[::-1]).computed == 0


def test_an_added_method_of_texts_gives_the_bytes_of_one_run(tmp_path):
    texts = [f"a {word} film about {n} things" for n, word in enumerate(["good", "dull", "warm", "bad"] * 3)]
    both = {"model": "demo/sentiment", "methods": ["attcat", "libragrad"]}
    golden = run_bulk(texts, tmp_path / "golden", **both)
    run_bulk(texts, tmp_path / "run", model="demo/sentiment", methods="attcat")
    run = run_bulk(texts, tmp_path / "run", **both, grow=True)
    assert hash_parts(run.folder) == hash_parts(golden.folder)


def test_items_and_methods_can_be_added_at_once(images, tmp_path, explained):
    """Five items by one method, then twelve by two: only what is missing of each is computed."""
    paths = [str(path) for path in list_images(images)]
    run_bulk(paths[:5], tmp_path / "run", methods=METHODS[:1])
    explained.clear()
    run = run_bulk(paths, tmp_path / "run", grow=True)
    check_complete(run, [f"example {n}" for n in range(12)])
    wanted = [(f"example {n}", label) for n in range(12) for label in METHODS if n >= 5 or label == METHODS[1]]
    assert sorted(explained[2:]) == sorted(wanted)
    golden = run_bulk(paths, tmp_path / "golden")
    for (one, _), (two, _) in zip(list_rows(run).values(), list_rows(golden).values(), strict=True):
        assert one == pytest.approx(two, abs=1e-4 * max(map(abs, two)))


# --- failed items -----------------------------------------------------------------------------------------------------


def test_only_what_failed_is_tried_again(images, tmp_path, explained):
    """Also if the file has changed since, as it has when it was mended."""
    data = copy_images(list_images(images), images, tmp_path / "data")
    broken = list_images(data)[5]
    whole = broken.read_bytes()
    broken.write_bytes(b"broken")
    run = run_bulk(data, tmp_path / "run")
    kept = {key: value for key, value in list_rows(run).items() if value[1] is None}
    assert run.failed == 1 and len(kept) == 22
    broken.write_bytes(whole)
    explained.clear()
    assert run_bulk(data, tmp_path / "run").failed == 1 and not explained
    again = run_bulk(data, tmp_path / "run", retry_failed=True)
    assert (again.failed, again.computed) == (0, 1)
    id = str(broken.relative_to(data))
    assert explained == [(id, label) for label in METHODS]
    rows = list_rows(again)
    assert {key: rows[key] for key in kept} == kept
    golden = list_rows(run_bulk(data, tmp_path / "golden"))
    for label in METHODS:
        assert rows[id, label][0] == pytest.approx(golden[id, label][0], rel=1e-3, abs=1e-6)
    assert list(rows) == list(golden)


def test_a_method_that_failed_is_tried_alone(images, tmp_path, explained, monkeypatch):
    paths = [str(path) for path in list_images(images)][:4]
    inner = ShardWorker.explain_together

    def fail_on_one(self, batch, methods, *rest):
        rows, failed = inner(self, batch, methods, *rest)
        if any(one.item.position == 2 for one in batch) and "rollout" in methods:
            rows = {key: row for key, row in rows.items() if key[1] != "rollout"}
            failed = {**failed, "rollout": ValueError("not today")}
        return rows, failed

    with monkeypatch.context() as patch:
        patch.setattr(ShardWorker, "explain_together", fail_on_one)
        run = run_bulk(paths, tmp_path / "run")
    assert [(row["id"], row["method"]) for row in run.errors()] == [("example 2", "rollout")]
    explained.clear()
    assert run_bulk(paths, tmp_path / "run", retry_failed=True).failed == 0
    assert explained == [("example 2", "rollout")]


def test_a_row_of_a_table_that_was_mended_takes_its_place(tmp_path):
    """Its id was its place in the file, and is the one in its column now."""
    table = tmp_path / "reviews.csv"
    table.write_text("id,text\nr1,a gorgeous film\nr2,\nr3,dull\n")
    options = {"model": "demo/sentiment", "methods": "attcat"}
    assert run_bulk(table, tmp_path / "run", **options).failed == 1
    table.write_text("id,text\nr1,a gorgeous film\nr2,a fine film\nr3,dull\n")
    run = run_bulk(table, tmp_path / "run", **options, grow=True)
    assert (run.failed, run.computed) == (0, 1)
    assert [row["id"] for row in run.table().to_pylist()] == ["r1", "r2", "r3"]


# --- the same file ----------------------------------------------------------------------------------------------------


def test_a_touched_file_and_another_way_to_write_its_path_are_the_same_item(images, tmp_path, monkeypatch):
    data = copy_images(list_images(images), images, tmp_path / "data")
    run_bulk(data, tmp_path / "run", methods="rollout")
    before = hash_parts(tmp_path / "run")
    (tmp_path / "link").symlink_to(data)
    monkeypatch.chdir(tmp_path)
    ways = ["data", "./data", "data/", f"{data}/", "link", Path("data/../data"), str(data / "**" / "*.png")]
    for number, way in enumerate(ways):
        for path in list_images(data)[number:]:
            os.utime(path, ns=(number, number))
        (tmp_path / "run" / "parts" / "part-00001.parquet").unlink()
        assert run_bulk(way, tmp_path / "run", methods="rollout").computed == SHARD, way
    assert run_bulk(data, tmp_path / "run", methods="rollout").computed == 0
    assert (
        hash_parts(tmp_path / "run") == before
    )  # the last way is the path of the first, which is in the column source


def test_a_touched_tar_is_the_same(images, tmp_path):
    import tarfile

    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        for path in list_images(images)[:4]:
            tar.add(path, path.name)
    run_bulk(tmp_path / "photos.tar", tmp_path / "run", methods="rollout")
    os.utime(tmp_path / "photos.tar", ns=(5, 5))
    assert run_bulk(tmp_path / "photos.tar", tmp_path / "run", methods="rollout").computed == 0


def test_a_touched_file_is_hashed_once(images, tmp_path, monkeypatch):
    """And one that was not, never."""
    data = copy_images(list_images(images), images, tmp_path / "data")
    run_bulk(data, tmp_path / "run", methods="rollout")
    from whyformer._bulk import held

    hashed = []
    inner = held.mark_content
    monkeypatch.setattr(held, "mark_content", lambda content, kind: hashed.append(content) or inner(content, kind))
    touched = list_images(data)[3]
    os.utime(touched, ns=(7, 7))
    for _ in range(2):
        run_bulk(data, tmp_path / "run", methods="rollout")
    assert hashed == [touched]
    (tmp_path / "run" / "items.json").write_text("not JSON")
    assert run_bulk(data, tmp_path / "run", methods="rollout").computed == 0
    assert len(hashed) == 13


@pytest.mark.parametrize("change", ["pixels", "label", "text"])
def test_an_item_that_has_changed_is_refused(images, tmp_path, change):
    """Of the same size, with the old time of change: the stamp alone would not tell, if the file had been touched."""
    if change == "text":
        run_bulk(["a good film", "a bad film"], tmp_path / "run", model="demo/sentiment", methods="attcat")
        with pytest.raises(OutputError, match="has rows of 'example 1', which have changed since"):
            run_bulk(
                ["a good film", "a dull film"], tmp_path / "run", model="demo/sentiment", methods="attcat", grow=True
            )
        return
    data = copy_images(list_images(images), images, tmp_path / "data")
    run_bulk(data, tmp_path / "run", methods="rollout")
    first = list_images(data)[0]
    if change == "pixels":
        rng = np.random.default_rng(5)
        Image.fromarray(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(first)
        with pytest.raises(OutputError, match=r"has rows of 'cat.0000\.png', which have changed since"):
            run_bulk(data, tmp_path / "run", methods="rollout")
    else:
        with pytest.raises(OutputError, match="which have changed since"):
            why.bulk(MODEL, data, "rollout", out=tmp_path / "run", workers=1, classes={"cat": "tiger"})


# --- arranging --------------------------------------------------------------------------------------------------------


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)))
def test_arranging_twice_is_arranging_once(order, placed):
    """Whatever part of an arrangement was computed when a run stopped, the rest of it follows."""
    items = ItemList(why.data.read([f"text {n}" for n in range(6)]))
    items.arrange(dict(enumerate(order[:3])))
    ids = [item.id for item in items]
    again = ItemList(why.data.read([f"text {n}" for n in range(6)]))
    inputs = {item.id: n for n, item in enumerate(again)}
    done = {*range(3), *placed}
    again.arrange({index: inputs[ids[index]] for index in done})
    assert [item.id for item in again] == ids
    assert sorted(ids) == sorted(inputs) and [item.position for item in again] == list(range(6))
