"""Lost workers are restarted, while all others go on: `--on-failure continue`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from covey.engines.process import control
from covey.engines.process.contacts import ANY
from covey.engines.process.control_lines import Switchboard
from covey.engines.process.launcher.empty_seats import (
    TOLD_TO_LEAVE,
    EmptySeat,
    HeardWords,
    Introductions,
    Renewal,
    cause_of,
)
from covey.engines.process.launcher.roster import RoleRecord, Roster, all_ended, unended
from covey.engines.process.snapshot_parts import SCORER
from covey.engines.worker_scaling import ScaledSeats
from covey.errors import PeerLost
from covey.membership import by_seniority, copies_lost, go_on, too_few
from covey.message import Address
from covey.observe.membership import MembershipLog

REPLACED_IN = ("training", "scoring", "saving", "stopping")  # phases of a run
ENTERED_IN = ("training", "stopping")  # while the model is scored, or kept, nobody computes


class RoleRestarts:
    """The empty seats of a run. Others first drop their links to the old incarnation: nothing of it comes later."""

    def __init__(self, roster: Roster, board: Switchboard, renewal: Renewal | None, say: Callable[[str], None]) -> None:
        self.roster, self.say = roster, say
        self.links = Introductions(roster, board, renewal)
        self.seats, self.finished, self.empty = self.links.seats, self.links.finished, self.links.empty
        self.returning: dict[Address, EmptySeat] = {}  # of the empty ones, those whose workers died and come back
        self.entered: set[Address] = set()  # that have begun, and do not know yet where they go on
        self.copying: dict[Address, EmptySeat] = {}  # of servers, where a new copy has not what the others hold
        self.first: dict[Address, int] = {}  # the step at which each role began, in its present incarnation
        self.log = renewal.log if renewal else MembershipLog()
        self.seconds = 0.0  # of training so far
        self.begun = False  # training: a worker that is lost before is not replaced

    @property
    def renewal(self) -> Renewal | None:
        """How lost workers are restarted; None where they are not."""
        return self.links.renewal

    def present(self, roles: Iterable[Address]) -> list[Address]:
        """Those of the roles that are there to be asked something."""
        return [who for who in roles if who not in self.seats and who not in self.finished]

    def holds(self, who: Address) -> bool:
        """Whether a copy of a server's parameters is there, and has what the others have."""
        return who not in self.seats and who not in self.finished and who not in self.entered

    def showing(self, roles: Iterable[Address]) -> list[Address]:
        """Those of the roles whose parts make the model: of the copies of a server, the one that leads."""
        if self.renewal is None:
            return list(roles)
        copies, incarnations = self.renewal.deaths.copies, self.renewal.deaths.incarnations
        leading = {who: by_seniority(filter(self.holds, copies[who]), incarnations)[:1] for who in copies}
        return [who for who in self.present(roles) if who not in copies or who in leading[who]]

    @property
    def ranged(self) -> bool:
        """Whether workers come and go."""
        return self.renewal is not None and self.renewal.least > 0

    @property
    def settled(self) -> bool:
        """Whether every seat is taken, or empty for now, and every new incarnation knows where it goes on."""
        return not self.seats and all(self.roster.seen[who].ended for who in self.entered)

    @property
    def awaited(self) -> bool:
        """Whether others wait for one that was lost, or that is about to enter."""
        return any(seat.missed or seat.announced for seat in self.seats.values())

    def incarnation(self, who: Address) -> int:
        """In which incarnation a role is, or is about to be."""
        return self.renewal.deaths.incarnations.get(who, 0) if self.renewal else 0

    def lost(self, who: Address, how: str, heard: HeardWords) -> bool:
        """Note the end of a process; whether the run goes on without it, for a while or for good."""
        copies = self.renewal.deaths.copies.get(who, ()) if self.renewal else ()
        able = (copies or who in self.roster.trainers) and (cause := cause_of(how))
        if self.renewal is None or not self.begun or not able or heard.phase not in REPLACED_IN:
            return False
        heard.hear()  # its last words: later ones would count what others do again
        self.links.board.forget(who)
        self._check_copies(who, copies)
        for kind, box in heard.inbox.items():
            if kind is not control.Saved:  # what is written stays so
                box.pop(who, None)
        self.entered.discard(who)
        self.copying.pop(who, None)
        seen, now = self.roster.seen[who], time.monotonic()
        if seen.ended:
            self.finished.add(who)
            return True
        if self.renewal.least and cause == TOLD_TO_LEAVE and not all_ended(self.roster, self.empty | {who}):
            return self._leave(who, "was told to leave")
        try:
            reached = self.roster.samples if copies else self.roster.tallies[who].samples
            pause = self.renewal.deaths.note(who, reached, how)
        except PeerLost as lost:
            if not self.renewal.least:
                raise
            return self._leave(who, str(lost).removeprefix(f"{who} ").split(";")[0])
        step, before = max(0, seen.step, self.first.get(who, 0)), self.seats.get(who)
        if before:  # its next incarnation died before it could begin
            step, before.event.stalled = max(step, before.step), (now - before.died) * before.missed
        event = self.log.add("rebirth", str(who), cause, seconds=self.seconds, workers=self.workers)
        seat = EmptySeat(who, self.renewal.deaths.incarnations[who], event, step, now, now + pause)
        left = len(unended(self.roster, self.finished | self.seats.keys() | {who}))
        if copies or not self.renewal.least or left < self.renewal.least:
            self.seats[who], self.roster.seen[who] = seat, RoleRecord(heard=now, step=seen.step)
            return True
        self.returning[who] = replace(seat, missed=False)
        self._vacate(who)
        self.say(f"{who} died ({cause}); {go_on(left)} until it is back")
        return True

    @property
    def workers(self) -> int:
        """Seats that are taken, or will be in a moment."""
        return len(self.roster.trainers) - len(self.empty - self.returning.keys())

    def _check_copies(self, who: Address, copies: Sequence[Address]) -> None:
        if copies and not any(map(self.holds, set(copies) - {who})):
            raise copies_lost(who)

    def _leave(self, who: Address, cause: str) -> bool:
        """A worker is gone, and its seat stays empty until somebody joins."""
        assert self.renewal is not None
        left = self.workers - 1
        if left < self.renewal.least:
            raise too_few(who, cause, left, self.renewal.least)
        self.returning.pop(who, None)
        if len(unended(self.roster, self.finished | self.seats.keys() | {who})) < self.renewal.least:
            for other in sorted(self.returning):  # the others wait for them, and hear so before this one is gone
                self._return(other)
            for seat in self.seats.unseated().values():
                self._await(seat)
        self._vacate(who)
        self.log.add("leave", str(who), cause, seconds=self.seconds, workers=left)
        self.say(f"{who} {cause}; {go_on(left)}")
        return True

    def _vacate(self, who: Address) -> None:
        """Nobody is in this seat, and all others go on without."""
        assert self.renewal is not None
        self.seats.pop(who, None)
        self.empty.add(who)
        self.finished.add(who)
        self.roster.seen[who] = RoleRecord(heard=time.monotonic(), step=self.roster.seen[who].step, ended=True)
        incarnation = self.renewal.deaths.next_incarnation(who)
        listeners = [other for other in (*self.roster.roles, SCORER) if other not in self.finished]
        self.links.endpoints[who] = self.renewal.endpoint_of_nobody(who, incarnation)
        self.links.install(who, listeners)

    def _join(self, who: Address) -> None:
        """A new worker takes an empty seat."""
        assert self.renewal is not None
        now, incarnation = time.monotonic(), self.renewal.deaths.joined(who)
        self.empty.remove(who)
        event = self.log.add("join", str(who), "joined", seconds=self.seconds, workers=self.workers)
        self._take(EmptySeat(who, incarnation, event, 0, now, now, missed=False))

    def _return(self, who: Address) -> None:
        """One that died takes its seat again, where others have gone on meanwhile."""
        assert self.renewal is not None
        self.empty.remove(who)
        self._take(replace(self.returning.pop(who), incarnation=self.renewal.deaths.next_incarnation(who), step=0))

    def _await(self, seat: EmptySeat) -> None:
        """The others wait for a new incarnation from now on, or from when its endpoint is known."""
        assert self.renewal is not None
        if not seat.forked and self.renewal.renewable(seat.who):
            self._fork(seat)
        if not seat.bound:
            seat.wanted = True
            return
        seat.missed = True
        if seat.ready:
            self.links.introduce(seat)
        self.links.announce(seat)

    def _take(self, seat: EmptySeat) -> None:
        self.finished.remove(seat.who)
        self.seats[seat.who], self.roster.seen[seat.who] = seat, RoleRecord(heard=time.monotonic())

    def hear(self, by: Address, word: control.Installed | control.Resumed) -> None:
        """A role speaks to a new incarnation, or goes on as one."""
        if isinstance(word, control.Resumed):
            self.entered.discard(word.who or by)
            if seat := self.copying.pop(by, None):
                self.say(seat.filled(time.monotonic(), self.workers))
            return self.roster.tallies[word.who or by].resume(word.samples)
        if (seat := self.seats.get(word.who)) and seat.incarnation == word.incarnation:
            seat.told[by] = word

    def advance(self, heard: HeardWords, orders: Sequence[control.Downward], seconds: float) -> None:
        """Do for the empty seats what can be done now, after this many seconds of training.

        A new incarnation is given the orders that the other workers have.
        """
        self.seconds = seconds
        if self.renewal and self.renewal.least and heard.phase == "training":
            for who in [who for who, seat in self.returning.items() if self.renewal.due(seat)]:
                self._return(who)
            for who in self.renewal.joining(sorted(self.empty - self.returning.keys())):
                self._join(who)
            if self.renewal.scaling:
                self._scale(self.renewal.scaling)
        for seat in list(self.seats.values()):
            self._fill(seat, heard, orders)

    def _fill(self, seat: EmptySeat, heard: HeardWords, orders: Sequence[control.Downward]) -> None:
        assert self.renewal is not None
        if not seat.forked and self.renewal.due(seat):
            self._fork(seat)
        if seat.forked and not seat.bound:
            self.links.bind(seat, heard)
        if seat.forked and not seat.ready and heard.inbox.get(control.RoleReady, {}).pop(seat.who, None):
            seat.ready = True
            if seat.missed:
                self.links.introduce(seat)
        if not seat.ready or heard.phase not in ENTERED_IN:
            return
        if not seat.announced:
            self.links.introduce(seat)
            self.links.announce(seat)
        if all(who in seat.told for who in self.links.listeners(seat)):
            self._enter(seat, orders)

    def _scale(self, scaling: ScaledSeats) -> None:
        """Have as many workers as are worth it; nobody goes or comes while somebody comes or has ended."""
        assert self.renewal is not None
        present = {who: self.incarnation(who) for who in self.roster.trainers if who not in self.empty}
        waits = not self.settled or self.returning or any(self.roster.seen[who].ended for who in present)
        if waits:
            return
        who = scaling.look(self.seconds, self.roster.samples, present, self.empty)
        if who in self.empty:
            self._join(who)
        elif who is not None:
            self.renewal.release(who)

    def _fork(self, seat: EmptySeat) -> None:
        assert self.renewal is not None
        seat.forked = True
        incarnations = self.seats.known_incarnations(seat, self.renewal.deaths.incarnations, self.empty)
        endpoint = self.renewal.start(seat.who, incarnations)
        self.links.board.renew(seat.who, incarnations[seat.who])
        if not endpoint.endswith(ANY):
            self.links.bound(seat, endpoint)

    def _enter(self, seat: EmptySeat, orders: Sequence[control.Downward]) -> None:
        ended = [*(who for who, word in seat.told.items() if word.ended), *sorted(self.finished - self.empty)]
        free = min(word.floor for word in seat.told.values())
        self.links.board.tell([seat.who], control.Go(seat.step, ended, self.seconds, free))
        for order in orders if seat.who in self.roster.trainers else ():
            self.links.board.tell([seat.who], order)
        del self.seats[seat.who]
        self.entered.add(seat.who)
        self.first[seat.who] = seat.step  # its own reports begin before it knows
        if self.renewal and seat.who in self.renewal.deaths.copies:
            self.copying[seat.who] = seat
        else:
            self.say(seat.filled(time.monotonic(), self.workers))
