"""Workers that seldom hear from servers come and go: every server adds each batch once, whoever goes."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from covey.central.cached.cache import Cache
from covey.central.cached.leased_cache import LeasedCache
from covey.central.cached.petuum import LeasedTable
from covey.central.server.downpour import LeasedDownpour
from covey.central.server.leased_downpour import LeasedAccrued, LeasedStore
from covey.data.leases import BatchSet, Lease, Ledger
from covey.errors import CoveyError, PlanError
from covey.observe.membership import Goodput
from covey.servers.dealing import AskingClient
from covey.servers.taking_part import EntryStep
from covey.vector import Vector
from tests.central.ranged_runs import EFFECTS, HALF, STEPS, check_largest, check_once, run
from tests.worlds import worker

Added = dict[str, list[list[Lease]]]


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Added:
    """The batches of all that each server has added."""
    found: Added = defaultdict(list)
    count, add = LeasedTable.count, LeasedDownpour.add

    async def counting(self: Any, change: Any) -> None:
        found[str(self.node.address)].append([Lease(change.seat, change.number)])
        await count(self, change)

    async def adding(self: Any, push: Any, keys: Vector) -> None:
        found[str(self.node.address)].append(push.leases)
        await add(self, push, keys)

    monkeypatch.setattr(LeasedTable, "count", counting)
    monkeypatch.setattr(LeasedDownpour, "add", adding)
    return found


def check(added: Added, servers: int) -> None:
    check_once({who: [lease for leases in made for lease in leases] for who, made in added.items()}, servers)
    added.clear()


OTHER = (
    "delay worker 1 -> server 0@{n}ms by 20ms; kill worker 1@{m}ms for 9ms; leave worker 2@{m}ms; join worker 2@33ms"
)
CASES = [
    ("petuum(bound=1)", 1, "leave worker 1#{n}"),
    ("petuum(bound=1)", 2, "leave worker 1#{n}; join worker 1@25ms"),
    ("petuum(bound=3)", 2, HALF),
    ("petuum(bound=2)", 2, OTHER),
    ("essp(bound=1)", 2, "kill worker 1#{n} for 6ms; leave worker 2@31ms; join worker 2@35ms"),
    ("essp(bound=2)", 2, HALF),
    ("downpour", 2, "leave worker 1#{n}; join worker 1@25ms"),
    ("downpour(push=3, fetch=2)", 1, "kill worker 1#{n} for 7ms; leave worker 1@31ms"),
    ("downpour(push=3, fetch=2)", 2, HALF),
    ("downpour(push=2, fetch=4, warm=2)", 2, OTHER),
    ("downpour(push=2, server=task, filter=key_caching)", 2, "leave worker 0#{n}; kill worker 1@{m}ms"),
]


@pytest.mark.parametrize(("strategy", "servers", "faults"), CASES)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, 6))])
def test_at_whatever_effect_a_worker_goes_each_batch_counts_once(
    added: Added, strategy: str, servers: int, faults: str, part: int
) -> None:
    for number in range(part + 1, EFFECTS, 6):
        plan = faults.format(n=number, m=number + 12)
        result = run(strategy, plan, servers=servers)
        check(added, servers)
        assert result.samples == 3 * STEPS * 8, plan


@pytest.mark.parametrize("strategy", ["petuum(bound=1)", "essp(bound=1)", "downpour(push=3, fetch=2)"])
@pytest.mark.parametrize("servers", [1, 2])
def test_where_nobody_goes_a_range_is_its_largest_number(strategy: str, servers: int) -> None:
    check_largest(strategy, servers)


def test_petuum_ends_where_all_changes_together_lead(added: Added, monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers' parameters are the first ones, and what came of each batch, once."""
    ends: dict[Any, list[torch.Tensor]] = {}
    count, settle = LeasedTable.count, LeasedTable.settle

    async def counting(self: Any, change: Any) -> None:
        ends[self.node.address][1] += self.coder.decode(change.change).parts[0]
        await count(self, change)

    async def settling(self: Any) -> None:
        await settle(self)
        ends[self.node.address][2] = self.params.parts[0]

    made = LeasedTable.__init__

    def making(self: Any, *given: Any, **settings: Any) -> None:
        made(self, *given, **settings)
        first = self.params.parts[0].clone()
        ends[self.node.address] = [first, torch.zeros_like(first), first]

    monkeypatch.setattr(LeasedTable, "count", counting)
    monkeypatch.setattr(LeasedTable, "settle", settling)
    monkeypatch.setattr(LeasedTable, "__init__", making)
    run("petuum(bound=2)", HALF.format(n=9, m=22), servers=2)
    check(added, 2)
    for first, moved, last in ends.values():
        assert moved.abs().max() > 0
        torch.testing.assert_close(first + moved, last, rtol=1e-12, atol=1e-12)


