"""The launcher's list of lost workers: one event for each loss, however fast they follow each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from covey.engines.interrupt import JoinRequests
from covey.engines.process import control
from covey.engines.process.launcher.empty_seats import Renewal
from covey.engines.process.launcher.role_restarts import RoleRestarts
from covey.engines.process.launcher.roster import RoleRecord
from covey.engines.process.snapshot_parts import SCORER
from covey.engines.worker_scaling import ScaledSeats, WorkerScaling
from covey.errors import PeerLost
from covey.membership import Deaths
from covey.message import Address
from covey.observe.membership import MembershipEvent, MembershipLog

WHO = Address("worker", 1)
KILLED = "exited with signal 9, SIGKILL"


@pytest.fixture
def told() -> list[MembershipEvent]:
    return []


@pytest.fixture
def restarts(told: list[MembershipEvent]) -> RoleRestarts:
    roster: Any = SimpleNamespace(
        trainers=[WHO], roles=[WHO], seen={WHO: RoleRecord(heard=0.0, step=7)},
        tallies={WHO: SimpleNamespace(samples=32)},
    )  # fmt: skip
    renewal = Renewal(Deaths(9), lambda who, incarnations: "ipc://nowhere", MembershipLog(told.append))
    restarts = RoleRestarts(roster, switchboard(), renewal, print)
    restarts.begun = True
    return restarts


def switchboard(tell: Callable[[Sequence[Address], Any], None] = lambda roles, word: None) -> Any:
    """The launcher's end of all control lines, of which nobody is at the other ends."""
    return SimpleNamespace(tell=tell, forget=lambda who: None, renew=lambda who, incarnation: None)


def heard(phase: str = "training") -> Any:
    return SimpleNamespace(phase=phase, inbox={}, hear=lambda: None)


@pytest.mark.parametrize("who", ["server", "master", "scorer"])
def test_only_workers_are_replaced(restarts: RoleRestarts, who: str) -> None:
    assert not restarts.lost(Address(who, 0), KILLED, heard()) and not restarts.seats


def test_a_worker_that_exits_by_itself_or_before_training_begins_is_not_replaced(restarts: RoleRestarts) -> None:
    assert not restarts.lost(WHO, "exited with code 3", heard())
    assert not restarts.lost(WHO, KILLED, heard("warming"))
    restarts.begun = False
    assert not restarts.lost(WHO, KILLED, heard()) and not restarts.seats


def test_a_worker_that_had_done_all_its_steps_is_neither_missed_nor_replaced(restarts: RoleRestarts) -> None:
    restarts.roster.seen[WHO].ended = True
    assert restarts.lost(WHO, KILLED, heard())
    assert not restarts.seats and not restarts.log.events and restarts.present([WHO]) == []


def test_of_what_a_lost_worker_said_only_that_its_state_is_written_still_counts(restarts: RoleRestarts) -> None:
    words = heard()
    kinds = (control.Saved, control.Frozen, control.RoleReady, control.NextStep)
    words.inbox = {kind: {WHO: object(), Address("server", 0): object()} for kind in kinds}
    assert restarts.lost(WHO, KILLED, words)
    assert [kind for kind in kinds if WHO in words.inbox[kind]] == [control.Saved]
    assert all(Address("server", 0) in box for box in words.inbox.values())


def test_an_incarnation_that_dies_before_it_knows_where_it_goes_on_does_not_take_its_place_back_to_the_beginning(
    restarts: RoleRestarts,
) -> None:
    restarts.links.board = cast(Any, switchboard(lambda roles, word: None))
    assert restarts.lost(WHO, KILLED, heard())
    seat = restarts.seats[WHO]
    seat.told[Address("server", 0)] = SimpleNamespace(ended=False, floor=0)  # type: ignore[assignment]
    restarts._enter(seat, [])
    assert not restarts.settled
    restarts.roster.seen[WHO].step = -1  # as its first report says
    assert restarts.lost(WHO, KILLED, heard()) and restarts.seats[WHO].step == 7


