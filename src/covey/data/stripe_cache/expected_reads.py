"""How long does a worker wait for the samples of a batch, where they come from a backend? In the mean of a pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean

from covey.data.storage.index import STRIPE
from covey.data.storage.stored import AT_ONCE
from covey.data.stripe_cache.virtual_reads import kept_in_memory, requests_at_once, waits
from covey.simulate import Backend, Cluster

PARTS = 64  # of a pass, in each of which about as many stripes are there
LOOKED_AT = 4096  # samples of which the stripes are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class FarData:
    """A data set in a backend, and those who read it at once."""

    backend: Backend
    samples: int
    batch: int
    readers: int
    hosts: int
    goodput: float  # bytes per second of a host's link
    latency: float  # of the same

    def seconds(self) -> float:
        """Of a batch, in the first pass; of a filled cache, in any."""
        known, passed = self.backend, self._peer_stripes() if self.backend.filled else self._store_stripes()
        stripes = passed * self.batch / self.samples
        if not stripes:
            return 0.0
        size, card = stripes * min(STRIPE, self._bytes), self.goodput * self.hosts / self.readers
        if known.filled:
            return 2 * self.latency * max(min(1.0, stripes), stripes / AT_ONCE) + size / card
        own = requests_at_once(known, max(1.0, stripes)) * known.most_each
        waiting = self._share_that_reads() * waits(known, max(1.0, stripes))
        return waiting + size / min(own, known.most / self.readers, card)

    def on(self, **change: object) -> FarData:
        """The same with another backend, or another cache."""
        return replace(self, backend=replace(self.backend, **change))  # type: ignore[arg-type]

    @property
    def _bytes(self) -> int:
        return self.samples * (self.backend.sample or 0)

    @property
    def stripes(self) -> float:
        """Of the set."""
        return max(1.0, self._bytes / STRIPE)

    def _touched(self) -> float:
        """Stripes of a sample."""
        size = self.backend.sample or 0
        return fmean(-(-(n + 1) * size // STRIPE) - n * size // STRIPE for n in range(min(self.samples, LOOKED_AT)))

    def _store_stripes(self) -> float:
        """That all readers fetch in the first pass."""
        kept, everything = kept_in_memory(self.backend), self.stripes
        if self.backend.cache == "hosts":
            return everything
        if self.backend.cache == "none" and everything > kept:
            return self._touched() * self.samples * (1 - kept / everything)
        caches = self.hosts if self.backend.cache == "host" else self.readers
        missed = max(0.0, 1 - self._touched() / everything) ** (self.samples / caches)
        return everything if caches == 1 else caches * everything * (1 - missed)

    def _share_that_reads(self) -> float:
        """Of the batches of a first pass, those that lack anything: stripes that were read have other samples, too."""
        if self.backend.cache == "none":
            return 1.0
        others = self._touched() * self.samples / self.stripes - 1
        caches = self.hosts if self.backend.cache == "host" else 1
        there = (1 - max(0.0, 1 - (part + 0.5) / PARTS / caches) ** others for part in range(PARTS))
        return 1 - fmean(chance**self.batch for chance in there)

    def _peer_stripes(self) -> float:
        """That cross the network in every pass."""
        if self.backend.cache != "hosts":
            return 0.0
        near = kept_in_memory(self.backend) / self.stripes
        return self._touched() * self.samples * (self.hosts - 1) / self.hosts * max(0.0, 1 - near)


def far_data(
    cluster: Cluster, samples: int, batch: int, workers: int, preparers: int = 0, one_machine: bool = False
) -> FarData | None:
    """What is known of reading, where the cluster has a backend."""
    if cluster.backend is None:
        return None
    readers = preparers or workers
    hosts = 1 if one_machine else min(len(cluster.machines) or readers, readers)
    links = [cluster.link, *cluster.links.values()]
    return FarData(
        backend=cluster.backend, samples=samples, batch=batch, readers=readers, hosts=hosts,
        goodput=min(link.goodput for link in links), latency=max(link.latency for link in links),
    )  # fmt: skip


def later(cluster: Cluster) -> Cluster:
    """The cluster in later passes: what its cache keeps is there."""
    if cluster.backend is None or cluster.backend.cache == "none":
        return cluster
    return replace(cluster, backend=replace(cluster.backend, filled=True))
