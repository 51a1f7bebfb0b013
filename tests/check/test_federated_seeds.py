"""Federated runs keep their promises whatever goes wrong; and each promise can be seen to be broken."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from covey.check.federated_seeds import FederatedCase, FederatedRecord, broken, case_of, draw, record_of, tried
from covey.engines.virtual.guests.guest_faults import OF_GUESTS
from covey.errors import PlanError
from covey.federated.aggregator import Aggregator
from covey.federated.coordinator import HeldModel, RoundCoordinator
from covey.federated.rounds import Reporting
from covey.membership import Departed
from covey.run.federated.federated_options import RoundOptions
from covey.simulate.faults import parse_faults

SEEDS = range(200)
CASE = FederatedCase(
    strategy="fedavg", clients=6, rounds=RoundOptions(per_round=4, over=1.3, least=0.5, selection="10s"), count=4,
    compute="3s", availability="always", seed=1,
)  # fmt: skip


def test_many_seeds_break_nothing_and_strike_everything() -> None:
    found = [tried(seed) for seed in SEEDS]
    assert not [str(one) for one in found if one.broken]
    struck = [kind for one in found for kind in one.kinds]
    assert set(struck) == set(OF_GUESTS), "every kind of fault has met somebody"
    assert sum(one.committed for one in found) > 2 * len(found), "rounds commit all the same"


def counts_twice(patch: pytest.MonkeyPatch) -> None:
    inner = Reporting.report

    def report(self: Reporting, client: int) -> Any:
        verdict = inner(self, client)
        return "counted" if verdict == "twice" else verdict

    patch.setattr(Reporting, "report", report)


def counts_strangers(patch: pytest.MonkeyPatch) -> None:
    inner, take = Reporting.report, Aggregator.take

    def report(self: Reporting, client: int) -> Any:
        verdict = inner(self, client)
        return "counted" if verdict == "uninvited" else verdict

    def taken(self: Aggregator, message: Any, begin: Any, *rest: Any) -> Any:
        message.number = begin.number
        return take(self, message, begin, *rest)

    patch.setattr(Reporting, "report", report)
    patch.setattr(Aggregator, "take", taken)


def is_content_with_one(patch: pytest.MonkeyPatch) -> None:
    inner = Reporting.state

    def state(self: Reporting, now: float) -> Any:
        found = inner(self, now)
        return "committed" if found == "abandoned" and self.counted else found

    patch.setattr(Reporting, "state", state)


def waits_forever(patch: pytest.MonkeyPatch) -> None:
    inner = Reporting.__init__

    def begin(self: Reporting, *given: Any) -> None:
        inner(self, *given)
        self.deadline += 1000.0

    patch.setattr(Reporting, "__init__", begin)


def mistakes_a_role_for_a_client(patch: pytest.MonkeyPatch) -> None:
    """Its aggregator is gone, and the coordinator thinks that client 0 is."""
    inner = RoundCoordinator.hear

    async def hear(self: RoundCoordinator, *given: Any) -> Any:
        message = await inner(self, *given)
        return None if isinstance(message, Departed) else message

    patch.setattr(RoundCoordinator, "hear", hear)


def commits_before_it_is_written_down(patch: pytest.MonkeyPatch) -> None:
    inner = RoundCoordinator.tell

    async def tell(self: RoundCoordinator, *given: Any) -> None:
        await self.node.now()
        await inner(self, *given)

    patch.setattr(RoundCoordinator, "tell", tell)


def changes_what_it_abandons(patch: pytest.MonkeyPatch) -> None:
    inner = RoundCoordinator.give_up

    async def give_up(self: RoundCoordinator, number: int, began: float) -> None:
        self.model.replica.flat.mul_(0.999)
        await inner(self, number, began)

    patch.setattr(RoundCoordinator, "give_up", give_up)


def weighs_all_alike(patch: pytest.MonkeyPatch) -> None:
    inner = HeldModel.commit

    def commit(self: HeldModel, number: int, update: Any, buffers: Any) -> str:
        part = update.parts[0]
        part.copy_((part != 0).double() / max(1, int((part != 0).sum())))
        return inner(self, number, update, buffers)

    patch.setattr(HeldModel, "commit", commit)


MISTAKES = {
    counts_twice: "counts twice|away from the mean",
    counts_strangers: "none of them",
    is_content_with_one: "make up a round",
    waits_forever: "time limits|still runs",
    mistakes_a_role_for_a_client: "Stalled|still runs|time limits",
    commits_before_it_is_written_down: "away from the mean|has changed",
    changes_what_it_abandons: "the model has changed",
    weighs_all_alike: "away from the mean",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_found(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    found = next(filter(None, (broken(run) for run in runs())), None)
    assert found, "nothing has found it"
    assert re.search(MISTAKES[mistake], "; ".join(found)), found


def runs() -> Iterator[FederatedRecord]:
    """Some that seeds have drawn, and then the coordinator is killed at each of its effects."""
    for seed in SEEDS[:60]:
        yield record_of(case_of(seed), draw(case_of(seed)))
    for effect in range(1, 100):
        yield record_of(CASE, parse_faults(f"kill coordinator 0#{effect}"))


@pytest.mark.full
@pytest.mark.parametrize("role", ["coordinator", "aggregator"])
def test_a_role_may_be_killed_at_each_of_its_effects(role: str) -> None:
    for effect in range(1, 150):
        run = record_of(CASE, parse_faults(f"kill {role} 0#{effect}"))
        assert broken(run) == [], effect


def broken_by(text: str, case: FederatedCase = CASE) -> list[str]:
    return broken(record_of(case, parse_faults(text)))


@pytest.mark.parametrize(
    "faults",
    [
        "kill aggregator 0@3s", "kill coordinator 0@3s", "kill aggregator 0#9; kill coordinator 0#20",
        "duplicate client 1 -> aggregator 0@0s; duplicate client 1 -> coordinator 0@0s",
        "partition client 0 and client 1 and client 2@0s for 50s", "delay aggregator 0 -> client 2@0s by 20s",
        "slow client 3@0s for 60s by 20x", "; ".join(f"kill client {number}@1s" for number in range(6)),
    ],
)  # fmt: skip
def test_faults_that_are_named(faults: str) -> None:
    run = record_of(CASE, parse_faults(faults))
    assert broken(run) == [] and run.struck, run.struck
    assert any(one.record.state == "committed" for one in run.rounds)


def test_a_round_whose_aggregator_is_lost_is_abandoned_and_the_next_one_commits() -> None:
    run = record_of(CASE, parse_faults("kill aggregator 0@3s"))
    states = [one.record.state for one in run.rounds]
    assert states[0] == "abandoned" and states[1:] == ["committed"] * 3, states


@pytest.mark.parametrize(("strategy", "effects"), [("fedavg", range(2, 9)), ("fedavg + secagg", range(2, 21, 3))])
def test_clients_come_again_that_a_lost_aggregator_had_not_given_the_model(strategy: str, effects: range) -> None:
    """They do not know the aggregator: only the coordinator can tell them."""
    case = replace(CASE, strategy=strategy)
    for effect in effects:
        run = record_of(case, parse_faults(f"kill aggregator 0#{effect}"))
        assert [one.record.state for one in run.rounds] == ["abandoned"] + ["committed"] * 3, effect
        again = set.union(*(run.clients.given[number] for number in range(1, case.count)))
        assert not run.why and again == set(range(case.clients)), effect


def test_clients_that_have_checked_in_again_are_not_sent_away_with_those_of_a_lost_round() -> None:
    case = replace(CASE, clients=5, rounds=replace(CASE.rounds, per_round=4, over=1.0))
    run = record_of(case, parse_faults("slow client 0@0s for 60s by 20x; kill aggregator 0@10s"))
    assert [one.record.state for one in run.rounds] == ["abandoned"] + ["committed"] * 3
    assert [one.record.reports for one in run.rounds] == [0, 4, 4, 4], "whoever was accepted is there"


def test_other_faults_are_refused_by_name() -> None:
    with pytest.raises(PlanError, match="'drop client 1 -> aggregator 0@1s': runs with clients know the faults kill"):
        broken_by("drop client 1 -> aggregator 0@1s")


@pytest.mark.parametrize("faults", ["kill coordinator 0@3s", "kill aggregator 0@3s", "kill client 0@3s"])
def test_secure_rounds_go_on_when_a_role_or_a_client_is_lost(faults: str) -> None:
    """Clients do not wait for the keys of a sum whose aggregator is gone."""
    run = record_of(replace(CASE, strategy="fedavg + secagg"), parse_faults(faults))
    assert not run.why and run.struck, run.why
    assert [one.record.state for one in run.rounds][1:] == ["committed"] * 3


def test_a_lost_coordinator_is_not_taken_for_client_0_in_a_secure_round() -> None:
    """Whenever it dies amid the phases of a sum, no client has dropped out."""
    for effect in range(20, 28):
        run = record_of(replace(CASE, strategy="fedavg + secagg"), parse_faults(f"kill coordinator 0#{effect}"))
        assert not run.why and [one.record.dropped for one in run.rounds] == [0] * 4, effect


@pytest.mark.full
@pytest.mark.parametrize("role", ["coordinator", "aggregator"])
def test_a_role_of_secure_rounds_may_be_killed_at_each_of_its_effects(role: str) -> None:
    for effect in range(1, 150):
        run = record_of(replace(CASE, strategy="fedavg + secagg"), parse_faults(f"kill {role} 0#{effect}"))
        assert not run.why and sum(one.record.state == "committed" for one in run.rounds) >= 3, effect
