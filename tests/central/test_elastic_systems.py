"""What tells elastic systems of the literature apart, as far as ranges of workers and traces are like them.

Proteus (AgileML, stage 1): servers are on machines that stay, workers on those that vanish. FlexPS: stages with another
number of workers go on from the servers' parameters. Scale-Train: a newcomer holds nobody up. Data leases: a batch
counts once, and what an earlier incarnation of its worker sends does not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import covey
from covey.central.server.leased_shard import LeasedShard
from covey.data.leases import Lease
from covey.engines.virtual.computing import Computing
from covey.simulate import Cluster, Seconds
from covey.synchronization import GatherChoice
from tests.worlds import mlp, sgd

STEPS, SEATS = 10, 4
WORLD = Cluster(compute=Seconds(0.01))


@dataclass
class Seen:
    """What the first server did, and which batches were begun."""

    batches: Counter[Lease] = field(default_factory=Counter)  # that made updates
    at: list[float] = field(default_factory=list)  # of updates
    versions: list[int] = field(default_factory=list)
    moved: list[bool] = field(default_factory=list)  # whether a change of the workers changed a parameter
    begun: int = 0


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    found = Seen()
    update, departed, admit, begin = LeasedShard.update, LeasedShard.departed, LeasedShard.admit, Computing._begin

    async def updating(self: Any, choice: GatherChoice) -> None:
        pushes = [self.waiting[place] for place in choice.used]
        found.batches.update(Lease(push.seat, push.number) for push in pushes if push.samples)
        found.at.append(await self.node.now())
        await update(self, choice)
        found.versions.append(self.board.version)

    def changing(act: Any) -> Any:
        async def changed(self: Any, what: Any) -> None:
            before = self.params.clone()
            await act(self, what)
            pairs = zip(before.parts, self.params.parts, strict=True)
            found.moved.append(not all(torch.equal(one, other) for one, other in pairs))

        return changed

    def beginning(self: Any, thread: Any, effect: Any) -> None:
        found.begun += thread.actor.role.trains
        begin(self, thread, effect)

    monkeypatch.setattr(LeasedShard, "update", updating)
    monkeypatch.setattr(LeasedShard, "departed", changing(departed))
    monkeypatch.setattr(LeasedShard, "admit", changing(admit))
    monkeypatch.setattr(Computing, "_begin", beginning)
    return found


def run(strategy: str = "bsp", **given: Any) -> covey.Result:
    usual: dict[str, Any] = {"cluster": WORLD, "steps": STEPS, "engine": "simulated", "runs": False}
    return covey.fit(mlp(sgd(momentum=0.9)), strategy, f"1:{SEATS}", **{**usual, **given})


def once(seen: Seen) -> None:
    assert seen.batches == Counter(Lease(seat, number) for seat in range(SEATS) for number in range(STEPS))


@pytest.mark.parametrize("strategy", ["bsp", "ssp(bound=2)"])
def test_proteus_loses_all_transient_machines_and_rolls_nothing_back(seen: Seen, tmp_path: Path, strategy: str) -> None:
    trace = tmp_path / "all_gone.csv"
    trace.write_text("time,worker,event\n" + "".join(f"55ms,{rank},depart\n" for rank in range(1, SEATS)))
    result = run(strategy, spot_trace=trace)
    assert [event.event for event in result.membership or []] == ["leave"] * (SEATS - 1), "and nothing starts again"
    once(seen)
    assert seen.versions == sorted(seen.versions), "the servers never go back"
    assert seen.begun <= STEPS * SEATS + SEATS - 1, "only what the lost machines had begun is done again"


def test_flexps_changes_the_workers_between_stages_and_reloads_no_parameter(seen: Seen) -> None:
    result = run(faults="leave worker 1@30ms; leave worker 2@30ms; join worker 1@70ms; join worker 2@70ms")
    assert [event.workers for event in result.membership or []] == [3, 2, 3, 4]
    assert len(seen.moved) == 4 and not any(seen.moved)
    once(seen)


def test_scale_train_a_newcomer_holds_the_others_up_for_less_than_a_step(seen: Seen) -> None:
    run(faults="leave worker 1@25ms; join worker 1@63ms")
    gaps = [after - before for before, after in pairwise(seen.at)]
    usual = sorted(gaps)[len(gaps) // 2]
    assert max(gaps) - usual <= 1.01 * usual, gaps


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("strategy", ["bsp", "asynchronous"])
def test_leases_every_batch_counts_once_under_random_losses(seen: Seen, strategy: str, seed: int) -> None:
    chance, plan = Random(seed), list[str]()
    for rank in range(1, SEATS):
        times = sorted(chance.uniform(1, 120) for _ in range(3))
        lost = chance.choice(["leave", "kill"])
        plan += [f"{lost} worker {rank}@{times[0]:.3f}ms", f"leave worker {rank}@{times[1]:.3f}ms"]
        plan += [f"join worker {rank}@{times[2]:.3f}ms"] if lost == "kill" else []
    run(strategy, faults="; ".join(plan))
    once(seen)


def test_leases_what_an_earlier_incarnation_sends_late_does_not_count(seen: Seen) -> None:
    late = "delay worker 1 -> server 0@31ms by 40ms; leave worker 1@45ms; join worker 1@50ms"
    result = run("asynchronous", faults=late)
    assert [event.event for event in result.membership or []] == ["leave", "join"]
    once(seen)
    assert seen.begun > STEPS * SEATS, "the batch whose gradient was late is done again"
