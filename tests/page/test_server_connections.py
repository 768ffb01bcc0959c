"""Connections that say nothing, or half of what they want: they end in time, and keep out nobody who has the token."""

import http.client
import socket
import threading
import time
from contextlib import ExitStack, closing, contextmanager

import pytest
from page.calls import call, wait_until_ready
from page.tabs import serve

pytest.importorskip("fastapi", reason="whyformer[page] is not installed")
pytest.importorskip("uvicorn", reason="whyformer[page] is not installed")

import uvicorn

from whyformer._page.connections import bound_connections
from whyformer._page.guard import HAS_TOKEN
from whyformer._page.limits import Limits

STALLED = 300
PARTS = (b"", b"GET", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"POST /api/explain HTTP/1.1\r\nContent-Le")


async def answer_at_once(scope, receive, send):
    """An application for which /known is what shows the token, and /large is a lot to read."""
    scope[HAS_TOKEN] = scope["path"] == "/known"
    size = 50_000_000 if scope["path"] == "/large" else 2
    headers = [(b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"o" * size})


@contextmanager
def listening(**limits):
    """The address of a server of that application, whose connections keep these limits."""
    kind = bound_connections(Limits(**limits))
    config = uvicorn.Config(answer_at_once, http=kind, log_level="critical", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield listener.getsockname()
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


@contextmanager
def connected(address):
    connection = http.client.HTTPConnection(*address, timeout=20)
    with closing(connection):
        yield connection


def ask(connection, path="/"):
    connection.request("GET", path)
    return connection.getresponse().read()


def is_ended(connection):
    """Whether the other side ends it within the patience of this test."""
    connection.settimeout(20)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("part", PARTS)
def test_a_header_that_does_not_arrive_in_time_ends_its_connection(part):
    with listening(header_seconds=0.2) as address, socket.create_connection(address) as stalled:
        stalled.sendall(part)
        assert is_ended(stalled)


def test_a_second_header_has_as_little_time_as_the_first():
    with listening(header_seconds=0.2) as address, connected(address) as connection:
        assert ask(connection, "/known") == b"oo"
        connection.sock.sendall(b"GET / HT")
        assert is_ended(connection.sock)


def test_a_connection_that_is_used_outlives_the_time_of_a_header():
    with listening(header_seconds=0.2) as address, connected(address) as connection:
        assert ask(connection) == b"oo"
        time.sleep(0.5)
        assert ask(connection) == b"oo"


@pytest.mark.parametrize("part", [*PARTS, b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_stalled_connections_keep_out_nobody_and_end_nobody_who_has_the_token(part):
    with listening(header_seconds=60, strangers=8, connections=16) as address, ExitStack() as held:
        known, new = (held.enter_context(connected(address)) for _ in range(2))
        assert ask(known, "/known") == b"oo"
        for _ in range(40):
            held.enter_context(socket.create_connection(address)).sendall(part)
        assert ask(new) == ask(known, "/known") == b"oo"


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS[1:])
def test_the_page_answers_beside_hundreds_of_stalled_connections(part):
    with serve("demo/sentiment") as (_, address), ExitStack() as held:
        wait_until_ready(address)
        host, port = address.removeprefix("http://").split(":")
        for _ in range(STALLED):
            held.enter_context(socket.create_connection((host, int(port)))).sendall(part)
        for number in range(5):
            question = {"model": 0, "input": {"text": f"a gorgeous film {number}"}}
            assert call(address, "/api/explain", question, timeout=60).status == 200
