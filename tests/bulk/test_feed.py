"""Batches flow across shards, and parts are written by a thread: in order, and nothing waits for ever."""

import threading
import time

import pytest
import torch
from bulk.bulk_inputs import MODEL, write_images
from bulk.test_worker import make_worker

import whyformer as why
from whyformer import data
from whyformer._bulk import job as writer_module
from whyformer._bulk.feed import Encoder, ShardFeed
from whyformer._bulk.items import Item, ItemList
from whyformer._bulk.job import PartWriter
from whyformer._bulk.loading import LoadedItem, encode_batch
from whyformer._bulk.queue import ShardTask
from whyformer._runs.seal import read_seal


class Loaded(list):
    """Items that are loaded already."""

    def cancel(self) -> None:
        self.clear()


def make_loaded(count: int, *, first: int = 0) -> Loaded:
    pixels = torch.zeros(1, 3, 32, 32)
    return Loaded(
        LoadedItem(Item(str(n), n), pixels=pixels, shape=tuple(pixels.shape)) for n in range(first, first + count)
    )


@pytest.fixture(scope="module")
def encoder():
    return Encoder(why.open(MODEL))


def list_positions(feed: ShardFeed) -> list[list[int]]:
    return [[one.item.position for one in batch] for batch, _ in feed]


def test_the_next_shard_is_encoded_before_it_is_asked_for(encoder, monkeypatch):
    begun = []
    monkeypatch.setattr(
        "whyformer._bulk.feed.encode_batch",
        lambda model, batch: begun.append([one.item.position for one in batch]) or "encoded",
    )
    first, second = (ShardFeed(make_loaded(4, first=start), encoder, 2) for start in (0, 10))
    assert list_positions(first) == [[0, 1], [2, 3]]
    deadline = time.monotonic() + 30
    while [10, 11] not in begun:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert list_positions(second) == [[10, 11], [12, 13]]
    assert begun == [[0, 1], [2, 3], [10, 11], [12, 13]]


def test_a_shard_that_is_given_up_does_not_hold_up_the_next(encoder):
    stale, wanted = (ShardFeed(make_loaded(8, first=start), encoder, 2) for start in (0, 10))
    stale.close()
    assert list_positions(wanted) == [[10, 11], [12, 13], [14, 15], [16, 17]]


def test_what_cannot_be_encoded_comes_with_its_error_and_the_rest_goes_on(encoder, monkeypatch):
    def fail_on_first(model, batch):
        if batch[0].item.position == 0:
            raise ValueError("no")
        return encode_batch(model, batch)

    monkeypatch.setattr("whyformer._bulk.feed.encode_batch", fail_on_first)
    outcomes = [encoded for _, encoded in ShardFeed(make_loaded(4), encoder, 2)]
    assert isinstance(outcomes[0], ValueError) and outcomes[1].batch == 2


def test_items_that_could_not_be_loaded_are_listed(encoder):
    loaded = Loaded([*make_loaded(2), LoadedItem(Item("bad", 2), error=ValueError("no"))])
    feed = ShardFeed(loaded, encoder, 2)
    assert list_positions(feed) == [[0, 1]]
    assert [(item.id, str(error)) for item, error in feed.failed] == [("bad", "no")]


def test_a_worker_computes_whatever_shard_it_gets(tmp_path):
    """Also one that it was not told of, and one that it had begun to load and then not got."""
    items = list(ItemList(data.read(write_images(tmp_path, 12))))
    a, b, c = (ShardTask(number, items[4 * number : 4 * number + 4]) for number in range(3))
    expected = {}
    for task in (a, b, c):
        worker = make_worker()
        expected[task.number] = worker.run(task)
        worker.close()
    worker = make_worker()
    for task, upcoming in ((a, b), (c, b), (b, c), (a, None), (c, a), (a, None)):
        part = worker.run(task, upcoming)
        assert part == expected[task.number] and read_seal(part)["shard"] == task.number
    worker.close()
    assert not worker._feeds


def test_tensors_of_one_shape_are_explained_as_one_by_one():
    model = why.open(MODEL)
    pixels = [torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    loaded = [LoadedItem(Item(str(n), n), one, shape=(3, 32, 32)) for n, one in enumerate(pixels)]
    together, listed = encode_batch(model, loaded), model.encode(pixels)
    assert (together.main, together.batch, together.names) == (listed.main, listed.batch, listed.names)
    torch.testing.assert_close(together.inputs, listed.inputs, rtol=0, atol=0)


# --- the writer -------------------------------------------------------------------------------------------------------


def write(count: int, commit) -> None:
    with PartWriter(commit) as parts:
        for number in range(count):
            parts.write(ShardTask(number, ()), b"%d" % number)


def test_parts_are_written_in_order_by_one_thread():
    written, threads = [], set()

    def commit(task, part):
        time.sleep(0.002 * (3 - task.number % 4))
        written.append((task.number, part))
        threads.add(threading.current_thread().name)

    write(12, commit)
    assert written == [(number, b"%d" % number) for number in range(12)]
    assert len(threads) == 1 and threading.current_thread().name not in threads


def test_few_parts_wait_to_be_written():
    begun, room = [], threading.Semaphore(0)

    def commit(task, part):
        begun.append(task.number)
        assert room.acquire(timeout=30)

    with PartWriter(commit) as parts:
        for number in range(writer_module.MAX_WAITING):
            parts.write(ShardTask(number, ()), b"")
        assert begun in ([], [0])  # returned, although none is written
        for _ in range(20):
            room.release()
        for number in range(5):
            parts.write(ShardTask(number, ()), b"")
            assert len(parts._waiting) <= writer_module.MAX_WAITING


def test_a_part_that_cannot_be_written_stops_the_run():
    written = []

    def commit(task, part):
        if task.number == 3:
            raise OSError("no space")
        written.append(task.number)

    with pytest.raises(OSError, match="no space"):
        write(50, commit)
    assert written[:3] == [0, 1, 2] and len(written) < 10


@pytest.mark.parametrize(("error", "kept"), [(ValueError, True), (KeyboardInterrupt, False)])
def test_what_is_computed_is_written_unless_the_run_must_stop_at_once(error, kept):
    written, may_go_on = [], threading.Event()

    def commit(task, part):
        may_go_on.wait(30)
        written.append(task.number)

    def run():
        with PartWriter(commit) as parts:
            parts.write(ShardTask(0, ()), b"")
            parts.write(ShardTask(1, ()), b"")
            while not parts._waiting[0].running():
                time.sleep(0.001)
            threading.Timer(0.1, may_go_on.set).start()
            raise error

    with pytest.raises(error):
        run()
    assert written == ([0, 1] if kept else [0])
