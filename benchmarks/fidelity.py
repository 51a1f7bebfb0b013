"""Does virtual time tell the truth? Predicted against measured time per step and time to target.

Two workers as processes of this machine, and in a lab of three hosts with a small share of a core each, which other
load of the machine can hardly disturb. Each of them is calibrated first: a byte costs a processor more on a slow
link, where it comes in smaller portions. Root, for the lab: `python -m benchmarks.fidelity --help`
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import nn

import covey
from benchmarks.kept import Kept
from covey.advise.estimate import Estimate
from covey.calibrate import calibrate
from covey.engines.lab import iproute
from covey.observe.step_time import recorded_step
from covey.simulate import Cluster, load, written

TASK = f"{__file__}:task"
STRATEGIES = (
    "bsp", "ssp(bound=3)", "asynchronous", "allreduce", "local_sgd(period=4)", "easgd(period=4)",
    "gosgd(probability=0.25)", "dpsgd over ring",
)  # fmt: skip
RATES = ("1000mbit", "100mbit", "10mbit")
SLOW = "10mbit"  # where a step takes long: half as many are enough
TARGET = "accuracy>=0.9"
WORKERS = 2
WIDEST = 0.3  # of a prediction: a 90 % interval that says something
UNKNOWN = 0.1  # error of a cluster that does not tell its own

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
    """Where strategies are measured: an engine, the cluster that shall foresee it, and how many steps are timed."""

    name: str
    engine: str
    cluster: Cluster
    steps: int


@dataclass(frozen=True)
class Seen:
    """One run: seconds per step of a worker, until the target if it was asked for and reached; cores in use."""

    step: float
    reached: float | None
    cores: float | None


@dataclass(kw_only=True)
class Line:
    """One strategy in one world."""

    world: str
    strategy: str
    measured: list[float]
    predicted: float
    reached: list[float]
    foreseen: float | None
    error: float  # of what is predicted, as calibration found it: the standard deviation of the logarithm
    cores: list[float]  # that all roles together used, as measured: below what quotas allow, they have waited

    @property
    def ratio(self) -> float:
        return self.predicted / statistics.median(self.measured)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the measured median lies with a chance of 90 %."""
        return Estimate(self.predicted, self.error).interval

    @property
    def inside(self) -> bool:
        """Whether it does, in an interval that is no wider than 30 %."""
        low, high = self.interval
        return low <= statistics.median(self.measured) <= high and high - low <= WIDEST * self.predicted

    @property
    def spread(self) -> float:
        """How far repetitions lie apart, as a share of their median; one alone says nothing, and counts 5 %."""
        if len(self.measured) < 2:
            return 0.05
        return (max(self.measured) - min(self.measured)) / statistics.median(self.measured)

    @property
    def target_ratio(self) -> float | None:
        return self.foreseen / statistics.median(self.reached) if self.foreseen and self.reached else None


def run(strategy: str, steps: int, target: bool, seed: int = 0, **given: Any) -> Seen:
    """To the target, or only so many steps: a run to the target tells the time of its steps as well."""
    end: dict[str, Any] = {"until": TARGET, "epochs": 20} if target else {"steps": steps}
    result = covey.fit(TASK, strategy, WORKERS, seed=seed, traced=True, runs=False, **end, **given)
    cores = [row["cpu"] for row in result.usage]
    assert result.recording is not None
    return Seen(
        recorded_step(result.recording), result.reached.seconds if result.reached else None,
        statistics.fmean(cores) if cores else None,
    )  # fmt: skip


def compare(world: World, strategy: str, repeat: int, targets: int) -> Line:
    """Measured `repeat` times, the first `targets` of them to the target; then foreseen."""
    seen = [run(strategy, world.steps, turn < targets, turn, engine=world.engine) for turn in range(repeat)]
    dreamt = run(strategy, world.steps, targets > 0, engine="simulated", cluster=world.cluster)
    return Line(
        world=world.name, strategy=strategy, measured=[one.step for one in seen], predicted=dreamt.step,
        error=world.cluster.error or UNKNOWN,
        reached=[one.reached for one in seen if one.reached], foreseen=dreamt.reached,
        cores=[one.cores for one in seen if one.cores],
    )  # fmt: skip


