"""The Ray engine without Ray: what it asks of a cluster, and what it makes of lost actors. See also test_ray.py."""

import os
import socket
from types import SimpleNamespace

import pytest
from bulk.fake_workers import FakeStart

from whyformer._bulk import ray_engine
from whyformer._bulk.queue import ShardTask
from whyformer._bulk.ray_engine import MAX_FAILED_STARTS, RayEngine
from whyformer._bulk.stopping import StopRequest
from whyformer.errors import ResourceError, WhyformerError


class FakeRay:
    """Runs calls of actors in this process, when they are waited for. `lost` says which calls lose their actor."""

    def __init__(self, cores: int = 2, lost=lambda method, arguments: False) -> None:
        self.cores, self.lost = cores, lost
        self.connected_with: dict[str, object] = {}
        self.umask = 0
        self.actors = self.killed = 0

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: object) -> None:
        self.connected_with = options
        self.umask = os.umask(0)
        os.umask(self.umask)

    def shutdown(self) -> None:
        self.connected_with |= {"ended": True}

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.cores), "GPU": 4.0}

    def put(self, value: object) -> object:
        return value

    def remote(self, **needs: object):
        def make(actor_class: type):
            def start(*arguments: object) -> SimpleNamespace:
                self.actors += 1
                actor = actor_class(*arguments)
                names = [name for name in vars(actor_class) if not name.startswith("_")]
                return SimpleNamespace(**{name: self.make_method(actor, name) for name in names})

            return SimpleNamespace(remote=start)

        return make

    def make_method(self, actor: object, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda *arguments: (actor, name, arguments))

    def wait(self, calls: list[object], timeout: float):
        return calls[:1], calls[1:]

    def get(self, call):
        actor, name, arguments = call
        if self.lost(name, arguments):
            raise RuntimeError("the actor died")
        return getattr(actor, name)(*arguments)

    def kill(self, actor: object) -> None:
        self.killed += 1


@pytest.fixture
def start(monkeypatch):
    monkeypatch.setattr(ray_engine, "RECRUIT_SECONDS", 0.0)
    monkeypatch.setattr(ray_engine, "POLL_SECONDS", 0.0)

    def make(fake: FakeRay, worker, **options):
        monkeypatch.setattr(ray_engine, "import_ray", lambda: fake)
        settings = {"address": None, "device": "cpu", "workers": None, "threads": 1, **options}
        return RayEngine(worker, **settings)

    return make


def run(engine: RayEngine, count: int):
    tasks = iter([ShardTask(number, ()) for number in range(count)])
    return {task.number: part for task, part in engine.run(tasks, StopRequest())}


def test_without_an_address_ray_runs_here_and_is_ended(start, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:6379")
    fake = FakeRay()
    assert run(start(fake, FakeStart(tmp_path)), 5) == {number: b"part %d" % number for number in range(5)}
    assert fake.connected_with["address"] == "local" and fake.connected_with["ended"]
    assert fake.umask == 0o077  # of the file with the token
    assert (fake.actors, fake.killed) == (2, 2)


@pytest.mark.parametrize(
    ("options", "actors"), [({}, 6), ({"threads": 3}, 2), ({"device": "cuda"}, 4), ({"workers": 1}, 1)]
)
def test_as_many_actors_as_there_is_room_for(start, tmp_path, options, actors):
    fake = FakeRay(cores=6)
    run(start(fake, FakeStart(tmp_path), **options), 30)
    assert fake.actors == actors


def test_a_lost_shard_runs_again_and_is_given_up_after_three_workers(start, tmp_path):
    fake = FakeRay(lost=lambda method, arguments: method == "run" and arguments[0].number == 2)
    outcomes = run(start(fake, FakeStart(tmp_path)), 4)
    assert outcomes.pop(2).code == "E_WORKER"
    assert sorted(outcomes) == [0, 1, 3] and fake.actors == 2 + 3


def test_workers_that_never_get_ready_stop_the_run_in_the_end(start, tmp_path):
    fake = FakeRay(lost=lambda method, arguments: method == "get_ready")
    with pytest.raises(ResourceError, match="20 Ray workers in a row were lost before they were ready") as refused:
        run(start(fake, FakeStart(tmp_path)), 4)
    assert refused.value.code == "E_ENGINE" and fake.actors >= MAX_FAILED_STARTS


def test_a_worker_that_refuses_stops_the_run(start, tmp_path):
    with pytest.raises(WhyformerError, match="no such model"):
        run(start(FakeRay(), FakeStart(tmp_path, refusal="no such model")), 2)


def test_nobody_at_the_address(start, tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(ResourceError, match=f"Cannot reach Ray at {address}"):
        run(start(FakeRay(), FakeStart(tmp_path), address=address), 1)


def test_what_ray_says_when_it_cannot_start(start, tmp_path, monkeypatch):
    fake = FakeRay()

    def fail(**_):
        raise RuntimeError("no room in the object store")

    monkeypatch.setattr(fake, "init", fail)
    before = os.umask(0o022)
    os.umask(before)
    with pytest.raises(ResourceError, match="Cannot reach Ray at this machine: no room in the object store"):
        run(start(fake, FakeStart(tmp_path)), 1)
    assert os.umask(before) == before
