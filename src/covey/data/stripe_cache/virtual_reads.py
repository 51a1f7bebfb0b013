"""When are samples there that lie in a backend? Stripes as real readers ask for them, in virtual time."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from covey.data.storage.index import STRIPE
from covey.data.storage.ranges import SMALLEST
from covey.data.storage.stored import AT_ONCE
from covey.data.storage.stripes import MEMORY
from covey.data.stripe_cache import cached_source
from covey.data.stripe_cache.read_counts import NOTES, Place
from covey.simulate.backend import Backend
from covey.simulate.machines import Link

Host = str
RANGES = STRIPE // SMALLEST  # that a stripe is split into at most


class Line:
    """What carries so many bytes per second, one read after another."""

    def __init__(self, rate: float) -> None:
        self.rate, self.free = rate, 0.0

    def carry(self, begin: float, size: float) -> float:
        """When bytes are there that are asked for at `begin`."""
        self.free = max(self.free, begin) + size / self.rate
        return self.free


class VirtualReads:
    """Stripes that readers on several hosts want, first come, first served.

    Args:
        backend: What the store gives; it says how large a sample is.
        samples: How many the set has.
    """

    def __init__(self, backend: Backend, samples: int) -> None:
        assert backend.sample is not None, "the size of a sample is known"
        self.backend, self.sample, self.total = backend, backend.sample, samples * backend.sample
        self._hosts: Mapping[Host, Link] = {}
        self.counts: dict[str, dict[Place, int]] = defaultdict(lambda: dict.fromkeys(NOTES, 0))  # by reader
        self._store = Line(backend.most)
        self._cards: dict[Host, Line] = {}
        self._there: dict[Host, dict[int, float]] = defaultdict(dict)  # since when each stripe is on a host's disk
        self._memory: dict[str, OrderedDict[int, None]] = defaultdict(OrderedDict)  # by reader

    def settle(self, hosts: Mapping[Host, Link]) -> None:
        """Say which hosts have readers, and their links."""
        self._hosts = hosts
        self._cards = {host: Line(link.goodput) for host, link in hosts.items()}
        self._order = sorted(hosts)

    def read(self, now: float, reader: str, host: Host, numbers: Sequence[int]) -> float:
        """When a reader on this host, who asks now, has these samples."""
        there, counts, memory = self._disk(host), self.counts[reader], self._memory[reader]
        missing, peers, at = list[int](), list[int](), now
        for stripe, part in self._parts(numbers):
            since = now if self.backend.filled else there.get(stripe)
            if since is not None and self.keeps(stripe, host):
                counts["disk"] += part
                at = max(at, since)
            elif stripe in memory:
                memory.move_to_end(stripe)
            else:
                (missing if since is None else peers).append(stripe)
                at = max(at, since or now)
                memory[stripe] = None
        counts["backend"] += self._size(missing)
        counts["peers"] += self._size(peers)
        at = max(at, self._from_store(now, host, missing), self._from_peers(now, host, peers))
        if self.backend.cache != "none":
            there.update(dict.fromkeys(missing, at))
        while len(memory) > kept_in_memory(self.backend):
            memory.popitem(last=False)
        return at

    def notes(self, reader: str) -> dict[str, int]:
        """What a reader has read, as a result names it."""
        return {NOTES[place]: size for place, size in self.counts[reader].items()}

    def keeps(self, stripe: int, host: Host) -> bool:
        """Whether a stripe that has been read is on this host's disk."""
        if self.backend.cache == "none":
            return False
        return self.backend.cache == "host" or self._order[_spread(stripe) * len(self._order) >> 32] == host

    def _disk(self, host: Host) -> dict[int, float]:
        """All hosts that share their caches have one."""
        return self._there["" if self.backend.cache == "hosts" else host]

    def _parts(self, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        """The stripes of these samples, and how much of each is theirs."""
        for number in numbers:
            first, last = number * self.sample, (number + 1) * self.sample
            for stripe in range(first // STRIPE, -(-last // STRIPE)):
                yield stripe, min(last, (stripe + 1) * STRIPE) - max(first, stripe * STRIPE)

    def _size(self, stripes: Iterable[int]) -> int:
        return sum(min(STRIPE, self.total - stripe * STRIPE) for stripe in stripes)

    def _from_store(self, now: float, host: Host, stripes: Sequence[int]) -> float:
        if not stripes:
            return now
        size, begin = self._size(stripes), now + waits(self.backend, len(stripes))
        alone = begin + size / (requests_at_once(self.backend, len(stripes)) * self.backend.most_each)
        return max(alone, self._store.carry(begin, size), self._cards[host].carry(begin, size))

    def _from_peers(self, now: float, host: Host, stripes: Sequence[int]) -> float:
        if not stripes:
            return now
        asked = now + 2 * self._hosts[host].latency * math.ceil(len(stripes) / AT_ONCE)
        return self._cards[host].carry(asked, self._size(stripes))


def waits(backend: Backend, stripes: float) -> float:
    """How long a reader of so many stripes waits for first bytes: it fetches several at once."""
    return math.ceil(stripes / min(backend.requests, AT_ONCE)) * backend.latency


def requests_at_once(backend: Backend, stripes: float) -> float:
    """Requests of a reader that wants so many stripes, each of which is split into a few ranges."""
    return min(backend.requests, RANGES * min(stripes, AT_ONCE))


def kept_in_memory(backend: Backend) -> int:
    """Stripes that a reader has in memory."""
    return (MEMORY if backend.cache == "none" else cached_source.MEMORY) // STRIPE


def _spread(stripe: int) -> int:
    """A number below 2**32 that looks drawn: in its place real keepers have the stripe's hash."""
    mixed = (stripe + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 >> 32 & (1 << 32) - 1