def test_a_new_incarnation_is_never_told_that_another_is_where_a_dead_one_was() -> None:
    """Both are lost; the first is ready while the second, for the second time, still has to be forked."""
    other, told = Address("worker", 0), list[tuple[Address, Any]]()
    both = [other, WHO]
    roster: Any = SimpleNamespace(
        trainers=both, roles=both, seen={who: RoleRecord(heard=0.0, step=7) for who in both},
        tallies={who: SimpleNamespace(samples=32) for who in both},
    )  # fmt: skip
    board: Any = switchboard(lambda roles, word: told.extend((who, word) for who in roles))
    begun = list[dict[Address, int]]()

    def start(who: Address, incarnations: Mapping[Address, int]) -> str:
        begun.append(dict(incarnations))
        return f"{who} in incarnation {incarnations[who]}"

    restarts = RoleRestarts(roster, board, Renewal(Deaths(9), start), print)
    restarts.begun, words = True, heard()
    for who in (WHO, WHO, other):
        assert restarts.lost(who, KILLED, words)
        restarts.advance(words, [], 0.0)
    assert begun == [{WHO: 1}, {WHO: 1, other: 1}], "of its second incarnation the other knows nothing yet"
    assert restarts.seats[other].forked and not restarts.seats[WHO].forked, "its second death costs a pause"
    words.inbox[control.RoleReady] = {other: control.RoleReady("", 1)}
    restarts.advance(words, [], 0.0)
    restarts.seats[WHO].due = 0.0
    restarts.advance(words, [], 0.0)
    words = [word for who, word in told if who == other and isinstance(word, control.Install)]
    known = [(word.incarnation, word.endpoint) for word in words]
    assert all(endpoint == f"worker 1 in incarnation {number}" for number, endpoint in known) and known[-1][0] == 2


def test_an_incarnation_that_dies_before_it_begins_is_an_event_of_its_own(
    restarts: RoleRestarts, told: list[MembershipEvent]
) -> None:
    for loss in range(3):
        assert restarts.lost(WHO, KILLED, heard())
        assert len(restarts.log.events) == len(told) == loss + 1 and restarts.seats[WHO].step == 7
    first, second, last = restarts.log.events
    assert [(event.who, event.view, event.cause) for event in (first, second, last)] == [
        ("worker 1", view, "killed by signal 9") for view in (1, 2, 3)
    ]
    assert first.stalled > 0 and second.stalled > 0 and last.stalled == 0, "the third incarnation has not begun yet"
    assert [event.stalled for event in told] == [0.0, 0.0, 0.0], "it is told at once"


def test_a_late_word_about_an_earlier_incarnation_does_not_count_for_the_newest(restarts: RoleRestarts) -> None:
    for _ in range(2):
        assert restarts.lost(WHO, KILLED, heard())
    seat, server = restarts.seats[WHO], Address("server", 0)
    restarts.hear(server, control.Installed(WHO, incarnation=1, ended=False, floor=0))
    assert not seat.told
    restarts.hear(server, control.Installed(WHO, incarnation=2, ended=False, floor=0))
    assert list(seat.told) == [server]


def test_a_death_at_the_furthest_step_counts_though_one_before_was_earlier() -> None:
    deaths = Deaths(most=2)
    assert [deaths.note(WHO, reached, KILLED) for reached in (5, 3)] == [0.0, 1.0]
    with pytest.raises(PeerLost, match="it died 3 times without finishing a step"):
        deaths.note(WHO, 5, KILLED)


def test_a_death_at_an_earlier_step_is_not_followed_by_a_new_one() -> None:
    """A new incarnation may begin some steps back: what its predecessor had reached counts."""
    deaths = Deaths(2)
    deaths.note(WHO, 10, "died")
    deaths.note(WHO, 9, "died")
    with pytest.raises(PeerLost, match="worker 1 died: it died 3 times without finishing a step"):
        deaths.note(WHO, 10, "died")


Ranged = tuple[RoleRestarts, list[Any], list[Address]]
OTHERS = [Address("worker", 0), Address("worker", 2), Address("server", 0)]


@pytest.fixture
def ranged(restarts: RoleRestarts) -> Ranged:
    """One of three workers, two of which must stay; what all roles are told, and who is to join."""
    told: list[Any] = []
    joins: list[Address] = []
    restarts.roster.roles = [WHO, *OTHERS]
    restarts.roster.trainers = [WHO, *OTHERS[:2]]
    restarts.roster.seen |= {other: RoleRecord(heard=0.0, step=7) for other in OTHERS}
    restarts.links.board = cast(Any, switchboard(lambda roles, word: told.append((list(roles), word))))
    restarts.links.renewal = Renewal(
        Deaths(1), lambda who, numbers: f"ipc://next-{numbers[who]}", None, 2, "ipc://nobody-", lambda empty: joins
    )
    return restarts, told, joins


