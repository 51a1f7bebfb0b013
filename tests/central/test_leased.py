"""Workers that come and go: every server applies each batch of the run exactly once, whenever somebody leaves."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
import torch

import covey
from covey.central.server.leased_shard import LeasedShard
from covey.central.server.shard import Shard
from covey.data.leases import BatchSet, Lease, Ledger
from covey.data.shards import Shards
from covey.errors import CoveyError, PeerLost, PlanError
from covey.model import build
from covey.simulate import Cluster, Seconds
from covey.synchronization import GatherChoice
from tests.worlds import mlp, sgd

STEPS = 4
UNEVEN = Cluster(compute=Seconds(0.01), jitter=0.3)
EFFECTS = 60  # a worker has fewer
Applied = dict[str, list[list[Lease]]]


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> Applied:
    """The batches of each update of each server."""
    found: Applied = defaultdict(list)
    update = Shard.update

    async def noting(self: Any, choice: GatherChoice) -> None:
        pushes = [self.waiting[place] for place in choice.used]
        found[str(self.node.address)].append([Lease(push.seat, push.number) for push in pushes if push.samples])
        await update(self, choice)

    monkeypatch.setattr(Shard, "update", noting)
    return found


def run(strategy: str, faults: str = "", workers: int | str = "1:3", **given: Any) -> covey.Result:
    return covey.fit(
        mlp(sgd(momentum=0.9)), strategy, workers, engine="simulated", cluster=UNEVEN, faults=faults or None,
        runs=False, **{"steps": STEPS, **given},
    )  # fmt: skip


def check(applied: Applied, servers: int, seats: int = 3) -> None:
    wanted = Counter(Lease(seat, number) for seat in range(seats) for number in range(STEPS))
    assert len(applied) == servers
    for updates in applied.values():
        assert Counter(lease for update in updates for lease in update) == wanted
    applied.clear()


def weights(result: covey.Result) -> list[torch.Tensor]:
    return [result.weights[name] for name in sorted(result.weights)]


@pytest.mark.parametrize("strategy", ["bsp", "ssp(bound=1)", "asynchronous", "dssp", "dc_asgd"])
@pytest.mark.parametrize("servers", [1, 2])
def test_where_nobody_goes_a_range_is_its_largest_number(strategy: str, servers: int) -> None:
    ranged, fixed = (run(strategy, workers=workers, servers=servers) for workers in ("2:3", 3))
    assert ranged.samples == fixed.samples and ranged.workers == 3
    if strategy == "bsp":
        assert all(map(torch.equal, weights(ranged), weights(fixed)))


HALF = "delay worker 1 -> server 1@{n}ms by 20ms; leave worker 1@{m}ms"  # only the first server has its last gradient
CASES = [
    ("bsp", 2, "leave worker 1#{n}"),
    ("bsp", 2, "leave worker 1#{n}; join worker 1@25ms"),
    ("bsp", 1, "leave worker 0#{n}"),
    ("ssp(bound=1)", 2, "leave worker 1#{n}; join worker 2@21ms"),
    ("asynchronous", 2, "leave worker 1#{n}; leave worker 2@33ms; join worker 1@30ms"),
    ("asynchronous", 1, "kill worker 1#{n}; leave worker 1@31ms"),
    ("asynchronous", 2, HALF),
    ("bsp", 2, HALF),
]


@pytest.mark.parametrize(("strategy", "servers", "faults"), CASES)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, 4))])
def test_at_whatever_effect_a_worker_leaves_each_batch_counts_once(
    applied: Applied, strategy: str, servers: int, faults: str, part: int
) -> None:
    for number in range(part + 1, EFFECTS, 4):
        result = run(strategy, faults.format(n=number, m=number + 12), servers=servers)
        check(applied, servers)
        assert result.samples == 3 * STEPS * 8, faults.format(n=number, m=number + 12)


def test_a_worker_that_dies_again_and_again_leaves_and_the_others_go_on(applied: Applied) -> None:
    result = run("bsp", "kill worker 1#9; kill worker 1#10; kill worker 1#11", max_failures=2)
    check(applied, 1)
    assert isinstance(result.membership, list)
    assert [event.event for event in result.membership] == ["rebirth", "rebirth", "leave"]
    assert result.membership[-1].workers == 2 and "3 times without a new step" in result.membership[-1].cause


def test_bsp_is_a_replay_of_what_it_accepted(applied: Applied) -> None:
    """Each update is one step on the mean gradient of its samples, whoever computed them."""
    task = mlp(sgd(momentum=0.9))
    result = run("bsp", "leave worker 1@15ms; join worker 1@45ms; leave worker 0@60ms", workers="1:3")
    rounds = applied["server 0"]
    assert {len(update) for update in rounds} >= {2, 3}, "global batches of several sizes"
    assert isinstance(task.data, tuple)
    deal, module = Shards(len(task.data[0]), 3, 8), build.model(task, 0)
    optimizer = task.optimizer(iter(list(module.named_parameters())))
    for update in rounds:
        picked = torch.cat([deal.indices(*lease) for lease in update])
        optimizer.zero_grad()
        task.forward(module, tuple(column[picked] for column in task.data)).backward()
        optimizer.step()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(result.weights[name], parameter.detach(), rtol=1e-9, atol=1e-12)


def test_a_run_with_too_few_workers_ends_by_name() -> None:
    with pytest.raises(PeerLost, match=r"worker 1 left at .*, and 1 worker is left where at least 2 are to train"):
        run("bsp", "leave worker 1@15ms", workers="2:2")


def test_who_was_there_when_is_told() -> None:
    result = run("bsp", "join worker 2@15ms; leave worker 0@35ms")
    assert isinstance(result.membership, list)
    told = [(event.event, event.who, event.workers) for event in result.membership]
    assert told == [("join", "worker 2", 3), ("leave", "worker 0", 2)]


# -- planted mistakes --------------------------------------------------------------------------------------------------


def plant_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker had is forgotten with it."""
    monkeypatch.setattr(Ledger, "leave", lambda self, worker, known: self.empty.add(worker))


