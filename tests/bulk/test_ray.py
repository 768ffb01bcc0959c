"""Ray actors on a cluster of three nodes, simulated on this machine: workers, nodes and the caller are killed."""

import json
import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

if find_spec("ray") is not None:  # Ray reads these when it is imported
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32), RAY_USAGE_STATS_ENABLED="0")
ray = pytest.importorskip("ray")

from bulk.bulk_inputs import check_complete, hash_parts, run_bulk, write_images  # noqa: E402
from bulk.fake_workers import FakeStart  # noqa: E402

import whyformer as why  # noqa: E402
from whyformer._bulk.queue import ShardTask  # noqa: E402
from whyformer._bulk.ray_engine import RayEngine  # noqa: E402
from whyformer._bulk.stopping import StopRequest  # noqa: E402
from whyformer.errors import ResourceError, WhyformerError  # noqa: E402

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.filterwarnings("default")  # Ray's own


class NodeKeeper:
    """A head without cores, and two nodes with one each that can be killed and replaced."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.address = self.cluster.address
        self.nodes = [self.add_node(), self.add_node()]

    def add_node(self):
        return self.cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)

    def kill_node(self, random: Random) -> None:
        place = random.randrange(len(self.nodes))
        self.cluster.remove_node(self.nodes[place], allow_graceful=False)
        self.nodes[place] = self.add_node()

    def kill_worker(self, random: Random) -> bool:
        """SIGKILL to a process that runs an actor of ours, if there is one now."""
        processes = [process for node in self.nodes for process in find_actors(node)]
        if processes:
            os.kill(random.choice(processes), signal.SIGKILL)
        return bool(processes)

    def close(self) -> None:
        self.cluster.shutdown()


def find_actors(node) -> list[int]:
    """The process ids of actors below the raylet of this node."""
    raylets = {str(info.process.pid) for info in node.all_processes["raylet"]}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if parent in raylets and (folder / "cmdline").read_bytes().startswith(b"ray::WorkerActor"):
                found.append(int(folder.name))
        except OSError:  # it ended meanwhile
            continue
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        keeper = NodeKeeper()
        yield keeper
        ray.shutdown()
        keeper.close()


def run_engine(cluster, start, count: int, workers: int | None = 2):
    """The outcome of each shard by number; each must come exactly once."""
    engine = RayEngine(start, address=cluster.address, device="cpu", workers=workers, threads=1)
    tasks = iter([ShardTask(number, ()) for number in range(count)])
    outcomes = [(task.number, part) for task, part in engine.run(tasks, StopRequest())]
    assert len(dict(outcomes)) == len(outcomes)
    return dict(outcomes)


def expect_parts(count: int):
    return {number: b"part %d" % number for number in range(count)}


def test_every_shard_is_computed_on_as_many_workers_as_there_are_cores(cluster, tmp_path):
    assert run_engine(cluster, FakeStart(tmp_path, seconds=0.05), 12, workers=None) == expect_parts(12)
    processes = {path.read_text().split()[0] for path in tmp_path.iterdir()}
    assert 1 <= len(processes) <= 2 and str(os.getpid()) not in processes
    assert not ray.is_initialized()


def test_the_shard_of_a_killed_worker_runs_again_and_a_deadly_one_is_given_up(cluster, tmp_path):
    outcomes = run_engine(cluster, FakeStart(tmp_path, killed_once=(1,), deadly=(3,)), 5)
    error = outcomes.pop(3)
    assert isinstance(error, WhyformerError) and error.code == "E_WORKER"
    assert outcomes == {number: part for number, part in expect_parts(5).items() if number != 3}


def test_what_a_worker_refuses_stops_the_run(cluster, tmp_path):
    with pytest.raises(WhyformerError, match="no such model"):
        run_engine(cluster, FakeStart(tmp_path, refusal="no such model"), 2)
    assert not ray.is_initialized()


def test_without_the_token_nobody_gets_in(cluster):
    script = f"""
    from whyformer._bulk.ray_engine import RayEngine
    from whyformer._bulk.stopping import StopRequest
    from whyformer._bulk.queue import ShardTask
    engine = RayEngine(print, address={cluster.address!r}, device="cpu", workers=1, threads=1)
    try:
        list(engine.run(iter([ShardTask(0, ())]), StopRequest()))
    except Exception as error:
        print(getattr(error, "code", repr(error)))
    """
    wrong = {**os.environ, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=wrong, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "E_ENGINE", done.stderr[-500:]


def test_a_cluster_that_cannot_be_reached_is_an_error(tmp_path):
    engine = RayEngine(FakeStart(tmp_path), address="127.0.0.1:1", device="cpu", workers=1, threads=1)
    with pytest.raises(ResourceError, match=r"Cannot reach Ray at 127\.0\.0\.1:1") as refused:
        list(engine.run(iter([ShardTask(0, ())]), StopRequest()))
    assert refused.value.code == "E_ENGINE"


def run_in_terminal(script: str, meanwhile) -> tuple[int, str]:
    """The status and everything that a terminal shows of a Python process, during which `meanwhile` runs once."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal, suppress(OSError):  # an error ends the output on Linux
        while chunk := terminal.read(4096):
            shown += chunk
            if meanwhile is not None and b"first part" in shown:
                meanwhile()
                meanwhile = None
    return process.wait(), shown.decode(errors="replace")


