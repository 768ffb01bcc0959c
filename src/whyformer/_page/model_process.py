"""One model as the server sees it: a process, the job that runs in it and those that wait.

Jobs wait in a bounded queue and run one after the other. A job that nobody waits for any more, or that takes too long,
is interrupted; if that does not help, or if the process dies, a new process takes its place and the job gets an error.
"""

import asyncio
import contextlib
import itertools
import json
import secrets
import subprocess
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from whyformer._bulk.fresh_process import start_process
from whyformer._page.limits import Limits
from whyformer._page.messages import write_message
from whyformer._page.problems import PageProblem

GRACE_SECONDS = 5.0  # for a job that was interrupted to end
START_SECONDS = 120.0  # for a process to import the library
SILENT_SECONDS = 30.0  # of a process that loads a model, which says every few seconds that it does
MOST_STARTS = 3  # in a row that fail, before a model is given up
LAST = ("result", "error")  # events
TRY = "try"  # the route by which methods are tried while nobody waits
numbers = itertools.count(1)

Keep = Callable[[str, dict[str, Any], bytes], None]
Images = dict[str, tuple[int, int, bytes]]
Outbox = SimpleQueue[list[Any] | None]  # a message's value and its blobs


class SpareProcess:
    """A process that has imported everything and waits for a model, so that one that died is soon replaced."""

    def __init__(self) -> None:
        self._waiting: tuple[subprocess.Popen[bytes], Connection] | None = None

    def prepare(self) -> None:
        if self._waiting is None or self._waiting[0].poll() is not None:
            environment = {"TOKENIZERS_PARALLELISM": "false"}
            process, (connection,) = start_process("whyformer._page.worker", "serve_model", environment=environment)
            self._waiting = process, connection

    def take(self) -> "tuple[subprocess.Popen[bytes], Connection]":
        self.prepare()
        assert self._waiting is not None
        taken, self._waiting = self._waiting, None
        return taken

    def stop(self) -> None:
        if self._waiting is not None:
            process, connection = self.take()
            process.kill()
            process.wait()
            connection.close()


class Job:
    """One question, from when it arrives until it is answered."""

    def __init__(self, route: str, body: dict[str, Any], images: Images) -> None:
        self.number, self.id = next(numbers), secrets.token_urlsafe(12)
        self.route, self.body, self.images = route, body, images
        self.events: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self.is_over = False
        self.wanted = True

    def tell(self, kind: str, data: bytes) -> None:
        if not self.is_over:
            self.is_over = kind in LAST
            self.events.put_nowait((kind, data))

    def fail(self, problem: PageProblem) -> None:
        self.tell("error", json.dumps({"code": problem.code, "message": problem.message}).encode("ascii"))

    async def listen(self) -> AsyncIterator[tuple[str, bytes]]:
        """What happens to it; the last event is a result or an error."""
        while True:
            kind, data = await self.events.get()
            yield kind, data
            if kind in LAST:
                return