def plant_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server applies what it has had."""
    monkeypatch.setattr(BatchSet, "add", lambda self, lease: True)


def plant_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first server takes its own knowledge for that of all."""
    honest, made = Ledger.leave, LeasedShard.__init__
    monkeypatch.setattr(Ledger, "leave", lambda self, worker, known: honest(self, worker, SEEN[-1].__contains__))

    def noting(self: Any, *args: Any, **given: Any) -> None:
        made(self, *args, **given)
        if self.first:
            SEEN.append(self.had)

    monkeypatch.setattr(LeasedShard, "__init__", noting)


SEEN: list[BatchSet] = []


@pytest.mark.parametrize(
    ("plant", "faults"), [(plant_lost, "leave worker 1#{n}"), (plant_doubled, HALF), (plant_known, HALF)]
)
def test_planted_mistakes_are_found(
    applied: Applied, monkeypatch: pytest.MonkeyPatch, plant: Any, faults: str
) -> None:
    plant(monkeypatch)
    broken = 0
    for number in range(1, EFFECTS, 6):
        try:
            run("asynchronous", faults.format(n=number, m=number + 12), servers=2)
            check(applied, 2)
        except (AssertionError, CoveyError):
            broken += 1
            applied.clear()
    assert broken


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "given", "said"),
    [
        ("0:4", {}, 'workers="0:4": at least 1 is needed; write 1:4'),
        ("4:2", {}, "the smaller number comes first: write 2:4"),
        ("2:", {}, "write a number, such as 4, or a range, such as 2:8"),
        ("a:b", {}, "write a number, such as 4, or a range, such as 2:8"),
        (":4", {}, "write a number"),
        (True, {}, "workers must be a whole number or a string"),
        (2.5, {}, "workers must be a whole number or a string"),
        ("2:3", {"strategy": "gosgd"}, "the workers of gosgd cannot come and go; use bsp, ssp, .*or use a number, as"),
        ("2:3", {"strategy": "asynchronous(epoch=0.5)"}, "omit epoch"),
        ("2:3", {"checkpoint": "kept"}, "is not kept: omit checkpoint=… and resume=…; or use a number"),
        ("2:3", {"on_failure": "restart", "checkpoint": "kept"}, "or use a number, as workers=3"),
        ("2:3", {"engine": "ray"}, "continue.* is for the engines local and simulated, not for ray"),
        (3, {"faults": "leave worker 1@5s"}, 'number of workers of this run is fixed: use a range, as workers="1:3"'),
        ("2:3", {"faults": "leave server 0@5s"}, "only workers come and go"),
        ("2:3", {"faults": "join worker 1#5"}, "who is not there has no effects: give a time"),
        ("3:3", {"faults": "join worker 1@5s"}, "would begin with 2 workers, and at least 3"),
    ],
)
def test_what_cannot_be_is_refused(workers: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        covey.fit(mlp(), **{"strategy": "bsp", "workers": workers, "engine": "simulated", "runs": False, **given})