def worlds(names: Sequence[str], steps: int, cpu: float, kept: Path | None) -> Iterator[World]:
    """Each calibrated right before it is measured; with a folder, as it was calibrated before."""
    if "local" in names:
        yield World("local", "local", _calibrated("local", "local", kept), steps)
    rates = [rate for rate in RATES if rate in names]
    if rates and not iproute.missing():
        for rate in rates:
            engine = f"lab(hosts=3, rate={rate}, cpu={cpu:g})"
            timed = steps // 2 if rate == SLOW else steps
            yield World(rate, engine, _calibrated(rate, engine, kept), timed)


def _calibrated(name: str, engine: str, kept: Path | None) -> Cluster:
    file = kept / f"{name}.toml" if kept else None
    if file is None or not file.exists():
        cluster = calibrate(TASK, engine)
        if file is None:
            return cluster
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(written(cluster, f"calibrated for {engine}"))
    return load(file)


def _line(world: World, strategy: str, repeat: int, targets: int, done: Kept) -> Line:
    """As it was measured before, or now."""
    key = f"{world.name} | {strategy} | {repeat} | {targets}"
    if key not in done.found:
        done.keep(key, asdict(compare(world, strategy, repeat, targets)))
    return Line(**done.found[key])


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
    rows = [
        "| world | strategy | measured | predicted, 90 % | ratio | to target | predicted | ratio |",
        "|---" * 8 + "|",
    ]
    for line in lines:
        cells = [line.world, f"`{line.strategy}`", _ms(statistics.median(line.measured)), _between(line)]
        cells += [f"**{line.ratio:.2f}**"]
        if line.target_ratio is not None:
            assert line.foreseen is not None
            cells += [f"{statistics.median(line.reached):.2f} s", f"{line.foreseen:.2f} s", f"{line.target_ratio:.2f}"]
        else:
            cells += ["", "", ""]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _between(line: Line) -> str:
    low, high = line.interval
    return f"{low * 1000:.1f}-{high * 1000:.1f} ms"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def measure(
    names: Sequence[str] = ("local", *RATES), strategies: Sequence[str] = STRATEGIES, steps: int = 60, repeat: int = 3,
    targets: Mapping[str, int] | None = None, cpu: float = 0.5, kept: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """All lines, how many lie within 10 %, and the rankings; `targets`: how many runs of a world go to the target."""
    lines: list[Line] = []
    done = Kept(kept / "lines.json" if kept else None)
    for world in worlds(names, steps, cpu, kept):
        for strategy in strategies:
            lines.append(line := _line(world, strategy, repeat, (targets or {}).get(world.name, 0), done))
            print(table([line]).splitlines()[-1], file=sys.stderr, flush=True)
    of_world = {name: [line for line in lines if line.world == name] for name in names}
    return {
        "lines": [asdict(line) | {"ratio": line.ratio, "interval": line.interval} for line in lines],
        "inside their 90 % interval": [sum(line.inside for line in lines), len(lines)],
        "within 10 %": [sum(abs(line.ratio - 1) <= 0.1 for line in lines), len(lines)],
        "ranking": {name: ranking(found) for name, found in of_world.items() if found},
        "table": table(lines),
    }


def read_targets(text: str, repeat: int) -> dict[str, int]:
    """From `local,10mbit:1`: in the local world every run goes to the target, at 10 Mbit/s one of each strategy."""
    pairs = [item.partition(":") for item in text.split(",") if item]
    return {name: min(repeat, int(many)) if many else repeat for name, _, many in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default=",".join(("local", *RATES)), help="which worlds")
    parser.add_argument(
        "--targets", default=f"local,{RATES[0]},{RATES[1]},{RATES[2]}:1",
        help="in which of them runs go to the target, and how many of each strategy (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--strategies", default=";".join(STRATEGIES), help="with ; in between")
    parser.add_argument("--steps", type=int, default=60, help=f"that are timed; at {SLOW} half as many")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cpu", type=float, default=0.5, help="cores of each host of the lab")
    parser.add_argument("--kept", type=Path, help="a folder that keeps calibrations and lines: it goes on from there")
    asked = parser.parse_args()
    found = measure(
        asked.worlds.split(","), asked.strategies.split(";"), asked.steps, asked.repeat,
        read_targets(asked.targets, asked.repeat), asked.cpu, asked.kept,
    )  # fmt: skip
    print(found.pop("table"))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
