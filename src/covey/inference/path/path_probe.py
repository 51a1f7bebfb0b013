"""Clients that ask an endpoint of this machine, few or many at a time, and what its processes use meanwhile."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from covey.engines.process.liveness import children
from covey.errors import PeerLost
from covey.inference.path.path_costs import PathCosts, ProbePhase, costs_of

PHASES = ((1, 600), (2, 600), (4, 600), (16, 800), (64, 1000))  # clients at a time, and requests of all
WARM_UP = 100  # requests before each phase
PATIENCE = 30.0  # seconds for an answer
CHUNK = 1 << 16
NANO = 1e-9


class PathProbe:
    """Asks an endpoint of this machine.

    Args:
        port: Of the endpoint, on 127.0.0.1.
        front: The process number of its front.
        body: What to ask, again and again.
    """

    def __init__(self, port: int, front: int, body: bytes) -> None:
        self._port, self._front = port, front
        lines = ["POST /predict HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
        self._asked = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
        self._replicas = [one for server in children(front) for one in children(server)]

    def costs(self, model: Callable[[int], float], threads: int, stages: int) -> PathCosts:
        """What requests cost beside the model, which takes so many seconds on its threads for a batch of this size."""
        return costs_of([self.phase(clients, requests) for clients, requests in PHASES], model, threads, stages)

    def phase(self, clients: int, requests: int) -> ProbePhase:
        """Let so many clients ask, each again as soon as it is answered, until there are so many answers."""
        with ExitStack() as stack:
            links = [stack.enter_context(self._link()) for _ in range(clients)]
            self._ask(links, WARM_UP)
            batches, before = self._batches(), self._used()
            seconds = self._ask(links, requests)
            used = [after - begin for begin, after in zip(before, self._used(), strict=True)]
            front, replica, client = used
            return ProbePhase(
                requests=len(seconds), batches=self._batches() - batches, front=front, replica=replica, client=client,
                seconds=tuple(seconds),
            )  # fmt: skip

    def _used(self) -> tuple[float, float, float]:
        """Seconds of CPU time of the front, of the replicas, and of this thread."""
        return cpu_seconds(self._front), sum(map(cpu_seconds, self._replicas)), time.thread_time()

    def _ask(self, links: Sequence[socket.socket], requests: int) -> list[float]:
        """How long each of so many answers took."""
        took: list[float] = []
        poll, by_number = select.poll(), {link.fileno(): link for link in links}
        begun: dict[int, float] = {}
        for number, link in by_number.items():
            poll.register(link, select.POLLIN)
            begun[number] = time.perf_counter()
            link.sendall(self._asked)
        while begun:
            if not (ready := poll.poll(PATIENCE * 1e3)):
                raise PeerLost(f"the endpoint that is measured did not answer within {PATIENCE:g} s")
            for number, _ in ready:
                status, told = answered(by_number[number])
                if status != 200:
                    raise PeerLost(f"the endpoint that is measured answered {status}: {told[:200]!r}")
                took.append(time.perf_counter() - begun.pop(number))
                if len(took) + len(begun) < requests:
                    begun[number] = time.perf_counter()
                    by_number[number].sendall(self._asked)
        return took

    def _batches(self) -> int:
        with self._link() as link:
            link.sendall(b"GET /stats HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            told: dict[str, Any] = json.loads(answered(link)[1])
            return int(told["batches"])

    def _link(self) -> socket.socket:
        link = socket.create_connection(("127.0.0.1", self._port), PATIENCE)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link


def answered(link: socket.socket) -> tuple[int, bytes]:
    """The status and the body of the next answer."""
    data = _until(link, b"", lambda data: b"\r\n\r\n" in data)
    head, _, body = data.partition(b"\r\n\r\n")
    size = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(head.split(b" ", 2)[1]), _until(link, body, lambda data: len(data) >= size)


def _until(link: socket.socket, data: bytes, complete: Callable[[bytes], bool]) -> bytes:
    while not complete(data):
        if not (more := link.recv(CHUNK)):
            raise PeerLost("the endpoint that is measured has hung up")
        data += more
    return data


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, of all its threads (proc(5): nanoseconds)."""
    return NANO * sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
