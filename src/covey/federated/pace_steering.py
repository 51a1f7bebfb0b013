"""When should a client come again? Often enough that rounds fill up, rarely enough that few come in vain."""

from __future__ import annotations

from covey.federated.rounds import RoundTerms

WANTED = 2.0  # check-ins in a round for each client that it accepts
SMALL = 2.0  # a population of at most this many times the goal is needed almost whole in every round
SMOOTH = 0.3  # how much of the newest round counts
CHANGE, BOUND = 2.0, 64.0  # how much one round, and all of them, may change the rate of check-ins

Wait = tuple[float, float]
"""The seconds after which a client comes again: it draws one between these two."""


class PaceSteering:
    """Sets the windows in which clients reconnect (Bonawitz et al. 2019, section 2.3).

    Few clients come again soon, so that enough of them are there at the same time. Many are spread at random, so that
    about as many come in a round as it wants: by how many came, the spread follows day and night. All wait equally
    long, those who have reported and those who were not needed: none is chosen more often for it.
    """

    def __init__(self, clients: int, terms: RoundTerms) -> None:
        self._clients, self._terms = clients, terms
        self.period = terms.selection / 4  # seconds of a round, as measured
        self.spread = 1.0  # by how much longer clients wait than if all of them were there
        self._came = 0

    def came(self) -> None:
        """A client has checked in."""
        self._came += 1

    def round_ended(self, seconds: float) -> None:
        """A round took this long, from one selection to the next."""
        wanted = WANTED * self._terms.goal
        change = min(CHANGE, max(1 / CHANGE, self._came / wanted))
        self.spread = min(BOUND, max(1 / BOUND, self.spread * change**SMOOTH))
        self.period += SMOOTH * (seconds - self.period)
        self._came = 0

    def wait(self) -> Wait:
        """When a client comes again that is not needed now."""
        if self._clients <= SMALL * self._terms.goal:
            return 0.0, min(self.period, self._terms.selection) / 2
        usual = self.spread * self.period * self._clients / (WANTED * self._terms.goal)
        return usual / 2, 3 * usual / 2

    def first(self) -> float:
        """Seconds in which all clients come for the first time."""
        return self.period * max(0.25, self._clients / (WANTED * self._terms.goal))
