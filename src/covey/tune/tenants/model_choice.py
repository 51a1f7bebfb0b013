"""Which task's model is trained next, where several share the slots? What is known of all, told to ease.ml."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np

from covey.policy.easeml import EaseMl, Tenant, easeml
from covey.policy.search import WORST
from covey.tune.space import Point, Space
from covey.tune.tenants.candidates import likeness

LARGEST = 1e100  # score that is compared with others: squares are summed


class TenantTrials:
    """The candidates of one task, and what became of those that were begun."""

    def __init__(self, space: Space, points: Sequence[Point]) -> None:
        self.points = list(points)
        self.likeness = likeness(space, self.points)
        self.running: set[int] = set()
        self.scores: dict[int, float] = {}  # more is better; of a trial that failed the worst
        self.seconds: dict[int, float] = {}
        self.open = True  # whether it still wants a better model

    @property
    def best(self) -> float:
        return max(self.scores.values(), default=WORST)

    @property
    def qualities(self) -> dict[int, float]:
        """Scores as numbers: who failed, or diverged, is as bad as the worst of the others."""
        sound = [score for score in self.scores.values() if abs(score) < LARGEST]
        low, high = min(sound, default=0.0), max(sound, default=0.0)
        return {one: min(high, max(low, score)) for one, score in self.scores.items()}

    def costs(self, usual: float) -> list[float]:
        """Seconds of each candidate over the usual ones: a mean of those that were trained, by how alike they are."""
        if not self.seconds or usual <= 0:
            return [1.0] * len(self.points)
        known = sorted(self.seconds)
        weights = self.likeness[:, known] + 1e-9
        logarithms = np.log([max(self.seconds[one] / usual, 1e-6) for one in known])
        return [float(cost) for cost in np.exp(weights @ logarithms / weights.sum(1))]


class ModelChoice:
    """Chooses by ease.ml, from the scores and times of all tasks so far."""

    def __init__(self, tenants: Sequence[TenantTrials], settings: EaseMl) -> None:
        self.tenants, self.settings = list(tenants), settings
        self.decisions, self.stalled = 0, 0

    def next(self) -> tuple[int, int] | None:
        """The task, and its candidate; None where nothing is left to train."""
        wanting = [number for number, one in enumerate(self.tenants) if one.open]
        spread = self._spread()
        times = [seconds for one in self.tenants for seconds in one.seconds.values()]
        usual = fmean(times) if times else 0.0
        views = [self._view(self.tenants[number], spread, usual) for number in wanting]
        found = easeml(views, self.decisions, self.stalled, self.settings)
        if found is None:
            return None
        self.decisions += 1
        number = wanting[found.tenant]
        self.tenants[number].running.add(found.model)
        return number, found.model

    def ended(self, tenant: int, model: int, score: float, seconds: float) -> None:
        """Note the score of a candidate, the worst if it failed, and its seconds."""
        one = self.tenants[tenant]
        self.stalled = 0 if score > one.best else self.stalled + 1
        one.running.discard(model)
        one.scores[model] = score
        if seconds > 0:
            one.seconds[model] = seconds

    def _view(self, one: TenantTrials, spread: float, usual: float) -> Tenant:
        trained = {model: quality / spread for model, quality in one.qualities.items()}
        return Tenant(costs=one.costs(usual), likeness=one.likeness, trained=trained, running=frozenset(one.running))

    def _spread(self) -> float:
        """How far the scores of one task are apart: the unit in which gaps are compared."""
        squares = []
        for one in self.tenants:
            values = list(one.qualities.values())
            squares += [(value - fmean(values)) ** 2 for value in values] if len(values) > 1 else []
        return math.sqrt(fmean(squares)) or 1.0 if squares else 1.0
