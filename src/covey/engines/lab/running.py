"""The running labs of this machine, found by name: their links can be cut, restored and measured."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from covey.engines.cluster.engine_processes import OURS, SITE, title
from covey.engines.lab import quota
from covey.engines.lab.iproute import LabError, batch, show
from covey.engines.lab.name import NETNS, Name, named
from covey.engines.process import liveness
from covey.errors import PlanError

LOCK = Path("/run/covey-lab.lock")
ENDING = 5.0  # seconds for killed processes to be gone
LEAVING = 5.0  # seconds for the fork server of a killed site to end the roles and remove their files
PAUSE = 0.02


class LinkBytes(NamedTuple):
    """Bytes that have passed a host's shaped link, with all that the network adds."""

    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab: its links can be cut and restored while roles speak on them."""

    name: Name

    @property
    def hosts(self) -> list[str]:
        found = [part.removeprefix(f"{self.name}-") for part in self.name.namespaces()]
        return sorted((host for host in found if host[0] == "h"), key=lambda host: int(host[1:]))

    def cut(self, host: str) -> None:
        """Nothing passes this host's data link any more; it keeps its addresses, and what is sent is lost."""
        self._port(host)
        batch("ip", [f"link set {host} down"], self.name.switch)

    def restore(self, host: str) -> None:
        """Let its links work again; a run that went on without a host that was killed has it start anew."""
        self._port(host)
        batch("ip", [f"link set {port} up" for port in (host, control(host))], self.name.switch)

    def is_cut(self, host: str) -> bool:
        return "UP" not in self._port(host)["flags"]

    def kill(self, host: str) -> None:
        """End a host as a power cut does: its processes die, and nothing passes its links until it is restored."""
        self._port(host)
        batch("ip", [f"link set {port} down" for port in (host, control(host))], self.name.switch)
        self.end(host)

    def end(self, host: str) -> None:
        """End all processes of a host; the network stays."""
        _end([self.name.host(host)])

    def traffic(self, host: str) -> LinkBytes:
        """Since the lab was made; what the switch hears from a host is what that has sent."""
        seen = self._port(host)["stats64"]
        return LinkBytes(sent=seen["rx"]["bytes"], received=seen["tx"]["bytes"])

    def remove(self) -> None:
        """Leave nothing of it; what is left of its processes is killed."""
        spaces = self.name.namespaces()
        _end(spaces)
        with suppress(LabError):  # it goes with the switch, if that was quicker
            batch("ip", [f"link del {self.name.link}"])
        if spaces:
            batch("ip", [f"netns del {space}" for space in spaces])
        for place in quota.left(str(self.name)):
            quota.remove(place)

    def _port(self, host: str) -> dict[str, dict[str, dict[str, int]]]:
        if host not in self.hosts:
            raise PlanError(f"{self.name} has no host {host}; it has {', '.join(self.hosts)}")
        (port,) = show("-s", "link", "show", host, namespace=self.name.switch)
        return port  # type: ignore[no-any-return]


def control(host: str) -> str:
    """The switch's end of a host's unshaped link."""
    return f"c{host[1:]}"


def labs() -> list[Lab]:
    """All labs of this machine, also those whose launcher is gone."""
    parts = [path.name for path in NETNS.glob("covey-*")]
    parts += [path.name for path in quota.left()]
    return [Lab(name) for name in sorted(set(filter(None, map(named, parts))))]


def mine() -> Lab:
    """The lab of this process, while it runs."""
    for lab in reversed(labs()):
        if lab.name.pid == os.getpid():
            return lab
    raise PlanError("this process has no lab: use the engine lab")


def reap() -> list[Lab]:
    """Remove the labs whose launcher is gone."""
    dead = [lab for lab in labs() if not lab.name.alive]
    for lab in dead:
        lab.remove()
    return dead


@contextmanager
def locked() -> Iterator[None]:
    """One at a time chooses addresses, or clears away."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _end(spaces: list[str]) -> None:
    """Kill what lives in these namespaces: nothing but a lab's own processes does.

    Sites first: the fork server of each, also of one that is gone already, ends the roles and removes their files.
    """
    pids, until = _pids(spaces), time.monotonic() + LEAVING
    started = {child for pid in pids for child in liveness.children(pid)}
    _kill([pid for pid in pids if title(pid).startswith(SITE) and pid not in started])
    while any(_cleans_up(pid) for pid in _pids(spaces)) and time.monotonic() < until:
        time.sleep(PAUSE)
    until = time.monotonic() + ENDING
    while pids := _pids(spaces):
        _kill(pids)
        if time.monotonic() > until:
            raise LabError(f"processes {pids} of a lab do not end")
        time.sleep(PAUSE)


def _cleans_up(pid: int) -> bool:
    return title(pid).startswith(OURS) and liveness.state(pid) not in liveness.STOPPED


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _pids(spaces: list[str]) -> list[int]:
    asked = (["ip", "netns", "pids", space] for space in spaces)
    found = (subprocess.run(words, capture_output=True, text=True, check=False).stdout for words in asked)
    return [int(word) for text in found for word in text.split()]
