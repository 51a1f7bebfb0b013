"""Was the machine a race's own? What its host took away, what other programs did around it, and how fast a core was.

The hosts of a race have less than the cores together, and wait for their share: pressure is noted, and says nothing
of others.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

TURNS, SIZE = 40, 256  # of a product of matrices on one thread: some 10 ms
LOOK = 0.5  # seconds for which other programs are looked for, before and after
SHORTEST = 0.01  # seconds that Linux counts
STEAL, BUSY, SLOW = 0.03, 0.2, 1.2  # a share of the cores' time, cores, times the usual pace: more is a disturbance

Measures = dict[str, float]


def _counted() -> tuple[float, float, float]:
    """Seconds of all cores since the machine's start: at work, stolen by its host, and all together."""
    line, ticks = Path("/proc/stat").read_text().split("\n")[0], os.sysconf("SC_CLK_TCK")
    words = [
        int(word) / ticks for word in line.split()[1:9]
    ]  # user, nice, system, idle, disk, two of interrupts, stolen
    return sum(words[:3]) + sum(words[5:7]), words[7], sum(words)


def _pressed() -> float:
    """Seconds in which any program waited for a core; 0 where the kernel does not count them."""
    try:
        return int(Path("/proc/pressure/cpu").read_text().split("\n")[0].rpartition("total=")[2]) / 1e6
    except OSError:
        return 0.0


def pace() -> float:
    """Seconds of one core for the same work each time, the best of three."""
    threads, matrix, found = torch.get_num_threads(), torch.ones(SIZE, SIZE), []
    torch.set_num_threads(1)
    for _ in range(3):
        begin = time.perf_counter()
        for _ in range(TURNS):
            matrix @ matrix
        found.append(time.perf_counter() - begin)
    torch.set_num_threads(threads)
    return min(found)


def busy() -> float:
    """Cores that other programs use at the moment."""
    begin, (worked, stolen, _) = time.perf_counter(), _counted()
    time.sleep(LOOK)
    now = _counted()
    return (now[0] + now[1] - worked - stolen) / (time.perf_counter() - begin)


@contextmanager
def watched(found: Measures) -> Iterator[None]:
    """Writes into `found` what the machine was like meanwhile."""
    around, paces = [busy()], [pace()]
    begin, (_, stolen, whole), pressed = time.perf_counter(), _counted(), _pressed()
    yield
    (_, later, then), seconds = _counted(), time.perf_counter() - begin
    ticks = max(then - whole, SHORTEST)  # of all cores; a moment may be shorter than one
    found |= {"steal": (later - stolen) / ticks, "pressure": (_pressed() - pressed) / seconds}
    around.append(busy())
    paces.append(pace())
    found |= {"busy": max(around), "pace": max(paces)}


def disturbance(found: Mapping[str, float], usual: Iterable[float]) -> str:
    """What was wrong with the machine, beside the usual pace; nothing where it was a race's own."""
    known = [*usual, found["pace"]]
    if found["steal"] > STEAL:
        return f"its host took {found['steal']:.0%} of the cores' time"
    if found["busy"] > BUSY:
        return f"other programs used {found['busy']:.1f} cores"
    if found["pace"] > SLOW * statistics.median(known):
        return f"a core was {found['pace'] / statistics.median(known):.1f} times slower than usual"
    return ""
