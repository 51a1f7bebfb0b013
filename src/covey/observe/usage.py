"""What the roles of a real run use: cores, memory, threads, network, over time."""

from __future__ import annotations

import os
import time

import msgspec

from covey.message import Address

EVERY = 0.25  # seconds of training between two rows, at first
ROWS = 400  # more than this, and every second one goes

Row = dict[str, float]
"""What all roles together used: seconds, cpu (cores), memory (bytes), threads, network (bytes per second)."""


class Use(msgspec.Struct, frozen=True):
    """What one process uses: seconds of CPU since it began, bytes of memory and threads now."""

    cpu: float
    memory: int
    threads: int


def own() -> Use:
    """What this process uses."""
    with open("/proc/self/statm", "rb") as file:
        pages = int(file.read().split()[1])
    return Use(time.process_time(), pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/task")))


class Meter:
    """The uses of all roles, put together into rows."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.last: dict[Address, Use] = {}
        self.every = EVERY
        self.before: tuple[float, float, int] | None = None  # seconds, CPU seconds, bytes

    def note(self, who: Address, use: Use) -> None:
        self.last[who] = use

    def read(self, seconds: float, sent: int, roles: int) -> None:
        """Add a row, if one is due and every role was heard."""
        if len(self.last) < roles or (self.before and seconds - self.before[0] < self.every):
            return
        uses = self.last.values()
        cpu = sum(use.cpu for use in uses)
        if self.before:
            begin, cpu_then, sent_then = self.before
            passed = seconds - begin
            self.rows.append(
                {
                    "seconds": seconds,
                    "cpu": (cpu - cpu_then) / passed,
                    "memory": sum(use.memory for use in uses),
                    "threads": sum(use.threads for use in uses),
                    "network": (sent - sent_then) / passed,
                }
            )
        self.before = (seconds, cpu, sent)
        if len(self.rows) > ROWS:
            self.rows, self.every = self.rows[1::2], 2 * self.every
