"""What sets each policy of a search apart from its neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from covey.policy.curves import outlook
from covey.policy.halving import Asha, Hyperband, RandomSearch
from covey.policy.pbt import Pbt
from covey.policy.pop import Pop, divided
from covey.policy.rehearsal import Recorded, rehearse
from covey.policy.search import SearchLimits, SearchPolicy, TrialState
from covey.policy.tupaq import Tupaq

LIMITS = SearchLimits(epochs=16, trials=16, slots=4)
POLICIES: dict[str, SearchPolicy] = {
    "random": RandomSearch(), "asha": Asha(), "hyperband": Hyperband(), "pop": Pop(), "tupaq": Tupaq(), "pbt": Pbt()
}  # fmt: skip


def paused(number: int, *scores: float) -> TrialState:
    return TrialState(number, tuple((epochs + 1, score) for epochs, score in enumerate(scores)))


def curves(trials: int, rises: Callable[[int], float] = lambda one: ((one * 7) % 16) / 16) -> list[Recorded]:
    """Curves whose order is known from the first epoch on: trial 9 is the best of 16."""
    return [
        Recorded(tuple((epochs, rises(one) * (1 - 0.5 / epochs)) for epochs in range(1, 17)), 1.0)
        for one in range(trials)
    ]


# ---------------------------------------------------------------------------------------------------------------- asha


def test_asha_promotes_only_the_best_fraction_of_those_seen_so_far() -> None:
    seen = [paused(0, 0.5), paused(1, 0.9), paused(2, 0.7)]
    assert Asha(factor=4).next(seen, LIMITS).move.trial is None, "a quarter of three is nobody: begin another"
    assert Asha(factor=3).next(seen, LIMITS).move.trial == 1
    assert Asha(factor=4).next([*seen, paused(3, 0.1)], LIMITS).move.trial == 1


def test_asha_never_waits_for_a_rung_to_fill() -> None:
    running = [TrialState(number, running=True) for number in range(3)]
    move = Asha().next([*running, paused(3, 0.1)], LIMITS).move
    assert move is not None and move.trial is None, "one result of four: the slot begins a new trial"
    assert Hyperband().next([*running, *(paused(n, 0.1) for n in range(3, 16))], LIMITS).move is None


def test_asha_promotes_the_highest_rung_first_and_nobody_beyond_the_end() -> None:
    low = [paused(number, 0.91 + number / 100) for number in range(4)]  # one of them could be promoted too
    high = [TrialState(number, ((1, 0.9), (4, number / 10))) for number in range(4, 8)]
    assert Asha().next([*low, *high], LIMITS).move == Asha().next([*high, *low], LIMITS).move
    move = Asha().next([*low, *high], LIMITS).move
    assert (move.trial, move.until) == (7, 16)
    done = [TrialState(number, ((1, 0.9), (4, 0.9), (16, 0.9)), over=True) for number in range(16)]
    assert Asha().next(done, LIMITS).move is None


def test_asha_counts_a_diverged_trial_and_never_promotes_it() -> None:
    seen = [paused(0, math.nan), paused(1, -math.inf), paused(2, 0.1), paused(3, 0.05)]
    assert Asha().next(seen, LIMITS).move.trial == 2
    lost = [TrialState(n, ((1, -math.inf),), over=True) for n in range(4)]
    assert Asha().next(lost, SearchLimits(epochs=16, trials=4)).move is None


def test_rungs_end_with_the_budget() -> None:
    assert Asha().rungs(100) == [1, 4, 16, 64, 100] and Asha(grace=2, factor=3).rungs(18) == [2, 6, 18]
    assert Asha().rungs(1) == [1]


# ----------------------------------------------------------------------------------------------------------- hyperband


def test_hyperband_has_brackets_from_many_short_trials_to_few_long_ones() -> None:
    found = Hyperband().brackets(9)
    assert [(one.members, one.rungs) for one in found] == [(9, (1, 3, 9)), (5, (3, 9)), (3, (9,))]  # Li et al., table 1


def test_hyperband_promotes_a_third_when_the_rung_is_full() -> None:
    limits = SearchLimits(epochs=9, trials=17)
    first = [paused(number, number / 10) for number in range(9)]
    assert Hyperband().next(first[:8], limits).move.trial is None, "the ninth of the bracket is missing"
    moves = Hyperband().next(first, limits).move
    assert (moves.trial, moves.until) == (8, 3)
    going = [*first[:6], *(TrialState(n, first[n].curve, running=True) for n in (6, 7, 8))]
    move = Hyperband().next(going, limits).move
    assert move.trial is None and move.until == 3, "three are promoted, and the next bracket begins with 3 epochs"


def test_hyperband_does_not_wait_for_a_trial_that_failed() -> None:
    trials = [*(paused(number, number / 10) for number in range(8)), TrialState(8, over=True)]
    move = Hyperband().next(trials, SearchLimits(epochs=9, trials=17)).move
    assert move is not None and (move.trial, move.until) == (7, 3)


# ------------------------------------------------------------------------------------------------------- pop and tupaq


def test_pop_ends_the_poor_and_gives_slots_to_the_promising() -> None:
    good = paused(0, 0.5, 0.7, 0.8, 0.85, 0.87)
    poor = paused(1, 0.1, 0.1, 0.1, 0.1, 0.1)
    limits = SearchLimits(epochs=16, trials=2, slots=2)
    found = Pop(target=0.9).next([good, poor], limits)
    assert found.ends == (1,) and found.move.trial == 0
    chances = Pop(target=0.9).chances([good, poor], limits)
    assert chances[0] > 0.5 and chances[1] < 0.05


def test_pop_trains_the_best_to_the_end_where_none_is_expected_to_come_to_the_target() -> None:
    limits = SearchLimits(epochs=4, trials=2, slots=1)
    found = rehearse(Pop(target=9.0), [Recorded(tuple((e, n / 10) for e in range(1, 5))) for n in (1, 2)], limits)
    assert found.epochs > 4, "both begin, and the better one has all its epochs"
    states = [paused(0, 0.1), paused(1, 0.2)]
    assert Pop(target=9.0).next(states, limits).ends == (0,)
    trained = TrialState(2, tuple((epoch, 0.3) for epoch in range(1, 5)), over=True)
    assert Pop(target=9.0).next([*states, trained], limits).ends == (0, 1)


def test_pop_divides_slots_by_how_sure_it_is() -> None:
    assert divided({0: 0.9, 1: 0.8, 2: 0.1}, slots=4) == ({0, 1}, 2)
    assert divided({0: 0.9, 1: 0.1, 2: 0.1}, slots=10) == ({0}, 1)
    assert divided({0: 0.2, 1: 0.1}, slots=2)[1] == 1 and divided({}, slots=4) == (set(), 0)


def test_pop_lets_others_have_the_slots_that_are_not_dedicated() -> None:
    sure, unsure = paused(0, 0.8, 0.85, 0.88, 0.895), paused(1, 0.3, 0.5)
    busy = TrialState(0, sure.curve, running=True)
    limits = SearchLimits(epochs=16, trials=2, slots=2)
    assert Pop(target=0.9, poor=0.0).next([sure, unsure], limits).move.trial == 0
    assert Pop(target=0.9, poor=0.0).next([busy, unsure], limits).move.trial == 1


def test_pop_lets_the_one_that_has_come_least_far_go_on_in_the_other_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = SearchLimits(epochs=16, trials=3, slots=2)
    monkeypatch.setattr(Pop, "chances", lambda *_: {0: 0.75, 1: 0.1, 2: 0.1})
    trials = [TrialState(0, ((1, 0.5),), running=True), paused(1, 0.1, 0.1, 0.1), paused(2, 0.1)]
    assert Pop().next(trials, limits).move.trial == 2


def test_pop_is_the_less_sure_the_further_it_looks_ahead() -> None:
    falling = ((1, 0.6), (2, 0.5), (3, 0.4))  # then it is expected to stay as it is
    near, far = outlook(falling, 3), outlook(falling, 12)
    assert near.mean == far.mean == pytest.approx(0.4)
    assert far.deviation == pytest.approx(2 * near.deviation), "four times the epochs: four times the variance"


def test_pop_is_unsure_where_curves_that_fit_equally_well_part() -> None:
    """Of three scores any power goes through nearly all; after 100 epochs they are 0.05 apart, and misfit by 0.001."""
    few = ((1, 0.5), (2, 0.6), (3, 0.64))
    assert outlook(few, 4).deviation < 0.01 < 0.04 < outlook(few, 100).deviation


def test_pop_dedicates_no_more_slots_than_are_deserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are promising, at chances that deserve one slot: while one runs, the other slot tries something new."""
    monkeypatch.setattr(Pop, "chances", lambda *_: {0: 0.75, 1: 0.7})
    assert divided({0: 0.75, 1: 0.7}, slots=2) == ({0, 1}, 1)
    limits = SearchLimits(epochs=16, trials=3, slots=2)
    move = Pop().next([TrialState(0, ((1, 0.5),), running=True), paused(1, 0.5)], limits).move
    assert move is not None and move.trial is None


