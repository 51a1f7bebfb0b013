"""Sites as the tasks of one barrier stage: all begin together, and when one dies Spark ends them all."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec
from py4j.protocol import Py4JError
from pyspark import BarrierTaskContext, InheritableThread, SparkContext
from pyspark.errors import PySparkException

from covey.data.partitions import RowInfo
from covey.engines import handover
from covey.engines.cluster import shipping, site
from covey.engines.cluster.places import Places
from covey.engines.cluster.site_messages import SiteConfig, configs
from covey.engines.spark import rows as tables
from covey.engines.spark.session import OwnSpark, check_java, is_here, running, this_python
from covey.errors import PlanError

PATIENCE = 8.0  # seconds that the sites have to leave by themselves when all went well
HASTE = 3.0  # and when it did not
MISSING = "covey must be installed on every executor, for the Python that Spark uses there (PYSPARK_PYTHON)"
CANCELLED = 6.0  # seconds until a cancelled job has ended


def places(workers: int, master: str) -> SparkPlaces:
    """Tasks of the Spark of this program, or of one that is started."""
    if running() is None:
        check_java()
    return SparkPlaces(workers, master)


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """Rows that are on the executors, one partition for each worker."""

    partitions: Any  # an RDD of what `rows.chunks` gives
    rows: RowInfo  # by the workers' ranks
    ranks: Sequence[int]  # which worker has each partition


class SparkPlaces(Places):
    """A barrier job in a thread of this program."""

    def __init__(self, sites: int, master: str = "", table: PartitionTable | None = None) -> None:
        self.sites, self.master, self.table = sites, master, table
        self.own: OwnSpark | None = None
        self.group = f"covey-{uuid4().hex[:8]}"
        self.away = False  # there are executors that may not have the task's file
        self.called: list[str] = []
        self.handed: Any = None  # a broadcast
        self.thread: InheritableThread | None = None
        self.failure = ""

    @property
    def context(self) -> SparkContext:
        context = running()
        if context is None:
            raise PlanError("the Spark of this program was stopped while covey trained on it: stop it after the run")
        return context

    def pids(self) -> list[int]:
        return self.own.pids() if self.own else []

    def open(self, patience: float) -> list[str]:
        if running() is None:
            self.own = OwnSpark(self.master, self.sites)
        self._fit_in(slots(self.context))
        self.away = not is_here(self.context)
        if not self.away:
            return [socket.gethostname()] * self.sites
        self.address = socket.gethostbyname(self.context.getConf().get("spark.driver.host") or socket.gethostname())
        return [f"task{number}" for number in range(self.sites)]  # Spark says where only when they run

    def invite(self, configs: Sequence[SiteConfig], handed: bytes) -> None:
        ranks = self.table.ranks if self.table else range(len(configs))
        self.called = [configs[rank].called for rank in ranks]
        self.handed = self.context.broadcast(handed)
        encoded = [msgspec.msgpack.encode(config) for config in (shipping.with_code(configs) if self.away else configs)]
        invited = SiteTask(encoded, self.handed, ranks, self.table.rows if self.table else None)
        partitions = self.table.partitions if self.table else self.context.parallelize(range(self.sites), self.sites)
        self.thread = InheritableThread(target=self._run, args=(partitions, invited), daemon=True)
        self.thread.start()

    def lost(self) -> str:
        if self.thread is None or self.thread.is_alive():
            return ""
        return self.failure or "the sites left before the run was over"

    def close(self, well: bool) -> None:
        try:
            with suppress(Py4JError, PySparkException, PlanError, OSError):
                self._end_job(PATIENCE if well else HASTE)
        finally:
            if self.own:
                self.own.stop()

    def _fit_in(self, slots: int) -> None:
        """All tasks of a barrier stage run at once; workers without rows of their own can share one."""
        if slots < 1:
            raise PlanError("Spark has no task slot: start an executor, or use a local master such as local[2]")
        if self.table is None:
            self.sites = min(self.sites, slots)

    def _run(self, partitions: Any, invited: SiteTask) -> None:
        """(A thread of its own) The job, which ends with the run."""
        try:
            self.context.setJobGroup(self.group, "covey: the roles of a run", interruptOnCancel=True)
            with this_python(self.context):
                partitions.barrier().mapPartitions(invited).collect()
        except Exception as error:  # whatever it is, the launcher wants to know
            self.failure = self._how(str(error))

    def _how(self, told: str) -> str:
        """Why the job failed, in words."""
        if "No module named 'covey" in told:
            return MISSING
        found = re.search(r"ResultTask\(\d+, (\d+)\)", told)
        who = f"{self.called[int(found[1])]}, a Spark task," if found else "the Spark job"
        if "Python worker exited unexpectedly" in told or "Connection reset" in told:
            return f"{who} died, and its roles with it (its Python worker exited unexpectedly)"
        raised = re.findall(r"^(?:covey\.errors\.)?(\w+(?:Error|Lost|Exception): .+)$", told, re.M)
        return f"{who} failed: {raised[0] if raised else told.strip().partition(chr(10))[0]}"

    def _end_job(self, patience: float) -> None:
        if self.thread:
            self.thread.join(patience)
            if self.thread.is_alive():
                self.context.cancelJobGroup(self.group)
                self.thread.join(CANCELLED)
        if self.handed is not None:
            self.handed.destroy()


class SiteTask:
    """What every task does; it travels by Spark's own closure, and so do the configs."""

    def __init__(self, configs: Sequence[bytes], handed: Any, ranks: Sequence[int], rows: RowInfo | None) -> None:
        self.configs, self.handed, self.ranks, self.rows = configs, handed, list(ranks), rows

    def __call__(self, partition: Iterable[Any]) -> Iterator[None]:
        task = BarrierTaskContext.get()
        if task.attemptNumber():
            raise RuntimeError("a run that has lost a site is over: this is a second attempt")
        rank = self.ranks[task.partitionId()]
        config = configs.read(self.configs[rank], "the launcher")
        handed = self.handed.value
        if self.rows:
            with tables.in_memory(partition, self.rows, rank) as file:
                site.host(config, handover.closed(msgspec.structs.replace(handover.opened(handed), rows=file)))
        else:
            site.host(config, handed)
        return iter(())


def slots(context: SparkContext) -> int:
    """How many tasks can run at once: what Spark itself asks before it starts a barrier stage."""
    java = context._jsc.sc()
    return int(java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()))
