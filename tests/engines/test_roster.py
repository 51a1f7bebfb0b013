"""What a launcher makes of its roles' reports."""

from __future__ import annotations

import pytest

from covey.engines.process import control
from covey.engines.process.launcher.roster import Roster
from covey.message import Address
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


def test_what_roles_did_that_are_no_more_is_kept(roster: Roster) -> None:
    """A run that is resumed with fewer stages or workers has still seen all its samples and sent all its bytes."""
    past = Roster([*ROLES, Address("worker", 2), Address("worker", 3)], ROLES[:2])
    for number, (who, tally) in enumerate(past.tallies.items()):
        tally.samples, tally.bytes, tally.updates = 10**number, {str(WHO): 2 * 10**number}, number
        assert tally.who == who
    roster.resume(past.kept())
    assert (roster.samples, roster.bytes) == (11111, 22222)
    assert roster.tallies[WHO].samples == 1 and roster.tallies.keys() == {*ROLES}
