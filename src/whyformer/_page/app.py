"""The application: its routes. Each checks nothing but what is its own; guard.py has checked the rest."""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response, StreamingResponse

from whyformer._page import bodies
from whyformer._page.about import VERSION
from whyformer._page.desk import Desk, read_problem
from whyformer._page.exports import export_cases
from whyformer._page.files import list_files, serve_file
from whyformer._page.guard import Guard
from whyformer._page.model_process import Job, ModelProcess
from whyformer._page.problems import PAGE_CODES, PageProblem, report_bug
from whyformer._page.responses import make_json_response, make_problem_response, write_event, write_problem_event

EVENTS = "text/event-stream"
PROBLEM = {
    "description": "A problem: a code, one sentence and what to do.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["code", "message", "help"],
                        "properties": {name: {"type": "string"} for name in ("code", "message", "help")},
                    }
                },
            }
        }
    },
}
STATUSES = sorted({400, 422, 500, *(status for status, _ in PAGE_CODES.values())})
RESPONSES: dict[int | str, dict[str, Any]] = {status: PROBLEM for status in STATUSES}
SHOWN_LIMITS = ("body_bytes", "image_pixels", "characters", "seconds", "new_tokens", "waiting")


def make_app(desk: Desk, token: str, cookie: str) -> FastAPI:
    """The routes around one desk. There are no documentation pages: those of FastAPI load scripts from elsewhere."""

    @asynccontextmanager
    async def run_desk(_: FastAPI) -> AsyncIterator[None]:
        await desk.start()
        try:
            yield
        finally:
            await desk.stop()

    app = FastAPI(
        title="whyformer", version=VERSION, docs_url=None, redoc_url=None, openapi_url="/api/openapi.json",
        lifespan=run_desk, responses=RESPONSES,
    )  # fmt: skip
    add_problem_handlers(app)
    add_page(app, token, cookie)
    add_models_and_images(app, desk)
    add_questions(app, desk)
    return app


def guard(app: FastAPI, desk: Desk, hosts: list[str], token: str, cookie: str) -> Guard:
    json_paths = ["/api/cancel", "/api/export", "/api/run", "/api/run-map", *(f"/api/{route}" for route in QUESTIONS)]
    return Guard(app, hosts, token, cookie, desk.limits, json_paths, ["/api/image"])


# --- problems ---------------------------------------------------------------------------------------------------------


def add_problem_handlers(app: FastAPI) -> None:
    @app.exception_handler(PageProblem)
    async def answer_problem(_: Request, problem: PageProblem) -> Response:
        return make_problem_response(problem)

    @app.exception_handler(HTTPException)
    async def answer_http(_: Request, error: HTTPException) -> Response:
        codes = {404: "E_PAGE_ROUTE", 405: "E_PAGE_METHOD"}
        message = {404: "There is nothing at this address.", 405: "This address takes another method."}
        code = codes.get(error.status_code, "E_USAGE")
        return make_problem_response(PageProblem(code, message.get(error.status_code, "The request cannot be read.")))

    @app.exception_handler(RequestValidationError)
    async def answer_invalid(_: Request, error: RequestValidationError) -> Response:
        return make_problem_response(PageProblem("E_USAGE", describe_invalid(error)))

    @app.exception_handler(Exception)
    async def answer_bug(_: Request, error: Exception) -> Response:
        report_bug(error)
        return make_problem_response(PageProblem("E_INTERNAL", f"An unexpected {type(error).__name__} in the server."))


