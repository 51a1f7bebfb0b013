"""Faults in virtual time: each does what it says, and what is lost or doubled is named."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch

import covey
from covey.engines.virtual import VirtualEngine
from covey.engines.virtual.run_faults import RunFaults, VirtualAttempt
from covey.errors import PeerLost, PlanError, Stalled
from covey.message import Message
from covey.model.replica import Replica
from covey.observe.referee import Referee
from covey.observe.result import Result
from covey.program import Node
from covey.simulate import Cluster, Seconds
from covey.simulate.faults import parse_faults
from covey.strategy import Plan, Role, workers
from tests.worlds import INSTANT, Point, mlp, sgd, worker

Program = Callable[[Node, Replica], Coroutine[Any, Any, None]]
UNEVEN = Cluster(compute=Seconds(0.01), jitter=0.3)


class Tick(Message):
    wire_name = "tests.tick"

    step: int


class World:
    """Hand-written programs with faults; `heard` is what worker 1 received when."""

    def __init__(
        self, faults: str, send: Program | None = None, count: int = 6, idle: int = 0, **tick: Any
    ) -> None:  # fmt: skip
        self.heard: list[tuple[float, int]] = []
        self.done: list[float] = []

        async def sends(node: Node, replica: Replica) -> None:
            for step in range(count):
                await node.sleep(1)
                await node.send(worker(1), Tick(step), **tick)
            self.done.append(await node.now())

        async def hears(node: Node, replica: Replica) -> None:
            while len(self.heard) < count:
                message = await node.receive_within(Tick, 100)
                if message is None:
                    return
                self.heard.append((round(await node.now(), 6), message.step))

        async def ends(node: Node, replica: Replica) -> None: ...

        self.faults = RunFaults(parse_faults(faults))
        programs = (send or sends, hears, *[ends] * idle)
        roles = tuple(Role(who, run, trains=True) for who, run in zip(workers(2 + idle), programs, strict=True))
        replicas = {role.address: Replica(Point(1, torch.float64), sgd()) for role in roles}
        plan = Plan(roles=roles, limits=(None,) * len(roles), lockstep=False)
        self.engine = VirtualEngine(
            plan, replicas, INSTANT, [], Referee(10**9), attempt=VirtualAttempt(faults=self.faults)
        )  # fmt: skip

    def run(self) -> World:
        self.engine.run()
        return self


def test_without_a_fault_nothing_is_looked_at() -> None:
    world = World("slow worker 1@1000s for 1s by 2x")
    assert all(not hasattr(act, "func") for act in world.engine._perform.values())
    assert world.engine._wires.faults is None
    assert world.run().faults.unmet == ["slow worker 1@1000s for 1s by 2x: the run ended before it"]


def test_a_delayed_message_holds_back_those_after_it() -> None:
    heard = World("delay worker 0 -> worker 1@2.5s by 1.5s").run().heard
    assert heard == [(1, 0), (2, 1), (4.5, 2), (4.5, 3), (5, 4), (6, 5)]


def test_a_link_is_late_from_an_effect_of_its_sender_on() -> None:
    """Before the third of them, its second sleep: the first message has left, the next is late."""
    heard = World("delay worker 0 -> worker 1#3 by 1.5s").run().heard
    assert heard == [(1, 0), (3.5, 1), (3.5, 2), (4, 3), (5, 4), (6, 5)]


def test_links_are_late_again_and_again() -> None:
    heard = World("delay worker 0 -> worker 1@0s by 0.5s; delay worker 0 -> worker 1@2.5s by 0.25s").run().heard
    assert heard == [(1.5, 0), (2, 1), (3.25, 2), (4, 3), (5, 4), (6, 5)]


@pytest.mark.parametrize("side", ["worker 0", "worker 1"])
def test_a_partition_holds_messages_until_it_is_over(side: str) -> None:
    heard = World(f"partition {side}@1.5s for 3s").run().heard
    assert heard == [(1, 0), (4.5, 1), (4.5, 2), (4.5, 3), (5, 4), (6, 5)]


@pytest.mark.parametrize("side", ["worker 0 and worker 1", "worker 2"])
def test_roles_on_the_same_side_of_a_partition_hear_each_other(side: str) -> None:
    heard = World(f"partition {side}@1.5s for 3s", idle=1).run().heard
    assert heard == [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]


def test_whoever_is_cut_off_for_long_counts_as_lost() -> None:
    with pytest.raises(PeerLost, match=r"worker 0 was not heard for 30 s, at 31\.5 s"):
        World("partition worker 0@1.5s for 40s", count=60).run()


def test_a_lost_message_is_noticed_by_the_next() -> None:
    with pytest.raises(PeerLost, match=r"^the network lost Tick of step 2 from worker 0 to worker 1, sent at 3\.0 s$"):
        World("drop worker 0 -> worker 1@2.5s").run()


def test_a_lost_last_message_is_noticed_when_nothing_moves_any_more() -> None:
    with pytest.raises(PeerLost, match="lost Tick of step 5"):
        World("drop worker 0 -> worker 1@5.5s").run()


def test_a_lossy_message_may_be_lost() -> None:
    world = World("drop worker 0 -> worker 1@2.5s", lossy=True).run()
    assert [step for _, step in world.heard] == [0, 1, 3, 4, 5]
    assert world.faults.told[0].endswith("it lost Tick of step 2 from worker 0 to worker 1, which was sent as lossy")


@pytest.mark.parametrize("lossy", [False, True])
def test_a_doubled_message_is_refused_and_named(lossy: bool) -> None:
    world = World("duplicate worker 0 -> worker 1@2.5s", lossy=lossy).run()
    assert [step for _, step in world.heard] == [0, 1, 2, 3, 4, 5]
    assert world.faults.told == ["worker 1 refused a second time Tick of step 2 from worker 0 to worker 1"]
    (link,) = world.engine._actors[worker(0)].links.values()
    assert link.under_way == 0, "the second one holds no room in the window of its link"


def test_a_message_that_is_on_its_way_when_the_run_ends_was_never_doubled() -> None:
    world = World("duplicate worker 0 -> worker 1@0s; partition worker 0@0.5s for 20s", count=0, send=sends_once).run()
    assert world.faults.unmet == ["duplicate worker 0 -> worker 1@0ms: the run ended before it"]


async def sends_once(node: Node, replica: Replica) -> None:
    await node.sleep(1)
    await node.send(worker(1), Tick(0))


def test_a_stopped_role_does_nothing_until_it_goes_on() -> None:
    world = World("stop worker 0@2.5s for 2s").run()
    assert world.heard == [(1, 0), (2, 1), (4.5, 2), (5.5, 3), (6.5, 4), (7.5, 5)]
    assert World("stop worker 1@2.5s for 2s").run().heard == [(1, 0), (2, 1), (4.5, 2), (4.5, 3), (5, 4), (6, 5)]


@pytest.mark.parametrize("fault", ["stop worker 0", "stop worker 1", "partition worker 0", "partition worker 1"])
def test_a_short_fault_inside_a_long_one_changes_nothing(fault: str) -> None:
    """Nor does it end it: they overlap, whichever is written first."""
    long, short = f"{fault}@2.5s for 2s", f"{fault}@2.7s for 200ms"
    for both in (f"{long}; {short}", f"{short}; {long}"):
        assert World(both).run().heard == World(long).run().heard


@pytest.mark.parametrize(
    ("faults", "end"),
    [
        ("stop 0@1.002s for 1s", 2.01),
        ("slow 0@0.5s for 1s by 3x", 1.03),
        ("stop 0@1.002s for 1ms; stop 0@1.006s for 2ms", 1.013),
        ("stop 0@1.002s for 4ms; stop 0@1.004s for 4ms", 1.016),  # they overlap
        ("stop 0@1.002s for 1s; stop 0@1.004s for 200ms", 2.01),
    ],
)
def test_compute_takes_longer_while_its_role_is_stopped_or_slow(faults: str, end: float) -> None:
    ends: list[float] = []

    async def computes(node: Node, replica: Replica) -> None:
        await node.sleep(1)
        await node.compute(lambda: None)
        ends.append(await node.now())

    World(faults, send=computes, count=0).run()
    assert ends == [pytest.approx(end)]


def test_a_role_is_killed_before_an_effect_of_its_own() -> None:
    world = World("kill worker 0#5")  # sleeps and sends in turn: its third sleep
    with pytest.raises(PeerLost, match=r"^worker 0 was killed at 2\.0 s; last heard at 2\.0 s$") as lost:
        world.run()
    assert lost.value.who == "worker 0" and [step for _, step in world.heard] == [0, 1]


def test_a_hang_stays_a_hang() -> None:
    async def waits(node: Node, replica: Replica) -> None:
        await node.receive(Tick)

    with pytest.raises(Stalled, match="worker 0 waits for Tick"):
        World("kill worker 1@500s", send=waits).run()


# -- whole runs -------------------------------------------------------------------------------------------------------


def fit(strategy: str, count: int = 4, **given: Any) -> Result:
    task = mlp(sgd(momentum=0.5), samples=24 * count)
    return covey.fit(task, strategy, count, engine="simulated", steps=12, cluster=UNEVEN, **given)


def kept(folder: Path, every: str = "40ms") -> dict[str, Any]:
    return {"checkpoint": folder, "every": every, "on_failure": "restart"}


def same(one: Result, other: Result) -> bool:
    return all(torch.equal(one.weights[name], other.weights[name]) for name in other.weights)


@pytest.mark.parametrize("strategy", ["bsp", "allreduce", "bsp + topk(density=0.2)"])
@pytest.mark.parametrize("faults", ["kill worker 1@110ms", "kill worker 3#60; stop worker 0#20 for 30ms"])
def test_a_run_that_restarts_ends_with_the_very_same_weights(strategy: str, faults: str, tmp_path: Path) -> None:
    calm, result = fit(strategy), fit(strategy, faults=faults, **kept(tmp_path))
    assert same(result, calm) and result.samples == calm.samples and result.seconds > 1
    assert isinstance(result.membership, list) and isinstance(result.goodput, covey.observe.membership.Goodput)
    [event] = result.membership
    assert (event.event, event.who) == ("restart", faults[5:13]) and "was killed" in event.cause
    assert result.goodput.accepted == result.samples and result.goodput.repeated > 0
    assert same(fit(strategy, resume=tmp_path), calm), "the newest checkpoint resumes"


def test_scores_that_a_lost_attempt_has_told_are_not_told_again(tmp_path: Path) -> None:
    class Heard(covey.Callback):
        def __init__(self) -> None:
            self.samples: list[Any] = []

        def scored(self, row: Any) -> None:
            self.samples.append(row["samples"])

    heard = Heard()
    result = fit("bsp", faults="kill worker 1@110ms", callbacks=[heard], scores=3, **kept(tmp_path, every="60ms"))
    assert isinstance(result.goodput, covey.observe.membership.Goodput) and result.goodput.repeated > 24, "a score's"
    assert heard.samples == [row["samples"] for row in result.history]


def test_a_notice_keeps_the_run_before_the_role_leaves(tmp_path: Path) -> None:
    result = fit("bsp", faults="notice worker 2@60ms for 10s", **kept(tmp_path, every="10s"))
    assert same(result, fit("bsp"))
    assert isinstance(result.goodput, covey.observe.membership.Goodput) and result.goodput.repeated == 0
    assert isinstance(result.membership, list) and "left at" in result.membership[0].cause


@pytest.mark.parametrize("full", ["disk full@30ms for 30ms", "disk full@30ms for 30ms; disk full@31ms for 1ms"])
def test_a_full_disk_is_named_and_tried_again(full: str, tmp_path: Path) -> None:
    result = fit("bsp", faults=f"{full}; kill worker 0@100ms", **kept(tmp_path))
    assert same(result, fit("bsp"))
    assert ["No space left on device" in line for line in result.failures] == [True]


def test_without_restart_the_loss_ends_the_run() -> None:
    with pytest.raises(PeerLost, match=r"worker 1 was killed at 0\.05 s"):
        fit("bsp", faults="kill worker 1@50ms")


def test_it_gives_up_after_failures_in_a_row_without_a_new_checkpoint(tmp_path: Path) -> None:
    faults = "; ".join(f"kill worker 1#{5 + number}" for number in range(4))
    with pytest.raises(PeerLost, match=r"(?s)worker 1 was killed.*failed 3 times in a row.*max_failures"):
        fit("bsp", faults=faults, **{**kept(tmp_path, every="10s"), "max_failures": 2})


def test_failures_with_a_new_checkpoint_between_them_are_not_in_a_row(tmp_path: Path) -> None:
    """Three kills, and of a row no more than one is survived."""
    task, faults = mlp(sgd(momentum=0.5), samples=96), "; ".join(f"kill worker 1@{at}ms" for at in (110, 1210, 2310))
    given = {**kept(tmp_path), "max_failures": 1}
    result = covey.fit(task, "bsp", 4, engine="simulated", steps=40, cluster=UNEVEN, faults=faults, **given)
    assert isinstance(result.membership, list)
    assert [event.stalled for event in result.membership] == [1.0, 1.0, 1.0], "each is the first of its row"


def test_it_survives_five_failures_in_a_row_with_longer_and_longer_pauses(tmp_path: Path) -> None:
    """Each attempt takes a second to start, besides its pause; the sixth failure ends the run."""

    def killed(times: int) -> Result:
        faults = "; ".join(f"kill worker 1#{5 + number}" for number in range(times))
        return fit("bsp", faults=faults, **kept(tmp_path / str(times), every="10s"))

    result = killed(5)
    assert isinstance(result.membership, list)
    assert [event.stalled for event in result.membership] == [1.0, 2.0, 3.0, 5.0, 5.0]
    with pytest.raises(PeerLost, match=r"(?s)worker 1 was killed.*failed 6 times in a row"):
        killed(6)


def test_faults_that_a_run_cannot_have_are_refused_before_it_starts() -> None:
    with pytest.raises(PlanError, match="no such role; this run has worker 0"):
        fit("bsp", faults="kill server 9@1s")
    with pytest.raises(PlanError, match="a seed draws its faults"):
        fit("bsp", faults="17")
    with pytest.raises(PlanError, match=r"'disk full@1s for 1s': this run writes no checkpoint.*: add checkpoint="):
        fit("bsp", faults="disk full@1s for 1s")
    with pytest.raises(PlanError, match="nothing that could be kept"):
        fit("bsp", timing_only=True, checkpoint="somewhere")