def test_a_worker_that_is_told_to_leave_leaves_its_seat_empty(ranged: Ranged) -> None:
    restarts, told, _ = ranged
    assert restarts.lost(WHO, "exited with signal 15, SIGTERM", heard())
    assert not restarts.seats and restarts.empty == {WHO} and restarts.present([WHO]) == []
    assert restarts.roster.seen[WHO].ended, "nobody waits for it"
    listeners, word = told[0]
    assert listeners == [*OTHERS, SCORER]
    assert word == control.Install(WHO, 1, "ipc://nobody-1.1", empty=True)
    assert [(event.event, event.workers) for event in restarts.log.events] == [("leave", 2)]


def die_twice(restarts: RoleRestarts) -> None:
    assert restarts.lost(WHO, KILLED, heard())
    restarts.advance(heard(), [], 0.5)
    assert restarts.lost(WHO, KILLED, heard())


def test_others_go_on_at_once_where_enough_are_left(ranged: Ranged) -> None:
    restarts, told, _ = ranged
    assert restarts.lost(WHO, KILLED, heard())
    assert not restarts.seats and restarts.empty == {WHO} and restarts.settled, "checkpoints may be kept"
    assert told == [([*OTHERS, SCORER], control.Install(WHO, 2, "ipc://nobody-1.2", empty=True))]
    assert restarts.workers == 3 and restarts.log.events[0].event == "rebirth", "it comes back by itself"
    restarts.advance(heard(), [], 0.5)
    seat = restarts.seats[WHO]
    assert not restarts.empty and (seat.incarnation, seat.step, seat.forked) == (3, 0, True), "it enters at their step"
    assert not restarts.awaited and not restarts.settled, "the model may be scored, but the run not kept"
    ready = heard()
    ready.inbox[control.RoleReady] = {WHO: control.RoleReady("", 1)}
    ready.phase = "scoring"
    restarts.advance(ready, [], 0.6)
    assert len(told) == 1, "nobody hears of it while the model is scored"
    restarts.advance(heard(), [], 0.7)
    assert told[-1] == ([*OTHERS, SCORER], control.Install(WHO, 3, "ipc://next-3")) and restarts.awaited
    seat.told[OTHERS[2]] = SimpleNamespace(ended=False, floor=0)  # type: ignore[assignment]
    restarts._enter(seat, [])
    assert restarts.log.events[0].stalled == 0.0, "training has not stood still"


def test_a_worker_that_leaves_makes_the_others_wait_for_those_that_come_back(ranged: Ranged) -> None:
    """Else nobody would train, and servers would take the run for ended: so they hear of the one that comes first."""
    restarts, told, _ = ranged
    restarts.roster.tallies[OTHERS[0]] = SimpleNamespace(samples=32)  # type: ignore[assignment]
    assert restarts.lost(WHO, KILLED, heard()) and restarts.returning.keys() == {WHO}
    assert restarts.lost(OTHERS[0], "exited with signal 15, SIGTERM", heard())
    assert restarts.empty == {OTHERS[0]} and restarts.awaited and restarts.seats[WHO].forked
    words = [(word.who, word.empty) for _, word in told if isinstance(word, control.Install)]
    assert words == [(WHO, True), (WHO, False), (OTHERS[0], True)]


@pytest.mark.parametrize("ready", [True, False])
def test_so_does_one_that_is_being_built_when_another_leaves(ranged: Ranged, ready: bool) -> None:
    restarts, told, _ = ranged
    assert restarts.lost(WHO, KILLED, heard())
    restarts.advance(heard(), [], 0.5)
    built = heard("scoring")
    built.inbox[control.RoleReady] = {WHO: control.RoleReady("", 1)} if ready else {}
    restarts.advance(built, [], 0.6)
    assert not restarts.awaited
    assert restarts.lost(OTHERS[0], "exited with signal 15, SIGTERM", heard())
    assert restarts.awaited and restarts.seats[WHO].announced
    words = [(word.who, word.empty) for _, word in told if isinstance(word, control.Install)]
    assert words[1:] == [(WHO, False), (OTHERS[0], True)]


