"""The lanes of one role: what goes by them, what has come, and when to look again instead of to sleep.

Frames that are long, or find no free place, go by the socket. The order of a link stays: each frame in a lane says how
many had left by the socket before it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping

from covey.engines.transport.refusals import Refusals
from covey.engines.transport.shared.lane import Lane, LaneFrame
from covey.engines.transport.shared.segment import SharedSegment
from covey.engines.transport.shared.semaphore import GIVING_FENCES
from covey.errors import WireError
from covey.message import Address

SPIN = 3e-4  # seconds in which a role looks again and again before it sleeps, if the last message came so soon
LOOK = 1e-3  # seconds after which sockets are looked at, too, however much comes by lanes

Come = list[tuple[Address, bytes]]
"""Frames, and by whose lanes they came."""


def first_lanes(
    me: Address, segment: SharedSegment, incarnations: Mapping[Address, int], refusals: Refusals
) -> RoleLanes | None:
    """Lanes to peers of this host, where both ends are the first processes of their roles."""
    if incarnations.get(me) or not segment.has_lanes:
        return None
    return RoleLanes(me, segment, [who for who in segment.places if not incarnations.get(who)], refusals)


class RoleLanes:
    """By peer. Whoever is lost has none from then on: nobody knows how far it had come."""

    def __init__(self, me: Address, segment: SharedSegment, roles: Iterable[Address], refusals: Refusals) -> None:
        self.me, self.segment, self.refusals = me, segment, refusals
        others = [who for who in roles if who != me]
        self.outgoing = {who: Lane(*segment.lane(me, who)) for who in others}
        self.incoming = {who: Lane(*segment.lane(who, me)) for who in others}
        self._counts = {who: lane.count for who, lane in self.incoming.items()}
        self.socketed: Counter[Address] = Counter()  # frames of each that have come by its socket
        self._held: dict[Address, LaneFrame] = {}  # came before frames that had left earlier
        self._soon = False  # whether what it waited for last came soon
        self._looked = 0.0  # when the sockets were looked at last
        self._listening = {who: segment.listening(who) for who in segment.places}
        self._listening[me][0] = 0
        self._resting = segment.resting(me)
        self._fence = segment.sign(me, me).fence

    def put(self, to: Address, data: bytes, before: int) -> bool:
        """Whether a frame went by the lane to this peer."""
        lane = self.outgoing.get(to)
        if lane is None or not lane.put(data, before):
            return False
        if not GIVING_FENCES:
            self._fence()
        if self._listening[to][0]:
            os.eventfd_write(self.segment.wakeup(to), 1)
        return True

    def come(self, who: Address) -> list[bytes]:
        """The frames of this peer whose turn it is."""
        found, lane = list[bytes](), self.incoming.get(who)
        while lane is not None and (frame := self._held.pop(who, None) or self._taken(who, lane)):
            if frame.before > self.socketed[who]:
                self._held[who] = frame
                break
            found.append(frame.data)
        return found

    def _taken(self, who: Address, lane: Lane) -> LaneFrame | None:
        try:
            return lane.take()
        except WireError as error:
            self.refusals.note(f"{who}: {error}")
            self.forget(who)
            return None

    def all_come(self) -> Come:
        """Those of all peers."""
        coming = [who for who, count in self._counts.items() if count[0] or who in self._held]
        return [(who, data) for who in coming for data in self.come(who)]

    def wait(self, timeout: float | None, alone: bool) -> tuple[Come, bool]:
        """What has come, perhaps within a moment, and whether it is time to look at the sockets.

        Where nobody else of this process is at work, and messages come soon, a role looks for a moment.
        """
        found, now = self.all_come(), time.monotonic()
        if not found and timeout != 0 and alone and self._soon and not self._resting[0]:
            until = now + (SPIN if timeout is None else min(SPIN, timeout))
            while not found and now < until:
                os.sched_yield()
                found, now = self.all_come(), time.monotonic()
            self._soon = bool(found)
        return found, not found or now > self._looked + LOOK

    def sleep(self) -> Come:
        """Have the bell rung from now on, and look once more."""
        self._listening[self.me][0] = 1
        self._fence()
        self._looked = time.monotonic()
        return self.all_come()

    def wake(self) -> Come:
        """What has come meanwhile."""
        self._listening[self.me][0] = 0
        found, now = self.all_come(), time.monotonic()
        if found:
            self._soon = now < self._looked + SPIN
        self._looked = now
        return found

    def forget(self, who: Address) -> None:
        """This peer was lost."""
        self._held.pop(who, None)
        self.outgoing.pop(who, None)
        self.incoming.pop(who, None)
        self._counts.pop(who, None)
