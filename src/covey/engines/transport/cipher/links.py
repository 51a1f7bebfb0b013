"""All connections of a role beside ZeroMQ's: those of links that it sends on, and of links that it receives on."""

from __future__ import annotations

import hmac
import socket
import time
from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec
import zmq

from covey.address import Address
from covey.engines.transport.cipher.records import TICKET, CipherOffer, LinkIdentity, offers
from covey.engines.transport.cipher.source import CipherSource
from covey.engines.transport.cipher.stream import CipherStream
from covey.engines.transport.cipher.ticket_door import TicketDoor
from covey.engines.transport.frames import Frame
from covey.engines.transport.inbox import Inbox
from covey.engines.transport.refusals import Refusals
from covey.errors import WireError


class CipherLinks:
    """The streams on which a role sends, and the sources on which it receives. For one thread."""

    def __init__(
        self, me: Address, inbox: Inbox, endpoint: str, largest: int, poller: zmq.Poller, refusals: Refusals
    ) -> None:
        self.me, self.inbox, self.largest = me, inbox, largest
        self.poller, self.refusals = poller, refusals
        self.door = TicketDoor(host_of(endpoint), len(inbox.book), poller, refusals, self._admit)
        self.streams: dict[Address, CipherStream] = {}
        self.sources: dict[Address, CipherSource] = {}
        self._news: list[str] = []

    def stream(self, to: Address, tell: Callable[[bytes], None]) -> CipherStream:
        """A stream to this peer, which `tell` tells of it over CURVE: nothing more may go there but this."""

        def offer(made: CipherOffer) -> None:
            tell(msgspec.msgpack.encode(made))

        self.streams[to] = CipherStream(self._link(self.me, to), self.door.port, self.poller, offer)
        return self.streams[to]

    def invited(self, sender: Address, offer: memoryview, endpoint: str) -> None:
        """A peer has offered a connection at its host."""
        if sender not in self.sources:
            self.sources[sender] = CipherSource(self._link(sender, self.me), self.largest, self.poller)
        self.sources[sender].dial(host_of(endpoint), offers.read(offer, sender))

    def answer(self, ready: Collection[object]) -> list[Address]:
        """Let streams send and hear, see who connects, and offer again what nobody has answered; never waits.

        Returns the peers that have not come: they cannot reach this role's port. What goes there goes on over CURVE.
        """
        for stream in self.streams.values():
            if stream.handle in ready:
                try:
                    stream.hear()
                except WireError as error:
                    self.refusals.note(str(error))
                    stream.broken()
                stream.push()
            stream.make_offer()
        self.door.answer(ready)
        return self._given_up()

    def frames(self, ready: Collection[object]) -> Iterator[tuple[Frame, bytes]]:
        """The frames that have come, each from whom it names."""
        for sender, source in self.sources.items():
            if source.handle not in ready:
                continue
            if not source.linked:
                source.greet()
                continue
            place = self.inbox.book.index(sender)
            try:
                for head, body in source.records():
                    yield head.frame(place, self.inbox.token, self.inbox.incarnations[place]), body
            except WireError as error:
                self.refusals.note(f"{sender}: {error}")
                source.close()  # the sender sees this, and offers another connection

    def _given_up(self) -> list[Address]:
        found = [who for who, stream in self.streams.items() if stream.unreachable]
        for who in found:
            self.streams.pop(who).close()
            self._news.append(
                f"{who} does not reach port {self.door.port} of this host: what goes to it stays with CURVE, "
                "which takes more CPU time"
            )
        return found

    def news(self) -> list[str]:
        """What the person should know, once."""
        told, self._news = self._news, []
        return told

    def pauses(self) -> Sequence[float]:
        """Seconds after which something is to be done though nothing has come."""
        due = [stream.due for stream in self.streams.values() if stream.line is None]
        if (strangers := self.door.due()) is not None:
            due.append(strangers)
        return [max(0.0, at - time.monotonic()) for at in due]

    def renew(self, who: Address) -> None:
        """Forget the links with an earlier incarnation of this peer."""
        for end in (self.streams.pop(who, None), self.sources.pop(who, None)):
            if end is not None:
                end.close()

    def close(self, until: float) -> None:
        """Wait, at most until then, for peers to have taken everything."""
        for stream in self.streams.values():
            stream.finish(until)
            stream.close()
        for source in self.sources.values():
            source.close()
        self.door.close()

    def _link(self, sender: Address, receiver: Address) -> LinkIdentity:
        incarnations = dict(zip(self.inbox.book, self.inbox.incarnations, strict=True))
        return LinkIdentity(self.inbox.token, sender, receiver, incarnations[sender], incarnations[receiver])

    def _admit(self, line: socket.socket, hello: bytes) -> bool:
        ticket = hello[:TICKET]
        for stream in self.streams.values():
            if stream.offer is not None and hmac.compare_digest(stream.offer.ticket, ticket):
                number = stream.welcome(hello[TICKET:])
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                stream.attach(line, number)
                return True
        if any(hmac.compare_digest(stream.spent, ticket) for stream in self.streams.values()):
            line.close()  # of a member, which has read an offer twice
            return True
        return False


def host_of(endpoint: str) -> str:
    """The host in an endpoint of TCP, as sockets take it."""
    return endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]").removeprefix("::ffff:")