def test_tupaq_drops_what_is_half_as_bad_again() -> None:
    assert Tupaq().dropped(0.59, 0.9) and not Tupaq().dropped(0.61, 0.9)  # 0.6 · 1.5 = 0.9
    assert Tupaq().dropped(-0.5, -0.3) and not Tupaq().dropped(-0.35, -0.3), "losses: less is better"
    found = Tupaq(batch=3).next([paused(0, 0.9), paused(1, 0.2), paused(2, 0.7)], LIMITS)
    assert found.ends == (1,) and found.move.trial is None, "the batch is filled again"
    found = Tupaq(batch=2).next([paused(0, 0.9), paused(1, 0.7)], LIMITS)
    assert (found.ends, found.move.trial, found.move.until) == ((), 0, 2)


# ----------------------------------------------------------------------------------------------------------------- pbt


def test_pbt_replaces_the_worst_with_a_copy_of_the_best() -> None:
    members = [paused(number, number / 10) for number in range(8)]
    found = Pbt(quantile=0.25).next(members, SearchLimits(epochs=8, trials=64))
    assert found.ends == (0,) and found.move.trial is None and found.move.parent in (6, 7)
    assert found == Pbt(quantile=0.25).next(members, SearchLimits(epochs=8, trials=64)), "chance is seeded"
    middle = [TrialState(n, m.curve, running=n != 4) for n, m in enumerate(members)]
    found = Pbt(quantile=0.25).next(middle, SearchLimits(epochs=8, trials=64))
    assert (found.ends, found.move.trial, found.move.until) == ((), 4, 2), "others go on"


