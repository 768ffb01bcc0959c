"""`serve --host` on an address that another machine reaches: what that machine can do without the token, and with it.

The other machine is a network namespace with a cable to that of the server. Needs root and `ip`; skipped without.
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager

import pytest
from page.tabs import TOKEN

pytest.importorskip("fastapi", reason="whyformer[page] is not installed")

pytestmark = pytest.mark.slow
SERVER, ATTACKER, ADDRESS, OTHER = "why-server", "why-attacker", "10.213.7.1", "10.213.7.2"
SETUP = f"""
netns add {SERVER}
netns add {ATTACKER}
link add why-a netns {SERVER} type veth peer name why-b netns {ATTACKER}
-n {SERVER} addr add {ADDRESS}/24 dev why-a
-n {ATTACKER} addr add {OTHER}/24 dev why-b
-n {SERVER} link set why-a up
-n {SERVER} link set lo up
-n {ATTACKER} link set why-b up
"""
ATTACK = f"""
import http.client, json, socket
def ask(path, headers=(), method="GET", body=None, address=("{ADDRESS}", PORT)):
    connection = http.client.HTTPConnection(*address, timeout=30)
    try:
        connection.request(method, path, body, dict(headers))
        return connection.getresponse().status
    finally:
        connection.close()
def is_reached(host):
    try:
        socket.create_connection((host, PORT), timeout=5).close()
    except OSError:
        return False
    return True
bearer = {{"Authorization": "Bearer {TOKEN}"}}
held = []
for number in range(300):
    held.append(socket.create_connection(("{ADDRESS}", PORT)))
    held[-1].sendall(b"GET / HT")
print(json.dumps({{
    "without the token": ask("/api/models"),
    "with a guess": ask("/api/models", {{"Authorization": "Bearer guess"}}),
    "the page": ask("/"),
    "a link with a guess": ask("/?token=guess"),
    "another name": ask("/", {{"Host": "evil.example:%d" % PORT}}),
    "the name of loopback": ask("/api/models", bearer | {{"Host": "127.0.0.1:%d" % PORT}}),
    "another origin": ask("/api/models", bearer | {{"Origin": "http://{OTHER}"}}),
    "a body": ask("/", {{}}, "POST", b"x" * 100),
    "with the token": ask("/api/models", bearer),
    "another address of the server": is_reached("127.0.0.1"),
}}))
"""


@contextmanager
def two_machines():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    if subprocess.run(["ip", "netns", "add", "why-probe"], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces cannot be made here")
    subprocess.run(["ip", "netns", "del", "why-probe"], check=True)
    try:
        for line in SETUP.split("\n"):
            if line:
                subprocess.run(["ip", *line.split()], check=True)
        yield
    finally:
        for name in (SERVER, ATTACKER):
            subprocess.run(["ip", "netns", "del", name], check=False)


def run_in(machine, *command, **options):
    return subprocess.Popen(["ip", "netns", "exec", machine, *command], stdout=subprocess.PIPE, text=True, **options)


def test_a_second_machine_gets_nowhere_without_the_token():
    with two_machines():
        serve = [sys.executable, "-m", "whyformer", "serve", "demo/sentiment", "--port", "8765", "--token", TOKEN]
        server = run_in(SERVER, *serve, "--host", ADDRESS, "--i-understand-this-is-public", stderr=subprocess.STDOUT)
        try:
            assert ADDRESS in server.stdout.readline()
            time.sleep(5)  # the socket listens from the line on; the program that answers starts
            code = textwrap.dedent(ATTACK).replace("PORT", "8765")
            found, _ = run_in(ATTACKER, sys.executable, "-c", code).communicate(timeout=120)
            listening, _ = run_in(SERVER, "ss", "-Hltn").communicate(timeout=20) if shutil.which("ss") else ("", "")
        finally:
            server.terminate()
            server.communicate(timeout=30)
    assert json.loads(found) == {
        "without the token": 401, "with a guess": 401, "the page": 200, "a link with a guess": 303,
        "another name": 403, "the name of loopback": 403, "another origin": 403, "a body": 405,
        "with the token": 200, "another address of the server": False,
    }  # fmt: skip
    assert [line.split()[3] for line in listening.splitlines()] in ([], [f"{ADDRESS}:8765"])
