"""Loops of the user's own, as their launcher sees them: they vote, and whoever leaves the others waiting is named."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from covey.engines.process.control import (
    Downward,
    How,
    Left,
    Report,
    Resumed,
    RoleEnded,
    SampleOrder,
    Vote,
    VoteResult,
)
from covey.engines.process.launcher.own_loops import SHARD, OwnLoops
from covey.errors import PlanError
from covey.message import Address
from covey.observe.tally import Tally

ZERO, ONE, TWO = (Address("worker", rank) for rank in range(3))
AGREE = "member.agree(…, how='any')"


class Room:
    """The launcher's knowledge, and what it said."""

    def __init__(self, in_step: bool = True, elastic: bool = False) -> None:
        self.said: list[tuple[list[Address], Downward]] = []
        self.loops = OwnLoops([ZERO, ONE, TWO], in_step, self.tell, elastic)

    def tell(self, roles: Iterable[Address], word: Downward) -> None:
        self.said.append((sorted(roles), word))

    def vote(self, who: Address, value: float, number: int = 1, how: How = "any", steps: int = 5) -> None:
        self.loops.hear(who, Vote(number, f"member.agree(…, how={how!r})", how, value, steps))

    def stepped(self, who: Address, given: int) -> None:
        self.loops.note(who, Report(given, Tally(who=who), given=given))

    def ended(self, who: Address) -> None:
        self.loops.note(who, RoleEnded(Tally(who=who)))


@pytest.mark.parametrize(
    ("how", "values", "found"),
    [
        ("any", (0, 1, 0), 1), ("any", (0, 0, 0), 0), ("all", (1, 1, 1), 1), ("all", (1, 0, 1), 0),
        ("mean", (1.5, 2.5, 5), 3), ("sum", (1, 2, 4), 7),
    ],
)  # fmt: skip
def test_all_hear_what_all_have_said(how: How, values: tuple[float, ...], found: float) -> None:
    room = Room()
    for who, value in zip((TWO, ZERO, ONE), values, strict=True):
        assert room.said == []
        room.vote(who, value, how=how)
    assert room.said == [([ZERO, ONE, TWO], VoteResult(1, found))]


def test_votes_on_different_things_are_named() -> None:
    room = Room()
    room.vote(ZERO, 1, how="any", steps=4)
    with pytest.raises(PlanError, match=r"worker 1 called .*how='all'\) after 5 steps where worker 0 called .*'any'"):
        room.vote(ONE, 1, how="all")


def test_who_has_left_is_named_by_those_who_vote() -> None:
    room = Room(in_step=False)
    room.loops.hear(ONE, Left(steps=7, votes=0))
    with pytest.raises(PlanError, match=r"worker 1 left its training loop after 7 steps, and worker 0 waits for it in"):
        room.vote(ZERO, 1)
    room = Room(in_step=False)
    room.vote(ZERO, 1)
    with pytest.raises(PlanError, match=r"worker 1 left its training loop after 3 steps"):
        room.loops.hear(ONE, Left(steps=3, votes=0))


def test_all_may_leave_after_a_vote() -> None:
    room = Room()
    for who in (ZERO, ONE, TWO):
        room.vote(who, 1)
    for who in (ZERO, ONE, TWO):
        room.stepped(who, 5)
        room.loops.hear(who, Left(steps=5, votes=1))
        room.ended(who)


def test_who_leaves_the_others_waiting_is_named_at_once() -> None:
    room = Room()
    room.loops.hear(TWO, Left(steps=3, votes=0))
    room.stepped(ZERO, 3)
    with pytest.raises(PlanError, match=r"worker 2 left its training loop after 3 steps, and worker 0.*member\.agree"):
        room.stepped(ZERO, 4)


def test_and_so_is_one_of_whom_is_heard_later() -> None:
    room = Room()
    room.stepped(ZERO, 4)
    with pytest.raises(PlanError, match=r"worker 2 left its training loop after 3 steps"):
        room.loops.hear(TWO, Left(steps=3, votes=0))


