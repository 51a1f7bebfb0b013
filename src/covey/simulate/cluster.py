"""A simulated cluster: the speeds of its machines and links."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import exp
from random import Random
from typing import Literal

from covey.errors import PlanError
from covey.simulate.backend import Backend
from covey.simulate.machines import EASY, FREE, LINK, CodecTime, Handling, Link, Machine
from covey.simulate.units import AT_ONCE, Bytes, BytesPerSecond, Seconds, parse_duration, parse_rate

Host = str  # "worker 3", "server 0": as roles are shown to people
Sharing = Literal["fifo", "fair", "tcp"]

BATCH = Seconds(0.01)
WINDOW = Bytes(128 * 1024)  # the receive buffer of Linux, unless told otherwise (net.ipv4.tcp_rmem)

KINDS = (
    "worker", "server", "master", "proxy", "scheduler", "switch", "preparer", "coordinator", "aggregator", "backup",
)  # fmt: skip
"""Of roles that strategies of covey have: a cluster file may describe those that this run does without."""

_SLOW = re.compile(r"(?P<rank>[0-9]{1,9}):(?P<factor>[0-9]{1,99}(?:\.[0-9]+)?)x?")
_HOST = re.compile(r"(?:(?P<role>[a-z]+) +)?(?P<rank>[0-9]{1,9})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The world that the virtual engine pretends to run in."""

    compute: Seconds = BATCH  # of one batch on a worker that is not slowed down
    prepare: Seconds = AT_ONCE  # of transforming the samples of a batch, where the task has a transform
    jitter: float = 0.0  # coefficient of variation of the compute time
    fixed: float = 0.0  # the share of a batch's time that a part of it takes all the same
    slowdowns: Mapping[int, float] = field(default_factory=dict)  # worker rank -> how many times slower
    kills: Mapping[Host, Seconds] = field(default_factory=dict)
    link: Link = LINK
    links: Mapping[Host, Link] = field(default_factory=dict)  # hosts that differ from `link`
    sharing: Sharing = "fifo"
    window: Bytes = WINDOW  # with which a flow of `tcp` begins
    update: Seconds = AT_ONCE  # of an optimizer step, per byte
    threads: int = 1  # that compute a batch
    handling: Handling = EASY
    coding: Mapping[str, CodecTime] = field(default_factory=dict)  # by the name of a codec; of others it is arithmetic
    local: Link | None = None  # between roles of one machine; None: at once
    machines: tuple[Machine, ...] = ()  # that roles share; none: each role has one of its own
    place: str = ""  # which roles live on which machine, written as for --place
    workers: int | None = None  # how many the file describes; None: any number
    error: float = 0.0  # of steps that are foreseen, the standard deviation of their logarithm; 0: not known
    price: Mapping[int, float] = field(default_factory=dict)  # worker rank -> money per hour
    spot_price: Mapping[int, float] = field(default_factory=dict)  # the same for machines that may depart
    watts: Mapping[int, float] = field(default_factory=dict)  # worker rank -> power
    backend: Backend | None = None  # that samples are read from; None: reading takes no time

    def compute_time(self, rank: int, load: float, draw: Random) -> float:
        """How long this worker takes for a batch, or for a part of one: `load`, from 0 to 1."""
        expected = self.compute * (self.fixed + (1 - self.fixed) * load)
        if self.slowdowns:
            expected *= self.slowdowns.get(rank, 1.0)
        if not self.jitter:
            return expected
        # Lognormal with mean 1: a slow batch can be very slow, none is faster than 0.
        mean, deviation = _LOGNORMAL[self.jitter]
        return expected * exp(draw.normalvariate(mean, deviation))

    def prices(self, spot: Collection[int] = ()) -> Mapping[int, float]:
        """Money per hour of each worker's machine, where those of `spot` may depart."""
        return {**self.price, **{rank: price for rank, price in self.spot_price.items() if rank in spot}}

    @property
    def charges_cpu(self) -> bool:
        """Whether also what roles do besides computing takes their cores' time."""
        links = (self.link, *self.links.values(), *([self.local] if self.local else []))
        return bool(self.machines or self.coding) or self.handling != EASY or any(link.cpu != FREE for link in links)

    def link_of(self, host: Host) -> Link:
        """The link of one host; a switch has a port for each of the others unless its link says otherwise."""
        if host.startswith("switch ") and host not in self.links:
            return replace(self.link, bandwidth=BytesPerSecond(math.inf), uplink=None)
        return self.links.get(host, self.link)

    @property
    def one_latency(self) -> bool:
        """Whether all links have the same."""
        return all(link.latency == self.link.latency for link in self.links.values())

    def strangers(self, roles: Collection[Host]) -> list[Host]:
        """Hosts with links of their own that are no role of a run, which has others of their kind, or nobody has."""
        kinds = {role.rpartition(" ")[0] for role in roles}
        absent = [host for host in self.links if host not in roles] if not self.machines else []
        return [host for host in absent if (kind := host.rpartition(" ")[0]) in kinds or kind not in KINDS]

    def nearby(self, size: int) -> Seconds:
        """How long a message takes that stays on its machine."""
        return AT_ONCE if self.local is None else Seconds(self.local.crossing(size))

    def check(self, workers: int) -> None:
        """Refuse a cluster that does not fit this many workers."""
        if self.workers is not None and self.workers != workers:
            raise PlanError(f"the cluster has {self.workers} workers, the run asks for {workers}; make them equal")
        named = [host.removeprefix("worker ") for host in (*self.kills, *self.links) if host.startswith("worker ")]
        for rank in (*self.slowdowns, *map(int, named)):
            if rank >= workers:
                raise PlanError(f"there is no worker {rank}: {workers} workers are numbered 0 to {workers - 1}")


