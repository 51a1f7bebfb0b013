"""The hosts of a race: a lab with shaped links and a share of the cores each, and a peer's processes on them."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.courses import FASHION, Course
from covey.engines.lab import quota, settings
from covey.engines.lab.networks import Networks
from covey.engines.lab.running import Lab
from covey.engines.lab.trial_lab import bare
from covey.model import build
from covey.simulate import parse_rate

ROOT = Path(__file__).parents[2]
HOSTS, SLOWER = 4, 4  # how many hosts, and how many times slower the slow one is
START = 120.0  # seconds until everybody must be ready


@dataclass(frozen=True)
class Cell:
    """What is trained on which cluster: the rate of links, a host's cores, and if the last has a quarter of that."""

    rate: str
    slow: bool = False
    cpu: float = 0.45
    course: Course = FASHION

    def __str__(self) -> str:
        course = "" if self.course is FASHION else f", {self.course.name}"
        return f"{self.rate}{course}{', one slow' if self.slow else ''}"

    @property
    def shares(self) -> list[float]:
        return [self.cpu / SLOWER if self.slow and host == HOSTS - 1 else self.cpu for host in range(HOSTS)]

    @property
    def cpus(self) -> str:
        return ",".join(f"{share:.4g}" for share in self.shares)

    @property
    def engine(self) -> str:
        return f'lab(hosts={HOSTS}, rate={self.rate}, cpu="{self.cpus}")'

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return float(parse_rate(self.rate))


@dataclass
class Finish:
    """How a run went: its time to the target, or where it was broken off."""

    seconds: float
    samples: int
    sent: float  # bytes, by the busiest host
    score: float  # the last one
    reached: bool
    why: str = ""  # it did not reach it
    parts: dict[str, float] = field(default_factory=dict)  # of the seconds, where they were added up
    curve: list[tuple[float, int, float]] = field(default_factory=list)  # seconds, samples and value at each score
    machine: dict[str, float] = field(default_factory=dict)  # what others did with it meanwhile


@dataclass(frozen=True)
class Peer:
    """A script of this folder, what it is told, and the package that it needs."""

    script: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: str = "torch"
    hosts: int = HOSTS

    def installed(self, python: str) -> bool:
        return subprocess.run([python, "-c", f"import {self.needs}"], capture_output=True, check=False).returncode == 0


def race(peer: Peer, cell: Cell, seed: int, limit: float, python: str = sys.executable) -> Finish:
    """A peer on the hosts of a cell, until it reaches the target or has trained for so many seconds."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, hosts(cell, peer.hosts) as (lab, nets, groups):
        team = Team(Path(folder), lab, groups, cell.course)
        addresses = [f"{nets.data}.{rank + 1}" for rank in range(peer.hosts)]
        try:
            for rank, address in enumerate(addresses):
                given = {
                    "rank": rank, "size": HOSTS, "seed": seed, "address": address, "first": addresses[0],
                    "folder": folder, "course": cell.course.file, "settings": dict(peer.settings),
                }  # fmt: skip
                team.start([python, "-m", f"benchmarks.peers.{peer.script}", json.dumps(given)])
            team.gather()
            for group, share in zip(groups, cell.shares, strict=False):
                quota.limit(group, share)
            return team.lead(seed, limit)
        except Lost as lost:
            return Finish(float("inf"), 0, 0.0, 0.0, False, str(lost))
        finally:
            team.end()


@contextmanager
def hosts(cell: Cell, count: int) -> Iterator[tuple[Lab, Networks, list[Path]]]:
    wanted = settings.read(count, hosts=count, rate=cell.rate)
    with bare(wanted.rates) as (lab, nets):
        yield lab, nets, list(quota.make(str(lab.name), wanted.hosts, quota.groups()).values())


class Lost(Exception):
    """A peer's process ended, or said nothing for too long."""


class Team:
    """The processes of a peer, one on each host."""

    def __init__(self, folder: Path, lab: Lab, groups: Sequence[Path], course: Course) -> None:
        self.folder, self.lab, self.groups, self.course = folder, lab, groups, course
        self.members: list[subprocess.Popen[str]] = []
        self.heard: queue.Queue[tuple[int, str]] = queue.Queue()

    def start(self, command: Sequence[str]) -> None:
        """The next host's process: in its group and its network before it does anything."""
        rank = len(self.members)
        inside = ["ip", "netns", "exec", self.lab.name.host(f"h{rank}"), *command]
        enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.groups[rank] / "cgroup.procs")]
        paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        with (self.folder / f"{rank}.err").open("w") as errors:
            member = subprocess.Popen(
                [*enter, *inside], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT,
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        self.members.append(member)
        threading.Thread(target=self._listen, args=(rank, member), daemon=True).start()

    def _listen(self, rank: int, member: subprocess.Popen[str]) -> None:
        assert member.stdout
        for line in member.stdout:
            if line.startswith("{"):
                self.heard.put((rank, line))
        self.heard.put((rank, ""))

    def hear(self, until: float) -> dict[str, Any]:
        try:
            rank, line = self.heard.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise Lost("said nothing for too long") from None
        if not line:
            last = (self.folder / f"{rank}.err").read_text().strip().splitlines()[-1:]
            raise Lost(f"rank {rank} ended: {''.join(last)}")
        return dict(json.loads(line))

    def tell(self, word: Mapping[str, Any]) -> None:
        for member in self.members:
            assert member.stdin
            with suppress(BrokenPipeError):
                member.stdin.write(json.dumps(word) + "\n")
                member.stdin.flush()

    def gather(self) -> None:
        until = time.monotonic() + START
        for _ in self.members:
            self.hear(until)

    def lead(self, seed: int, limit: float) -> Finish:
        """Score at every mark; the processes wait meanwhile."""
        task, target, until = self.course.task, self.course.target, time.monotonic() + 2 * limit + 60
        assert task.evaluate
        model, curve = build.model(task, seed), []
        self.tell({"mark": 0, "on": True})
        sent = self.sent()
        while True:
            at = self.hear(until)
            model.load_state_dict(torch.load(self.folder / "model.pt"))
            score = task.evaluate(model)[target.metric]
            curve.append((at["seconds"], at["samples"], score))
            if target.reached(score) or at["seconds"] > limit:
                self.tell({"mark": at["mark"], "on": False})
                reached, passed = target.reached(score), self.sent() - sent
                why = "" if reached else "too slow"
                return Finish(at["seconds"], at["samples"], passed, score, reached, why, curve=curve)
            self.tell({"mark": at["mark"], "on": True})

    def sent(self) -> int:
        return max(self.lab.traffic(host).sent for host in self.lab.hosts)

    def end(self) -> None:
        """They have a moment to leave by themselves; the lab's end takes the others."""
        for member in self.members:
            with suppress(subprocess.TimeoutExpired):
                member.wait(2)
            member.kill()
            member.wait()
