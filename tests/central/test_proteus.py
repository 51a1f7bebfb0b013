"""Proteus: transient machines serve parameters, with backups on reliable ones; the stage follows from their ratio."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey.central.tiered.tier_controller import TierController
from covey.central.tiered.tier_messages import PushesHeld
from covey.central.tiered.tier_stages import TierRule
from covey.data.leases import Lease
from covey.data.shards import Shards
from covey.errors import PlanError, RoleFailed
from covey.message import Address
from covey.model import build
from covey.simulate import Cluster, Seconds
from tests.worlds import mlp, sgd

STEPS, SEATS = 10, 5
SAMPLES = SEATS * 4 * 8  # batches are whole
WORLD = Cluster(compute=Seconds(0.01))


@dataclass
class View:
    """One view: its stage, the step it begins with, and what was applied in it."""

    stage: int
    owners: tuple[Address, ...]
    clock: int
    updates: list[list[Lease]] = field(default_factory=list)


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> list[View]:
    """What the controller decided; updates that were lost with their owner are gone from it."""
    found: list[View] = []
    begin, hold = TierController.begin_round, TierController.hold

    async def beginning(self: Any) -> None:
        if self.view == len(found):
            found.append(View(self.tiers.stage, self.tiers.owners, self.clock))
        await begin(self)

    async def holding(self: Any, word: PushesHeld) -> None:
        view, clock, round_ = self.view, self.clock, self.rounds.get(self.clock)
        await hold(self, word)
        if self.view == view and self.clock == clock + 1:
            found[view].updates.append([round_[rank] for rank in sorted(round_)])

    monkeypatch.setattr(TierController, "begin_round", beginning)
    monkeypatch.setattr(TierController, "hold", holding)
    return found


def accepted(views: list[View]) -> list[list[Lease]]:
    """The updates that count: of each view those before the clock with which the next one begins."""
    found: list[list[Lease]] = []
    for view in views:
        del found[view.clock :]
        found += view.updates
    return found


def run(strategy: str = "proteus", workers: int | str = f"1:{SEATS}", **given: Any) -> covey.Result:
    usual: dict[str, Any] = {"cluster": WORLD, "steps": STEPS, "engine": "simulated", "runs": False}
    task = given.pop("task", None) or mlp(sgd(momentum=0.9), SAMPLES)
    return covey.fit(task, strategy, workers, **{**usual, **given})


def once(views: list[View]) -> None:
    counted = Counter(lease for update in accepted(views) for lease in update)
    assert counted == Counter(Lease(seat, number) for seat in range(SEATS) for number in range(STEPS))


def replay(views: list[View], task: covey.Task | None = None) -> torch.Tensor:
    """The parameters after the updates that count, each on the mean gradient of its batches, with momentum."""
    task, seen = task or mlp(samples=SAMPLES), 0
    assert isinstance(task.data, tuple)
    deal, module = Shards(len(task.data[0]), SEATS, 8), build.model(task, 0)
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    moving = torch.zeros_like(flat)
    for update in filter(None, accepted(views)):  # a step of which all gradients were lost changes nothing
        torch.nn.utils.vector_to_parameters(flat.clone(), module.parameters())
        picked = torch.cat([deal.indices(*lease) for lease in update])
        loss = task.forward(module, tuple(column[picked] for column in task.data))
        grads = torch.autograd.grad(loss, list(module.parameters()))
        moving = 0.9 * moving + torch.cat([grad.flatten() for grad in grads])
        flat = flat - 0.1 * (task.rate(seen / (SEATS * STEPS * 8)) if task.rate else 1.0) * moving
        seen += len(picked)
    return flat


def check(result: covey.Result, views: list[View]) -> None:
    """Each batch counts once, and the weights are those of a replay of what counts."""
    once(views)
    assert result.samples == SEATS * STEPS * 8
    close(result, replay(views))


def close(result: covey.Result, wanted: torch.Tensor) -> None:
    names = [name for name, _ in build.model(mlp(), 0).named_parameters()]
    weights = torch.cat([result.weights[name].flatten() for name in names])
    torch.testing.assert_close(weights, wanted, rtol=1e-9, atol=1e-12)


def vanish(tmp_path: Path, lines: str) -> Path:
    trace = tmp_path / "trace.csv"
    trace.write_text("time,worker,event,notice\n" + lines)
    return trace


def test_the_stage_is_a_function_of_the_ratio_of_transient_to_reliable_machines() -> None:
    rule = TierRule(2, 40)
    assert [rule.stage(transient) for transient in (0, 2, 3, 30, 31)] == [1, 1, 2, 2, 3]
    everybody = range(34)
    first, second, third = (rule.arrange(everybody[:n]) for n in (4, 5, 34))
    assert {who.role for who in first.owners} == {"server"} and first.team == (0, 1, 2, 3)
    assert {*second.owners} == {Address("worker", 2), Address("worker", 3)}, "half of the transient machines serve"
    assert second.team == (0, 1, 2, 3, 4)
    assert len({*third.owners}) == 16 and third.team == tuple(range(2, 34)), "reliable machines do not train"
    kept = rule.arrange([0, 1, 3, 4, 5], second.owners)
    assert {*kept.owners} == {Address("worker", 3), Address("worker", 4)}, "who serves goes on with it"


@pytest.mark.parametrize("period", [2, 5])
def test_when_all_transient_machines_vanish_the_run_goes_back_to_the_last_backup_only(
    views: list[View], tmp_path: Path, period: int
) -> None:
    trace = vanish(tmp_path, "".join(f"75ms,{rank},depart,\n" for rank in range(1, SEATS)))
    result = run(f"proteus(backup={period})", spot_trace=trace)
    before, after = views[0], views[-1]
    assert (before.stage, after.stage) == (2, 1)
    reached = len(before.updates)
    assert reached > period and after.clock == reached // period * period, "the last backup, and nothing before it"
    check(result, views)
    assert result.goodput is not None
    lost = sum(len(update) for update in before.updates[after.clock :])
    assert 8 * lost <= result.goodput.repeated <= 8 * (lost + SEATS), "and the step that was under way"


def test_a_notice_hands_over_what_a_machine_serves_and_nothing_is_lost(views: list[View], tmp_path: Path) -> None:
    trace = vanish(tmp_path, "75ms,1,depart,30ms\n75ms,2,depart,30ms\n")
    result = run("proteus(backup=100)", spot_trace=trace)
    assert {who.rank for who in views[0].owners} == {1, 2} and {who.rank for who in views[-1].owners} == {3}
    assert all(before.clock + len(before.updates) == after.clock for before, after in pairwise(views))
    check(result, views)
    assert result.goodput is not None and result.goodput.repeated == 0
    assert [event.cause for event in result.membership or []] == ["left after a notice"] * 2


def test_batches_weigh_by_their_samples(views: list[View]) -> None:
    task = mlp(sgd(momentum=0.9), SAMPLES - 13)  # the last batch of a pass is short, of some more than of others
    close(run(task=task), replay(views, task))


def test_a_schedule_goes_on_where_it_was_when_others_serve(views: list[View], tmp_path: Path) -> None:
    task = mlp(sgd(momentum=0.9), SAMPLES, rate=lambda progress: 1.0 - 0.9 * progress)
    trace = vanish(tmp_path, "75ms,1,depart,30ms\n75ms,2,depart,30ms\n")
    result = run("proteus(backup=100)", spot_trace=trace, task=task)
    assert len({view.owners for view in views}) > 1
    close(result, replay(views, task))


def test_running_statistics_come_with_the_backups() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()

    task = mlp(sgd(), SAMPLES, model=normed)
    moved, still = run(task=task), run("bsp", SEATS, task=task)
    assert moved.notes["stage 2"] == 1
    for name in ("1.running_mean", "1.running_var"):
        torch.testing.assert_close(moved.weights[name], still.weights[name], rtol=1e-9, atol=1e-12)


def test_in_the_third_stage_reliable_machines_do_not_train(views: list[View]) -> None:
    result = run("proteus(stage3=3)")
    assert [view.stage for view in views] == [3]
    assert result.roles["worker 0"].compute == 0
    check(result, views)


def test_transient_machines_carry_the_traffic_of_the_second_stage() -> None:
    def through(strategy: str) -> int:
        links = run(strategy).traffic.by_link
        return sum(size for link, size in links.items() if "server 0" in link)

    assert through("proteus(backup=5)") < through("proteus(stage2=9)") / 3


def test_machines_that_arrive_lead_to_the_second_stage(views: list[View], tmp_path: Path) -> None:
    trace = vanish(tmp_path, "35ms,2,arrive,\n35ms,3,arrive,\n55ms,4,arrive,\n")
    result = run(spot_trace=trace)
    stages = [view.stage for view in views]
    assert stages[-1] == 2 and 1 in stages
    check(result, views)
    assert result.notes["stage 2"] >= 1


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 6))])
def test_each_batch_counts_once_whoever_comes_and_goes(views: list[View], seed: int, servers: int) -> None:
    chance, plan = Random(seed), list[str]()
    for rank in range(SEATS):
        times = sorted(chance.uniform(1, 160) for _ in range(3))
        lost = chance.choice(["leave", "kill", "notice"]) if rank else "kill"
        if lost == "kill":
            plan += [f"kill worker {rank}@{time:.3f}ms for {chance.uniform(2, 40):.3f}ms" for time in times[::2]]
        else:
            plan += [f"{lost} worker {rank}@{times[0]:.3f}ms" + (" for 15ms" if lost == "notice" else "")]
            plan += [f"join worker {rank}@{times[2] + 20:.3f}ms"]
    uneven = Cluster(compute=Seconds(0.01), jitter=0.3)
    result = run("proteus(backup=3)", faults="; ".join(plan), servers=servers, cluster=uneven)
    check(result, views)


def test_a_gradient_that_only_some_owners_have_is_not_used(views: list[View]) -> None:
    """Worker 4 is lost with its push to worker 1 on the way, and others have theirs; the batch is done again."""
    for at in (25, 36, 47):
        views.clear()
        faults = f"delay worker 4 -> worker 1@{at}ms by 8ms; leave worker 4@{at + 9}ms"
        check(run("proteus(backup=3)", faults=faults), views)


def test_with_a_fixed_number_of_workers_it_is_bsp() -> None:
    one, other = (run(strategy, workers=SEATS) for strategy in ("proteus", "bsp"))
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)


@pytest.mark.parametrize(
    ("strategy", "given", "told"),
    [
        ("proteus(backup=0)", {}, "every 1 or more steps"),
        ("proteus(stage2=3, stage3=1)", {}, "that of stage 3 at least"),
        ("proteus", {"servers": 9}, "on the machine of a worker"),
        ("proteus", {"checkpoint": "kept"}, "parameters of their own"),
        ("proteus + topk", {}, "as it is"),
    ],
)
def test_what_it_refuses(strategy: str, given: dict[str, Any], told: str, tmp_path: Path) -> None:
    if "checkpoint" in given:
        given = {"checkpoint": tmp_path / "kept", "every": "1s"}
    with pytest.raises(PlanError, match=told):
        run(strategy, **given)


def test_owners_that_step_on_what_each_has_are_found(views: list[View], monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted mistake: the controller does not wait until all owners have said whose gradients they hold."""
    hold = TierController.hold

    async def hasty(self: Any, word: PushesHeld) -> None:
        self.held = {owner: {*word.ranks} for owner in self.tiers.owners}
        await hold(self, word)

    monkeypatch.setattr(TierController, "hold", hasty)
    late = "; ".join(f"delay worker 4 -> worker 1@{10 * at}ms by 3ms" for at in range(1, 9))
    with pytest.raises((AssertionError, RoleFailed)):
        check(run("proteus(backup=3)", faults=late, cluster=Cluster(compute=Seconds(0.01), jitter=0.5)), views)