class ModelProcess:
    """A model by the name that was given at the start."""

    def __init__(self, name: str, limits: Limits, keep: Keep, spare: SpareProcess, device: str | None = None) -> None:
        self.name, self.limits, self.keep, self.spare, self.device = name, limits, keep, spare, device
        self.state, self.problem = "loading", PageProblem("E_WORKER", "The model is not loaded.")
        self.description: dict[str, Any] = {}
        self.waiting: deque[Job] = deque()
        self.running: Job | None = None
        self.failed_starts = 0
        self.idle_since = time.monotonic()
        self._process: subprocess.Popen[bytes] | None = None
        self._outbox: Outbox = SimpleQueue()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop
        self._is_stopped = False

    # --- the process --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._outbox.put(None)
        process, connection = self.spare.take()
        self._process, self._outbox = process, SimpleQueue()
        self._outbox.put([[self.name, self.device, bool(self.description)]])
        self._set_timer(START_SECONDS, self._kill)
        threading.Thread(target=send_all, args=(self._outbox, connection), daemon=True).start()
        threading.Thread(target=self._read, args=(process, connection), daemon=True).start()

    def _read(self, process: "subprocess.Popen[bytes]", connection: Connection) -> None:
        """In a thread: pass on what the process says; at the end, that it has died."""
        while True:
            try:
                message = connection.recv_bytes()
            except (EOFError, OSError):
                break
            self._call(self._receive, process, message)
        process.kill()
        process.wait()
        connection.close()
        self._call(self._bury, process)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(function, *arguments)

    def _receive(self, process: "subprocess.Popen[bytes]", message: bytes) -> None:
        if process is not self._process:
            return
        head, _, data = message.partition(b"\n")
        kind, number = json.loads(head)
        if kind == "loading" and self.state == "loading":
            self._set_timer(SILENT_SECONDS, self._kill)
        elif kind == "ready":
            self._set_timer(None, None)
            self.description = self.description or json.loads(data)
            self.state, self.failed_starts = "ready", 0
            self._next()
        elif kind == "failed":
            fields = json.loads(data)
            self._give_up(PageProblem(fields["code"], fields["message"]))
        elif (job := self.running) is not None and job.number == number:
            if kind == "also":
                route, body, value = json.loads(data)
                self.keep(route, body, json.dumps(value, separators=(",", ":")).encode("ascii"))
            else:
                job.tell(kind, data)
            if kind in LAST:
                self._finish()

    def _bury(self, process: "subprocess.Popen[bytes]") -> None:
        """The process has died: its job fails, the others wait for the next process."""
        if process is not self._process or self._is_stopped or self.state == "failed":
            return
        if self.running is not None:
            self.running.fail(PageProblem("E_WORKER", "The process of this model ended while it worked on this."))
            self._finish(go_on=False)
        if self.state == "loading":
            self.failed_starts += 1
        if self.failed_starts >= MOST_STARTS:
            return self._give_up(PageProblem("E_WORKER", "The process of this model ended while it was being loaded."))
        self.state = "loading"
        self.start()

    def _give_up(self, problem: PageProblem) -> None:
        self.state, self.problem = "failed", problem
        self._set_timer(None, None)
        for job in self.waiting:
            job.fail(problem)
        self.waiting.clear()

    def stop(self) -> None:
        self._is_stopped = True
        for job in [*self.waiting, *([self.running] if self.running else [])]:
            job.fail(PageProblem("E_WORKER", "The server was stopped."))
        self._outbox.put(None)
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Queue a job; refused if too many wait already."""
        if self.state == "failed":
            raise self.problem
        if len(self.waiting) >= self.limits.waiting:
            raise PageProblem("E_PAGE_BUSY", f"{len(self.waiting)} questions wait for this model already.")
        if self.running is not None and self.running.route == TRY:
            self.cancel(self.running)
        self.waiting.append(job)
        self._tell_positions()
        self._next()

    def cancel(self, job: Job, problem: PageProblem | None = None) -> None:
        """Nobody waits for it any more, or it has taken too long."""
        if job.is_over:
            return
        job.fail(problem or PageProblem("E_PAGE_CANCELLED", "This was cancelled."))
        if job in self.waiting:
            self.waiting.remove(job)
            self._tell_positions()
        elif job is self.running:
            self._outbox.put([["cancel", job.number]])
            self._set_timer(GRACE_SECONDS, self._kill)

    def _next(self) -> None:
        if self.running is not None or self.state != "ready" or not self.waiting:
            return
        self.running = job = self.waiting.popleft()
        self._tell_positions()
        self._set_timer(self.limits.seconds, self._expire)
        sizes = {name: image[:2] for name, image in job.images.items()}
        pixels = [image[2] for image in job.images.values()]
        self._outbox.put([["run", job.number, job.route, job.body, sizes], *pixels])

    def _expire(self) -> None:
        if self.running is not None:
            seconds = f"{self.limits.seconds:g} seconds"
            self.cancel(
                self.running, PageProblem("E_PAGE_TIME", f"This took longer than {seconds}, so it was stopped.")
            )

    def _kill(self) -> None:
        """It does not react: end the process; _bury starts another."""
        if self._process is not None:
            self._process.kill()

    def _finish(self, *, go_on: bool = True) -> None:
        if self.running is not None and self.running.route != TRY:
            self.idle_since = time.monotonic()
        self.running = None
        self._set_timer(None, None)
        if go_on:
            self._next()

    def _set_timer(self, seconds: float | None, function: Callable[[], None] | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None or function is None else self._loop.call_later(seconds, function)

    def _tell_positions(self) -> None:
        for place, job in enumerate(self.waiting, 1):
            job.tell("queued", b'{"position":%d}' % place)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid


def send_all(outbox: Outbox, connection: Connection) -> None:
    """In a thread: send what the process shall do, in order, until there is nothing more (None) or it has died."""
    while (message := outbox.get()) is not None:
        try:
            connection.send_bytes(write_message(*message))
        except OSError:  # the thread that reads notices, too
            return
