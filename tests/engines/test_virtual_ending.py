"""How a virtual run is scored, and how it ends: well, or with a picture of what went wrong."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import covey
from covey.errors import PeerLost, PlanError, Stalled
from covey.message import Address
from covey.model.replica import Replica
from covey.model.scored import Snapshot
from covey.observe.referee import Referee
from covey.program import Node, Receive
from covey.simulate import Cluster, Seconds
from covey.strategy import workers
from covey.target import Target
from tests.conftest import Golden
from tests.engines.stage import LINK, ME, YOU, Ping, Pong, Program, Word, idle, run
from tests.worlds import quadratic


async def trains(node: Node, replica: Replica) -> None:
    for _ in node.steps():
        await node.compute(lambda: None)
        await node.note("samples", 10)
        await node.note("loss", 2.0)


def improved() -> Callable[[Sequence[Snapshot]], Mapping[str, float]]:
    """A score that is better from the second time on: the first one is of the initial weights."""
    values = iter([0.0])
    return lambda parts: {"accuracy": next(values, 1.0)}


def test_the_clock_stands_still_while_the_model_is_scored() -> None:
    def score(parts: Sequence[Snapshot]) -> Mapping[str, float]:
        assert [part.params.numel for part in parts] == [3, 3]
        return {"accuracy": 0.5}

    referee = Referee(every=20)
    outcome = run(trains, trains, referee=referee, score=score, limit=3)
    rows = [(round(row["seconds"] or 0, 6), row["samples"], row["loss"]) for row in referee.history]
    assert rows[0][:2] == (0.0, 0), "the initial weights"
    assert rows[1:] == [(0.02, 20, 2.0), (0.04, 40, 2.0), (0.06, 60, 2.0)]
    assert outcome.seconds == pytest.approx(0.06)
    assert (outcome.samples, outcome.stopped) == (60, "budget")
    assert len(outcome.snapshots) == 2


def test_the_target_ends_each_worker_after_its_step() -> None:
    referee = Referee(every=50, target=Target("accuracy", 0.9))
    outcome = run(trains, trains, referee=referee, score=improved(), limit=None)
    assert outcome.stopped == "target"
    assert referee.reached is not None
    assert (referee.reached.samples, round(referee.reached.seconds, 6)) == (60, 0.06)
    assert outcome.samples == 80  # each had begun its fourth step


def test_in_lockstep_all_stop_at_the_step_of_the_foremost() -> None:
    done = {ME: 0, YOU: 0}

    async def steps(node: Node, replica: Replica) -> None:
        for _ in node.steps():
            await node.compute(lambda: None)
            await node.note("samples", 10)
            done[node.address] += 1

    def stopped(lockstep: bool) -> tuple[int, int]:
        done.update({ME: 0, YOU: 0})
        referee = Referee(every=40, target=Target("accuracy", 0.9))
        cluster = Cluster(compute=Seconds(0.02), slowdowns={1: 3.0})
        run(
            steps, steps, cluster=cluster, referee=referee, score=improved(),
            limit=None, lockstep=lockstep,
        )  # fmt: skip
        return done[ME], done[YOU]

    # At 0.06 s worker 0 has done three steps and worker 1 its first.
    assert stopped(lockstep=True) == (4, 4)
    assert stopped(lockstep=False) == (4, 2)


def test_ctrl_c_stops_the_run_and_the_second_one_raises() -> None:
    def interrupting(times: int) -> Program:
        async def steps(node: Node, replica: Replica) -> None:
            for step in node.steps():
                for _ in range(times if step == 2 else 0):
                    signal.raise_signal(signal.SIGINT)
                await node.compute(lambda: None)

        return steps

    before = signal.getsignal(signal.SIGINT)
    outcome = run(interrupting(1), limit=None)
    assert outcome.stopped == "interrupted"
    assert outcome.seconds == pytest.approx(0.06)
    with pytest.raises(KeyboardInterrupt):
        run(interrupting(2), limit=None)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stall_is_a_picture(golden: Golden) -> None:
    async def waits(node: Node, replica: Replica) -> None:
        onward = workers(3)[(node.rank + 1) % 2]
        await node.send(onward, Pong(0))
        await node.receive(Pong, sender=onward)
        await node.receive(Ping, sender=onward, step=3)

    async def third(node: Node, replica: Replica) -> None:
        await node.spawn(companion(node))
        await Receive((Word, Pong))

    async def companion(node: Node) -> None:
        await node.receive(Word, sender=Address("worker", 3))

    with pytest.raises(Stalled) as stalled:
        run(waits, waits, third, idle)
    golden("stalled.txt", f"{stalled.value}\n")


def test_a_killed_role_ends_the_run() -> None:
    async def tells(node: Node, replica: Replica) -> None:
        for _ in node.steps():
            await node.sleep(1.99)
            await node.send(ME, Pong(0))

    async def listens(node: Node, replica: Replica) -> None:
        while True:
            await node.receive(Pong)

    killed = Cluster(link=LINK, kills={"worker 1": Seconds(5.0)})
    with pytest.raises(PeerLost, match=r"^worker 1 was killed at 5\.0 s; last heard at 3\.981 s$"):
        run(listens, tells, cluster=killed, limit=None)
    assert run(idle, idle, cluster=killed).stopped == "budget"  # it had ended before
    with pytest.raises(Stalled):
        run(idle, listens, cluster=killed)
    with pytest.raises(PlanError, match="no such role; this run has worker 0"):
        run(idle, cluster=Cluster(kills={"server 0": Seconds(1.0)}))


@pytest.mark.parametrize("where", ["program", "work", "companion"])
def test_an_error_of_a_role_is_the_users_own(where: str) -> None:
    async def fails(node: Node, replica: Replica) -> None:
        if where == "program":
            raise ZeroDivisionError
        if where == "companion":
            await node.spawn(fail(node))
        await fail(node)

    async def fail(node: Node) -> None:
        await node.sleep(0.25)
        await node.compute(lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError) as failed:
        run(idle, fails)
    assert [note.split(",")[0] for note in failed.value.__notes__] == ["(in worker 1"]


def test_work_that_runs_dry_does_not_end_its_role_quietly() -> None:
    async def runs_dry(node: Node, replica: Replica) -> None:
        await node.compute(lambda: next(iter(())))

    with pytest.raises(StopIteration):
        run(runs_dry)


def test_a_foreign_awaitable_is_refused() -> None:
    class Foreign:
        def __await__(self) -> Any:
            yield self

    async def foreign(node: Node, replica: Replica) -> None:
        await Foreign()

    with pytest.raises(TypeError, match="awaited a Foreign"):
        run(foreign)


def test_the_model_that_reached_the_target_is_the_runs() -> None:
    """Each worker ends the step that it is in, and its gradient moves the server's weights on."""
    seen = list[torch.Tensor]()

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        seen.append(model.get_parameter("w").detach().clone())
        return {"accuracy": float(len(seen) >= 3)}

    task = replace(quadratic(), evaluate=evaluate)
    result = covey.fit(task, "asynchronous", 3, engine="simulated", until="accuracy>=0.9")
    assert len(seen) == 3 and torch.equal(result.weights["w"], seen[-1])
