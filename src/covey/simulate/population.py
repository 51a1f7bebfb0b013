"""Who are the clients of a federated run? Speeds, links and windows are functions of the seed and their number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from covey.errors import PlanError
from covey.names import option
from covey.simulate.availability import Always, Availability, Window, draw
from covey.simulate.cluster import Cluster, Host
from covey.simulate.machines import Link
from covey.simulate.units import BytesPerSecond, Seconds

CLIENT = "client"
"""What the roles of clients are called."""

ALWAYS = Always()
BATCH, LATENCY = Seconds(0.01), Seconds(0.05)
DOWN, UP = BytesPerSecond(2.5e6), BytesPerSecond(6.25e5)  # of a median phone: 20 and 5 Mbit/s
SOME = 1000  # clients by which those that are there are estimated
_SPEED, _LINK, _FIRST = -2, -3, -4  # which of a client's draws


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """Clients that differ.

    Args:
        clients: How many there are.
        seed: Of everything that is drawn for them.
        availability: When each may take part.
        compute: Seconds that the median client takes for a batch.
        speed_spread: The standard deviation of the logarithm of their speeds; 0: all are equally fast.
        down: The rate at which the median client receives.
        up: The rate at which it sends, which is often much less.
        latency: Of a client's link, one way.
        link_spread: The standard deviation of the logarithm of the links' rates.
    """

    clients: int
    seed: int = 0
    availability: Availability = ALWAYS
    compute: Seconds = BATCH
    speed_spread: float = 0.5
    down: BytesPerSecond = DOWN
    up: BytesPerSecond = UP
    latency: Seconds = LATENCY
    link_spread: float = 0.5

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise PlanError(f"a population of {self.clients} clients: at least 1 is needed")
        for name, value in (("speed_spread", self.speed_spread), ("link_spread", self.link_spread)):
            if not 0 <= value < math.inf:
                raise PlanError(f"{option(name, value)}: a number from 0 up is needed, such as 0.5")

    def window(self, client: int, now: float) -> Window | None:
        """The first window from now on in which this client may take part."""
        return self.availability.window(client, now, self.seed)

    def present(self, now: float) -> int:
        """About how many clients may take part now, by a look at some of them."""
        looked = range(0, self.clients, max(1, self.clients // SOME))
        there = sum(window is not None and window[0] <= now for window in (self.window(k, now) for k in looked))
        return round(self.clients * there / len(looked))

    def visit(self, batches: float, size: int) -> float:
        """Seconds in which the median client receives a model of this size, trains it, and sends it back."""
        return 4 * self.latency + batches * self.compute + size / self.down + size / self.up

    def arrival(self, client: int, within: float) -> float:
        """When this client would come for the first time, of all that come in so many seconds."""
        return within * draw(self.seed, client, _FIRST)

    def slowness(self, client: int) -> float:
        """How many times as long as the median client this one takes."""
        return math.exp(self.speed_spread * _gauss(self.seed, client, _SPEED))

    def link(self, client: int) -> Link:
        """The client's link; a fast one is fast in both directions."""
        factor = math.exp(self.link_spread * _gauss(self.seed, client, _LINK))
        return Link(
            bandwidth=BytesPerSecond(self.down * factor), uplink=BytesPerSecond(self.up * factor), latency=self.latency
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PopulationCluster(Cluster):
    """The machines of a federated run: the service's own, and those of a population, of which none is kept."""

    population: Population

    def compute_time(self, rank: int, load: float, draw: Random) -> Seconds:
        """How long a client takes for this many batches."""
        return Seconds(self.population.compute * load * self.population.slowness(rank))

    def link_of(self, host: Host) -> Link:
        role, _, number = host.partition(" ")
        return self.population.link(int(number)) if role == CLIENT else self.link

    @property
    def one_latency(self) -> bool:
        """It is the longer one of a client's link and the service's: one end of every way is a client's."""
        return True

    def check(self, workers: int) -> None:
        """Any number of clients fits."""


def _gauss(seed: int, client: int, which: int) -> float:
    """A normal draw (Box and Muller 1958) that belongs to a client."""
    radius = math.sqrt(-2 * math.log(1 - draw(seed, client, which, 0)))
    return radius * math.cos(2 * math.pi * draw(seed, client, which, 1))
