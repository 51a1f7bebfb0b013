"""Bounded delay: a step starts while the `delay` steps before it are unfinished, and never while one more is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import catalog
from covey.central.server.delayed import RangeTask, TaskDone
from covey.errors import PlanError
from covey.simulate import Link, Seconds
from tests.worlds import INSTANT, World, adam, middle, mlp, paced, quadratic, run, server, sgd, slowed, worker

FAR = replace(INSTANT, link=Link(bandwidth=INSTANT.link.bandwidth, latency=Seconds(0.0125)))
"""A batch takes 10 ms, there and back 25."""


def starts(world: World, rank: int = 0) -> list[float]:
    return [round(begin, 6) for begin, _, who in world.log.computes if who == worker(rank)]


def finished(world: World, rank: int = 0) -> list[float]:
    """When each task has come back to a worker from every server."""
    done = [event for event in world.log.deliveries if isinstance(event.message, TaskDone) and event.to == worker(rank)]
    steps = {event.message.step for event in done}  # type: ignore[attr-defined]
    return [max(event.at for event in done if event.message.step == step) for step in sorted(steps)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("delay", "begins"),
    [
        (0, [0, 0.035, 0.07, 0.105]), (1, [0, 0.01, 0.035, 0.045]), (2, [0, 0.01, 0.02, 0.035]),
        (3, [0, 0.01, 0.02, 0.03]),
    ],
)  # fmt: skip
def test_a_task_starts_while_so_many_before_it_travel_and_not_while_one_more_does(
    delay: int, begins: list[float]
) -> None:
    """A push and its answer take 25 ms, while which 2.5 batches are computed: a delay of 3 hides all of it."""
    world = run(quadratic(), f"bounded_delay(delay={delay})", 2, steps=4, cluster=FAR)
    assert starts(world) == begins
    assert max(world.log.values("lead")) == min(delay, 3)


@settings(max_examples=12, deadline=None)
@given(
    slow=st.lists(st.floats(0.2, 5.0), min_size=1, max_size=4), delay=st.integers(0, 3), servers=st.integers(1, 3),
    seed=st.integers(0, 9), samples=st.integers(40, 60),
)  # fmt: skip
def test_no_task_starts_before_those_it_depends_on_are_finished_on_every_range(
    slow: list[float], delay: int, servers: int, seed: int, samples: int
) -> None:
    task, n = quadratic(samples=samples), len(slow)
    spec = f"bounded_delay(delay={delay})"
    world = run(task, spec, n, epochs=2, servers=servers, seed=seed, cluster=paced(slow, 0.4))
    for rank in range(n):
        begins, ends = starts(world, rank), finished(world, rank)
        assert all(begins[k] >= ends[k - delay - 1] - 1e-6 for k in range(delay + 1, len(begins)))
    assert max(world.log.values("staleness")) <= delay and world.outcome.samples == 2 * samples
    for index in range(servers):  # each range is changed by one task after the other
        done = [e.message.step for e in world.log.kinds(TaskDone) if e.sender.rank == index]  # type: ignore[attr-defined]
        assert done == sorted(done)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("optimizer", [sgd(0.1, momentum=0.9), adam()])
def test_without_delay_it_is_bsp_to_the_bit(servers: int, optimizer: object) -> None:
    task = mlp(optimizer, samples=101)  # type: ignore[arg-type]
    specs = ("bounded_delay(delay=0)", "bsp")
    ours, theirs = (run(task, spec, 3, epochs=2, servers=servers, cluster=slowed(w1=3)) for spec in specs)
    assert all(torch.equal(ours.scored[name], theirs.scored[name]) for name in theirs.scored)
    clipped = replace(task, clip_norm=0.01)
    ours, theirs = (run(clipped, spec, 3, steps=4, servers=servers) for spec in specs)
    assert all(torch.equal(ours.scored[name], theirs.scored[name]) for name in theirs.scored)


def test_a_gradient_is_taken_at_the_tasks_that_were_finished_and_a_task_is_one_update() -> None:
    """By hand: all gradients of a step make one update, each taken where its worker had seen so many updates.

    ssp, its neighbour, steps once for each push.
    """
    task = quadratic(samples=96, lr=0.1)
    world = run(task, "bounded_delay(delay=2)", 3, steps=6, cluster=slowed(FAR, w2=2))
    parts = [event.message for event in world.log.deliveries if isinstance(event.message, RangeTask)]
    versions = [torch.ones(5).double()]
    for step in range(6):
        mine = sorted((part for part in parts if part.step == step), key=lambda part: part.sender.rank)
        grads = [versions[part.seen] - middle(task, world.deal, part.sender.rank, step) for part in mine]
        versions.append(versions[-1] - 0.1 * torch.stack(grads).mean(0))
    assert torch.allclose(world.scored["w"], versions[-1], atol=1e-12)
    assert len(world.log.values("update")) == 6 and max(world.log.values("staleness")) == 2
    assert len(run(task, "ssp(bound=2)", 3, steps=6).log.values("update")) == 18


def test_a_schedule_goes_by_the_samples_of_all_workers() -> None:
    world = run(quadratic(), "bounded_delay(delay=1)", 3, steps=4)
    assert world.replicas[server(0)].progress.seen == world.outcome.samples == 3 * 4 * 4


def test_a_fast_worker_leads_by_the_delay_and_no_more() -> None:
    world = run(quadratic(), "bounded_delay(delay=2)", 2, steps=8, cluster=slowed(INSTANT, w1=4))
    slow = [end for _, end, who in world.log.computes if who == worker(1)]
    begins = starts(world)
    assert begins[:3] == [0, 0.01, 0.02] and begins[3:] == [pytest.approx(slow[k - 3]) for k in range(3, 8)]


def test_lis_parameter_server_is_made_of_it() -> None:
    assert catalog.resolve("parameter_server", 4).text == "parameter_server(delay=1)"
    assert catalog.resolve("parameter_server(delay=3) over hashed", 4).servers.count == 2
    with pytest.raises(PlanError, match="0 or more; 0 is bsp"):
        catalog.resolve("bounded_delay(delay=-1)", 2)