def test_what_ray_logs_about_a_lost_node_does_not_reach_the_terminal(cluster, tmp_path):
    """Ray sends the last lines of a lost raylet, its state dump, to whoever is connected."""
    script = f"""
    import time
    from pathlib import Path
    from bulk.fake_workers import FakeStart
    from whyformer._bulk.ray_engine import RayEngine
    from whyformer._bulk.stopping import StopRequest
    from whyformer._bulk.queue import ShardTask
    start = FakeStart(Path({str(tmp_path)!r}), seconds=0.2)
    engine = RayEngine(start, address={cluster.address!r}, device="cpu", workers=2, threads=1)
    tasks = iter([ShardTask(number, ()) for number in range(6)])
    for number, _ in enumerate(engine.run(tasks, StopRequest())):
        if number == 0:
            print("first part", flush=True)
            time.sleep(10)
    print("all parts", flush=True)
    """
    status, shown = run_in_terminal(script, lambda: cluster.kill_node(Random(0)))
    assert (status, shown.split("\r\n")) == (0, ["first part", "all parts", ""])


# --- with a model -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ray_and_local_engines_give_the_same_bytes(cluster, tmp_path):
    images = write_images(tmp_path / "images", 24)
    golden = hash_parts(run_bulk(images, tmp_path / "local").folder)
    for workers in (1, 2):
        run = run_bulk(images, tmp_path / f"ray {workers}", engine="ray", address=cluster.address, workers=workers)
        assert hash_parts(run.folder) == golden


def start_driver(cluster, images, out, options="") -> "subprocess.Popen[bytes]":
    script = f"""
    from pathlib import Path
    from bulk.bulk_inputs import run_bulk
    run_bulk(Path({str(images)!r}), Path({str(out)!r}), engine="ray", address={cluster.address!r}, workers=None,
             {options})
    """
    with open(out.with_name("driver.log"), "a") as log:
        return subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=log, stderr=log)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [20])
def test_killed_workers_nodes_and_callers_lose_nothing(cluster, tmp_path, kills):
    images = write_images(tmp_path / "images", 800)
    golden = hash_parts(run_bulk(images, tmp_path / "local").folder)
    random, out = Random(0), tmp_path / "run"
    kinds = ["worker"] * (kills * 2 // 5) + ["node"] * (kills * 2 // 5)
    kinds += ["driver"] * (kills - len(kinds))
    random.shuffle(kinds)
    driver, deadline = start_driver(cluster, images, out), time.monotonic() + 3000
    while kinds:
        assert time.monotonic() < deadline
        seen = len(list(out.glob("parts/part-*")))
        while driver.poll() is None and len(list(out.glob("parts/part-*"))) == seen:  # every kill hits a run at work
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(random.uniform(0, 2.0))
        if driver.poll() is not None:
            assert driver.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:]
            assert hash_parts(out) == golden
            out = tmp_path / f"run {len(kinds)}"
            driver = start_driver(cluster, images, out)
            continue
        kind = kinds[-1]
        if kind == "driver":
            driver.send_signal(signal.SIGKILL)
            driver.wait()
            driver = start_driver(cluster, images, out)
        elif kind == "node":
            cluster.kill_node(random)
        elif not cluster.kill_worker(random):
            continue
        kinds.pop()
        print(f"killed: {kind}; {len(kinds)} to go", flush=True)
    assert driver.wait(1500) == 0
    assert hash_parts(out) == golden
    run = run_bulk(images, out)
    assert run.computed == 0
    check_complete(run, [str(path.relative_to(images)) for path in sorted(images.rglob("*.png"))])


