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
from covey.engines.process.launcher.rebirths import Rebirths
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
def rebirths(told: list[MembershipEvent]) -> Rebirths:
    roster: Any = SimpleNamespace(
        trainers=[WHO], roles=[WHO], seen={WHO: RoleRecord(heard=0.0, step=7)},
        tallies={WHO: SimpleNamespace(samples=32)},
    )  # fmt: skip
    renewal = Renewal(Deaths(9), lambda who, lives: "ipc://nowhere", MembershipLog(told.append))
    rebirths = Rebirths(roster, switchboard(), renewal, print)
    rebirths.begun = True
    return rebirths


def switchboard(tell: Callable[[Sequence[Address], Any], None] = lambda roles, word: None) -> Any:
    """The launcher's end of all control lines, of which nobody is at the other ends."""
    return SimpleNamespace(tell=tell, forget=lambda who: None, renew=lambda who, life: None)


def heard(phase: str = "training") -> Any:
    return SimpleNamespace(phase=phase, inbox={}, hear=lambda: None)


@pytest.mark.parametrize("who", ["server", "master", "scorer"])
def test_only_workers_are_replaced(rebirths: Rebirths, who: str) -> None:
    assert not rebirths.lost(Address(who, 0), KILLED, heard()) and not rebirths.seats


def test_a_worker_that_exits_by_itself_or_before_training_begins_is_not_replaced(rebirths: Rebirths) -> None:
    assert not rebirths.lost(WHO, "exited with code 3", heard())
    assert not rebirths.lost(WHO, KILLED, heard("warming"))
    rebirths.begun = False
    assert not rebirths.lost(WHO, KILLED, heard()) and not rebirths.seats


def test_a_worker_that_had_done_all_its_steps_is_neither_missed_nor_replaced(rebirths: Rebirths) -> None:
    rebirths.roster.seen[WHO].ended = True
    assert rebirths.lost(WHO, KILLED, heard())
    assert not rebirths.seats and not rebirths.log.events and rebirths.present([WHO]) == []


def test_of_what_a_lost_worker_said_only_that_its_state_is_written_still_counts(rebirths: Rebirths) -> None:
    words = heard()
    kinds = (control.Saved, control.Frozen, control.RoleReady, control.NextStep)
    words.inbox = {kind: {WHO: object(), Address("server", 0): object()} for kind in kinds}
    assert rebirths.lost(WHO, KILLED, words)
    assert [kind for kind in kinds if WHO in words.inbox[kind]] == [control.Saved]
    assert all(Address("server", 0) in box for box in words.inbox.values())


def test_a_life_that_dies_before_it_knows_where_it_goes_on_does_not_take_its_place_back_to_the_beginning(
    rebirths: Rebirths,
) -> None:
    rebirths.links.board = cast(Any, switchboard(lambda roles, word: None))
    assert rebirths.lost(WHO, KILLED, heard())
    seat = rebirths.seats[WHO]
    seat.told[Address("server", 0)] = SimpleNamespace(ended=False, floor=0)  # type: ignore[assignment]
    rebirths._enter(seat, [])
    assert not rebirths.settled
    rebirths.roster.seen[WHO].step = -1  # as its first report says
    assert rebirths.lost(WHO, KILLED, heard()) and rebirths.seats[WHO].step == 7


