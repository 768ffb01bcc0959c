"""The engine for one machine: worker processes, one per GPU or several on the processor.

Each worker is a fresh interpreter that opens the model itself; nothing is inherited from the caller, whose script is
not run again. Tasks and parts travel over a pair of sockets. A worker that dies is replaced, and its shard runs again.
A worker whose caller dies ends itself.
"""

import os
import pickle
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any

from whyformer._bulk.engine import Outcomes, StartWorker, make_lost_error
from whyformer._bulk.fresh_process import start_process
from whyformer._bulk.queue import MAX_ATTEMPTS, ShardQueue
from whyformer._bulk.stopping import StopRequest
from whyformer._bulk.task import ShardTask
from whyformer._plain.failure import describe_failure
from whyformer.errors import MethodError, ResourceError, WhyformerError

POLL_SECONDS = 0.5


@dataclass(eq=False)
class WorkerProcess:
    """A worker as its caller sees it."""

    device: str
    process: "subprocess.Popen[bytes]"
    connection: Connection
    is_ready: bool = False

    def end(self) -> None:
        with suppress(OSError):
            self.connection.close()
        self.process.kill()
        self.process.wait()


class ProcessPool:
    """One worker process for each device of the list; a device can be listed several times."""

    def __init__(self, start: StartWorker, devices: Sequence[str]) -> None:
        self.devices = list(devices)
        self.workers: list[WorkerProcess] = []
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

    def run(self, tasks: Iterator[ShardTask], stop: StopRequest) -> Outcomes:
        queue = ShardQueue(tasks)
        failed_starts = 0
        try:
            self.workers = [self._spawn(device) for device in self.devices]
            while not queue.is_finished:
                if stop and (not queue.busy_count or not stop.seconds_left):
                    return
                for connection in wait([worker.connection for worker in self.workers], POLL_SECONDS):
                    worker = next(one for one in self.workers if one.connection is connection)
                    message = receive_message(worker)
                    match message:
                        case ("ready",):
                            worker.is_ready, failed_starts = True, 0
                        case ("refused", str(code), str(text)):
                            raise WhyformerError(text, code=code)
                        case ("part", bytes(part)):
                            yield queue.finish(worker), part
                        case _:  # the worker is dead, or a shard raised what no item can be blamed for
                            failed_starts += not worker.is_ready
                            if failed_starts >= MAX_ATTEMPTS:
                                raise make_start_error(worker)
                            given_up = queue.lose(worker)
                            self._replace(worker)
                            if given_up is not None:
                                yield given_up, as_shard_error(message, given_up)
                            continue
                    self._hand_out(worker, queue, stop)
                for worker in [one for one in self.workers if one.is_ready and not queue.is_busy(one)]:
                    self._hand_out(worker, queue, stop)
        finally:
            for worker in self.workers:
                worker.end()

    def _hand_out(self, worker: WorkerProcess, queue: ShardQueue, stop: StopRequest) -> None:
        """Give a worker its next shard, if there is one; else it waits, because another worker may be lost."""
        assignment = None if stop else queue.take(worker)
        if assignment is not None:
            with suppress(OSError):  # it died; the next wait reports that
                worker.connection.send((assignment.current, assignment.upcoming))

    def _replace(self, worker: WorkerProcess) -> None:
        worker.end()
        self.workers[self.workers.index(worker)] = self._spawn(worker.device)

    def _spawn(self, device: str) -> WorkerProcess:
        process, (connection,) = start_process("whyformer._bulk.pool")
        with suppress(OSError):
            connection.send_bytes(self._start)
            connection.send(device)
        return WorkerProcess(device, process, connection)


def receive_message(worker: WorkerProcess) -> Any:
    """What a worker says; ("dead",) if it cannot say anything any more."""
    try:
        return worker.connection.recv()
    except (EOFError, OSError, pickle.UnpicklingError):
        return ("dead",)


def as_shard_error(message: Any, task: ShardTask) -> Exception:
    match message:
        case ("failed", str(code), str(text)):
            return WhyformerError(text, code=code)
    return make_lost_error(task, MAX_ATTEMPTS)


def make_start_error(worker: WorkerProcess) -> ResourceError:
    status = worker.process.wait()
    return ResourceError(
        f"A worker process for {worker.device} ended {MAX_ATTEMPTS} times before it was ready (status {status}). It "
        "may have run out of memory while it opened the model: use fewer workers, or workers=1 to see the error.",
        code="E_ENGINE",
    )


# --- in the worker ----------------------------------------------------------------------------------------------------


def serve(connection: Connection) -> None:
    """Start the worker that is sent first, then compute tasks until there is none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the caller decides
    try:
        start, device = pickle.loads(connection.recv_bytes()), connection.recv()
        worker = start(device)
    except EOFError:
        return
    except Exception as error:
        connection.send(("refused", *describe_failure(error)))
        return
    inbox: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=read_tasks, args=(connection, inbox), daemon=True).start()
    connection.send(("ready",))
    while True:
        task, upcoming = inbox.get()
        try:
            answer: tuple[Any, ...] = ("part", worker.run(task, upcoming))
        except Exception as error:
            answer = ("failed", *describe_failure(error))
        connection.send(answer)


def read_tasks(connection: Connection, inbox: "SimpleQueue[Any]") -> None:
    """Receive tasks while one is computed, so that the end of the caller is noticed at once."""
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)


def main(descriptor: int) -> None:
    """The program of a worker process; `descriptor` is its end of the pair of sockets."""
    with suppress(BrokenPipeError):
        serve(Connection(descriptor))
