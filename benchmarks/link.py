"""How much of a link does covey use: a push and a pull of 100 MB, and rings that sum 100 MB, between hosts at 1 Gbit/s?

The hosts are those of a lab, whose links are shaped; bytes of tensors are counted, so some 95 % of a link is all that
TCP leaves in frames of 1514 bytes. covey's links with CURVE, with --cipher and with --insecure, and Gloo over the same
links, take turns. All share the cores of this machine, which encrypt for all hosts. Root: `python -m benchmarks.link`;
a rate and cases may follow, such as `250mbit "ring of 4"`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.push_pull import Pull, Push
from covey.engines.lab import iproute
from covey.engines.lab.fork_server import enter
from covey.engines.lab.networks import DATA
from covey.engines.lab.trial_lab import bare
from covey.engines.mailbox import Mailbox
from covey.engines.process.role.allocator import keep_memory
from covey.engines.transport.keys import KeyRing, new_pair
from covey.engines.transport.keys import Pair as Keys
from covey.engines.transport.landing import placed
from covey.engines.transport.zmq import ZmqTransport
from covey.exchange.collectives.sums import ring
from covey.message import Address, check_finite
from covey.program import Effect, Node, Receive, Send
from covey.simulate.units import BytesPerSecond, parse_rate
from covey.strategy import workers
from covey.vector import Vector

NUMBERS = 25_000_000  # float32: 100 MB
RATE = BytesPerSecond(125e6)
CIPHER = "aes-256-gcm"
PORTS = {"encrypted": 7000, "cipher": 7300, "insecure": 7100, "gloo": 7200}
CASES = {"push + pull": 2, "ring of 2": 2, "ring of 4": 4}  # hosts that take part


class Setting(NamedTuple):
    """Where the hosts of a team are, what they do, and their keys if they have any."""

    case: str
    spaces: Sequence[str]
    net: str
    port: int
    keys: dict[Address, Keys]
    cipher: str


class Post:
    """Performs a program's sends and receives over real links, as a role's driver does."""

    def __init__(self, setting: Setting, rank: int) -> None:
        self.group = workers(len(setting.spaces))
        self.me = self.group[rank]
        book = {who: f"tcp://{setting.net}.{who.rank + 1}:{setting.port + who.rank}" for who in self.group}
        public = {who: pair.public for who, pair in setting.keys.items()}
        ring = KeyRing(setting.keys[self.me], public) if setting.keys else None
        self.links = ZmqTransport(self.me, book, limit=1 << 30, key_ring=ring, cipher=setting.cipher)
        self.links.waives = lambda sender: True  # as a role that waits for more: what is unread does not count
        self.mailbox = Mailbox(self.links.taken)
        self.node = Node(self.me, [None] * len(self.group), None, random.Random(0), 0)  # type: ignore[arg-type]

    def run(self, program: Coroutine[Effect[Any], Any, None]) -> None:
        value = None
        while True:
            try:
                effect = program.send(value)
            except StopIteration:
                return
            value = None if isinstance(effect, Send) else self.receive(effect)
            if isinstance(effect, Send):
                self.send(effect)

    def send(self, effect: Send) -> None:
        effect.body.sender = self.me
        self.links.offer(effect.to, effect.body, loan=effect.loan, priority=effect.priority)
        while not self.links.room(effect.to):
            self.listen()

    def receive(self, effect: Any) -> Any:
        assert isinstance(effect, Receive)
        message = self.mailbox.take(effect)
        if message is None:
            self.links.expect(effect)
            while (message := self.mailbox.take(effect)) is None:
                self.listen()
            self.links.forget(effect)
        return placed(message, effect)

    def listen(self) -> None:
        for message in self.links.poll(1.0)[0]:
            check_finite(message, self.me)
            self.mailbox.put(message)
        self.links.waive()


def covey_member(setting: Setting, rank: int, turns: Connection) -> None:
    enter(setting.spaces[rank])
    torch.set_num_threads(1)
    keep_memory()
    post = Post(setting, rank)
    mine, theirs = Vector([torch.ones(NUMBERS)]), Vector([torch.empty(NUMBERS)])

    async def exchange() -> None:
        """The first is the server, which adds what is pushed, and gives the sum back."""
        server, worker = post.group
        if post.me == server:
            await post.node.receive(Push, into=theirs)
            mine.add_(theirs)
            await post.node.send(worker, Pull(weights=mine), loan=True)
        else:
            await post.node.send(server, Push(grad=mine), loan=True)
            await post.node.receive(Pull, into=theirs)

    def step() -> None:
        post.run(exchange() if setting.case == "push + pull" else ring(post.node, mine, tuple(post.group)))
        while any(link.stuck or link.outbox.pending for link in post.links.links.values()):
            post.listen()

    take_turns(step, lambda: mine.parts[0].fill_(1.0), turns)
    post.links.close(linger=1.0)


def gloo_member(setting: Setting, rank: int, turns: Connection) -> None:
    from torch import distributed

    enter(setting.spaces[rank])
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = DATA
    address, size = f"tcp://{setting.net}.1:{setting.port}", len(setting.spaces)
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    mine, theirs = torch.ones(NUMBERS), torch.empty(NUMBERS)

    def exchange() -> None:
        if rank == 0:
            distributed.recv(theirs, 1)
            distributed.send(mine.add_(theirs), 1)
        else:
            distributed.send(mine, 0)
            distributed.recv(theirs, 0)

    step = exchange if setting.case == "push + pull" else lambda: distributed.all_reduce(mine)
    take_turns(step, lambda: mine.fill_(1.0), turns)
    distributed.destroy_process_group()


def take_turns(step: Callable[[], object], again: Callable[[], Tensor], turns: Connection) -> None:
    """Whenever asked, do one step, and tell how long it took and how much CPU time."""
    while turns.recv():
        again()
        begin, busy = time.perf_counter(), time.process_time()
        step()
        turns.send((time.perf_counter() - begin, time.process_time() - busy))


class Team:
    """Members on hosts of their own."""

    def __init__(self, member: Callable[[Setting, int, Connection], None], setting: Setting) -> None:
        spawn = multiprocessing.get_context("spawn")
        lines = [spawn.Pipe() for _ in setting.spaces]
        self.turns = [ours for ours, _ in lines]
        self.processes = [
            spawn.Process(target=member, args=(setting, rank, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(lines)
        ]
        for process in self.processes:
            process.start()

    def step(self) -> tuple[float, float]:
        """Seconds of whoever took longest, and CPU seconds of all."""
        for line in self.turns:
            line.send(True)
        taken = [line.recv() for line in self.turns]
        return max(wall for wall, _ in taken), sum(cpu for _, cpu in taken)

    def stop(self) -> None:
        for line in self.turns:
            line.send(False)
        for process in self.processes:
            process.join(10)


def one_way(case: str) -> float:
    """Bytes that must pass one after the other: there and back, or 2 (n-1) / n of a vector around a ring."""
    size = CASES[case]
    return NUMBERS * 4 * (2 if case == "push + pull" else 2 * (size - 1) / size)


def measure(
    rounds: int = 3, warm_up: int = 1, cases: Sequence[str] = tuple(CASES), rate: BytesPerSecond = RATE
) -> dict[str, Any]:  # fmt: skip
    """For each case and team: the share of the link that it used (median, least, most), seconds, and CPU seconds."""
    if missing := iproute.missing():
        return {"skipped": missing}
    found: dict[str, Any] = {}
    for case in cases:
        with bare([rate] * CASES[case]) as (lab, nets):
            spaces = [lab.name.host(f"h{number}") for number in range(CASES[case])]
            teams = {}
            for kind, port in PORTS.items():
                locked = kind in ("encrypted", "cipher")
                keys = {who: new_pair() for who in workers(len(spaces))} if locked else {}
                setting = Setting(case, spaces, nets.data, port, keys, CIPHER if kind == "cipher" else "")
                teams[kind] = Team(gloo_member if kind == "gloo" else covey_member, setting)
            taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in teams}
            for _ in range(warm_up + rounds):
                for kind, team in teams.items():
                    taken[kind].append(team.step())
            for team in teams.values():
                team.stop()
        found[case] = {kind: _told(one_way(case) / rate, times[warm_up:]) for kind, times in taken.items()}
    return found


def _told(least: float, times: Sequence[tuple[float, float]]) -> dict[str, Any]:
    shares = [least / wall for wall, _ in times]
    return {
        "share": [statistics.median(shares), min(shares), max(shares)],
        "seconds": statistics.median(wall for wall, _ in times), "cpu": statistics.median(cpu for _, cpu in times),
    }  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """What was found, for people."""
    lines = [f"{'':12} {'links':10} {'of the link':>12} {'(least, most)':>16} {'seconds':>8} {'CPU':>6}"]
    for case, kinds in found.items():
        for kind, told in kinds.items():
            share, least, most = (f"{part:.1%}" for part in told["share"])
            spread = f"({least}, {most})"
            lines.append(f"{case:12} {kind:10} {share:>12} {spread:>16} {told['seconds']:8.2f} {told['cpu']:6.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    result = measure(rate=parse_rate(sys.argv[1]) if len(sys.argv) > 1 else RATE, cases=sys.argv[2:] or tuple(CASES))
    print(json.dumps(result, indent=2) if "skipped" in result else table(result))