def test_a_new_life_is_never_told_that_another_is_where_a_dead_one_was() -> None:
    """Both are lost; the first is ready while the second, for the second time, still has to be forked."""
    other, told = Address("worker", 0), list[tuple[Address, Any]]()
    both = [other, WHO]
    roster: Any = SimpleNamespace(
        trainers=both, roles=both, seen={who: RoleRecord(heard=0.0, step=7) for who in both},
        tallies={who: SimpleNamespace(samples=32) for who in both},
    )  # fmt: skip
    board: Any = switchboard(lambda roles, word: told.extend((who, word) for who in roles))
    begun = list[dict[Address, int]]()

    def start(who: Address, lives: Mapping[Address, int]) -> str:
        begun.append(dict(lives))
        return f"{who} in life {lives[who]}"

    rebirths = Rebirths(roster, board, Renewal(Deaths(9), start), print)
    rebirths.begun, words = True, heard()
    for who in (WHO, WHO, other):
        assert rebirths.lost(who, KILLED, words)
        rebirths.advance(words, [], 0.0)
    assert begun == [{WHO: 1}, {WHO: 1, other: 1}], "of its second life the other knows nothing yet"
    assert rebirths.seats[other].forked and not rebirths.seats[WHO].forked, "its second death costs a pause"
    words.inbox[control.RoleReady] = {other: control.RoleReady("", 1)}
    rebirths.advance(words, [], 0.0)
    rebirths.seats[WHO].due = 0.0
    rebirths.advance(words, [], 0.0)
    known = [(word.life, word.endpoint) for who, word in told if who == other and isinstance(word, control.Install)]
    assert all(endpoint == f"worker 1 in life {life}" for life, endpoint in known) and known[-1][0] == 2


def test_a_life_that_dies_before_it_begins_is_an_event_of_its_own(
    rebirths: Rebirths, told: list[MembershipEvent]
) -> None:
    for loss in range(3):
        assert rebirths.lost(WHO, KILLED, heard())
        assert len(rebirths.log.events) == len(told) == loss + 1 and rebirths.seats[WHO].step == 7
    first, second, last = rebirths.log.events
    assert [(event.who, event.view, event.cause) for event in (first, second, last)] == [
        ("worker 1", view, "killed by signal 9") for view in (1, 2, 3)
    ]
    assert first.stalled > 0 and second.stalled > 0 and last.stalled == 0, "the third life has not begun yet"
    assert [event.stalled for event in told] == [0.0, 0.0, 0.0], "it is told at once"


def test_a_death_at_the_furthest_step_counts_though_one_before_was_earlier() -> None:
    deaths = Deaths(most=2)
    assert [deaths.note(WHO, reached, KILLED) for reached in (5, 3)] == [0.0, 1.0]
    with pytest.raises(PeerLost, match="it died 3 times without finishing a step"):
        deaths.note(WHO, 5, KILLED)


def test_a_death_at_an_earlier_step_is_not_followed_by_a_new_one() -> None:
    """A new life may begin some steps back: what its predecessor had reached counts."""
    deaths = Deaths(2)
    deaths.note(WHO, 10, "died")
    deaths.note(WHO, 9, "died")
    with pytest.raises(PeerLost, match="worker 1 died: it died 3 times without finishing a step"):
        deaths.note(WHO, 10, "died")


Ranged = tuple[Rebirths, list[Any], list[Address]]
OTHERS = [Address("worker", 0), Address("worker", 2), Address("server", 0)]


@pytest.fixture
def ranged(rebirths: Rebirths) -> Ranged:
    """One of three workers, two of which must stay; what all roles are told, and who is to join."""
    told: list[Any] = []
    joins: list[Address] = []
    rebirths.roster.roles = [WHO, *OTHERS]
    rebirths.roster.trainers = [WHO, *OTHERS[:2]]
    rebirths.roster.seen |= {other: RoleRecord(heard=0.0, step=7) for other in OTHERS}
    rebirths.links.board = cast(Any, switchboard(lambda roles, word: told.append((list(roles), word))))
    rebirths.links.renewal = Renewal(
        Deaths(1), lambda who, lives: f"ipc://next-{lives[who]}", None, 2, "ipc://nobody-", lambda empty: joins
    )
    return rebirths, told, joins


def test_a_worker_that_is_told_to_leave_leaves_its_seat_empty(ranged: Ranged) -> None:
    rebirths, told, _ = ranged
    assert rebirths.lost(WHO, "exited with signal 15, SIGTERM", heard())
    assert not rebirths.seats and rebirths.empty == {WHO} and rebirths.present([WHO]) == []
    assert rebirths.roster.seen[WHO].ended, "nobody waits for it"
    listeners, word = told[0]
    assert listeners == [*OTHERS, SCORER]
    assert word == control.Install(WHO, 1, "ipc://nobody-1.1", empty=True)
    assert [(event.event, event.workers) for event in rebirths.log.events] == [("leave", 2)]


