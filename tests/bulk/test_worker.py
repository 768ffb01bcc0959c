"""A worker: the rows are those of explain(), whatever the batch; a bad item costs one item."""

import time

import numpy as np
import pytest
import torch
from bulk.bulk_inputs import METHODS, MODEL, write_images
from PIL import Image

import whyformer as why
from whyformer import data
from whyformer._bulk.feed import ShardFeed
from whyformer._bulk.items import ItemList
from whyformer._bulk.loading import LoadedItem, encode_batch, group_into_batches
from whyformer._bulk.worker import ShardWorker, WorkerSetup
from whyformer._engine import run_request
from whyformer._runs.parts import BulkRow
from whyformer.errors import NonFinite

SENTENCES = ["a gorgeous film", "bad", "a dull and boring film that never ends", "good , good , good", "fine"]


def make_worker(model: str = MODEL, **changes) -> ShardWorker:
    opened = why.open(model)
    setup = {
        "model": model, "weights": "", "methods": METHODS, "target": "predicted", "fingerprint": "", "batch": 3,
        "threads": 1, "precision": "highest", "truncate": False, "maps": False, "loaders": 2, **changes,
    }  # fmt: skip
    return ShardWorker(WorkerSetup(**setup), opened)


def make_rows(worker: ShardWorker, source) -> list[BulkRow]:
    items = list(ItemList(data.read(source)))
    try:
        return worker.make_rows(items, ShardFeed(worker.loaders.start(items), worker.encoder, worker.limit))
    finally:
        worker.close()


def test_the_rows_of_images_are_what_explain_gives(tmp_path):
    worker = make_worker()
    folder = write_images(tmp_path, 7)
    rows = make_rows(worker, folder)
    paths = sorted(folder.rglob("*.png"))
    assert [row.id for row in rows] == [str(path.relative_to(folder)) for path in paths for _ in METHODS]
    for method in METHODS:
        explained = why.explain(worker.model, [str(path) for path in paths], method)
        mine = [row for row in rows if row.method == method]
        # transformer_attribution amplifies the last digits of float32 on a model that was not trained
        np.testing.assert_allclose([row.scores for row in mine], explained.scores, rtol=1e-2, atol=1e-5)
        assert [row.target for row in mine] == [target.index for target in explained.targets]
        assert [row.prediction_name for row in mine] == [target.label for target in explained.targets]
        expected = [target.probability for target in explained.targets]
        np.testing.assert_allclose([row.probability for row in mine], expected, rtol=1e-5)
    assert {(row.rows, row.columns) for row in rows} == {(explained.tokens[0].rows, explained.tokens[0].columns)}
    assert [row.label for row in rows[:2]] == ["cat", "cat"] and rows[-1].label == "dog"


def test_the_rows_of_texts_have_their_tokens_without_padding():
    rows = make_rows(make_worker("demo/sentiment", methods=("attcat",)), SENTENCES)
    model = why.open("demo/sentiment")
    for row, text in zip(rows, SENTENCES, strict=True):
        alone = why.explain(model, text, "attcat")
        assert row.tokens == alone.tokens[0].pieces and len(row.scores) == len(row.tokens)
        np.testing.assert_allclose(row.scores, alone.scores[0], rtol=1e-4, atol=1e-6)
        for piece, start, end, special in zip(row.tokens, row.starts, row.ends, row.special, strict=True):
            assert (start, end) == (-1, -1) if special else text[start:end].lower() == piece.removeprefix("##")
        assert row.source == text and row.kind == "text"


def test_the_prediction_is_told_also_when_another_class_is_explained(tmp_path):
    folder = write_images(tmp_path, 4)
    predicted = make_rows(make_worker(), folder)
    other = make_rows(make_worker(target=0), folder)
    assert {row.target for row in other} == {0}
    assert [row.prediction for row in other] == [row.prediction for row in predicted]
    assert [row.prediction_name for row in other] == [row.prediction_name for row in predicted]
    np.testing.assert_allclose([r.probability for r in other], [r.probability for r in predicted], rtol=1e-6)


