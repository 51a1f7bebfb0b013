"""A worker that joins begins with the buffers of the others: running statistics, and how many batches were counted."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

import covey
from tests.worlds import INSTANT, cloud, sgd

EXACT = ("allreduce", "sliced", "bigdl")
SAMPLES = 240


def test_all_workers_of_a_range_keep_their_own_buffers_of_a_broken_round() -> None:
    """What is given is what all had before the round that is done again, so a joiner counts no batch twice."""
    seen = first_batches("allreduce")
    (mean, count), others = seen[0], seen[1:]
    assert {count for _, count in others} == {count} and all((mean == theirs).all() for theirs, _ in others)


@pytest.mark.parametrize(
    "strategy",
    [
        "sliced", "bsp", "petuum(bound=1)", "easgd(period=2)", "gosgd",
        *(
            pytest.param(strategy, marks=pytest.mark.full)
            for strategy in [
                "bigdl", "local_sgd(period=2)", "bmuf(period=2)", "ssp", "asynchronous", "dssp", "quorum", "softsync",
                "downpour", "eamsgd(period=2)", "adpsgd", "dpsgd", "sgp", "malt", "malt(bound=1)", "malt(barrier=true)",
            ]
        ),
    ],
)  # fmt: skip
def test_a_worker_that_joins_takes_over_statistics_and_counters(strategy: str) -> None:
    (mean, count), *others = first_batches(strategy)
    counts = [theirs for _, theirs in others]
    if strategy in EXACT:
        assert counts[0] == count and (mean == others[0][0]).all(), "the first owner has the mean of the statistics"
    assert max(counts) - 2 <= count <= max(counts) + 1
    assert mean.mean() > 0.6 * max(theirs.mean() for theirs, _ in others)


def first_batches(strategy: str) -> list[tuple[Tensor, int]]:
    """Buffers before the first batch of a worker that joined; those of the others before their last ones until then."""
    workers: list[nn.Module] = []
    batches: list[tuple[int, Tensor, int]] = []

    def step(model: Any, batch: Any) -> Tensor:
        if not any(model is known for known in workers):
            workers.append(model)
        who = next(number for number, known in enumerate(workers) if model is known)
        batches.append((who, model[0].running_mean.clone(), int(model[0].num_batches_tracked)))
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    x, y = cloud(SAMPLES)
    task = covey.Task(
        model=lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)).double(), data=(x + 20, y), step=step,
        optimizer=sgd(), batch_size=8,
    )  # fmt: skip
    result = covey.fit(
        task, strategy, "1:3", engine="simulated", cluster=INSTANT, epochs=1, runs=False,
        faults="leave worker 1@35ms; join worker 1@75ms",
    )  # fmt: skip
    assert result.samples == SAMPLES and [event.event for event in result.membership] == ["leave", "join"]
    joined = next(place for place, batch in enumerate(batches) if batch[0] == 3)
    before = [[batch for batch in batches[:joined] if batch[0] == who][-1] for who in (0, 2)]
    return [batch[1:] for batch in (batches[joined], *before)]