def die_twice(rebirths: Rebirths) -> None:
    assert rebirths.lost(WHO, KILLED, heard())
    rebirths.advance(heard(), [], 0.5)
    assert rebirths.lost(WHO, KILLED, heard())


def test_others_go_on_at_once_where_enough_are_left(ranged: Ranged) -> None:
    rebirths, told, _ = ranged
    assert rebirths.lost(WHO, KILLED, heard())
    assert not rebirths.seats and rebirths.empty == {WHO} and rebirths.settled, "checkpoints may be kept"
    assert told == [([*OTHERS, SCORER], control.Install(WHO, 2, "ipc://nobody-1.2", empty=True))]
    assert rebirths.workers == 3 and rebirths.log.events[0].event == "rebirth", "it comes back by itself"
    rebirths.advance(heard(), [], 0.5)
    seat = rebirths.seats[WHO]
    assert not rebirths.empty and (seat.life, seat.step, seat.forked) == (3, 0, True), "it enters where the others are"
    assert not rebirths.awaited and not rebirths.settled, "the model may be scored, but the run not kept"
    ready = heard()
    ready.inbox[control.RoleReady] = {WHO: control.RoleReady("", 1)}
    ready.phase = "scoring"
    rebirths.advance(ready, [], 0.6)
    assert len(told) == 1, "nobody hears of it while the model is scored"
    rebirths.advance(heard(), [], 0.7)
    assert told[-1] == ([*OTHERS, SCORER], control.Install(WHO, 3, "ipc://next-3")) and rebirths.awaited
    seat.told[OTHERS[2]] = SimpleNamespace(ended=False, floor=0)  # type: ignore[assignment]
    rebirths._enter(seat, [])
    assert rebirths.log.events[0].stalled == 0.0, "training has not stood still"


def test_a_worker_that_leaves_makes_the_others_wait_for_those_that_come_back(ranged: Ranged) -> None:
    """Else nobody would train, and servers would take the run for ended: so they hear of the one that comes first."""
    rebirths, told, _ = ranged
    rebirths.roster.tallies[OTHERS[0]] = SimpleNamespace(samples=32)  # type: ignore[assignment]
    assert rebirths.lost(WHO, KILLED, heard()) and rebirths.returning.keys() == {WHO}
    assert rebirths.lost(OTHERS[0], "exited with signal 15, SIGTERM", heard())
    assert rebirths.empty == {OTHERS[0]} and rebirths.awaited and rebirths.seats[WHO].forked
    words = [(word.who, word.empty) for _, word in told if isinstance(word, control.Install)]
    assert words == [(WHO, True), (WHO, False), (OTHERS[0], True)]


@pytest.mark.parametrize("ready", [True, False])
def test_so_does_one_that_is_being_built_when_another_leaves(ranged: Ranged, ready: bool) -> None:
    rebirths, told, _ = ranged
    assert rebirths.lost(WHO, KILLED, heard())
    rebirths.advance(heard(), [], 0.5)
    built = heard("scoring")
    built.inbox[control.RoleReady] = {WHO: control.RoleReady("", 1)} if ready else {}
    rebirths.advance(built, [], 0.6)
    assert not rebirths.awaited
    assert rebirths.lost(OTHERS[0], "exited with signal 15, SIGTERM", heard())
    assert rebirths.awaited and rebirths.seats[WHO].announced
    words = [(word.who, word.empty) for _, word in told if isinstance(word, control.Install)]
    assert words[1:] == [(WHO, False), (OTHERS[0], True)]


def test_one_that_dies_or_leaves_when_all_others_have_ended_is_replaced(ranged: Ranged) -> None:
    """Its next life knows what was lost with it; a run whose last worker just went would not tell."""
    rebirths = ranged[0]
    for other in OTHERS[:2]:
        rebirths.roster.seen[other].ended = True
    assert rebirths.lost(WHO, "exited with signal 15, SIGTERM", heard()) and rebirths.seats.keys() == {WHO}
    assert rebirths.lost(WHO, KILLED, heard()) is True and not rebirths.returning


