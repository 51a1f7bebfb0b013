"""Many seeds of faults, each of which picks its strategy: `python -m benchmarks.faults --seeds 0..9999`.

With `--federated` each draws a federated run, whose clients, aggregator, coordinator and links fail.
Seeds that were tried are written to `--done FILE`, a line each; with the same file only the others are tried again.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import torch

from covey.check import federated_seeds
from covey.check.fault_seeds import case_of, tried
from covey.simulate.faults import parse_seeds

BLOCK = 25  # seeds that a process tries at a time


class TriedSeed(msgspec.Struct):
    """A line of the file: a seed, what it ran, how often it restarted, and what broke."""

    seed: int
    strategy: str
    workers: int
    plan: str
    restarts: int
    broken: str


def measure(seeds: range = range(100)) -> dict[str, Any]:
    """Seeds a minute, of how many strategies, with how many restarts, and those that broke something."""
    return report(list(results(list(seeds), processes=1)), 0.0)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seeds", default="0..9999", help="one seed, or a range")
    asked.add_argument("--done", type=Path, help="a file of seeds that were tried")
    asked.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    asked.add_argument("--federated", action="store_true", help="of federated runs")
    given = asked.parse_args()
    seeds = parse_seeds(given.seeds)
    if seeds is None:
        raise SystemExit(f"--seeds {given.seeds}: write a seed, such as 17, or a range, such as 0..9999")
    before = read(given.done)
    left = [seed for seed in seeds if seed not in before]
    begin, found = time.monotonic(), [before[seed] for seed in seeds if seed in before]
    for tried_seed in results(left, given.processes, attempt_federated if given.federated else attempt):
        found.append(tried_seed)
        if tried_seed.broken:
            print(tried_seed.broken, flush=True)
        if given.done:
            with given.done.open("ab") as file:
                file.write(msgspec.json.encode(tried_seed) + b"\n")
    print(msgspec.json.format(msgspec.json.encode(report(found, time.monotonic() - begin, len(left)))).decode())
    raise SystemExit(any(one.broken for one in found))


def read(done: Path | None) -> dict[int, TriedSeed]:
    """The seeds of a file; a last line that was cut off does not count."""
    lines = done.read_bytes().splitlines(keepends=True) if done and done.exists() else []
    whole = [msgspec.json.decode(line, type=TriedSeed) for line in lines if line.endswith(b"\n")]
    return {one.seed: one for one in whole}


def attempt(seeds: list[int]) -> list[TriedSeed]:
    """(In a process of its own) Try these seeds."""
    torch.set_num_threads(1)
    found = [tried(case_of(seed), seed) for seed in seeds]
    return [
        TriedSeed(
            seed=one.seed, strategy=one.case.strategy, workers=one.case.workers, plan=str(one.plan),
            restarts=one.restarts, broken=str(one) if one.broken else "",
        )
        for one in found
    ]  # fmt: skip


def attempt_federated(seeds: list[int]) -> list[TriedSeed]:
    """(In a process of its own) Try these seeds of federated runs."""
    torch.set_num_threads(1)
    found = [federated_seeds.tried(seed) for seed in seeds]
    return [
        TriedSeed(
            seed=one.seed, strategy=one.case.strategy, workers=one.case.clients, plan=str(one.plan),
            restarts=one.struck, broken=str(one) if one.broken else "",
        )
        for one in found
    ]  # fmt: skip


Attempt = Callable[[list[int]], list[TriedSeed]]


def results(seeds: list[int], processes: int, attempt: Attempt = attempt) -> Iterator[TriedSeed]:
    """Each seed as it was tried, block by block."""
    blocks = [seeds[start : start + BLOCK] for start in range(0, len(seeds), BLOCK)]
    if processes == 1 or len(seeds) <= 1:
        for block in blocks:
            yield from attempt(block)
        return
    with ProcessPoolExecutor(processes) as pool:
        for tried_block in pool.map(attempt, blocks):
            yield from tried_block


def report(found: list[TriedSeed], seconds: float, timed: int = 0) -> dict[str, Any]:
    return {
        "seeds": len(found),
        "strategies": len({one.strategy for one in found}),
        "restarts": sum(one.restarts for one in found),
        "broken": [one.seed for one in found if one.broken],
        **({"seeds_per_minute": round(60 * timed / seconds)} if timed and seconds else {}),
    }


if __name__ == "__main__":
    main()
