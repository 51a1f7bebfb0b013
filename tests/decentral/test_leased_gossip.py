"""Gossip whose workers come and go: every batch is in the models that are left, and it was put there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.data.leases import Ledger
from covey.decentral.gossip.gosgd import CountedGossip, GossipLinks
from covey.decentral.gossip.gossip_lists import DonatedModel, GossipList
from covey.decentral.gossip.leased_gossip import GossipLeases
from covey.decentral.gossip.push_sum import CountedPush, LeasedPushes
from covey.engines.virtual.virtual_membership import VirtualMembership
from covey.errors import CoveyError, PeerLost
from covey.simulate import Cluster, Seconds
from covey.task import Task
from tests.worlds import mlp, sgd

STEPS, SEATS, TRIES, RATE = 5, 3, 12, 0.1
SAMPLES = SEATS * STEPS
UNEVEN = Cluster(compute=Seconds(0.01), jitter=0.3)
EFFECTS = 60  # a worker has fewer, in the steps of which anything depends
SOFT = "gosgd(probability=0.4)"
WHOLE = [SOFT, "adpsgd", "dpsgd", "sgp", "malt(barrier=true)"]  # each of its kind
RARE = ["gosgd(probability=0.9) over ring", "sgp(overlap=1)", "malt(barrier=true, share=model)", "malt(bound=1)",
        "malt(bound=2, share=model)", "dpsgd over complete"]  # fmt: skip
LOSSY = ["malt", "malt over halton"]  # what is overwritten before it is read is in its sender's model alone


class Tracked:
    """A model with a number for each time that a sample is computed on: it says which of them it contains."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.tries: Counter[int] = Counter()
        self.samples = samples

    def task(self) -> Task:
        return Task(
            model=lambda: _Numbers(self.samples), data=(torch.arange(self.samples),), step=self.step, batch_size=1,
            optimizer=lambda pairs: torch.optim.SGD([one for _, one in pairs], lr=RATE),
        )  # fmt: skip

    def step(self, model: Any, batch: tuple[Tensor, ...]) -> Tensor:
        number = int(batch[0])
        self.tries[number] += 1
        return model.numbers[number, self.tries[number] - 1]  # type: ignore[no-any-return]


class _Numbers(nn.Module):
    def __init__(self, samples: int) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(samples, TRIES, dtype=torch.float64))


def run(strategy: str, faults: str = "", workers: int | str = f"1:{SEATS}", **given: Any) -> covey.Result:
    return covey.fit(
        strategy=strategy, workers=workers, engine="simulated", cluster=UNEVEN, faults=faults or None, runs=False,
        **{"task": Tracked().task(), "steps": STEPS, **given},
    )  # fmt: skip


def check(result: covey.Result, samples: int = SAMPLES, missing: int = 0) -> None:
    """Of each sample one try, and no other, is in the mean of all models that are left; but for so many at most.

    Who is lost when all have finished takes along what nobody else has.
    """
    assert result.samples == samples
    found = (result.weights["numbers"] != 0).sum(1)
    missing = samples if "lost at the end" in result.notes else missing
    assert found.max() <= 1 and int((found == 0).sum()) <= missing, found.tolist()


@pytest.mark.parametrize("strategy", [*WHOLE, *RARE, *LOSSY])
def test_where_nobody_goes_a_range_is_its_largest_number(strategy: str) -> None:
    alike = strategy == "malt(barrier=true)"  # who has ended keeps an old model there, and is given the outcome here
    samples = 96 if alike else 97
    task = mlp(sgd(momentum=0.9), samples=samples)
    ranged, fixed = (run(strategy, workers=workers, task=task, steps=None, epochs=2) for workers in ("2:3", 3))
    assert ranged.samples == fixed.samples == 2 * samples
    for name, there in fixed.weights.items():
        torch.testing.assert_close(ranged.weights[name], there, rtol=1e-12, atol=1e-12)


FAULTS = [
    "leave worker 1#{n}",
    "kill worker 0#{n}",
    "leave worker 1#{n}; join worker 1@{l}ms",
    "join worker 2@{m}ms; leave worker 0#{n}; join worker 0@{l}ms",
    "kill worker 0#{n} for 12ms; leave worker 1@{m}ms",
    "leave worker 1#{n}; leave worker 2@{l}ms; join worker 1@{k}ms",
]


