"""Which hosts share their caches? A file with the address and the key of each keeper, the same on all of them."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from covey.atomic_file import replacing
from covey.data.stripe_cache.keeper_messages import KEEPER
from covey.decoding import WireFormat
from covey.engines.service.dialled_link import dialled
from covey.engines.service.guest_keys import GuestKey, check_key
from covey.engines.transport.keys import Pair, new_pair
from covey.engines.transport.secretive import Secretive
from covey.errors import PlanError
from covey.message import Address

MOST = 4096  # hosts


class PoolMember(Secretive, frozen=True):
    """A host: where its keeper listens, and the keeper's key."""

    address: str
    public: str
    secret: str

    @property
    def pair(self) -> Pair:
        return Pair(self.public, self.secret)


class KeeperPool(msgspec.Struct, frozen=True):
    """All hosts that share their caches; they are named by their addresses."""

    members: tuple[PoolMember, ...]

    def place(self, address: str) -> int:
        """Which of them has this address."""
        for place, member in enumerate(self.members):
            if member.address == address:
                return place
        known = ", ".join(member.address for member in self.members)
        raise PlanError(f"{address} is not in the pool, which has {known}")

    def keepers(self) -> dict[str, Address]:
        """The keepers, by the names of their hosts."""
        return {member.address: Address(KEEPER, place) for place, member in enumerate(self.members)}

    def key(self, mine: int, peer: int) -> GuestKey:
        """What the keeper `mine` needs to dial `peer`."""
        own = self.members[mine]
        return GuestKey(mine, own.address, own.public, own.secret, self.members[peer].public)


_pools: WireFormat[KeeperPool] = WireFormat("pool of keepers", KeeperPool, "json", most=1 << 22)


def new_pool(path: Path, addresses: list[str]) -> KeeperPool:
    """Write the file of a pool, with new keys, which only its owner can read."""
    if not 0 < len(addresses) <= MOST or len(set(addresses)) < len(addresses):
        raise PlanError(f"name 1 to {MOST} hosts, each once, as HOST:PORT")
    for address in addresses:
        dialled(address)
    pairs = [new_pair() for _ in addresses]
    pool = KeeperPool(
        tuple(PoolMember(where, pair.public, pair.secret) for where, pair in zip(addresses, pairs, strict=True))
    )
    with replacing(path) as new:
        new.touch(mode=0o600)
        new.write_bytes(msgspec.json.encode(pool))
    return pool


def read_pool(path: Path) -> KeeperPool:
    """The pool that a file describes; it must be its owner's alone."""
    try:
        pool, mode = _pools.read_file(path), os.stat(path).st_mode
    except FileNotFoundError:
        raise PlanError(f"there is no file {path}: make one with `covey data cache pool {path} HOST:PORT …`") from None
    if mode & 0o077:
        raise PlanError(f"{path} has secret keys, and others can read it: run chmod 600 {path}, and make new keys")
    for member in pool.members:
        check_key(member.public, path)
        dialled(member.address)
    return pool
