"""A stripe of a shard, by what it contains, and the host that keeps it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from covey.errors import WireError

LARGEST = 64 << 20  # bytes of a stripe that is cached
DIGITS = {"sha256": 64, "sha1": 40, "md5": 32, "blake2b": 128, "sha3_256": 64}  # of a hash in hex
SET = re.compile(r"[0-9a-f]{64}")


class Stripe(NamedTuple):
    """Some bytes by their hash. `set` is the hash of the data set: what is cached of a set is removed together."""

    set: str
    algorithm: str
    digest: str
    size: int

    @property
    def name(self) -> str:
        """What its file is called."""
        return f"{self.algorithm}-{self.digest}"

    def fits(self, data: bytes | memoryview) -> bool:
        """Whether these are its bytes."""
        if len(data) != self.size:
            return False
        return hashlib.new(self.algorithm, data, usedforsecurity=False).hexdigest() == self.digest

    def check(self, sender: object) -> None:
        """Refuse what could name another file, or take too much memory, before anything is done with it."""
        hexadecimal = re.fullmatch(r"[0-9a-f]+", self.digest) and len(self.digest) == DIGITS.get(self.algorithm)
        if not hexadecimal or not SET.fullmatch(self.set) or not 0 < self.size <= LARGEST:
            raise WireError(f"{sender} asked for a stripe that cannot be: {self.name[:80]!r} of {self.size} bytes")


def owners(stripe: Stripe, hosts: Sequence[str]) -> list[str]:
    """The hosts in the order in which they should keep a stripe: the first one that is there does.

    Highest random weight (Thaler and Ravishankar 1998): without a host its stripes, and no others, move.
    """
    return sorted(hosts, key=lambda host: hashlib.sha256(f"{host} {stripe.digest}".encode()).digest())
