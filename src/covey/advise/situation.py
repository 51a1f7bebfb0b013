"""What is known of a task and of the machines before anything runs."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from covey.advise.world import slowness
from covey.catalog import codec
from covey.data.feed import Feed
from covey.data.shards import Shards
from covey.data.stripe_cache.expected_reads import FarData, far_data, later
from covey.exchange import auto
from covey.exchange.codec import Codec
from covey.exchange.codec_costs import prices
from covey.message import Address
from covey.model import build
from covey.model.flat import Flat, Form
from covey.model.threads import one_thread
from covey.model.timed.far_data import sized
from covey.simulate import Cluster, CodecTime, Link, Seconds
from covey.simulate.machines import machine_name
from covey.task import Task

WARM, BATCHES, PATIENCE = 2, 25, 3.0  # batches before, batches that are timed at most, seconds


TRANSFORMED = 16  # samples that are transformed to time it


@cache
def codec_options() -> tuple[Codec, ...]:
    """What is considered for every strategy: plain numbers, the choices of `+ auto`, and fewer factors."""
    return (*auto.options(), codec("powersgd(rank=4)"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A task on a cluster, in the numbers that rules and formulas ask for."""

    workers: int
    samples: int
    batch: int
    model: int  # bytes
    state: int = 0  # bytes of the optimizer
    form: Form | None = None  # of the model, where its shapes are known
    coding: Mapping[str, CodecTime] = field(default_factory=dict)  # what codecs cost
    cluster: Cluster
    prepare: float = 0.0  # seconds in which the samples of a batch are transformed
    preparers: int = 0  # that do it for the workers
    far: FarData | None = None  # what a first pass reads; `cluster` has the cache as later passes find it
    skew: float = 0.0  # how much a worker's labels differ from all, at most
    normalized: bool = False  # has batch-norm
    memory: float = math.inf  # bytes of one device
    one_machine: bool = False
    measured: bool = False  # the compute time was measured here, with this very task
    reproducible: bool = False
    once: bool = False
    spot: bool = False
    fewest: int | None = None  # workers that a trace of spot machines leaves at once

    @property
    def least(self) -> int:
        """The smaller number of a range of workers that goes on without those that vanish."""
        half = self.workers // 2
        return max(1, half if self.fewest is None else min(half, self.fewest))

    @property
    def compute(self) -> float:
        """Seconds of a worker for a batch; it reads and transforms the samples itself where nobody else does."""
        return self.cluster.compute + (0.0 if self.preparers else self.prepare + self.reading)

    @property
    def reading(self) -> float:
        """Seconds in which a batch is read, in later passes."""
        known = self.cluster.backend
        return replace(self.far, backend=known).seconds() if self.far and known else 0.0

    @property
    def alone(self) -> float:
        """Seconds of a batch where only one worker reads."""
        known = self.cluster.backend
        if self.preparers or not self.far or not known:
            return self.compute
        return self.compute - self.reading + replace(self.far, backend=known, readers=1, hosts=1).seconds()

    @property
    def prepared_every(self) -> float:
        """Seconds between two batches that preparers have ready for each worker."""
        return self.workers * (self.prepare + self.reading) / self.preparers if self.preparers else 0.0

    @property
    def cores(self) -> float:
        """That all roles share."""
        if not self.one_machine:
            return math.inf
        return sum(one.cores for one in self.cluster.machines) or len(os.sched_getaffinity(0))

    @property
    def slownesses(self) -> list[float]:
        return slowness(self.cluster, self.workers)

    @property
    def spread(self) -> float:
        """How much step times differ: between workers, and of one worker from step to step."""
        slow = self.slownesses
        between = statistics.pstdev(slow) / statistics.fmean(slow)
        return math.hypot(between, self.cluster.jitter)

    @property
    def links(self) -> list[Link]:
        """Of every worker's machine."""
        world = self.cluster
        if self.one_machine and world.local:
            return [world.local]
        names = [machine_name(k) for k in range(len(world.machines))] or [f"worker {k}" for k in range(self.workers)]
        return [world.link_of(name) for name in names]

    @property
    def narrowest(self) -> float:
        """Bytes per second of the slowest link."""
        return min(link.goodput for link in self.links)

    def server_rate(self, servers: int) -> float:
        """Bytes per second of the link of one server, or of a master where there are none."""
        world = self.cluster
        if (self.one_machine and world.local) or world.machines:  # it lives on any of the machines
            return self.narrowest
        return world.link_of("server 0" if servers else "master 0").goodput

    @property
    def latency(self) -> float:
        return max(link.latency for link in self.links)

    def world(self, spec: str) -> Cluster:
        """The cluster as a run of this strategy meets it: with what its codec costs, if it has one."""
        return replace(self.cluster, coding=self.coding) if " + " in spec else self.cluster

    @property
    def price(self) -> float | None:
        """Money per hour of all workers."""
        return sum(self.cluster.price.values()) if self.cluster.price else None