def test_one_that_dies_or_leaves_when_all_others_have_ended_is_replaced(ranged: Ranged) -> None:
    """Its next incarnation knows what was lost with it; a run whose last worker just went would not tell."""
    restarts = ranged[0]
    for other in OTHERS[:2]:
        restarts.roster.seen[other].ended = True
    assert restarts.lost(WHO, "exited with signal 15, SIGTERM", heard()) and restarts.seats.keys() == {WHO}
    assert restarts.lost(WHO, KILLED, heard()) is True and not restarts.returning


def test_an_incarnation_that_dies_while_it_is_built_has_held_up_nobody(ranged: Ranged) -> None:
    restarts = ranged[0]
    restarts.links.renewal = replace(cast(Renewal, restarts.renewal), deaths=Deaths(9))
    die_twice(restarts)
    assert [(event.event, event.stalled) for event in restarts.log.events] == [("rebirth", 0.0), ("rebirth", 0.0)]
    restarts.advance(heard("stopping"), [], 0.9)
    assert restarts.returning.keys() == {WHO} and restarts.settled, "a run that ends does not wait for it"


def test_a_new_incarnation_knows_who_was_lost_after_the_end_of_its_program(ranged: Ranged) -> None:
    restarts, told, _ = ranged
    restarts.roster.seen[OTHERS[0]] = RoleRecord(heard=0.0, step=9, ended=True)
    assert restarts.lost(OTHERS[0], KILLED, heard()) and restarts.lost(WHO, KILLED, heard())
    restarts.seats[WHO].told[OTHERS[2]] = SimpleNamespace(ended=False, floor=0)  # type: ignore[assignment]
    restarts._enter(restarts.seats[WHO], [])
    (go,) = (word for _, word in told if isinstance(word, control.Go))
    assert go.ended == [OTHERS[0]]


def test_where_too_few_are_left_they_wait_for_the_one_that_died(ranged: Ranged) -> None:
    restarts, told, _ = ranged
    restarts.empty.add(OTHERS[0])
    restarts.finished.add(OTHERS[0])
    assert restarts.lost(WHO, KILLED, heard())
    assert restarts.seats[WHO].step == 7 and WHO not in restarts.empty and not told


def test_of_two_that_die_at_once_only_one_is_done_without(ranged: Ranged) -> None:
    restarts, other = ranged[0], OTHERS[0]
    restarts.roster.seen[other] = RoleRecord(heard=0.0, step=7)
    restarts.roster.tallies.setdefault(other, cast(Any, SimpleNamespace(samples=32)))
    assert restarts.lost(WHO, KILLED, heard()) and restarts.lost(other, KILLED, heard())
    assert restarts.returning.keys() == {WHO} and restarts.seats.keys() == {other}


def test_of_two_that_come_back_the_first_one_does_not_wait_for_the_second(ranged: Ranged) -> None:
    """Who is ready first hears that the other one's seat is empty, as all others know, then of its next incarnation."""
    (restarts, told, _), other = ranged, OTHERS[0]
    begun = list[dict[Address, int]]()

    def start(who: Address, incarnations: Mapping[Address, int]) -> str:
        begun.append(dict(incarnations))
        return f"ipc://next-{incarnations[who]}"

    restarts.links.renewal = replace(cast(Renewal, restarts.renewal), start=start, least=1)
    for who in (WHO, other):
        restarts.roster.seen[who] = RoleRecord(heard=0.0, step=7)
        restarts.roster.tallies.setdefault(who, cast(Any, SimpleNamespace(samples=32)))
        assert restarts.lost(who, KILLED, heard())
    restarts.advance(heard(), [], 0.5)
    assert begun == [{WHO: 3, other: 1}, {WHO: 1, other: 3}], "neither knows yet that the other's seat is empty"
    told.clear()
    words = heard()
    words.inbox[control.RoleReady] = {WHO: control.RoleReady("", 1)}
    restarts.advance(words, [], 0.6)
    assert told[0] == ([WHO], control.Install(other, 2, "ipc://nobody-0.2", empty=True))
    assert told[1] == ([*OTHERS[1:], SCORER], control.Install(WHO, 3, "ipc://next-3")), "the second is being built"
    told.clear()
    words.inbox[control.RoleReady] = {other: control.RoleReady("", 1)}
    restarts.advance(words, [], 0.7)
    assert ([other], control.Install(WHO, 3, "ipc://next-3")) in told
    listeners = next(to for to, word in told if word == control.Install(other, 3, "ipc://next-3"))
    assert WHO in listeners, "and the first one hears that somebody comes"


