"""The launcher's monitor of its roles: their messages, reports, failures, deaths and silence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import zmq

from covey.engines.process import control
from covey.engines.process.control_lines import Switchboard
from covey.engines.process.launcher.empty_seats import Renewal
from covey.engines.process.launcher.own_loops import OwnLoops
from covey.engines.process.launcher.role_notices import RoleNotices
from covey.engines.process.launcher.role_restarts import RoleRestarts
from covey.engines.process.launcher.roster import Roster
from covey.engines.process.launcher.run_processes import RunProcesses
from covey.engines.process.launcher.settings_check import SettingsCheck
from covey.engines.process.launcher.stall_check import StallCheck
from covey.engines.process.liveness import STATES
from covey.engines.process.snapshot_parts import SCORER
from covey.errors import CheckpointError, CoveyError, PeerLost, PlanError, RoleFailed, WireError
from covey.message import Address
from covey.observe.progress import Phase

W = TypeVar("W", bound=control.ControlMessage)
LAST_WORD = 0.5  # seconds to wait for a dead role's last message, which says more than its exit code
LEAVING = 0.02  # seconds between two looks at who is still there
REFUSALS: dict[str, type[CoveyError]] = {kind.__name__: kind for kind in (PlanError, CheckpointError, WireError)}


class Monitor:
    """Every wait for the roles is `collect` or `wait_for`, in which a role that failed or died ends the run."""

    def __init__(
        self, roster: Roster, board: Switchboard, processes: RunProcesses, stall: float, say: Callable[[str], None],
        meanwhile: Callable[[], None], in_step: bool = False, before: str = "importing torch",
        renewal: Renewal | None = None,
    ) -> None:  # fmt: skip
        """`say` shows a line to the person; `meanwhile` is called repeatedly during every wait.

        `before` is what roles do until they say something. With `renewal` lost workers are restarted.
        """
        self.roster, self.board, self.processes, self.meanwhile = roster, board, processes, meanwhile
        self.notices = RoleNotices(before, say)
        self.restarts = RoleRestarts(roster, board, renewal, say)
        self.loops = OwnLoops(roster.trainers, in_step, board.tell, elastic=renewal is not None)
        self.stalls = StallCheck(roster, processes, self.loops, self.notices, stall)
        self.settings_check = SettingsCheck()
        self.inbox: dict[type[control.ControlMessage], dict[Address, Any]] = {}
        self.phase: Phase = "starting"
        self.poller = zmq.Poller()
        self.poller.register(board.socket, zmq.POLLIN)
        for wakeup in processes.wakeups:
            self.poller.register(wakeup, zmq.POLLIN)

    def collect(self, kind: type[W], roles: Iterable[Address]) -> dict[Address, W]:
        """One word of this kind from each of the roles."""
        roles = list(roles)
        box = self.inbox.setdefault(kind, {})
        self.wait_for(lambda: [address for address in self.restarts.present(roles) if address not in box])
        return {address: box.pop(address) for address in roles if address in box}

    def first(self, kind: type[control.ControlMessage], roles: Sequence[Address]) -> float:
        """The moment in which the first of the roles said such a word, which is left to be collected."""
        box = self.inbox.setdefault(kind, {})
        self.wait_for(lambda: [] if any(address in box for address in roles) else self.restarts.present(roles))
        return time.monotonic()

    def wait_for(self, missing: Callable[[], list[Address]]) -> None:
        """Receive until no role is missing; after `stall` seconds say once which are. A score may take longer.

        While roles start it is said what they do instead.
        """
        until, told = time.monotonic() + self.stalls.limit, False
        while late := missing():
            self.pump(0.05)
            if self.phase == "starting":
                self.notices.starting.tell(missing())
            elif not told and time.monotonic() > until and late != [SCORER]:
                told = True
                self.notices.say(f"{self.phase}: a long wait for these roles:\n{self.roster.picture(late)}")

    def pump(self, timeout: float) -> None:
        """Hear what there is, within `timeout` seconds; a role that failed or died ends the run here."""
        self.poller.poll(round(timeout * 1000))
        self.hear()
        self.notices.hear_refused("the launcher", self.board.refusals.news())
        try:
            self.check_exits(self.processes.exits())
        except PeerLost as lost:
            raise self.explained(lost) from None
        silent = self.silent()
        if self.phase == "ended":  # a script of the user's may do what it likes after the run, but not be stopped
            silent = [who for who in silent if self.processes.state(who) in STATES]
        if silent:
            raise PeerLost(self.stalls.named(silent))
        self.meanwhile()

    def hear(self) -> None:
        for address, word in self.board.heard():
            seen = self.roster.seen[address]
            seen.heard = time.monotonic()
            if isinstance(word, control.Report | control.RoleEnded):
                self.roster.note(address, word)
                self.loops.note(address, word)
            elif isinstance(word, control.Vote | control.Left | control.SampleOrder):
                self.loops.hear(address, word)
            elif isinstance(word, control.Notice | control.Doing | control.MemoryShort):
                self.notices.hear(address, word)
            elif isinstance(word, control.ProgramRaised):
                raise failure(address, word)
            elif isinstance(word, control.Settled):
                self.settings_check.hear(address, word)
            elif isinstance(word, control.HeldAt):
                seen.held = word.step
            elif isinstance(word, control.Refused):
                self.notices.hear_refused(str(address), word.counts)
            elif isinstance(word, control.Installed | control.Resumed):
                self.restarts.hear(address, word)
                self.loops.hear_incarnation(address, word)
            else:
                self.inbox.setdefault(type(word), {})[address] = word

    def check_exits(self, exits: list[tuple[Address, str]]) -> None:
        if self.phase == "ended":
            exits = [(address, how) for address, how in exits if how != "exited with code 0"]
        exits = [(who, how) for who, how in exits if not self.goes_on(who, how)]
        if not exits:
            return
        until = time.monotonic() + LAST_WORD
        while (left := until - time.monotonic()) > 0:
            self.board.socket.poll(round(left * 1000))
            self.hear()
        address, how = exits[0]
        raise PeerLost(f"{address} {how}; {self.roster.last(address)}", str(address))

    def goes_on(self, who: Address, how: str) -> bool:
        """Whether the run goes on without this process."""
        found = self.restarts.lost(who, how, self)
        if found:
            self.loops.lose(who)
            self.settings_check.lose(who)
        return found

    def explained(self, lost: PeerLost) -> PeerLost:
        """The same, or why: a site that has no sign of its launcher for so long ends with its roles."""
        if (pause := self.stalls.silence.overslept()) and self.phase != "ended":
            limit = f"{self.stalls.limit:g} s"
            return PeerLost(f"the launcher itself was stopped for {pause:.0f} s, longer than {limit}: its roles ended")
        return lost

    def silent(self) -> list[Address]:
        """The roles that have neither sent anything nor used the CPU for too long; where all only wait, an error."""
        moving = self.phase in ("warming", "training", "stopping") and not self.restarts.awaited
        return self.stalls.silent(moving)

    def left(self) -> list[str]:
        """Wait until all roles have left. The run has its result: a stopped role is only reported, and killed."""
        told = ""
        try:
            while self.processes.alive and not told:
                time.sleep(LEAVING)
                self.processes.exits()
                silent = self.silent()
                told = self.stalls.named(silent) if silent else ""
        except PeerLost as lost:
            told = str(lost)
        left = [f"after the run, {line}" for line in told.splitlines()]
        for line in left:
            self.notices.say(line)
        return left


def failure(address: Address, word: control.ProgramRaised) -> CoveyError:
    """The error that a role's last word stands for."""
    if word.refusal == PeerLost.__name__:
        return PeerLost(word.error, str(address))
    if word.refusal in REFUSALS:
        return REFUSALS[word.refusal](word.error)
    return RoleFailed(f"{address} failed: {word.error}\n\n{word.traceback}".rstrip())
