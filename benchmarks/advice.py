"""How good is the advice? How often the advised strategy is within 10 % of the best that was measured.

Twelve cases: a small and a wide model, links of 10, 100 and 1000 Mbit/s, hosts of one speed or one three times slower.
Advice follows a calibrated cluster. `python -m benchmarks.advice` measures in a lab (root); `--simulated` in virtual
time, with other seeds than the advice was found with. The best is looked for among the advised, one worker alone, and
the usual strategies. Who needs far longer than the best so far is broken off, and only those near it are measured again
with `--repeat`.
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
from typing import Any

import torch
from torch import nn

import covey
from covey.advise.candidates import ALONE
from covey.advise.choose import Advice, advise
from covey.advise.situation import Situation, look, time_batch
from covey.advise.trials.trial import SCORES, SimulatedTrials
from covey.calibrate import calibrate
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
    times: dict[str, float] = field(default_factory=dict)

    @property
    def best(self) -> str:
        return min(self.times, key=lambda spec: self.times[spec])

    @property
    def ratio(self) -> float:
        """The advised strategy's time in the best one's."""
        return self.times[self.advised] / self.times[self.best]


CASES = [
    Case(task, rate, slow)
    for task in ("small", "wide") for rate in ("10mbit", "100mbit", "1000mbit") for slow in (False, True)
]  # fmt: skip


def measure(cases: Sequence[Case] = CASES, repeat: int = 1, simulated: bool = False) -> dict[str, Any]:
    """Each case advised, then measured."""
    rows = [_row(case, repeat, simulated) for case in cases]
    return {
        "within_10_percent": sum(row.ratio <= WITHIN for row in rows), "cases": len(rows),
        "median_ratio": statistics.median(row.ratio for row in rows), "rows": [asdict(row) for row in rows],
    }  # fmt: skip


def _row(case: Case, repeat: int, simulated: bool) -> Row:
    task = load_task(case.file)
    pace = time_batch(task)
    now = look(task, case.workers, case.cluster())
    found = advise(task, case.file, now, until=TARGET, trials=SimulatedTrials(case.file, now, pace))
    first = found.choices[0]
    row = Row(str(case), _named(first.spec, first.workers), found.sure, first.seconds or float("nan"))
    times: dict[tuple[str, int], list[float]] = {spec: [] for spec in _specs(now, found)}
    for seed in range(SEED, SEED + repeat):
        for spec in _near(times):
            limit = FAR * min(map(statistics.median, filter(None, times.values())), default=float("inf"))
            times[spec].append(_time(case, *spec, seed, now, limit, simulated))
    row.times = {_named(*spec): statistics.median(seen) for spec, seen in times.items()}
    print(f"{row.case:32} {row.advised:24} {row.ratio:5.2f}x of {row.best} ({row.sure})", file=sys.stderr, flush=True)
    return row


def _near(times: Mapping[tuple[str, int], Sequence[float]]) -> list[tuple[str, int]]:
    """Whom to measure (again): at first all, then those who are not far from the best."""
    medians = {spec: statistics.median(seen) if seen else 0.0 for spec, seen in times.items()}
    return [spec for spec, median in medians.items() if median <= FAR * min(medians.values())]


def _specs(now: Situation, found: Advice) -> list[tuple[str, int]]:
    first = found.choices[0]
    return list(dict.fromkeys([(first.spec, first.workers), (ALONE, 1), *((spec, now.workers) for spec in POOL)]))


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


def _time(
    case: Case, spec: str, workers: int, seed: int, now: Situation, limit: float, simulated: bool
) -> float:  # fmt: skip
    """Seconds to the target; infinitely many when it fails or comes too late."""
    where: dict[str, Any] = {"engine": case.engine, "threads": 1, "insecure": True, "watcher": Limit(limit)}
    if simulated:
        where = {"engine": "simulated", "cluster": now.cluster}
    try:
        result = covey.fit(case.file, spec, workers, until=TARGET, epochs=MOST, seed=seed, scores=SCORES, **where)
    except CoveyError as error:
        print(f"{case}: {spec} failed: {error}", file=sys.stderr)
        return float("inf")
    return result.reached.seconds if result.reached else float("inf")


def _named(spec: str, workers: int) -> str:
    return "one worker alone" if workers == 1 else spec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulated", action="store_true", help="measure in virtual time")
    parser.add_argument("--repeat", type=int, default=1, help="how often those near the best are measured")
    parser.add_argument("--only", default="", help="cases whose name has this in it, such as 'small, 10mbit'")
    given = parser.parse_args()
    chosen = [case for case in CASES if given.only in str(case)]
    print(json.dumps(measure(chosen, given.repeat, given.simulated), indent=1))


if __name__ == "__main__":
    main()
