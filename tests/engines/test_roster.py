"""What a launcher makes of its roles' reports."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from covey.checkpoint import RunRecord
from covey.engines.process import control
from covey.engines.process.launcher.keeping import RunRecorder
from covey.engines.process.launcher.model_scoring import StepPauses
from covey.engines.process.launcher.own_loops import OwnLoops
from covey.engines.process.launcher.roster import Roster
from covey.engines.process.launcher.stall_check import StallCheck
from covey.errors import Stalled
from covey.message import Address
from covey.observe.referee import Referee
from covey.observe.tally import Tally

ROLES = [Address("worker", 0), Address("worker", 1), Address("server", 0)]
WHO = ROLES[0]


@pytest.fixture
def roster() -> Roster:
    return Roster(ROLES, ROLES[:2])


@pytest.mark.parametrize(
    ("waiting", "since", "another"),
    [
        ("Params from server 0", 2.5, False),  # it waits on
        ("Params from server 0", 0.5, True),  # the same again, of the next step
        ("Params from server 1", 2.5, True),
        ("", 0.0, True),
    ],
)
def test_a_wait_for_the_same_that_began_later_is_another_one(
    roster: Roster, waiting: str, since: float, another: bool
) -> None:
    """A role whose waits change is no role that stands still."""
    roster.note(WHO, control.Report(3, Tally(who=WHO), "Params from server 0", 2.0))
    before = roster.seen[WHO].waits
    roster.note(WHO, control.Report(3, Tally(who=WHO), waiting, since))
    assert (roster.seen[WHO].waits != before) == another


def test_the_last_loss_stays_shown_when_no_batch_came_since(roster: Roster) -> None:
    roster.tallies[WHO].losses, roster.tallies[WHO].batches = 6.0, 4
    assert roster.read_loss() == 1.5
    assert math.isnan(roster.read_loss())
    assert roster.progress("ended", 1.0, None, {}).loss == 1.5
    roster.tallies[WHO].losses, roster.tallies[WHO].batches = math.nan, 4
    assert math.isnan(roster.read_loss()) and math.isnan(roster.progress("ended", 1.0, None, {}).loss or 0.0)


def test_what_roles_did_that_are_no_more_is_kept(roster: Roster) -> None:
    """A run that is resumed with fewer stages or workers has still seen all its samples and sent all its bytes."""
    past = Roster([*ROLES, Address("worker", 2), Address("worker", 3)], ROLES[:2])
    for number, (who, tally) in enumerate(past.tallies.items()):
        tally.samples, tally.bytes, tally.updates = 10**number, {str(WHO): 2 * 10**number}, number
        assert tally.who == who
    roster.resume(past.kept())
    assert (roster.samples, roster.bytes) == (11111, 22222)
    assert roster.tallies[WHO].samples == 1 and roster.tallies.keys() == {*ROLES}


@pytest.mark.parametrize(
    ("step", "ended", "through"), [(4, False, False), (5, False, True), (6, False, True), (2, True, True)]
)
def test_a_checkpoint_says_who_has_done_all_its_steps(roster: Roster, step: int, ended: bool, through: bool) -> None:
    """Though it may still wait for the others' goodbye."""
    run = RunRecord(strategy="bsp", workers=2, servers=1, seed=0, samples=9, batch_size=3, limits=[5, None])
    roster.seen[WHO].step, roster.seen[WHO].ended = step, ended
    roster.seen[ROLES[1]].step = 99
    assert RunRecorder(run, [5, None], roster, Referee(10)).record(1.0).ended == [0] * through


def test_nobody_waits_for_one_that_has_ended_to_come_to_a_step(roster: Roster) -> None:
    monitor: Any = SimpleNamespace(board=None, roster=roster, inbox={control.Frozen: {WHO: control.Frozen()}})
    pauses = StepPauses(monitor, Referee(10))
    assert pauses.missing() == [ROLES[1]]
    roster.seen[ROLES[1]].ended = True
    assert pauses.missing() == []


@pytest.mark.parametrize(("spoke", "stalls"), [(0.0, True), (99.0, False)])
def test_a_run_stands_still_only_where_all_roles_say_that_they_wait(
    roster: Roster, spoke: float, stalls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has not spoken for long may compute, whatever it said last."""
    said = list[str]()
    notices: Any = SimpleNamespace(say=said.append, refused=SimpleNamespace(lines=list))
    processes: Any = None
    check = StallCheck(roster, processes, OwnLoops(ROLES[:2], True, lambda roles, word: None), notices, 1.0)
    for seen in roster.seen.values():
        seen.waiting, seen.since = "Params from server 0", 99.0
    quiet = {("word", WHO): spoke, **{("word", who): 0.0 for who in ROLES[1:]}}
    monkeypatch.setattr(check.silence, "quiet", lambda key: quiet.get(key, 99.0))
    if stalls:
        with pytest.raises(Stalled, match="nothing has moved for 1 s"):
            check.check()
    else:
        check.check()
        check.check()
        assert len(said) == 1 and said[0].startswith("a long wait:")


def test_a_wait_while_the_clock_of_training_stands_still_is_none(
    roster: Roster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the model is scored everybody waits."""
    notices: Any = SimpleNamespace(say=pytest.fail, refused=SimpleNamespace(lines=list))
    processes: Any = None
    check = StallCheck(roster, processes, OwnLoops(ROLES[:2], True, lambda roles, word: None), notices, 1.0)
    for seen in roster.seen.values():
        seen.waiting, seen.since = "Params from server 0", 0.5
    monkeypatch.setattr(check.silence, "quiet", lambda key: 0.0 if key[0] == "word" else 99.0)
    check.check()


@pytest.mark.parametrize(("waited", "stalls"), [(19.0, False), (21.0, True)])
def test_who_still_receives_does_not_stand_still_but_not_for_ever(
    roster: Roster, waited: float, stalls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is under way on a slow link may take much longer than roles may be silent."""
    notices: Any = SimpleNamespace(say=lambda line: None, refused=SimpleNamespace(lines=list))
    processes: Any = SimpleNamespace(alive=set(ROLES), sign=lambda who: 0)
    check = StallCheck(roster, processes, OwnLoops(ROLES[:2], True, lambda roles, word: None), notices, 1.0)
    for who in ROLES:
        roster.note(who, control.Report(3, Tally(who=who), "Goodbye", waited))
        roster.seen[who].heard = 1.0
    for frames, awake in enumerate([0.0, 0.9, 1.8]):
        check.silence.awake, check.silence.looked = awake, 0.0
        roster.note(WHO, control.Report(3, Tally(who=WHO), "Goodbye", waited, frames=frames))
        monkeypatch.setattr(check.silence, "tick", lambda: None)
        check.silent(moving=False)
        for who in ROLES:
            check.silence.last["word", who] = 0.0, awake  # it says so again and again
    if stalls:
        with pytest.raises(Stalled):
            check.check()
    else:
        check.check()
