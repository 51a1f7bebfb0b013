"""`pattern=auto`: measured once, decided by the first, kept, told in the result, and the fastest of all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import covey
from covey.central.replicated.allreduce import worker as allreduce_worker
from covey.checkpoint import RoleState
from covey.engines.remembered import Remembered
from covey.exchange.collectives.costs import DELAYS
from covey.exchange.collectives.probe import LinkProbe, PatternChoice, PatternRequest
from covey.exchange.collectives.sums import Chunk
from covey.message import Address
from covey.model.batches import Batch
from covey.model.replica import Replica
from covey.program import Node
from covey.simulate import BytesPerSecond, Cluster, Seconds
from covey.simulate import Link as Wire
from tests.worlds import CLUSTER, mlp, perform, run


def far(latency: float, bandwidth: float = 1e6) -> Cluster:
    return replace(CLUSTER, link=Wire(bandwidth=BytesPerSecond(bandwidth), latency=Seconds(latency)))


@pytest.mark.parametrize(
    ("workers", "cluster"), [(5, far(0.02)), (5, far(1e-5, 2e4)), (2, far(0.001))], ids=["far", "narrow", "two"]
)
def test_no_pattern_would_have_been_faster(workers: int, cluster: Cluster) -> None:
    chosen = [key for key in told(workers, cluster) if key.startswith("pattern ")]
    assert len(chosen) == 1
    times = {
        name: run(mlp(), f"allreduce(pattern={name})", workers, steps=2, cluster=cluster).outcome.seconds
        for name in DELAYS
    }
    assert times[chosen[0].removeprefix("pattern ")] == pytest.approx(min(times.values()), rel=0.01)


def told(workers: int, cluster: Cluster) -> dict[str, float | None]:
    result = covey.fit(mlp(), "allreduce(pattern=auto)", workers, engine="simulated", steps=3, cluster=cluster)
    assert result.notes["link latency"] == pytest.approx(float(cluster.link.latency), rel=0.5)
    assert result.notes["link bandwidth"] == pytest.approx(float(cluster.link.bandwidth), rel=0.01)
    return result.notes


def test_all_take_the_same_one_from_the_second_step_on_and_measuring_is_no_traffic() -> None:
    """A far link with 5 workers: a butterfly of one round, after a ring."""
    world = run(mlp(), "allreduce(pattern=auto)", 5, steps=3, cluster=far(0.02))
    size = world.workers()[0].grad.nbytes
    assert sum(sent.size for sent in world.log.kinds(Chunk)) == 2 * 4 * size + 2 * 5 * 4 * size
    assert world.log.kinds(LinkProbe) and all(sent.size == 0 for sent in world.log.kinds(LinkProbe))
    assert sum(tally.messages.get("worker 1", 0) for tally in world.outcome.tallies.values()) == 2 * 4 + 2 * 4


def test_the_same_seed_gives_the_same_run() -> None:
    spec = "allreduce(pattern=auto, bucket=auto)"
    first, second = (run(mlp(), spec, 3, steps=4, cluster=far(0.001)).trace for _ in range(2))
    assert first == second


def test_the_choice_outlives_a_restart(tmp_path: Path) -> None:
    who, choice = Address("worker", 0), PatternChoice(pattern="halving", bucket=640, latency=0.25, byte=1e-9)
    kept = RoleState.of(done=1, seconds=0.0, memories={"choice": choice}, replica={}, rng=Random(0), mailbox=[])
    kept.write(tmp_path, who)
    assert RoleState.read(tmp_path, who).recall("choice", PatternChoice()) == choice


def test_who_remembers_a_choice_measures_nothing() -> None:
    log = perform(*[_resumed] * 2, steps=2)
    assert not log.kinds(LinkProbe)
    assert log.values("pattern star") == [1], "the result of the second half says it, too"
    assert {(sent.sender.rank, sent.message.step) for sent in log.kinds(Chunk)} == {(1, 0), (0, 1)}  # type: ignore[attr-defined]


async def _resumed(node: Node, replica: Replica) -> None:
    """As after a restart with this in the checkpoint."""
    memories = {"choice": PatternChoice(pattern="star")}
    kept = RoleState.of(done=0, seconds=0.0, memories=memories, replica={}, rng=Random(0), mailbox=[])
    node.host.memories = Remembered(node.address, kept)  # type: ignore[attr-defined]
    replica.batch_source = replace(replica.batch_source, own=lambda step: Batch(1.0, 1))
    await allreduce_worker(node, replica, wish=PatternRequest(pattern="auto", bucket=0), local=2)
