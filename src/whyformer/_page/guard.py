"""What every request must pass before a route sees it: its host, origin, method, token and size.

A body is read last, and only if a route takes one: whoever has no token cannot make the server read or keep anything.

Other sites cannot use the page through a browser: a name that was rebound to this address is not among the hosts, and a
request from another origin is refused. Loopback is no wall by itself, so the token is needed there too.
"""

import asyncio
import gc
import hmac
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from whyformer._page.json_size import check_json_size
from whyformer._page.limits import Limits
from whyformer._page.problems import PageProblem
from whyformer._page.responses import make_problem_response

GARBAGE = 20_000_000  # bytes of bodies that were read
HAS_TOKEN = "whyformer.has_token"  # in the scope of a request, for connections.py
METHODS = ("GET", "HEAD", "POST")
API = "/api/"
POLICY = (
    "default-src 'none'; img-src 'self' data: blob:; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "font-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "X-Frame-Options": "DENY",
}


class Guard:
    """Wraps the application. `json_paths` and `raw_paths` are posted to, with a body of JSON or of anything."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: Iterable[str],
        token: str,
        cookie: str,
        limits: Limits,
        json_paths: Iterable[str],
        raw_paths: Iterable[str],
    ) -> None:
        self.app, self.hosts, self.token, self.cookie, self.limits = app, set(hosts), token, cookie, limits
        self.json_paths, self.raw_paths = set(json_paths), set(raw_paths)
        self.garbage = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                return await send({"type": "websocket.close", "code": 1008})
            return await self.app(scope, receive, send)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if not body.is_complete:
                    headers["Connection"] = "close"  # or the rest would be taken for the next request
            await send(message)

        body = BodyReader(receive, self.limits, Headers(scope=scope))
        try:
            self.check(scope)
            body.check_announced()
            if scope["method"] == "POST" and scope["path"] in self.json_paths | self.raw_paths:
                await body.read()
            if scope["path"] in self.json_paths:
                await asyncio.to_thread(check_json_size, body.body)
            await self.app(scope, body.replay, send_guarded)
        except PageProblem as problem:
            await make_problem_response(problem)(scope, receive, send_guarded)
        finally:
            self.free(body)

    def free(self, body: "BodyReader") -> None:
        """An error about a body refers to it and to itself, so Python would keep many of them for a while."""
        self.garbage += len(body.body)
        body.body = b""
        if self.garbage > GARBAGE:
            self.garbage = 0
            gc.collect()

    def check(self, scope: Scope) -> None:
        """Refuse what did not come from the page itself, or from somebody who has the token."""
        headers = Headers(scope=scope)
        if headers.getlist("host") != [host := headers.get("host", "")] or host.lower() not in self.hosts:
            raise PageProblem("E_PAGE_ORIGIN", "This server does not answer to that name.")
        if scope["method"] not in METHODS:
            raise PageProblem("E_PAGE_METHOD", f"There is no method {scope['method'][:20]} here.")
        origin = headers.get("origin")
        if origin is not None and not self.is_own_origin(origin):
            raise PageProblem("E_PAGE_ORIGIN", "This request comes from another site.")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and scope["path"].startswith(API):
            raise PageProblem("E_PAGE_ORIGIN", "This request comes from another site.")
        scope[HAS_TOKEN] = self.has_token(headers)
        if scope["path"].startswith(API) and not scope[HAS_TOKEN]:
            raise PageProblem("E_PAGE_TOKEN", "The token is missing or wrong.")

    def is_own_origin(self, origin: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme == "http" and parts.netloc.lower() in self.hosts

    def has_token(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self.is_token(given.strip())
        pairs = (one.strip().partition("=") for line in headers.getlist("cookie") for one in line.split(";"))
        return any(name == self.cookie and self.is_token(value) for name, _, value in pairs)

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


class BodyReader:
    """Reads a body within a limit of bytes and seconds, then hands it on in one piece; empty if it was not read."""

    def __init__(self, receive: Receive, limits: Limits, headers: Headers) -> None:
        self.receive, self.limits = receive, limits
        self.announced = headers.get("content-length", "0")
        self.body, self.is_given = b"", False
        self.is_complete = self.announced == "0" and "transfer-encoding" not in headers

    def check_announced(self) -> None:
        is_number = self.announced.isascii() and self.announced.isdigit()
        if not is_number or int(self.announced[:20]) > self.limits.body_bytes:
            raise self.refuse()

    async def read(self) -> None:
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                await self.read_all()
        except TimeoutError:
            raise PageProblem("E_PAGE_SLOW", "The request did not arrive in time.") from None

    async def read_all(self) -> None:
        parts, size = [], 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise PageProblem("E_PAGE_SLOW", "The connection ended before the request did.")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self.limits.body_bytes:
                raise self.refuse()
            if not message.get("more_body", False):
                self.body, self.is_complete = b"".join(parts), True
                return

    def refuse(self) -> PageProblem:
        limit = self.limits.body_bytes / 1_000_000
        return PageProblem("E_PAGE_BODY", f"The request is larger than {limit:g} MB.")

    async def replay(self) -> Message:
        if self.is_given:
            return await self.receive()
        self.is_given = True
        return {"type": "http.request", "body": self.body, "more_body": False}
