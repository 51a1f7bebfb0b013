"""What does encryption cost: covey's links with CURVE, as they are between hosts, against the same with --insecure?

Two hosts of a lab, joined at 1 Gbit/s and unshaped; a push, an addition and a pull of 100 MB, and a small message there
and back. The two kinds of links take turns, so both see the same machine. Root: `python -m benchmarks.encryption`
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from benchmarks.push_pull import SERVER, WORKER, Bye, Pair, Pull, Push, receive
from covey.engines.lab import iproute
from covey.engines.lab.fork_server import enter
from covey.engines.lab.trial_lab import bare
from covey.engines.process.role.allocator import keep_memory
from covey.engines.transport.keys import KeyRing, new_pair
from covey.engines.transport.keys import Pair as Keys
from covey.engines.transport.zmq import ZmqTransport
from covey.message import Address
from covey.simulate.units import BytesPerSecond
from covey.vector import Vector

BIG, SMALL = 25_000_000, 16  # float32: 100 MB, and what travels in one frame with its header
TURNS = 200  # small messages there and back, in one measurement
LINKS: Mapping[str, BytesPerSecond | None] = {"1 Gbit/s": BytesPerSecond(125e6), "unshaped": None}
SERVER_AT, WORKER_AT = 0, 1  # the hosts


class Setting(NamedTuple):
    """Where the two find each other, how much they send, and their keys if they have any."""

    spaces: tuple[str, str]
    book: dict[Address, str]
    numbers: int
    turns: int
    keys: dict[Address, Keys]


def ready(setting: Setting, me: Address, host: int) -> ZmqTransport:
    enter(setting.spaces[host])
    torch.set_num_threads(1)
    keep_memory()
    public = {who: pair.public for who, pair in setting.keys.items()}
    ring = KeyRing(setting.keys[me], public) if setting.keys else None
    return ZmqTransport(me, setting.book, limit=1 << 30, key_ring=ring)


def serve(setting: Setting) -> None:
    """Add each push, and answer with the sum."""
    transport = ready(setting, SERVER, SERVER_AT)
    weights, grad = Vector([torch.zeros(setting.numbers)]), Vector([torch.empty(setting.numbers)])
    while isinstance(receive(transport, Push, grad), Push):
        weights.add_(grad)
        transport.offer(WORKER, Pull(sender=SERVER, weights=weights), loan=True)
    transport.close()


def work(setting: Setting, asked: Connection) -> None:
    transport = ready(setting, WORKER, WORKER_AT)
    weights, grad = Vector([torch.empty(setting.numbers)]), Vector([torch.ones(setting.numbers)])
    while asked.recv():
        begin, busy = time.perf_counter(), time.process_time()
        for _ in range(setting.turns):
            transport.offer(SERVER, Push(sender=WORKER, grad=grad), loan=True)
            receive(transport, Pull, weights)
        wall, cpu = time.perf_counter() - begin, time.process_time() - busy
        asked.send((wall / setting.turns, cpu / setting.turns))
    transport.offer(SERVER, Bye(sender=WORKER))
    transport.close(linger=5.0)


def measure(rounds: int = 5, warm_up: int = 2) -> dict[str, Any]:
    """Median seconds and CPU seconds of an exchange, encrypted and not, and their ratio."""
    if missing := iproute.missing():
        return {"skipped": missing}
    found: dict[str, Any] = {}
    for link, rate in LINKS.items():
        with bare([rate, rate]) as (lab, nets):
            spaces = (lab.name.host("h0"), lab.name.host("h1"))
            for what, numbers, turns in (("100 MB", BIG, 1), ("64 B", SMALL, TURNS)):
                found[f"{what}, {link}"] = _compared(spaces, nets.data, numbers, turns, rounds, warm_up)
    return found


def _compared(
    spaces: tuple[str, str], net: str, numbers: int, turns: int, rounds: int, warm_up: int
) -> dict[str, Any]:  # fmt: skip
    pairs = {}
    for port, kind in enumerate(("encrypted", "insecure"), 7000):
        book = {SERVER: f"tcp://{net}.{SERVER_AT + 1}:{port}", WORKER: f"tcp://{net}.{WORKER_AT + 1}:{port}"}
        keys = {who: new_pair() for who in book} if kind == "encrypted" else {}
        setting = Setting(spaces, book, numbers, turns, keys)
        pairs[kind] = Pair(partial(work, setting), partial(serve, setting))
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in pairs}
    for _ in range(warm_up + rounds):
        for kind, pair in pairs.items():
            pair.turns.send(True)
            taken[kind].append(pair.turns.recv())
    for pair in pairs.values():
        pair.stop()
    found = {}
    for column, unit in enumerate(("seconds", "cpu")):  # the second is of the worker alone, and minds no other load
        median = {kind: statistics.median(each[column] for each in taken[kind][warm_up:]) for kind in taken}
        found[unit] = {**median, "ratio": median["encrypted"] / median["insecure"]}
    return found


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
