"""The engine for many machines: Ray actors that hold the model.

Ray only runs shards; the plan, the files and the checks are ours, and this process writes every part. An actor that is
lost, with its process or with its machine, is replaced where there is room, and its shard runs again. Machines may join
and leave. Token authentication is on: without it, whoever reaches Ray's ports can run code.
"""

import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from whyformer._bulk.engine import StartWorker, TeamWorker, WorkerMessage, WorkerTeam, count_cores
from whyformer._bulk.queue import Assignment, ShardTask
from whyformer._plain.failure import describe_failure
from whyformer.errors import ResourceError

POLL_SECONDS = 0.5
RECRUIT_SECONDS = 5.0  # between two looks at the size of the cluster
CONNECT_SECONDS = 10.0
MAX_FAILED_STARTS = 20  # in a row; a machine that leaves while a worker starts is no reason to stop
LOCAL_STORE = 150 * 2**20  # bytes of the object store when Ray runs on this machine only: parts are small


@dataclass(eq=False)
class RayWorker(TeamWorker):
    """An actor, and the call that it is busy with."""

    actor: Any
    call: Any  # what the actor is asked for: to be ready, or a part


class WorkerActor:
    """Runs in a process of Ray: opens the model, then computes shards."""

    def __init__(self, start: StartWorker, device: str) -> None:
        self.state: WorkerMessage = ("ready",)
        try:
            self.worker = start(device)
        except Exception as error:
            self.state = ("refused", *describe_failure(error))

    def get_ready(self) -> WorkerMessage:
        return self.state

    def run(self, task: ShardTask, upcoming: ShardTask | None) -> WorkerMessage:
        return "part", self.worker.run(task, upcoming)


class RayEngine(WorkerTeam[RayWorker]):
    """Actors on a Ray cluster, each with a GPU or with as many cores as a worker has threads."""

    parallel = None  # the cluster may grow and shrink
    max_failed_starts = MAX_FAILED_STARTS

    def __init__(
        self, start: StartWorker, *, address: str | None, device: str, workers: int | None, threads: int
    ) -> None:
        super().__init__()
        self.ray = import_ray()
        self.start, self.address, self.device, self.count = start, address, device, workers
        self.needs = {"num_cpus": 1, "num_gpus": 1} if device == "cuda" else {"num_cpus": threads}
        self._recruited_at = 0.0

    def listen(self) -> Iterator[tuple[RayWorker, WorkerMessage]]:
        if time.monotonic() - self._recruited_at > RECRUIT_SECONDS:
            self._recruit()
            self._recruited_at = time.monotonic()
        calls = {worker.call: worker for worker in self.workers if worker.call is not None}
        if not calls:
            time.sleep(POLL_SECONDS)
            return
        for call in self.ray.wait(list(calls), timeout=POLL_SECONDS)[0]:
            calls[call].call = None
            try:
                message: WorkerMessage = self.ray.get(call)
            except Exception as error:  # of Ray if the actor is lost, or of the shard
                message = ("lost", str(error))
            yield calls[call], message

    def send(self, worker: RayWorker, assignment: Assignment) -> None:
        worker.call = worker.actor.run.remote(assignment.current, assignment.upcoming)

    def replace(self, worker: RayWorker) -> None:
        self._dismiss(worker)
        self._recruited_at = 0.0

    def disconnect(self) -> None:
        for worker in list(self.workers):
            self._dismiss(worker)
        if not self._was_connected:
            self.ray.shutdown()

    def make_start_error(self, worker: RayWorker, message: WorkerMessage) -> ResourceError:
        reason = " ".join(str(message[-1]).split())[:300]
        return ResourceError(
            f"{MAX_FAILED_STARTS} Ray workers in a row were lost before they were ready: {reason}. Use fewer workers, "
            "or check that whyformer is installed on every machine.",
            code="E_ENGINE",
        )

    def connect(self) -> None:
        self._was_connected = self.ray.is_initialized()
        if not self._was_connected:
            self._join_cluster()
        self._sent_start = self.ray.put(self.start)

    def _join_cluster(self) -> None:
        """Join the cluster that was named. Without an address Ray runs here, whatever RAY_ADDRESS says."""
        check_reachable(self.address)
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
        if self.address is None:
            cores = (self.count or count_cores()) * self.needs["num_cpus"]
            options |= {"include_dashboard": False, "num_cpus": cores, "object_store_memory": LOCAL_STORE}
        keep_ray_off_the_terminal()
        before = os.umask(0o077)  # Ray writes the token to a file that others could read
        try:
            self.ray.init(address=self.address or "local", **options)
        except Exception as error:
            raise make_connection_error(self.address, error) from None
        finally:
            os.umask(before)

    def _recruit(self) -> None:
        """Start actors until there are as many as were asked for, or as the cluster has room for now."""
        wanted = self.count
        if wanted is None:
            resources = self.ray.cluster_resources()
            kind = "GPU" if self.device == "cuda" else "CPU"
            wanted = max(1, int(resources.get(kind, 0) // self.needs[f"num_{kind.lower()}s"]))
        actor_class = self.ray.remote(**self.needs, max_restarts=0, max_task_retries=0)(WorkerActor)
        while len(self.workers) < wanted:
            actor = actor_class.remote(self._sent_start, self.device)
            self.workers.append(RayWorker(actor, actor.get_ready.remote()))

    def _dismiss(self, worker: RayWorker) -> None:
        self.workers.remove(worker)
        with suppress(Exception):  # it may be gone already
            self.ray.kill(worker.actor)


def keep_ray_off_the_terminal() -> None:
    """Ray prints what is published about lost nodes, with their state dumps, whatever log_to_driver says.

    Everything remains in the files of Ray's session. A program that has set up logging still gets Ray's log records.
    """
    logging.getLogger("ray").addHandler(logging.NullHandler())  # otherwise warnings go to stderr
    with suppress(ImportError):
        from ray._private import worker

        worker._worker_logs_enabled = False


def check_reachable(address: str | None) -> None:
    """Raise if nobody listens at HOST:PORT; Ray itself would try for many minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise make_connection_error(address, error) from None


def make_connection_error(address: str | None, error: Exception) -> ResourceError:
    reason = " ".join(str(error).split())[:300]
    return ResourceError(
        f"Cannot reach Ray at {address or 'this machine'}: {reason}. Start it with `ray start --head`, or check the "
        "address and the token.",
        code="E_ENGINE",
    )


def import_ray() -> Any:
    """Ray, with token authentication on and usage statistics off unless the caller decided otherwise."""
    if "ray" not in sys.modules:  # it reads these when it is imported, and would refuse its own nodes if they changed
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ResourceError(
            "Ray is not installed. Install it: pip install 'whyformer[ray]'.", code="E_ENGINE"
        ) from None
    return ray
