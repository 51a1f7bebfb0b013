"""How long does a step of synchronous training take on four hosts: covey's `allreduce`, or PyTorch's DDP over Gloo?

The CNN of `examples/fashion.py` (3.3 MB of gradients) on the hosts of a lab with 0.45 of a core each, one thread,
nothing encrypted unless asked for. Both take turns in one run of at most a minute and a half; steps after a pause do
not count. `python -m benchmarks.host_steps --rate 1000mbit`; root. A ratio above 1 says that covey is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import covey
from benchmarks.peers.clocked import TIMES
from benchmarks.peers.courses import Course
from benchmarks.peers.track import HOSTS, Cell, Team, hosts
from covey.engines.lab import quota

FILE = Path(__file__).parent / "peers" / "clocked.py"
WARM = 4  # steps at the beginning of a turn that do not count
UNDONE = 2  # steps of covey before a run, which it undoes


class ClockedCourse(Course):
    """The task that leaves its times."""

    @property
    def file(self) -> str:
        return f"{FILE}:task"


COURSE = ClockedCourse("clocked", "loss<=0", 1)


class Turn(NamedTuple):
    """What the steps of a turn took: wall seconds of each, in the mean of the workers; CPU seconds of a worker."""

    walls: list[float]
    cpu: float


class Pair(NamedTuple):
    """A turn of DDP, and the one of covey right after it."""

    theirs: Turn
    ours: Turn


class Times:
    """What the processes of a team leave in a folder."""

    def __init__(self, folder: str, team: str) -> None:
        self.start = f"{folder}/{team}"
        self.read: dict[Path, int] = {}

    def turn(self, skip: int) -> Turn:
        """The steps since the last turn, without the first ones."""
        workers = []
        for file in sorted(Path(self.start).parent.glob(f"{Path(self.start).name}.*")):
            lines = file.read_text().splitlines()
            seen, self.read[file] = self.read.get(file, 0), len(lines)
            if new := [tuple(map(float, line.split())) for line in lines[seen + skip :]]:
                workers.append(new)
        assert len(workers) == HOSTS, f"{len(workers)} processes have left times"
        walls = [[after[0] - before[0] for before, after in pairwise(worker)] for worker in workers]
        cpus = [(worker[-1][1] - worker[0][1]) / (len(worker) - 1) for worker in workers]
        return Turn([statistics.mean(step) for step in zip(*walls, strict=True)], statistics.mean(cpus))


class Ddp:
    """PyTorch's, whose processes wait between turns."""

    def __init__(self, team: Team, times: Times, steps: int) -> None:
        self.team, self.times, self.steps, self.mark = team, times, steps, 0

    def turn(self) -> Turn:
        self.team.tell({"mark": self.mark, "on": True})
        self.mark = int(self.team.hear(time.monotonic() + 300)["mark"])
        return self.times.turn(WARM)


@contextmanager
def ddp(cell: Cell, folder: str, steps: int) -> Iterator[Ddp]:
    times = Times(folder, "ddp")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as room, hosts(cell, HOSTS) as (lab, nets, groups):
        os.environ[TIMES] = times.start
        team = Team(Path(room), lab, groups, cell.course)
        addresses = [f"{nets.data}.{rank + 1}" for rank in range(HOSTS)]
        try:
            for rank, address in enumerate(addresses):
                given = {
                    "rank": rank, "size": HOSTS, "seed": 0, "address": address, "first": addresses[0], "folder": room,
                    "course": cell.course.file, "settings": {"every": steps + WARM},
                }  # fmt: skip
                team.start([sys.executable, "-m", "benchmarks.peers.ddp", json.dumps(given)])
            team.gather()
            for group, share in zip(groups, cell.shares, strict=False):
                quota.limit(group, share)
            yield Ddp(team, times, steps)
        finally:
            team.end()


def ours(spec: str, cell: Cell, folder: str, steps: int, number: int, **options: Any) -> Turn:
    """A run of covey, with its processes."""
    times = Times(folder, f"covey-{number}")
    os.environ[TIMES] = times.start
    covey.fit(cell.course.file, spec, HOSTS, engine=cell.engine, threads=1, steps=steps + WARM, seed=0, **options)
    return times.turn(UNDONE + WARM)


def measure(
    specs: Sequence[str],
    rate: str = "1000mbit",
    steps: int = 30,
    rounds: int = 4,
    seconds: float = 80.0,
    cpu: float = 0.45,
    **options: Any,
) -> dict[str, list[Pair]]:
    """The turns of each strategy; a turn begins only while these seconds have not passed."""
    cell, until = Cell(rate, cpu=cpu, course=COURSE), time.monotonic() + seconds
    found: dict[str, list[Pair]] = {spec: [] for spec in specs}
    with tempfile.TemporaryDirectory() as folder, ddp(cell, folder, steps) as peer:
        number, longest = 0, 0.0
        while number < rounds * len(specs) and time.monotonic() + longest < until:
            begin, spec = time.monotonic(), specs[number % len(specs)]
            theirs = peer.turn()
            found[spec].append(Pair(theirs, ours(spec, cell, folder, steps, number, **options)))
            number, longest = number + 1, max(longest, time.monotonic() - begin)
    return found


def told(found: dict[str, list[Pair]]) -> str:
    """Medians of all steps with the quartiles, the ratio to DDP with its range over the turns, CPU time of a worker."""
    lines = [f"{'':40} {'ms a step':>9} {'quartiles':>14} {'DDP / this':>11} {'of turns':>14} {'CPU ms':>7}"]
    theirs = [pair.theirs for pairs in found.values() for pair in pairs]
    rows = [(name, [pair.ours for pair in pairs], _ratios(pairs)) for name, pairs in found.items()]
    for name, turns, ratios in [("DDP", theirs, [1.0]), *rows]:
        if not turns:
            continue
        walls = [1e3 * wall for turn in turns for wall in turn.walls]
        low, median, high = statistics.quantiles(walls, n=4)
        lines.append(
            f"{name:40} {median:9.1f} {low:6.1f} to {high:5.1f} {statistics.median(ratios):10.2f}x "
            f"{min(ratios):6.2f} to {max(ratios):.2f} {1e3 * statistics.median(turn.cpu for turn in turns):7.1f}"
        )
    return "\n".join(lines)


def _ratios(pairs: Sequence[Pair]) -> list[float]:
    return [statistics.median(pair.theirs.walls) / statistics.median(pair.ours.walls) for pair in pairs] or [0.0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=["allreduce"], help="strategies of covey")
    parser.add_argument("--rate", default="1000mbit")
    parser.add_argument("--steps", type=int, default=30, help="of a turn")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=75.0, help="after which no turn begins")
    parser.add_argument("--encrypted", action="store_true", help="covey with CURVE")
    given = parser.parse_args()
    found = measure(given.specs, given.rate, given.steps, given.rounds, given.seconds, insecure=not given.encrypted)
    print(told(found))


if __name__ == "__main__":
    main()
