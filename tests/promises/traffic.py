"""What each strategy may put on the wire: one formula per name, link by link, in bytes of payload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from covey.central.cached.cache import ParameterCopy
from covey.central.cached.value_bound import Visible
from covey.central.lbfgs.vector_shards import Model, PortionGradient
from covey.central.replicated.gradient_coding import Coded, Current
from covey.central.server.store import Fetched
from covey.data import Shards
from covey.decentral.averaging.mpca import Gathered, Meaned
from covey.decentral.gossip.adpsgd import HalfDifference, Meet
from covey.decentral.gossip.gosgd import Gossip
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
    renewed: Counter[str] = field(default_factory=Counter)  # by link: bytes of rows that speeds decide about

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


def rounds(job: Job) -> Links:
    """The model up to the master at the end of every round, a last one may be short, and down where one goes on."""
    up = {f"worker {rank}->master 0": -(-job.steps // job.period) * job.model for rank in range(job.workers)}
    down = {f"master 0->worker {rank}": job.steps // job.period * job.model for rank in range(job.workers)}
    return up | down


def butterfly(job: Job) -> Links:
    """The model to one partner a step, at distance 1, 2, 4, 1, 2, 4…"""
    links: Counter[str] = Counter()
    for step in range(job.steps if job.workers > 1 else 0):
        for rank in range(job.workers):
            links[f"worker {rank}->worker {rank ^ (1 << step % (job.workers.bit_length() - 1))}"] += job.model
    return dict(links)


def leaves(job: Job) -> Links:
    """Up to the root every 10 steps; down every 100, which is later than this job ends."""
    return {f"worker {rank}->worker 0": job.steps // 10 * job.model for rank in range(1, job.workers)}


def pushes(job: Job) -> Links:
    """The model and a weight to the rank 1, 2, 4… after one's own, in turn."""
    hops = [1 << k for k in range((job.workers - 1).bit_length())]
    links: Links = Counter()
    for step in range(job.steps if hops else 0):
        for rank in range(job.workers):
            links[f"worker {rank}->worker {(rank + hops[step % len(hops)]) % job.workers}"] += job.model + 8
    return links


def everyone(job: Job, size: Callable[[int, int], int]) -> Links:
    """So many bytes from each worker to each other one, given how far it is away, every step."""
    return {
        f"worker {rank}->worker {(rank + away) % job.workers}": sum(size(away, step) for step in range(job.steps))
        for rank in range(job.workers)
        for away in range(1, job.workers)
    }


def piece(job: Job, pieces: int, index: int) -> int:
    start, stop = chunk(job.numbers, pieces, index % pieces)
    return (stop - start) * job.width


def scatters(job: Job) -> Links:
    """The gradient to everyone, every step."""
    return everyone(job, lambda away, step: job.model)


def partitions(job: Job) -> Links:
    """One of workers - 1 partitions to everyone, another one to each and every step."""
    return everyone(job, lambda away, step: piece(job, job.workers - 1, away - 1 + step))


def blocks(job: Job) -> Links:
    """One of 4 blocks to everyone, the next one every step."""
    return everyone(job, lambda away, step: piece(job, 4, step))


def cache(job: Job) -> Links:
    """Up with the change, every step; down with what only speeds decide: copies renewed, others' changes."""
    up = {f"worker {rank}->server 0": job.steps * job.model for rank in range(job.workers)}
    return up | {link: count * job.model for link, count in job.gossips.items()}


def rows(job: Job) -> Links:
    """As `cache`: 40 Mbit/s carry every row of these models up once a step. Down goes a copy, then what has changed."""
    return {**cache(job), **{link: size + job.gossips[link] * job.model for link, size in job.renewed.items()}}


def owners(job: Job) -> Links:
    """To every other owner its slice of the gradient, and one's own slice of the parameters."""
    ranks = range(job.workers)
    slices = [length(job, rank) for rank in ranks]
    pairs = [(a, b) for a in ranks for b in ranks if a != b]
    return {f"worker {a}->worker {b}": job.steps * (slices[a] + slices[b]) * job.width for a, b in pairs}


def factors(job: Job) -> Links:
    """As `owners`; but the digits' first layer goes as 64 + 64 numbers a sample where that is no more than 2 * 64 * 64.

    It is with two workers and in four workers' short last batch of an epoch; in the second layer a sum is less.
    """
    links: Links = Counter()
    deal = Shards(1437, job.workers, 32, 0)
    for step in range(job.steps):
        sizes = [deal.batch(rank, step) for rank in range(job.workers)]
        apart = (64 + 64) * sum(sizes) <= 2 * 64 * 64
        for numbers in [64, 64 * 10, 10] + [64 * 64] * (not apart):  # each parameter by itself, while backward runs
            links.update(owners(replace(job, steps=1, numbers=numbers)))
        for link in owners(job) if apart else ():
            links[link] += (64 + 64) * sizes[int(link.split()[1][0])] * job.width
    return links


