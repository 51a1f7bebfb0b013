"""Runs with faults that a seed draws: does a strategy keep its promises whatever goes wrong?"""

from __future__ import annotations

import os
import shlex
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from torch import nn

from covey import catalog, faults
from covey.check.fault_log import FaultLog, RunsOn
from covey.check.invariants import FaultRecord, broken, declares
from covey.errors import CoveyError
from covey.run.checks import keepable
from covey.run.options import options
from covey.run.request import request
from covey.run.simulated import simulated
from covey.simulate import Cluster, Seconds
from covey.simulate.faults import DRAWN, OF_SEATS, FaultKind, FaultPlan, RehearsedRun, draw, reduced
from covey.spec.worker_range import WorkerRange
from covey.task import Task

STEPS = 12
CHECKPOINTS = 3  # about, in a run without faults
SURVIVED: tuple[FaultKind, ...] = ("kill", "stop", "partition", "delay", "slow")  # by a run that is not kept
OFTEN: tuple[FaultKind, ...] = ("kill",) * 4  # more of these where a lost worker is restarted
SHARING = 200  # seeds in a row in which a strategy has the same number of workers
UNEVEN = Cluster(compute=Seconds(0.01), jitter=0.3)
FASTER = {
    "diloco": "diloco(period=5)", "bmuf": "bmuf(period=5)", "local_sgd": "local_sgd(period=3)",
    "easgd": "easgd(period=2)", "eamsgd": "eamsgd(period=2, momentum=0.9)", "tree_easgd": "tree_easgd(up=2, down=4)",
    "gosgd": "gosgd(probability=0.5)", "downpour": "downpour(push=3, fetch=2)", "hogwild": "hogwild(momentum=drop)",
    "hogwild++": "hogwild++(momentum=drop, hold=4)",
}  # fmt: skip
"""Strategies with settings that make them exchange something within a few steps."""
CUT = "allreduce with mesh(replica=2, stage=2)"  # whose workers go on after a loss, each with a part of the model


