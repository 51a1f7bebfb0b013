"""What a launcher and the sites of a run say to each other, and the letter by which a site is invited."""

from __future__ import annotations

import msgspec

from covey.engines.transport.keys import Pair
from covey.message import Address


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """What a site must know to come: it travels through the engine's own channel, for it holds the site's key."""

    site: int
    launcher: str  # the endpoint at which sites are awaited
    key: str = ""  # the launcher's public key; none: --insecure
    pair: Pair | None = None
    warm: str  # the module that roles need
    task: str = ""  # the file that must be the same everywhere
    interface: str = ""  # where the roles shall hear: the name of an interface, or an address


class Word(msgspec.Struct, frozen=True, tag=True):
    """Something said on the line between a site and the launcher."""


class Arrived(Word, frozen=True):
    """The site is there."""

    host: str
    address: str  # where its roles hear
    cores: int
    versions: dict[str, str]


class Failed(Word, frozen=True):
    """The site cannot do what it was asked."""

    reason: str


class Gone(Word, frozen=True):
    """A role's process has ended, and how."""

    who: Address
    how: str


class Beat(Word, frozen=True):
    """The site is still there."""


class Bear(Word, frozen=True):
    """Have these roles born."""

    entry: str
    roles: list[Address]
    work: bytes
    alone: bool  # no other site has roles


class Leave(Word, frozen=True):
    """The run is over."""


Upward = Arrived | Failed | Gone | Beat
Downward = Bear | Leave

upward = msgspec.msgpack.Decoder(Upward)
downward = msgspec.msgpack.Decoder(Downward)