def test_pbt_copies_nobody_who_is_running() -> None:
    members = [TrialState(n, ((1, n / 10),), running=n > 0) for n in range(8)]
    assert Pbt().next(members, SearchLimits(epochs=8, trials=64)).move.trial == 0


def test_pbt_waits_for_those_who_are_behind() -> None:
    """Else the best has gone on, and cannot be copied, when the worst has been scored; and more epochs would win."""
    limits = SearchLimits(epochs=8, trials=64)
    late = [TrialState(n, ((1, n / 10),)) for n in range(7)]
    assert Pbt().next([*late, TrialState(7, running=True)], limits).move is None
    later = [TrialState(n, ((1, n / 10), (2, n / 5)), running=n == 3) for n in range(8)]
    assert Pbt().next([paused(8, 0.5), *later], limits).move.trial == 8


def test_pbt_replaces_each_of_the_worst_once() -> None:
    """Two of eight are copied; nobody else becomes one of the worst because those have gone."""
    limits = SearchLimits(epochs=8, trials=64)
    members = [paused(number, number / 10) for number in range(8)]
    parents = []
    while (found := Pbt().next(members, limits)).ends:
        members[found.ends[0]] = replace(members[found.ends[0]], over=True)
        parents.append(found.move.parent)
        members.append(TrialState(len(members), members[parents[-1]].curve, running=True))
    assert [one.number for one in members if one.over] == [0, 1] and set(parents) <= {6, 7}
    assert found.move.trial == 2


# ------------------------------------------------------------------------------------------------------------- all


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "pbt"])
@pytest.mark.parametrize("slots", [1, 4])
def test_no_policy_trains_beyond_the_end_or_twice_at_once(name: str, slots: int) -> None:
    limits = SearchLimits(epochs=16, trials=16, slots=slots)
    found = rehearse(POLICIES[name], curves(16), limits)
    assert found.epochs <= 16 * 16 and found.trials <= 16 and found.best > 0


@pytest.mark.parametrize("name", ["asha", "hyperband", "pop", "tupaq"])
def test_early_ending_finds_the_best_with_less(name: str) -> None:
    """Curves that never cross: whoever ends the worst early loses nothing."""
    found, everything = rehearse(POLICIES[name], curves(16), LIMITS), rehearse(RandomSearch(), curves(16), LIMITS)
    assert found.best == pytest.approx(everything.best) or name == "hyperband"
    assert found.epochs < 0.7 * everything.epochs and everything.epochs == 256
    assert found.seconds < everything.seconds


def moves(policy: SearchPolicy, trials: Sequence[TrialState]) -> object:
    return policy.next(trials, LIMITS)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_remembers_nothing(name: str) -> None:
    states = [paused(n, n / 16, n / 15) for n in range(12)]
    assert moves(POLICIES[name], states) == moves(POLICIES[name], list(states)) == moves(POLICIES[name], states)


@pytest.mark.parametrize(("make", "why"), [
    (lambda: Asha(factor=1), "asha(factor=1): at least 2 is needed"),
    (lambda: Pbt(population=1), "pbt(population=1)"),
    (lambda: Pbt(population=3), "pbt(population=3, quantile=0.25): at least one trial"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(make: Callable[[], object], why: str) -> None:
    with pytest.raises(Exception, match="at least") as told:
        make()
    assert why in str(told.value)