def test_a_label_as_target_must_be_a_class_of_the_model():
    model = why.open("demo/sentiment")
    source = [("a good film", model.labels[0]), ("a good film", "unheard of"), ("a good film", None)]
    rows = make_rows(make_worker("demo/sentiment", methods=("attcat",), target="label"), source)
    assert [row.error for row in rows] == [None, "E_TARGET", "E_TARGET"]
    assert rows[0].target == 0
    assert rows[1].message == "The target is the label, but the label 'unheard of' is none of the model's classes."


def test_the_batch_size_does_not_change_the_numbers(tmp_path):
    """Beyond the last digits of float32, for methods that do not amplify them."""
    folder, methods = write_images(tmp_path, 6), ("rollout", "generic_attention")
    several, alone = (make_rows(make_worker(batch=size, methods=methods), folder) for size in (6, 1))
    for one, other in zip(several, alone, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5 * abs(other.scores).max(), rtol=0)


def test_all_methods_share_one_run_of_the_model(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr("whyformer._explain.sharing.run_request", lambda one: runs.append(1) or run_request(one))
    make_rows(make_worker(methods=("rollout", "transformer_attribution", "attcat"), batch=4), write_images(tmp_path, 8))
    assert len(runs) == 2


def test_a_batch_that_does_not_fit_into_memory_is_halved(tmp_path, monkeypatch, capfd):
    folder = write_images(tmp_path, 8)
    expected = make_rows(make_worker(batch=2), folder)
    worker = make_worker(batch=8)
    sizes = []
    inner = worker.explain_together

    def run_out(batch, methods, encoded=None):
        sizes.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return inner(batch, methods, encoded)

    monkeypatch.setattr(worker, "explain_together", run_out)
    rows = make_rows(worker, folder)
    assert sizes == [8, 4, 2, 2, 4, 2, 2] and worker.limit == 2
    assert "out of memory for a batch of 8; going on with 4" in capfd.readouterr().err
    for row, other in zip(rows, expected, strict=True):
        np.testing.assert_array_equal(row.scores, other.scores)


def test_an_item_that_does_not_fit_alone_is_an_error_record(tmp_path, monkeypatch):
    worker = make_worker()

    def run_out(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(worker, "explain_together", run_out)
    rows = make_rows(worker, write_images(tmp_path, 3))
    assert {row.error for row in rows} == {"E_MEMORY"} and len(rows) == 6


def test_what_fails_on_a_batch_is_tried_on_each_item_alone(tmp_path, monkeypatch):
    """One item makes rollout fail; the other items and the other method keep their rows."""
    folder, worker = write_images(tmp_path, 5), make_worker(batch=5)
    bad = sorted(folder.rglob("*.png"))[2]
    inner = worker.explain_together

    def fail_on_bad(batch, methods, encoded=None):
        rows, failed = inner(batch, methods, encoded)
        if "rollout" in methods and any(one.item.content == bad for one in batch):
            rows = {key: row for key, row in rows.items() if key[1] != "rollout"}
            failed = {"rollout": NonFinite("rollout gave NaN.")}
        return rows, failed

    monkeypatch.setattr(worker, "explain_together", fail_on_bad)
    rows = make_rows(worker, folder)
    errors = [(row.position, row.method, row.error) for row in rows if row.error]
    assert errors == [(2, "rollout", "E_NON_FINITE")]
    assert all(row.scores is not None for row in rows if row.error is None)


def test_an_exception_that_is_not_ours_is_reported_as_one(tmp_path, monkeypatch):
    worker = make_worker()

    def fail(*_):
        raise KeyError("surprise")

    monkeypatch.setattr("whyformer._bulk.feed.encode_batch", fail)
    monkeypatch.setattr("whyformer._bulk.worker.encode_batch", fail)
    rows = make_rows(worker, write_images(tmp_path, 1))
    assert {(row.error, row.message) for row in rows} == {("E_INTERNAL", "KeyError: 'surprise'")}


def test_maps_are_stored_as_png(tmp_path):
    rows = make_rows(make_worker(maps=True), write_images(tmp_path, 2))
    assert all(row.map_png.startswith(b"\x89PNG") for row in rows)
    assert rows[0].map_png != rows[1].map_png


def test_long_texts_are_cut_only_if_asked():
    text = "a gorgeous film " * 200
    (refused,) = make_rows(make_worker("demo/sentiment", methods=("attcat",)), [text])
    (cut,) = make_rows(make_worker("demo/sentiment", methods=("attcat",), truncate=True), [text])
    assert refused.error == "E_TXT_TOO_LONG" and refused.source == text
    assert cut.error is None and cut.source == text and max(cut.ends) < len(text)


def test_batches_hold_one_shape_and_are_sorted_by_length():
    sizes = [(1, 3, 8, 8), (1, 3, 4, 8), (1, 3, 8, 8), (1, 3, 4, 8), (1, 3, 8, 8)]
    items = ItemList(data.read([Image.new("RGB", (4, 4))] * 5))
    loaded = [LoadedItem(i, pixels=torch.zeros(s), shape=s) for i, s in zip(items, sizes, strict=True)]
    found = [[one.item.position for one in batch] for batch in group_into_batches(loaded, 2)]
    assert found == [[1, 3], [0, 2], [4]]
    lengths = [5, 2, 9, 2, 1]
    texts = [LoadedItem(i, "x", length=n) for i, n in zip(items, lengths, strict=True)]
    assert [[one.item.position for one in batch] for batch in group_into_batches(texts, 2)] == [[4, 1], [3, 0], [2]]


def test_a_worker_refuses_other_weights_and_another_version():
    setup = make_worker().setup
    with pytest.raises(why.errors.ModelError, match="are not those of the plan") as refused:
        setup.start("cpu")
    assert refused.value.code == "E_MODEL_WEIGHTS"
    other = WorkerSetup(**{**vars(setup), "version": "9.9"})
    with pytest.raises(why.errors.ModelError, match=r"planned by 9\.9") as refused:
        other.start("cpu")
    assert refused.value.code == "E_ENGINE"


def test_the_next_batch_of_images_is_encoded_while_one_is_explained(tmp_path, monkeypatch):
    worker, begun, seen = make_worker(batch=2), [], []
    inner = encode_batch

    def encode_and_note(model, batch):
        begun.append([one.item.position for one in batch])
        return inner(model, batch)

    def explain_and_look(batch, methods, encoded):
        assert encoded.batch == 2
        while len(begun) < min(len(seen) + 2, 3):  # the batch after this one is begun without being asked for
            time.sleep(0.001)
        seen.append([one.item.position for one in batch])
        return {}

    monkeypatch.setattr("whyformer._bulk.feed.encode_batch", encode_and_note)
    monkeypatch.setattr(worker, "explain_batch", explain_and_look)
    with pytest.raises(KeyError):  # no rows were made
        make_rows(worker, write_images(tmp_path, 6))
    assert begun == seen == [[0, 1], [2, 3], [4, 5]]


def test_check_stores_the_answers_with_parts_hidden(tmp_path):
    """The columns hold what explain(check=True) says of each text alone; without check they are empty."""
    texts = ["a gorgeous, witty film", "dull and slow", "neither good nor bad"]
    model = why.open("demo/sentiment")
    asked, plain = (why.bulk(model, texts, out=tmp_path / name, check=name == "check") for name in ("check", "plain"))
    for text, row in zip(texts, asked.records(), strict=True):
        _, top, nothing = why.explain(model, text, check=True).hiding.answers[0].tolist()
        assert [row["top_hidden"], row["all_hidden"]] == pytest.approx([top, nothing], abs=1e-4)
    assert all(row["top_hidden"] is None and row["hidden_units"] is None for row in plain.records())