def test_a_life_that_dies_while_it_is_built_has_held_up_nobody(ranged: Ranged) -> None:
    rebirths = ranged[0]
    rebirths.links.renewal = replace(cast(Renewal, rebirths.renewal), deaths=Deaths(9))
    die_twice(rebirths)
    assert [(event.event, event.stalled) for event in rebirths.log.events] == [("rebirth", 0.0), ("rebirth", 0.0)]
    rebirths.advance(heard("stopping"), [], 0.9)
    assert rebirths.returning.keys() == {WHO} and rebirths.settled, "a run that ends does not wait for it"


def test_a_new_life_knows_who_was_lost_after_the_end_of_its_program(ranged: Ranged) -> None:
    rebirths, told, _ = ranged
    rebirths.roster.seen[OTHERS[0]] = RoleRecord(heard=0.0, step=9, ended=True)
    assert rebirths.lost(OTHERS[0], KILLED, heard()) and rebirths.lost(WHO, KILLED, heard())
    rebirths.seats[WHO].told[OTHERS[2]] = SimpleNamespace(ended=False, floor=0)  # type: ignore[assignment]
    rebirths._enter(rebirths.seats[WHO], [])
    (go,) = (word for _, word in told if isinstance(word, control.Go))
    assert go.ended == [OTHERS[0]]


def test_where_too_few_are_left_they_wait_for_the_one_that_died(ranged: Ranged) -> None:
    rebirths, told, _ = ranged
    rebirths.empty.add(OTHERS[0])
    rebirths.finished.add(OTHERS[0])
    assert rebirths.lost(WHO, KILLED, heard())
    assert rebirths.seats[WHO].step == 7 and WHO not in rebirths.empty and not told


def test_of_two_that_die_at_once_only_one_is_done_without(ranged: Ranged) -> None:
    rebirths, other = ranged[0], OTHERS[0]
    rebirths.roster.seen[other] = RoleRecord(heard=0.0, step=7)
    rebirths.roster.tallies.setdefault(other, cast(Any, SimpleNamespace(samples=32)))
    assert rebirths.lost(WHO, KILLED, heard()) and rebirths.lost(other, KILLED, heard())
    assert rebirths.returning.keys() == {WHO} and rebirths.seats.keys() == {other}


def test_of_two_that_come_back_the_first_one_does_not_wait_for_the_second(ranged: Ranged) -> None:
    """Who is ready first hears that the other one's seat is empty, as all others know, and then of its next life."""
    (rebirths, told, _), other = ranged, OTHERS[0]
    begun = list[dict[Address, int]]()

    def start(who: Address, lives: Mapping[Address, int]) -> str:
        begun.append(dict(lives))
        return f"ipc://next-{lives[who]}"

    rebirths.links.renewal = replace(cast(Renewal, rebirths.renewal), start=start, least=1)
    for who in (WHO, other):
        rebirths.roster.seen[who] = RoleRecord(heard=0.0, step=7)
        rebirths.roster.tallies.setdefault(who, cast(Any, SimpleNamespace(samples=32)))
        assert rebirths.lost(who, KILLED, heard())
    rebirths.advance(heard(), [], 0.5)
    assert begun == [{WHO: 3, other: 1}, {WHO: 1, other: 3}], "neither knows yet that the other's seat is empty"
    told.clear()
    words = heard()
    words.inbox[control.RoleReady] = {WHO: control.RoleReady("", 1)}
    rebirths.advance(words, [], 0.6)
    assert told[0] == ([WHO], control.Install(other, 2, "ipc://nobody-0.2", empty=True))
    assert told[1] == ([*OTHERS[1:], SCORER], control.Install(WHO, 3, "ipc://next-3")), "the second is being built"
    told.clear()
    words.inbox[control.RoleReady] = {other: control.RoleReady("", 1)}
    rebirths.advance(words, [], 0.7)
    assert ([other], control.Install(WHO, 3, "ipc://next-3")) in told
    listeners = next(to for to, word in told if word == control.Install(other, 3, "ipc://next-3"))
    assert WHO in listeners, "and the first one hears that somebody comes"


