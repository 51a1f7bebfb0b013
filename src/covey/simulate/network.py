"""A model of the network: how long a message travels beside others."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Literal, Protocol

import msgspec

from covey.simulate.cluster import Cluster, Host
from covey.simulate.machines import Link

FRAME = 4 * 1024 * 1024  # bytes; a higher priority overtakes a large parcel after each of these

Kind = Literal[
    "freed",  # the sender can take the next frame
    "frame",  # a frame is on its way: it has left (Fair), or has begun to arrive (Fifo)
    "last",  # the same, for the last frame of a parcel
    "delivered",  # the whole parcel has arrived: `happen` would only give it back
]


class Parcel(msgspec.Struct, eq=False):
    """Bytes on their way from one host to another."""

    serial: int
    src: Host
    dst: Host
    size: int
    priority: int = 0


class Event(msgspec.Struct, eq=False):
    """Something that the network wants to be told of when its time has come."""

    at: float  # seconds
    kind: Kind
    parcel: Parcel
    size: int = 0  # of the frame
    until: float = 0.0  # when the sender's last byte of the frame can be there


Arrival = Callable[[float, int], float | None]
"""Takes a parcel of this size if the time of its arrival is known now, and answers with that; None: `send` must."""


class Network(Protocol):
    """What the virtual engine asks, with a clock that never goes back; it keeps the events, ties in given order."""

    def arrivals(self, src: Host, dst: Host) -> Arrival:
        """What takes the parcels from one host to another whose arrival is known at once."""

    def send(self, now: float, parcel: Parcel) -> list[Event]:
        """Take a parcel; answer with the events to come back with."""

    def happen(self, now: float, event: Event) -> tuple[list[Event], Parcel | None]:
        """An event is due: what follows from it, and the parcel that is now there."""

    def waits(self, parcel: Parcel) -> bool:
        """Whether no byte of a parcel that was sent has left its host."""


Waiting = tuple[int, int, Parcel, int]  # -priority, order, parcel, bytes not sent yet


def untouched(queue: list[Waiting], parcel: Parcel) -> bool:
    """Whether the parcel stands in a queue as a whole."""
    return any(waiting is parcel and unsent == parcel.size for _, _, waiting, unsent in queue)


class Nic:
    """A host's link, with one queue for each direction."""

    __slots__ = ("egress_free", "ingress_free", "inward", "latency", "outward", "queue")

    def __init__(self, link: Link) -> None:
        self.inward, self.outward = link.goodput, link.outward  # bytes per second
        self.latency: float = link.latency
        self.queue: list[Waiting] = []
        self.egress_free = 0.0
        self.ingress_free = 0.0


class Fifo:
    """Each direction of a NIC carries one frame after another, first come first served."""

    def __init__(self, cluster: Cluster, *, frame: int = FRAME) -> None:
        self.cluster, self.frame = cluster, frame
        self.nics: dict[Host, Nic] = {}
        self.order = count()
        # With one latency for all, frames reach their receivers in the order in which they leave, and a frame's
        # place at the receiver is known at once: one event less for every message.
        self.uniform = cluster.one_latency

    def arrivals(self, src: Host, dst: Host) -> Arrival:
        """The usual case, as `_transmit` would have it: the sender is idle, and the parcel is a single frame."""
        if src == dst:
            return lambda now, size: now + self.cluster.nearby(size)
        if not self.uniform:
            return not_known
        return OneFrame(self._nic(src), self._nic(dst), self.frame).arrival

    def send(self, now: float, parcel: Parcel) -> list[Event]:
        """Take a parcel: it leaves at once when the sender is idle."""
        if parcel.src == parcel.dst:
            return [Event(now + self.cluster.nearby(parcel.size), "delivered", parcel)]
        nic = self._nic(parcel.src)
        if now >= nic.egress_free and not nic.queue:
            return self._transmit(now, nic, parcel, parcel.size, next(self.order))
        heappush(nic.queue, (-parcel.priority, next(self.order), parcel, parcel.size))
        if len(nic.queue) > 1:
            return []  # whoever waits already has asked to be woken
        return [Event(nic.egress_free, "freed", parcel)]

    def happen(self, now: float, event: Event) -> tuple[list[Event], Parcel | None]:
        """A parcel arrived, a sender is free, or a frame reached its receiver."""
        kind = event.kind
        if kind == "delivered":
            return [], event.parcel
        if kind == "freed":
            nic = self.nics[event.parcel.src]
            _, order, parcel, unsent = heappop(nic.queue)
            return self._transmit(now, nic, parcel, unsent, order), None
        done = self._receive(now, self.nics[event.parcel.dst], event.size, event.until)
        return ([Event(done, "delivered", event.parcel)] if kind == "last" else []), None

    def waits(self, parcel: Parcel) -> bool:
        """Whether it still stands whole in its sender's queue."""
        return parcel.src in self.nics and untouched(self.nics[parcel.src].queue, parcel)

    def _transmit(self, now: float, nic: Nic, parcel: Parcel, unsent: int, order: int) -> list[Event]:
        """Put the next frame of a parcel on the wire."""
        size = unsent if unsent <= self.frame else self.frame
        receiver = self._nic(parcel.dst)
        latency = nic.latency if nic.latency > receiver.latency else receiver.latency
        nic.egress_free = sent = now + size / nic.outward
        if not self.uniform:
            kind: Kind = "last" if unsent == size else "frame"
            events = [Event(now + latency, kind, parcel, size, sent + latency)]
        else:
            done = self._receive(now + latency, receiver, size, sent + latency)
            events = [Event(done, "delivered", parcel)] if unsent == size else []
        if unsent > size:
            heappush(nic.queue, (-parcel.priority, order, parcel, unsent - size))
        if nic.queue:
            events.append(Event(sent, "freed", parcel))
        return events

    def _receive(self, reached: float, nic: Nic, size: int, until: float) -> float:
        """When the receiver has the whole frame: it forwards bytes while they come, but takes its own time too."""
        begin = nic.ingress_free if nic.ingress_free > reached else reached
        # Only its own time: a slow sender does not keep a fast receiver from hearing the others.
        nic.ingress_free = done = begin + size / nic.inward
        return done if done > until else until

    def _nic(self, host: Host) -> Nic:
        if (nic := self.nics.get(host)) is None:
            nic = self.nics[host] = Nic(self.cluster.link_of(host))
        return nic


class OneFrame:
    """From one NIC to another: the parcels of a single frame that find the sender idle."""

    __slots__ = ("frame", "latency", "receiver", "sender")

    def __init__(self, sender: Nic, receiver: Nic, frame: int) -> None:
        self.sender, self.receiver, self.frame = sender, receiver, frame
        self.latency = max(sender.latency, receiver.latency)

    def arrival(self, now: float, size: int) -> float | None:
        """As `Fifo._transmit` and `Fifo._receive` find it, in one call: it is asked for every message."""
        sender, receiver, latency = self.sender, self.receiver, self.latency
        if now < sender.egress_free or sender.queue or size > self.frame:
            return None
        sender.egress_free = sent = now + size / sender.outward
        reached, until = now + latency, sent + latency
        free = receiver.ingress_free
        receiver.ingress_free = done = (free if free > reached else reached) + size / receiver.inward
        return done if done > until else until


def not_known(now: float, size: int) -> None:
    """Of no parcel the arrival is known at once."""
