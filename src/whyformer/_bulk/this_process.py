"""The engine that needs nothing: shards one after the other in this process."""

from collections.abc import Iterator

from whyformer._bulk.engine import Outcomes
from whyformer._bulk.queue import ShardTask
from whyformer._bulk.stopping import StopOverdue, StopRequest
from whyformer._bulk.worker import ShardWorker, use_threads


class ThisProcess:
    """One worker, here."""

    parallel = 1

    def __init__(self, worker: ShardWorker) -> None:
        self.worker = worker

    def run(self, tasks: Iterator[ShardTask], stop: StopRequest) -> Outcomes:
        self.worker.check_stop = stop.check
        try:
            task = next(tasks, None)
            while task is not None and not stop:
                upcoming = next(tasks, None)
                try:
                    with use_threads(self.worker.setup.threads):
                        part = self.worker.run(task, upcoming)
                except StopOverdue:
                    return
                yield task, part
                task = upcoming
        finally:
            self.worker.close()
