"""What tests of the lab share: networks without a run, transfers between their hosts, and what must not be left."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple

from covey.engines.lab import quota, running
from covey.engines.lab.fork_server import enter
from covey.engines.lab.iproute import show
from covey.engines.lab.running import Lab
from covey.engines.lab.settings import read
from covey.engines.lab.trial_lab import bare

PORT = 5000


class Net(NamedTuple):
    """A lab without a run, and the addresses of its hosts on the shaped network."""

    lab: Lab
    data: str

    def address(self, host: int) -> str:
        return f"{self.data}.{host + 1}"


@contextmanager
def network(hosts: int | None = None, rate: str = "unshaped") -> Iterator[Net]:
    with bare(read(2, hosts, rate).rates) as (lab, nets):
        yield Net(lab, nets.data)


def seconds(net: Net, sender: int, receiver: int, size: int) -> float:
    """How long so many bytes take from one host to the other."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    other = fork.Process(target=_receive, args=(net, receiver, size, theirs))
    other.start()
    assert ours.recv() == "ready"
    child = fork.Process(target=_send, args=(net, sender, receiver, size))
    child.start()
    taken = float(ours.recv())
    child.join(10)
    other.join(10)
    return taken


def _receive(net: Net, host: int, size: int, told: Connection) -> None:
    enter(net.lab.name.host(f"h{host}"))
    with socket.create_server((net.address(host), PORT)) as door:
        told.send("ready")
        link, _ = door.accept()
        got = len(link.recv(1 << 16))
        begin = time.monotonic()
        while got < size:
            got += len(link.recv(1 << 16))
        told.send(time.monotonic() - begin)


def _send(net: Net, host: int, to: int, size: int) -> None:
    enter(net.lab.name.host(f"h{host}"))
    with socket.create_connection((net.address(to), PORT)) as link:
        link.sendall(bytes(size))


def left(pid: int) -> list[str]:
    """What is still there of the labs of a process: namespaces, groups, interfaces of the machine itself."""
    labs = [str(lab.name) for lab in running.labs() if lab.name.pid == pid]
    groups = [str(path) for path in quota.left(f"covey-{pid}-*")]
    links = [link["ifname"] for link in show("link") if link["ifname"].startswith(f"cv{pid}x")]
    return [*labs, *groups, *links]


def left_here() -> list[str]:
    return left(os.getpid())
