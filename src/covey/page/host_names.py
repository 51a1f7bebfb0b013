"""Under which names may a server on loopback be asked? A web page can let a name of its own lead to this machine."""

from __future__ import annotations

import re
from collections.abc import Collection

_PORT = re.compile(r":[0-9]*\Z")  # RFC 9110, 4.2.3: it may be empty
LOCAL = ("127.0.0.1", "localhost", "[::1]")


def own_names(host: str, bound: str) -> Collection[str]:
    """What clients call a server that listens on `host`, at the loopback address `bound`."""
    return {*LOCAL, *(f"[{one}]" if ":" in one else one.lower() for one in (host, bound))}


def is_meant(header: str, names: Collection[str]) -> bool:
    """Whether the Host of a request is one of these names, with a port or without."""
    return _PORT.sub("", header).lower() in names