def from_flags(
    *,
    bandwidth: str | None = None,
    latency: str | None = None,
    compute: str | None = None,
    jitter: str | float | None = None,
    slow: Iterable[str] = (),
    kill: Iterable[str] = (),
) -> Cluster:
    """A cluster as typed on the command line: `--bandwidth 100mbit --slow 3:4x --kill 2@5s`."""
    usual = Cluster()
    return Cluster(
        compute=parse_duration(compute) if compute else usual.compute,
        jitter=parse_jitter(jitter) if jitter is not None else usual.jitter,
        slowdowns=dict(_slowdown(item) for item in _items(slow)),
        kills=dict(_killed(item) for item in _items(kill)),
        link=Link(
            bandwidth=parse_rate(bandwidth) if bandwidth else usual.link.bandwidth,
            latency=parse_duration(latency) if latency else usual.link.latency,
        ),
    )


def parse_jitter(value: str | float) -> float:
    """The coefficient of variation of the compute time: `0.3` for a third more or less."""
    try:
        jitter = float(value)
    except ValueError:
        jitter = math.nan
    if not 0 <= jitter < math.inf:
        raise PlanError(f"jitter {value!r} must be a number from 0 up, such as 0.3")
    return jitter


def parse_host(text: str) -> Host:
    """The name of a host: `server 0`, or `2` for worker 2."""
    match = _HOST.fullmatch(text.strip())
    if match is None:
        raise PlanError(
            f"cannot read the host {text!r}; write a role and its number, such as 'server 0', or 2 for worker 2"
        )
    return f"{match['role'] or 'worker'} {int(match['rank'])}"


def _items(values: Iterable[str]) -> list[str]:
    """Flags may be repeated, and may hold several values between commas."""
    texts = [values] if isinstance(values, str) else values
    return [item.strip() for text in texts for item in text.split(",")]


def _slowdown(text: str) -> tuple[int, float]:
    match = _SLOW.fullmatch(text)
    if match is None or float(match["factor"]) == 0:
        raise PlanError(
            f"cannot read --slow {text!r}; write WORKER:FACTOR, such as 3:4x for a worker 3 four times slower"
        )
    return int(match["rank"]), float(match["factor"])


class _Lognormal(dict[float, tuple[float, float]]):
    """Mean and deviation of the logarithm of what has the mean 1 and this coefficient of variation."""

    def __missing__(self, jitter: float) -> tuple[float, float]:
        variance = math.log1p(jitter**2)
        found = self[jitter] = -variance / 2, math.sqrt(variance)
        return found


_LOGNORMAL = _Lognormal()


def _killed(text: str) -> tuple[Host, Seconds]:
    host, mark, at = text.partition("@")
    if not mark:
        raise PlanError(f"cannot read --kill {text!r}; write WORKER@TIME, such as 2@5s (or 'server 0@5s')")
    return parse_host(host), parse_duration(at)
