"""Does virtual time tell the truth? Predicted against measured time per step and time to target.

Two workers as processes of this machine, and in a lab of three hosts with a small share of a core each, which other
load of the machine can hardly disturb. The machine is calibrated once for either; the lab's other rates are predicted
from that. Root, for the lab: `python -m benchmarks.fidelity --help`
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import nn

import covey
from covey.calibrate import calibrate
from covey.engines.lab import iproute
from covey.observe.result import Result
from covey.simulate import Cluster, load, parse_rate, written

TASK = f"{__file__}:task"
STRATEGIES = (
    "bsp", "ssp(bound=3)", "asynchronous", "allreduce", "local_sgd(period=4)", "easgd(period=4)",
    "gosgd(probability=0.25)", "dpsgd over ring",
)  # fmt: skip
RATES = ("10mbit", "100mbit", "1000mbit")
TARGET = "accuracy>=0.9"
WORKERS = 2
WARM = 4  # steps of each worker that do not count: connections are made, pages are touched

task = covey.Task(
    model=lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    ),
    data=covey.data.digits(train=True),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    loss=nn.functional.cross_entropy,
    batch_size=32,
    evaluate=covey.accuracy(covey.data.digits(train=False)),
)


@dataclass(frozen=True)
class World:
    """Where strategies are measured: an engine, and the cluster that shall foresee it."""

    name: str
    engine: str
    cluster: Cluster


@dataclass(kw_only=True)
class Line:
    """One strategy in one world: seconds per step of a worker, and until the target if that was asked for."""

    world: str
    strategy: str
    measured: list[float]
    predicted: float
    reached: list[float]
    foreseen: float | None

    @property
    def ratio(self) -> float:
        return self.predicted / statistics.median(self.measured)

    @property
    def spread(self) -> float:
        """How far repetitions lie apart, as a share of their median; one alone says nothing, and counts 5 %."""
        if len(self.measured) < 2:
            return 0.05
        return (max(self.measured) - min(self.measured)) / statistics.median(self.measured)

    @property
    def target_ratio(self) -> float | None:
        return self.foreseen / statistics.median(self.reached) if self.foreseen and self.reached else None


def step_time(result: Result) -> float:
    """Seconds from one batch of a worker to its next, after the first few, over all workers."""
    assert result.recording is not None
    begins: dict[str, list[float]] = {}
    for span in result.recording.spans:
        if not span.what:
            begins.setdefault(span.who, []).append(span.begin)
    counted = [(times[-1] - times[WARM]) / (len(times) - 1 - WARM) for times in begins.values()]
    return statistics.fmean(counted)


def run(strategy: str, steps: int, seed: int = 0, **given: Any) -> float:
    return step_time(covey.fit(TASK, strategy, WORKERS, steps=steps, seed=seed, traced=True, **given))


def reach(strategy: str, seed: int = 0, **given: Any) -> float | None:
    reached = covey.fit(TASK, strategy, WORKERS, until=TARGET, epochs=20, seed=seed, **given).reached
    return reached.seconds if reached else None


def compare(world: World, strategy: str, steps: int, repeat: int, target: bool) -> Line:
    real, dreamt = {"engine": world.engine}, {"engine": "simulated", "cluster": world.cluster}
    reached = [reach(strategy, seed, **real) for seed in range(repeat)] if target else []
    return Line(
        world=world.name, strategy=strategy,
        measured=[run(strategy, steps, seed, **real) for seed in range(repeat)],
        predicted=run(strategy, steps, **dreamt),
        reached=[seconds for seconds in reached if seconds is not None],
        foreseen=reach(strategy, **dreamt) if target else None,
    )  # fmt: skip


def worlds(names: Sequence[str], cpu: float, kept: Path | None) -> list[World]:
    """Calibrate what is asked for; with a folder, read what was calibrated before."""
    found = []
    if "local" in names:
        found.append(World("local", "local", _calibrated("local", kept)))
    rates = [rate for rate in RATES if rate in names]
    if rates and not iproute.missing():
        fastest = _calibrated(f"lab(hosts=3, rate={RATES[-1]}, cpu={cpu:g})", kept)
        for rate in rates:
            link = replace(fastest.link, bandwidth=parse_rate(rate))
            engine = f"lab(hosts=3, rate={rate}, cpu={cpu:g})"
            found.append(World(rate, engine, replace(fastest, link=link)))
    return found


def _calibrated(engine: str, kept: Path | None) -> Cluster:
    file = kept / f"{engine.partition('(')[0]}.toml" if kept else None
    if file is None or not file.exists():
        cluster = calibrate(TASK, engine)
        if file is None:
            return cluster
        file.write_text(written(cluster, f"calibrated for {engine}"))
    return load(file)


def ranking(lines: Sequence[Line]) -> tuple[int, int, list[str]]:
    """Pairs whose order was foreseen, of those farther apart than the measured spread, and the wrong ones."""
    right, wrong = 0, []
    for one, other in combinations(lines, 2):
        mine, theirs = statistics.median(one.measured), statistics.median(other.measured)
        if abs(mine - theirs) <= max(one.spread, other.spread) * max(mine, theirs):
            continue
        if (mine < theirs) == (one.predicted < other.predicted):
            right += 1
        else:
            wrong.append(f"{one.strategy} / {other.strategy}")
    return right, right + len(wrong), wrong


def table(lines: Sequence[Line]) -> str:
    """As it goes into docs/benchmarks.md."""
    rows = ["| world | strategy | measured | predicted | ratio | to target | predicted | ratio |", "|---" * 8 + "|"]
    for line in lines:
        cells = [line.world, f"`{line.strategy}`", _ms(statistics.median(line.measured)), _ms(line.predicted)]
        cells += [f"**{line.ratio:.2f}**"]
        if line.target_ratio is not None:
            assert line.foreseen is not None
            cells += [f"{statistics.median(line.reached):.2f} s", f"{line.foreseen:.2f} s", f"{line.target_ratio:.2f}"]
        else:
            cells += ["", "", ""]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def measure(
    names: Sequence[str] = ("local", *RATES), strategies: Sequence[str] = STRATEGIES, steps: int = 40, repeat: int = 3,
    targets: Sequence[str] = ("local", *RATES), cpu: float = 0.3, kept: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """All lines, how many lie within 10 %, and the rankings."""
    lines: list[Line] = []
    for world in worlds(names, cpu, kept):
        for strategy in strategies:
            lines.append(line := compare(world, strategy, steps, repeat, world.name in targets))
            print(table([line]).splitlines()[-1], file=sys.stderr, flush=True)
    of_world = {name: [line for line in lines if line.world == name] for name in names}
    return {
        "lines": [asdict(line) | {"ratio": line.ratio} for line in lines],
        "within 10 %": [sum(abs(line.ratio - 1) <= 0.1 for line in lines), len(lines)],
        "ranking": {name: ranking(found) for name, found in of_world.items() if found},
        "table": table(lines),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default=",".join(("local", *RATES)), help="which worlds")
    parser.add_argument("--targets", default=",".join(("local", *RATES)), help="in which of them also to the target")
    parser.add_argument("--strategies", default=";".join(STRATEGIES), help="with ; in between")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cpu", type=float, default=0.3, help="cores of each host of the lab")
    parser.add_argument("--kept", type=Path, help="a folder that keeps calibrations from one run to the next")
    asked = parser.parse_args()
    found = measure(
        asked.worlds.split(","), asked.strategies.split(";"), asked.steps, asked.repeat, asked.targets.split(","),
        asked.cpu, asked.kept,
    )  # fmt: skip
    print(found.pop("table"))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
