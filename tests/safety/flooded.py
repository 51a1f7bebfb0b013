"""A process of its own that is flooded with connections which send megabytes and prove nothing: how much does it grow?

`python -m tests.safety.flooded` prints the growth at each door in MiB, and what was refused there.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Callable
from mmap import PAGESIZE
from pathlib import Path

import zmq

from tests.safety.members import two
from tests.safety.test_strangers import Board, greeting

LARGE = 1_040_000  # bytes: less than any door would refuse at once

STRANGERS = """
import select, socket, struct, sys, time
port, size, greeting = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
lines = {}
for _ in range(180):
    line = socket.create_connection(("127.0.0.1", port))
    line.setblocking(False)
    line.send(greeting + b"\\x06" + struct.pack(">Q", size))
    lines[line] = size - 1  # the last byte never comes
begin = moved = time.monotonic()
while lines and time.monotonic() < min(begin + 3, moved + 0.7):
    for line in select.select([], [line for line in lines if lines[line]], [], 0.1)[1]:
        moved = time.monotonic()
        try:
            lines[line] -= line.send(bytes(min(65536, lines[line])))
        except OSError:
            del lines[line]
"""


def resident() -> float:
    """MiB of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE / 2**20


def growth(endpoint: str, size: int, work: Callable[[], object], mechanism: bytes = b"CURVE") -> float:
    """By how much this process grows at most while its door is flooded with commands of this size."""
    ctypes.CDLL(None).malloc_trim(0)  # else what an earlier flood left could be filled again unseen
    before = most = resident()
    port = endpoint.rpartition(":")[2]
    strangers = subprocess.Popen([sys.executable, "-c", STRANGERS, port, str(size), greeting(mechanism).hex()])
    while strangers.poll() is None:
        work()
        most = max(most, resident())
        time.sleep(0.002)
    return most - before


def main() -> None:
    found: dict[str, tuple[float, dict[str, int]]] = {}
    for insecure in (False, True):
        named, mechanism = (" without keys", b"NULL") if insecure else ("", b"CURVE")
        with two(insecure=insecure) as pair:
            pair.exchange(3)
            grown = growth(pair.b.endpoint, LARGE, lambda: (pair.a.poll(0), pair.b.poll(0)), mechanism)
            found["role" + named] = grown, dict(pair.b.refusals.counts)
            pair.exchange(3, 100)
        with zmq.Context() as context:
            board = Board(context, insecure)
            for name, endpoint in (("launcher", board.control.endpoint), ("sites", board.gate.endpoint)):
                board.guard.refusals.counts.clear()
                grown = growth(endpoint, LARGE, board.look, mechanism)
                found[name + named] = grown, dict(board.guard.refusals.counts)
            board.gate.close()
            context.destroy(0)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
