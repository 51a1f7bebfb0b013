"""covey on the same hosts: a run to the target, with what its clock does not show added; and the advice for a cell."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import covey
from benchmarks.peers.courses import LAUNCHER, Course
from benchmarks.peers.track import HOSTS, Cell, Finish
from covey import catalog
from covey.advise.choose import advise
from covey.advise.ranked import Advice
from covey.advise.real_steps import RealSteps
from covey.advise.situation import look, time_batch
from covey.advise.trials.trial import SimulatedTrials
from covey.calibrate import calibrate
from covey.errors import CoveyError
from covey.model import build
from covey.observe.progress import Progress
from covey.simulate import Cluster, parse_rate


class Watch:
    """Ends a run as Ctrl-C would when it has trained for so long; knows how long its clock stood still."""

    def __init__(self, limit: float) -> None:
        self.limit, self.over = limit, False
        self.first: tuple[float, float] | None = None
        self.stood = 0.0

    def update(self, progress: Progress) -> None:
        if progress.phase not in ("training", "scoring"):
            return
        now = time.monotonic(), progress.seconds
        self.first = self.first or now
        self.stood = now[0] - self.first[0] - (now[1] - self.first[1])
        if progress.seconds > self.limit and not self.over:
            self.over = True
            signal.raise_signal(signal.SIGINT)

    def say(self, line: str) -> None:
        pass


def race(spec: str, cell: Cell, seed: int, limit: float) -> Finish:
    """A strategy on the hosts of a cell, until it reaches the target or has trained for so many seconds."""
    os.environ[LAUNCHER] = str(os.getpid())
    watch = Watch(limit)
    try:
        result = covey.fit(
            cell.course.file, spec, HOSTS, engine=cell.engine, threads=1, insecure=True, until=str(cell.course.target),
            seed=seed, scores=cell.course.scores, watcher=watch,
        )  # fmt: skip
    except CoveyError as error:
        return Finish(float("inf"), 0, 0.0, 0.0, False, str(error).splitlines()[0])
    history: list[dict[str, Any]] = [row for row in result.history if "sent" in row]
    last, metric = history[-1], cell.course.target.metric
    parts = {
        "clock": last["seconds"], "travelled": travelled(result.notes, cell.bandwidth), "closing": closing(spec, cell),
    }  # fmt: skip
    return Finish(
        sum(parts.values()), last["samples"], last["sent"], last[metric], result.reached is not None,
        "" if result.reached else "too slow", {**parts, "stood": watch.stood},
        [(row["seconds"], row["samples"], row[metric]) for row in history],
    )  # fmt: skip


def travelled(notes: Mapping[str, float | None], bandwidth: float) -> float:
    """Seconds of a link, in the mean of the hosts, for what came while they stood still: the clock has none of them.

    Who waits for a message while the model is scored does so on the clock.
    """
    return (notes.get("unclocked bytes") or 0.0) / HOSTS / bandwidth


def closing(spec: str, cell: Cell) -> float:
    """Seconds of the last averaging, where what is scored is a mean of the workers' models that nobody has yet."""
    if "mean of the workers'" not in catalog.resolve(spec, HOSTS).description.scored:
        return 0.0
    size = sum(p.numel() * p.element_size() for p in build.model(cell.course.task, 0).parameters())
    return 2 * (HOSTS - 1) / HOSTS * size / cell.bandwidth


def advised(cell: Cell) -> Advice:
    """What `covey advise` says of a cell, with real steps in its lab."""
    file, task, found = cell.course.file, cell.course.task, calibrated(cell.course, cell.cpu)
    machines = (replace(machine, cores=share) for machine, share in zip(found.machines, cell.shares, strict=True))
    link = replace(found.link, bandwidth=parse_rate(cell.rate))
    now = look(task, HOSTS, replace(found, machines=tuple(machines), link=link))
    trials = SimulatedTrials(file, now, time_batch(task))
    real = RealSteps(task=file, engine=cell.engine, workers=HOSTS, insecure=True, threads=1)
    os.environ[LAUNCHER] = str(os.getpid())
    return advise(task, file, now, until=str(cell.course.target), trials=trials, real=real)


@cache
def calibrated(course: Course, cpu: float) -> Cluster:
    """As `covey calibrate` measures it once; cells write their links and their slow host in."""
    return calibrate(course.file, f"lab(hosts={HOSTS}, rate=1000mbit, cpu={cpu})")