def everywhere(strategy: str, faults: str, numbers: range) -> Iterator[covey.Result]:
    for number in numbers:
        plan, tracked = faults.format(n=number, m=number + 3, l=number + 7, k=number + 13), Tracked()
        try:
            yield run(strategy, plan, task=tracked.task())
            assert len(tracked.tries) == SAMPLES, "each was computed on"
        except PeerLost as lost:
            if "kill" not in plan or "no other worker had the model" not in str(lost):
                raise


@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("strategy", [*WHOLE, *(pytest.param(one, marks=pytest.mark.full) for one in RARE)])
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, 15))])
def test_at_whatever_effect_somebody_goes_each_batch_is_in_the_models_once(
    strategy: str, faults: str, part: int
) -> None:
    for result in everywhere(strategy, faults, range(part + 1, EFFECTS, 15)):
        check(result)


@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("strategy", ["malt", pytest.param("malt over halton", marks=pytest.mark.full)])
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, 15))])
def test_where_messages_may_be_lost_hardly_a_batch_is_and_none_counts_twice(
    strategy: str, faults: str, part: int
) -> None:
    for result in everywhere(strategy, faults, range(part + 1, EFFECTS, 15)):
        check(result, missing=2)


# -- weights and means -------------------------------------------------------------------------------------------------


