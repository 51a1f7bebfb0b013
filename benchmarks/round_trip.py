"""How long is a small message on its way there and back between two roles of one machine, in a warm loop?

Four pairs of processes take turns: covey's links as roles use them, bare ZeroMQ sockets of the same kind, a pipe of
Python's, and a word in shared memory at which both look all the time. `python -m benchmarks.round_trip`
"""

from __future__ import annotations

import json
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any

import torch
import zmq

from benchmarks.all_reduce import Team, forked
from covey.engines.transport.shared import segment as shared_segment
from covey.engines.transport.shared.memory import HostMemory
from covey.engines.transport.shared.semaphore import SIZE, Semaphore
from covey.engines.transport.zmq import ZmqTransport
from covey.message import Address, Message

REPEAT = 500  # round trips in one turn
Way = tuple[Callable[[], None], Callable[[], None]]
"""How to send the message, and how to wait for the other's."""


class Ball(Message):
    """A message that goes to and fro."""

    wire_name = "benchmark.round_trip.ball"

    step: int


def play(rank: int, turns: Connection, send: Callable[[], None], receive: Callable[[], None]) -> None:
    """Whenever told so, send and receive, or receive and send; tell the seconds of a round trip."""
    torch.set_num_threads(1)
    while turns.recv():
        begin = time.perf_counter()
        for _ in range(REPEAT):
            for act in (send, receive) if rank == 0 else (receive, send):
                act()
        turns.send((time.perf_counter() - begin) / REPEAT)
    os._exit(0)  # sockets that were never closed would be waited for


def roles(place: str) -> Callable[[int], Way]:
    """Covey's links between roles that share memory."""
    group = tuple(Address("worker", rank) for rank in range(2))
    shared_segment.SEGMENT.clear()
    shared_segment.create(group)

    def way(rank: int) -> Way:
        me, peer = group[rank], group[1 - rank]
        book = {role: f"ipc://{place}/{role.rank}" for role in group}
        links = ZmqTransport(me, book, limit=1 << 20, memory=HostMemory(me, shared_segment.SEGMENT[0]))

        def receive() -> None:
            while not (messages := links.poll(0.1)[0]):
                pass
            links.taken(messages[0])

        return lambda: links.offer(peer, Ball(1, sender=me)) and None, receive

    return way


def sockets(place: str) -> Callable[[int], Way]:
    """What ZeroMQ alone takes."""

    def way(rank: int) -> Way:
        context = zmq.Context()
        here, there = context.socket(zmq.PULL), context.socket(zmq.PUSH)
        here.bind(f"ipc://{place}/bare{rank}")
        there.connect(f"ipc://{place}/bare{1 - rank}")
        return lambda: there.send(b"ball"), lambda: here.recv() and None

    return way


def pipes() -> Callable[[int], Way]:
    ends = Pipe()
    return lambda rank: (lambda: ends[rank].send_bytes(b"ball"), lambda: ends[rank].recv_bytes() and None)


def words() -> Callable[[int], Way]:
    """Nobody sleeps: what two processes of Python can reach at best."""
    memory = mmap.mmap(-1, 2 * SIZE)
    signs = [Semaphore(memory, 0), Semaphore(memory, SIZE)]
    for sign in signs:
        sign.clear()

    def way(rank: int) -> Way:
        mine, other = signs[rank], signs[1 - rank]

        def receive() -> None:
            while not mine.take():
                pass

        return other.give, receive

    return way


def team(way: Callable[[int], Way]) -> Team:
    return forked(2, lambda rank, _, turns: play(rank, turns, *way(rank)))


def measure(rounds: int = 7, warm_up: int = 2) -> dict[str, Any]:
    """Median microseconds of a round trip of each kind, and the fastest and slowest turn."""
    with tempfile.TemporaryDirectory() as place:
        made = {"roles": roles(place), "zeromq": sockets(place), "pipe": pipes(), "shared word": words()}
        teams = {name: team(way) for name, way in made.items()}
        times: dict[str, list[float]] = {name: [] for name in teams}
        for _ in range(warm_up + rounds):
            for name, members in teams.items():
                times[name].append(round(1e6 * members.step("play"), 1))
        for members in teams.values():
            members.stop()
    kept = {name: sorted(taken[warm_up:]) for name, taken in times.items()}
    return {name: [statistics.median(taken), taken[0], taken[-1]] for name, taken in kept.items()}


if __name__ == "__main__":
    print(json.dumps(measure()))