def test_one_that_dies_too_often_leaves_its_seat_empty(ranged: Ranged) -> None:
    restarts, _, _ = ranged
    die_twice(restarts)
    assert [event.event for event in restarts.log.events] == ["rebirth", "leave"] and not restarts.seats
    assert "it died 2 times without finishing a step" in restarts.log.events[-1].cause


def test_below_the_smaller_number_the_run_ends(ranged: Ranged) -> None:
    restarts, _, _ = ranged
    restarts.empty.add(OTHERS[0])
    with pytest.raises(PeerLost, match="worker 1 was told to leave: only 1 worker is left, and .* at least 2: use"):
        restarts.lost(WHO, "exited with signal 15, SIGTERM", heard())


def test_a_request_to_join_is_forgotten_where_no_seat_is_empty(ranged: Ranged) -> None:
    restarts, requests = ranged[0], JoinRequests()
    assert restarts.renewal is not None
    restarts.links.renewal = replace(restarts.renewal, joining=lambda empty: list(empty[: requests.taken(len(empty))]))
    requests(10, None)
    restarts.advance(heard(), [], 1.0)
    restarts.lost(WHO, "exited with signal 15, SIGTERM", heard())
    restarts.advance(heard(), [], 2.0)
    assert restarts.empty == {WHO}


def scaled(restarts: RoleRestarts) -> list[Address]:
    """Let the run find out itself how many workers it has, for now one less than there are; who is released."""
    released, seats = list[Address](), ScaledSeats(WorkerScaling(3, 4))
    for who in restarts.roster.trainers:
        restarts.roster.seen.setdefault(who, RoleRecord(heard=0.0, step=7))
        restarts.roster.tallies.setdefault(who, cast(Any, SimpleNamespace(samples=32)))
    cast(Any, restarts.roster).samples = 0
    assert restarts.renewal is not None
    restarts.links.renewal = replace(restarts.renewal, scaling=seats, release=released.append)
    seats.scaling.wanted = 2
    restarts.advance(heard(), [], 1.0)
    restarts.advance(heard(), [], 1.1)
    return released


def test_one_that_was_released_and_died_first_is_released_again(ranged: Ranged) -> None:
    restarts, last = ranged[0], OTHERS[1]
    released = scaled(restarts)
    assert released == [last]
    assert restarts.lost(last, KILLED, heard())
    restarts.advance(heard(), [], 2.0)
    assert not restarts.settled and released == [last]
    restarts.seats[last].told[OTHERS[2]] = SimpleNamespace(ended=False, floor=0)  # type: ignore[assignment]
    restarts._enter(restarts.seats[last], [])
    restarts.entered.clear()  # it knows where it goes on
    restarts.advance(heard(), [], 3.0)
    assert released == [last, last]


def test_scaling_fills_the_seat_of_one_it_released_and_no_other(ranged: Ranged) -> None:
    restarts, last = ranged[0], OTHERS[1]
    scaled(restarts)
    assert restarts.renewal and restarts.renewal.scaling
    assert restarts.lost(last, "exited with signal 15, SIGTERM", heard())
    restarts.advance(heard(), [], 2.0)
    assert restarts.empty == {last}
    restarts.renewal.scaling.scaling.wanted = 3
    restarts.advance(heard(), [], 3.0)
    assert not restarts.empty and restarts.log.events[-1].event == "join"


def test_a_seat_that_somebody_else_emptied_is_not_filled_by_scaling(ranged: Ranged) -> None:
    restarts, _, _ = ranged
    scaled(restarts)
    die_twice(restarts)
    assert restarts.renewal and restarts.renewal.scaling
    for second in range(3):
        restarts.renewal.scaling.scaling.wanted = 3
        restarts.advance(heard(), [], 2.0 + second)
    assert restarts.empty == {WHO} and [event.event for event in restarts.log.events] == ["rebirth", "leave"]


