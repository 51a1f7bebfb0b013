"""Which shards a data set has, and the hashes of their stripes: `shards.json`, which lies beside the shards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from covey.data.storage.source import ShardSource, checked_name
from covey.decoding import WireFormat
from covey.errors import ShardError

INDEX = "shards.json"
STRIPE = 1 << 20  # bytes: what is fetched, checked and cached at once
HASHES = ("sha256", "sha1", "md5", "blake2b", "sha3_256")  # what an index may name, of those that Python has


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One shard, as the index has it.

    Args:
        name: Its path below the place of the data set.
        size: Its bytes.
        samples: How many it holds; None: not counted.
        stripe: The bytes of each of its stripes; the last may be shorter.
        hashes: The hash of each stripe, in hex; none where nobody has computed them.
        algorithm: Which hash it is.
    """

    name: str
    size: int
    samples: int | None = None
    stripe: int = STRIPE
    hashes: tuple[str, ...] = ()
    algorithm: str = "sha256"

    def stripes(self) -> int:
        """How many there are."""
        return -(-self.size // self.stripe)

    def bounds(self, number: int) -> tuple[int, int]:
        """The first byte of a stripe, and the first after it."""
        return number * self.stripe, min(self.size, (number + 1) * self.stripe)

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The stripes under some bytes: of each the number, and which of its own bytes are among them."""
        for number in range(start // self.stripe, -(-stop // self.stripe)):
            first, last = self.bounds(number)
            yield number, max(start, first) - first, min(stop, last) - first

    def fits(self, number: int, data: bytes) -> bool:
        """Whether these are the bytes of a stripe; without hashes only their number is known."""
        first, last = self.bounds(number)
        if not self.hashes or len(data) != last - first:
            return len(data) == last - first
        return hashlib.new(self.algorithm, data, usedforsecurity=False).hexdigest() == self.hashes[number]


class ShardIndex(msgspec.Struct, frozen=True, kw_only=True):
    """All shards of a data set, in the order of its samples.

    Args:
        format: How samples lie in them: mds, tar, safetensors or parquet.
        shards: One entry each.
    """

    format: str
    shards: tuple[ShardEntry, ...]
    version: int = 1

    def key(self) -> str:
        """A hash of the whole set: two places with equal shards have equal keys."""
        return hashlib.sha256(msgspec.json.encode(self.shards)).hexdigest()


INDEX_FILE: WireFormat[ShardIndex] = WireFormat("index of shards", ShardIndex, "json")


def read_index(source: ShardSource) -> ShardIndex:
    """The index of a place, with nothing in it believed; ShardError if it is not one."""
    index = INDEX_FILE.read(source.whole(INDEX, INDEX_FILE.most), source.place)
    if index.version != 1:
        raise ShardError(f"{source.place}: {INDEX} has version {index.version}; this covey reads version 1")
    check_entries(source, index.shards)
    return index


def check_entries(source: ShardSource, entries: tuple[ShardEntry, ...]) -> tuple[ShardEntry, ...]:
    """What somebody else wrote about shards, if no entry is impossible."""
    if not entries or len({entry.name for entry in entries}) < len(entries):
        raise ShardError(f"{source.place}: an index must list at least one shard, and each once")
    for entry in entries:
        _check_entry(source, entry)
    return entries


def _check_entry(source: ShardSource, entry: ShardEntry) -> None:
    checked_name(entry.name)
    if entry.size < 1 or entry.stripe < 4096 or (entry.samples is not None and entry.samples < 1):
        raise source.error(entry.name, f"has no valid entry in {INDEX}: {entry.size} bytes, stripes of {entry.stripe}")
    if entry.hashes and (entry.algorithm not in HASHES or len(entry.hashes) != entry.stripes()):
        known = f"hashes are {', '.join(HASHES)}, one for each of {entry.stripes()} stripes"
        raise source.error(entry.name, f"has {len(entry.hashes)} hashes ({entry.algorithm}) in {INDEX}; {known}")


def hashed(source: ShardSource, name: str, samples: int | None = None, stripe: int = STRIPE) -> ShardEntry:
    """The entry of a shard, from its bytes."""
    bare = ShardEntry(name=name, size=source.size(name), samples=samples, stripe=stripe)
    cuts = [bare.bounds(number)[0] for number in range(bare.stripes())] + [bare.size]
    digests = (hashlib.sha256(source.read(name, first, last)).hexdigest() for first, last in pairwise(cuts))
    return msgspec.structs.replace(bare, hashes=tuple(digests))
