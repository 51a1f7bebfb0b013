"""What the front's process and the hosts of replicas say to each other."""

from __future__ import annotations

import msgspec

from covey.decoding import WireFormat
from covey.engines.process.contacts import Contacts
from covey.engines.transport.secretive import Secretive
from covey.inference.served_model import ModelPlace

HOST = "host"  # the role of a process that starts replicas
MOST = 4 << 20  # bytes of a word; ZeroMQ refuses more before it takes memory
CHUNK = 1 << 20  # bytes of a link that are relayed at a time


class HostWork(Secretive, frozen=True, kw_only=True):
    """What a host of replicas must know to start."""

    contacts: Contacts
    endpoint: str  # where the front's process is
    places: tuple[ModelPlace, ...]  # of the versions; ranks of replicas say whose they are
    cuts: tuple[tuple[int, ...], ...]  # layers after which each version is cut
    threads: int
    trial: tuple[float, int]


class RelayWord(msgspec.Struct, frozen=True, tag=True):
    """Something said between the front's process and a host."""


class StartHere(RelayWord, frozen=True):
    """Start a replica, with a link of this number."""

    link: int
    rank: int


class EndHere(RelayWord, frozen=True):
    """Kill the replica that has this link."""

    link: int


class RelayedBytes(RelayWord, frozen=True):
    """Bytes of a link."""

    link: int
    data: bytes


class LinkEnded(RelayWord, frozen=True):
    """The replica with this link has ended."""

    link: int


class HostBeat(RelayWord, frozen=True):
    """The host is there, in the incarnation of this number."""

    incarnation: int


class RenewHost(RelayWord, frozen=True):
    """The host was lost: end all replicas, and begin the incarnation of this number."""

    incarnation: int


class LeaveHost(RelayWord, frozen=True):
    """The endpoint has ended."""


Down = StartHere | EndHere | RelayedBytes | RenewHost | LeaveHost
Up = HostBeat | LinkEnded | RelayedBytes

works: WireFormat[HostWork] = WireFormat("work of a host", HostWork)
down: WireFormat[Down] = WireFormat("word to a host of replicas", Down)
up: WireFormat[Up] = WireFormat("word of a host of replicas", Up)
