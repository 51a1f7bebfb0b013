"""What the front knows: who waits, which replica does what, and what was promised."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from covey.errors import PlanError
from covey.inference.answer_cache import AnswerCache
from covey.inference.batch_size import AdaptiveBatchSize
from covey.inference.batch_times import BatchTimes
from covey.inference.messages import (
    AnsweredBatch,
    InferenceAnswer,
    InferenceRequest,
    LoadReport,
    ReplicaLost,
    ReplicaReady,
    RequestBatch,
    RetireReplica,
)
from covey.message import Address, Message
from covey.vector import Vector

OK, FAILED, FULL, LATE = 200, 500, 429, 504
NOTHING: Final = Vector([])
LEARNING = 0.1  # the weight of the newest batch in a mean
MOST_LOSSES = 2  # replicas that may be lost with a request before it is suspected


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontSettings:
    """What a front promises.

    Args:
        objective: Seconds within which requests should be answered.
        deadline: Seconds after which a request is answered with 504.
        queue: Requests that may wait for a replica; others are answered with 429.
        cache: Answers that are kept.
        largest: The most requests of a batch.
        in_flight: Batches that a replica may have at a time, one for each of its stages.
    """

    objective: float
    deadline: float = 10.0
    queue: int = 1024
    cache: int = 0
    largest: int = 256
    in_flight: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.objective <= self.deadline:
            raise PlanError(
                f"the objective of {self.objective:g} s and the deadline of {self.deadline:g} s: a deadline is at "
                "least as long as the objective, and both are positive"
            )
        if self.queue < 1 or self.largest < 1 or self.cache < 0:
            raise PlanError("queue and largest batch are at least 1, and cache at least 0")

    @property
    def budget(self) -> float:
        """Seconds for one batch: a request that has just missed one waits for it, and is then in the next."""
        return self.objective / 2


@dataclass(slots=True)
class OpenRequest:
    """A request without an answer."""

    ticket: int
    key: str
    row: Tensor
    arrived: float
    deadline: float
    losses: int = 0  # replicas that were lost with it
    alone: bool = False  # it goes into no batch with others

    @property
    def suspect(self) -> bool:
        """Whether a replica may be lost with it."""
        return self.losses > 0


@dataclass(slots=True)
class BatchUnderway:
    """What a replica is computing."""

    number: int
    requests: list[OpenRequest]
    since: float


class RequestDesk:
    """What the front knows of one version: who waits, and which replica does what."""

    def __init__(self, settings: FrontSettings, version: int = 0) -> None:
        self.settings, self.version = settings, version
        self.closed = False  # no more requests come
        self.cache = AnswerCache(settings.cache)
        self.open: OrderedDict[int, OpenRequest] = OrderedDict()  # in the order of their deadlines
        self.waiting: OrderedDict[int, OpenRequest] = OrderedDict()
        self.late: OrderedDict[int, OpenRequest] = OrderedDict()  # those that wait and cannot be in time any more
        self.underway: dict[Address, list[BatchUnderway]] = {}
        self.sizes: dict[Address, AdaptiveBatchSize] = {}  # also of those that are gone: they may come again
        self.retiring: set[Address] = set()
        self.arrived = self.batches_sent = 0
        self.times: BatchTimes | None = None  # as the newest replica has measured them
        self.took = 0.0  # seconds of a batch, on average
        self.delay = 0.0  # seconds that batches take longer than that, on average

    def patience(self, now: float) -> float | None:
        """Seconds until the next deadline, of a request or of a replica's batch."""
        due = [one.since + self.settings.deadline for batches in self.underway.values() for one in batches[:1]]
        if first := next(iter(self.open.values()), None):
            due.append(first.deadline)
        return max(0.0, min(due) - now) if due else None

    def take(self, message: Message | None, now: float) -> list[InferenceAnswer]:
        """What can be answered because of this message."""
        match message:
            case InferenceRequest():
                return self._asked(message, now)
            case AnsweredBatch():
                return self._answered(message, now)
            case ReplicaReady():
                self._joined(message)
            case ReplicaLost():
                return self._lost(message.sender)
            case RetireReplica():
                self.retiring.add(Address("replica", message.rank))
        return []

    def expired(self, now: float) -> Iterator[InferenceAnswer]:
        """An answer for each request whose deadline is over."""
        while self.open and (first := next(iter(self.open.values()))).deadline <= now:
            self.waiting.pop(first.ticket, None)
            self.late.pop(first.ticket, None)
            yield self._refuse(first, LATE, f"no answer within {self.settings.deadline:g} s")

    def stuck(self, now: float) -> list[Address]:
        """Replicas that have not answered a batch within the deadline, which is over for all of its requests."""
        underway, longest = self.underway.items(), self.settings.deadline
        found = [replica for replica, batches in underway if batches and batches[0].since + longest <= now]
        for replica in found:
            del self.underway[replica]
        return found

    def retired(self) -> list[Address]:
        """Replicas that are not needed and have nothing to do any more; nobody hears of them again."""
        if self.closed and not self.open:
            self.retiring.update(self.underway)
        found = [who for who in self.retiring if who in self.underway and not self.underway[who]]
        for who in found:
            self.retiring.discard(who)
            del self.underway[who], self.sizes[who]
        return found

    def load(self) -> LoadReport:
        """What the scaler wants to know."""
        ready = tuple(who.rank for who in self.underway if who not in self.retiring)
        budget, largest = self.settings.budget, self.settings.largest
        capacity = self.times.rate(budget, largest, self.delay) if self.times else 0.0
        return LoadReport(self.arrived, len(self.waiting) + len(self.late), ready, capacity, not self.closed)

    def batches(self, now: float) -> Iterator[tuple[Address, RequestBatch]]:
        """A batch for each replica that has room for one, as long as requests wait."""
        self._yield_to_others(now)
        for others in range(self.settings.in_flight):  # first for those that have none
            for replica, underway in self.underway.items():
                if not self.waiting and not self.late:
                    return
                if len(underway) == others and replica not in self.retiring and self._may_follow(underway):
                    chosen = self._next(self.sizes[replica].now)
                    self.batches_sent += 1
                    underway.append(BatchUnderway(self.batches_sent, chosen, now))
                    yield replica, RequestBatch(self.batches_sent, Vector([torch.stack([one.row for one in chosen])]))

    def _may_follow(self, underway: list[BatchUnderway]) -> bool:
        """Whether the next batch may be with these: one with which a replica may be lost has it to itself."""
        first = next(iter((self.waiting or self.late).values()))
        return not underway or not (first.suspect or underway[-1].requests[0].suspect)

    def _yield_to_others(self, now: float) -> None:
        """Requests that can no longer be in time wait behind those that can (Swayam prunes them): few late, not all."""
        latest = now + self.took - self.settings.objective
        while self.waiting and (first := next(iter(self.waiting.values()))).arrived < latest:
            self.late[first.ticket] = self.waiting.pop(first.ticket)

    def _next(self, most: int) -> list[OpenRequest]:
        """The requests that wait longest, late ones last; one with which a replica was lost goes alone."""
        chosen: list[OpenRequest] = []
        while (queue := self.waiting or self.late) and len(chosen) < most:
            first = next(iter(queue.values()))
            alone = first.suspect or first.alone
            if alone and chosen:
                break
            chosen.append(queue.popitem(last=False)[1])
            if alone:
                break
        return chosen

    def _joined(self, message: ReplicaReady) -> None:
        first = 1
        if message.sizes:
            self.times = BatchTimes(message.sizes, message.seconds)
            first = self.times.largest_within(self.settings.budget, self.settings.largest)
        size = AdaptiveBatchSize(self.settings.budget, self.settings.largest, first)
        self.sizes.setdefault(message.sender, size)
        self.underway[message.sender] = []

    def _asked(self, message: InferenceRequest, now: float) -> list[InferenceAnswer]:
        self.arrived += 1
        if (known := self.cache.find(message.key)) is not None:
            return [InferenceAnswer(message.ticket, OK, Vector([known]), version=self.version)]
        if len(self.waiting) + len(self.late) >= self.settings.queue:
            reason = f"{self.settings.queue} requests wait already"
            return [InferenceAnswer(message.ticket, FULL, NOTHING, reason, self.version)]
        asked = OpenRequest(message.ticket, message.key, message.row.parts[0], now, now + self.settings.deadline)
        self.open[asked.ticket] = self.waiting[asked.ticket] = asked
        return []

    def _answered(self, message: AnsweredBatch, now: float) -> list[InferenceAnswer]:
        underway = self.underway.get(message.sender, [])
        batch = next((one for one in underway if one.number == message.number), None)
        if batch is None:
            return []
        underway.remove(batch)
        if message.apart:
            for request in batch.requests:
                request.alone = True
            self._again(batch)
            return []
        took, requests = now - batch.since, len(batch.requests)
        self.sizes[message.sender].learn(requests, took)
        self.took += LEARNING * (took - self.took)
        if self.times:
            self.delay += LEARNING * (max(0.0, took - self.times(requests)) - self.delay)
        rows = iter(message.rows.parts[0].unbind() if message.rows.parts else ())
        answers = []
        for request, reason in zip(batch.requests, message.reasons or [""] * len(batch.requests), strict=True):
            row = next(rows) if not reason else None
            if request.ticket not in self.open:  # its deadline is over
                continue
            if row is None:
                answers.append(self._refuse(request, FAILED, reason))
            else:
                del self.open[request.ticket]
                self.cache.keep(request.key, row)
                answers.append(InferenceAnswer(request.ticket, OK, Vector([row]), version=self.version))
        return answers

    def _lost(self, replica: Address) -> list[InferenceAnswer]:
        """Let others compute what a lost replica had; only what was lost twice, the second time alone, is given up."""
        answers = []
        for batch in reversed(self.underway.pop(replica, [])):
            for request in batch.requests:
                request.losses += 1
                if request.losses >= MOST_LOSSES and request.ticket in self.open:
                    reason = f"{MOST_LOSSES} replicas ended while they computed it"
                    answers.append(self._refuse(request, FAILED, reason))
            self._again(batch)
        return answers

    def _again(self, batch: BatchUnderway) -> None:
        """Let its requests wait again, before all others; not those that were answered meanwhile."""
        for request in reversed(batch.requests):
            if request.ticket in self.open:
                self.waiting[request.ticket] = request
                self.waiting.move_to_end(request.ticket, last=False)

    def _refuse(self, request: OpenRequest, status: int, reason: str) -> InferenceAnswer:
        del self.open[request.ticket]
        return InferenceAnswer(request.ticket, status, NOTHING, reason, self.version)
