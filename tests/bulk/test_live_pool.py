"""A run on real local workers, disturbed from outside: killed workers, no open doors, a clock that jumps."""

import os
import threading
import time
from contextlib import suppress
from itertools import count
from random import Random

import psutil
import pytest
from bulk.bulk_inputs import check_complete, hash_parts, run_bulk, write_images

COUNT = 60


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"), COUNT)


@pytest.fixture(scope="module")
def golden(images, tmp_path_factory):
    return hash_parts(run_bulk(images, tmp_path_factory.mktemp("golden") / "run").folder)


def list_names(images):
    return [str(path.relative_to(images)) for path in sorted(images.rglob("*.png"))]


def disturb(run, act):
    """Run with `act` called again and again meanwhile; what it returned, besides the run."""
    ended, found = threading.Event(), []

    def repeat():
        while not ended.wait(0.05):
            found.append(act())

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        return run(), [one for one in found if one]
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_workers_of_a_live_pool_that_are_killed_lose_nothing(images, golden, tmp_path):
    random, killed = Random(3), []

    def kill_one():
        workers = [one for one in psutil.Process().children(recursive=True) if one.pid not in killed]
        if workers and len(killed) < 4 and len(list(tmp_path.rglob("part-*.parquet"))) > 2 * len(killed):
            victim = random.choice(workers)
            killed.append(victim.pid)
            victim.kill()
        return None

    run, _ = disturb(lambda: run_bulk(images, tmp_path / "run", workers=2), kill_one)
    check_complete(run, list_names(images))
    assert hash_parts(tmp_path / "run") == golden and killed


@pytest.mark.slow
def test_workers_listen_nowhere(images, golden, tmp_path):
    def list_open():
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            family = psutil.Process().children(recursive=True)
            return [one.laddr for child in family for one in child.net_connections() if one.status == "LISTEN"]

    _, found = disturb(lambda: run_bulk(images, tmp_path / "run", workers=2), list_open)
    assert found == [] and hash_parts(tmp_path / "run") == golden


def test_a_clock_that_jumps_changes_nothing(images, golden, tmp_path, monkeypatch):
    """Back by years and forward by years, at every look."""
    random, began, looks = Random(5), time.time(), count()

    def jump():
        next(looks)
        return began + random.uniform(-3e8, 3e8)

    monkeypatch.setattr(time, "time", jump)
    run = run_bulk(images, tmp_path / "run")
    again = run_bulk(images, tmp_path / "run")
    check_complete(again, list_names(images))
    assert hash_parts(tmp_path / "run") == golden
    assert (run.computed, again.computed) == (COUNT, 0)


def test_files_of_another_time_are_not_taken_for_changed_ones(images, golden, tmp_path):
    """The clock was set back between two runs: files look as if they came from the future."""
    run_bulk(images, tmp_path / "run")
    for path in (tmp_path / "run").rglob("*"):
        os.utime(path, (4e9, 4e9))
    assert run_bulk(images, tmp_path / "run").computed == 0
    assert hash_parts(tmp_path / "run") == golden
