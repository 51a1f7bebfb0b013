"""Links over ZeroMQ: a role receives on one bound socket and sends on one socket per peer."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import zmq

from covey.engines.transport import frames
from covey.engines.transport.cipher import UNREACHING, cipher_links
from covey.engines.transport.credits import Credits
from covey.engines.transport.frame_reader import FrameReader
from covey.engines.transport.inbox import Inbox
from covey.engines.transport.keys import KeyRing, guard_of
from covey.engines.transport.leaky_bucket import LeakyBucket, frame_at
from covey.engines.transport.link import LEAVING, Other, PeerLink, ReceivingSocket, check_book
from covey.engines.transport.outbox import OutgoingMessage, SendOrder
from covey.engines.transport.refusals import Refusals
from covey.engines.transport.shared.memory import HostMemory
from covey.engines.transport.shared.role_lanes import first_lanes
from covey.engines.transport.token import NONE
from covey.engines.window import fits, idle, weight
from covey.errors import PlanError
from covey.message import MAX_HEADER, Address, Message, stamped
from covey.program import Receive

Fate = Literal["sent", "replaced", "lost"]
"""What becomes of a message: it goes, takes the place of one that waits and so is no further one, or is lost."""

LOCKED = 1 << 20  # bytes of a frame between machines, at most
ROOM = 128 << 10  # bytes around a frame: its prefix, where numbers lie, and what encryption adds


class ZmqTransport:
    """Links of one role to its peers: whole messages in and out, moved in frames. For one thread."""

    def __init__(
        self, me: Address, book: Mapping[Address, str], *, limit: int, window: int = 64 << 20, frame: int = 2 << 20,
        key_ring: KeyRing | None = None, token: bytes = NONE, refusals: Refusals | None = None,
        memory: HostMemory | None = None, incarnations: Mapping[Address, int] | None = None, cipher: str = "",
    ) -> None:  # fmt: skip
        check_book(me, book)
        frame = min(frame, LOCKED) if key_ring else frame
        self.me, self.book, self.window, self.frame = me, book, window, frame
        self.sent: Counter[Address] = Counter()  # what will arrive: without dropped and replaced ones
        self.received: Counter[Address] = Counter()
        self.refusals, self.token, self.memory = refusals or Refusals(), token, memory
        roles = sorted(book)
        self.place = roles.index(me)
        self.inbox = Inbox(roles, limit, token, memory.neighbours if memory else None, incarnations)
        self.incarnation = self.inbox.incarnations[self.place]
        self.home: list[Message] = []  # to myself
        self.links: dict[Address, PeerLink] = {}
        self.empty: set[Address] = set()  # roles in whose places nobody is
        self.credits = Credits(window)
        self.waives: Callable[[Address], bool] = lambda sender: False  # whether what it sent and lies here counts not
        # with keys, what comes and what leaves are each a thread's work: one alone would be slower than many a link
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=2 if key_ring else 1)
        self.key_ring = key_ring
        # ZeroMQ refuses more before it takes memory; a stranger can fill this much before it has proved anything
        largest = max(frame, MAX_HEADER + frames.SMALL) + ROOM
        guard = guard_of(self.context, key_ring, book[me], len(book), self.refusals)
        self.door = ReceivingSocket(self.context, book[me], largest, key_ring, guard)
        if memory:
            self.door.poller.register(memory.wakeup, zmq.POLLIN)
        beside = (me, self.inbox, self.endpoint, largest, self.door.poller, self.refusals)
        self.cipher = cipher_links(cipher, *beside) if cipher else None
        self.allowance: Mapping[Address, float] = {}  # bytes per second that may leave for a peer
        known = dict(zip(self.inbox.book, self.inbox.incarnations, strict=True))
        self.lanes = first_lanes(me, memory.segment, known, self.refusals) if memory and not key_ring else None
        self.reader = FrameReader(
            self.door, self.inbox, self.refusals, keyed=key_ring is not None, lanes=self.lanes, credit=self._credit,
            invited=self._invited if self.cipher else None,
        )  # fmt: skip

    @property
    def endpoint(self) -> str:
        """Where peers reach this role."""
        return self.door.endpoint

    def allow(self, rate: float, peers: Sequence[Address]) -> None:
        """Let no more than `rate` bytes per second leave for each of these peers, by sockets only."""
        self.allowance = dict.fromkeys(peers, rate)
        self.frame = frame_at(rate, self.frame)

    def offer(
        self, to: Address, message: Message, *, loan: bool = False, priority: int = 0,
        keep: Literal["all", "latest"] = "all", lossy: bool = False,
    ) -> Fate:  # fmt: skip
        """Queue a message for a peer, and send as much as goes without waiting; what became of it."""
        if to == self.me:
            self.home.append(stamped(message, self.me, copy=not loan))
            self.sent[to] += 1
            return "sent"
        if to in self.empty:
            return "sent"  # to one that is gone: nothing of it will arrive
        link, size = self._link(to), weight(message)
        fate: Fate = "sent"
        if keep == "latest" and (old := link.outbox.withdraw(type(message))):
            if self.memory and old.places:
                self.memory.blocks.take_back(old.places)
            self.sent[to] -= 1
            link.offered -= old.weight
            fate = "replaced"
        elif lossy and not fits(link.unread, size, self.window):
            return "lost"
        if not link.send_short(message, size):
            rank = SendOrder(-priority, link.messages)
            place_tensors = self.memory.shelving(to, self.window) if self.memory and to not in self.allowance else None
            link.outbox.put(
                OutgoingMessage(
                    rank, self.place, message, self.frame, loan=loan, latest=keep == "latest",
                    place_tensors=place_tensors
                )
            )  # fmt: skip
            link.flush(self.door.poller)
        link.messages += 1
        link.offered += size
        self.sent[to] += 1
        return fate

    def room(self, to: Address) -> bool:
        """Whether a message of any size may leave for this peer without waiting for others to be taken."""
        return to not in self.links or idle(self.links[to].unread, self.window)

    def offered(self, to: Address) -> int:
        """Bytes of all messages that were ever queued for this peer, as windows count them."""
        return self.links[to].offered if to in self.links else 0

    def passes(self, to: Address, before: int, size: int) -> bool:
        """Whether a message of this size, with these bytes offered before it, fits into the window."""
        return to not in self.links or fits(before - self.links[to].credited, size, self.window)

    def taken(self, message: Message) -> None:
        """A program has taken this message, or none ever will: its sender may send another."""
        self.credits.taken(message)
        if message.sender in self.book and message.sender != self.me:
            self._tell(message.sender)

    def waive(self) -> None:
        """Look again whose messages need not count though they lie unread."""
        for sender in self.credits.unread:
            self._tell(sender)

    def _tell(self, sender: Address) -> None:
        free = self.credits.due(sender, self.waives)
        if free is not None:
            link = self._link(sender)
            link.tell(self.place, free)
            link.flush(self.door.poller)

    def expect(self, want: Receive) -> None:
        """Receive the next message that fits straight into `want.into`; ends when it is whole, or with `forget`."""
        self.inbox.expect(want)

    def forget(self, want: Receive) -> None:
        """Leave `want.into` alone from now on."""
        self.inbox.forget(want)

    def poll(
        self, timeout: float | None, others: Sequence[Other] = (), alone: bool = True
    ) -> tuple[list[Message], list[Other]]:
        """Wait until anything moves, or `timeout` seconds; the messages that are whole, and which others are ready.

        `alone`: nobody else of this process is at work, who would have to wait while one looks for messages.
        """
        self.door.watch(tuple(others))
        if self.home:
            timeout = 0.0
        busy = [link for link in self.links.values() if link.blocked or link.waiting]
        pauses = [link.pause() for link in busy if link.outbox.pending and (link.bucket or link.staging)]
        pauses += self.cipher.pauses() if self.cipher else ()
        if pauses:
            timeout = min(pauses) if timeout is None else min(*pauses, timeout)
        messages, self.home = self.home, []
        ready = self._ready(timeout, alone, messages)
        if busy or self.cipher:
            self._move(ready)
        if ready:
            self.door.answer(ready)
            if self.memory and self.memory.wakeup in ready:
                self.memory.segment.silence(self.me)
            if self.door.socket in ready:
                self.reader.by_socket(messages)
        for frame in self.cipher.frames(ready) if self.cipher else ():
            self.reader.proved(*frame, messages)
        for message in messages:
            self.received[message.sender] += 1
            if message.sender != self.me:
                self.credits.arrived(message)
        return messages, [other for other in others if other in ready] if ready else []

    def _ready(self, timeout: float | None, alone: bool, found: list[Message]) -> dict[object, int]:
        """Which sockets and others are ready, after waiting for them; adds what has come by lanes meanwhile."""
        if not self.lanes:
            return self._look(timeout)
        come, look = self.lanes.wait(timeout, alone)
        ready: dict[object, int] = {}
        if look:
            come = come or self.lanes.sleep()
            ready = self._look(0.0 if come else timeout)
            come += self.lanes.wake()
        for peer, data in come:
            self.reader.by_lane(peer, data, found)
        return ready

    def _look(self, timeout: float | None) -> dict[object, int]:
        return dict(self.door.poller.poll(None if timeout is None else math.ceil(timeout * 1000)))

    def _move(self, ready: Mapping[object, int]) -> None:
        """Let leave what the peers can take."""
        for who in self.cipher.answer(ready) if self.cipher else ():
            self.links[who].stay_with_curve()
        for link in self.links.values():
            if (link.blocked and link.socket in ready) or (not link.blocked and link.waiting):
                link.flush(self.door.poller)

    @property
    def restarted(self) -> dict[Address, int]:
        """The incarnations of the roles that were."""
        known = zip(self.inbox.book, self.inbox.incarnations, strict=True)
        return {who: incarnation for who, incarnation in known if incarnation}

    def renew(
        self, who: Address, incarnation: int, endpoint: str, unread: Sequence[Message], empty: bool = False
    ) -> bool:
        """Speak to this incarnation of a role, and hear no earlier one, of which `unread` lies here; False: it does so.

        Where its place is `empty`, what is sent to it is dropped.
        """
        if not self.inbox.renew(who, incarnation):
            return False
        (self.empty.add if empty else self.empty.discard)(who)
        if link := self.links.pop(who, None):
            link.close(self.door.poller)
        if self.memory:
            self.memory.renew(who)
        if self.cipher:
            self.cipher.renew(who)
        if self.lanes:
            self.lanes.forget(who)
        self.book = {**self.book, who: endpoint}
        self.credits.renew(who, unread)
        self.sent[who] = self.received[who] = 0  # of the new incarnation
        self.reader.renewed(who, self.home)
        return True

    def close(self, linger: float = 0.0) -> None:
        """Take up to `linger` seconds to send what waits, then leave nothing behind."""
        until = time.monotonic() + linger
        while any(link.stuck for link in self.links.values()) and (left := until - time.monotonic()) > 0:
            ready = dict(self.door.poller.poll(math.ceil(left * 1000)))
            if self.memory:
                self.memory.segment.silence(self.me)
            self._move(ready)
        if self.cipher:
            self.cipher.close(until)
        left = max(0.0, until - time.monotonic())
        self.context.destroy(linger=math.ceil(left * 1000))
        self.door.remove()
        self.reader.close()

    def _link(self, to: Address) -> PeerLink:
        if to not in self.links:
            if to not in self.book:
                raise PlanError(f"{self.me} cannot send to {to}: this run has {', '.join(map(str, self.book))}")
            socket = self.context.socket(zmq.PUSH)
            if self.key_ring:
                socket.set(zmq.AFFINITY, LEAVING)
                self.key_ring.open(socket, to)
            secure = partial(self.cipher.stream, to) if self.cipher and to.role not in UNREACHING else None
            lane = partial(self.lanes.put, to) if self.lanes and to not in self.allowance else None
            self.links[to] = PeerLink(socket, self.book[to], self.token, self.incarnation, self.place, secure, lane)
            if to in self.allowance:
                self.links[to].bucket = LeakyBucket(self.allowance[to])
        return self.links[to]

    def _credit(self, peer: Address, taken: int) -> bool:
        return peer in self.links and self.links[peer].credit(taken)

    def _invited(self, peer: Address, offer: memoryview) -> None:
        if self.cipher:
            self.cipher.invited(peer, offer, self.book[peer])


def calm(links: ZmqTransport) -> bool:
    """Whether all peers share memory with this role, and nothing waits to leave: what comes may wait a moment."""
    if links.lanes is None or links.memory is None or not links.book.keys() <= links.memory.segment.places.keys():
        return False
    return not any(link.blocked or link.waiting for link in links.links.values())