@dataclass(frozen=True, slots=True)
class FaultCase:
    """What is run with faults; without a task the small one here, whose samples are counted."""

    strategy: str
    workers: int
    task: Task | str | None = field(default=None, hash=False)
    steps: int | None = STEPS
    epochs: int | None = None
    servers: int | None = None
    seed: int = 0
    cluster: Cluster = field(default=UNEVEN, hash=False)
    elastic: bool = False  # lost workers are restarted; only what else goes wrong starts the run again
    least: int = field(default=0, kw_only=True)  # workers, where they come and go
    replicas: int = field(default=1, kw_only=True)  # copies of what each server holds
    command: str = field(default="", compare=False)  # the command line that asked for seeds of it

    @property
    def keepable(self) -> bool:
        """Whether it can have checkpoints."""
        chosen = catalog.resolve(self.strategy, self.workers)
        return keepable(chosen, self.least or int(self.elastic and chosen.lease_always))

    def small(self) -> Task:
        """Whole epochs for every worker: three batches each."""
        chance = torch.Generator().manual_seed(2)
        x = torch.randn(24 * self.workers, 6, dtype=torch.float64, generator=chance)
        y = (x @ torch.randn(6, 3, dtype=torch.float64, generator=chance)).argmax(1)
        momentum = 0.0 if self.strategy.startswith("hogwild") else 0.5
        return Task(
            model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double(), data=(x, y),
            optimizer=lambda pairs: torch.optim.SGD(pairs, lr=0.1, momentum=momentum),
            loss=nn.functional.cross_entropy, batch_size=8,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SeedFinding:
    """A seed, the faults that it drew, and what they broke; with the same faults as few as are needed."""

    seed: int
    case: FaultCase
    plan: FaultPlan
    broken: list[str] = field(default_factory=list)
    least: FaultPlan = field(default_factory=FaultPlan)
    restarts: int = 0

    @property
    def replay(self) -> str:
        """What a person types to see it again."""
        if not self.case.command:
            return f"python -m benchmarks.faults --seeds {self.seed}"
        words = shlex.split(self.case.command)
        for place, word in enumerate(words):
            if word.startswith("--faults="):
                words[place] = f"--faults={self.seed}"
            elif word == "--faults":
                words[place + 1] = str(self.seed)
        return shlex.join(words)

    def __str__(self) -> str:
        told = "\n  ".join(self.broken)
        return (
            f"seed {self.seed}: {self.case.strategy}, {self.case.workers} workers\n  {told}\n"
            f"  again: {self.replay}\n  faults that matter: {self.least}"
        )


def case_of(seed: int) -> FaultCase:
    """The strategy and the number of workers of a seed; seeds near each other share runs without faults.

    Of the strategies that can go on after a loss, half do so, and of those whose workers may come and go half of these.
    """
    name = Random(f"case/{seed}").choice(catalog.for_any_model())
    chance = Random(f"workers/{name}/{seed // SHARING}")
    workers = 1 << chance.randint(1, 2) if name == "butterfly" else chance.choice((2, 3, 4))
    spec = FASTER.get(name) or catalog.STRATEGIES[name].example or name
    chosen = catalog.resolve(spec, workers)
    able = chosen.on_loss == "continue" and not chosen.rigid
    elastic = able and chance.random() < 0.5
    least = int(elastic and chosen.ranges and chance.random() < 0.5)
    if spec == "allreduce" and elastic and not least and chance.random() < 0.5:
        spec, workers = CUT, 4
    return FaultCase(spec, workers, elastic=elastic, least=least)


def record_of(case: FaultCase, plan: FaultPlan, limit: float, every: float = 0.0) -> FaultRecord:
    """Run it with these faults; `every` seconds a checkpoint is kept, from which it starts again."""
    log = FaultLog(limit)
    task = log.watched(case.small()) if case.task is None else case.task
    with TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        given = {"engine": "simulated", "seed": case.seed, "servers": case.servers, "cluster": case.cluster}
        given["replicas"] = case.replicas
        given |= {"steps": case.steps, "epochs": case.epochs, "instruments": [log], "faults": plan}
        if case.elastic or every:
            given |= {"on_failure": "continue" if case.elastic else "restart", "max_failures": 2 if case.least else 9}
        if every and case.keepable:
            given |= {"checkpoint": Path(folder), "every": f"{every:.9f}s"}
        asked = request(task, case.strategy, WorkerRange(case.workers, case.least).asked, options(given))
        record = FaultRecord(asked=asked, plan=plan, log=log, watched=case.task is None)
        try:
            with log.watching() if declares(asked, "forces cancel") else nullcontext():
                return replace(record, result=simulated(asked, log.built))
        except RunsOn:
            return replace(record, why=f"it still runs after {limit:.3g} s of virtual time")
        except CoveyError as error:
            return replace(record, why=f"{type(error).__name__}: {error}")
        except Exception as error:
            return replace(record, why=f"{type(error).__name__}: {faults.words(error)}")


@lru_cache(maxsize=512)
def rehearsed(case: FaultCase) -> FaultRecord:
    """The same without faults, against which the others are held."""
    return record_of(case, FaultPlan(), limit=float("inf"))


def tried(case: FaultCase, seed: int) -> SeedFinding:
    """Draw faults for a case, run it with them, and look at what they broke."""
    calm = rehearsed(case)
    if calm.result is None:
        return SeedFinding(seed, case, FaultPlan(), [f"without any fault: {calm.why}"])
    trainers = [str(role.address) for role in calm.asked.plan.roles if role.trains]
    known = {str(role.address): calm.log.effects[str(role.address)] for role in calm.asked.plan.roles}
    run = RehearsedRun(
        seconds=calm.result.seconds, effects=known, trainers=trainers, links=list(calm.log.links),
        restarted=case.elastic,
    )  # fmt: skip
    kept = (*(DRAWN if case.keepable else SURVIVED), *OFTEN) if case.elastic else DRAWN
    plan = draw(seed, run, (*SURVIVED, *OF_SEATS) if case.least else kept)
    record, found = examined(case, plan)
    least = reduced(plan, lambda fewer: bool(examined(case, fewer)[1])) if found else plan
    return SeedFinding(seed, case, plan, found, least, record.log.restarts)


def examined(case: FaultCase, plan: FaultPlan) -> tuple[FaultRecord, list[str]]:
    """Run a case with these faults, restarting from checkpoints, and say what they broke."""
    calm = rehearsed(case)
    assert calm.result is not None
    seconds = calm.result.seconds
    record = record_of(case, plan, limit=50 * seconds + 5, every=seconds / CHECKPOINTS)
    return record, broken(calm, record)
