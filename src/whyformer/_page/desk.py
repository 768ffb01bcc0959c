"""The desk: takes questions, looks whether their answer is known, and hands them to the process of their model."""

import asyncio
import contextlib
import gc
import hashlib
import json
import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from whyformer._page.bodies import Input, ModelBody
from whyformer._page.decoding import DecodedImage, Decoder
from whyformer._page.kept import Kept
from whyformer._page.limits import Limits
from whyformer._page.model_process import Images, Job, ModelProcess, SpareProcess
from whyformer._page.problems import PageProblem
from whyformer._page.stored_runs import StoredRuns

COLLECT_SECONDS = 5.0
IDLE_SECONDS = 3.0  # nobody asks, before methods are tried
SAMPLE_IMAGE = Path(__file__).parents[1] / "demo" / "samples" / "cat.jpg"
Event = tuple[str, bytes]


class Desk:
    """Models, images and answers of one server."""

    def __init__(
        self, names: Sequence[str], limits: Limits, device: str | None = None, runs: Sequence[str] = ()
    ) -> None:
        self.limits = limits
        self.runs = StoredRuns(runs, limits)
        self.answers: Kept[bytes] = Kept(limits.kept_answers)
        self.images: Kept[DecodedImage] = Kept(limits.kept_images)
        self.decoder, self.decoding, self.uploads = Decoder(limits), ThreadPoolExecutor(1), 0
        self.spare = SpareProcess()
        self.models = [ModelProcess(name, limits, self.keep, self.spare, device) for name in names]
        self.jobs: dict[str, tuple[ModelProcess, Job]] = {}
        self.sample: DecodedImage | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # --- start and end ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        for model in self.models:
            model.start()
        if self.runs.folders:
            asyncio.get_running_loop().run_in_executor(self.runs.reading, self.runs.start)  # it imports for seconds
        gc.freeze()  # what is there stays, and need not be looked at again
        for work in (self.decode_sample(), self.try_methods(), self.collect_garbage()):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for model in self.models:
            model.stop()
        self.spare.stop()
        self.decoding.shutdown(wait=False, cancel_futures=True)
        self.decoder.stop()
        self.runs.reading.shutdown(wait=False, cancel_futures=True)
        self.runs.stop()

    async def collect_garbage(self) -> None:
        """Connections that have ended refer to themselves; thousands of them take more memory than the answers."""
        while True:
            await asyncio.sleep(COLLECT_SECONDS)
            gc.collect()

    async def decode_sample(self) -> None:
        with contextlib.suppress(PageProblem):
            self.sample = await self.decode(SAMPLE_IMAGE.read_bytes())

    async def decode(self, data: bytes) -> DecodedImage:
        """One after the other, each within its limit; not more of them wait than questions."""
        if self.uploads > self.limits.waiting:
            raise PageProblem("E_PAGE_BUSY", f"{self.uploads} images are being decoded or wait for it already.")
        self.uploads += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.decoding, self.decoder.decode, data)
        finally:
            self.uploads -= 1

    async def try_methods(self) -> None:
        """While nobody asks, have a process ready and find out which quick methods work on each model."""
        while True:
            await asyncio.sleep(0.5)
            now = time.monotonic()
            quiet = all(one.running is None and now - one.idle_since > IDLE_SECONDS for one in self.models)
            if quiet and all(one.state != "loading" for one in self.models):
                self.spare.prepare()
                await self.try_next_method()

    async def try_next_method(self) -> None:
        for model in self.models:
            for method in model.description.get("methods", []) if model.state == "ready" else []:
                if method["available"] is None and method["quick"]:
                    job = Job("try", {"method": method["name"]}, {})
                    model.submit(job)
                    async for kind, data in job.listen():
                        if kind == "result":
                            method |= json.loads(data)
                        elif kind == "error" and (problem := read_problem(data)).code != "E_PAGE_CANCELLED":
                            method |= {"available": False, "why_not": problem.message}
                    return

    # --- questions ----------------------------------------------------------------------------------------------------

    def describe(self) -> list[dict[str, Any]]:
        """Every model as far as it is known."""
        return [self._describe(index, model) for index, model in enumerate(self.models)]

    def _describe(self, index: int, model: ModelProcess) -> dict[str, Any]:
        problem = model.problem.to_json_value()["error"] if model.state == "failed" else None
        shown: dict[str, Any] = {"index": index, "name": model.name, "state": model.state, "error": problem}
        if model.state == "failed" or not model.description:
            return shown
        samples = list(model.description["samples"])
        if model.description["kind"] == "image" and self.sample is not None:
            samples.append({"title": SAMPLE_IMAGE.name, "image": self.sample.id})
        characters = self.limits.count_characters(model.description["max_tokens"])
        return model.description | shown | {"samples": samples, "characters": characters}

    def find_model(self, index: int) -> ModelProcess:
        if index >= len(self.models):
            raise PageProblem("E_MODEL_NOT_FOUND", f"There is no model {index}: the server has {len(self.models)}.")
        model = self.models[index]
        if model.state == "failed":
            raise model.problem
        return model

    def ask(self, route: str, body: ModelBody) -> "bytes | tuple[ModelProcess, Job]":
        """The answer if it is known, else the job that is going to find it."""
        model = self.find_model(body.model)
        fields = body.model_dump()
        if (known := self.answers.get(name_answer(route, fields))) is not None:
            return known
        images = self.gather(body.list_inputs(), model)
        return model, self.submit(model, route, fields, images)

    def submit(self, model: ModelProcess, route: str, fields: dict[str, Any], images: Images) -> Job:
        for other in self.models:
            if other.running is not None and other.running.route == "try":
                other.cancel(other.running)
        job = Job(route, fields, images)
        model.submit(job)
        self.jobs[job.id] = (model, job)
        return job

    def gather(self, inputs: Sequence[Input], model: ModelProcess) -> Images:
        """The images that these inputs name; texts that are too long are refused before anybody reads them."""
        limit = self.limits.count_characters(model.description.get("max_tokens"))
        found: Images = {}
        for one in inputs:
            if (count := one.count_characters()) > limit:
                raise PageProblem("E_TXT_TOO_LONG", f"The text has {count:,} characters; the limit is {limit:,}.")
            if one.image is not None:
                image = self.find_image(one.image)
                found[one.image] = (image.width, image.height, image.pixels)
        return found

    def find_image(self, name: str) -> DecodedImage:
        image = self.sample if self.sample is not None and self.sample.id == name else self.images.get(name)
        if image is None:
            raise PageProblem("E_PAGE_GONE", "The server does not hold this image (any more).")
        return image

    async def add_image(self, data: bytes) -> dict[str, Any]:
        if not data:
            raise PageProblem("E_IMG_FORMAT", "The file is empty.")
        image = await self.decode(data)
        name = image.id
        self.images.put(name, image)
        return image.to_json_value(name)

    async def follow(self, model: ModelProcess, job: Job) -> AsyncGenerator[Event, None]:
        """What happens to a job. Its result is kept; if nobody listens any more, it is cancelled."""
        try:
            async for kind, data in job.listen():
                if kind == "result" and job.route in KEPT:
                    self.answers.put(name_answer(job.route, job.body), data)
                yield kind, data
        finally:
            self.jobs.pop(job.id, None)
            model.cancel(job)

    def keep(self, route: str, body: dict[str, Any], answer: bytes) -> None:
        self.answers.put(name_answer(route, body), answer)

    def cancel(self, name: str) -> bool:
        model, job = self.jobs.get(name, (None, None))
        if model is None or job is None:
            return False
        model.cancel(job)
        return True


KEPT = ("explain", "predict", "curve", "cite", "passages", "generate")


def name_answer(route: str, body: dict[str, Any]) -> str:
    """The same for the same question."""
    text = json.dumps([route, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def read_problem(data: bytes) -> PageProblem:
    fields = json.loads(data)
    return PageProblem(fields["code"], fields["message"])
