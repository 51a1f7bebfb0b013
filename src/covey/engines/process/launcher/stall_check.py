"""Which roles are silent, and who waits too long? A run in which all roles only wait cannot continue."""

from __future__ import annotations

from covey.engines.process.launcher.own_loops import OwnLoops
from covey.engines.process.launcher.role_notices import RoleNotices
from covey.engines.process.launcher.roster import Roster
from covey.engines.process.launcher.run_processes import RunProcesses
from covey.engines.process.liveness import STATES, Silence, still
from covey.errors import Stalled
from covey.message import Address

LONGEST = 20  # times the limit for which a role may wait while frames still come: messages that are under way end


class StallCheck:
    """Compares what roles do with what they did `limit` seconds ago."""

    def __init__(
        self, roster: Roster, processes: RunProcesses, loops: OwnLoops, notices: RoleNotices, limit: float
    ) -> None:
        self.roster, self.processes, self.loops, self.notices, self.limit = roster, processes, loops, notices, limit
        self.silence: Silence[tuple[str, Address]] = Silence(limit)
        self.warned = False

    def silent(self, moving: bool) -> list[Address]:
        """The roles that have neither sent anything nor used the CPU for too long.

        While the run is `moving`, roles that have waited too long are reported, too.
        """
        if not self.silence.due:
            return []
        signs: dict[tuple[str, Address], object] = {}
        for who in self.processes.alive:
            seen = self.roster.seen[who]
            signs["alive", who] = seen.heard, self.processes.sign(who)
            signs["word", who] = seen.heard
            signs["wait", who] = seen.waits, seen.frames
        silent = [who for what, who in self.silence.look(signs) if what == "alive"]
        if not silent and moving:
            self.check()
        return silent

    def named(self, silent: list[Address]) -> str:
        """Which roles do nothing, in words: those that were stopped, if any, since others may wait for them."""
        states = {who: self.processes.state(who) for who in sorted(silent)}
        told = {who: how for who, how in states.items() if how in STATES} or states
        return "\n".join(f"{still(who, how, self.limit)}; {self.roster.last(who)}" for who, how in told.items())

    def check(self) -> None:
        """Say who waits too long; if all roles only wait, the run cannot continue."""
        limit, seen = self.limit, self.roster.seen
        present = [address for address in self.roster.tallies if not seen[address].ended]
        waiting = [a for a in present if seen[a].waiting and self._stands_still(a)]
        busy = [a for a in present if self.silence.quiet(("word", a)) > limit]
        if waiting == present and waiting and not busy:
            refused = "".join(f"\n  {line}" for line in self.notices.refused.lines())
            picture = self.roster.picture(present) + self.loops.gone()
            raise Stalled(f"nothing has moved for {limit:g} s:\n{picture}{refused}")
        late = bool(busy) or any(address in self.roster.trainers for address in waiting)
        if late and not self.warned:
            self.notices.say(f"a long wait:\n{self.roster.picture(present)}")
        self.warned = late

    def _stands_still(self, who: Address) -> bool:
        """Whether it has waited too long for the same, and nothing else has come either, or for very long."""
        since = self.roster.seen[who].since
        return since > self.limit and max(self.silence.quiet(("wait", who)), since / LONGEST) > self.limit
