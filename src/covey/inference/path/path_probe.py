"""Clients that ask an endpoint of this machine, few or many at a time, and what its processes use meanwhile."""

from __future__ import annotations

import json
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from covey.engines.process.liveness import children
from covey.errors import PeerLost
from covey.inference.path.path_costs import ProbedLoad, ProbePhase

PHASES = ((1, 600), (2, 600), (4, 600), (16, 800), (64, 1000))  # clients at a time, and requests of all
WARM_UP = 100  # requests before each phase
LINKS = 64  # connections of requests that come at times of their own
PATIENCE = 30.0  # seconds for an answer
SILENT = f"the endpoint that is measured did not answer within {PATIENCE:g} s"
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

    def phases(self) -> list[ProbePhase]:
        """What is seen while one client asks, and then while more and more do."""
        return [self.phase(clients, requests) for clients, requests in PHASES]

    def at_rate(self, rate: float, seconds: float, seed: int) -> ProbedLoad:
        """Ask at random times, so often in a second on average, whether or not earlier requests were answered."""
        chance, due = Random(seed), [0.0]
        while due[-1] < seconds:
            due.append(due[-1] + chance.expovariate(rate))
        begun: dict[int, float] = {}
        took: list[tuple[float, float]] = []  # when each was asked, and how long it took
        with ExitStack() as stack:
            links = {link.fileno(): link for link in (stack.enter_context(self._link()) for _ in range(LINKS))}
            poll, idle = stack.enter_context(select.epoll()), list(links)
            for number in links:
                poll.register(number, select.EPOLLIN)
            used, start = time.thread_time(), time.perf_counter()
            waiting = deque(due)
            while waiting or begun:
                while waiting and idle and waiting[0] <= time.perf_counter() - start:
                    waiting.popleft()
                    begun[idle[-1]] = time.perf_counter() - start
                    links[idle.pop()].sendall(self._asked)
                pause = max(0.0, waiting[0] + start - time.perf_counter()) if waiting and idle else PATIENCE
                ready = poll.poll(pause)
                if not ready and pause == PATIENCE:
                    raise PeerLost(SILENT)
                for number, _ in ready:
                    self._expect_answer(links[number])
                    asked = begun.pop(number)
                    took.append((asked, time.perf_counter() - start - asked))
                    idle.append(number)
            used = time.thread_time() - used
        arrivals, times = zip(*sorted(took), strict=True)
        return ProbedLoad(arrivals=arrivals, seconds=times, client=used / len(took))

    def phase(self, clients: int, requests: int) -> ProbePhase:
        """Let so many clients ask, each again as soon as it is answered, until there are so many answers."""
        with ExitStack() as stack:
            links = [stack.enter_context(self._link()) for _ in range(clients)]
            self._ask(links, WARM_UP)
            batches, before, begin = self._batches(), self._used(), time.perf_counter()
            seconds = self._ask(links, requests)
            lasted = time.perf_counter() - begin
            used = [after - begin for begin, after in zip(before, self._used(), strict=True)]
            front, replica, client = used
            return ProbePhase(
                requests=len(seconds), batches=self._batches() - batches, front=front, replica=replica, client=client,
                seconds=tuple(seconds), rate=len(seconds) / lasted,
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
                raise PeerLost(SILENT)
            for number, _ in ready:
                self._expect_answer(by_number[number])
                took.append(time.perf_counter() - begun.pop(number))
                if len(took) + len(begun) < requests:
                    begun[number] = time.perf_counter()
                    by_number[number].sendall(self._asked)
        return took

    def _expect_answer(self, link: socket.socket) -> None:
        status, told = answered(link)
        if status != 200:
            raise PeerLost(f"the endpoint that is measured answered {status}: {told[:200]!r}")

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
