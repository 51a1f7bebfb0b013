"""How does a run start? All roles are built, do a few steps that they undo, and begin together."""

from __future__ import annotations

from covey.engines.process import control
from covey.engines.process.launcher.monitor import Monitor
from covey.engines.process.launcher.quiescence import Quiescence
from covey.engines.process.snapshot_parts import SCORER
from covey.errors import PlanError


def assemble(monitor: Monitor, alike: str) -> int:
    """Wait until all roles are built; the number of parameters of the largest.

    All must start from the same weights: `alike` says how a task achieves that.
    """
    board, roles = monitor.board, monitor.roster.roles
    if board.introduces:
        bound = monitor.collect(control.Bound, [*roles, SCORER])
        monitor.restarts.links.book = {str(who): word.endpoint for who, word in bound.items()}
        board.tell([*roles, SCORER], control.Endpoints(monitor.restarts.links.book))
    ready = monitor.collect(control.RoleReady, [*roles, SCORER])
    for address in roles:
        if ready[address].fingerprint != ready[roles[0]].fingerprint:
            raise PlanError(f"{address} built different initial weights from {roles[0]}: {alike}")
    monitor.restarts.first = {who: word.done for who, word in ready.items()}
    return max(ready[address].parameters for address in roles)


def warm(monitor: Monitor, quiescence: Quiescence) -> None:
    """Lead all roles through discarded steps: memory is touched, links are open, models are compiled.

    It returns when every role has undone its steps and no message of theirs is on its way.
    """
    roster, roles = monitor.roster, monitor.roster.roles
    monitor.phase, roster.discards = "warming", True
    start(monitor)
    monitor.wait_for(lambda: [address for address in roles if not roster.seen[address].ended])
    quiescence.drain()
    monitor.board.tell(roles, control.Undo())
    monitor.collect(control.RoleReady, roles)
    roster.forget_steps()
    roster.discards = False


def start(monitor: Monitor) -> None:
    """Let all programs begin, and wait until the last of them has."""
    monitor.board.tell(monitor.roster.roles, control.Go())
    monitor.collect(control.Started, monitor.roster.roles)
