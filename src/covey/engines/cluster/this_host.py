"""What other hosts need to know of this one: its addresses and installed versions."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import socket
import struct
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex

import msgspec

from covey.engines.machine import this_boot
from covey.errors import PlanError
from covey.names import option, task_file
from covey.version import __version__

SIOCGIFADDR = 0x8915
UNKNOWN = token_hex(8)
LOOPBACK = ("127.0.0.1", "::1")


class HostIdentity(msgspec.Struct, frozen=True):
    """Where a process lives: in a kernel that was booted once, in one of its networks, as one of its users.

    Those for which all three are the same may share memory; a network of its own stands for a machine of its own.
    """

    kernel: str
    network: int
    user: tuple[int, int]  # the number, and the namespace in which it counts


def machine() -> HostIdentity:
    """This one."""
    kernel = this_boot() or UNKNOWN  # a sandbox that hides it: as if this process had its own kernel
    return HostIdentity(kernel, _space("net"), (os.geteuid(), _space("user")))


def versions(task: str) -> dict[str, str]:
    """What must be the same on every host of a run."""
    return {
        "Python": platform.python_version(),
        "torch": version("torch"),
        "covey": f"{__version__} ({_source()[:12]})",
        "task": _digest(task_file(task)) if task else "",
    }


def address_towards(endpoint: str, interface: str = "") -> str:
    """The address of this host that a peer at `endpoint` can reach, or the one that `interface` names."""
    if interface:
        return interface_address(interface)
    host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
    host = host.strip("[]").removeprefix("::ffff:")  # how a socket that hears both kinds writes an IPv4 address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connects without sending anything
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


def interface_address(interface: str) -> str:
    """The address of an interface by its name; an address stands for itself."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, interface)
        except OSError:
            continue
        return interface
    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        raise PlanError(f"{option('interface', interface)}: {socket.gethostname()} has {', '.join(names)}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            found = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return _ipv6_of(interface)
    return socket.inet_ntoa(found[20:24])


def addresses() -> list[str]:
    """Where this host may be found from others, on all its interfaces."""
    found = []
    for _, name in socket.if_nameindex():
        try:
            found.append(interface_address(name))
        except PlanError:
            continue  # an interface without an address
    return [address for address in dict.fromkeys(found) if address not in LOOPBACK]


def address_among(hosts: Iterable[str]) -> str:
    """The address at which these hosts can find this one."""
    others = [where for host in hosts if (where := resolved(host)) and not is_here(host)]
    if others:
        return address_towards(endpoint(others[0], "9"))
    known = all(resolved(host) for host in hosts)
    return LOOPBACK[0] if known else next(iter(addresses()), LOOPBACK[0])


def is_here(host: str) -> bool:
    """Whether a host's name means this one."""
    where = resolved(host)
    return where in LOOPBACK or (where != "" and address_towards(endpoint(where, "9")) == where)


def resolved(host: str) -> str:
    """The address of a host's name; none if only others, such as ssh, know it."""
    try:
        return str(socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0][4][0])
    except OSError:
        return ""


def endpoint(address: str, port: str = "*") -> str:
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def _space(kind: str) -> int:
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino
    except OSError:
        return 0


def _ipv6_of(interface: str) -> str:
    """The first address of this interface that other hosts can use (proc(5), if_inet6)."""
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        digits, _, _, scope, _, name = line.split()
        if name == interface and scope != "20":  # 20: good on the link only
            return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    raise PlanError(f"{option('interface', interface)}: it has no address; name another one")


@cache
def _source() -> str:
    """A digest of covey's own code: two checkouts may call themselves by one version."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else "not there"
