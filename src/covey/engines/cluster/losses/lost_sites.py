"""Sites that were lost while their run goes on: each is started again as soon as its host is there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import msgspec

from covey.engines.cluster.places import Places
from covey.engines.cluster.site_messages import SiteConfig

LOOK = 0.5  # seconds between two looks whether a host is there again


class LostSites:
    """Which sites of a run are away, and how often each was lost."""

    def __init__(self, places: Places, configure: Callable[[int], SiteConfig], patience: float) -> None:
        """`patience` is for how many seconds a site that was started again may take until it arrives."""
        self.places, self.configure, self.patience = places, configure, patience
        self.incarnations: Counter[int] = Counter()
        self.away: set[int] = set()
        self.invited: dict[int, float] = {}  # of these, the sites that are on their way, and since when
        self.looked: dict[int, float] = {}
        self.refused: set[int] = set()  # of these, the sites that differ from what the launcher has

    def lose(self, number: int) -> None:
        self.away.add(number)
        self.invited.pop(number, None)

    def arrive(self, number: int) -> None:
        self.away.discard(number)
        self.invited.pop(number, None)

    def is_here(self, number: int, renew: Callable[[int, int], None]) -> bool:
        """Whether a site is there; else it is started if its host is. `renew` hears its number and incarnation."""
        if number not in self.away:
            return True
        now = time.monotonic()
        late = now - self.invited.get(number, now) > self.patience
        waits = number in self.invited and not late
        if number in self.refused or waits or now - self.looked.get(number, -LOOK) < LOOK:
            return False
        self.looked[number] = now
        incarnation = self.incarnations[number] + 1
        if self.places.invite_again(msgspec.structs.replace(self.configure(number), incarnation=incarnation)):
            self.incarnations[number], self.invited[number] = incarnation, now
            renew(number, incarnation)
        return False
