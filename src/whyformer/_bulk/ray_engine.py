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

from whyformer._bulk.engine import Outcomes, StartWorker, count_cores, make_lost_error
from whyformer._bulk.queue import MAX_ATTEMPTS, ShardQueue
from whyformer._bulk.stopping import StopRequest
from whyformer._bulk.task import ShardTask
from whyformer._plain.failure import describe_failure
from whyformer.errors import ResourceError, WhyformerError

POLL_SECONDS = 0.5
RECRUIT_SECONDS = 5.0  # between two looks at the size of the cluster
CONNECT_SECONDS = 10.0
MAX_FAILED_STARTS = 20  # in a row; a machine that leaves while a worker starts is no reason to stop
LOCAL_STORE = 150 * 2**20  # bytes of the object store when Ray runs on this machine only: parts are small


@dataclass(eq=False)
class RayWorker:
    """An actor, and the call that it is busy with."""

    actor: Any
    call: Any  # what the actor is asked for: to be ready, or a part
    is_ready: bool = False


class WorkerActor:
    """Runs in a process of Ray: opens the model, then computes shards."""

    def __init__(self, start: StartWorker, device: str) -> None:
        self.refusal: tuple[str, str] | None = None
        try:
            self.worker = start(device)
        except Exception as error:
            self.refusal = describe_failure(error)

    def get_ready(self) -> tuple[str, str] | None:
        """None, or the code and the reason why this worker cannot work."""
        return self.refusal

    def run(self, task: ShardTask, upcoming: ShardTask | None) -> bytes:
        return self.worker.run(task, upcoming)


class RayEngine:
    """Actors on a Ray cluster, each with a GPU or with as many cores as a worker has threads."""

    parallel = None  # the cluster may grow and shrink

    def __init__(
        self, start: StartWorker, *, address: str | None, device: str, workers: int | None, threads: int
    ) -> None:
        self.ray = import_ray()
        self.start, self.address, self.device, self.count = start, address, device, workers
        self.needs = {"num_cpus": 1, "num_gpus": 1} if device == "cuda" else {"num_cpus": threads}
        self.workers: list[RayWorker] = []

    def run(self, tasks: Iterator[ShardTask], stop: StopRequest) -> Outcomes:
        queue, failed_starts = ShardQueue(tasks), 0
        was_connected = self.ray.is_initialized()
        self._connect()
        try:
            start = self.ray.put(self.start)
            recruited_at = 0.0
            while not queue.is_finished:
                if stop and (not queue.busy_count or not stop.seconds_left):
                    return
                if time.monotonic() - recruited_at > RECRUIT_SECONDS:
                    self._recruit(start)
                    recruited_at = time.monotonic()
                calls = {worker.call: worker for worker in self.workers if worker.call is not None}
                done, _ = self.ray.wait(list(calls), timeout=POLL_SECONDS) if calls else ([], [])
                for call in done:
                    worker = calls[call]
                    was_ready, worker.call = worker.is_ready, None
                    answer = self._receive(call)
                    if isinstance(answer, bytes):
                        yield queue.finish(worker), answer
                    elif answer is None and not was_ready:
                        worker.is_ready, failed_starts = True, 0
                    elif isinstance(answer, tuple):
                        raise WhyformerError(answer[1], code=answer[0])
                    else:
                        failed_starts += not was_ready
                        if failed_starts >= MAX_FAILED_STARTS:
                            raise make_actor_error(answer)
                        given_up = queue.lose(worker)
                        self._dismiss(worker)
                        recruited_at = 0.0
                        if given_up is not None:
                            yield given_up, make_lost_error(given_up, MAX_ATTEMPTS)
                if not calls:
                    time.sleep(POLL_SECONDS)
                for worker in self.workers:
                    if worker.is_ready and worker.call is None and not stop:
                        self._hand_out(worker, queue)
        finally:
            for worker in list(self.workers):
                self._dismiss(worker)
            if not was_connected:
                self.ray.shutdown()

    def _connect(self) -> None:
        """Join the cluster that was named. Without an address Ray runs here, whatever RAY_ADDRESS says."""
        if self.ray.is_initialized():
            return
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

    def _recruit(self, start: Any) -> None:
        """Start actors until there are as many as were asked for, or as the cluster has room for now."""
        wanted = self.count
        if wanted is None:
            resources = self.ray.cluster_resources()
            kind = "GPU" if self.device == "cuda" else "CPU"
            wanted = max(1, int(resources.get(kind, 0) // self.needs[f"num_{kind.lower()}s"]))
        actor_class = self.ray.remote(**self.needs, max_restarts=0, max_task_retries=0)(WorkerActor)
        while len(self.workers) < wanted:
            actor = actor_class.remote(start, self.device)
            self.workers.append(RayWorker(actor, actor.get_ready.remote()))

    def _hand_out(self, worker: RayWorker, queue: ShardQueue) -> None:
        assignment = queue.take(worker)
        if assignment is not None:
            worker.call = worker.actor.run.remote(assignment.current, assignment.upcoming)

    def _receive(self, call: Any) -> Any:
        """The answer of an actor, or the exception: of Ray if the actor is lost, or of the shard."""
        try:
            return self.ray.get(call)
        except Exception as error:
            return error

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


def make_actor_error(error: Any) -> ResourceError:
    reason = " ".join(str(error).split())[:300]
    return ResourceError(
        f"{MAX_FAILED_STARTS} Ray workers in a row were lost before they were ready: {reason}. Use fewer workers, or "
        "check that whyformer is installed on every machine.",
        code="E_ENGINE",
    )
