"""The process of one model: opens it, then answers one question after the other until the server goes away.

Messages to the server are a kind, the number of the job and JSON, so that it passes an answer on as it is; messages.py
writes those from the server. Neither side ever unpickles anything. A question that is cancelled is interrupted like by
Ctrl-C, after which the library leaves the model as it was.
"""

import json
import os
import signal
import threading
import time
from _thread import interrupt_main
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import FrameType
from typing import Any

from PIL import Image

from whyformer._engine import engine
from whyformer._model import Model
from whyformer._model.loading import open as open_model
from whyformer._page.answers.citing import answer_cite
from whyformer._page.answers.describing import answer_try, show_model
from whyformer._page.answers.explaining import answer_explain
from whyformer._page.answers.exporting import answer_case, answer_join
from whyformer._page.answers.inputs import InputMemory, PageQuestion
from whyformer._page.answers.predicting import answer_curve, answer_predict
from whyformer._page.answers.writing import answer_generate, answer_passages
from whyformer._page.messages import read_message
from whyformer._page.problems import report_bug
from whyformer._plain.failure import is_out_of_memory
from whyformer._plain.progress import Activity, ProgressBar, StatusLine, Writing, replace_status_line
from whyformer.errors import WhyformerError

ANSWERS: dict[str, Callable[[PageQuestion], dict[str, Any]]] = {
    "predict": answer_predict,
    "curve": answer_curve,
    "generate": answer_generate,
    "passages": answer_passages,
    "cite": answer_cite,
    "case": answer_case,
    "join": answer_join,
    "try": answer_try,
}
BEAT_SECONDS = 5.0
INTERNAL = "Something went wrong inside whyformer. The terminal that runs `whyformer serve` shows where."
Images = dict[str, tuple[int, int, bytes]]  # by id: width, height, RGB


class Cancelled(KeyboardInterrupt):
    """Nobody waits for this job any more."""


class Reporter(StatusLine):
    """Tells the server what the library is busy with."""

    def __init__(self, worker: "ModelWorker") -> None:
        super().__init__()
        self.worker = worker
        self.told: tuple[object, ...] = ()

    def begin(self, activity: Activity) -> None:
        with self._lock:
            self.activities.append(activity)
            if self._ticker is None or not self._ticker.is_alive():
                self._ticker = threading.Thread(target=self._repeat, name="whyformer-progress", daemon=True)
                self._ticker.start()

    def show(self, now: float) -> None:
        job, bars = self.worker.current, [one for one in self.activities if isinstance(one, ProgressBar)]
        if job is None or not bars:
            return
        bar = bars[-1]
        told = (job, bar.label, bar.done, bar.total)
        if told == self.told:
            return
        self.told = told
        if isinstance(bar, Writing) and bar.ids:
            ids = list(bar.ids)
            self.worker.tell("token", job, {"ids": ids, "text": self.worker.model.tokenizer.decode(ids)})
        else:
            self.worker.tell("progress", job, {"what": bar.label, "done": bar.done, "total": bar.total})


class ModelWorker:
    """One model, and the job that it is busy with."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.sending = connection, threading.Lock()
        self.inbox: SimpleQueue[tuple[int, str, dict[str, Any], Images]] = SimpleQueue()
        self.current: int | None = None
        self.cancelled: int | None = None
        self.is_telling = False  # the main thread is in the middle of a message
        self.memory = InputMemory()
        self.model: Model

    def tell(self, kind: str, job: int, value: Any) -> None:
        """ASCII, so that what is no Unicode does not break the answer; a NaN would be a bug."""
        text = json.dumps([kind, job]) + "\n" + json.dumps(value, allow_nan=False, separators=(",", ":"))
        is_main = threading.current_thread() is threading.main_thread()
        self.is_telling = self.is_telling or is_main
        with self.sending:
            self.connection.send_bytes(text.encode("ascii"))
        if is_main:
            self.is_telling = False
            self.stop_if_cancelled()

    def read(self) -> None:
        """Receive jobs while one runs, so that a cancelled job and the end of the server are noticed at once."""
        while True:
            try:
                (kind, number, *rest), pixels = read_message(self.connection.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)
            if kind == "cancel":
                self.cancelled = number
                interrupt_main(signal.SIGUSR1)
            else:
                route, body, sizes = rest
                images = {name: (*size, own) for (name, size), own in zip(sizes.items(), pixels, strict=True)}
                self.inbox.put((number, route, body, images))

    def say_loading(self, is_open: threading.Event) -> None:
        """Every few seconds until then: the server takes a process that says nothing for one that hangs."""
        with suppress(OSError):
            while not is_open.wait(BEAT_SECONDS):
                self.tell("loading", 0, {})

    def interrupt(self, _: int, __: FrameType | None) -> None:
        if not self.is_telling:
            self.stop_if_cancelled()

    def stop_if_cancelled(self) -> None:
        if self.current is not None and self.current == self.cancelled:
            self.current = None
            raise Cancelled

    def serve(self) -> None:
        while True:
            self.answer(*self.inbox.get())

    def answer(self, job: int, route: str, body: dict[str, Any], images: Images) -> None:
        try:
            self.current = job
            self.tell("running", job, {})
            value = self.compute(job, route, body, images)
            self.current = None
        except Cancelled:
            return self.tell("error", job, {"code": "E_PAGE_CANCELLED", "message": "This was cancelled."})
        except Exception as error:
            self.current = None
            return self.tell("error", job, show_error(error))
        self.tell("result", job, value)

    def compute(self, job: int, route: str, body: dict[str, Any], images: Images) -> dict[str, Any]:
        pictures = {name: Image.frombytes("RGB", (one[0], one[1]), one[2]) for name, one in images.items()}
        question = PageQuestion(self.model, body, pictures, self.memory)
        if route == "explain":
            return answer_explain(question, lambda own, other, value: self.tell("also", job, [own, other, value]))
        return ANSWERS[route](question)


def serve_model(descriptor: int) -> None:
    """The program of the process. It is sent the model's name and device first, and whether the server knows it."""
    worker = ModelWorker(Connection(descriptor))
    quieten_libraries()
    try:
        worker.tell("loading", 0, {})
        (name, device, is_known), _ = read_message(worker.connection.recv_bytes())
    except (EOFError, OSError):
        return
    is_open = threading.Event()
    threading.Thread(target=worker.say_loading, args=(is_open,), daemon=True).start()
    threading.Thread(target=worker.read, daemon=True).start()
    signal.signal(signal.SIGUSR1, worker.interrupt)
    try:
        with replace_status_line(Reporter(worker)), engine(replay=False):  # the same answer, whatever was asked before
            started = time.monotonic()
            worker.model = open_model(name, device=device)
            description = {} if is_known else show_model(worker.model)
            worker.tell("ready", 0, description | {"seconds": round(time.monotonic() - started, 2)})
            is_open.set()
            worker.serve()
    except Exception as error:
        worker.tell("failed", 0, show_error(error))


def quieten_libraries() -> None:
    """Nothing but what this file writes goes to the terminal."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def show_error(error: Exception) -> dict[str, str]:
    """A code and a message; of a bug, where it is goes to the terminal, without any value."""
    if isinstance(error, WhyformerError) and error.code != "E_INTERNAL":
        return {"code": error.code, "message": str(error)}
    if is_out_of_memory(error):
        return {"code": "E_MEMORY", "message": "Memory ran out. Ask for less at once."}
    report_bug(error)
    return {"code": "E_INTERNAL", "message": INTERNAL}
