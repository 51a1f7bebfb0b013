"""How many clients may be connected? As many as a few people's browsers open; those that do nothing make room."""

from __future__ import annotations

import asyncio
from itertools import count

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 64  # connections; a browser opens up to six for one page
_serial = count()


class BoundedConnection(H11Protocol):
    """A connection of a client; beyond `MOST`, the oldest of those that ask for nothing, or do not read, is closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.number = next(_serial)
        if len(self.connections) > MOST:
            others = [one for one in self.connections if isinstance(one, BoundedConnection) and one is not self]
            idle = [one for one in others if one.does_nothing()]
            closed = min(idle, key=lambda one: one.number, default=self)
            closed.transport.abort()
            self.connections.discard(closed)  # the loop tells it only later that it was closed

    def does_nothing(self) -> bool:
        """Whether it waits for its client to ask, or to read the answer."""
        return self.cycle is None or self.cycle.response_complete or self.flow.write_paused