def describe_invalid(error: RequestValidationError) -> str:
    """Where the first wrong field is and what is wrong, without what it held."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first.get("loc", ()) if part != "body")[:100]
    if first.get("type") == "json_invalid":
        return "The body is not valid JSON."
    return f"The field {where!r} is wrong: {str(first.get('msg', ''))[:200]}." if where else f"{first.get('msg', '')}."


# --- the page ---------------------------------------------------------------------------------------------------------


def add_page(app: FastAPI, token: str, cookie: str) -> None:
    files = list_files()

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def show_page(request: Request) -> Response:
        given = request.query_params.get("token")
        if given is None:
            return serve_file(files, "index.html", request.headers.get("if-none-match"))
        response = RedirectResponse("/", 303)
        if hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
            response.set_cookie(cookie, token, httponly=True, samesite="strict", path="/")
        return response

    @app.api_route("/static/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def show_file(name: str, request: Request) -> Response:
        return serve_file(files, name, request.headers.get("if-none-match"))


def add_models_and_images(app: FastAPI, desk: Desk) -> None:
    @app.get("/api/models")
    async def list_models() -> Response:
        """The models that were named at the start, what they take, and the limits of the server."""
        limits = {name: value for name, value in asdict(desk.limits).items() if name in SHOWN_LIMITS}
        about = {"version": VERSION, "default": 0, "limits": limits, "runs": desk.runs.names}
        return make_json_response(about | {"models": desk.describe()})

    @app.post("/api/image", openapi_extra=RAW_BODY)
    async def add_image(request: Request) -> Response:
        """Decode an image: the raw bytes of a file."""
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/octet-stream":
            raise PageProblem("E_PAGE_TYPE", "An image is sent as application/octet-stream.")
        return make_json_response(await desk.add_image(await request.body()))

    @app.get("/api/image/{name}")
    async def show_image(name: str) -> Response:
        """An image that the server holds."""
        return make_json_response(desk.find_image(name).to_json_value(name))

    @app.post("/api/run")
    async def show_run(body: bodies.RunBody) -> Response:
        """Items of a bulk run that was named at the start."""
        return make_json_response(await desk.runs.list_rows(body))

    @app.post("/api/run-map")
    async def show_run_map(body: bodies.RunMapBody) -> Response:
        """The map that a bulk run stored with an item."""
        return make_json_response(await desk.add_image(await desk.runs.read_map(body)))

    @app.post("/api/cancel")
    async def cancel(body: bodies.CancelBody) -> Response:
        """Stop a job."""
        return make_json_response({"cancelled": desk.cancel(body.job)})


RAW_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


# --- questions --------------------------------------------------------------------------------------------------------


QUESTIONS: dict[str, tuple[type[bodies.ModelBody], str]] = {
    "explain": (bodies.ExplainBody, "Scores for targets by methods."),
    "predict": (bodies.PredictBody, "Probabilities, also of variants of the input."),
    "curve": (bodies.CurveBody, "Probabilities while the top is hidden, or shown alone."),
    "generate": (bodies.GenerateBody, "What a language model answers."),
    "passages": (bodies.PassagesBody, "The passages of a prompt."),
    "cite": (bodies.CiteBody, "The passages behind an answer."),
}


def make_route(desk: Desk, route: str, kind: type[bodies.ModelBody]) -> Callable[..., Awaitable[Response]]:
    """A function whose body FastAPI reads as this kind."""

    async def ask(body: bodies.ModelBody, request: Request) -> Response:
        return await answer(desk, route, body, request)

    ask.__name__, ask.__annotations__["body"] = route, kind
    return ask


def add_questions(app: FastAPI, desk: Desk) -> None:
    for route, (kind, words) in QUESTIONS.items():
        app.post(f"/api/{route}", description=words)(make_route(desk, route, kind))

    @app.post("/api/export")
    async def export(body: bodies.ExportBody, request: Request) -> Response:
        """Cases as a file."""
        file = await wait_for(export_cases(desk, body), request)
        headers = {"Content-Disposition": f'attachment; filename="{file.name}"'}
        if EVENTS in request.headers.get("accept", ""):
            fields = {"filename": file.name, "media_type": file.media_type, "content": file.content}
            return Response(write_event("result", json.dumps(fields).encode("ascii")), media_type=EVENTS)
        return Response(file.content.encode("utf-8", "backslashreplace"), 200, headers, file.media_type)


async def answer(desk: Desk, route: str, body: bodies.ModelBody, request: Request) -> Response:
    """The answer as JSON or, if that is accepted, as events."""
    asked = desk.ask(route, body)
    if EVENTS in request.headers.get("accept", ""):
        return StreamingResponse(send_events(desk, asked), 200, {"X-Accel-Buffering": "no"}, EVENTS)
    if isinstance(asked, bytes):
        return Response(asked, 200, {"X-Whyformer-Kept": "1"}, "application/json")
    return Response(await wait_for(find_result(desk, *asked), request), 200, None, "application/json")


async def find_result(desk: Desk, model: ModelProcess, job: Job) -> bytes:
    async for kind, data in desk.follow(model, job):
        if kind == "result":
            return data
        if kind == "error":
            raise read_problem(data)
    raise AssertionError("a job ends with a result or an error")


async def send_events(desk: Desk, asked: "bytes | tuple[ModelProcess, Job]") -> AsyncIterator[bytes]:
    if isinstance(asked, bytes):
        yield write_event("result", asked)
        return
    model, job = asked
    yield write_event("job", json.dumps({"job": job.id}).encode("ascii"))
    follow = desk.follow(model, job)
    try:
        async for kind, data in follow:
            if kind == "error":
                yield write_problem_event(read_problem(data))
            elif kind == "running":
                yield write_event("queued", b'{"position":0}')
            else:
                yield write_event(kind, data)
    finally:
        await follow.aclose()


async def wait_for(work: Any, request: Request) -> Any:
    """The result of a coroutine, which is cancelled when the client goes away."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(wait_until_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            raise PageProblem("E_PAGE_CANCELLED", "The connection was closed.")
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()


async def wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
