"""How good is the advice? How often the advised strategy is within 10 % of the best that was measured.

Twelve cases: a small and a wide model, links of 10, 100 and 1000 Mbit/s, hosts of one speed or one three times slower.
Advice follows a calibrated cluster and real steps in the lab. `python -m benchmarks.advice --kept FILE` measures in a
lab (root), 5 repetitions of at most 20 s each, and goes on from FILE where it was stopped; `--simulated` in virtual
time, with other seeds than the advice was found with. The best is looked for among the advised, one worker alone, and
the usual strategies. Who needs far longer than the best so far is broken off; those near it are measured again.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import covey
from benchmarks.kept import Kept
from covey.advise.candidates import ALONE
from covey.advise.choose import advise
from covey.advise.real_steps import RealSteps
from covey.advise.situation import look, time_batch
from covey.advise.trials.trial import SCORES, SimulatedTrials
from covey.calibrate import calibrate
from covey.compare.paired import Finish, ratio
from covey.compare.race import ERROR
from covey.errors import CoveyError
from covey.observe.progress import Progress
from covey.simulate import Cluster
from covey.task import load_task

TARGET = "accuracy>=0.9"
POOL = ("bsp", "asynchronous", "allreduce", "local_sgd", "easgd", "gosgd", "dpsgd")
QUOTA, SLOW = 0.2, 3  # of a core for each host; how many times slower the slow one is
WITHIN = 1.1
SEED = 10  # of the first repetition; the advice has seen smaller ones
FAR = 1.5  # times the best: no repetition would bring it near
MOST = 20  # passes over the data
LONGEST = 20.0  # seconds of a run


def _task(wide: int) -> covey.Task:
    return covey.Task(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, wide), nn.ReLU(), nn.Linear(wide, 10)),
        data=covey.data.digits(train=True),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
        loss=nn.functional.cross_entropy,
        batch_size=32,
        evaluate=covey.accuracy(covey.data.digits(train=False)),
    )


small, wide = _task(64), _task(1024)  # 19 kB and 307 kB


@dataclass(frozen=True)
class Case:
    """A task on a cluster."""

    task: str
    rate: str
    slow: bool
    workers: int = 3

    @property
    def file(self) -> str:
        return f"{__file__}:{self.task}"

    def __str__(self) -> str:
        return f"{self.task}, {self.rate}{', one slow host' if self.slow else ''}"

    @property
    def shares(self) -> list[float]:
        """Of a core, for each host: workers on hosts of their own, and one for a server or master."""
        slow = self.workers - 1 if self.slow else None
        return [QUOTA / SLOW if host == slow else QUOTA for host in range(self.workers + 1)]

    def cluster(self) -> Cluster:
        """As `covey calibrate` measures it for these links, with this case's slow host written in."""
        found = calibrated(self.file, self.workers + 1, self.rate)
        machines = (replace(machine, cores=share) for machine, share in zip(found.machines, self.shares, strict=True))
        return replace(found, machines=tuple(machines))

    @property
    def engine(self) -> str:
        shares = ",".join(f"{share:.4g}" for share in self.shares)
        return f'lab(hosts={self.workers + 1}, rate={self.rate}, cpu="{shares}")'


@cache
def calibrated(file: str, hosts: int, rate: str) -> Cluster:
    return calibrate(file, f"lab(hosts={hosts}, rate={rate}, cpu={QUOTA})")


@dataclass
class Row:
    """What was advised, and what was measured of it and of the others."""

    case: str
    advised: str
    sure: str
    predicted: float
    interval: list[float] | None = None  # of 90 %, in seconds
    times: dict[str, list[float]] = field(default_factory=dict)

    @property
    def best(self) -> str:
        return min(self.times, key=lambda spec: statistics.median(self.times[spec]))

    @property
    def ratio(self) -> float:
        """The advised strategy's time in the best one's."""
        return statistics.median(self.times[self.advised]) / statistics.median(self.times[self.best])

    @property
    def tied(self) -> bool:
        """Whether the advised is not surely slower than the best, by the pairs of runs with equal seeds."""
        return tied(self.times[self.advised], self.times[self.best])


