"""What a role or a site calls itself on its line to the launcher; without torch, which sites do not import."""

from __future__ import annotations

import hmac

from covey.address import Address
from covey.engines.transport.keys import Pair


def line_identity(who: Address, incarnation: int = 0) -> bytes:
    """What a role calls itself on its line to the launcher, in each of its incarnations."""
    return f"{who.role}/{who.rank}{f'.{incarnation}' if incarnation else ''}".encode()


def secret_identity(who: Address, incarnation: int, pair: Pair | None) -> bytes:
    """The same for a link that its owner may take over from itself: with a key, only it and the launcher know this."""
    name = line_identity(who, incarnation)
    return name + b"-" + hmac.digest(pair.secret.encode(), name, "sha256")[:16].hex().encode() if pair else name