@pytest.mark.slow
def test_a_head_that_dies_ends_the_run_and_one_that_comes_back_finishes_it(cluster, tmp_path):
    """Two clusters beside the one of the other tests, one after the other; the second knows nothing of the first."""
    images, out = write_images(tmp_path / "images", 400), tmp_path / "run"
    golden = hash_parts(run_bulk(images, tmp_path / "local").folder)
    first = NodeKeeper()
    try:
        driver = start_driver(first, images, out)
        while not list(out.glob("parts/part-*")):
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-2000:]
            time.sleep(0.1)
        first.cluster.remove_node(first.cluster.head_node, allow_graceful=False)
        assert driver.wait(300) != 0  # it neither waits for ever nor takes the rest for done
    finally:
        first.close()
    kept = len(list(out.glob("parts/part-*")))
    second = NodeKeeper()
    try:
        assert start_driver(second, images, out).wait(900) == 0, (tmp_path / "driver.log").read_text()[-2000:]
    finally:
        second.close()
    assert kept and hash_parts(out) == golden


MANY = int(os.environ.get("IMAGES", 5_000))


@pytest.mark.slow
def test_summary_and_comparison_of_many_images_are_those_of_local_runs(cluster, tmp_path):
    """Two runs, half of the second one's images changed, while workers, nodes and the caller are killed in both."""
    random = Random(1)
    for name, first in (("one", 0), ("two", MANY // 2)):
        write_images(tmp_path / name, MANY, first=first)
        local = run_bulk(
            tmp_path / name, tmp_path / f"local {name}", shard=MANY // 50, batch_size=25, methods="rollout"
        )
        out = tmp_path / f"ray {name}"
        driver, kinds = None, ["worker", "node", "driver", "worker", "node"]
        while driver is None or driver.poll() is None or kinds:
            if driver is None or driver.poll() is not None:
                assert driver is None or driver.returncode in (0, -signal.SIGKILL)
                assert driver is None or driver.returncode or not kinds, "it ended before it was killed often enough"
                driver = start_driver(
                    cluster, tmp_path / name, out, f"shard={MANY // 50}, batch_size=25, methods='rollout'"
                )
            seen = len(list(out.glob("parts/part-*")))
            while driver.poll() is None and len(list(out.glob("parts/part-*"))) == seen:
                time.sleep(0.1)
            if kinds and driver.poll() is None:
                kind = kinds[-1]
                if kind == "driver":
                    driver.kill()
                    driver.wait()
                elif kind == "node":
                    cluster.kill_node(random)
                elif not cluster.kill_worker(random):
                    continue
                kinds.pop()
                print(f"killed: {kind}, {len(list(out.glob('parts/part-*')))} of 50 parts are there", flush=True)
        assert driver.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:]
        assert hash_parts(out) == hash_parts(local.folder)
        check_same(why.summarise_bulk(out, class_limit=60), why.summarise_bulk(local.folder, class_limit=60))
    runs = [[tmp_path / f"{engine} {name}" for name in ("one", "two")] for engine in ("ray", "local")]
    far, near = (why.compare_runs(*pair) for pair in runs)
    assert far.shared == MANY // 2 and near.items == (MANY, MANY)
    check_same(far, near)


def check_same(one, other) -> None:
    """Everything that a JSON file holds, apart from the names of the folders."""
    texts = [json.dumps(json.loads(result.formats[".json"](result))) for result in (one, other)]
    assert texts[0].replace("ray ", "local ") == texts[1].replace("ray ", "local ") and len(texts[0]) > 1000
