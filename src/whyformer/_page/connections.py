"""How long a connection may take to say what it wants, and how many may be open that have not shown the token.

Whoever opens connections and sends nothing, or a part of a header, or does not read what it asked for, keeps nobody
else out: a header has to arrive in time, and the oldest connection without a token gives way to a new one.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from whyformer._page.guard import HAS_TOKEN
from whyformer._page.limits import Limits


class BoundedConnection(H11Protocol):
    """A connection as uvicorn serves it, within the limits."""

    limits = Limits()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.opened = self.loop.time()
        self.header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.make_room()
        super().connection_made(transport)
        self.time_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.time_header()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.stop_timer()

    @property
    def is_stranger(self) -> bool:
        """Whether the last request had no token, or there was none yet."""
        return not (self.scope and self.scope.get(HAS_TOKEN))

    def make_room(self) -> None:
        """End the oldest of too many strangers."""
        strangers = [one for one in self.connections if isinstance(one, BoundedConnection) and one.is_stranger]
        if len(strangers) >= self.limits.strangers:
            oldest = min(strangers, key=lambda one: one.opened)
            self.connections.discard(oldest)
            oldest.transport.abort()

    def time_header(self) -> None:
        """Once a header has begun, or a connection was opened, all of it must be there in time."""
        if self.conn.their_state is not h11.IDLE:
            self.stop_timer()
        elif self.header_timer is None:
            self.header_timer = self.loop.call_later(self.limits.header_seconds, self.transport.abort)

    def stop_timer(self) -> None:
        if self.header_timer is not None:
            self.header_timer.cancel()
        self.header_timer = None


def bound_connections(limits: Limits) -> type[BoundedConnection]:
    """The kind of connection that keeps these limits."""
    return type("Connection", (BoundedConnection,), {"limits": limits})