class Weights:
    """All weight of a run: what models have, what went with lost ones, and what was given and never taken."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.lists: dict[int, GossipList] = {}  # of each seat's last incarnation
        self.gone: list[float] = []
        self.on_way: list[tuple[int, int, float]] = []  # to whom, from whom, and how much
        began, gone, donate, accept = GossipList.__init__, VirtualMembership._gone, DonatedModel.give, DonatedModel.take
        take, add, push = GossipLinks.take_in, LeasedPushes.add, covey.Node.send

        def beginning(one: Any, node: Any, *given: Any) -> None:
            began(one, node, *given)
            self.lists[node.rank] = one

        def going(members: Any, actor: Any) -> None:
            self.gone.append(actor.replica.shown.weight)
            gone(members, actor)

        def donating(model: Any) -> Any:
            given = donate(model)
            self.on_way.append((-1, -1, given["weight"]))
            return given

        def accepting(model: Any, state: Any, restarted: bool) -> None:
            self.on_way.remove((-1, -1, state["weight"]))
            accept(model, state, restarted)

        def taking(links: Any, gossip: Any) -> None:
            self.took(links.replica, gossip)
            take(links, gossip)

        def adding(pushes: Any) -> None:
            for one in pushes.came:
                self.took(pushes.replica, one)
            add(pushes)

        def sending(node: Any, to: Any, body: Any, **given: Any) -> Any:
            if isinstance(body, CountedPush | CountedGossip):
                self.on_way.append((to.rank, node.rank, body.weight))
            return push(node, to, body, **given)

        patch.setattr(GossipList, "__init__", beginning)
        patch.setattr(VirtualMembership, "_gone", going)
        patch.setattr(DonatedModel, "give", donating)
        patch.setattr(DonatedModel, "take", accepting)
        patch.setattr(GossipLinks, "take_in", taking)
        patch.setattr(LeasedPushes, "add", adding)
        patch.setattr(covey.Node, "send", sending)

    def took(self, replica: Any, given: Any) -> None:
        rank = next(rank for rank, one in self.lists.items() if one.replica is replica)
        self.on_way.remove((rank, given.sender.rank, given.weight))

    @property
    def total(self) -> float:
        left = sum(one.replica.shown.weight for one in self.lists.values())
        return left + sum(self.gone) + sum(weight for *_, weight in self.on_way)


@pytest.mark.parametrize(("strategy", "whole"), [(SOFT, 1.0), ("sgp", float(SEATS)), ("sgp(overlap=1)", float(SEATS))])
def test_no_weight_is_lost_but_that_of_the_lost(monkeypatch: pytest.MonkeyPatch, strategy: str, whole: float) -> None:
    """Where somebody joins, nothing is; where somebody goes, what it had, and what was on its way to it."""
    for number in range(2, 50, 6):
        for victim, faults in (
            (1, "leave worker 1#{n}; join worker 1@40ms"), (0, "kill worker 0#{n} for 9ms"), (2, "kill worker 2#{n}")
        ):  # fmt: skip
            with monkeypatch.context() as patch:
                weights = Weights(patch)
                run(strategy, faults.format(n=number))
                assert abs(weights.total - whole) < 1e-12
                assert all(victim in ends for *ends, _ in weights.on_way), (
                    "only what came from the lost one, or went to it"
                )


@pytest.mark.parametrize("strategy", ["dpsgd", "dpsgd over complete", "sgp", "sgp(overlap=1)"])
def test_the_mean_has_moved_once_for_each_batch_when_somebody_joins(
    monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """In the middle of a round: those that have begun it end it with each other, or not at all."""
    lists: dict[int, GossipList] = {}
    looked = list[int]()
    began, make = GossipList.__init__, GossipList._make_list

    def beginning(self: Any, node: Any, *given: Any) -> None:
        began(self, node, *given)
        lists[node.rank] = self

    def making(self: Any, told: Any, donors: Any) -> Any:
        there = [lists[rank] for rank, contents in told.items() if contents.version >= 0]
        total = sum(one.replica.flat.parts[0] * one.replica.shown.weight for one in there)
        moved = total[total != 0]  # type: ignore[index]
        if len(there) == SEATS:  # nobody was lost yet
            assert torch.allclose(moved, torch.full_like(moved, -RATE), rtol=1e-12)
            looked.append(len(moved))
        return make(self, told, donors)

    monkeypatch.setattr(GossipList, "__init__", beginning)
    monkeypatch.setattr(GossipList, "_make_list", making)
    for number in range(12, 60, 5):
        run(strategy, f"join worker 3@{number}ms", workers="1:4", task=Tracked(4 * STEPS).task())
    assert looked and max(looked) > 5


def test_who_joins_has_the_model_of_the_one_that_contains_most_of_its_seat(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[int, int]]()
    donor = GossipList._donor

    def choosing(rank: int, told: Any) -> int:
        found = donor(rank, told)
        seen.append((told[found].counts[rank], max(one.counts[rank] for one in told.values())))
        return found

    monkeypatch.setattr(GossipList, "_donor", staticmethod(choosing))
    for number in range(20, 45, 5):
        run(SOFT, f"kill worker 1@{number}ms for 5ms")
    assert any(most for _, most in seen) and all(one == most for one, most in seen)


@pytest.mark.parametrize("strategy", [*WHOLE, "malt", *(pytest.param(one, marks=pytest.mark.full) for one in RARE)])
def test_a_run_that_is_told_to_end_does_so_while_somebody_goes(strategy: str) -> None:
    task = mlp(sgd(), evaluate=lambda model: {"loss": 1.0})
    for number in range(3, 40, 12):
        faults = f"leave worker 1@{number}ms; join worker 1@{number + 9}ms"
        result = run(strategy, faults, task=task, until="loss<=2", scores=4, confirm=3)
        assert result.stopped == "target"


@pytest.mark.parametrize("fault", ["kill worker 0#{n}", "leave worker 0#{n}", "kill worker 0#{n} for 1ms"])
def test_what_is_lost_when_others_have_ended_is_told(fault: str) -> None:
    """Nobody is left to do it again."""
    told = list[int]()
    for number in range(40, 52):
        result = run("dpsgd", fault.format(n=number))
        check(result)
        told.append(result.notes.get("lost at the end", 0))
    assert 0 in told and any(told)


def test_a_run_whose_workers_are_all_lost_ends_by_name() -> None:
    for strategy in WHOLE:
        with pytest.raises(PeerLost, match="worker 0 was lost, and no other worker had the model"):
            run(strategy, "leave worker 1@11ms; leave worker 2@12ms; kill worker 0@20ms")


# -- planted mistakes --------------------------------------------------------------------------------------------------


def plant_dropped(patch: pytest.MonkeyPatch) -> None:
    """What only a lost model contained does not go back to the list."""

    def drop(self: Ledger, worker: int, first: int) -> None:
        for step in [step for step in self.held[worker] if step >= first]:
            del self.held[worker][step]

    patch.setattr(Ledger, "give_back", drop)


def plant_all_back(patch: pytest.MonkeyPatch) -> None:
    """What a lost worker did goes back to the list, also what others' models contain."""
    make = GossipList._make_list

    def making(self: Any, told: Any, donors: Any) -> Any:
        for rank in self.replaced():
            for contents in told.values():
                contents.counts = tuple(0 if of == rank else count for of, count in enumerate(contents.counts))
        return make(self, told, donors)

    patch.setattr(GossipList, "_make_list", making)


