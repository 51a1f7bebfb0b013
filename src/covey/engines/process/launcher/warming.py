"""How does a run become warm? All roles do a few steps before the clock starts, and undo them."""

from __future__ import annotations

from collections.abc import Sequence

from covey.engines.process import control
from covey.engines.process.control_lines import Switchboard
from covey.engines.process.launcher.monitor import Monitor
from covey.engines.process.launcher.quiescence import Quiescence
from covey.engines.process.launcher.roster import Roster
from covey.message import Address


class Warming:
    """Leads the roles through the discarded steps: memory is touched, links are open, models are compiled."""

    def __init__(self, roster: Roster, board: Switchboard, monitor: Monitor, quiescence: Quiescence) -> None:
        self.roster, self.board, self.monitor, self.quiescence = roster, board, monitor, quiescence

    def run(self) -> None:
        """Until every role has undone its steps and no message of theirs is on its way."""
        roster, roles = self.roster, self.roster.roles
        self.monitor.phase, roster.discards = "warming", True
        start(roles, self.board, self.monitor)
        self.monitor.wait_for(lambda: [address for address in roles if not roster.seen[address].ended])
        self.quiescence.drain()
        self.board.tell(roles, control.Undo())
        self.monitor.collect(control.RoleReady, roles)
        roster.forget_steps()
        roster.discards = False


def start(roles: Sequence[Address], board: Switchboard, monitor: Monitor) -> None:
    """Let all programs begin, and wait until the last of them has."""
    board.tell(roles, control.Go())
    monitor.collect(control.Started, roles)
