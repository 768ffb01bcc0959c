"""serve: listen, print the link, and answer until Ctrl-C."""

import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from whyformer._page.app import guard, make_app
from whyformer._page.desk import Desk
from whyformer._page.limits import Limits
from whyformer._page.stored_runs import is_stored_run
from whyformer.errors import InputError

SHIPPED = ("demo/pets", "demo/sentiment", "demo/reader")  # an image model, a text model, a language model
LOOPBACK = ("127.0.0.1", "::1", "localhost")
DEFAULT_PORT = 8765
STOP_SECONDS = 3
KEEP_ALIVE_SECONDS = 15
AT_ONCE = 64  # connections that are accepted before the others are read; far fewer than may be open without a token


def serve(
    models: Sequence[str] = (),
    port: int = DEFAULT_PORT,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    device: str | None = None,
    limits: Limits | None = None,
    say: Callable[[str], Any] = print,
    visit: Callable[[str], Any] | None = None,
) -> None:
    """Answer requests for these models, by default the shipped ones, until Ctrl-C; `visit` gets the link.

    models: names and folders of models, and folders of bulk runs.
    """
    import uvicorn

    from whyformer._page.connections import bound_connections

    runs = [name for name in models if is_stored_run(name)]
    models = [name for name in models if name not in runs]
    if runs and not models:
        raise InputError(f"{runs[0]} is a run. Name the model too: whyformer serve MODEL {runs[0]}", code="E_USAGE")
    limits, token = limits or Limits(), token or secrets.token_urlsafe(24)
    listener = listen(host, port)
    port = listener.getsockname()[1]
    desk, cookie = Desk(models or SHIPPED, limits, device, runs), f"whyformer-{port}"
    app = guard(make_app(desk, token, cookie), desk, list_hosts(host, port), token, cookie)
    link = make_link(host, port, token)
    say(f"Open {link}\nModels: {', '.join(model.name for model in desk.models)}. Ctrl-C ends it.")
    if visit is not None:
        visit(link)  # the socket listens already, so the browser waits for the server
    config = uvicorn.Config(
        app, access_log=False, log_level="critical", server_header=False, date_header=False, proxy_headers=False,
        limit_concurrency=limits.connections, timeout_keep_alive=KEEP_ALIVE_SECONDS, lifespan="on",
        timeout_graceful_shutdown=STOP_SECONDS, h11_max_incomplete_event_size=64_000, ws="none", backlog=AT_ONCE,
        http=bound_connections(limits), loop="asyncio",
    )  # fmt: skip
    with listener, suppress(KeyboardInterrupt):  # which uvicorn raises again after it has ended
        uvicorn.Server(config).run(sockets=[listener])
    say("whyformer serve has ended.")


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound; a port that is used is refused in words."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise InputError(
            f"Port {port} of {host} cannot be used: {(error.strerror or 'no reason given').lower()}. Perhaps another "
            "`whyformer serve` runs there. Use its link, stop it with Ctrl-C, or choose another port, such as "
            f"--port {port + 1}.",
            code="E_USAGE",
        ) from None
    except OverflowError:
        listener.close()
        raise InputError(f"There is no port {port}. Ports are 0 to 65535.", code="E_USAGE") from None
    return listener


def list_hosts(host: str, port: int) -> list[str]:
    """What a request may call this server."""
    names = {"127.0.0.1", "localhost", "[::1]"} if host in LOOPBACK else {f"[{host}]" if ":" in host else host}
    return [f"{name}:{port}" for name in sorted(names)] + [name for name in sorted(names) if port == 80]


def make_link(host: str, port: int, token: str) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/?token={token}"
