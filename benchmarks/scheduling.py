"""Does it help when bytes move in another order? A deep model over slow links, each strategy against bsp in one run.

Two workers and a server on hosts of a lab (root), on links of 200 Mbit/s: `python -m benchmarks.scheduling --help`.
A perceptron with ten layers of 512: 10.5 MB, which take a worker 0.4 s alone, and both together twice as long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import covey
from covey.engines.lab import iproute
from covey.observe.result import Result

TASK = f"{__file__}:task"
WORKERS, WIDTH, DEPTH = 2, 512, 10
TUNED = "bytescheduler(partition=auto, credit=auto)"
TUNING = 36  # steps in which it finds both, and a few more
STRATEGIES = (
    "bsp", "p3", "p3(order=fifo)", "tictac", "bytescheduler(partition=512000, credit=2048000)", TUNED,
    "staggered(flows=2)", "petuum", "bosen(rate=150mbit)", "allreduce(pattern=scatter)",
    "allreduce(pattern=scatter, bucket=1MB)",
    "bytescheduler(partition=512000, credit=2048000, exchange=allreduce)",
)  # fmt: skip


def deep() -> nn.Module:
    hidden = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, 10))


def points(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    return torch.randn(count, WIDTH, generator=chance), torch.randint(10, (count,), generator=chance)


task = covey.Task(
    model=deep,
    data=points(4096),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    loss=nn.functional.cross_entropy,
    batch_size=512,
)


def fit(strategy: str, rate: str, steps: int) -> Result:
    hosts = WORKERS + (not strategy.startswith("allreduce") and "exchange=allreduce" not in strategy)
    return covey.fit(TASK, strategy, WORKERS, engine=f"lab(hosts={hosts}, rate={rate})", steps=steps, threads=1)


def tuned(rate: str) -> str:
    """The partition and the credit that are found on this link."""
    notes = fit(TUNED, rate, TUNING).notes
    return f"bytescheduler(partition={notes['partition']:.0f}, credit={notes['credit']:.0f})"


def measure(
    strategies: Sequence[str] = STRATEGIES, rate: str = "200mbit", steps: int = 5, rounds: int = 2
) -> dict[str, Any]:  # fmt: skip
    """Seconds of a step of each, round by round, and how long that is for bsp's in the same round (median, all)."""
    if missing := iproute.missing():
        return {"skipped": missing}
    specs = {name: tuned(rate) if name == TUNED else name for name in strategies}
    seconds: dict[str, list[float]] = {name: [] for name in strategies}
    for _ in range(rounds):
        for name, spec in specs.items():
            seconds[name].append(fit(spec, rate, steps).seconds / steps)
            print(f"{spec}: {seconds[name][-1]:.2f} s", file=sys.stderr, flush=True)
    ratios = {name: [a / b for a, b in zip(taken, seconds["bsp"], strict=True)] for name, taken in seconds.items()}
    return {
        name: {"as": specs[name], "seconds": taken, "ratio": statistics.median(ratios[name]), "ratios": ratios[name]}
        for name, taken in seconds.items()
    }


def table(found: dict[str, Any]) -> str:
    """As it goes into docs/scheduling.md."""
    rows = ["| | seconds of a step | of bsp's |", "|---|---|---|"]
    for name, told in found.items():
        spec = f"`{name}`" if told["as"] == name else f"`{name}`, which found `{told['as']}`"
        spread = f"{min(told['ratios']):.2f} to {max(told['ratios']):.2f}"
        rows.append(f"| {spec} | {statistics.median(told['seconds']):.2f} | **{told['ratio']:.2f}x** ({spread}) |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", default=";".join(STRATEGIES), help="with ; in between, bsp among them")
    parser.add_argument("--rate", default="200mbit", help="of each host's link")
    parser.add_argument("--steps", type=int, default=5, help="of each run")
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    found = measure(asked.strategies.split(";"), asked.rate, asked.steps, asked.rounds)
    if "skipped" not in found:
        print(table(found))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
