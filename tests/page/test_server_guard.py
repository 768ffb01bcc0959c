"""What the server refuses before a route sees it: other sites, other methods, no token, too much."""

import asyncio
import gc
import itertools
import json
import sys
from pathlib import Path

import psutil
import pytest
from page.calls import Reply, send

pytest.importorskip("fastapi", reason="whyformer[page] is not installed")

from whyformer._page.app import guard, make_app
from whyformer._page.desk import Desk
from whyformer._page.files import FOLDER
from whyformer._page.json_size import check_json_size
from whyformer._page.limits import Limits
from whyformer._page.problems import PAGE_CODES, PageProblem
from whyformer._page.serving import list_hosts
from whyformer._page.style import make_style_files

OPENED: list[str] = []
sys.addaudithook(lambda event, arguments: OPENED.append(str(arguments[0])) if event == "open" else None)
TOKEN, COOKIE = "secret", "whyformer-8765"
HOST, BEARER = ("Host", "127.0.0.1:8765"), ("Authorization", f"Bearer {TOKEN}")
LIMITS = Limits(body_bytes=1000, body_seconds=0.2)
OWN_HOSTS = ("127.0.0.1:8765", "localhost:8765", "LOCALHOST:8765", "[::1]:8765")
OTHER_HOSTS = ("evil.example:8765", "127.0.0.1", "127.0.0.1:80", "127.0.0.1.evil.example:8765", "", "0.0.0.0:8765")
OWN_ORIGINS = (None, "http://127.0.0.1:8765", "http://localhost:8765")
OTHER_ORIGINS = ("null", "https://127.0.0.1:8765", "http://127.0.0.1:9999", "http://evil.example", "http://[")
PATHS = [
    "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/..\\app.py", "/static//etc/passwd",
    "/static/%00index.html", "/static/index.html%00", "/static/", "/static", "//index.html", "/../../etc/passwd",
    "/static/sub/index.html", "/etc/passwd", "/static/" + "a" * 5000, "/static/.", "/static/__init__.py", "/docs",
    "/redoc", "/openapi.json", "/api/../static/x", "/static/INDEX.HTML", "/favicon.ico", "/api", "/api/",
    "/api/nothing",
    "/api/image/..%2f..%2fetc%2fpasswd", "/api/image/" + "0" * 64,
]  # fmt: skip


def make_app_with(limits):
    desk = Desk([], limits)
    return guard(make_app(desk, TOKEN, COOKIE), desk, list_hosts("127.0.0.1", 8765), TOKEN, COOKIE)


@pytest.fixture(scope="module")
def app():
    return make_app_with(LIMITS)


def ask(app, method="GET", path="/api/models", *headers, **more):
    return send(app, method, path, headers=[HOST, BEARER, *headers], **more)


@pytest.mark.parametrize("path", ["/", "/api/models"])
def test_only_the_own_host_origin_and_methods_pass(app, path):
    methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "CONNECT")
    for host, origin, method in itertools.product(OWN_HOSTS + OTHER_HOSTS, OWN_ORIGINS + OTHER_ORIGINS, methods):
        headers = [("Host", host), BEARER] + ([("Origin", origin)] if origin is not None else [])
        status = send(app, method, path, headers=headers).status
        expected = {403} if host not in OWN_HOSTS else {405} if method not in ("GET", "HEAD", "POST") else None
        expected = expected or ({403} if origin in OTHER_ORIGINS else {200, 404, 405})
        assert status in expected, (host, origin, method)


def test_a_request_without_a_host_or_with_two_is_refused(app):
    assert send(app, "GET", "/", headers=[]).code == "E_PAGE_ORIGIN"
    assert send(app, "GET", "/", headers=[HOST, HOST]).code == "E_PAGE_ORIGIN"


def test_a_browser_that_says_cross_site_is_refused(app):
    assert ask(app, "GET", "/api/models", ("Sec-Fetch-Site", "cross-site")).code == "E_PAGE_ORIGIN"
    assert ask(app, "GET", "/api/models", ("Sec-Fetch-Site", "same-origin")).status == 200


@pytest.mark.parametrize(
    "header", [None, ("Authorization", "Bearer wrong"), ("Authorization", TOKEN), ("Cookie", f"{COOKIE}=wrong"),
               ("Cookie", f"whyformer-9999={TOKEN}"), ("Cookie", "\x80=;;="), ("Authorization", "Bearer ")],
)  # fmt: skip
def test_nothing_of_the_api_is_there_without_the_token(app, header):
    for path in ("/api/models", "/api/openapi.json", "/api/nothing", "/api/cancel"):
        reply = send(app, "GET", path, headers=[HOST, *([header] if header else [])])
        assert (reply.status, reply.code) == (401, "E_PAGE_TOKEN")