def test_loops_of_unequal_lengths_are_named_when_the_last_one_ends() -> None:
    """Also where no report came between the two: a short run would end in silence."""
    room = Room()
    room.loops.hear(TWO, Left(steps=3, votes=0))
    room.loops.hear(ONE, Left(steps=3, votes=0))
    with pytest.raises(PlanError, match=r"worker 2 left .* after 3 steps, and worker 0 after 5.*amounts of data"):
        room.loops.hear(ZERO, Left(steps=5, votes=0))
    free = Room(in_step=False)
    for who, steps in ((ZERO, 3), (ONE, 5), (TWO, 4)):
        free.loops.hear(who, Left(steps=steps, votes=0))


def test_where_nobody_waits_the_others_go_on() -> None:
    room = Room(in_step=False)
    room.loops.hear(TWO, Left(steps=3, votes=0))
    room.stepped(ZERO, 40)


def test_a_step_past_a_vote_is_named() -> None:
    room = Room()
    room.vote(ZERO, 1, steps=5)
    room.stepped(ONE, 5)
    with pytest.raises(PlanError, match=r"worker 0 waits in .* after 5 steps, and worker 1 went on to the next step"):
        room.stepped(ONE, 6)
    free = Room(in_step=False)
    free.vote(ZERO, 1, steps=5)
    free.stepped(ONE, 9)


def test_those_whose_run_has_ended_are_not_waited_for() -> None:
    room = Room()
    room.vote(ZERO, 1)
    room.vote(TWO, 0)
    room.ended(ONE)
    assert room.said == [([ZERO, TWO], VoteResult(1, 1))]


def test_loaders_that_draw_differently_are_named() -> None:
    room = Room()
    for who in (ZERO, ONE, TWO):
        room.loops.hear(who, SampleOrder(0, "a"))
    room.loops.hear(ZERO, SampleOrder(1, "b"))
    with pytest.raises(PlanError, match="the loader of worker 1 draws different samples from that of worker 0"):
        room.loops.hear(ONE, SampleOrder(1, "c"))
    assert list(room.loops.orders) == [1], "what all have told is forgotten"


def test_shards_of_other_data_are_named() -> None:
    for first, second in (("24", "8"), ("8", "24")):
        room = Room()
        room.loops.hear(ZERO, SampleOrder(0, f"{SHARD} {first} samples in batches of 4"))
        with pytest.raises(PlanError, match=rf"worker 1 takes .* {second} samples .* worker 0 .* {first} samples"):
            room.loops.hear(ONE, SampleOrder(0, f"{SHARD} {second} samples in batches of 4"))
    room = Room()
    room.loops.hear(ZERO, SampleOrder(0, "a"))
    with pytest.raises(PlanError, match=r"from member\.shard with 8 .* from member\.loader"):
        room.loops.hear(ONE, SampleOrder(0, f"{SHARD} 8 samples in batches of 4"))


def test_a_stall_names_who_has_left() -> None:
    room = Room(in_step=False)
    assert room.loops.gone() == ""
    room.loops.hear(TWO, Left(steps=3, votes=0))
    assert room.loops.gone() == "\n  worker 2 left its training loop after 3 steps"


def test_votes_end_without_a_lost_worker_until_it_knows_where_it_is() -> None:
    room = Room(elastic=True)
    room.vote(ONE, 1)
    room.vote(TWO, 0)
    room.loops.lose(ONE)  # what it said is lost with it
    room.vote(ZERO, 0)
    assert room.said.pop() == ([ZERO, TWO], VoteResult(1, 0))
    room.vote(ZERO, 0, number=2)
    room.loops.hear_incarnation(ONE, Resumed(8))
    room.vote(ONE, 1)
    assert room.said.pop() == ([ONE], VoteResult(1, 0)), "all decide the same"
    room.vote(TWO, 0, number=2)
    assert room.said == []
    room.vote(ONE, 1, number=2)
    assert room.said == [([ZERO, ONE, TWO], VoteResult(2, 1))]


def test_a_worker_that_is_lost_after_its_loop_comes_to_the_end_again() -> None:
    room = Room(elastic=True)
    for who in (ZERO, ONE):
        room.stepped(who, 5)
        room.loops.hear(who, Left(steps=5, votes=0))
    room.loops.lose(ONE)
    room.stepped(ONE, 6)  # an old word: nothing is held against one that is away
    room.loops.hear_incarnation(ONE, Resumed(8))
    room.stepped(ONE, 5)
    room.loops.hear(ONE, Left(steps=5, votes=0))
    assert set(room.loops.left) == {ZERO, ONE}
