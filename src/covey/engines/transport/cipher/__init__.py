"""How do tensors travel between hosts with `--cipher`: sealed with AES-256-GCM, on connections beside CURVE's?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

from covey.address import Address
from covey.engines.transport.inbox import Inbox
from covey.engines.transport.refusals import Refusals
from covey.errors import PlanError
from covey.names import option

if TYPE_CHECKING:
    from covey.engines.transport.cipher.links import CipherLinks

CIPHERS = ("aes-256-gcm",)
UNREACHING = ("scorer",)
"""Roles that need not be able to connect to others: the scorer lives with the launcher. Links to it stay with CURVE."""
NEEDS = "cryptography"
INSTALL = "pip install 'covey[cipher]'"


def cipher_links(
    cipher: str, me: Address, inbox: Inbox, endpoint: str, largest: int, poller: zmq.Poller, refusals: Refusals
) -> CipherLinks:
    """The connections of a role beside ZeroMQ's."""
    try:
        from covey.engines.transport.cipher.links import CipherLinks
    except ModuleNotFoundError as error:
        raise PlanError(f"{option('cipher', cipher)} needs {error.name} on every host: {INSTALL}") from None
    return CipherLinks(me, inbox, endpoint, largest, poller, refusals)
