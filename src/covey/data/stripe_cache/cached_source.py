"""Shards that are far away, of which each stripe is read from there once."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from covey.data.storage.index import ShardEntry, ShardIndex
from covey.data.storage.source import ShardSource
from covey.data.storage.stripes import CheckedSource
from covey.data.stripe_cache import keeper_client
from covey.data.stripe_cache.cache_folder import CacheFolder
from covey.data.stripe_cache.cached_set import CachedSet
from covey.data.stripe_cache.keeper_client import LEFT_OUT, KeeperClient, KeeperGone, KeeperSilent
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
        self._told_wrong = self._told_silent = False

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
        if first == last:  # some host is to have it, and nothing of it is needed here
            self._ask(entry, number, stripe, 0)
            return b""
        return self._near(entry, number)[first:last]

    def bring(self, entry: ShardEntry, number: int) -> bytes:
        stripe = self._stripe(entry, number)
        if stripe is None:
            return self.stripe(entry, number)
        data, checked = self._ask(entry, number, stripe, stripe.size)
        if checked:
            return data
        if stripe.fits(data):
            self.counts.add("peers", len(data))
            return data
        self._keeper.hang_up()
        self._tell_wrong(entry, number)
        return self.near.fill(stripe, lambda: self.stripe(entry, number))

    def _ask(self, entry: ShardEntry, number: int, stripe: Stripe, last: int) -> tuple[bytes, bool]:
        """The first bytes of a stripe from some host, else from its source; and whether they have been checked."""
        try:
            return self._keeper.read(stripe, 0, last, lambda: self.stripe(entry, number))
        except KeeperGone as error:  # or there is none on this host
            if isinstance(error, KeeperSilent) and not self._told_silent:
                self._told_silent = True
                left_out = f"stripes are read from their source, and it is asked again after {LEFT_OUT / 60:g} minutes"
                _say(f"the keeper at {self.cache.folder} has not answered in {keeper_client.PATIENCE:g} s: {left_out}")
            return self.near.fill(stripe, lambda: self.stripe(entry, number))[:last], True

    def _tell_wrong(self, entry: ShardEntry, number: int) -> None:
        if not self._told_wrong:
            self._told_wrong = True
            first, last = entry.bounds(number)
            what = f"bytes {first} to {last} of shard {entry.name!r} of {self.place}"
            _say(f"the keeper at {self.cache.folder} gave wrong {what}: such stripes are read from their source")

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
