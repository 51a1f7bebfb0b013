"""How long does a sum over the processes of one machine take: covey's shared memory against Gloo and Open MPI?

Teams of 2 and of 4 processes of each kind take turns, so all see the same machine. `python -m benchmarks.all_reduce`
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import torch

from benchmarks.push_pull import free_port
from covey.engines.process.role.allocator import keep_memory
from covey.engines.process.role.shared_sum import SharedSum
from covey.engines.transport.shared import segment as shared_segment
from covey.engines.transport.shared.memory import HostMemory
from covey.engines.transport.zmq import ZmqTransport
from covey.exchange.collectives.sums import ring
from covey.message import Address
from covey.program import Collective
from covey.vector import Vector

SIZES = {"64 KB": 1 << 14, "1 MB": 1 << 18, "10 MB": 2_500_000, "100 MB": 25_000_000}  # of float32
REPEAT = {"64 KB": 50, "1 MB": 20, "10 MB": 6, "100 MB": 2}  # sums in one turn
Sum = Callable[[torch.Tensor], None]


def work(turns: Connection, sum_up: Sum, place: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Whenever told a size, sum a vector of it a few times, and tell the seconds of one sum; sums are checked."""
    vectors = {name: place(torch.empty(numbers)) for name, numbers in SIZES.items()}
    while name := turns.recv():
        vector = vectors[name]
        vector.fill_(1.0)
        sum_up(vector)  # brings all together
        size = vector[-1].item()
        begin = time.perf_counter()
        for _ in range(REPEAT[name]):
            sum_up(vector)
        seconds = (time.perf_counter() - begin) / REPEAT[name]
        assert vector[0] == vector[-1] == size ** (1 + REPEAT[name]) or not vector[0].isfinite()
        turns.send(seconds)


def covey_member(rank: int, size: int, place: str, turns: Connection) -> None:
    torch.set_num_threads(1)
    keep_memory()
    group = tuple(Address("worker", other) for other in range(size))
    me = group[rank]
    memory = HostMemory(me, shared_segment.SEGMENT[0])
    book = {role: f"ipc://{place}/{role.rank}" for role in group}
    links, sums = ZmqTransport(me, book, limit=1 << 30, memory=memory), SharedSum(me, memory)

    def sum_up(vector: torch.Tensor) -> None:
        assert sums.take(None, Collective(Vector([vector]), group, ring))
        while not sums.advance():
            links.poll(0.1)

    work(turns, sum_up, lambda vector: memory.blocks.house(Vector([vector])).parts[0])
    links.close()


def gloo_member(rank: int, size: int, port: int, turns: Connection) -> None:
    from torch import distributed

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    work(turns, distributed.all_reduce, lambda vector: vector)
    distributed.destroy_process_group()


def mpi_member(place: str) -> None:
    """A rank under mpirun."""
    from mpi4py import MPI

    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    with Client(f"{place}/{world.rank}") as turns:
        work(turns, lambda vector: world.Allreduce(MPI.IN_PLACE, vector.numpy()), lambda vector: vector)


class Team:
    """Processes that sum together."""

    def __init__(self, turns: list[Connection], close: Callable[[], None]) -> None:
        self.turns, self._close = turns, close

    def step(self, name: str) -> float:
        """Seconds of one sum, of whoever took longest."""
        for line in self.turns:
            line.send(name)
        return max(float(line.recv()) for line in self.turns)

    def stop(self) -> None:
        for line in self.turns:
            line.send("")
        self._close()


def forked(size: int, member: Callable[[int, int, Connection], None]) -> Team:
    fork = multiprocessing.get_context("fork")
    lines = [fork.Pipe() for _ in range(size)]
    processes = [fork.Process(target=member, args=(rank, size, lines[rank][1]), daemon=True) for rank in range(size)]
    for process in processes:
        process.start()

    def close() -> None:
        for process in processes:
            process.join(30)

    return Team([ours for ours, _ in lines], close)


def covey_team(size: int, place: str) -> Team:
    shared_segment.SEGMENT.clear()
    shared_segment.create([Address("worker", rank) for rank in range(size)])
    return forked(size, lambda rank, size, turns: covey_member(rank, size, place, turns))


def gloo_team(size: int) -> Team:
    port = free_port()
    return forked(size, lambda rank, size, turns: gloo_member(rank, size, port, turns))


def mpi_team(size: int, place: str) -> Team:
    """With shared memory, as Open MPI chooses by itself on one machine."""
    doors = [Listener(f"{place}/{rank}") for rank in range(size)]
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert mpirun, "Open MPI is part of covey's extra `mpi`"
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-n", str(size), sys.executable, "-m"]
    running = subprocess.Popen([*command, "benchmarks.all_reduce", "mpi", place], stdin=subprocess.DEVNULL)
    return Team([door.accept() for door in doors], lambda: running.wait(30) and None)


def measure(rounds: int = 7, warm_up: int = 2, processes: tuple[int, ...] = (2, 4)) -> dict[str, Any]:
    """Median seconds of a sum, by size and team, and covey's as a ratio to the others'."""
    found: dict[str, Any] = {}
    for size in processes:
        with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
            teams = {"covey": covey_team(size, ours), "gloo": gloo_team(size), "mpi": mpi_team(size, theirs)}
            for name in SIZES:
                times = {team: [teams[team].step(name) for _ in range(warm_up)] for team in teams}
                for _ in range(rounds):
                    for team, members in teams.items():
                        times[team].append(members.step(name))
                median = {team: statistics.median(taken[warm_up:]) for team, taken in times.items()}
                ratios = {team: median["covey"] / median[team] for team in ("gloo", "mpi")}
                found[f"{name}, {size} processes"] = {"seconds": median, "ratio": ratios}
            for team in teams.values():
                team.stop()
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["mpi"]:
        mpi_member(sys.argv[2])
    else:
        print(json.dumps(measure(), indent=2))
