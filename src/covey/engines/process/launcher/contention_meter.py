"""How busy were this machine's cores during a run, with the run's own roles and with other programs?"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from covey.engines.process.liveness import cpu
from covey.observe.contention import Contention

SHORTEST = 0.05  # seconds: Linux counts the idle time of a core in hundredths


@dataclass(frozen=True, slots=True)
class Moment:
    """What Linux has counted so far, in seconds; None where it does not tell."""

    clock: float
    own: float  # CPU time of this launcher and its roles
    ran: float | None  # time of the roles on a core
    waited: float | None  # time in which they could have run, and had no core
    idle: float | None  # of the cores that this process may use, together
    pressed: float | None  # in which any program waited for a core


class ContentionMeter:
    """Reads the counters when a run begins to train, and when it has ended."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.pids = list(pids)
        self.began = read(self.pids) if self.pids else None

    def result(self, pids: Iterable[int]) -> Contention | None:
        """What happened since, where these are the roles now; None where the run lives elsewhere, or was over at once.

        None, too, where roles were lost or came: what these used would look like other programs'.
        """
        if self.began is None or {*pids} != {*self.pids} or any(cpu(pid) < 0 for pid in self.pids):
            return None
        return difference(self.began, read(self.pids), len(os.sched_getaffinity(0)))


def difference(then: Moment, now: Moment, cores: int) -> Contention | None:
    passed = now.clock - then.clock
    if passed < SHORTEST:
        return None
    used = (now.own - then.own) / passed
    idle, pressed = _since(then.idle, now.idle), _since(then.pressed, now.pressed)
    ran, waited = _since(then.ran, now.ran), _since(then.waited, now.waited)
    return Contention(
        cores=cores,
        cpu=round(used, 3),
        others=None if idle is None else round(max(0.0, cores - idle / passed - used), 3),
        delay=None if ran is None or waited is None or ran + waited <= 0 else round(waited / (ran + waited), 3),
        pressure=None if pressed is None else round(min(1.0, pressed / passed), 3),
    )


def _since(then: float | None, now: float | None) -> float | None:
    return None if then is None or now is None else max(0.0, now - then)


def read(pids: list[int]) -> Moment:
    """The counters now."""
    own = time.process_time() + sum(max(0, cpu(pid)) for pid in pids) / 1e9
    ran, waited = _scheduled(pids)
    return Moment(time.monotonic(), own, ran, waited, _idle(), _pressed())


def _scheduled(pids: list[int]) -> tuple[float | None, float | None]:
    """What the threads of the roles have run and waited; a kernel without this counts neither."""
    ran = waited = 0
    for pid in pids:
        with suppress(OSError, ValueError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(OSError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                    on, queued, _ = file.read().split()
                    ran, waited = ran + int(on), waited + int(queued)
    return (ran / 1e9, waited / 1e9) if ran else (None, None)


def _idle() -> float | None:
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    with suppress(OSError, ValueError, IndexError), open("/proc/stat") as file:
        lines = [line.split() for line in file if line.startswith("cpu")]
        found = [int(line[4]) + int(line[5]) for line in lines if line[0] in mine]  # idle, and waiting for a disk
        total = sum(found)
        return total / os.sysconf("SC_CLK_TCK") if total and len(found) == len(mine) else None
    return None


def _pressed() -> float | None:
    with suppress(OSError, ValueError), open("/proc/pressure/cpu") as file:
        return int(file.readline().rpartition("total=")[2]) / 1e6
    return None
