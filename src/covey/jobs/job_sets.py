"""Which jobs does a rehearsal replay? Curves of recorded runs, and when jobs like them arrive, of which size."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import msgspec

from covey.decoding import WireFormat
from covey.errors import PlanError, WireError
from covey.jobs.job_progress import SHORTEST
from covey.observe.journal import JournalMoment
from covey.policy.sharing.curve_fitting import speed_model
from covey.policy.sharing.flexps import parse_stages

if TYPE_CHECKING:
    from covey.observe.records import RunRecordFolder

SCHEMA = "covey.jobset/1"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)  # numbers of workers for which speeds are predicted
SHARES = {1: 0.3, 2: 0.3, 4: 0.25, 8: 0.15}  # of the jobs can use so many workers
SPREAD = 1.0  # sigma of the logarithm of sizes: a few jobs are much larger than most (Jeon et al. 2019)
FEWEST = 3  # scores without which a run has no curve
MOST = 10_000  # jobs, slots and workers of a set: a policy goes over all of them at each decision
MOST_SPEEDS = 100  # of a curve: for every job each of them is guessed

Positive = Annotated[float, msgspec.Meta(ge=1e-15, le=1e15)]
Natural = Annotated[int, msgspec.Meta(ge=1, le=MOST)]


class JobCurve(msgspec.Struct, kw_only=True, frozen=True):
    """How a recorded run learned, and how fast jobs like it are with so many workers."""

    name: str
    samples: list[Positive]
    losses: list[float]
    speeds: dict[str, Positive]  # samples per second, by the number of workers
    compute: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0  # the share of the time in which workers compute

    def speed(self, workers: int) -> float:
        """Samples per second with so many workers."""
        return speed_model(self.table)(workers)

    @property
    def table(self) -> tuple[tuple[int, float], ...]:
        return tuple(sorted((int(workers), speed) for workers, speed in self.speeds.items()))


class SetJob(msgspec.Struct, kw_only=True, frozen=True):
    """A job of a set: it is like a recorded run, but for its size."""

    name: str
    arrives: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    curve: str
    size: Positive = 1.0  # times as many samples
    least: Natural = 1
    most: Natural = 1
    known: bool = False  # its number of samples is known before: it does not end at a target
    stages: str = ""  # as `covey jobs submit --stages` takes them


class JobSet(msgspec.Struct, kw_only=True, frozen=True):
    """Jobs, the slots of their cluster, and the seed that they were drawn with."""

    schema: str = SCHEMA
    slots: Natural
    seed: int = 0
    curves: list[JobCurve]
    jobs: list[SetJob]


_sets: WireFormat[JobSet] = WireFormat("set of jobs", JobSet, "json", most=1 << 26)


def read_set(path: Path) -> JobSet:
    """The set that a file has; PlanError where that is none."""
    try:
        found = _sets.read_file(path.resolve())
    except FileNotFoundError:
        raise PlanError(f"there is no file {path}: write one with --write {path}") from None
    except WireError as error:
        raise PlanError(str(error)) from None
    return checked(found, str(path))


def checked(found: JobSet, name: str) -> JobSet:
    """The set, if all in it fits together."""
    curves = {curve.name: curve for curve in found.curves}
    if found.schema != SCHEMA:
        raise PlanError(f"{name} has the format {found.schema[:40]!r}; this covey reads {SCHEMA!r}")
    for curve in found.curves:
        sound = len(curve.samples) == len(curve.losses) >= FEWEST and curve.samples == sorted(curve.samples)
        if not sound or not 0 < len(curve.speeds) <= MOST_SPEEDS or not all(map(_is_count, curve.speeds)):
            raise PlanError(
                f"{name}: the curve {curve.name!r} needs rising samples, a loss for each, and speeds (at most "
                f"{MOST_SPEEDS}) by numbers of workers, 1 to {MOST}"
            )
    names = [job.name for job in found.jobs]
    for job in found.jobs:
        if job.curve not in curves:
            raise PlanError(f"{name}: {job.name} is like {job.curve!r}, and there is no such curve")
        if not job.least <= min(job.most, found.slots):
            raise PlanError(f"{name}: {job.name} wants {job.least} to {job.most} workers of {found.slots} slots")
        wanted = [stage.workers for stage in parse_stages(job.stages)] if job.stages else []
        if not all(job.least <= count <= job.most for count in wanted):
            raise PlanError(f"{name}: {job.name} has {job.least} to {job.most} workers, and stages {job.stages!r}")
    if not names or len(set(names)) < len(names):
        raise PlanError(f"{name}: jobs need names, each of its own")
    if len(names) > MOST:
        raise PlanError(f"{name} has {len(names)} jobs; at most {MOST} are rehearsed")
    return found


def _is_count(key: str) -> bool:
    return key.isascii() and key.isdigit() and key[0] != "0" and len(key) <= len(str(MOST)) and int(key) <= MOST


def recorded_curves(runs: Path) -> list[JobCurve]:
    """The curves of the runs in a folder of records; runs of one task and strategy with other workers are one."""
    from covey.observe.records import recorded_runs  # and with it torch

    records, _ = recorded_runs(runs)
    records += [inside for record in records for inside in record.inside()]
    alike: dict[str, list[RunRecordFolder]] = {}
    for record in records:
        if record.result and len(_points(record)) >= FEWEST and record.result.seconds > 0:
            alike.setdefault(f"{record.facts.run.task} {record.facts.run.strategy}", []).append(record)
    if not alike:
        raise PlanError(
            f"no run in {runs} has {FEWEST} scores with a loss: covey run FILE --epochs 5 records one, and "
            "--runs DIR names another folder"
        )
    return [_curve(name, same) for name, same in sorted(alike.items())]


def _curve(name: str, records: Iterable[RunRecordFolder]) -> JobCurve:
    """From the longest of these records, with the speeds of all; other numbers of workers are predicted."""
    same = sorted(records, key=lambda record: len(_points(record)))
    measured: dict[int, float] = {}
    for record in same:
        assert record.result is not None
        measured[record.result.workers] = _speed(record)
    result = same[-1].result
    assert result is not None
    shares = [times.compute for who, times in result.roles.items() if who.startswith("worker")]
    compute = min(1.0, fmean(shares)) if shares else 1.0
    predicted = predicted_speeds(measured, compute)
    points = _points(same[-1])
    return JobCurve(
        name=name, samples=[float(samples) for samples, _ in points], losses=[loss for _, loss in points],
        speeds={str(workers): speed for workers, speed in sorted(predicted.items())}, compute=compute,
    )  # fmt: skip


def _speed(record: RunRecordFolder) -> float:
    """Samples per second; of a real run by the clock on the wall, as the slots are also taken while it is scored."""
    assert record.result is not None
    moments = [event for event in record.events if isinstance(event, JournalMoment) and event.samples]
    if record.result.engine == "simulated" or len(moments) < 2 or moments[-1].at - moments[0].at < SHORTEST:
        return record.result.samples / record.result.seconds
    return (moments[-1].samples - moments[0].samples) / (moments[-1].at - moments[0].at)


def predicted_speeds(measured: dict[int, float], compute: float) -> dict[int, float]:
    """Speeds by workers: the measured ones, and others from the nearest of them.

    Workers that compute are not slowed down by others; the rest of the time they exchange, or wait for those that do,
    and that grows with the number of workers.
    """
    found = {}
    for workers in {*SIZES, *measured}:
        near = min(measured, key=lambda known: (abs(math.log(known / workers)), known))
        slower = compute + (1 - compute) * workers / near
        found[workers] = measured[near] * workers / near / slower
    return found


def _points(record: RunRecordFolder) -> list[tuple[int, float]]:
    found = {}
    for row in record.history:
        samples, loss = row.get("samples"), row.get("loss")
        if samples and loss is not None and math.isfinite(loss):
            found[int(samples)] = float(loss)
    return sorted(found.items())


def drawn(curves: list[JobCurve], count: int, slots: int, load: float, seed: int, mean: float = 600.0) -> JobSet:
    """So many jobs like these curves, at random; they keep a share `load` of the slots busy on average.

    With one worker a job takes `mean` seconds on average, log-normally; gaps between arrivals are exponential.
    """
    chance = random.Random(seed)
    at, jobs = 0.0, []
    for number in range(1, count + 1):
        curve = chance.choice(curves)
        seconds = mean * math.exp(chance.gauss(0, SPREAD) - SPREAD**2 / 2)
        most = chance.choices(list(SHARES), list(SHARES.values()))[0]
        size = seconds * curve.speed(1) / curve.samples[-1]
        jobs.append(SetJob(name=f"{number:05d}", arrives=at, curve=curve.name, size=size, most=min(most, slots)))
        at += chance.expovariate(load * slots / mean)
    return JobSet(slots=slots, seed=seed, curves=curves, jobs=jobs)
