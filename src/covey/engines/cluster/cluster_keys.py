"""The keys of a run on several hosts: by what each role and site proves who it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import zmq

from covey.engines.cluster.memory_broker import new_secret
from covey.engines.process.contacts import Contacts
from covey.engines.process.line_identity import secret_identity
from covey.engines.transport.keys import LAUNCHER, ConnectionGuard, KeyChecker, KeyRing, Pair, new_pair
from covey.engines.transport.token import new_token
from covey.message import Address


class ClusterKeys:
    """A pair of keys for the launcher, every site and every role; `insecure` runs do without."""

    def __init__(self, sites: Iterable[Address], insecure: bool) -> None:
        self.insecure = insecure
        self.token, self.secret = new_token(), new_secret()
        self.pairs = {who: new_pair() for who in (LAUNCHER, *sites)}

    def guard(self, context: zmq.Context[zmq.Socket[bytes]]) -> KeyChecker | ConnectionGuard:
        """What watches the launcher's sockets."""
        ring = self.own_ring()
        return KeyChecker(context, ring) if ring else ConnectionGuard(context, len(self.pairs))

    def admit(self, roles: Sequence[Address], guard: KeyChecker | ConnectionGuard) -> None:
        """These roles take part, too."""
        self.pairs.update({who: new_pair() for who in roles})
        guard.admit({who: self.pairs[who].public for who in roles})

    def own_ring(self) -> KeyRing | None:
        """The launcher's pair, and the public keys of all."""
        if self.insecure:
            return None
        return KeyRing(self.pairs[LAUNCHER], {name: pair.public for name, pair in self.pairs.items()})

    def identity(self, who: Address, incarnation: int = 0) -> bytes:
        """What a site or a host calls itself on its link to the launcher; others of the run do not know it."""
        return secret_identity(who, incarnation, None if self.insecure else self.pairs[who])

    def of_site(self, site: Address) -> tuple[str, Pair | None]:
        """What a site gets: the launcher's public key, and its own pair."""
        return ("", None) if self.insecure else (self.pairs[LAUNCHER].public, self.pairs[site])

    def added(self, contacts: Contacts, mine: Sequence[Address]) -> Contacts:
        """The contacts with all public keys, and the secret keys of these roles only."""
        if self.insecure:
            return contacts
        public = {str(who): pair.public for who, pair in self.pairs.items()}
        return msgspec.structs.replace(contacts, public=public, pairs={str(who): self.pairs[who] for who in mine})