def test_one_that_dies_too_often_leaves_its_seat_empty(ranged: Ranged) -> None:
    rebirths, _, _ = ranged
    die_twice(rebirths)
    assert [event.event for event in rebirths.log.events] == ["rebirth", "leave"] and not rebirths.seats
    assert "it died 2 times without finishing a step" in rebirths.log.events[-1].cause


def test_below_the_smaller_number_the_run_ends(ranged: Ranged) -> None:
    rebirths, _, _ = ranged
    rebirths.empty.add(OTHERS[0])
    with pytest.raises(PeerLost, match="worker 1 was told to leave: only 1 worker is left, and .* at least 2: use"):
        rebirths.lost(WHO, "exited with signal 15, SIGTERM", heard())


def test_a_request_to_join_is_forgotten_where_no_seat_is_empty(ranged: Ranged) -> None:
    rebirths, requests = ranged[0], JoinRequests()
    assert rebirths.renewal is not None
    rebirths.links.renewal = replace(rebirths.renewal, joining=lambda empty: list(empty[: requests.taken(len(empty))]))
    requests(10, None)
    rebirths.advance(heard(), [], 1.0)
    rebirths.lost(WHO, "exited with signal 15, SIGTERM", heard())
    rebirths.advance(heard(), [], 2.0)
    assert rebirths.empty == {WHO}


def scaled(rebirths: Rebirths) -> list[Address]:
    """Let the run find out itself how many workers it has, for now one less than there are; who is released."""
    released, seats = list[Address](), ScaledSeats(WorkerScaling(3, 4))
    for who in rebirths.roster.trainers:
        rebirths.roster.seen.setdefault(who, RoleRecord(heard=0.0, step=7))
        rebirths.roster.tallies.setdefault(who, cast(Any, SimpleNamespace(samples=32)))
    cast(Any, rebirths.roster).samples = 0
    assert rebirths.renewal is not None
    rebirths.links.renewal = replace(rebirths.renewal, scaling=seats, release=released.append)
    seats.scaling.wanted = 2
    rebirths.advance(heard(), [], 1.0)
    rebirths.advance(heard(), [], 1.1)
    return released


def test_one_that_was_released_and_died_first_is_released_again(ranged: Ranged) -> None:
    rebirths, last = ranged[0], OTHERS[1]
    released = scaled(rebirths)
    assert released == [last]
    assert rebirths.lost(last, KILLED, heard())
    rebirths.advance(heard(), [], 2.0)
    assert not rebirths.settled and released == [last]
    rebirths.seats[last].told[OTHERS[2]] = SimpleNamespace(ended=False, floor=0)  # type: ignore[assignment]
    rebirths._enter(rebirths.seats[last], [])
    rebirths.entered.clear()  # it knows where it goes on
    rebirths.advance(heard(), [], 3.0)
    assert released == [last, last]


def test_scaling_fills_the_seat_of_one_it_released_and_no_other(ranged: Ranged) -> None:
    rebirths, last = ranged[0], OTHERS[1]
    scaled(rebirths)
    assert rebirths.renewal and rebirths.renewal.scaling
    assert rebirths.lost(last, "exited with signal 15, SIGTERM", heard())
    rebirths.advance(heard(), [], 2.0)
    assert rebirths.empty == {last}
    rebirths.renewal.scaling.scaling.wanted = 3
    rebirths.advance(heard(), [], 3.0)
    assert not rebirths.empty and rebirths.log.events[-1].event == "join"


def test_a_seat_that_somebody_else_emptied_is_not_filled_by_scaling(ranged: Ranged) -> None:
    rebirths, _, _ = ranged
    scaled(rebirths)
    die_twice(rebirths)
    assert rebirths.renewal and rebirths.renewal.scaling
    for second in range(3):
        rebirths.renewal.scaling.scaling.wanted = 3
        rebirths.advance(heard(), [], 2.0 + second)
    assert rebirths.empty == {WHO} and [event.event for event in rebirths.log.events] == ["rebirth", "leave"]


def test_whoever_joins_has_not_died_of_what_its_predecessor_did(ranged: Ranged) -> None:
    rebirths, _, joins = ranged
    die_twice(rebirths)
    joins.append(WHO)
    rebirths.advance(heard(), [], 2.5)
    joins.clear()
    assert rebirths.lost(WHO, KILLED, heard())
    assert [event.event for event in rebirths.log.events] == ["rebirth", "leave", "join", "rebirth"]


