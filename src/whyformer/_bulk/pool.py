"""The engine for one machine: worker processes, one per GPU or several on the processor.

Each worker is a fresh interpreter that opens the model itself; nothing is inherited from the caller, whose script is
not run again. Tasks and parts travel over a pair of sockets. A worker that dies is replaced, and its shard runs again.
A worker whose caller dies ends itself.
"""

import os
import pickle
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import TypeAlias

from whyformer._bulk.engine import StartWorker, TeamWorker, WorkerMessage, WorkerTeam
from whyformer._bulk.fresh_process import start_process
from whyformer._bulk.queue import Assignment, ShardTask
from whyformer._plain.failure import describe_failure
from whyformer.errors import MethodError, ResourceError

POLL_SECONDS = 0.5
TaskInbox: TypeAlias = "SimpleQueue[tuple[ShardTask, ShardTask | None]]"


@dataclass(eq=False)
class WorkerProcess(TeamWorker):
    """A worker as its caller sees it."""

    device: str
    process: "subprocess.Popen[bytes]"
    connection: Connection

    def receive(self) -> WorkerMessage:
        """What the worker says; ("dead",) if it cannot say anything any more."""
        try:
            message: WorkerMessage = self.connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            return ("dead",)
        return message

    def end(self) -> None:
        with suppress(OSError):
            self.connection.close()
        self.process.kill()
        self.process.wait()


class ProcessPool(WorkerTeam[WorkerProcess]):
    """One worker process for each device of the list; a device can be listed several times."""

    def __init__(self, start: StartWorker, devices: Sequence[str]) -> None:
        super().__init__()
        self.devices = list(devices)
        try:
            self._start = pickle.dumps(start)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise MethodError(
                f"The model or a method cannot be sent to another process ({str(error)[:200]}). Pass the model by its "
                "name or folder and methods by name, or use workers=1.",
                code="E_ENGINE",
            ) from None

    @property
    def parallel(self) -> int:
        return len(self.devices)

    def connect(self) -> None:
        for device in self.devices:
            self.workers.append(self._spawn(device))

    def listen(self) -> Iterator[tuple[WorkerProcess, WorkerMessage]]:
        for connection in wait([worker.connection for worker in self.workers], POLL_SECONDS):
            worker = next(one for one in self.workers if one.connection is connection)
            yield worker, worker.receive()

    def send(self, worker: WorkerProcess, assignment: Assignment) -> None:
        with suppress(OSError):  # it died; the next wait reports that
            worker.connection.send((assignment.current, assignment.upcoming))

    def replace(self, worker: WorkerProcess) -> None:
        worker.end()
        self.workers[self.workers.index(worker)] = self._spawn(worker.device)

    def disconnect(self) -> None:
        for worker in self.workers:
            worker.end()

    def make_start_error(self, worker: WorkerProcess, message: WorkerMessage) -> ResourceError:
        return ResourceError(
            f"A worker process for {worker.device} ended {self.max_failed_starts} times before it was ready (status "
            f"{worker.process.wait()}). It may have run out of memory while it opened the model: use fewer workers, or "
            "workers=1 to see the error.",
            code="E_ENGINE",
        )

    def _spawn(self, device: str) -> WorkerProcess:
        process, (connection,) = start_process("whyformer._bulk.pool", "serve_shards")
        with suppress(OSError):
            connection.send_bytes(self._start)
            connection.send(device)
        return WorkerProcess(device, process, connection)


# --- in the worker ----------------------------------------------------------------------------------------------------


def serve_shards(descriptor: int) -> None:
    """The program of a worker process: start the worker that is sent first, then compute tasks until there is none.

    `descriptor` is its end of the pair of sockets.
    """
    connection = Connection(descriptor)
    with suppress(BrokenPipeError):
        try:
            start, device = pickle.loads(connection.recv_bytes()), connection.recv()
            worker = start(device)
        except EOFError:
            return
        except Exception as error:
            return connection.send(("refused", *describe_failure(error)))
        inbox: TaskInbox = SimpleQueue()
        threading.Thread(target=read_tasks, args=(connection, inbox), daemon=True).start()
        connection.send(("ready",))
        while True:
            task, upcoming = inbox.get()
            try:
                answer: WorkerMessage = ("part", worker.run(task, upcoming))
            except Exception as error:
                answer = ("failed", *describe_failure(error))
            connection.send(answer)


def read_tasks(connection: Connection, inbox: TaskInbox) -> None:
    """Receive tasks while one is computed, so that the end of the caller is noticed at once."""
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)
