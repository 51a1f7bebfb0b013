"""What requests cost beside the model: CPU time of the front and of replicas, and waking up processes."""

from __future__ import annotations

import statistics
from bisect import bisect
from collections.abc import Callable, Sequence

import msgspec

from covey.errors import PlanError

WAKES = 3  # of processes and threads for a request, beside its stages: front, front again, client
OF_STAGE = 3  # and for each stage: its process, its computing thread, and its process again
LEAST = 1e-9  # seconds
SHARES = (0.5, 0.9, 0.99)  # the percentiles at which virtual time is compared with real time


class LoadRatio(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as long requests really took as in virtual time, at one load.

    Args:
        busy: The load: the share of time in which the front worked, in virtual time.
        ratios: Of each percentile of SHARES.
    """

    busy: float
    ratios: tuple[float, ...]


class PathCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What requests cost beside the model.

    Args:
        request: Seconds of CPU time that the front takes for a request and its answer.
        batch: The same for a batch, beside its requests.
        replica: Seconds of CPU time that a replica takes for a batch, beside the model.
        row: The same for each request of it.
        client: Seconds of CPU time that whoever asks takes for a request.
        wakes: Seconds until a process that waits goes on, each as it was seen.
        slower: What virtual time does not know, such as processes that wait for a core: ratios at some loads.
    """

    request: float
    batch: float
    replica: float
    row: float = 0.0
    client: float = 0.0
    wakes: tuple[float, ...] = (0.0,)
    slower: tuple[LoadRatio, ...] = ()

    def stretched(self, waits: Sequence[float], busy: float) -> list[float]:
        """What requests would really take at this load, sorted; `waits` is what they take in virtual time, sorted."""
        if not self.slower:
            return list(waits)
        loads = [one.busy for one in self.slower]
        ratios = [between(busy, loads, column) for column in zip(*(one.ratios for one in self.slower), strict=True)]
        return sorted(wait * between(rank / len(waits), SHARES, ratios) for rank, wait in enumerate(waits, 1))


class ProbePhase(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen while some clients asked, each again when it was answered: numbers, and seconds of CPU time."""

    requests: int
    batches: int
    front: float
    replica: float
    client: float
    seconds: tuple[float, ...]  # from asking to the answer, of each request
    rate: float = 0.0  # answers per second


class ProbedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen while requests came at times of their own, whether or not others were answered."""

    arrivals: tuple[float, ...]  # when each was sent
    seconds: tuple[float, ...]  # from asking to the answer
    client: float  # seconds of CPU time of whoever asked, for a request


def costs_of(
    phases: Sequence[ProbePhase], model: Callable[[int], float], threads: int = 1, stages: int = 1
) -> PathCosts:  # fmt: skip
    """What explains the phases, if a model takes so many seconds for a batch of this size, on each of its threads.

    The first phase is that of one client: what a request takes there beyond its costs while others come, too, is the
    time of waking up, with all that is cold then.
    """
    if not all(one.batches for one in phases):
        raise PlanError("the endpoint that is measured has sent no batch to a replica: serve it without a cache")
    alone, *busy = phases
    batch, request = affine([(one.batches, one.requests, one.front) for one in busy])
    replica, row = affine(
        [(one.batches, one.requests, max(0.0, one.replica - threads * _models(one, model))) for one in busy]
    )
    client = alone.client / alone.requests
    known = batch + request + model(1) + replica + row + client
    wakes = tuple(max(0.0, took - known) / (WAKES + OF_STAGE * stages) for took in alone.seconds)
    return PathCosts(request=request, batch=batch, replica=replica, row=row, client=client, wakes=wakes)


def _models(phase: ProbePhase, model: Callable[[int], float]) -> float:
    """Seconds that the model took for the batches of a phase, which were about as large as each other."""
    return phase.batches * model(max(1, round(phase.requests / phase.batches)))


def affine(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """The numbers x and y, 0 or more, with which x a + y b is nearest to c, for each unit of b."""
    scaled = [(a / b, c / b) for a, b, c in rows]  # c / b = x * a / b + y
    if len({round(a, 6) for a, _ in scaled}) < 2:
        return 0.0, statistics.fmean(c for _, c in scaled)
    slope, level = statistics.linear_regression(*zip(*scaled, strict=True))
    if slope < 0:
        return 0.0, statistics.fmean(c for _, c in scaled)
    if level < 0:
        return sum(a * c for a, c in scaled) / sum(a * a for a, _ in scaled), LEAST
    return slope, level


def between(at: float, places: Sequence[float], values: Sequence[float]) -> float:
    """The value at a place between others, in a straight line; beyond them that of the nearest."""
    above = bisect(places, at)
    if above in (0, len(places)):
        return values[min(above, len(places) - 1)]
    share = (at - places[above - 1]) / (places[above] - places[above - 1])
    return values[above - 1] + share * (values[above] - values[above - 1])


def percentile(ranked: Sequence[float], share: float) -> float:
    """The number at this share of sorted ones."""
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]