def products(job: Job) -> Links:
    """As `server`; but up go K inputs and errors of a layer where they are fewer numbers than its weights.

    Of the digits that is so in short last batches of an epoch only: 32 (64 + 64) is no less than 64 * 64.
    """
    deal, links = Shards(1437, job.workers, 32, 0), server(job)
    for rank in range(job.workers):
        samples = [deal.batch(rank, step) for step in range(job.steps)]
        saved = sum(max(0, n * m - k * (n + m)) for k in samples for n, m in ((64, 64), (10, 64)))
        links[f"worker {rank}->server 0"] -= saved * job.width
    return links


def units(job: Job) -> Links:
    """Inputs of one's own samples; outputs of one's units, and errors of the receiver's, of everybody's.

    Of the last layer only outputs of the receiver's samples, and errors of one's own. Digits themselves learn nothing.
    """
    links: Links = Counter()
    deal, ranks = Shards(1437, job.workers, 32, 0), range(job.workers)
    hidden, last = ([stop - start for start, stop in (chunk(n, job.workers, r) for r in ranks)] for n in (64, 10))
    for step in range(job.steps):
        sizes = [deal.batch(rank, step) for rank in ranks]
        for a, b in ((a, b) for a in ranks for b in ranks if a != b):
            between = sum(sizes) * (hidden[a] + hidden[b]) + sizes[b] * last[a] + sizes[a] * last[b]
            links[f"worker {a}->worker {b}"] += (sizes[a] * 64 + between) * job.width
    return links


def tree(job: Job) -> Links:
    """Every rank of the binomial tree sends its sum to its parent and gets the weights back; the server is the root."""
    links = {}
    for place in range(1, job.workers + 1):
        parent = place - (place & -place)
        above = f"worker {parent - 1}" if parent else "server 0"
        links[f"worker {place - 1}->{above}"] = job.steps * job.model
        links[f"{above}->worker {place - 1}"] = job.steps * job.model
    return links


FORMULAS: Mapping[str, Callable[[Job], Links]] = {
    "bsp":          server,
    "ssp":          server,
    "bounded_delay": server,
    "asynchronous": server,
    "dssp":         server,
    "quorum":       server,
    "softsync":     server,
    "dc_asgd":      server,
    "petuum":       cache,
    "firecaffe":    tree,
    "essp":         cache,
    "bosen":        rows,
    "vap":          cache,
    "value_bound":  server,
    "a_bsp":        server,
    "specsync":     cache,
    "gradient_coding": lambda job: {link: count * job.model for link, count in job.gossips.items()},
    "downpour":     server,
    "sandblaster":  lambda job: {link: count * job.model for link, count in job.gossips.items()},
    "sliced":       owners,
    "bigdl":        lambda job: owners(replace(job, width=2)),
    "caffeonspark": owners,
    "p3":           server,
    "tictac":       server,
    "bytescheduler": server,
    "staggered":    server,
    "allreduce":    lambda job: rings(job, job.steps),
    "poseidon":     factors,
    "outer_products": products,
    "one_weird_trick": units,
    "local_sgd":    lambda job: rings(job, job.steps // job.period),
    "easgd":        centre,
    "gosgd":        lambda job: {link: count * (job.model + 8) for link, count in job.gossips.items()},
    "dpsgd":        neighbours,
    "adpsgd":       lambda job: {link: count * job.model for link, count in job.gossips.items()},
    "sgp":          pushes,
    "malt":         scatters,
    "ako":          partitions,
    "hogwild":      lambda job: {},
    "hogwild++":    lambda job: {},
    "dogwild":      blocks,
    "bmuf":         lambda job: rings(job, -(-job.steps // job.period)),
    "diloco":       lambda job: rings(job, -(-job.steps // job.period)),
    "sparknet":     rounds,
    "crossbow":     lambda job: rings(job, job.steps // 2),  # 2 learners make a round
    "butterfly":    butterfly,
    "eamsgd":       centre,
    "tree_easgd":   leaves,
    "mpca":         lambda job: {link: count * job.model for link, count in job.gossips.items()},
}  # fmt: skip

PERIODS = {"local_sgd": 8, "easgd": 4, "bmuf": 8, "diloco": 500, "sparknet": 5, "eamsgd": 4}
"""The periods that the strategies take by default."""

UNPLANNED = (
    ParameterCopy,
    Gossip,
    Gathered,
    Meaned,
    Meet,
    HalfDifference,
    Coded,
    Current,
    Fetched,
    Model,
    PortionGradient,
    Visible,
)
"""Messages of which only chance, or the network, knows how many there are."""

EXTRA = {"gosgd": 8, "mpca": 0, "adpsgd": 0, "specsync": 0, "gradient_coding": 0, "sandblaster": 0, "vap": 0}
"""The names that send those, and what travels with the model."""
