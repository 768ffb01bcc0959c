"""Loaders: processes give what threads give, are not waited for, and cost nothing when they are lost."""

import os
import signal
import time
from functools import partial
from itertools import permutations

import pytest
import torch
from bulk.bulk_inputs import hash_parts, run_bulk, write_images
from bulk.child import start_child, wait_for
from bulk.traced_images import ReadImage, SmallProcessor, make_traced, read_processes
from PIL import Image
from torch import nn

from whyformer._bulk import loaders as loaders_module
from whyformer._bulk.items import Item
from whyformer._bulk.loaders import ItemLoaders, LoaderProcess
from whyformer._bulk.loading import ItemReader, LoadedItem, can_be_stacked, form_batches, group_into_batches
from whyformer._model.model import Model
from whyformer.data import LazyContent

PATIENCE = 120  # seconds


def make_reader(processor=None) -> ItemReader:
    return ItemReader(Model(nn.Linear(1, 1), "small", "image", processor=processor or SmallProcessor()))


def wait_until(condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def start_loaders(count: int = 2) -> ItemLoaders:
    """Loaders whose processes are ready."""
    loaders = ItemLoaders(make_reader(), count, in_processes=True)
    list(loaders.start([Item("first", 0, Image.new("RGB", (4, 4)))]))
    wait_until(lambda: loaders._idle.qsize() == count)
    return loaders


@pytest.fixture(scope="module")
def running():
    loaders = start_loaders()
    yield loaders
    loaders.close()


def check_equal(found: list[LoadedItem], expected: list[LoadedItem]) -> None:
    assert [one.item for one in found] == [one.item for one in expected]
    assert [one.shape for one in found] == [one.shape for one in expected]
    for mine, other in zip(found, expected, strict=True):
        assert (mine.error is None) == (other.error is None) and (mine.pixels is None) == (other.pixels is None)
        if mine.pixels is not None:
            torch.testing.assert_close(mine.pixels, other.pixels, rtol=0, atol=0)


def make_items(folder, count: int, **options) -> list[Item]:
    return [Item(f"item {number}", number, make_traced(folder, number, **options)) for number in range(count)]


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_processes_give_what_threads_give(running, tmp_path):
    """Images of several shapes, broken ones, and contents that are no images."""
    items = make_items(tmp_path, 30)
    items += [Item("tensor", 30, torch.ones(3, 4, 4)), Item("lost", 31, problem="the row is empty")]
    found = list(running.start(items))
    assert os.getpid() not in read_processes(tmp_path) and len(read_processes(tmp_path)) == 2
    check_equal(found, [running.reader.load(item) for item in items])
    assert (found[3].error.code, str(found[3].error)) == ("E_INTERNAL", "ValueError: this image is broken")
    assert found[31].error.code == "E_DATA"


def test_what_cannot_be_sent_is_loaded_here(running, monkeypatch):
    image = Image.new("RGB", (4, 4), "red")
    monkeypatch.setattr(loaders_module, "MAX_SENT", 4000)
    contents = [LazyContent(lambda: image, "no pickle"), LazyContent(partial(Image.Image.copy, image), "small")]
    contents.append(LazyContent(partial(lambda_free_pick, image, b"x" * 5000), "too large"))
    for content in contents:
        (one,) = running.start([Item("one", 0, content)])
        torch.testing.assert_close(one.pixels, running.reader.load(Item("one", 0, image)).pixels, rtol=0, atol=0)
    assert running._idle.qsize() == 2


def lambda_free_pick(image: Image.Image, ballast: bytes) -> Image.Image:
    return image


class ProcessorOfThisProcess(SmallProcessor):
    """Knows only the process that made it."""

    def __init__(self) -> None:
        self.process = os.getpid()

    def __setstate__(self, state) -> None:
        raise TypeError("not in another process")


def test_threads_load_until_a_process_is_ready(tmp_path, monkeypatch):
    monkeypatch.setattr(LoaderProcess, "wait_until_ready", lambda self: time.sleep(60))
    loaders = ItemLoaders(make_reader(), 1, in_processes=True)
    items = make_items(tmp_path, 12)
    found = list(loaders.start(items))
    assert read_processes(tmp_path) == {os.getpid()}
    check_equal(found, [loaders.reader.load(item) for item in items])
    loaders.close()
    assert loaders._processes.process.poll() is not None


def test_no_process_is_started_for_tensors():
    loaders = ItemLoaders(make_reader(), 2, in_processes=True)
    (one,) = loaders.start([Item("one", 0, torch.ones(3, 4, 4))])
    assert loaders._processes is None and one.shape == (3, 4, 4)
    loaders.close()


@pytest.mark.slow
def test_a_processor_that_exists_only_here_is_used_here(tmp_path):
    loaders = ItemLoaders(make_reader(ProcessorOfThisProcess()), 2, in_processes=True)
    list(loaders.start(make_items(tmp_path, 1)))
    wait_until(lambda: loaders._processes.process.poll() is not None)
    list(loaders.start(make_items(tmp_path, 9)))
    assert read_processes(tmp_path) == {os.getpid()}
    loaders.close()


@pytest.mark.slow
def test_the_items_of_a_killed_process_are_loaded_here(tmp_path):
    loaders = start_loaders()
    items = make_items(tmp_path, 32)
    items[5] = Item("deadly", 5, make_traced(tmp_path, 5, deadly=True))
    found = list(loaders.start(items))
    check_equal(found, [loaders.reader.load(item) for item in items])
    assert os.getpid() in read_processes(tmp_path)
    loaders.close()


@pytest.mark.slow
def test_nothing_is_left_when_loaders_are_closed_or_their_process_is_killed(tmp_path):
    loaders = start_loaders(3)
    list(loaders.start(make_items(tmp_path, 60)))
    processes = read_processes(tmp_path) - {os.getpid()}
    loaders.close()
    assert len(processes) == 3 and all(is_gone(one) for one in processes)

    def load_for_ever():
        own = start_loaders(2)
        while True:
            list(own.start(make_items(tmp_path / "child", 40)))

    (tmp_path / "child").mkdir()
    child = start_child(load_for_ever)
    wait_until(lambda: len(read_processes(tmp_path / "child") - {child}) == 2)
    os.kill(child, signal.SIGKILL)
    wait_for(child)
    wait_until(lambda: all(is_gone(one) for one in read_processes(tmp_path / "child") - {child}))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_with_loader_processes_writes_the_same_bytes(tmp_path, monkeypatch, workers):
    images = write_images(tmp_path / "images", 40)
    (images / "cat" / "broken.png").write_bytes(b"no image")
    expected = hash_parts(run_bulk(images, tmp_path / "threads").folder)
    start_processes, load, used = ItemLoaders._start_processes, LoaderProcess.load, []

    def start_and_wait(self):
        start_processes(self)
        wait_until(lambda: self._idle.qsize() == 2)

    monkeypatch.setattr("whyformer._bulk.run.uses_loader_processes", lambda site: True)
    monkeypatch.setattr(ItemLoaders, "_start_processes", start_and_wait)
    monkeypatch.setattr(
        LoaderProcess, "load", lambda self, items, message: used.append(1) or load(self, items, message)
    )
    assert hash_parts(run_bulk(images, tmp_path / "processes", workers=workers, loaders=2).folder) == expected
    assert used or workers > 1  # two workers are processes themselves, in which nothing is patched


# --- batches ----------------------------------------------------------------------------------------------------------


def test_batches_formed_as_items_arrive_are_those_of_the_whole_shard():
    kinds = [
        dict(shape=(1, 3, 4, 4), pixels=torch.zeros(0)), dict(shape=(1, 3, 8, 4), pixels=torch.zeros(0)),
        dict(content="a", length=2), dict(content="a b", length=3), dict(content="long", length=9, is_long=True),
        dict(error=ValueError()),
    ]  # fmt: skip
    for order in permutations(range(len(kinds))):
        loaded = [LoadedItem(Item(str(n), n), **kinds[order[n * 5 % 7 % 6]]) for n in range(11)]
        found, expected = (
            sorted([one.item.position for one in batch] for batch in form(loaded, 2))
            for form in (form_batches, group_into_batches)
        )
        assert found == expected


def test_a_full_batch_does_not_wait_for_the_items_after_it():
    def arrive():
        for number in range(4):
            assert number < 2 or taken
            yield LoadedItem(Item(str(number), number), pixels=torch.zeros(0), shape=(1,))

    taken: list[int] = []
    for batch in form_batches(arrive(), 2):
        taken += [one.item.position for one in batch]
    assert taken == [0, 1, 2, 3]


def test_only_pixel_values_of_one_shape_are_stacked():
    pixels = torch.zeros(3, 4, 4)
    assert can_be_stacked([pixels, pixels + 1])
    others = [torch.zeros(3, 4, 5), pixels.double(), pixels.long(), pixels[0], {"pixel_values": pixels}, "text"]
    assert not any(can_be_stacked([pixels, other]) or can_be_stacked([other, pixels]) for other in others)
    assert not can_be_stacked([pixels[:1]])


def test_a_read_image_is_the_same_in_every_process(tmp_path):
    assert ReadImage(tmp_path, 1)().tobytes() == ReadImage(tmp_path, 1)().tobytes()
