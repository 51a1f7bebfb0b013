"""The launcher's monitor of its roles: their messages, reports, failures, deaths and silence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import zmq

from covey.engines.process import control
from covey.engines.process.control_lines import Switchboard
from covey.engines.process.launcher.own_loops import OwnLoops
from covey.engines.process.launcher.rebirths import Rebirths, Renewal
from covey.engines.process.launcher.roster import Roster
from covey.engines.process.launcher.settings_check import SettingsCheck
from covey.engines.process.launcher.starting import Starting
from covey.engines.process.liveness import STATES, Silence, still
from covey.engines.process.snapshot_parts import SCORER
from covey.engines.transport.refusals import Refusals
from covey.errors import CheckpointError, CoveyError, PeerLost, PlanError, RoleFailed, Stalled, WireError
from covey.message import Address
from covey.observe.progress import Phase

W = TypeVar("W", bound=control.ControlMessage)
LAST_WORD = 0.5  # seconds to wait for a dead role's last message, which says more than its exit code
LEAVING = 0.02  # seconds between two looks at who is still there
REFUSALS: dict[str, type[CoveyError]] = {kind.__name__: kind for kind in (PlanError, CheckpointError, WireError)}


class RunProcesses(Protocol):
    """The processes of a run, as a launcher holds them."""

    @property
    def wakeups(self) -> Sequence[int | zmq.Socket[bytes]]:
        """Readable when there may be news."""
        ...

    @property
    def alive(self) -> set[Address]: ...

    @property
    def pids(self) -> Sequence[int]:
        """The processes of all roles, where all live on this machine; else none."""
        ...

    @property
    def paused(self) -> float:
        """The total seconds for which a person has stopped all processes with Ctrl-Z."""
        ...

    def exits(self) -> list[tuple[Address, str]]:
        """Who has ended since the last time, and how; never waits. Whatever else stands still or is gone is raised."""
        ...

    def sign(self, who: Address) -> object:
        """What changes while a role uses the CPU."""
        ...

    def state(self, who: Address) -> str:
        """What a role's process does, by the letter that Linux has for it; none if that is not known."""
        ...

    def begin(self) -> None:
        """All roles are ready, and training begins."""
        ...


