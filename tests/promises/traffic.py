"""What each strategy may put on the wire: one formula per name, link by link, in bytes of payload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from covey.topology import GRAPHS
from covey.vector import chunk

Links = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run of so many workers that did so many steps each, on a model of `numbers` numbers in one part."""

    workers: int
    steps: int
    numbers: int
    width: int = 4  # bytes of a number
    period: int = 1
    gossips: Counter[str] = field(default_factory=Counter)  # by link: only chance knows how many

    @property
    def model(self) -> int:
        return self.numbers * self.width


def server(job: Job) -> Links:
    """Up with the gradient and down with the weights, every step."""
    up = {f"worker {rank}->server 0": job.steps * job.model for rank in range(job.workers)}
    down = {f"server 0->worker {rank}": job.steps * job.model for rank in range(job.workers)}
    return up | down


def rings(job: Job, times: int) -> Links:
    """2 D - |chunk(r+1)| - |chunk(r+2)| from each rank to the next one, every time."""
    links = {}
    for rank in range(job.workers):
        spared = sum(length(job, rank + hop) for hop in (1, 2))
        links[f"worker {rank}->worker {(rank + 1) % job.workers}"] = times * (2 * job.numbers - spared) * job.width
    return links


def length(job: Job, index: int) -> int:
    start, stop = chunk(job.numbers, job.workers, index % job.workers)
    return stop - start


def centre(job: Job) -> Links:
    """The centre down and the force up, at steps 0, period, 2 period…"""
    exchanges = -(-job.steps // job.period)
    up = {f"worker {rank}->master 0": exchanges * job.model for rank in range(job.workers)}
    down = {f"master 0->worker {rank}": exchanges * job.model for rank in range(job.workers)}
    return up | down


def neighbours(job: Job) -> Links:
    """The model to every neighbour of the graph, every step."""
    graph = GRAPHS["ring"](job.workers)
    return {
        f"worker {rank}->worker {peer}": job.steps * job.model
        for rank in range(job.workers)
        for peer in graph.neighbours(rank)
    }


FORMULAS: Mapping[str, Callable[[Job], Links]] = {
    "bsp":          server,
    "ssp":          server,
    "asynchronous": server,
    "dssp":         server,
    "quorum":       server,
    "softsync":     server,
    "dc_asgd":      server,
    "allreduce":    lambda job: rings(job, job.steps),
    "local_sgd":    lambda job: rings(job, job.steps // job.period),
    "easgd":        centre,
    "gosgd":        lambda job: {link: count * (job.model + 8) for link, count in job.gossips.items()},
    "dpsgd":        neighbours,
}  # fmt: skip

PERIODS = {"local_sgd": 8, "easgd": 4}
"""The periods that the strategies take by default."""
