"""The scaler: as many replicas as the objective needs (Gujarati et al. 2017, Swayam).

It forecasts the load for the time at which a replica that is started now would be ready, starts what is missing then,
and lets replicas go only when nothing has needed them for a while.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from covey.errors import PlanError
from covey.inference.messages import FRONT, POOL, LoadQuestion, LoadReport, RetireReplica, StartReplica
from covey.inference.scaling.load_forecast import LoadForecast
from covey.program import Node

GIVEN_UP = 60.0  # seconds after which a replica that was started is not waited for
REMEMBERED = 5  # starts, of which the slowest counts


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalerSettings:
    """Between which numbers of replicas to choose, and for what.

    Args:
        least: There are always so many.
        most: There are never more.
        share: Of the requests that should be answered in time.
        slack: Seconds that a request may wait for a replica.
        versions: Of the model; each has a scaler, and ranks of replicas say whose they are.
        period: Seconds between two looks at the load.
        window: Seconds of arrivals that are looked back.
    """

    least: int
    most: int
    share: float
    slack: float
    versions: int = 1
    period: float = 0.25
    window: float = 3.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise PlanError(f"--replicas {self.least}:{self.most}: write the least and the most, such as 1:8")
        assert 0 < self.share < 1 and self.slack > 0


async def scaler(node: Node, settings: ScalerSettings) -> None:
    """Start and retire replicas as the load asks for."""
    plan = ScalingPlan(settings, node.rank)
    while (report := await node.ask(FRONT, LoadQuestion(), LoadReport)).wanted:
        starts, retired = plan.decide(report, await node.now())
        for rank in starts:
            await node.send(POOL, StartReplica(rank))
        for rank in retired:
            await node.send(FRONT, RetireReplica(rank))
        await node.sleep(settings.period)


def replicas_for(rate: float, capacity: float, share: float, slack: float) -> int:
    """How many replicas answer so many requests per second in time, if each can answer `capacity`.

    All replicas together can answer `busy` per second. In heavy traffic of Poisson's kind a request waits longer than
    `slack` with a probability of about exp(-2 (busy - rate) busy slack / rate); from this, and the share that may be
    late, follows `busy`.
    """
    if rate <= 0 or capacity <= 0:
        return 0
    unlikely = math.log(1 / (1 - share))
    busy = (rate + math.sqrt(rate**2 + 2 * rate * unlikely / slack)) / 2
    return math.ceil(busy / capacity)


class ScalingPlan:
    """What the scaler knows."""

    def __init__(self, settings: ScalerSettings, version: int = 0) -> None:
        self.settings = settings
        self.forecast = LoadForecast(settings.window)
        self.coming: dict[int, float] = {}  # when each was asked for that is not ready yet
        self.setups: deque[float] = deque(maxlen=REMEMBERED)  # seconds from asking for a replica until it was ready
        self.needs: deque[tuple[float, int]] = deque()  # when how many were needed, lately
        self.next_rank = version

    @property
    def setup(self) -> float:
        """Seconds that a replica takes to be ready."""
        return max(self.setups, default=1.0)

    @property
    def linger(self) -> float:
        """Seconds that a replica without work is kept: to start it again would cost as much as to keep it so long."""
        return max(self.setup, 4 * self.settings.period)

    def decide(self, report: LoadReport, now: float) -> tuple[list[int], list[int]]:
        """The ranks to start, and those to retire."""
        self._learn(report, now)
        need = self._need(report)
        self.needs.append((now, need))
        while self.needs[0][0] < now - self.linger:
            self.needs.popleft()
        there, keep = len(report.ready) + len(self.coming), max(need for _, need in self.needs)
        starts = [self.next_rank + number * self.settings.versions for number in range(need - there)]
        self.next_rank += len(starts) * self.settings.versions
        self.coming |= dict.fromkeys(starts, now)
        return starts, sorted(report.ready)[::-1][: max(0, there - keep)]

    def _learn(self, report: LoadReport, now: float) -> None:
        self.forecast.learn(now, report.arrived)
        for rank in self.coming.keys() & set(report.ready):
            self.setups.append(now - self.coming.pop(rank))
        self.coming = {rank: since for rank, since in self.coming.items() if now - since < GIVEN_UP + self.setup}

    def _need(self, report: LoadReport) -> int:
        settings = self.settings
        ahead = self.setup + settings.period
        rate = self.forecast.rate(ahead)
        # What waits for longer than it may is to be gone by the time that a new replica is there.
        late = max(0.0, report.waiting - report.capacity * len(report.ready) * settings.slack)
        need = replicas_for(rate + late / ahead, report.capacity, settings.share, settings.slack)
        return min(settings.most, max(settings.least, need))
