"""Searches within limits: of time, of memory, and on devices whose work goes on after a call."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from random import Random

import pytest
import torch

from covey.errors import PlanError
from covey.parallelism.search import Budget, OperatorCosts, Simulation, cost_table
from covey.parallelism.search import costs as costs_module
from covey.parallelism.search.methods import METHODS, mcmc
from covey.parallelism.search.operator_times import OperatorTimes
from covey.parallelism.search.simulation import TOO_LARGE
from tests.parallelism.test_search_methods import choices_of, priced


def test_dp_ends_when_its_time_is_over() -> None:
    costs = priced(Random(1), 6, devices=4)
    ticks = count()
    with pytest.raises(PlanError, match="dp takes more than its 5 s: give --seconds more"):
        METHODS["dp"](costs, choices_of(costs), Budget(seconds=5, clock=lambda: float(next(ticks))))
    assert next(ticks) < 10


def test_both_walks_have_their_share_of_the_time() -> None:
    """Half of the budget's time each: the second one begins at random, and is not over at once."""
    costs, heard = priced(Random(2), 6, devices=2), list[float]()
    ticks = count()
    found = mcmc(costs, choices_of(costs), Budget(seconds=40, clock=lambda: float(next(ticks)), heard=heard.append))
    assert found.tried == pytest.approx(40, abs=2)


def test_a_walk_from_a_plan_that_does_not_fit_gets_choosy_when_one_fits() -> None:
    """Else it would accept almost every change that fits, of whatever cost."""
    costs = priced(Random(5), 6, devices=4)
    choices = choices_of(costs)
    rng = Random(0)
    needs = sorted(max(costs.memory([rng.choice(some) for some in choices])) for _ in range(200))
    tight = OperatorCosts(costs.graph, replace(costs.devices, memory=needs[100]))
    assert Simulation(tight, costs.graph.data_parallel(4)).excess, "it begins with what does not fit"
    heard: list[float] = []
    mcmc(tight, choices, Budget(proposals=1200, heard=heard.append))
    fits = [cost for cost in heard if cost < TOO_LARGE]
    assert len(fits) > 20 and sum(cost < 1.5 * min(fits) for cost in fits) > len(fits) / 2


def test_what_moves_is_worked_out_once_for_each_pair_of_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many edges have it: an output of twice the bytes moves twice as many."""
    asked: list[object] = []
    find = costs_module._sources
    monkeypatch.setattr(costs_module, "_sources", lambda *given: asked.append(given) or find(*given))
    costs = priced(Random(3), 12, devices=4, skips=0.9)
    cost_table(costs, choices_of(costs))
    configs = {config for some in choices_of(costs) for config in some}
    assert len(asked) <= 4 * 4 * len(configs) ** 2 < 16 * len(costs.graph.edges) * len(configs) ** 2


def test_other_devices_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append("waited"))
    x = torch.ones(4, device="meta", requires_grad=True)
    OperatorTimes(1).of("double", lambda x: 2 * x, (x,), {}, [])
    assert len(waited) == 2 * 3, "before, between and after, in two passes"
    OperatorTimes(1).of("double", lambda x: 2 * x, (torch.ones(4, requires_grad=True),), {}, [])
    assert len(waited) == 6