def test_whoever_joins_has_not_died_of_what_its_predecessor_did(ranged: Ranged) -> None:
    restarts, _, joins = ranged
    die_twice(restarts)
    joins.append(WHO)
    restarts.advance(heard(), [], 2.5)
    joins.clear()
    assert restarts.lost(WHO, KILLED, heard())
    assert [event.event for event in restarts.log.events] == ["rebirth", "leave", "join", "rebirth"]


def test_whoever_joins_is_an_incarnation_after_the_one_that_went(ranged: Ranged) -> None:
    restarts, told, joins = ranged
    restarts.lost(WHO, "exited with signal 15, SIGTERM", heard())
    joins.append(WHO)
    restarts.advance(heard(), [], 2.5)
    assert not restarts.empty and restarts.seats[WHO].incarnation == 2 and not restarts.roster.seen[WHO].ended
    assert len(told) == 1 and restarts.seats[WHO].forked, "nobody waits for it while it is being built"
    joins.clear()
    words = heard()
    words.inbox[control.RoleReady] = {WHO: control.RoleReady("", 1)}
    restarts.advance(words, [], 2.6)
    assert told[-1] == ([*OTHERS, SCORER], control.Install(WHO, 2, "ipc://next-2"))
    assert restarts.log.events[-1].event == "join" and restarts.log.events[-1].seconds == 2.5


# -- on several hosts


def test_where_roles_choose_their_ports_a_new_incarnation_waits_until_it_has_said_which(restarts: RoleRestarts) -> None:
    told = list[Any]()
    restarts.links.board = switchboard(lambda roles, word: told.extend(word for _ in roles))
    restarts.links.renewal = Renewal(Deaths(9), lambda who, incarnations: "tcp://10.0.0.2:*")
    restarts.links.book = {"worker 1": "tcp://10.0.0.2:1", str(SCORER): "tcp://10.0.0.9:2"}
    words = heard()
    assert restarts.lost(WHO, "was lost with host h1, and so on", words)
    assert restarts.seats[WHO].event.cause == "lost with host h1"
    restarts.advance(words, [], 0.0)
    assert restarts.seats[WHO].forked and told == []
    words.inbox[control.Bound] = {WHO: control.Bound("tcp://10.0.0.2:77")}
    restarts.advance(words, [], 0.0)
    book, install = told
    assert book == control.Endpoints({"worker 1": "tcp://10.0.0.2:77", str(SCORER): "tcp://10.0.0.9:2"})
    assert install == control.Install(WHO, 1, "tcp://10.0.0.2:77", empty=False)


def test_a_worker_whose_host_is_away_is_waited_for_until_patience_ends(restarts: RoleRestarts) -> None:
    here, started = list[Address](), list[Address]()

    def start(who: Address, incarnations: Mapping[Address, int]) -> str:
        started.append(who)
        return "ipc://nowhere"

    restarts.links.renewal = Renewal(Deaths(9), start, renewable=lambda who: who in here, patience=60.0)
    assert restarts.lost(WHO, "was lost with host h1", heard())
    restarts.advance(heard(), [], 0.0)
    assert not started and restarts.awaited
    restarts.seats[WHO].died -= 61.0
    with pytest.raises(PeerLost, match="worker 1 was lost with host h1, which did not come back within 60 s"):
        restarts.advance(heard(), [], 0.0)
    here.append(WHO)
    restarts.advance(heard(), [], 0.0)
    assert started == [WHO]


def test_in_a_range_a_host_that_is_away_keeps_nobody_waiting(restarts: RoleRestarts) -> None:
    """Its seat counts as settled, so that the model is scored and kept."""
    other, here = Address("worker", 0), list[Address]()
    restarts.roster.trainers.insert(0, other)
    restarts.roster.seen[other] = RoleRecord(heard=0.0, step=7)
    restarts.links.renewal = Renewal(
        Deaths(9), lambda who, incarnations: "ipc://nowhere", least=1, renewable=lambda who: who in here, patience=0.0
    )
    assert restarts.lost(WHO, "was lost with host h1", heard())
    restarts.advance(heard(), [], 0.0)
    assert restarts.settled and not restarts.awaited and WHO in restarts.returning
    here.append(WHO)
    restarts.advance(heard(), [], 0.0)
    assert restarts.seats[WHO].forked and not restarts.awaited