def look(task: Task, workers: int, cluster: Cluster, **further: bool) -> Situation:
    """Everything that can be seen without training."""
    module, cluster = build.model(task, 0), with_transform(task, cluster, further.get("measured", False))
    if cluster.backend:
        cluster = replace(cluster, backend=sized(cluster.backend, task))
    deal = build.shards(task, workers, 0)
    given = task.preparers, further.get("one_machine", False)
    flat = Flat(module)
    trained = flat.params.nbytes
    return Situation(
        workers=workers, samples=deal.samples, batch=task.step_size, model=trained, form=_form(flat),
        state=_moments(build.optimizer(task)) * trained, cluster=later(cluster), skew=skew(task, deal),
        coding=_coding(cluster, trained), far=far_data(cluster, deal.samples, task.step_size, workers, *given),
        normalized=any(isinstance(m, _BatchNorm) and not isinstance(m, SyncBatchNorm) for m in module.modules()),
        memory=_memory(), prepare=cluster.prepare if task.transform else 0.0, preparers=task.preparers, **further,
    )  # fmt: skip


def with_transform(task: Task, cluster: Cluster, measured: bool) -> Cluster:
    """The cluster with the time of the task's transform: as it says, else as found here; `measured` batches held it."""
    if task.transform is None or cluster.prepare:
        return cluster
    prepare = time_transform(task)
    compute = max(cluster.compute - prepare, cluster.compute / 100) if measured else cluster.compute
    return replace(cluster, prepare=Seconds(prepare), compute=Seconds(compute))


def _coding(cluster: Cluster, size: int) -> Mapping[str, CodecTime]:
    """What codecs cost: as the cluster says, and of others as they do here."""
    unknown = [one for one in codec_options()[1:] if one.name not in cluster.coding]
    return {**prices(unknown, size), **cluster.coding}


def _form(flat: Flat) -> Form:
    """What the model's gradient looks like, without its numbers."""
    form = flat.form(tuple((0, part.numel()) for part in flat.params.parts))
    return replace(form, like=form.like.map(lambda part: part.to("meta")), epoch=1)


def time_batch(task: Task) -> Seconds:
    """The time of forward and backward of a batch, on one thread of this machine."""
    deal = build.shards(task, 1, 0)
    plain = replace(task, scheduler=None, schedule_by="epoch")  # which may need the length of a run; nothing is updated
    replica = build.replica(plain, Address("worker", 0), True, deal, None)
    # On a CPU the thread's own time: what a batch takes on a free core, however busy this machine is.
    alone = all(part.device.type == "cpu" for part in replica.flat.parts) and not task.loaders
    clock = time.thread_time if alone else time.perf_counter
    times = []
    with one_thread():
        for step in range(WARM):
            replica.differentiate(step)
        begin = time.perf_counter()
        for step in range(WARM, WARM + BATCHES):
            before = clock()
            replica.differentiate(step)
            times.append(clock() - before)
            if time.perf_counter() - begin > PATIENCE:
                break
    return Seconds(statistics.median(sorted(times)[: len(times) // 2 + 1]))  # other work on the machine only adds


def time_transform(task: Task) -> float:
    """The time in which the samples of a batch are transformed on this machine; 0 where the task does not."""
    if task.transform is None:
        return 0.0
    deal = build.shards(task, 1, 0)
    feed = Feed(build.data_of(task), deal, 0, task.loading)
    numbers = deal.indices(0, 0)[:TRANSFORMED]
    times = []
    for _ in range(WARM + 1):
        before = time.thread_time()
        feed.take(numbers)
        times.append(time.thread_time() - before)
    return min(times) * task.step_size / len(numbers)


def skew(task: Task, deal: Shards) -> float:
    """How much the labels of a worker differ from all, as a share of them; 0 where nobody can tell."""
    if not isinstance(task.dataset, tuple) or len(task.dataset) != 2:
        return 0.0
    labels = task.dataset[1]
    if labels.is_floating_point() or labels.ndim != 1 or labels.min() < 0 or labels.max() > 10_000:
        return 0.0
    kinds = int(labels.max()) + 1
    everybody = _shares(labels, kinds)
    ranks: Sequence[int] = range(min(deal.workers, 64))
    return max(float((_shares(labels[deal.shard(0, rank)], kinds) - everybody).abs().sum() / 2) for rank in ranks)


def _shares(labels: torch.Tensor, kinds: int) -> torch.Tensor:
    counts = torch.bincount(labels.long(), minlength=kinds).double()
    return counts / counts.sum()


def _moments(optimizer: torch.optim.Optimizer) -> int:
    """How many numbers the optimizer keeps for each parameter."""
    usual = optimizer.defaults
    if "betas" in usual:
        return 2
    return int(bool(usual.get("momentum")))


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError):
        return math.inf
