"""Shards whose every byte is checked before anybody sees it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from covey.data.storage.index import ShardEntry
from covey.data.storage.source import FolderSource, ShardSource

MEMORY = 256 << 20  # bytes of stripes that a process keeps of a source that is far away
ATTEMPTS = 10  # to read bytes of a file while nobody changes it


class CheckedSource(ShardSource):
    """The shards of an index. What is read is read in whole stripes, and each must have the hash that the index says.

    Of a folder each stripe is checked once in a process, when it is first read, and again after its file was touched.
    Of other sources checked stripes are kept in memory, the least recently used ones are dropped. A cache overrides
    `part` and `bring`.
    """

    def __init__(self, source: ShardSource, entries: Iterable[ShardEntry], memory: int = MEMORY) -> None:
        super().__init__(source.place)
        self.source, self.memory = source, memory
        self.local = isinstance(source, FolderSource)
        self.entries = {entry.name: entry for entry in entries}
        self._checked: dict[str, tuple[tuple[int, int], set[int]]] = {}  # since when, and which stripes
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._coming: dict[tuple[str, int], Future[bytes]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def names(self) -> tuple[str, ...]:
        return tuple(self.entries)

    def size(self, name: str) -> int:
        return self.entries[name].size

    def stripe(self, entry: ShardEntry, number: int) -> bytes:
        """The bytes of a stripe; ShardError if they are not what the index says."""
        data = self.source.read(entry.name, *entry.bounds(number))
        if not entry.fits(number, data):
            first, last = entry.bounds(number)
            raise self.error(entry.name, f"is damaged, or changed: its bytes {first} to {last} have another hash")
        return data

    def read(self, name: str, start: int, stop: int) -> bytes:
        entry = self.entries[name]
        if not 0 <= start <= stop <= entry.size:
            raise self.error(name, f"has {entry.size} bytes; bytes {start} to {stop} were asked for")
        if isinstance(self.source, FolderSource) and self.local:
            return self._read_file(self.source, entry, start, stop)
        parts = [self.part(entry, number, first, last) for number, first, last in entry.parts(start, stop)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def part(self, entry: ShardEntry, number: int, first: int, last: int) -> bytes:
        """Some bytes of a stripe."""
        return self._near(entry, number)[first:last]

    def bring(self, entry: ShardEntry, number: int) -> bytes:
        """The bytes of a stripe that is not in memory."""
        return self.stripe(entry, number)

    def _read_file(self, source: FolderSource, entry: ShardEntry, start: int, stop: int) -> bytes:
        for _ in range(ATTEMPTS):
            touched = source.touched(entry.name)
            self._check(entry, start, stop, touched)
            data = source.read(entry.name, start, stop)
            if source.touched(entry.name) == touched:
                return data
        raise self.error(entry.name, "is changed all the time: shards must not be written during a run")

    def _check(self, entry: ShardEntry, start: int, stop: int, touched: tuple[int, int]) -> None:
        if self.source.size(entry.name) != entry.size:
            there = self.source.size(entry.name)
            raise self.error(entry.name, f"has {there} bytes, and the index says {entry.size}: truncated, or changed")
        known, numbers = self._checked.get(entry.name, (touched, set()))
        if known != touched:
            if not entry.hashes and known[1] == touched[1]:  # else it may have been replaced: it stays what it was
                raise self.error(entry.name, "was changed during the run, and has no hashes to check it by")
            numbers = set()
        self._checked[entry.name] = touched, numbers
        for number in range(start // entry.stripe, -(-stop // entry.stripe)):
            if number not in numbers:
                self.stripe(entry, number)
                numbers.add(number)

    def _near(self, entry: ShardEntry, number: int) -> bytes:
        key = entry.name, number
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            mine = key not in self._coming
            coming = self._coming.setdefault(key, Future())
        if not mine:  # another thread fetches it
            return coming.result()
        try:
            data = self.bring(entry, number)
            self._keep(key, data)
            coming.set_result(data)
        except BaseException as error:
            coming.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._coming[key]
        return data

    def _keep(self, key: tuple[str, int], data: bytes) -> None:
        with self._lock:
            self._bytes += len(data) - len(self._kept.get(key, b""))
            self._kept[key] = data
            while self._bytes > self.memory and len(self._kept) > 1:
                self._bytes -= len(self._kept.popitem(last=False)[1])

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source, "entries": tuple(self.entries.values()), "memory": self.memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
