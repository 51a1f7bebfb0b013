"""How many workers are worth it? Measured samples a second, by the number of workers, say what the last one adds."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from statistics import fmean

from covey.message import Address

RELEASE, ADD = 0.25, 0.5  # of what the others give each: who adds less is released; who adds more is taken
WINDOWS = 4  # measurements with the same number of workers, before their number changes
BATCHES = 8  # of each worker, in a measurement
DRIFT = 0.4  # from then on what was known of other numbers is forgotten


def knee(rates: Mapping[int, float], home: int, least: int, most: int) -> tuple[int, bool]:
    """The number of workers to have, or to try next; and whether nothing is left to try.

    It is found by halving: several workers more or fewer differ more than noise does. Twice as many as `home` are tried
    first; they must add ADD each. Of what was tried, as many stay as add RELEASE each. Between the two nothing changes.
    At last the next one is tried by itself, which may add more than all that were tried with it.

    >>> knee({8: 400.0}, 8, 1, 8)
    (4, False)
    >>> knee({8: 400.0, 4: 390.0, 2: 200.0, 3: 300.0, 5: 395.0}, 8, 1, 8)
    (4, True)
    """
    few, many = least - 1, home
    while many < most:
        more = min(most, 2 * many)
        if more not in rates:
            return more, False
        if _adds(rates, many, more) < ADD:
            break
        few, many = many, more
    while many - few > 1:
        middle = (few + many) // 2
        if middle not in rates:
            return middle, False
        if _adds(rates, middle, many) < RELEASE:
            many = middle
        else:
            few = middle
    while many < most:
        if many + 1 not in rates:
            return many + 1, False
        if _adds(rates, many, many + 1) < ADD:
            break
        many += 1
    return many, True


def _adds(rates: Mapping[int, float], few: int, many: int) -> float:
    """What each worker beyond the few adds, in what each of the few gives."""
    return (rates[many] - rates[few]) / (many - few) / (rates[few] / few) if rates[few] else 1.0


@dataclass(slots=True)
class WorkerScaling:
    """Decides how many workers a run has, of what is measured in windows of BATCHES for each worker."""

    most: int
    batch: int  # samples
    least: int = 1
    wanted: int = field(init=False)
    home: int = field(init=False)  # where the search began
    settled: bool = False
    rates: dict[int, float] = field(default_factory=dict)
    _seen: list[float] = field(default_factory=list)  # with the present number of workers
    _begin: tuple[float, int] | None = None  # seconds and samples, of this window

    def __post_init__(self) -> None:
        self.wanted = self.home = self.most

    def look(self, seconds: float, samples: int, workers: int) -> int:
        """How many workers the run should have, after so many seconds and samples; now there are so many."""
        if workers != self.wanted:  # somebody is on the way: nothing is measured
            self._begin = None
            self._seen.clear()
        elif self._begin is None:  # what follows a change is not measured either: the window begins with the next
            self._begin = seconds, samples
        elif samples - self._begin[1] >= BATCHES * self.batch * workers and seconds > self._begin[0]:
            rate = (samples - self._begin[1]) / (seconds - self._begin[0])
            self._begin = seconds, samples
            self._heard(workers, rate)
        return self.wanted

    def begin_again(self, workers: int, most: int) -> None:
        """Somebody else sent a worker away or brought one: now there are so many, and at most so many can be had."""
        self.wanted = self.home = workers
        self.most, self.settled, self.rates, self._begin = most, False, {}, None
        self._seen.clear()

    def _heard(self, workers: int, rate: float) -> None:
        self._seen = [*self._seen, rate][-WINDOWS:]
        if len(self._seen) < WINDOWS:
            return
        rate = fmean(self._seen)
        if self.settled and abs(rate / self.rates[workers] - 1) <= DRIFT:
            return
        if self.settled:
            self.home, self.rates = workers, {}
        self.rates[workers] = rate
        self.wanted, self.settled = knee(self.rates, self.home, self.least, self.most)
        self._seen.clear()


@dataclass(slots=True)
class ScaledSeats:
    """Whose seat is emptied or filled next. One that a person, a plan or repeated deaths have emptied stays empty."""

    scaling: WorkerScaling
    released: tuple[Address, int] | None = None  # who was told to go after its batch, and in which incarnation
    spare: set[Address] = field(default_factory=set)  # seats that scaling has emptied
    given_up: set[Address] = field(default_factory=set)  # those that others have

    def look(
        self, seconds: float, samples: int, present: Mapping[Address, int], empty: AbstractSet[Address]
    ) -> Address | None:  # fmt: skip
        """Whose seat changes now: an empty one is filled, one who is there is released; None: nobody's.

        `present` has the incarnations of those that are there.
        """
        self._notice(present, empty)
        wanted = self.scaling.look(seconds, samples, len(present))
        if wanted > len(present) and self.spare:
            who = min(self.spare)
            self.spare.remove(who)
            return who
        if wanted < len(present) and self.released is None:
            who = max(present)
            self.released = who, present[who]
            return who
        return None

    def _notice(self, present: Mapping[Address, int], empty: AbstractSet[Address]) -> None:
        """Learn who went and came since the last look, and whether scaling had told them to."""
        if self.released is not None:
            who, incarnation = self.released
            if who in empty:
                self.spare.add(who)
            if present.get(who) != incarnation:  # a new incarnation does not know that the one before was told to go
                self.released = None
        if empty != self.spare | self.given_up:
            self.spare &= empty
            self.given_up = set(empty - self.spare)
            self.scaling.begin_again(len(present), len(present) + len(self.spare))
