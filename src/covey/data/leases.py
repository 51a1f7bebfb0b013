"""Who does which batch, where workers come and go? Every batch of a run is done once, by whoever holds its lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple


class Lease(NamedTuple):
    """One batch: of whose share of the data, and its number there, counted from 0 across epochs."""

    seat: int
    number: int


@dataclass(slots=True)
class BatchSet:
    """Batches of all seats; those of one seat come mostly in order, so that few are remembered one by one."""

    before: list[int]  # all of each seat's batches with smaller numbers are in it
    others: set[Lease] = field(default_factory=set)

    @staticmethod
    def empty(seats: int) -> BatchSet:
        return BatchSet([0] * seats)

    def __contains__(self, lease: Lease) -> bool:
        return lease.number < self.before[lease.seat] or lease in self.others

    def add(self, lease: Lease) -> bool:
        """Whether it was not in it."""
        if lease in self:
            return False
        self.others.add(lease)
        while (following := Lease(lease.seat, self.before[lease.seat])) in self.others:
            self.others.remove(following)
            self.before[lease.seat] += 1
        return True


@dataclass(slots=True)
class LeaseRecord:
    """Who has which batch: what a checkpoint keeps of a ledger."""

    next: list[int]  # the first batch of each seat that nobody was given
    done: list[int]  # samples that each worker was given and did not give back
    held: list[dict[int, Lease]]  # by the worker's step
    returned: set[Lease] = field(default_factory=set)
    empty: set[int] = field(default_factory=set)

    @staticmethod
    def begin(seats: int) -> LeaseRecord:
        return LeaseRecord([0] * seats, [0] * seats, [{} for _ in range(seats)])


class Ledger:
    """The batches of a run, and who has which. A worker does those of its own seat, and in turn those of empty seats.

    A lease is held until it is settled: until all that its worker made of it is where it does not go with the worker.
    Of one that is gone, others get what it held.

    Args:
        limits: The number of batches of each seat in the run.
        steps: The same in an epoch.
        size: The number of samples of a seat's batch.
        record: What was given so far, if something was; it is written on in place.
    """

    def __init__(
        self, limits: Sequence[int], steps: Sequence[int], size: Callable[[int, int], int],
        record: LeaseRecord | None = None,
    ) -> None:  # fmt: skip
        self.limits, self.steps, self.size = limits, steps, lru_cache(maxsize=64)(size)
        self.record = record = record or LeaseRecord.begin(len(limits))
        self.next, self.done, self.held = record.next, record.done, record.held
        self.returned, self.empty = record.returned, record.empty
        self.closed = False  # the run ends early: nothing more is given

    @property
    def open(self) -> bool:
        """Whether there is a batch that any worker may have."""
        return not self.closed and any(True for _ in self._spare())

    @property
    def left(self) -> bool:
        """Whether there is a batch that was not given to anybody, or was given back."""
        some = any(following < limit for following, limit in zip(self.next, self.limits, strict=True))
        return not self.closed and (bool(self.returned) or some)

    def take(self, worker: int, step: int) -> Lease | None:
        """The batch of a worker's step; the same when it asks again. None: there is none now."""
        held = self.held[worker]
        if (lease := held.get(step)) is None and (lease := self._due(worker)) is not None:
            self._give(worker, lease)
            held[step] = lease
        return lease

    def before(self, worker: int, step: int) -> int:
        """The samples that a worker has done before this step."""
        later = (lease for number, lease in self.held[worker].items() if number >= step)
        return self.done[worker] - sum(self.size(*lease) for lease in later)

    def settle(self, worker: int, before: int | None = None) -> None:
        """What this worker was given, before this step if one is named, does not go with it."""
        for old in [step for step in self.held[worker] if before is None or step < before]:
            del self.held[worker][old]

    def leave(self, worker: int, known: Callable[[Lease], bool]) -> None:
        """A worker is gone, and its seat is empty."""
        self.release(worker, known)
        self.empty.add(worker)

    def release(self, worker: int, known: Callable[[Lease], bool]) -> None:
        """A worker is gone: others get what it had, but for what is known to be done."""
        for lease in self.held[worker].values():
            if not known(lease):
                self.put_back(worker, lease)
        self.settle(worker)

    def give_back(self, worker: int, first: int) -> None:
        """Others get what this worker was given for steps from this one on."""
        for step in [step for step in self.held[worker] if step >= first]:
            self.put_back(worker, self.held[worker].pop(step))

    def end_round(self, end: int) -> None:
        """What all workers were given, for steps before this one, does not go with any of them; the rest goes back."""
        for worker, held in enumerate(self.held):
            if held and max(held) >= end:
                self.give_back(worker, end)
            held.clear()

    def put_back(self, worker: int, lease: Lease) -> None:
        """Others get this batch, which was given to this worker."""
        self.returned.add(lease)
        self.done[worker] -= self.size(*lease)

    def join(self, worker: int) -> None:
        """A seat is taken again: what is left of its batches is its worker's."""
        self.empty.discard(worker)

    def state(self) -> dict[str, Any]:
        """All that has changed since the beginning, for another one that goes on from here."""
        held = [{step: tuple(lease) for step, lease in leases.items()} for leases in self.held]
        gone = {"returned": [tuple(lease) for lease in sorted(self.returned)], "empty": sorted(self.empty)}
        return {"next": list(self.next), "done": list(self.done), "held": held, **gone}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.next, self.done = list(state["next"]), list(state["done"])
        self.held = [{step: Lease(*lease) for step, lease in leases.items()} for leases in state["held"]]
        self.returned, self.empty = {Lease(*lease) for lease in state["returned"]}, set(state["empty"])

    def _give(self, worker: int, lease: Lease) -> None:
        if lease in self.returned:
            self.returned.remove(lease)
        else:
            self.next[lease.seat] += 1
        self.done[worker] += self.size(*lease)

    def _due(self, worker: int) -> Lease | None:
        """The batch that a worker is given next, if there is one."""
        if self.closed:
            return None
        if self.returned or self.empty:
            return min(self._offered(worker), key=self._turn(worker), default=None)
        own = self.next[worker]  # of all others, who are there, it gets nothing
        return Lease(worker, own) if own < self.limits[worker] else None

    def _offered(self, worker: int) -> Iterator[Lease]:
        if worker not in self.empty and self.next[worker] < self.limits[worker]:
            yield Lease(worker, self.next[worker])
        yield from self._spare()

    def _spare(self) -> Iterator[Lease]:
        yield from self.returned
        for seat in self.empty:
            if self.next[seat] < self.limits[seat]:
                yield Lease(seat, self.next[seat])

    def _turn(self, worker: int) -> Callable[[Lease], tuple[int, int, bool, int]]:
        """An epoch is done before the next one, and all seats advance alike; of equals one's own comes first."""

        def turn(lease: Lease) -> tuple[int, int, bool, int]:
            return *divmod(lease.number, self.steps[lease.seat]), lease.seat != worker, lease.seat

        return turn