class Monitor:
    """Every wait for the roles is `collect` or `wait_for`, in which a role that failed or died ends the run."""

    def __init__(
        self, roster: Roster, board: Switchboard, processes: RunProcesses, stall: float, say: Callable[[str], None],
        meanwhile: Callable[[], None], in_step: bool = False, before: str = "importing torch",
        renewal: Renewal | None = None,
    ) -> None:  # fmt: skip
        """`say` shows a line to the person; `meanwhile` is called repeatedly during every wait.

        `before` is what roles do until they say something. With `renewal` lost workers are born again.
        """
        self.roster, self.board, self.processes, self.stall = roster, board, processes, stall
        self.say, self.meanwhile = say, meanwhile
        self.rebirths = Rebirths(roster, board, renewal, say)
        self.seen = roster.seen
        self.loops = OwnLoops(roster.trainers, in_step, board.tell)
        self.inbox: dict[type[control.ControlMessage], dict[Address, Any]] = {}
        self.refused = Refusals()
        self.settings_check = SettingsCheck()
        self.phase: Phase = "starting"
        self.silence: Silence[tuple[str, Address]] = Silence(stall)
        self.starting = Starting(before, say)
        self.warned = self.cramped = False
        self.poller = zmq.Poller()
        self.poller.register(board.socket, zmq.POLLIN)
        for wakeup in processes.wakeups:
            self.poller.register(wakeup, zmq.POLLIN)

    def collect(self, kind: type[W], roles: Iterable[Address]) -> dict[Address, W]:
        """One word of this kind from each of the roles."""
        roles = list(roles)
        box = self.inbox.setdefault(kind, {})
        self.wait_for(lambda: [address for address in self.rebirths.present(roles) if address not in box])
        return {address: box.pop(address) for address in roles if address in box}

    def first(self, kind: type[control.ControlMessage], roles: Sequence[Address]) -> float:
        """The moment in which the first of the roles said such a word, which is left to be collected."""
        box = self.inbox.setdefault(kind, {})
        self.wait_for(lambda: [] if any(address in box for address in roles) else self.rebirths.present(roles))
        return time.monotonic()

    def wait_for(self, missing: Callable[[], list[Address]]) -> None:
        """Receive until no role is missing; after `stall` seconds say once which are. A score may take longer.

        While roles start it is said what they do instead.
        """
        until, told = time.monotonic() + self.stall, False
        while late := missing():
            self.pump(0.05)
            if self.phase == "starting":
                self.starting.tell(missing())
            elif not told and time.monotonic() > until and late != [SCORER]:
                told = True
                self.say(f"{self.phase}: a long wait for these roles:\n{self.roster.picture(late)}")

    def pump(self, timeout: float) -> None:
        """Hear what there is, within `timeout` seconds; a role that failed or died ends the run here."""
        self.poller.poll(round(timeout * 1000))
        self.hear()
        self.note_refused("the launcher", self.board.refusals.news())
        try:
            self.bury(self.processes.exits())
        except PeerLost as lost:
            raise self.explained(lost) from None
        silent = self.silent() if self.silence.due else []
        if self.phase == "ended":  # a script of the user's may do what it likes after the run, but not be stopped
            silent = [who for who in silent if self.processes.state(who) in STATES]
        if silent:
            raise PeerLost(self.named(silent))
        self.meanwhile()

    def hear(self) -> None:
        for address, word in self.board.heard():
            seen = self.seen[address]
            seen.heard = time.monotonic()
            if isinstance(word, control.Report | control.RoleEnded):
                self.roster.note(address, word)
                self.loops.note(address, word)
            elif isinstance(word, control.Vote | control.Left | control.SampleOrder):
                self.loops.hear(address, word)
            elif isinstance(word, control.Notice | control.Doing | control.MemoryShort):
                self.note_said(address, word)
            elif isinstance(word, control.ProgramRaised):
                raise failure(address, word)
            elif isinstance(word, control.Settled):
                self.settings_check.hear(address, word)
            elif isinstance(word, control.HeldAt):
                seen.held = word.step
            elif isinstance(word, control.Refused):
                self.note_refused(str(address), word.counts)
            elif isinstance(word, control.Installed | control.Resumed):
                self.rebirths.hear(address, word)
            else:
                self.inbox.setdefault(type(word), {})[address] = word

    def note_said(self, by: Address, word: control.Notice | control.Doing | control.MemoryShort) -> None:
        """Something for the person: at once, or when a start takes long."""
        if isinstance(word, control.Doing):
            self.starting.hear(by, word.what)
        elif isinstance(word, control.MemoryShort):
            self.note_cramped(by, word.why)
        else:
            self.say(f"{by}: {word.text}")

    def note_refused(self, by: str, counts: Mapping[str, int]) -> None:
        """Say what was refused, the first time and then ever more rarely; the result has it all."""
        for line in self.refused.add(counts, by):
            self.say(line)

    def note_cramped(self, by: Address, why: str) -> None:
        """Say once that memory is short, when the first role reports it."""
        if not self.cramped:
            self.say(f"{by} can share no more memory ({why}): what does not fit goes through sockets, more slowly")
        self.cramped = True

    def bury(self, exits: list[tuple[Address, str]]) -> None:
        if self.phase == "ended":
            exits = [(address, how) for address, how in exits if how != "exited with code 0"]
        exits = [(who, how) for who, how in exits if not self.rebirths.lost(who, how, self)]
        if not exits:
            return
        until = time.monotonic() + LAST_WORD
        while (left := until - time.monotonic()) > 0:
            self.board.socket.poll(round(left * 1000))
            self.hear()
        address, how = exits[0]
        raise PeerLost(f"{address} {how}; {self.roster.last(address)}", str(address))

    def explained(self, lost: PeerLost) -> PeerLost:
        """The same, or why: a site that has no sign of its launcher for so long ends with its roles."""
        if (pause := self.silence.overslept()) and self.phase != "ended":
            limit = f"{self.silence.stall:g} s"
            return PeerLost(f"the launcher itself was stopped for {pause:.0f} s, longer than {limit}: its roles ended")
        return lost

    def silent(self) -> list[Address]:
        """The roles that have neither sent anything nor used the CPU for too long; also reports long waits."""
        signs: dict[tuple[str, Address], object] = {}
        for who in self.processes.alive:
            seen = self.seen[who]
            signs["life", who] = seen.heard, self.processes.sign(who)
            signs["word", who] = seen.heard
            signs["wait", who] = seen.waits
        silent = [who for what, who in self.silence.look(signs) if what == "life"]
        if not silent and self.phase in ("warming", "training", "stopping"):
            self.check_stall()
        return silent

    def left(self) -> list[str]:
        """Wait until all roles have left. The run has its result: a stopped role is only reported, and killed."""
        told = ""
        try:
            while self.processes.alive and not told:
                time.sleep(LEAVING)
                self.processes.exits()
                silent = self.silent() if self.silence.due else []
                told = self.named(silent) if silent else ""
        except PeerLost as lost:
            told = str(lost)
        left = [f"after the run, {line}" for line in told.splitlines()]
        for line in left:
            self.say(line)
        return left

    def named(self, silent: list[Address]) -> str:
        """Which roles do nothing, in words: those that were stopped, if any, since others may wait for them."""
        states = {who: self.processes.state(who) for who in sorted(silent)}
        told = {who: how for who, how in states.items() if how in STATES} or states
        return "\n".join(f"{still(who, how, self.silence.stall)}; {self.roster.last(who)}" for who, how in told.items())

    def check_stall(self) -> None:
        """Say who waits too long; if all roles only wait, the run cannot continue."""
        stall, seen = self.stall, self.seen
        present = [address for address in self.roster.tallies if not seen[address].ended]
        waits = {a: min(seen[a].since, self.silence.quiet(("wait", a))) for a in present if seen[a].waiting}
        waiting = [a for a, since in waits.items() if since > stall]
        busy = [a for a in present if self.silence.quiet(("word", a)) > stall]
        if waiting == present and waiting and not busy:
            refused = "".join(f"\n  {line}" for line in self.refused.lines())
            picture = self.roster.picture(present) + self.loops.gone()
            raise Stalled(f"nothing has moved for {stall:g} s:\n{picture}{refused}")
        late = bool(busy) or any(address in self.roster.trainers for address in waiting)
        if late and not self.warned:
            self.say(f"a long wait:\n{self.roster.picture(present)}")
        self.warned = late


def failure(address: Address, word: control.ProgramRaised) -> CoveyError:
    """The error that a role's last word stands for."""
    if word.refusal in REFUSALS:
        return REFUSALS[word.refusal](word.error)
    return RoleFailed(f"{address} failed: {word.error}\n\n{word.traceback}".rstrip())
