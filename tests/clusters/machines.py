"""Two machines on one: network namespaces on a bridge, each with an address of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and iproute2"
)


class Machines:
    """`prefix(n)` goes in front of a command that shall run on machine n, whose address is `address(n)`."""

    def __init__(self, count: int) -> None:
        self.mark = uuid.uuid4().hex[:6]
        self.net = f"10.231.{int(self.mark[:2], 16)}"
        self.bridge = f"cvt{self.mark}"
        self.names = [f"cvt{self.mark}n{number}" for number in range(count)]

    def address(self, number: int) -> str:
        return f"{self.net}.{number + 1}"

    def prefix(self, number: int) -> list[str]:
        return ["ip", "netns", "exec", self.names[number]]

    def build(self) -> None:
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("link", "set", self.bridge, "up")
        for number, name in enumerate(self.names):
            inside, outside = f"i{self.mark}{number}", f"o{self.mark}{number}"
            _ip("netns", "add", name)
            _ip("link", "add", outside, "type", "veth", "peer", "name", inside)
            _ip("link", "set", outside, "master", self.bridge, "up")
            _ip("link", "set", inside, "netns", name)
            _ip("-n", name, "link", "set", inside, "name", "eth0")
            _ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")

    def raze(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True, check=False)


@contextmanager
def machines(count: int = 2) -> Iterator[Machines]:
    found = Machines(count)
    try:
        found.build()
        yield found
    finally:
        found.raze()


def _ip(*words: str) -> Sequence[str]:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout.splitlines()
