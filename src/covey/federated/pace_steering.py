"""When should a client come again? Often enough that rounds fill up, rarely enough that few come in vain."""

from __future__ import annotations

from math import floor

from covey.federated.rounds import RoundTerms

WANTED = 2.0  # check-ins in a round for each client that it accepts
SMALL = 2.0  # a population of at most this many times the goal is needed almost whole in every round
SMOOTH = 0.3  # how much of the newest round counts

Period = tuple[float, float]
"""From when until when, in the service's own time, a client comes again: it draws a moment between these two."""


class PaceSteering:
    """Sets the times at which clients reconnect (Bonawitz et al. 2019, section 2.3).

    Few clients come again soon, so that enough of them are there at the same time. Of many, each comes once in a cycle,
    at a random moment of it, whether it has reported or was not needed. How long a cycle lasts follows how long rounds
    take and how many clients came in the cycle before (day and night). Nobody comes twice in a cycle, so that no client
    is chosen more often than others because rounds have become faster since it was told when to come.
    """

    def __init__(
        self, clients: int, terms: RoundTerms, needed: int, seconds: float | None = None, there: int | None = None,
        began: float = 0.0,
    ) -> None:  # fmt: skip
        """Steer a population.

        Args:
            clients: How many there are.
            terms: Of a round.
            needed: The clients that a round, or an update, needs.
            seconds: What a round is expected to take until one has been measured.
            there: The clients that may take part now; None: nobody knows, perhaps all of them.
            began: The time of the service when this begins, of one that goes on from a checkpoint.
        """
        self._terms, self._needed = terms, needed
        self.small = clients <= SMALL * terms.goal
        self.seconds = min(seconds or terms.selection / 4, terms.selection)
        self._expected = max(needed, clients if there is None else there)  # in a cycle
        self._came, self._before = set[int](), there or 0  # who came in this cycle, and how many did in the one before
        self._first = self._next = self._cycle()  # the length of the first cycle, and of the one after this
        self._end = began + self._first  # of this cycle

    def _cycle(self) -> float:
        """How long all who are there may take to come once."""
        # without overlap, nobody is accepted during a round: enough must come while selection waits for them
        seconds = self.seconds if self._terms.overlap else min(self.seconds, self._terms.selection)
        cycle = seconds * max(0.25, self._expected / (WANTED * self._needed))
        return max(cycle, self._terms.selection) if self.small else cycle  # whoever is accepted waits that long

    @property
    def there(self) -> int:
        """How many clients have come, each counted once, in this cycle or the one before."""
        return max(len(self._came), self._before)

    def first(self) -> float:
        """Seconds in which all clients come for the first time."""
        return self._soon() if self.small else self._first

    def came(self, now: float, client: int) -> None:
        """A client has checked in."""
        self._turn(now)
        self._came.add(client)

    def round_ended(self, seconds: float) -> None:
        """A round took this long, without the time in which it waited for clients to check in."""
        self.seconds += SMOOTH * (seconds - self.seconds)

    def period(self, now: float) -> Period:
        """When a client comes again that is not needed now."""
        if self.small:
            return now, now + self._soon()
        self._turn(now)
        return self._end, self._end + self._next

    def _soon(self) -> float:
        return min(self.seconds, self._terms.selection) / 4

    def _turn(self, now: float) -> None:
        """Begin a new cycle if the last one is over."""
        if now >= self._end:
            self._before = len(self._came)
            self._expected = max(self._needed, self._before)
            self._came.clear()
            silent = now >= self._end + self._next  # nobody came in a whole cycle
            self._end = (now if silent else self._end) + self._next
            self._next = self._cycle()


class SteadyPace(PaceSteering):
    """All clients come at least once while selection lasts, as each has to have its chance to be drawn."""

    def first(self) -> float:
        return self._terms.selection / 2

    def period(self, now: float) -> Period:
        return now + 0.5 * self._terms.selection, now + 0.9 * self._terms.selection


def until(period: Period, now: float) -> Period:
    """The seconds until a period begins and ends; of one that has begun, until the next one that is as long."""
    begin, end = period
    length = end - begin
    if now > begin and length > 0:
        begin += length * (floor((now - begin) / length) + 1)
    wait = max(0.0, begin - now)
    return wait, wait + length
