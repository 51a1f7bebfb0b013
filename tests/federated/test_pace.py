"""How many clients check in per round: in runs near the target, with few and many clients (Bonawitz et al. 2019)."""

from __future__ import annotations

from typing import Any

import pytest

from covey.federated.pace_steering import WANTED, PaceSteering
from covey.federated.rounds import RoundTerms
from covey.observe.membership import RoundRecord
from covey.run import federate
from covey.task import Task

GOAL = 13  # clients that a round of 10 reports accepts
TARGET = WANTED * GOAL


def check_ins(
    task: Task, monkeypatch: pytest.MonkeyPatch, clients: int, rounds: int, **given: Any
) -> tuple[list[float], list[RoundRecord]]:
    """When clients checked in, and the rounds."""
    times: list[float] = []
    counted = PaceSteering.came

    def came(self: PaceSteering, now: float, client: int) -> None:
        times.append(now)
        counted(self, now, client)

    monkeypatch.setattr(PaceSteering, "came", came)
    how: dict[str, Any] = {"compute": "10s", "timing_only": True, "runs": False, **given}
    found = federate(task, "fedavg", clients, per_round=10, rounds=rounds, **how).participation
    assert found and found.committed == rounds
    return times, found.rounds


def per_round(times: list[float], rounds: list[RoundRecord], first: int) -> float:
    """Check-ins in the time of a round, from the first of these rounds on."""
    begin, end = rounds[first].seconds, rounds[-1].seconds
    return sum(begin <= time < end for time in times) / (len(rounds) - 1 - first)


@pytest.mark.parametrize(("clients", "rounds"), [(100, 60), (400, 90)])
def test_twice_as_many_check_in_as_a_round_accepts_however_many_there_are(
    task: Task, monkeypatch: pytest.MonkeyPatch, clients: int, rounds: int
) -> None:
    """All clients come once in the first half of the rounds, and the service knows then what a round takes."""
    found = per_round(*check_ins(task, monkeypatch, clients, rounds), rounds // 2)
    print(clients, found)
    assert found == pytest.approx(TARGET, rel=0.2)


def test_of_many_clients_few_check_in_from_the_start(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a round takes is a guess until all have come once: here it is too short, by less than half."""
    found = per_round(*check_ins(task, monkeypatch, 20_000, 40), 0)
    print(found)
    assert TARGET / 1.5 < found < 1.5 * TARGET


def test_a_small_population_comes_together_and_rounds_do_not_wait_for_it(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, rounds = check_ins(task, monkeypatch, 20, 40)
    assert GOAL <= per_round(times, rounds, 10) <= 20 and all(one.state == "committed" for one in rounds)


@pytest.mark.full
def test_the_rate_follows_day_and_night(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times as many are there at midnight as at noon; rounds fill up, and at most twice the target checks in.

    It was 17 to 33 per round, and the target is 26: the length of a cycle follows how many came in the one before.
    """
    slow = {"availability": "daily(share=0.3, swing=4)", "compute": "120s"}
    times, rounds = check_ins(task, monkeypatch, 1_500, 500, **slow)
    hours = rounds[-1].seconds / 3600
    assert hours > 24
    rates = []
    for begin in range(4, int(hours) - 3, 4):
        within = sum(begin <= one.seconds / 3600 < begin + 4 for one in rounds)
        rates.append(sum(begin <= time / 3600 < begin + 4 for time in times) / within)
    print(hours, rates)
    assert all(GOAL < rate < 2 * TARGET for rate in rates), rates


def test_after_a_long_silence_a_cycle_begins_now() -> None:
    pace = PaceSteering(1000, RoundTerms(target=10, goal=13, enough=8), 10)
    for client in range(300):
        pace.came(0.0, client)
    pace.came(1e6, 0)
    assert pace.there == 300 and 1e6 < pace.period(1e6)[0] < 1e6 + 1000
    pace.came(1e6, 1)  # in the same cycle
    assert pace.there == 300


def test_the_first_cycle_of_a_run_that_goes_on_begins_with_it() -> None:
    pace = PaceSteering(1000, RoundTerms(target=10, goal=13, enough=8), 10, began=1e6)
    pace.came(1e6, 0)
    assert pace.period(1e6)[0] == 1e6 + pace.first() > 1e6
