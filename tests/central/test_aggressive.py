"""A-BSP: the first to finish ends a superstep; what others have counts by its samples, and they go on there."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.central.server.aggressive import EndSuperstep, PartialSum
from covey.task import Task
from tests.worlds import INSTANT, middle, mlp, paced, quadratic, run, slowed, worker


def test_a_straggler_at_two_fifths_counts_two_fifths_and_goes_on_there() -> None:
    """Five chunks of 4; at 2.6 times the time the second of worker 1 ends just after the fifth of worker 0."""
    task = quadratic(batch_size=20, samples=80, lr=0.5)
    world = run(task, "a_bsp(chunks=5)", 2, steps=2, cluster=slowed(INSTANT, w1=2.6))
    sums = [sent.message for sent in world.log.kinds(PartialSum) if sent.sender == worker(1)]
    assert [part.samples for part in sums] == [8, 8] and not any(part.finished for part in sums)
    assert isinstance(task.data, tuple)
    cloud = task.data[0]
    w = torch.ones(5).double()
    for step in range(2):
        theirs = cloud[world.deal.indices(1, 0)[8 * step : 8 * step + 8]]  # resumes at 40 %
        seen = torch.cat([cloud[world.deal.indices(0, step)], theirs])
        w = w - 0.5 * (w - seen.mean(0))  # weight k / sum k; a mean of means would count worker 1 for half
    assert torch.allclose(world.scored["w"], w, atol=1e-12)
    wrong = torch.ones(5).double() - 0.5 * (torch.ones(5) - middle(task, world.deal, 0, 0))
    assert not torch.allclose(world.scored["w"], wrong, atol=1e-3)


def test_with_equal_speeds_it_is_bsp() -> None:
    exact, cut = run(mlp(), "bsp", 4, steps=6), run(mlp(), "a_bsp", 4, steps=6)
    assert all(torch.allclose(exact.scored[key], cut.scored[key], atol=1e-12) for key in exact.scored)
    assert cut.outcome.samples == exact.outcome.samples


def test_nobody_waits_for_more_than_a_chunk() -> None:
    world = run(quadratic(batch_size=8), "a_bsp(chunks=8)", 3, steps=5, cluster=slowed(INSTANT, w2=4))
    assert world.outcome.seconds <= 5 * (0.010 + 4 * 0.010 / 8) + 1e-9
    assert len(world.log.kinds(EndSuperstep)) >= 5 and world.log.values("staleness") == [0] * 15


@settings(max_examples=15, deadline=None)
@given(
    slow=st.lists(st.floats(0.2, 5.0), min_size=1, max_size=4), chunks=st.integers(1, 6), samples=st.integers(9, 40),
    servers=st.integers(1, 2), seed=st.integers(0, 9),
)  # fmt: skip
def test_each_goes_through_its_samples_in_order(
    slow: list[float], chunks: int, samples: int, servers: int, seed: int
) -> None:
    """What a worker sees is a beginning of what bsp would show it: nothing is skipped, nothing comes twice."""
    base, n = quadratic(samples=samples), len(slow)
    assert isinstance(base.data, tuple)
    seen: list[int] = []

    def step(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        seen.extend(batch[1].tolist())
        return (model.get_parameter("w") - batch[0]).square().mean()

    task = Task(
        model=base.model, data=(*base.data, torch.arange(samples)), optimizer=base.optimizer, step=step, batch_size=4
    )
    asked = {"steps": 7, "servers": servers, "seed": seed, "cluster": paced(slow, 0.3)}
    world = run(task, f"a_bsp(chunks={chunks})", n, **asked)  # type: ignore[arg-type]
    assert world.outcome.samples == len(seen)
    for rank in range(n):
        count = sum(
            sent.message.samples for sent in world.log.kinds(PartialSum)
            if sent.sender == worker(rank) and sent.to.rank == 0
        )  # fmt: skip
        stream = torch.cat([world.deal.indices(rank, s) for s in range(7)]).tolist()
        for number in stream[:count]:
            seen.remove(number)
    assert not seen


def test_chunks_must_be_there() -> None:
    with pytest.raises(Exception, match="1 chunk or more"):
        run(quadratic(), "a_bsp(chunks=0)", 2)
