"""Where workers go on when their number has changed: behind the samples that were seen, each at a step of its own."""

from __future__ import annotations

from typing import Any

import pytest

from covey.data.shards import Shards
from covey.model.batches import BatchSource
from covey.run.changed_plan import later, position


@pytest.mark.parametrize("batch_size", [4, 7])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("seen", [0, 1, 99, 100, 101, 150, 320])
def test_all_workers_together_stand_where_so_many_samples_were_seen(seen: int, workers: int, batch_size: int) -> None:
    deal = Shards(100, workers, batch_size)
    steps = [position(deal, rank, seen, None) for rank in range(workers)]
    done = sum(deal.batch(rank, step) for rank, count in enumerate(steps) for step in range(count))
    assert seen - workers * (batch_size + 1) < done <= seen + workers * batch_size, "to a batch of each worker"
    assert [position(deal, rank, seen, 2) for rank in range(workers)] == [min(step, 2) for step in steps]


def test_what_is_asked_of_a_step_is_asked_of_the_step_that_it_is_now() -> None:
    """Each function of a source: one that was left as it was would count the short batch of another step."""
    asked: dict[str, tuple[int, ...]] = {}

    def note(name: str) -> Any:
        return lambda *numbers: asked.__setitem__(name, numbers)

    source = BatchSource(own=note("own"), chosen=note("chosen"), samples=note("samples"), begin=note("begin"))
    moved = later(source, 1, [3, 5])
    assert moved.own is not None and moved.chosen is not None
    moved.own(2)
    moved.begin(2)
    moved.samples(0, 2)
    moved.chosen(0, 2, 1, 4)
    assert asked == {"own": (7,), "begin": (7,), "samples": (0, 5), "chosen": (0, 5, 1, 4)}
