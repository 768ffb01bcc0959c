"""Many clients that send what no page would, beside stalled connections: it does not fail, and it does not grow."""

import http.client
import json
import random as python_random
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from random import Random

import psutil
import pytest
from attack.found import LONGEST, Found
from attack.odd import SEED, SIZE, make_random
from page.calls import call, wait_until_ready
from page.tabs import serve
from page.test_server_load import make_image, make_question, mutate_bytes, mutate_fields
from page.test_server_process import list_attacks
from show.payloads import MORE_PAYLOADS, PAYLOADS

pytest.importorskip("fastapi", reason="whyformer[page] is not installed")

REQUESTS, CLIENTS, STALLED = int(1000 * SIZE), 16, 300
PARTS = (b"GET", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"POST /api/explain HTTP/1.1\r\nContent-Le")
GROWTH = 100_000_000
ANSWERED = {200, 303, 400, 401, 403, 404, 405, 408, 409, 410, 413, 415, 422, 503}
DEEP = b'{"model": 1, "input": {"log": {"a": ' + b"[" * 3000 + b"]" * 3000 + b"}}}"
WIDE = b'{"model": 1, "input": {"log": {"a": [' + b"[]," * 400_000 + b"0]}}}"
COOKIES = ('theme={"a":1}', "a=b c", "=;;;", "n\xe4me=w\xe4rt", "whyformer-1=x", 'q="')


class Stalled:
    """Connections that send a part of a header and then nothing; the server ends them, and they come again."""

    def __init__(self, address, count):
        self.address = address
        self.held = [self.open() for _ in range(count)]

    def open(self):
        made = socket.create_connection(self.address)
        made.sendall(python_random.choice(PARTS))
        made.setblocking(False)
        return made

    def renew(self):
        """Open those again that were ended."""
        for index, one in enumerate(self.held):
            with suppress(BlockingIOError):
                try:
                    ended = one.recv(1) == b""
                except ConnectionResetError:
                    ended = True
                if ended:
                    one.close()
                    self.held[index] = self.open()

    def close(self):
        for one in self.held:
            one.close()


def draw_request(random, images):
    """A path, a body, a type and other headers."""
    path, body = make_question(random, images)
    kind = random.random()
    if kind < 0.1:
        return "/api/image", mutate_bytes(random, make_image(random)), {}
    if kind < 0.2:
        path, body = random.choice(list(list_attacks(random.choice([*PAYLOADS, *MORE_PAYLOADS]), 1, 2)))
    elif kind < 0.3:
        return path, mutate_bytes(random, json.dumps(body).encode()), {"Content-Type": "application/json"}
    elif kind < 0.36:
        return path, random.choice([DEEP, WIDE, b"x" * 2_000_000]), {"Content-Type": "application/json"}
    elif kind < 0.4:
        return random.choice(["/", "/static/app.js", "/api/models", "/nothing"]), b"x" * 2_000_000, {}
    elif kind < 0.8:
        body = mutate_fields(random, body)
    headers = {"Cookie": random.choice(COOKIES)} if random.random() < 0.2 else {}
    return path, json.dumps(body).encode(), {"Content-Type": "application/json"} | headers


def send_all(address, random, count, images):
    """What one client's requests came to, and how often there was each status."""
    found, statuses = Found(), Counter()
    for number in range(count):
        path, body, headers = draw_request(random, images)
        name = f"request {number}: {path} {body[:200]!r}"
        began, answered = time.monotonic(), statuses[200]
        try:
            reply = call(address, path, body, headers={"Content-Type": "application/octet-stream"} | headers)
        except (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected):
            statuses["closed"] += 1  # a body that is not read is refused before it is all there
            if len(body) < 1_000_000:
                found.raw.append(f"{name} was closed")
        except TimeoutError:
            statuses["never"] += 1
            found.hangs.append(name)
        else:
            statuses[reply.status] += 1
            if reply.status not in ANSWERED or b"Traceback" in reply.body:
                found.raw.append(f"{name}: {reply.status} {reply.body[:200]!r}")
        found.longest = max(found.longest, took := time.monotonic() - began)
        if took > LONGEST and statuses[200] == answered:  # an answer may wait for those before it
            found.hangs.append(f"{name}: {took:.0f} s")
    return found, statuses


def attack_requests(random, count, found):
    """Requests of many clients at once; returns how often there was each status."""
    with serve("demo/shapes", "demo/sentiment", "demo/decoder") as (process, address), ExitStack() as held:
        wait_until_ready(address)
        server, host = psutil.Process(process.pid), address.removeprefix("http://").split(":")
        images = [call(address, "/api/image", make_image(random)).json["image"] for _ in range(4)]
        found.measure(server)
        stalled = Stalled((host[0], int(host[1])), STALLED)
        held.callback(stalled.close)
        with ThreadPoolExecutor(CLIENTS) as clients:
            seeds = [Random(random.random()) for _ in range(CLIENTS)]
            jobs = [clients.submit(send_all, address, one, count // CLIENTS, images) for one in seeds]
            while not all(job.done() for job in jobs):
                stalled.renew()
                time.sleep(0.2)
        found.measure(server)
        statuses = Counter()
        for own, counted in (job.result() for job in jobs):
            statuses += counted
            found.raw += own.raw
            found.hangs += own.hangs
            found.longest = max(found.longest, own.longest)
        found.tried, found.answered = statuses.total(), statuses[200]
        states = {one["state"] for one in wait_until_ready(address)}
        if states != {"ready"}:
            found.raw.append(f"at the end the models are {states}")
    return statuses


@pytest.mark.slow
def test_odd_requests_of_many_clients_beside_stalled_connections(capsys):
    found = Found()
    statuses = attack_requests(make_random("requests"), REQUESTS, found)
    with capsys.disabled():
        print(f"\nseed {SEED}: {dict(statuses)}; the server grew by {found.grown / 1e6:.0f} MB")
    assert not found.faults, f"seed {SEED}, {len(found.faults)} wrong\n" + "\n".join(found.faults[:30])
    assert found.answered > found.tried / 20
    assert found.grown < GROWTH
