"""Answers as JSON, as events or as files. JSON is ASCII: what is no Unicode cannot break it."""

import json
from typing import Any

from starlette.responses import Response

from whyformer._page.problems import PageProblem


def make_json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    content = json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")
    return Response(content, status, headers, "application/json")


def make_problem_response(problem: PageProblem) -> Response:
    headers = dict(problem.headers)
    if problem.status == 405:
        headers["Allow"] = "GET, HEAD, POST"
    if problem.status in (408, 413):
        headers["Connection"] = "close"
    return make_json_response(problem.to_json_value(), problem.status, headers)


def write_event(name: str, data: bytes) -> bytes:
    """A server-sent event; JSON of ours has no line breaks."""
    return b"event: " + name.encode("ascii") + b"\ndata: " + data + b"\n\n"


def write_problem_event(problem: PageProblem) -> bytes:
    value = problem.to_json_value() | {"status": problem.status}
    return write_event("error", json.dumps(value).encode("ascii"))