def test_the_link_sets_a_cookie_that_scripts_do_not_see_and_other_sites_do_not_send(app):
    reply = send(app, "GET", f"/?token={TOKEN}", headers=[HOST])
    cookie = reply.headers["set-cookie"]
    assert reply.status == 303 and reply.headers["location"] == "/"
    assert all(part in cookie for part in (f"{COOKIE}={TOKEN}", "HttpOnly", "SameSite=strict"))
    assert send(app, "GET", "/api/models", headers=[HOST, ("Cookie", cookie.split(";")[0])]).status == 200
    assert "set-cookie" not in send(app, "GET", "/?token=wrong", headers=[HOST]).headers


@pytest.mark.parametrize(
    "other", ['theme={"a":1}', "a=b c", "näme=wärt", "=", ";;;", "a", 'q="unclosed', "Expires=Wed, 01 Jan", "\x80"],
)  # fmt: skip
def test_cookies_of_other_local_servers_do_not_lock_anybody_out(app, other):
    own = f"{COOKIE}={TOKEN}"
    for cookies in (f"{other}; {own}", f"{own}; {other}", f"{other};{own}; {COOKIE}=old"):
        assert send(app, "GET", "/api/models", headers=[HOST, ("Cookie", cookies)]).status == 200, cookies
    for wrong in (f"{other}; x{own}", f"{other}; {own}x", f"{other}; {COOKIE}-2={TOKEN}"):
        assert send(app, "GET", "/api/models", headers=[HOST, ("Cookie", wrong)]).status == 401, wrong


def test_every_answer_has_the_headers_of_safety(app):
    replies = [
        ask(app),
        ask(app, "GET", "/"),
        ask(app, "DELETE"),
        ask(app, "GET", "/nothing"),
        ask(app, "POST", "/api/explain"),
    ]
    for reply in replies:
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert not any(name.startswith("access-control") for name in reply.headers)


def test_a_body_that_is_too_large_or_too_slow_is_refused(app):
    json_type = ("Content-Type", "application/json")
    large = ask(app, "POST", "/api/explain", json_type, ("Content-Length", "1001"), body=b"x" * 1001)
    unannounced = ask(app, "POST", "/api/explain", json_type, parts=[b"x" * 600, b"x" * 600])
    lying = ask(app, "POST", "/api/explain", json_type, ("Content-Length", "9" * 50), body=b"x")
    assert [one.code for one in (large, unannounced, lying)] == ["E_PAGE_BODY"] * 3
    assert large.status == 413


@pytest.mark.parametrize(
    ("method", "path", "header", "status"),
    [
        ("POST", "/", None, 405),
        ("POST", "/", BEARER, 405),
        ("POST", "/static/app.js", None, 405),
        ("POST", "/nothing", None, 404),
        ("POST", "/api/nothing", BEARER, 404),
        ("POST", "/api/models", BEARER, 405),
        ("POST", "/api/explain", None, 401),
        ("GET", "/", None, 200),
        ("GET", "/api/models", BEARER, 200),
        ("DELETE", "/", BEARER, 405),
    ],
)
def test_a_body_that_no_route_takes_is_not_read(app, method, path, header, status):
    headers = [HOST, ("Content-Length", "999"), *([header] if header else [])]
    reply, asked = send_and_count(app, method, path, headers)
    assert (reply.status, asked, reply.headers["connection"]) == (status, 0, "close")


def test_a_body_that_says_it_is_too_large_is_refused_without_reading(app):
    reply, asked = send_and_count(app, "POST", "/api/explain", [HOST, BEARER, ("Content-Length", "1001")])
    assert (reply.status, asked, reply.headers["connection"]) == (413, 0, "close")


