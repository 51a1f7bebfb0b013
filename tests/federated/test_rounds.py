"""The rounds' state machines: every timeout in every phase, over-selection, drop-outs, reports that do not count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.errors import PlanError
from covey.federated.pace_steering import PaceSteering, until
from covey.federated.rounds import Reporting, RoundTerms, Selection

TERMS = RoundTerms.of(clients=100, target=10, over=1.3, least=0.8, selection=60, reporting=600)


def test_a_round_invites_130_percent_and_is_content_with_80() -> None:
    assert (TERMS.goal, TERMS.target, TERMS.enough) == (13, 10, 8)
    assert RoundTerms.of(clients=1000, target=50).goal == 65
    assert RoundTerms.of(clients=1000, target=10, over=1.1).goal == 11, "1.1 * 10 is 11.000000000000002"
    assert RoundTerms.of(clients=11, target=10).goal == 11, "there are no more"
    assert RoundTerms.of(clients=5, target=1, least=0.01).enough == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"target": 0}, "rounds of 0 clients: use 1 to 100"),
        ({"target": 101}, "use 1 to 100"),
        ({"target": 10, "over": 0.9}, "over 0.9 must be 1 or more"),
        ({"target": 10, "least": 0.0}, "least 0 more than 0"),
        ({"target": 10, "least": 1.1}, "at most 1"),
        ({"target": 10, "selection": 0.0}, "more than 0"),
        ({"target": 10, "reporting": float("inf")}, "more than 0"),
    ],
)
def test_terms_that_cannot_be_kept_are_refused(given: dict[str, float], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        RoundTerms.of(clients=100, **given)  # type: ignore[arg-type]


def test_selection_ends_with_the_goal_and_turns_the_next_one_away() -> None:
    selection = Selection(TERMS)
    selection.start(now=5.0)
    assert [selection.check_in(client) for client in range(13)] == [True] * 13
    assert selection.state(5.0) == "ready"
    assert not selection.check_in(13) and list(selection.accepted) == list(range(13))


@pytest.mark.parametrize(("there", "state"), [(0, "failed"), (7, "failed"), (8, "ready"), (12, "ready")])
def test_the_time_limit_of_selection_decides_by_how_many_are_enough(there: int, state: str) -> None:
    selection = Selection(TERMS)
    selection.start(now=100.0)
    for client in range(there):
        selection.check_in(client)
    assert selection.state(159.999) == "open"
    assert selection.state(160.0) == state


def test_the_time_limit_of_selection_begins_when_it_is_the_rounds_turn() -> None:
    selection = Selection(TERMS)
    for client in range(13):
        selection.check_in(client)
    assert selection.state(1e9) == "open", "another round is under way"
    selection.start(now=1e9)
    assert selection.state(1e9) == "ready"


def test_who_goes_during_selection_leaves_a_place() -> None:
    selection = Selection(TERMS)
    selection.start(now=0.0)
    for client in range(13):
        selection.check_in(client)
    selection.lost(4)
    selection.lost(99)  # was never there
    assert selection.state(1.0) == "open" and selection.check_in(50)
    assert 4 not in selection.accepted and selection.state(1.0) == "ready"


def test_a_client_that_checks_in_twice_counts_once() -> None:
    selection = Selection(TERMS)
    assert selection.check_in(3) and selection.check_in(3)
    assert list(selection.accepted) == [3]
    for client in range(13):
        selection.check_in(client)
    assert selection.check_in(3), "it is in already, though all places are taken"


def test_exactly_the_first_target_reports_count() -> None:
    reporting = Reporting(TERMS, range(13), began=0.0)
    assert [reporting.report(client) for client in range(12, 2, -1)] == ["counted"] * 10
    assert reporting.state(1.0) == "committed"
    assert reporting.report(2) == "extra" and len(reporting.counted) == 10


@pytest.mark.parametrize(("reports", "state"), [(0, "abandoned"), (7, "abandoned"), (8, "committed"), (9, "committed")])
def test_the_time_limit_of_reporting_decides_by_how_many_are_enough(reports: int, state: str) -> None:
    reporting = Reporting(TERMS, range(13), began=50.0)
    for client in range(reports):
        reporting.report(client)
    assert reporting.state(649.999) == "open"
    assert reporting.state(650.0) == state


def test_nobody_waits_for_a_round_that_cannot_succeed_any_more() -> None:
    reporting = Reporting(TERMS, range(13), began=0.0)
    for client in range(5):
        reporting.lost(client)
    assert reporting.state(1.0) == "open", "8 of 13 may still report"
    reporting.lost(5)
    assert reporting.state(1.0) == "abandoned" and reporting.dropped == 6


def test_a_round_ends_when_all_who_are_left_have_reported() -> None:
    reporting = Reporting(TERMS, range(13), began=0.0)
    for client in range(4):
        reporting.lost(client)
    for client in range(4, 12):
        assert reporting.report(client) == "counted"
    assert reporting.state(1.0) == "open"
    reporting.report(12)
    assert reporting.state(1.0) == "committed" and len(reporting.counted) == 9


def test_reports_of_others_and_second_ones_do_not_count() -> None:
    reporting = Reporting(TERMS, range(13), began=0.0)
    assert reporting.report(3) == "counted"
    assert reporting.report(3) == "twice"
    assert reporting.report(77) == "uninvited"
    reporting.lost(4)
    assert reporting.report(4) == "uninvited", "it was lost, and nobody waits for it"
    reporting.lost(3)
    assert list(reporting.counted) == [3] and reporting.dropped == 1, "what was reported stays when its client goes"


@given(events=st.lists(st.tuples(st.sampled_from(["report", "lost"]), st.integers(0, 14)), max_size=60))
def test_a_round_commits_only_with_enough_reports_and_never_with_more_than_its_target(
    events: list[tuple[str, int]],
) -> None:
    reporting, counted = Reporting(TERMS, range(13), began=0.0), set[int]()
    for kind, client in events:
        if kind == "lost":
            reporting.lost(client)
        elif reporting.report(client) == "counted":
            counted.add(client)
    assert set(reporting.counted) == counted <= set(range(13)) and len(counted) <= TERMS.target
    assert reporting.state(600.0) == ("committed" if len(counted) >= TERMS.enough else "abandoned")
    assert reporting.state(0.0) != "committed" or len(counted) >= TERMS.enough


def test_few_clients_come_together() -> None:
    steering = PaceSteering(clients=26, terms=TERMS, needed=13)
    for _ in range(50):
        steering.round_ended(1000.0)
    assert steering.period(now=70.0) == (70.0, 70.0 + TERMS.selection / 4), "within the time that a selection waits"


def test_many_clients_are_spread_so_that_twice_the_goal_comes_in_a_round() -> None:
    steering = PaceSteering(clients=100_000, terms=TERMS, needed=TERMS.goal, seconds=5.0)
    begin, end = steering.period(now=0.0)
    assert begin == steering.first(), "when all have come for the first time"
    assert 100_000 * 5.0 / (end - begin) == pytest.approx(2 * TERMS.goal)


def test_nobody_comes_twice_before_all_have_come_once_though_rounds_become_faster() -> None:
    steering = PaceSteering(clients=1000, terms=TERMS, needed=TERMS.goal, seconds=10.0)
    first = steering.first()
    for _ in range(50):
        steering.round_ended(0.1)
    for number in range(1000):
        steering.came(now=first * number / 1000, client=number)
    early, late = steering.period(now=0.01 * first), steering.period(now=0.99 * first)
    assert early == late and early[0] == first, "who came early has the same time as who came late"
    after = steering.period(now=first)
    assert after[0] == early[1] and after[1] - after[0] == pytest.approx(0.01 * (early[1] - early[0]), rel=0.1)


def test_a_cycle_follows_how_many_came_in_the_one_before() -> None:
    steering = PaceSteering(clients=1000, terms=TERMS, needed=TERMS.goal, seconds=10.0)
    length = steering.first()
    for number in range(250):
        steering.came(now=length * number / 250, client=number)
    begin, end = steering.period(now=length)
    assert end - begin == pytest.approx(length / 4), "a quarter is there"
    assert PaceSteering(1000, TERMS, TERMS.goal, 10.0, there=250).first() == pytest.approx(length / 4)


def test_rounds_longer_than_selection_waits_are_filled_in_time_without_overlap() -> None:
    apart = RoundTerms.of(clients=1000, target=10, selection=60, overlap=False)
    steering = PaceSteering(clients=1000, terms=apart, needed=apart.goal)
    for _ in range(50):
        steering.round_ended(600.0)
    begin, end = steering.period(now=2 * steering.first())
    assert 1000 * 60 / (end - begin) >= apart.goal


@pytest.mark.parametrize(
    ("now", "wait"), [(0.0, (10.0, 14.0)), (10.0, (0.0, 4.0)), (11.0, (3.0, 7.0)), (23.0, (3.0, 7.0))]
)
def test_who_comes_late_for_a_period_waits_for_the_next_one(now: float, wait: tuple[float, float]) -> None:
    assert until((10.0, 14.0), now) == pytest.approx(wait)
