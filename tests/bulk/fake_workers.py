"""Workers without a model, for the engines: they only import what a worker process needs to start."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from whyformer._bulk.queue import ShardTask


@dataclass(frozen=True)
class FakeWorker:
    """Answers with the number of the shard; `folder` counts attempts, because a killed worker forgets everything."""

    device: str
    folder: Path
    deadly: tuple[int, ...] = ()  # these shards kill the worker every time
    killed_once: tuple[int, ...] = ()  # these only at the first attempt
    failing: tuple[int, ...] = ()  # these raise
    seconds: float = 0.0

    def run(self, task: ShardTask, upcoming: ShardTask | None = None) -> bytes:
        time.sleep(self.seconds)
        with open(self.folder / f"shard-{task.number}", "a") as file:
            file.write(f"{os.getpid()} {self.device} {-1 if upcoming is None else upcoming.number}\n")
        attempts = len((self.folder / f"shard-{task.number}").read_text().splitlines())
        if task.number in self.deadly or (task.number in self.killed_once and attempts == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        if task.number in self.failing:
            raise KeyError("surprise")
        return b"part %d" % task.number


@dataclass(frozen=True)
class FakeStart:
    """Starts FakeWorkers; as a refusal, raises what a model that cannot be opened would raise."""

    folder: Path
    deadly: tuple[int, ...] = ()
    killed_once: tuple[int, ...] = ()
    failing: tuple[int, ...] = ()
    seconds: float = 0.0
    refusal: str = ""

    def __call__(self, device: str) -> FakeWorker:
        if self.refusal:
            from whyformer.errors import ModelError

            raise ModelError(self.refusal)
        return FakeWorker(device, self.folder, self.deadly, self.killed_once, self.failing, self.seconds)
