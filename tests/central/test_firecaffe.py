"""FireCaffe: one server at the root of a binomial tree."""

from __future__ import annotations

import pytest
import torch

from covey.exchange.collectives.sums import Chunk
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from tests.worlds import mlp, quadratic, run, server, sgd


@pytest.mark.parametrize(("workers", "transfers"), [(1, 2), (3, 4), (7, 6)])
def test_a_step_takes_2_log2_transfers_one_after_the_other(workers: int, transfers: int) -> None:
    """7 workers and the server are 8 ranks: 3 transfers up and 3 down, not 14 (Langer et al. 2020, 3.4.1)."""
    task = quadratic(size=125)  # 1000 bytes: a second each
    slow = Cluster(compute=Seconds(0.0), link=Link(bandwidth=BytesPerSecond(1000), latency=Seconds(0.0)))
    world = run(task, "firecaffe", workers, steps=1, cluster=slow)
    assert world.outcome.seconds == pytest.approx(transfers)
    assert len(world.log.kinds(Chunk)) == 2 * workers


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_it_is_bsp_by_another_way(workers: int) -> None:
    task = mlp(sgd(0.1, momentum=0.9))
    ours, theirs = run(task, "firecaffe", workers, epochs=3), run(task, "bsp", workers, epochs=3)
    assert all(torch.allclose(ours.scored[name], theirs.scored[name], atol=1e-12) for name in theirs.scored)


def test_a_schedule_goes_by_the_samples_of_all_workers() -> None:
    world = run(quadratic(samples=96), "firecaffe", 3, steps=8)
    assert world.replicas[server(0)].progress.seen == world.outcome.samples == 96
