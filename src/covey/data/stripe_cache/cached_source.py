"""Shards that are far away, of which each stripe is read from there once."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from covey.data.storage.index import ShardEntry, ShardIndex
from covey.data.storage.source import ShardSource
from covey.data.storage.stripes import CheckedSource
from covey.data.stripe_cache.cache_folder import CacheFolder
from covey.data.stripe_cache.cached_set import CachedSet
from covey.data.stripe_cache.keeper_client import KeeperClient, KeeperGone
from covey.data.stripe_cache.read_counts import ReadCounts
from covey.data.stripe_cache.stripe import LARGEST, Stripe

MEMORY = 32 << 20  # bytes of stripes that a process keeps in memory, where the disk has no room


class CachedSource(CheckedSource):
    """The shards of an index, read from this host's disk, else from a peer's, else from their source.

    Args:
        source: Where the shards are.
        entries: Those of an index; stripes without hashes, or larger than 64 MiB, are not cached.
        folder: Of the cache; None: the user's own.
        limit: At most how many bytes the cache takes; None: a twentieth of the disk stays free.
    """

    def __init__(
        self, source: ShardSource, entries: Iterable[ShardEntry], memory: int = MEMORY,
        folder: Path | str | None = None, limit: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(source, entries, memory)
        self.local = False
        self.cache = CacheFolder(folder, limit)
        self.counts = ReadCounts()
        self._key = ShardIndex(format="", shards=tuple(self.entries.values())).key()
        self._near_set: CachedSet | None = None
        self._keeper = KeeperClient(self.cache.folder)

    @property
    def near(self) -> CachedSet:
        """The set on this host's disk; nobody removes it while this source is there."""
        if self._near_set is None:
            self._near_set = CachedSet(self.cache, self._key, self.place, _say)
        return self._near_set

    def stripe(self, entry: ShardEntry, number: int) -> bytes:
        data = super().stripe(entry, number)
        self.counts.add("backend", len(data))
        return data

    def part(self, entry: ShardEntry, number: int, first: int, last: int) -> bytes:
        stripe = self._stripe(entry, number)
        if stripe is None:
            return super().part(entry, number, first, last)
        if (found := self.near.read(stripe, first, last)) is not None:
            self.counts.add("disk", last - first)
            return found
        try:
            found, fetched = self._keeper.read(stripe, first, last, lambda: self._near(entry, number))
            self.counts.add("peers", 0 if fetched else last - first)
            return found
        except KeeperGone:  # or there is none on this host
            return self.near.fill(stripe, lambda: self._near(entry, number))[first:last]

    def fill(self) -> None:
        """Fetch all stripes that no host has."""
        for entry in self.entries.values():
            for number in range(entry.stripes()):
                self.part(entry, number, 0, 0)

    def _stripe(self, entry: ShardEntry, number: int) -> Stripe | None:
        first, last = entry.bounds(number)
        if not entry.hashes or last - first > LARGEST:
            return None
        return Stripe(self._key, entry.algorithm, entry.hashes[number], last - first)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "folder": self.cache.folder, "limit": self.cache.limit}


def _say(line: str) -> None:
    print(f"covey: {line}", file=sys.stderr, flush=True)
