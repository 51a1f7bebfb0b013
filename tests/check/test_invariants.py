"""What checks of runs with faults see: samples that count twice or not at all, and work that a restart takes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from covey.check.fault_log import FaultLog
from covey.check.invariants import FaultRecord, samples_count_once

ONCE = "every sample once per epoch"


def record(*batches: tuple[int, ...], samples: str = ONCE, elastic: bool = False) -> FaultRecord:
    log = FaultLog(1e9)
    log.work.batches = [(batch, b"") for batch in batches]
    asked: Any = SimpleNamespace(
        strategy=SimpleNamespace(description=SimpleNamespace(samples=samples)), plan=SimpleNamespace(elastic=elastic)
    )
    result: Any = SimpleNamespace(samples=sum(map(len, batches)))
    none: Any = None
    return FaultRecord(asked=asked, plan=none, log=log, result=result, watched=True)


CALM = record((0, 1), (2, 3))


@pytest.mark.parametrize(
    ("batches", "told"),
    [
        ([(2, 3), (0, 1)], []),
        ([(0, 1), (2, 3), (2, 3)], ["sample 2 was accepted 2 times, not 1; 2 samples are wrong"]),
        ([(0, 1), (2,)], ["sample 3 was accepted 0 times, not 1; 1 samples are wrong"]),
        ([(0, 1), (2, 4)], ["sample 3 was accepted 0 times, not 1; 2 samples are wrong"]),
    ],
)
def test_a_sample_counts_once(batches: list[tuple[int, ...]], told: list[str]) -> None:
    assert samples_count_once(CALM, record(*batches)) == told


def test_a_strategy_that_promises_nothing_is_not_held_to_it() -> None:
    assert samples_count_once(CALM, record((0, 1), samples="some samples twice")) == []


def test_where_workers_are_born_again_the_result_counts() -> None:
    calm = record((0, 1), (2, 3), elastic=True)
    assert samples_count_once(calm, record((0, 1), (3, 3), elastic=True)) == []
    assert samples_count_once(calm, record((0, 1), elastic=True)) == ["2 samples count, not 4"]


def test_a_restart_takes_back_what_came_after_the_checkpoint_each_time() -> None:
    log = FaultLog(1e9)

    def accept(*numbers: int) -> None:
        log.work.batches.append((numbers, b""))
        log.work.moved += 1

    accept(0)
    log.kept(1)
    for _ in range(2):
        accept(1)
        log.restarted(2)
        assert ([batch for batch, _ in log.work.batches], log.work.moved) == ([(0,)], 1)
    accept(1)
    log.kept(3)
    accept(2)
    log.restarted(4)
    assert [batch for batch, _ in log.work.batches] == [(0,), (1,)]
    assert log.restarts == 3