def test_whoever_joins_is_a_life_after_the_one_that_went(ranged: Ranged) -> None:
    rebirths, told, joins = ranged
    rebirths.lost(WHO, "exited with signal 15, SIGTERM", heard())
    joins.append(WHO)
    rebirths.advance(heard(), [], 2.5)
    assert not rebirths.empty and rebirths.seats[WHO].life == 2 and not rebirths.roster.seen[WHO].ended
    assert len(told) == 1 and rebirths.seats[WHO].forked, "nobody waits for it while it is being built"
    joins.clear()
    words = heard()
    words.inbox[control.RoleReady] = {WHO: control.RoleReady("", 1)}
    rebirths.advance(words, [], 2.6)
    assert told[-1] == ([*OTHERS, SCORER], control.Install(WHO, 2, "ipc://next-2"))
    assert rebirths.log.events[-1].event == "join" and rebirths.log.events[-1].seconds == 2.5


# -- on several hosts


def test_where_roles_choose_their_ports_nobody_hears_of_a_new_life_before_it_has_said_which(rebirths: Rebirths) -> None:
    told = list[Any]()
    rebirths.links.board = switchboard(lambda roles, word: told.extend(word for _ in roles))
    rebirths.links.renewal = Renewal(Deaths(9), lambda who, lives: "tcp://10.0.0.2:*")
    rebirths.links.book = {"worker 1": "tcp://10.0.0.2:1", str(SCORER): "tcp://10.0.0.9:2"}
    words = heard()
    assert rebirths.lost(WHO, "was lost with host h1, and so on", words)
    assert rebirths.seats[WHO].event.cause == "lost with host h1"
    rebirths.advance(words, [], 0.0)
    assert rebirths.seats[WHO].forked and told == []
    words.inbox[control.Bound] = {WHO: control.Bound("tcp://10.0.0.2:77")}
    rebirths.advance(words, [], 0.0)
    book, install = told
    assert book == control.Endpoints({"worker 1": "tcp://10.0.0.2:77", str(SCORER): "tcp://10.0.0.9:2"})
    assert install == control.Install(WHO, 1, "tcp://10.0.0.2:77", empty=False)


def test_a_worker_whose_host_is_away_is_waited_for_until_patience_ends(rebirths: Rebirths) -> None:
    here, started = list[Address](), list[Address]()

    def start(who: Address, lives: Mapping[Address, int]) -> str:
        started.append(who)
        return "ipc://nowhere"

    rebirths.links.renewal = Renewal(Deaths(9), start, renewable=lambda who: who in here, patience=60.0)
    assert rebirths.lost(WHO, "was lost with host h1", heard())
    rebirths.advance(heard(), [], 0.0)
    assert not started and rebirths.awaited
    rebirths.seats[WHO].died -= 61.0
    with pytest.raises(PeerLost, match="worker 1 was lost with host h1, which did not come back within 60 s"):
        rebirths.advance(heard(), [], 0.0)
    here.append(WHO)
    rebirths.advance(heard(), [], 0.0)
    assert started == [WHO]


def test_in_a_range_a_host_that_is_away_keeps_nobody_waiting(rebirths: Rebirths) -> None:
    """Its seat counts as settled, so that the model is scored and kept."""
    other, here = Address("worker", 0), list[Address]()
    rebirths.roster.trainers.insert(0, other)
    rebirths.roster.seen[other] = RoleRecord(heard=0.0, step=7)
    rebirths.links.renewal = Renewal(
        Deaths(9), lambda who, lives: "ipc://nowhere", least=1, renewable=lambda who: who in here, patience=0.0
    )
    assert rebirths.lost(WHO, "was lost with host h1", heard())
    rebirths.advance(heard(), [], 0.0)
    assert rebirths.settled and not rebirths.awaited and WHO in rebirths.returning
    here.append(WHO)
    rebirths.advance(heard(), [], 0.0)
    assert rebirths.seats[WHO].forked and not rebirths.awaited
