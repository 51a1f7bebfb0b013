"""What if there were a hundred times as many workers? Runs that are only timed, over a range of sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from covey.advise.pace import BatchPace
from covey.advise.predict import period, round_to_periods
from covey.advise.world import fastest, sized, slowness
from covey.catalog import resolve
from covey.data.stripe_cache.expected_reads import far_data, later
from covey.errors import CoveyError, PlanError
from covey.model import build
from covey.model.timed import far_data as timed_data
from covey.run import fit
from covey.simulate import Cluster
from covey.simulate.units import format_duration, format_rate
from covey.task import Task, load_task

SCHEMA = "covey.scale/1"
STEPS = 3  # of each worker at least
BATCHES = 200  # of all workers at least
MILLION = 1e6
USUAL = "covey's usual value"


class Point(msgspec.Struct, kw_only=True):
    """One strategy on this many workers; a failure where it cannot be."""

    spec: str
    workers: int
    per_second: float = 0.0  # samples of all workers
    speed_up: float = 0.0  # against the fastest worker alone
    money: float | None = None  # for a million samples
    sent: float = 0.0  # bytes for a sample
    failure: str = ""


class AssumedCluster(msgspec.Struct, kw_only=True, frozen=True):
    """The figures that virtual time was told, each with what said so."""

    time: str = "virtual"
    batch: int  # samples
    compute: float  # seconds of a batch
    compute_from: str = USUAL
    bandwidth: tuple[float, float]  # bytes per second, of the slowest link and of the fastest
    bandwidth_from: str = USUAL
    latency: float  # seconds, of the slowest link
    latency_from: str = USUAL

    @classmethod
    def of(cls, cluster: Cluster, batch: int, sources: Mapping[str, str]) -> AssumedCluster:
        """Of a cluster; `sources` says for compute, bandwidth and latency who gave them, where anybody did."""
        links = [cluster.link, *cluster.links.values()]
        if cluster.local and len(cluster.machines) == 1:
            links = [cluster.local]
        rates = [link.bandwidth for link in links]
        return cls(
            batch=batch, compute=cluster.compute, bandwidth=(min(rates), max(rates)),
            latency=max(link.latency for link in links),
            **{f"{name}_from": words for name, words in sources.items()},
        )  # fmt: skip

    @property
    def usual(self) -> bool:
        """Whether nobody gave one of the figures."""
        return USUAL in (self.compute_from, self.bandwidth_from, self.latency_from)

    def lines(self, task: str) -> list[str]:
        """What to read beside the figures."""
        low, high = self.bandwidth
        rate = format_rate(low) if low == high else f"{format_rate(low)} to {format_rate(high)}"
        figures = {
            f"a batch of {self.batch} takes {format_duration(self.compute)}": self.compute_from,
            f"links carry {rate}": self.bandwidth_from,
            f"a message takes {format_duration(self.latency)} more": self.latency_from,
        }
        found = "; ".join(f"{words} ({source})" for words, source in figures.items())
        first = f"These figures are of virtual time; nothing ran on these workers. Assumed: {found}."
        measure = f"covey calibrate {task} measures this machine, for --cluster cluster.toml."
        return [first, measure] if self.usual else [first]


class Scaling(msgspec.Struct, kw_only=True):
    """All points, in the order in which they were asked for."""

    schema: str = SCHEMA
    task: str
    points: list[Point]
    assumed: AssumedCluster
    command: str = ""

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"

    @property
    def specs(self) -> list[str]:
        return list(dict.fromkeys(point.spec for point in self.points))

    @property
    def sizes(self) -> list[int]:
        return sorted({point.workers for point in self.points})

    def at(self, spec: str, workers: int) -> Point | None:
        return next((point for point in self.points if (point.spec, point.workers) == (spec, workers)), None)


def parse_sizes(text: str) -> list[int]:
    """Numbers of workers: `1|10|100`."""
    try:
        sizes = [int(part) for part in text.split("|")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise PlanError(f"--workers {text}: write numbers of workers, such as '1|10|100|1000'")
    return sorted(set(sizes))


def scale(
    task: Task | str, specs: Sequence[str], sizes: Sequence[int], cluster: Cluster, *, batch: int,
    servers: int | None = None, seed: int = 0, told: Callable[[str], None] = lambda _: None, command: str = "",
    sources: Mapping[str, str] | None = None,
) -> Scaling:  # fmt: skip
    """Time every strategy on every number of workers; a cluster's groups keep their proportions.

    `sources` says who gave the cluster's compute, bandwidth and latency, where they are not covey's usual ones.
    """
    points, loaded = [], load_task(task) if isinstance(task, str) else task
    transforms = loaded.transform is not None and not loaded.preparers
    own = cluster.compute + (cluster.prepare if transforms else 0.0)
    if cluster.backend:
        cluster = later(replace(cluster, backend=timed_data.sized(cluster.backend, loaded)))
        alone = far_data(cluster, build.shards(loaded, 1, seed).samples, batch, 1)
        own += alone.seconds() if alone and not loaded.preparers else 0.0
    for spec in specs:
        for workers in sizes:
            told(f"{spec} on {workers:,} worker{'' if workers == 1 else 's'}")
            points.append(_point(task, spec, sized(cluster, workers), workers, batch / own, servers, seed))
    name = task if isinstance(task, str) else "a task of this process"
    return Scaling(task=name, points=points, assumed=AssumedCluster.of(cluster, batch, sources or {}), command=command)


def _point(
    task: Task | str, spec: str, world: Cluster, workers: int, paced: float, servers: int | None, seed: int
) -> Point:  # fmt: skip
    pace = BatchPace()
    try:
        strategy = resolve(spec, workers)
        # enough for an exchange, if periods are short for two, and on few workers for chance to even out
        wanted = max(STEPS, -(-BATCHES // workers), 1 + 2 * min(32, round(period(strategy))))
        steps = round_to_periods(strategy, wanted, 1)
        result = fit(
            task, spec, workers, engine="simulated", cluster=world, timing_only=True, steps=steps, seed=seed,
            servers=servers if strategy.servers.count else None, instruments=[pace], runs=False,
        )  # fmt: skip
    except CoveyError as error:
        return Point(spec=spec, workers=workers, failure=str(error).splitlines()[-1].strip(" ^"))
    if result.stopped == "interrupted":
        raise KeyboardInterrupt
    rate = pace.per_second()
    single = paced / slowness(fastest(world, workers)[0], 1)[0]
    price = sum(world.price.values())
    return Point(
        spec=spec, workers=workers, per_second=rate, speed_up=rate / single,
        money=price / 3600 / rate * MILLION if price and rate else None,
        sent=result.traffic.bytes / result.samples if result.samples else 0.0,
    )  # fmt: skip
