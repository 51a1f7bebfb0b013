"""Ways to search for a choice of configurations: each starts somewhere and gets better until its budget is used up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from covey.errors import PlanError
from covey.parallelism.search.cost_table import cost_table
from covey.parallelism.search.costs import OperatorCosts
from covey.parallelism.search.elimination import eliminate
from covey.parallelism.search.list_placement import placed
from covey.parallelism.search.operators import OperatorConfig
from covey.parallelism.search.simulation import TOO_LARGE, Simulation

Choice = list[OperatorConfig]
Choices = Sequence[Sequence[OperatorConfig]]
"""The configurations that each group of operators may have."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long a search may take: a number of proposals, or seconds, whichever ends first."""

    proposals: int = 2000
    seconds: float = math.inf
    seed: int = 0
    clock: Callable[[], float] = time.monotonic
    heard: Callable[[float], None] = field(default=lambda cost: None)  # is told each cost that it comes to

    def ticks(self) -> Sequence[int]:
        return range(self.proposals)

    def over(self, since: float) -> bool:
        return self.clock() - since > self.seconds


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a method found."""

    choice: Choice
    cost: float  # seconds of a step
    tried: int


def dp(costs: OperatorCosts, choices: Choices, budget: Budget) -> SearchResult:
    """The least sum of all costs, by elimination; where that does not fit in memory, climb from there."""
    begun = budget.clock()

    def check() -> None:
        if budget.over(begun):
            raise PlanError(f"dp takes more than its {budget.seconds:.3g} s: give --seconds more, or use --method mcmc")

    _, picked = eliminate(cost_table(costs, choices, check), check)
    choice = _spread(costs, choices, picked)
    found = Simulation(costs, choice)
    if found.excess:
        return _climbed(found, choices, budget)
    return SearchResult(choice, found.cost, 1)


def mcmc(costs: OperatorCosts, choices: Choices, budget: Budget, greedy: bool = False) -> SearchResult:
    """Random changes of one group at a time, kept by chance even if worse (FlexFlow, Jia et al. 2018).

    A change is accepted with min(1, exp(beta (now - new))), against the current state, not the best one. The first half
    of the budget starts at data parallelism, the second one at random; each ends when half of it brought nothing new.
    """
    best = SearchResult([], math.inf, 0)
    rng, budget = Random(budget.seed), replace(budget, seconds=budget.seconds / 2)
    for start in (_first(costs, choices), [rng.randrange(len(some)) for some in choices]):
        now = Simulation(costs, _spread(costs, choices, start))
        found = _walk(now, choices, budget, rng, greedy)
        better = min(found, best, key=lambda one: one.cost)
        best = SearchResult(better.choice, better.cost, best.tried + found.tried)
    return best


def _walk(now: Simulation, choices: Choices, budget: Budget, rng: Random, greedy: bool) -> SearchResult:
    groups, cost, begun = now.graph.groups, now.cost, budget.clock()
    best, choice, since = cost, list(now.choice), 0
    half = max(1, budget.proposals // 2)
    unit = min(cost, TOO_LARGE) or 20.0
    budget.heard(cost)
    tried = 0
    while tried < half and since < max(1, half // 2) and not budget.over(begun):
        tried, since = tried + 1, since + 1
        group = rng.randrange(len(groups))
        new = now.change(groups[group], rng.choice(choices[group]))
        # A change for the worse by 5 % of the first plan that fits is kept in a third of all cases.
        if new <= cost or (not greedy and rng.random() < math.exp(20 / unit * (cost - new))):
            cost = new
            if unit == TOO_LARGE and cost < TOO_LARGE:
                unit = cost or 20.0
            budget.heard(cost)
        else:
            now.undo()
        if cost < best:
            best, choice, since = cost, list(now.choice), 0
    return SearchResult(choice, best, tried)


def hill(costs: OperatorCosts, choices: Choices, budget: Budget) -> SearchResult:
    """From a placement by critical paths, or data parallelism if that is better, one improvement after the other."""
    starts = [Simulation(costs, _spread(costs, choices, _first(costs, choices)))]
    if (listed := placed(costs, choices)) is not None:
        starts.append(Simulation(costs, listed))
    return _climbed(min(starts, key=lambda start: start.cost), choices, budget)


def _climbed(now: Simulation, choices: Choices, budget: Budget) -> SearchResult:
    """Try every change of one group, keep what is better, and end when nothing is."""
    groups, cost, tried, begun = now.graph.groups, now.cost, 0, budget.clock()
    budget.heard(cost)
    better = True
    while better and tried < budget.proposals:
        better = False
        for group, some in zip(groups, choices, strict=True):
            for config in some:
                if tried >= budget.proposals or budget.over(begun):
                    return SearchResult(list(now.choice), cost, tried)
                tried += 1
                if now.change(group, config) < cost:
                    cost, better = now.cost, True
                    budget.heard(cost)
                else:
                    now.undo()
    return SearchResult(list(now.choice), cost, tried)


PENALTY = 10.0
"""What a plan that does not fit costs, in steps of data parallelism: a fixed number, as in Mirhoseini et al. 2017."""


def policy(costs: OperatorCosts, choices: Choices, budget: Budget, rate: float = 2.0) -> SearchResult:
    """REINFORCE: each group draws from its own softmax; what is better than usual becomes more likely.

    Mirhoseini et al. 2017: the reward is -sqrt(seconds), its baseline a moving average.
    """
    rng, begun = Random(budget.seed), budget.clock()
    logits = [[0.0] * len(some) for some in choices]
    first = Simulation(costs, _spread(costs, choices, _first(costs, choices)))
    best = SearchResult(list(first.choice), first.cost, 0)
    unit = first.step or 1.0
    baseline: float | None = None
    for tried in budget.ticks():
        if budget.over(begun):
            break
        chances = [_softmax(row) for row in logits]
        picked = [rng.choices(range(len(row)), row)[0] for row in chances]
        cost = Simulation(costs, choice := _spread(costs, choices, picked)).cost
        reward = -math.sqrt(min(cost / unit, PENALTY))
        advantage = reward - (reward if baseline is None else baseline)
        baseline = reward if baseline is None else 0.9 * baseline + 0.1 * reward
        for row, chance, taken in zip(logits, chances, picked, strict=True):
            for place in range(len(row)):
                row[place] += rate * advantage * ((place == taken) - chance[place])
        better = (choice, cost) if cost < best.cost else (best.choice, best.cost)
        best = SearchResult(*better, tried + 1)
        budget.heard(cost)
    return best


def _softmax(row: Sequence[float]) -> list[float]:
    top = max(row)
    raised = [math.exp(value - top) for value in row]
    return [value / sum(raised) for value in raised]


def _first(costs: OperatorCosts, choices: Choices) -> list[int]:
    """Data parallelism, as far as the choices allow: the most samples apart, and nothing divided."""
    return [
        max(range(len(some)), key=lambda place: (some[place].samples, some[place].way == "whole", -some[place].first))
        for some in choices
    ]


def _spread(costs: OperatorCosts, choices: Choices, picked: Sequence[int]) -> Choice:
    """The choice of each group, given to all its operators."""
    found = [OperatorConfig()] * len(costs.graph)
    for group, some, place in zip(costs.graph.groups, choices, picked, strict=True):
        for number in group:
            found[number] = some[place]
    return found


METHODS: Mapping[str, Callable[[OperatorCosts, Choices, Budget], SearchResult]] = {
    "dp": dp, "mcmc": mcmc, "hill": hill, "policy": policy,
}  # fmt: skip
