"""ByteScheduler's partition and credit: found by Bayesian optimization, agreed on, and no number changes with them."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import pytest
import torch

from covey.central.scheduled import tuning
from covey.central.scheduled.slices import Gradient
from covey.central.scheduled.tuning import TRIAL, TRIALS, Setting, Tuned, TuningSearch, propose, settings
from covey.errors import PlanError
from covey.program import Memory
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from tests.central.test_priorities import SLOW, deep, same
from tests.worlds import World, run, worker

GRID = settings((1, 4, 16), (1, 2, 4, 8, 16), 65_536, None)


def seconds_of(setting: Setting, best: Setting) -> float:
    """A valley: twice as long for every four doublings away from the best."""
    away = abs(log2(setting.together / best.together)) + abs(log2(setting.credit / best.credit))
    return 0.1 * 2 ** (away / 4)


class Forgetful:
    """Remembers nothing, as a program that runs for the first time."""

    def remember(self, name: str, value: list[list[float]]) -> Memory[list[list[float]]]:
        return Memory(value)


@pytest.mark.parametrize("best", GRID, ids=str)
def test_half_of_the_grid_is_enough_to_come_near_the_best(best: Setting) -> None:
    search, now, tried = TuningSearch(Forgetful(), GRID), 0.0, list[Setting]()  # type: ignore[arg-type]
    while not search.over:
        tried.append(search.next(now))
        now += seconds_of(tried[-1], best)
    assert len(tried) - 1 == TRIALS * TRIAL and len(set(tried)) == TRIALS < len(GRID)
    assert all(len(set(tried[first : first + TRIAL])) == 1 for first in range(0, TRIALS * TRIAL, TRIAL))
    assert seconds_of(search.found(), best) <= 1.2 * 0.1, "the worst settings take five times as long"


def test_what_was_tried_says_where_to_look() -> None:
    """Of one that is fast and one that is slow, the next one tried is nearer to the fast one."""
    first = propose(GRID, {})
    assert GRID[first] == Setting(4, 4 * 65_536 * 4), "the middle"
    left, right = GRID.index(Setting(1, 65_536 * 2)), GRID.index(Setting(16, 16 * 65_536 * 8))
    for fast, slow in ((left, right), (right, left)):
        after = GRID[propose(GRID, {fast: 0.1, slow: 1.0})]
        ways = [
            abs(log2(after.together / GRID[k].together)) + abs(log2(after.credit / GRID[k].credit))
            for k in (fast, slow)
        ]
        assert ways[0] < ways[1]


def test_of_equals_the_least_credit_and_then_the_largest_partition() -> None:
    search = TuningSearch(Forgetful(), GRID)  # type: ignore[arg-type]
    for number in (2, 5, 9):  # 256 KiB with the smallest slices, and with four together; 4 MiB with four
        search.steps += [[number, 0.5], [number, 0.1], [number, 0.1], [number, 0.1]]
    assert search.found() == GRID[5]
    search.steps += [[0, 9.0]] * TRIAL
    assert search.found() == GRID[5]


def test_the_first_step_of_a_trial_does_not_count() -> None:
    """Transfers of the setting before may still be under way in it."""
    search = TuningSearch(Forgetful(), GRID)  # type: ignore[arg-type]
    for number, taken in ((2, [9.0, 0.1, 0.3, 0.1]), (9, [0.01, 0.15, 0.15, 0.15])):
        search.steps += [[number, seconds] for seconds in taken]
    assert search.seconds() == {2: 0.1, 9: 0.15}
    assert search.found() == GRID[2]


# -- in runs ----------------------------------------------------------------------------------------------------------

BOTH = "bytescheduler(partition=auto, credit=auto)"
FAR = replace(SLOW, link=Link(bandwidth=BytesPerSecond(1e5), latency=Seconds(0.005)))


def partitions(world: World, rank: int, step: int) -> set[int]:
    """How many slices travelled together, at most, in a worker's step."""
    sent = [event for event in world.log.kinds(Gradient) if event.sender == worker(rank)]
    return {event.message.count for event in sent if event.message.step == step}  # type: ignore[attr-defined]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> int:
    """Fewer and shorter trials; the steps of all of them."""
    monkeypatch.setattr(tuning, "TRIALS", 5)
    monkeypatch.setattr(tuning, "TRIAL", 3)
    return 15


def test_partition_and_credit_are_found_together_and_no_bit_changes(quick: int) -> None:
    """Slices of 128 bytes, so that layers of 2,048 travel in 1, 4 or 16 pieces."""
    task, steps = deep(samples=400, batch_size=4), quick + 2
    tuned, plain = (run(task, spec, 2, steps=steps, servers=2, cluster=FAR) for spec in (BOTH, "bsp"))
    assert same(tuned, plain)
    assert sum(sent.size for sent in tuned.log.sends) == sum(sent.size for sent in plain.log.sends)
    (partition,), (credit,) = tuned.log.values("partition"), tuned.log.values("credit")
    assert partition in (128, 512, 2048) and credit / partition in (1, 2, 4, 8, 16)
    assert {max(partitions(tuned, 0, step)) for step in range(steps)} == {1, 4, 16}, "all sizes were tried"
    assert all(partitions(tuned, rank, steps - 1) == {partition / 128} for rank in range(2))
    assert tuned.log.kinds(Tuned), "worker 0 says it to the other"
    worst = run(task, "bytescheduler(partition=128, credit=128)", 2, steps=3, servers=2, cluster=FAR)
    found = f"bytescheduler(partition={partition:.0f}, credit={credit:.0f})"
    chosen = run(task, found, 2, steps=3, servers=2, cluster=FAR)
    assert chosen.outcome.seconds < 0.5 * worst.outcome.seconds


def test_workers_that_hear_late_of_another_size_do_no_harm(quick: int) -> None:
    """The word takes longer than a step: for some steps one sends in larger pieces than the other."""
    far = Cluster(compute=Seconds(0.010), link=Link(bandwidth=BytesPerSecond(1e7), latency=Seconds(0.02)))
    task = deep(samples=400, batch_size=4)
    tuned = run(task, BOTH, 3, steps=quick, cluster=far)
    steps = [step for step in range(quick) if partitions(tuned, 0, step) != partitions(tuned, 1, step)]
    assert steps, "the test shows nothing"
    assert same(tuned, run(task, "bsp", 3, steps=quick))


def test_only_the_size_may_be_open() -> None:
    world = run(deep(samples=400, batch_size=4), "bytescheduler(partition=auto, credit=700)", 2, steps=14, cluster=SLOW)
    assert world.log.values("credit") == [700] and len(world.log.values("partition")) == 1


def test_a_codec_needs_slices_of_one_size() -> None:
    with pytest.raises(PlanError, match="the codec needs slices of one size; set partition to a size"):
        run(deep(), "bytescheduler(partition=auto) + int8", 2, steps=1)
    assert torch.isfinite(run(deep(), "bytescheduler(partition=256) + int8", 2, steps=2).scored["0.weight"]).all()
