"""How a launcher hears its roles: their words, their reports, their failures and deaths, and their silence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import zmq

from covey.engines.process import control
from covey.engines.process.lines import Switchboard
from covey.engines.process.own_loops import OwnLoops
from covey.engines.process.roster import Roster
from covey.engines.process.settling import Settling
from covey.engines.process.shots import SCORER
from covey.engines.transport.refusals import Refusals
from covey.errors import CheckpointError, CoveyError, PeerLost, PlanError, RoleFailed, Stalled, WireError
from covey.message import Address
from covey.observe.progress import Phase

W = TypeVar("W", bound=control.Word)
LAST_WORD = 0.5  # seconds that a dead role's last word, which tells more than its exit code, may be on its way
REFUSALS: dict[str, type[CoveyError]] = {kind.__name__: kind for kind in (PlanError, CheckpointError, WireError)}


class Crew(Protocol):
    """The processes of a run, as a launcher holds them."""

    @property
    def bells(self) -> Sequence[int | zmq.Socket[bytes]]:
        """Readable when there may be news."""
        ...

    @property
    def alive(self) -> set[Address]: ...

    def exits(self) -> list[tuple[Address, str]]:
        """Who has ended since the last time, and how; never waits."""
        ...

    def begin(self) -> None:
        """Everybody is ready, and will be told to train."""
        ...


class Ear:
    """Every wait for the roles is `collect` or `wait_for`, in which a role that failed or died ends the run."""

    def __init__(
        self, roster: Roster, board: Switchboard, crew: Crew, stall: float, say: Callable[[str], None],
        meanwhile: Callable[[], None], in_step: bool = False,
    ) -> None:  # fmt: skip
        """`say` tells the person something; `meanwhile` is done again and again, whatever is waited for."""
        self.roster, self.board, self.crew, self.stall = roster, board, crew, stall
        self.say, self.meanwhile = say, meanwhile
        self.seen = roster.seen
        self.loops = OwnLoops(roster.trainers, in_step, board.tell)
        self.inbox: dict[type[control.Word], dict[Address, Any]] = {}
        self.refused = Refusals()
        self.settling = Settling()
        self.phase: Phase = "starting"
        self.begun = time.monotonic()
        self.warned = self.cramped = False
        self.poller = zmq.Poller()
        self.poller.register(board.socket, zmq.POLLIN)
        for bell in crew.bells:
            self.poller.register(bell, zmq.POLLIN)

    def collect(self, kind: type[W], roles: Iterable[Address]) -> dict[Address, W]:
        """One word of this kind from each of the roles."""
        roles = list(roles)
        box = self.inbox.setdefault(kind, {})
        self.wait_for(lambda: [address for address in roles if address not in box])
        return {address: box.pop(address) for address in roles}

    def first(self, kind: type[control.Word], roles: Sequence[Address]) -> float:
        """The moment in which the first of the roles said such a word, which is left to be collected."""
        box = self.inbox.setdefault(kind, {})
        self.wait_for(lambda: [] if any(address in box for address in roles) else list(roles))
        return time.monotonic()

    def wait_for(self, missing: Callable[[], list[Address]]) -> None:
        """Hear until nobody is missing; after `stall` seconds say once who is. A score may take its time."""
        until, told = time.monotonic() + self.stall, False
        while late := missing():
            self.pump(0.05)
            if not told and time.monotonic() > until and late != [SCORER]:
                told = True
                self.say(f"{self.phase}: a long wait for these roles:\n{self.roster.picture(late)}")

    def pump(self, timeout: float) -> None:
        """Hear what there is, within `timeout` seconds; a role that failed or died ends the run here."""
        self.poller.poll(round(timeout * 1000))
        self.hear()
        self.note_refused("the launcher", self.board.refusals.news())
        self.bury(self.crew.exits())
        self.check_stall()
        self.meanwhile()

    def hear(self) -> None:
        for address, word in self.board.heard():
            seen = self.seen[address]
            seen.heard = time.monotonic()
            if isinstance(word, control.Report | control.Ended):
                self.roster.note(address, word)
                self.loops.note(address, word)
            elif isinstance(word, control.Vote | control.Left | control.Order):
                self.loops.hear(address, word)
            elif isinstance(word, control.Advice):
                self.say(f"{address}: {word.text}")
            elif isinstance(word, control.Failed):
                raise failure(address, word)
            elif isinstance(word, control.Settled):
                self.settling.hear(address, word)
            elif isinstance(word, control.Held):
                seen.held = word.step
            elif isinstance(word, control.Refused):
                self.note_refused(str(address), word.counts)
            elif isinstance(word, control.Cramped):
                self.note_cramped(address, word.why)
            else:
                self.inbox.setdefault(type(word), {})[address] = word

    def note_refused(self, by: str, counts: Mapping[str, int]) -> None:
        """Say what was refused, the first time and then ever more rarely; the result has it all."""
        for line in self.refused.add(counts, by):
            self.say(line)

    def note_cramped(self, by: Address, why: str) -> None:
        """Say once that memory is short, whoever is the first to find out."""
        if not self.cramped:
            self.say(f"{by} can share no more memory ({why}): what does not fit goes through sockets, more slowly")
        self.cramped = True

    def bury(self, exits: list[tuple[Address, str]]) -> None:
        if self.phase == "ended":
            exits = [(address, how) for address, how in exits if how != "exited with code 0"]
        if not exits:
            return
        until = time.monotonic() + LAST_WORD
        while (left := until - time.monotonic()) > 0:
            self.board.socket.poll(round(left * 1000))
            self.hear()
        address, how = exits[0]
        heard = time.monotonic() - self.seen[address].heard if self.seen[address].heard else None
        last = f"last heard {heard:.1f} s ago" if heard is not None else "never heard"
        raise PeerLost(f"{address} {how}; {last}")

    def check_stall(self) -> None:
        """Say who waits too long; when nobody does anything else, the run cannot go on."""
        if self.phase not in ("training", "stopping"):
            return
        now, stall = time.monotonic(), self.stall
        present = [address for address in self.roster.tallies if not self.seen[address].ended]
        waiting = [a for a in present if self.seen[a].waiting and self.seen[a].since > stall]
        silent = [a for a in present if now - max(self.seen[a].heard, self.begun) > stall]
        if waiting == present and waiting and not silent:
            refused = "".join(f"\n  {line}" for line in self.refused.lines())
            picture = self.roster.picture(present) + self.loops.gone()
            raise Stalled(f"nothing has moved for {stall:g} s:\n{picture}{refused}")
        late = bool(silent) or any(address in self.roster.trainers for address in waiting)
        if late and not self.warned:
            self.say(f"a long wait:\n{self.roster.picture(present)}")
        self.warned = late


def failure(address: Address, word: control.Failed) -> CoveyError:
    """The error that a role's last word stands for."""
    if word.refusal in REFUSALS:
        return REFUSALS[word.refusal](word.error)
    return RoleFailed(f"{address} failed: {word.error}\n\n{word.traceback}".rstrip())