def tied(mine: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether these times, seed by seed, are not surely longer than those; three seeds at least."""
    one, other = ({seed: _finish(seconds) for seed, seconds in enumerate(times)} for times in (mine, theirs))
    return min(len(one), len(other)) >= 3 and not ratio(one, other, ERROR).behind


def _finish(seconds: float) -> Finish:
    return Finish(seconds) if seconds < float("inf") else Finish(LONGEST, reached=False)


CASES = [
    Case(task, rate, slow)
    for task in ("small", "wide") for rate in ("10mbit", "100mbit", "1000mbit") for slow in (False, True)
]  # fmt: skip


def measure(
    cases: Sequence[Case] = CASES, repeat: int = 5, simulated: bool = False, file: Path | None = None
) -> dict[str, Any]:  # fmt: skip
    """Each case advised, then measured; with a file, what is in it is not done again."""
    kept = Kept(file)
    rows = [_row(case, repeat, simulated, kept) for case in cases]
    return {
        "within_10_percent_or_tied": sum(row.ratio <= WITHIN or row.tied for row in rows),
        "within_10_percent": sum(row.ratio <= WITHIN for row in rows), "cases": len(rows),
        "median_ratio": statistics.median(row.ratio for row in rows), "rows": [asdict(row) for row in rows],
    }  # fmt: skip


def _row(case: Case, repeat: int, simulated: bool, kept: Kept) -> Row:
    said = kept.found.get(f"{case} | advice")
    if said is None:
        kept.keep(f"{case} | advice", said := _advised(case, simulated))
    row = Row(str(case), _named(said["spec"], said["workers"]), said["sure"], said["seconds"] or float("nan"))
    row.interval = said["interval"]
    usual = ((spec, case.workers) for spec in POOL)
    specs = dict.fromkeys([(said["spec"], said["workers"]), (ALONE, 1), *usual])
    times: dict[tuple[str, int], list[float]] = {spec: [] for spec in specs}
    for seed in range(SEED, SEED + repeat):
        for spec in _near(times):
            limit = FAR * min(map(statistics.median, filter(None, times.values())), default=float("inf"))
            key = f"{case} | {_named(*spec)} | {seed}"
            if key not in kept.found:
                took = _time(case, *spec, seed, min(limit, LONGEST), simulated)
                kept.keep(key, {"seconds": took if took < float("inf") else None})
            found = kept.found[key]["seconds"]
            times[spec].append(float("inf") if found is None else found)
    row.times = {_named(*spec): seen for spec, seen in times.items()}
    how = "tied" if row.tied else f"{row.ratio:.2f}x"
    print(f"{row.case:32} {row.advised:24} {how} of {row.best} ({row.sure})", file=sys.stderr, flush=True)
    return row


def _advised(case: Case, simulated: bool) -> dict[str, Any]:
    """What is advised for a case: from its calibrated cluster, and real steps in the lab."""
    task = load_task(case.file)
    pace = time_batch(task)
    now = look(task, case.workers, case.cluster())
    real = RealSteps(task=case.file, engine=case.engine, workers=case.workers, insecure=True, threads=1)
    trials = SimulatedTrials(case.file, now, pace)
    found = advise(task, case.file, now, until=TARGET, trials=trials, real=None if simulated else real)
    if found.interrupted:
        raise KeyboardInterrupt
    first = found.choices[0]
    return {
        "spec": first.spec, "workers": first.workers, "sure": found.sure, "seconds": first.seconds,
        "interval": first.seconds_interval,
    }  # fmt: skip


def _near(times: Mapping[tuple[str, int], Sequence[float]]) -> list[tuple[str, int]]:
    """Whom to measure (again): at first all, then those who are not far from the best."""
    medians = {spec: statistics.median(seen) if seen else 0.0 for spec, seen in times.items()}
    return [spec for spec, median in medians.items() if median <= FAR * min(medians.values())]


class Limit:
    """Watches a run, and ends it as Ctrl-C would when it has trained for so long."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.over = seconds, False

    def update(self, progress: Progress) -> None:
        if progress.phase == "training" and progress.seconds > self.seconds and not self.over:
            self.over = True
            signal.raise_signal(signal.SIGINT)

    def say(self, line: str) -> None:
        pass


def _time(case: Case, spec: str, workers: int, seed: int, limit: float, simulated: bool) -> float:
    """Seconds to the target; infinitely many when it fails or comes too late."""
    where: dict[str, Any] = {"engine": case.engine, "threads": 1, "insecure": True, "watcher": Limit(limit)}
    if simulated:
        where = {"engine": "simulated", "cluster": case.cluster()}
    try:
        result = covey.fit(
            case.file, spec, workers, until=TARGET, epochs=MOST, seed=seed, scores=SCORES, runs=False, **where
        )
    except CoveyError as error:
        print(f"{case}: {spec} failed: {error}", file=sys.stderr)
        return float("inf")
    return result.reached.seconds if result.reached else float("inf")


def _named(spec: str, workers: int) -> str:
    return "one worker alone" if workers == 1 else spec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulated", action="store_true", help="measure in virtual time")
    parser.add_argument("--repeat", type=int, default=5, help="how often those near the best are measured")
    parser.add_argument("--only", default="", help="cases whose name has this in it, such as 'small, 10mbit'")
    parser.add_argument("--kept", type=Path, help="a file for what was advised and measured: it goes on from there")
    given = parser.parse_args()
    chosen = [case for case in CASES if given.only in str(case)]
    print(json.dumps(measure(chosen, given.repeat, given.simulated, given.kept), indent=1))


if __name__ == "__main__":
    main()
