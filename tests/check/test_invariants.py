"""What checks of runs with faults see: samples that count twice or not at all, and work that a restart takes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from covey.check.fault_log import FaultLog
from covey.check.invariants import (
    FaultRecord,
    faults_on_links_are_noticed,
    no_message_counts_twice,
    samples_count_once,
    weights_are_those_without_faults,
)
from covey.message import Message
from covey.simulate.faults import parse_faults
from tests.worlds import worker

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


def test_where_workers_are_restarted_the_result_counts() -> None:
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


def ended(name: str, weight: float) -> FaultRecord:
    """A run of a strategy whose workers wait for one another, and its only weight."""
    strategy = SimpleNamespace(name=name, in_step=True, description=SimpleNamespace(samples=ONCE))
    asked: Any = SimpleNamespace(strategy=strategy, plan=SimpleNamespace(elastic=False, least=0))
    result: Any = SimpleNamespace(notes={}, weights={"w": torch.tensor([weight], dtype=torch.float64)})
    plan = parse_faults("kill worker 1@1s")
    return FaultRecord(asked=asked, plan=plan, log=FaultLog(1e9), result=result, watched=True)


@pytest.mark.parametrize(("name", "exact"), [("bsp", True), ("allreduce", True), ("local_sgd", False)])
@pytest.mark.parametrize(("gap", "small"), [(0.0, True), (1e-15, True), (1e-6, False)])
def test_only_where_the_same_bits_are_declared_the_smallest_gap_is_one(
    name: str, exact: bool, gap: float, small: bool
) -> None:
    told = weights_are_those_without_faults(ended(name, 1.0), ended(name, 1.0 + gap))
    assert bool(told) == (gap > 0 and (exact or not small)), told


@pytest.mark.parametrize(
    ("line", "noticed"),
    [
        ("drop worker 0 -> server 0@1s: it lost Push of step 3 from worker 0 to server 0", False),
        ("drop worker 0 -> server 0@1s: it lost Push from worker 0 to server 0, which was sent as lossy", True),
        ("drop worker 0 -> server 0@1s: the run ended before it", True),
    ],
)
def test_a_lost_message_must_be_noticed_unless_it_might_be_lost(line: str, noticed: bool) -> None:
    result: Any = SimpleNamespace(failures=[line])
    none: Any = None
    plan = parse_faults("drop worker 0 -> server 0@1s")
    record = FaultRecord(asked=none, plan=plan, log=FaultLog(1e9), result=result, watched=True)
    assert bool(faults_on_links_are_noticed(record, record)) != noticed
    record.log.restarted(2)
    assert faults_on_links_are_noticed(record, record) == []


class Numbered(Message):
    wire_name = "tests.numbered"

    step: int


def test_what_an_earlier_attempt_had_sent_excuses_no_doubled_message() -> None:
    found = record()
    for _ in range(2):
        found.log.sent(1.0, worker(0), worker(1), Numbered(3), 0)
        found.log.delivered(1.0, worker(0), worker(1), Numbered(3), 0)
        assert no_message_counts_twice(found, found) == []
        found.log.restarted(2.0)
    found.log.sent(3.0, worker(0), worker(1), Numbered(3), 0)
    for _ in range(2):
        found.log.delivered(3.0, worker(0), worker(1), Numbered(3), 0)
    told = "worker 0 -> worker 1 Numbered was delivered more often than it was sent"
    assert no_message_counts_twice(found, found) == [told]
