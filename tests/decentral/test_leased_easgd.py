"""Elastic averaging with workers that come and go: each batch is settled once, by a worker whose force was felt."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch

import covey
from covey.data.leases import Lease, Ledger
from covey.decentral.elastic.leased_easgd import LeasingMaster
from covey.errors import CoveyError
from covey.observe.membership import Goodput
from covey.simulate import Cluster, Seconds
from tests.worlds import mlp, sgd

STEPS, SAMPLES = 6, 128  # one epoch
UNEVEN = Cluster(compute=Seconds(0.01), jitter=0.3)
EFFECTS = 70  # a worker has fewer
SPEC = "easgd(period=2)"


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> Counter[Lease]:
    found: Counter[Lease] = Counter()
    settle, leave = Ledger.settle, Ledger.leave

    def noting(self: Ledger, worker: int, before: int | None = None) -> None:
        found.update(lease for step, lease in self.held[worker].items() if before is None or step < before)
        settle(self, worker, before)

    def leaving(self: Ledger, worker: int, known: Any) -> None:
        found.subtract(self.held[worker].values())  # these are not settled, but given back
        leave(self, worker, known)

    monkeypatch.setattr(Ledger, "settle", noting)
    monkeypatch.setattr(Ledger, "leave", leaving)
    return found


def run(faults: str = "", workers: int | str = "1:3", spec: str = SPEC, **task: Any) -> covey.Result:
    return covey.fit(
        mlp(sgd(), **task), spec, workers, engine="simulated", cluster=UNEVEN, faults=faults or None, runs=False,
        steps=STEPS,
    )  # fmt: skip


def check(settled: Counter[Lease]) -> None:
    assert settled == Counter(Lease(seat, number) for seat in range(3) for number in range(STEPS))
    settled.clear()


@pytest.mark.parametrize("spec", [SPEC, "easgd(period=4)", "eamsgd(period=3, momentum=0.9)"])
def test_where_nobody_goes_a_range_is_its_largest_number(spec: str) -> None:
    ranged, fixed = run(spec=spec), run(workers=3, spec=spec)
    assert ranged.samples == fixed.samples
    assert all(torch.equal(ranged.weights[name], fixed.weights[name]) for name in fixed.weights)


def test_a_schedule_follows_the_samples_of_all_workers() -> None:
    """Every worker has as many samples in each of its steps, so that a range is its largest number."""
    task: Any = {"samples": 3 * 8 * STEPS, "rate": lambda progress: 1 - 0.9 * progress}
    ranged, fixed = run(**task), run(workers=3, **task)
    assert all(torch.equal(ranged.weights[name], fixed.weights[name]) for name in fixed.weights)


def test_whoever_joins_is_as_far_in_the_schedule_as_the_others() -> None:
    seen = list[float]()

    def rate(progress: float) -> float:
        seen.append(progress)
        return 1.0

    run("leave worker 1@12ms; join worker 1@45ms", samples=3 * 8 * STEPS, rate=rate)
    assert seen[-1] > 0.6 and all(now > before - 0.3 for before, now in pairwise(seen)), seen


@pytest.mark.parametrize(
    "faults",
    [
        "leave worker 1#{n}", "leave worker 1#{n}; join worker 1@45ms",
        "kill worker 1#{n} for 6ms; leave worker 2@31ms", "join worker 2@{n}ms; leave worker 0#{n}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, 6))])
def test_at_whatever_effect_a_worker_leaves_each_batch_is_settled_once(
    settled: Counter[Lease], faults: str, part: int
) -> None:
    for number in range(part + 1, EFFECTS, 6):
        result = run(faults.format(n=number))
        check(settled)
        assert result.samples == SAMPLES


def test_what_a_worker_learned_since_its_last_exchange_is_done_again() -> None:
    """It has computed three batches, of which the centre has felt two."""
    result = run("leave worker 1@45ms", spec="easgd(period=2)")
    assert isinstance(result.goodput, Goodput) and result.goodput.repeated in (8, 16)


def test_one_that_waits_for_the_end_takes_along_what_the_centre_has_not_felt() -> None:
    """All of its own batches are done, the last two of 8 and 3 samples, and another worker is slow."""
    slow = "slow worker 0@1ms for 10s by 9x"
    result = run(f"{slow}; leave worker 1@130ms", spec="easgd(period=2)")
    assert isinstance(result.goodput, Goodput) and result.goodput.repeated == 11 and result.samples == SAMPLES


WAITED_FOR = "leave worker 2@11ms; kill"  # one of two that must stay: its next incarnation has what it had leased


def test_planted_mistakes_are_found(settled: Counter[Lease], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker held is settled when it goes."""

    async def departed(self: Any, who: Any) -> None:
        self.ledger.settle(who.rank)
        self.ledger.empty.add(who.rank)

    honest = LeasingMaster.granted

    def twice(self: Any, rank: int, again: bool) -> list[Lease]:
        self.ledger.held[rank].clear() if again else None  # a new incarnation forgets what its predecessor had
        return honest(self, rank, again)

    for name, planted, faults in (("departed", departed, ""), ("granted", twice, WAITED_FOR)):
        with monkeypatch.context() as patch:
            patch.setattr(LeasingMaster, name, planted)
            broken = 0
            for number in range(3, EFFECTS, 9):
                try:
                    workers = "2:3" if faults else "1:3"
                    result = run(f"{faults or 'leave'} worker 1#{number}", workers)
                    assert result.samples == SAMPLES
                    check(settled)
                except (AssertionError, CoveyError):
                    broken += 1
                    settled.clear()
            assert broken, name
