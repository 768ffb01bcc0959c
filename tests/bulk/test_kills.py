"""kill -9 at random moments and at the worst ones: nothing is lost, nothing is doubled, the bytes are the same."""

import os
import shutil
import signal
import time
from functools import partial
from random import Random

import pytest
from bulk.bulk_inputs import check_complete, hash_parts, run_bulk, write_images
from bulk.child import start_child, wait_for

COUNT = 18


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"), COUNT)


@pytest.fixture(scope="module")
def golden(images, tmp_path_factory):
    return hash_parts(run_bulk(images, tmp_path_factory.mktemp("golden") / "run").folder)


def finish_and_check(images, out, golden) -> int:
    """Resume, then compare with an uninterrupted run; returns the number of items that were left to do."""
    run = run_bulk(images, out)
    check_complete(run, [str(path.relative_to(images)) for path in sorted(images.rglob("*.png"))])
    assert hash_parts(out) == golden
    return run.computed


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.slow)])
def test_random_kills_lose_nothing(images, golden, tmp_path, kills):
    random, out = Random(kills), tmp_path / "run"
    began = time.monotonic()
    assert wait_for(start_child(partial(run_bulk, images, tmp_path / "timed"))) == 0
    duration = time.monotonic() - began
    killed = resumed = 0
    while killed < kills:
        child = start_child(partial(run_bulk, images, out))
        time.sleep(random.uniform(0, duration * 0.8))
        os.kill(child, signal.SIGKILL)
        status = wait_for(child)
        assert status in (0, -signal.SIGKILL)
        killed += status != 0
        if random.random() < 0.2 or status == 0:  # most kills hit a run that was killed before
            resumed += finish_and_check(images, out, golden) < COUNT
            shutil.rmtree(out)
    finish_and_check(images, out, golden)
    assert resumed or kills < 50  # of fifty, some must have left a part to resume from


POINTS = {
    "before the temporary file is complete": ("fsync", "before"),
    "after the temporary file is on disk": ("fsync", "after"),
    "before the file gets its name": ("replace", "before"),
    "after the file got its name": ("replace", "after"),
}


def calls(*numbers, **marks):
    return [pytest.param(number, id=f"call {number}", **marks) for number in numbers]


@pytest.mark.parametrize("number", calls(1, 3) + calls(2, 6, marks=pytest.mark.slow))
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_the_worst_moment_loses_nothing(images, golden, tmp_path, point, number):
    """Of the calls that write files: the plan comes first, then the parts."""
    name, moment = POINTS[point]
    out = tmp_path / "run"

    def run_until_killed():
        inner, calls = getattr(os, name), 0

        def kill_here(*arguments):
            nonlocal calls
            calls += 1
            if calls == number and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = inner(*arguments)
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(os, name, kill_here)
        run_bulk(images, out)

    assert wait_for(start_child(run_until_killed)) == -signal.SIGKILL
    finish_and_check(images, out, golden)
    assert finish_and_check(images, out, golden) == 0