def send_and_count(app, method, path, headers):
    """The reply, and how often a body was asked for, which never comes."""
    sent, asked = [], []

    async def receive():
        asked.append(True)
        await asyncio.sleep(3600)

    async def note(message):
        sent.append(message)

    fields = [(name.lower().encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
    asyncio.run(app(scope | {"headers": fields, "root_path": ""}, receive, note))
    shown = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Reply(sent[0]["status"], shown, b""), len(asked)


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ("[]," * 300_000, "E_PAGE_BODY"),
        ('{"a":0},' * 200_000, "E_PAGE_BODY"),
        ("1," * 300_000, "E_PAGE_BODY"),
        ('"",' * 300_000, "E_PAGE_BODY"),
        ("[" * 65 + "]" * 65 + ",", "E_USAGE"),
        ('{"a":' * 65 + "0" + "}" * 65 + ",", "E_USAGE"),
    ],
)
def test_a_body_of_too_many_or_too_deep_values_is_refused_before_it_is_parsed(monkeypatch, part, code):
    roomy = make_app_with(Limits())
    monkeypatch.setattr(json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    body = ('{"model": 0, "input": {"log": {"a": [' + part + "0]}}}").encode()
    sent = send(roomy, "POST", "/api/explain", headers=[HOST, BEARER, ("Content-Type", "application/json")], body=body)
    monkeypatch.undo()
    assert sent.code == code


def test_a_long_text_is_not_taken_for_many_values():
    text = '[[,,"' * 100_000 + "\\"
    check_json_size(json.dumps({"text": text, "answer": list(range(100_000))}).encode())
    check_json_size(rb'{"a \" quote": "' + b"[" * 65)  # a text that does not end
    with pytest.raises(PageProblem):
        check_json_size(rb'"ends in a backslash\\"' + b"[" * 65)


def test_a_body_that_does_not_arrive_is_given_up(app):
    sent = []

    async def receive():
        await asyncio.sleep(3600)

    async def note(message):
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:8765"), (b"authorization", b"Bearer secret"), (b"content-length", b"10")]
    scope = {"type": "http", "method": "POST", "path": "/api/explain", "query_string": b"", "headers": headers}
    asyncio.run(app(scope, receive, note))
    assert sent[0]["status"] == 408


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_out_of_the_page(app, path):
    OPENED.clear()
    reply = ask(app, "GET", path)
    assert reply.status in (400, 404, 405, 410), reply.body[:200]
    assert not [name for name in OPENED if "etc" in name or name.endswith(".py")]


def test_wrong_fields_are_refused_without_quoting_them(app):
    bodies = [
        b"", b"{", b"[]", b"null", b'"x"', b'{"model": 0}', b'{"model": "0", "input": {"text": "secret-text"}}',
        b'{"model": 0, "input": {}}', b'{"model": 0, "input": {"text": "a", "prompt": "b"}}', b"[" * 900,
        b'{"model": NaN, "input": {"text": "a"}}', b'{"model": -1, "input": {"text": "a"}}', b"\xff\xfe",
        b'{"model": 0, "input": {"text": "a"}, "top": 11}',
        b'{"model": 0, "input": {"log": {"a": ' + b"[" * 40 + b"]" * 40 + b"}}}",
        b'{"model": ' + b"9" * 900 + b"}",
    ]  # fmt: skip
    for body in bodies:
        reply = ask(app, "POST", "/api/explain", ("Content-Type", "application/json"), body=body)
        assert (reply.status, reply.code) == (400, "E_USAGE"), body
        assert "secret-text" not in reply.body.decode()


def test_an_unknown_model_and_an_image_that_is_gone_are_named(app):
    json_type, image = ("Content-Type", "application/json"), b'{"model": 0, "input": {"image": "%s"}}' % (b"0" * 64)
    assert ask(app, "POST", "/api/explain", json_type, body=image).code == "E_MODEL_NOT_FOUND"
    assert ask(app, "GET", "/api/image/" + "0" * 64).code == "E_PAGE_GONE"
    assert ask(app, "POST", "/api/image", ("Content-Type", "image/png"), body=b"x").code == "E_PAGE_TYPE"


def test_there_are_no_pages_that_load_scripts_from_elsewhere(app):
    document = ask(app, "GET", "/api/openapi.json").json
    assert {"/api/explain", "/api/predict", "/api/cite"} <= set(document["paths"])
    assert ask(app, "GET", "/docs").status == 404


def test_files_are_not_sent_twice(app):
    first = ask(app, "GET", "/static/library.css")
    assert first.headers["content-type"] == "text/css; charset=utf-8"
    assert ask(app, "GET", "/static/library.css", ("If-None-Match", first.headers["etag"])).status == 304


def test_every_code_of_the_server_is_in_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "page.md").read_text(encoding="utf-8")
    assert [code for code, (status, _) in PAGE_CODES.items() if f"| `{code}` | {status} |" not in page] == []


@pytest.mark.parametrize("name", ["library.css", "colours.json"])
def test_the_colours_of_the_page_are_those_of_the_library(name):
    """`python -m whyformer._page.style` writes them."""
    assert (FOLDER / name).read_text(encoding="utf-8") == make_style_files()[name]


def test_bodies_that_are_refused_are_not_kept():
    """Each error about a body refers to the whole of it."""
    roomy, before = make_app_with(Limits()), measure_memory()
    gc.disable()
    try:
        for _ in range(60):
            assert ask(roomy, "POST", "/api/explain", ("Content-Type", "application/json"), body=b"x" * 5_000_000).code
    finally:
        gc.enable()
    assert measure_memory() - before < 100_000_000


def measure_memory():
    return psutil.Process().memory_info().rss
