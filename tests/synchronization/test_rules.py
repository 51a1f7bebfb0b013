"""The rules are small values: who may read, which gradients make an update, what each counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.synchronization import (
    Board,
    Bounded,
    Each,
    Everyone,
    Near,
    Newer,
    Open,
    Predicted,
    Quorum,
    Soft,
    Ticked,
    WaitingGradient,
    damp,
)

clocks = st.integers(0, 1000)


@given(slowest=clocks, lead=clocks, bound=st.integers(0, 50))
def test_bounded_admits_up_to_the_bound_and_no_further(slowest: int, lead: int, bound: int) -> None:
    board = Board({0: slowest + lead, 1: slowest})
    assert Bounded(bound).admits(0, board) == (lead <= bound)
    assert Bounded(bound).admits(1, board)
    assert Open().admits(0, board)


def test_everyone_waits_for_all_who_still_train_and_orders_by_rank() -> None:
    board = Board({0: 1, 1: 1, 2: 0})
    waiting = [WaitingGradient(1, 0, 4), WaitingGradient(0, 0, 8)]
    assert Everyone().choose(waiting, board) is None
    board.leave(2)
    choice = Everyone().choose(waiting, board)
    assert choice is not None and choice.used == [1, 0] and choice.weights == [8, 4]


@pytest.mark.parametrize(
    ("damping", "age", "weight"),
    [
        ("none", 4, 1),
        ("inverse", 0, 1),
        ("inverse", 1, 1),
        ("inverse", 4, 1 / 4),
        ("dynamic", 0, 1),
        ("dynamic", 4, 1 / 5),
    ],
)
def test_damping_by_age(damping: str, age: int, weight: float) -> None:
    """Staleness-aware divides by the staleness, DynSGD by one more: the two are neighbours that must differ."""
    assert damp(damping, age) == weight


def test_each_takes_one_gradient_at_its_share() -> None:
    choice = Each(0.25).choose([WaitingGradient(2, 0, 8), WaitingGradient(1, 3, 8)], Board({1: 1, 2: 1}, version=3))
    assert choice is not None and choice.used == [0] and choice.scale == 0.25


def test_quorum_takes_the_first_fresh_ones_and_never_a_late_one() -> None:
    board = Board({0: 3, 1: 3, 2: 2}, version=3)
    waiting = [WaitingGradient(2, 2, 8), WaitingGradient(1, 3, 8)]
    assert Quorum(2).choose(waiting, board) is None
    choice = Quorum(2).choose([*waiting, WaitingGradient(0, 3, 8)], board)
    assert choice is not None and (choice.used, choice.dropped) == ([2, 1], [0])
    folded = Quorum(2, late="fold").choose([*waiting, WaitingGradient(0, 3, 8)], board)
    assert folded is not None and (folded.used, folded.dropped) == ([2, 1, 0], ())


def test_quorum_counts_workers_or_gradients() -> None:
    board, twice = Board({0: 1, 1: 0}, version=0), [WaitingGradient(0, 0, 8), WaitingGradient(0, 0, 8)]
    assert Quorum(2).choose(twice, board) is None
    assert Quorum(2, count="gradients").choose(twice, board) is not None


def test_a_reader_with_a_late_gradient_is_admitted_at_once() -> None:
    board = Board({0: 1, 1: 1}, version=2, pushed={0: 2, 1: 1})
    assert not Newer().admits(0, board)
    assert Newer().admits(1, board)
    assert Newer().admits(0, Board({0: 0}))


def test_softsync_mixes_versions() -> None:
    board = Board({0: 1, 1: 1, 2: 1, 3: 1}, version=5)
    assert Soft(2).choose([WaitingGradient(0, 5, 8)], board) is None
    choice = Soft(2, "inverse").choose([WaitingGradient(0, 5, 8), WaitingGradient(3, 1, 8)], board)
    assert choice is not None and choice.used == [0, 1] and choice.weights == [1, 1 / 4]
    assert choice.scale == pytest.approx((1 + 1 / 4) / 2), "the update is sum(g_i / tau_i) / size"


def test_near_admits_below_its_bound_and_not_at_it() -> None:
    """The weights moved by 0.25 since the oldest copy in use (Langer et al. 2020)."""
    board = Board({0: 1}, moved=0.25)
    assert [Near(bound).admits(0, board) for bound in (0.2499, 0.25, 0.2501)] == [False, False, True]


def test_a_proxy_writes_back_when_its_slowest_has_ticked_or_all_have_left() -> None:
    """Everything that waits goes, also what a fast worker did ahead; at goodbye nothing stays."""
    ahead = [WaitingGradient(0, 5, 8), WaitingGradient(0, 5, 4)]
    board = Board({0: 5, 1: 3}, version=3)
    assert Ticked(by_samples=True).choose(ahead, board) is None
    board.came(WaitingGradient(1, 4, 2), 0.0)
    ticked = Ticked(by_samples=True).choose([*ahead, WaitingGradient(1, 4, 2)], board)
    assert ticked is not None and (ticked.used, ticked.weights) == ([0, 1, 2], [8, 4, 2])
    board.leave(1)
    equal = Ticked(by_samples=False).choose(ahead, board)
    assert equal is not None and equal.weights == [1, 1], "the slowest that is left is ahead already"
    board.leave(0)
    assert Ticked(by_samples=False).choose(ahead, Board({}, version=9)) is not None
    assert Ticked(by_samples=False).choose([], Board({})) is None


def test_a_proxys_gradient_counts_as_many_as_it_is_of() -> None:
    choice = Each(0.25).choose([WaitingGradient(0, 0, 24, 3)], Board({0: 1}))
    assert choice is not None and choice.scale == 0.75


def test_an_update_of_everyone_takes_one_of_each_though_some_are_ahead() -> None:
    waiting = [WaitingGradient(0, 0, 8), WaitingGradient(0, 0, 8), WaitingGradient(1, 0, 8)]
    choice = Everyone().choose(waiting, Board({0: 2, 1: 1}))
    assert choice is not None and choice.used == [0, 2]


def test_dssp_grants_the_steps_that_meet_a_step_of_the_slowest() -> None:
    """Periods 1 and 3: at time 7 the slow worker ends its next step at 9, which is two steps of the fast one away."""
    board = Board({0: 7, 1: 2}, times={0: [6.0, 7.0], 1: [3.0, 6.0]})
    assert Predicted(1, 4).grant(0, board) == 2


@pytest.mark.parametrize(
    ("mine", "theirs", "extra", "steps"),
    [
        ([6.0, 7.0], [4.0, 7.0], 4, 3),  # what counts is the slow one's next step, at 10, and not its last, at 7
        ([6.0, 9.0], [3.0, 7.0], 4, 2),  # 9 12 15 18 21 and 11 15 19 23 27: its step after the next
        ([9.0, 12.0], [3.0, 7.0], 1, 1),  # 12 15 and 11 15: as far ahead as one may look
        ([8.0, 11.0], [3.0, 7.0], 4, 0),  # 11 and 11: stop here
        ([6.0, 6.5], [3.0, 7.0], 4, 4),  # 6.5 7 7.5 8 8.5, and 11 at the earliest: go as far as is granted
    ],
)  # fmt: skip
def test_dssp_predicts_both_workers_by_their_own_last_periods(
    mine: list[float], theirs: list[float], extra: int, steps: int
) -> None:
    board = Board({0: 7, 1: 2, 2: 5}, times={0: mine, 1: theirs, 2: [0.0, 1.0]})
    assert Predicted(1, extra).grant(0, board) == steps


def test_dssp_grants_nothing_before_it_has_seen_two_steps_of_both() -> None:
    for times in ({0: [7.0], 1: [3.0, 6.0]}, {0: [6.0, 7.0], 1: [6.0]}, {0: [6.0, 7.0]}):
        assert Predicted(1, 4).grant(0, Board({0: 7, 1: 2}, times=times)) == 0


def test_dssp_grants_steps_to_the_fastest_only() -> None:
    """Worker 1 leads by 2, as worker 0 did a step ago, and would be predicted to gain by going on."""
    times = {0: [6.0, 7.0], 1: [5.5, 6.5], 2: [3.0, 6.0]}
    board, alone = Board({0: 4, 1: 3, 2: 1}, times=times), Board({0: 3, 1: 3, 2: 1}, times=times)
    assert Predicted(1, 4).grant(1, board) > 0
    assert not Predicted(1, 4).admits(1, board) and Predicted(1, 4).admits(0, board)
    assert Predicted(1, 4).admits(1, alone), "two may be fastest"


def test_dssp_decides_once_and_what_it_granted_is_used_up() -> None:
    """A grant of two serves the next two reads, though the slowest comes near; who must wait is granted no more."""
    board = Board({0: 3, 1: 1}, times={0: [6.0, 7.0], 1: [3.0, 6.0]})
    assert Predicted(1, 4).admits(0, board) and board.credits == {0: 1}
    board.clocks.update({0: 4, 1: 3})
    board.least = None
    assert Predicted(1, 4).admits(0, board) and board.credits == {0: 0}
    late = Board({0: 6, 1: 1}, times={0: [6.0, 7.0], 1: [3.0, 6.0]})
    assert not Predicted(1, 4).admits(0, late), "as far ahead as may be"
    late.came(WaitingGradient(1, 0, 1), 9.0)
    assert Predicted(1, 4).grant(0, late) > 0 and not Predicted(1, 4).admits(0, late), "until it leads by 1"
    for now in (12.0, 15.0, 18.0):
        late.came(WaitingGradient(1, 0, 1), now)
    assert Predicted(1, 4).admits(0, late)


@given(st.lists(st.sampled_from([0, 0, 0, 1]), max_size=60), st.integers(0, 3), st.integers(0, 4))
def test_dssp_never_goes_beyond_its_range(pushes: list[int], low: int, extra: int) -> None:
    gate, board = Predicted(low, extra), Board({0: 0, 1: 0})
    blocked = False
    for now, rank in enumerate(pushes):
        if rank == 0 and blocked and not (admitted := gate.admits(0, board)):
            continue
        board.came(WaitingGradient(rank, 0, 1), float(now))
        if rank == 0:
            admitted = gate.admits(0, board)
            blocked = not admitted
            if admitted:
                assert board.clocks[0] - board.slowest <= max(low, low + extra)
        assert board.clocks[0] - board.slowest <= max(low + 1, low + extra + 1)


def test_nobody_waits_for_the_clock_of_one_who_has_left() -> None:
    board = Board({0: 1, 1: 3, 2: 5})
    assert not Bounded(2).admits(2, board)
    board.leave(0)
    assert board.slowest == 3 and Bounded(2).admits(2, board)