def test_a_joining_worker_reads_what_is_there_and_takes_the_next_batch() -> None:
    result = run("petuum(bound=2)", "join worker 2@25ms")
    assert isinstance(result.membership, list) and isinstance(result.goodput, Goodput)
    assert [event.event for event in result.membership] == ["join"] and result.goodput.repeated == 0


def test_a_worker_of_petuum_enters_at_the_step_of_the_furthest_server() -> None:
    """One that counts it as further than it is would tell it that steps have come which were not sent yet."""
    entries = [EntryStep(1, step, True, 1, False, Vector(()), ()) for step in (3, 5, 4)]
    assert LeasedCache.first_step(Any, entries) == 5 and LeasedStore.first_step(Any, entries) == 3  # type: ignore[arg-type]


def test_a_sum_with_a_batch_that_a_server_has_had_is_dropped_and_marks_nothing() -> None:
    shard: Any = object.__new__(LeasedDownpour)
    shard.received, shard.ticked, shard.keys_of = BatchSet.empty(2), lambda *given: None, lambda push: None
    shard.received.add(Lease(0, 0))
    none = Vector(())
    push = LeasedAccrued(0, 0, 8, 0, none, none, none, 2, seats=(0, 1), numbers=(0, 0), sender=worker(0))
    with pytest.raises(StopIteration):
        shard.take(push).send(None)
    assert Lease(1, 0) not in shard.received


def test_only_what_all_servers_have_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "take", lambda self, index, copy: None)
    cache: Any = object.__new__(LeasedCache)
    cache.arrived = [5, 0]
    cache.take(1, SimpleNamespace(mine=2))
    assert cache.settled == 2


def test_who_enters_again_has_no_changes_of_its_own_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers have had them, or will never have them."""

    async def entered(self: Any) -> bool:
        return True

    monkeypatch.setattr(AskingClient, "_entered", entered)
    cache: Any = object.__new__(LeasedCache)
    cache.servers, cache.clocks, cache.own = [None, None], [4, 4], ["a change"]
    with pytest.raises(StopIteration):
        cache._entered().send(None)
    assert (cache.clocks, cache.own) == ([-1, -1], [])


def test_a_filter_that_holds_back_is_refused_where_servers_may_drop_a_push() -> None:
    with pytest.raises(PlanError, match=r"filter=significance.* has had a batch before drops them.*servers=1"):
        run("downpour(filter=significance)", servers=2)
    assert run("downpour(filter=significance)", servers=1).samples == 3 * STEPS * 8


# -- planted mistakes --------------------------------------------------------------------------------------------------


def plant_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker had is forgotten with it."""
    monkeypatch.setattr(Ledger, "leave", lambda self, worker, known: self.empty.add(worker))


def plant_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server adds what it has had."""
    monkeypatch.setattr(BatchSet, "add", lambda self, lease: True)


def plant_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent counts as arrived everywhere."""
    honest = AskingClient._ask

    async def asking(self: Any, step: int) -> None:
        self.settled = step - 1
        await honest(self, step)

    monkeypatch.setattr(AskingClient, "_ask", asking)


@pytest.mark.parametrize("strategy", ["petuum(bound=3)", "downpour(push=1, fetch=3)"])
@pytest.mark.parametrize(
    ("plant", "faults"), [(plant_lost, "leave worker 1#{n}"), (plant_doubled, HALF), (plant_early, HALF)]
)
def test_planted_mistakes_are_found(
    added: Added, monkeypatch: pytest.MonkeyPatch, strategy: str, plant: Any, faults: str
) -> None:
    plant(monkeypatch)
    broken = 0
    for number in range(1, EFFECTS, 6):
        try:
            run(strategy, faults.format(n=number, m=number + 12), servers=2)
            check(added, 2)
        except (AssertionError, CoveyError):
            broken += 1
            added.clear()
    assert broken


def test_a_sum_with_a_batch_that_somebody_has_had_is_found(added: Added, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has had the one drops the other, too."""
    monkeypatch.setattr(AskingClient, "again", property(lambda self: False, lambda self, value: None))
    lacking = []
    for number in range(1, EFFECTS, 3):
        run("downpour(push=3, fetch=2)", HALF.format(n=number, m=number + 12), servers=2)
        lacking += [1 for made in added.values() if sum(map(len, made)) != 3 * STEPS]
        added.clear()
    assert lacking
