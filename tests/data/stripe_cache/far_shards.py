"""Shards that are far away, for tests: bytes in memory, and how many of them were read."""

from __future__ import annotations

import hashlib
import os
import random
import traceback
from collections.abc import Callable
from pathlib import Path

from covey.data.storage.index import ShardEntry
from covey.data.storage.source import ShardSource
from covey.data.stripe_cache.cached_source import CachedSource
from covey.engines.process.child_process import die_with_parent

STRIPE = 4096


class FarShards(ShardSource):
    def __init__(self, shards: int = 3, size: int = 10_000, seed: int = 0) -> None:
        super().__init__("far://shards")
        draw = random.Random(seed)
        self.shards = {f"{number}.mds": draw.randbytes(size) for number in range(shards)}
        self.fetched: list[tuple[str, int]] = []
        self.log: Path | None = None  # where several processes write down what they fetch

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.shards))

    def size(self, name: str) -> int:
        return len(self.shards[name])

    def read(self, name: str, start: int, stop: int) -> bytes:
        self.fetched.append((name, start))
        if self.log:
            with self.log.open("a") as file:
                file.write(f"{name} {start} {stop - start}\n")
        return self.shards[name][start:stop]

    @property
    def bytes(self) -> int:
        return sum(map(len, self.shards.values()))

    def entries(self) -> list[ShardEntry]:
        return [entry(name, data) for name, data in sorted(self.shards.items())]


def entry(name: str, data: bytes) -> ShardEntry:
    hashes = tuple(hashlib.sha256(data[at : at + STRIPE]).hexdigest() for at in range(0, len(data), STRIPE))
    return ShardEntry(name=name, size=len(data), stripe=STRIPE, hashes=hashes)


def cached(far: FarShards, folder: Path, limit: int | None = None) -> CachedSource:
    return CachedSource(far, far.entries(), memory=0, folder=folder, limit=limit)


def read_all(source: CachedSource) -> None:
    """One epoch, in pieces that cross stripes."""
    for name in source.names():
        whole = b"".join(
            source.read(name, at, min(at + 3000, source.size(name))) for at in range(0, source.size(name), 3000)
        )
        assert whole == source.source.shards[name]  # type: ignore[attr-defined]


def forked(work: Callable[[], None]) -> int:
    """A process that does this, and ends."""
    if not (child := os.fork()):
        die_with_parent()
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def assert_children(*works: Callable[[], None]) -> None:
    """Processes that do this at once all succeed."""
    children = [forked(work) for work in works]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(works)
