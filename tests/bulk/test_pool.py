"""Worker processes: a dead one is replaced and its shard runs again; a shard that kills every worker is given up."""

import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from bulk.bulk_inputs import hash_parts, run_bulk, write_images
from bulk.child import start_child, wait_for
from bulk.fake_workers import FakeStart

from whyformer._bulk.pool import ProcessPool
from whyformer._bulk.queue import ShardTask
from whyformer._bulk.stopping import StopRequest
from whyformer.errors import WhyformerError


def make_tasks(count: int):
    return iter([ShardTask(number, ()) for number in range(count)])


def run_pool(start, count: int, devices=("cpu", "cpu"), stop=None):
    """The outcome of each shard by number; each must come exactly once."""
    outcomes = [
        (task.number, part) for task, part in ProcessPool(start, devices).run(make_tasks(count), stop or StopRequest())
    ]
    assert len(dict(outcomes)) == len(outcomes)
    return dict(outcomes)


def expect_parts(count: int):
    return {number: b"part %d" % number for number in range(count)}


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def read_attempts(folder, number: int) -> list[list[str]]:
    return [line.split() for line in (folder / f"shard-{number}").read_text().splitlines()]


def test_every_shard_is_computed_once(tmp_path):
    assert run_pool(FakeStart(tmp_path), 7) == expect_parts(7)
    attempts = [read_attempts(tmp_path, number) for number in range(7)]
    assert all(len(one) == 1 for one in attempts)
    assert os.getpid() not in {int(one[0][0]) for one in attempts}


def test_each_device_has_its_worker(tmp_path):
    run_pool(FakeStart(tmp_path, seconds=0.05), 12, devices=("cuda:0", "cuda:1"))
    by_process = {one[0]: one[1] for number in range(12) for one in read_attempts(tmp_path, number)}
    assert sorted(by_process.values()) == ["cuda:0", "cuda:1"]


def test_a_worker_is_told_what_comes_next(tmp_path):
    run_pool(FakeStart(tmp_path), 3, devices=("cpu",))
    assert [read_attempts(tmp_path, number)[0][2] for number in range(3)] == ["1", "2", "-1"]


def test_the_shard_of_a_killed_worker_runs_again(tmp_path):
    assert run_pool(FakeStart(tmp_path, killed_once=(0, 3, 4)), 6) == expect_parts(6)
    assert [len(read_attempts(tmp_path, number)) for number in range(6)] == [2, 1, 1, 2, 2, 1]


def test_a_shard_that_kills_three_workers_is_given_up_and_the_others_go_on(tmp_path):
    outcomes = run_pool(FakeStart(tmp_path, deadly=(2,)), 5)
    assert len(read_attempts(tmp_path, 2)) == 3
    error = outcomes.pop(2)
    assert isinstance(error, WhyformerError) and error.code == "E_WORKER" and "ended 3 times" in str(error)
    assert outcomes == {number: part for number, part in expect_parts(5).items() if number != 2}


def test_a_shard_that_raises_is_given_up_with_the_reason(tmp_path):
    error = run_pool(FakeStart(tmp_path, failing=(1,)), 3)[1]
    assert (error.code, str(error)) == ("E_INTERNAL", "KeyError: 'surprise'")


def test_what_a_worker_refuses_stops_the_run(tmp_path):
    with pytest.raises(WhyformerError, match="no such model") as refused:
        run_pool(FakeStart(tmp_path, refusal="no such model"), 3)
    assert refused.value.code == "E_MODEL"


def test_after_a_signal_the_shards_that_are_being_computed_are_delivered(tmp_path):
    stop = StopRequest()
    outcomes = []
    pool = ProcessPool(FakeStart(tmp_path, seconds=0.2), ["cpu", "cpu"])
    for task, _ in pool.run(make_tasks(20), stop):
        outcomes.append(task.number)
        if not stop:
            stop.receive(signal.SIGTERM)
    started = [number for number in range(20) if (tmp_path / f"shard-{number}").exists()]
    assert sorted(outcomes) == started and len(outcomes) < 6
    assert all(worker.process.poll() is not None for worker in pool.workers)


def test_workers_are_ended_when_the_caller_stops_listening(tmp_path):
    pool = ProcessPool(FakeStart(tmp_path, seconds=0.1), ["cpu", "cpu"])
    outcomes = pool.run(make_tasks(50), StopRequest())
    next(outcomes)
    outcomes.close()
    assert all(worker.process.poll() is not None for worker in pool.workers)


def test_workers_end_when_their_caller_is_killed(tmp_path):
    child = start_child(partial(run_pool, FakeStart(tmp_path, seconds=0.1), 1000))
    deadline = time.monotonic() + 60
    while not list(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    wait_for(child)
    workers = {int(line.split()[0]) for path in tmp_path.iterdir() for line in path.read_text().splitlines()}
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_model_that_cannot_be_sent_is_refused():
    with pytest.raises(WhyformerError, match="cannot be sent to another process") as refused:
        ProcessPool(lambda device: None, ["cpu"])
    assert refused.value.code == "E_ENGINE"


# --- with a model -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_and_two_workers_give_the_same_bytes(tmp_path):
    images = write_images(tmp_path / "images", 24)
    runs = [run_bulk(images, tmp_path / f"run {count}", workers=count) for count in (1, 2)]
    assert hash_parts(runs[0].folder) == hash_parts(runs[1].folder)
    again = run_bulk(images, tmp_path / "run 1", workers=2)
    assert again.computed == 0


@pytest.mark.slow
def test_a_plain_script_can_use_workers(tmp_path):
    """Workers do not import the caller's script, so it needs no `if __name__ == "__main__"`; and one may be killed."""
    images = write_images(tmp_path / "images", 24)
    script = tmp_path / "script.py"
    script.write_text(
        "import whyformer as why\n"
        "print('once')\n"
        f"run = why.bulk('demo/untrained-vit', {str(images)!r}, 'rollout', out={str(tmp_path / 'run')!r}, shard=2,"
        " workers=2)\n"
        "print(run.computed, run.failed)\n"
    )
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    workers: list[str] = []
    while len(workers) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
        workers = found.stdout.split()
    os.kill(int(workers[0]), signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert (process.returncode, output) == (0, "once\n24 0\n")
