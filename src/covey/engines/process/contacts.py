"""The address book of a role: endpoints of the others, and their keys."""

from __future__ import annotations

import msgspec

from covey.engines.transport.keys import KeyRing, Pair
from covey.engines.transport.secretive import Secretive
from covey.engines.transport.token import NONE
from covey.message import Address

ANY = ":*"  # the end of an endpoint whose port is not known before its role has bound it


class Contacts(Secretive, frozen=True, kw_only=True):
    """What a role must know to communicate: the endpoint of every role by name, and the launcher's."""

    book: dict[str, str]
    launcher: str
    public: dict[str, str] = msgspec.field(default_factory=dict)  # none: links private to one user of one machine
    pairs: dict[str, Pair] = msgspec.field(default_factory=dict)  # of the roles that start from this copy
    token: bytes = NONE  # of the run, in front of everything that its roles say
    cipher: str = ""  # of tensors between roles; none: that of the links
    native: str = ""  # "module arguments": a way to sum over roles that is not covey's own
    sites: dict[str, int] = msgspec.field(default_factory=dict)  # the number of the site where each role lives
    incarnations: dict[str, int] = msgspec.field(default_factory=dict)  # of the roles that were restarted
    machines: dict[str, int] = msgspec.field(default_factory=dict)  # the same number: they share memory

    def key_ring(self, me: Address) -> KeyRing | None:
        return KeyRing(self.pairs[str(me)], by_address(self.public)) if self.public else None

    @property
    def open(self) -> bool:
        """Whether the endpoints are not known yet."""
        return any(endpoint.endswith(ANY) for endpoint in self.book.values())


def by_address(named: dict[str, str]) -> dict[Address, str]:
    return {address(name): value for name, value in named.items()}


def address(name: str) -> Address:
    role, _, rank = name.partition(" ")
    return Address(role, int(rank))
