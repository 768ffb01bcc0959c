"""Requests to the page: to a running server over a socket, or to the application in this process."""

import asyncio
import http.client
import json
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from page.tabs import TOKEN


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["error"]["code"]

    @property
    def events(self):
        """The name and the value of each event."""
        blocks = [block.split("\n") for block in self.body.decode().strip().split("\n\n")]
        return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


def call(address, path, body=None, *, method=None, headers=(), timeout=120):
    """A request with the token; a body that is no bytes is sent as JSON."""
    parts = urlsplit(address)
    given = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"} | dict(headers)
    if isinstance(body, bytes):
        given = {"Content-Type": "application/octet-stream"} | dict(headers) | {"Authorization": f"Bearer {TOKEN}"}
    elif body is not None:
        body = json.dumps(body)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, body, given)
        answer = connection.getresponse()
        return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def call_until_answered(address, path, body):
    """As often as the server says that it is busy; the replies before the last one must say when to come back."""
    for _ in range(2000):
        reply = call(address, path, body)
        if reply.status not in (429, 503):
            return reply
        assert int(reply.headers["retry-after"]) > 0
        time.sleep(0.1)
    raise AssertionError("never answered")


def wait_until_ready(address, patience=120):
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        models = call(address, "/api/models").json["models"]
        if all(one["state"] != "loading" for one in models):
            return models
        time.sleep(0.2)
    raise AssertionError("the models were not loaded in time")


def send(app, method, path, *, headers=(), body=b"", parts=None):
    """A request to the application itself, without a socket. parts: of the body, as they arrive."""
    path, _, query = path.partition("?")
    incoming = [
        {"type": "http.request", "body": part, "more_body": index < len(parts or [body]) - 1}
        for index, part in enumerate(parts or [body])
    ]
    sent = []

    async def receive():
        if incoming:
            return incoming.pop(0)
        await asyncio.sleep(3600)

    async def note(message):
        sent.append(message)

    scope = {
        "type": "http", "http_version": "1.1", "method": method, "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "server": ("127.0.0.1", 8765),
        "client": ("127.0.0.1", 50_000), "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers],
    }  # fmt: skip
    asyncio.run(app(scope, receive, note))
    start = sent[0]
    shown = {k.decode(): v.decode() for k, v in start["headers"]}
    return Reply(start["status"], shown, b"".join(one.get("body", b"") for one in sent[1:]))