def plant_early(patch: pytest.MonkeyPatch) -> None:
    """A model is said to contain a batch that is computed only now."""
    contains = GossipList.contains

    def ahead(self: Any) -> Any:
        counts = list(contains(self))
        counts[1 + self.node.rank * (self.node.workers + 1)] += 1  # the version is before them
        return tuple(counts)

    patch.setattr(GossipList, "contains", ahead)


def plant_deaf(patch: pytest.MonkeyPatch) -> None:
    """Nobody knows what a model contains that was taken in."""
    patch.setattr(GossipList, "took_in", lambda self, sender, contents, whole=True: None)


def plant_any_donor(patch: pytest.MonkeyPatch) -> None:
    """Who comes gets any model, and says that it contains all of its seat."""
    patch.setattr(GossipList, "_donor", staticmethod(lambda rank, told: max(
        (other for other, one in told.items() if one.version >= 0), key=lambda other: (-told[other].counts[rank], other)
    )))  # fmt: skip
    take = GossipList._take

    def claiming(self: Any, state: Any) -> None:
        new = self.version < 0
        take(self, state)
        if new:
            self.counts[self.node.rank] = self.start[self.node.rank]

    patch.setattr(GossipList, "_take", claiming)


def plant_soon_safe(patch: pytest.MonkeyPatch) -> None:
    """What another model contains is held for safe, and forgotten."""

    def settling(self: Any) -> None:
        for rank in range(self.node.workers):
            self.ledger.settle(rank, max(counts[rank] for other, counts in enumerate(self.known) if other != rank))

    patch.setattr(GossipList, "settle", settling)


def plant_unread(patch: pytest.MonkeyPatch) -> None:
    """What is on its way when all meet is dropped."""
    forget = GossipLeases._forget

    def dropping(self: Any) -> None:
        taken, self.take_in = self.take_in, lambda: None
        forget(self)
        self.take_in = taken

    patch.setattr(GossipLeases, "_forget", dropping)


def plant_other_round(patch: pytest.MonkeyPatch) -> None:
    """A worker takes a list that is not newer than its own."""

    def taking(self: Any, state: Any) -> None:
        self.ledger.restore(state["list"])
        self.known = [list(counts) for counts in state["known"]]
        self._begin_list(state["version"], self.seats.marks, [0] * self.node.workers)

    patch.setattr(GossipList, "_take", taking)


PLANTED = [
    (plant_dropped, SOFT), (plant_all_back, SOFT), (plant_early, SOFT), (plant_early, "dpsgd"), (plant_deaf, "adpsgd"),
    (plant_any_donor, "dpsgd over chain"), (plant_soon_safe, "gosgd(probability=0.25)"),
    (plant_other_round, "sgp"),
]  # fmt: skip


HARD = [  # one after another is lost
    f"kill worker 1@{n}ms for 2ms; kill worker 0@{n + 5}ms for 3ms; leave worker 2@{n + 10}ms; kill worker 1@{n + 15}ms"
    for n in (21, 33, 45)
]


@pytest.mark.parametrize(("plant", "strategy"), PLANTED)
def test_planted_mistakes_are_found(monkeypatch: pytest.MonkeyPatch, plant: Any, strategy: str) -> None:
    assert not any(_breaks(strategy, faults) for faults in HARD), "without the mistake"
    plant(monkeypatch)
    assert any(_breaks(strategy, faults) for faults in HARD)


def _breaks(strategy: str, faults: str) -> bool:
    try:
        check(run(strategy, faults, workers="1:4", task=Tracked(4 * STEPS).task()), 4 * STEPS)
    except (AssertionError, CoveyError, KeyError, IndexError):
        return True
    return False


def test_where_messages_may_be_lost_dropped_batches_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_dropped(monkeypatch)
    with pytest.raises(AssertionError):
        test_where_messages_may_be_lost_hardly_a_batch_is_and_none_counts_twice("malt", FAULTS[4], 0)


def test_weight_that_is_dropped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_unread(monkeypatch)
    with pytest.raises(AssertionError, match="only what came from the lost one"):
        test_no_weight_is_lost_but_that_of_the_lost(monkeypatch, "gosgd(probability=1)", 1.0)


def test_a_round_that_some_end_and_others_drop_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forget = GossipLeases._forget

    def dropping(self: Any) -> None:
        self._finish = None
        forget(self)

    monkeypatch.setattr(GossipLeases, "_forget", dropping)
    with pytest.raises(CoveyError, match="assert torch.allclose"):
        test_the_mean_has_moved_once_for_each_batch_when_somebody_joins(monkeypatch, "dpsgd")
