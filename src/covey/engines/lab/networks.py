"""The network of a lab: for every host a shaped and an unshaped link to a switch, and one for the launcher."""

from __future__ import annotations

import ipaddress
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from covey.engines.lab.iproute import LabError, batch, show
from covey.engines.lab.name import Name
from covey.simulate.units import BytesPerSecond

DATA, CONTROL = "data", "control"  # the two links of a host, and the two bridges of the switch
LAUNCHER = 254  # the last number of the launcher's address
SPACES = (ipaddress.IPv4Network("10.0.0.0/8"), ipaddress.IPv4Network("198.18.0.0/15"))  # private; for tests (RFC 2544)
FRAME = 1514
QUEUE = 0.25  # seconds that a packet may wait at a link
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")


@dataclass(frozen=True, slots=True)
class Networks:
    """The first three numbers of the addresses of either network."""

    data: str
    control: str


def free() -> Networks:
    """Two networks that this machine has no route to; labs that start together begin to look at different ones."""
    routes = [route["dst"] for route in show("-4", "route") if route["dst"] != "default"]
    taken = [ipaddress.IPv4Network(dst) for dst in routes]
    for space in SPACES:
        pairs = space.num_addresses // 512
        for step in range(pairs):
            start = int(space.network_address) + (os.getpid() + step) % pairs * 512
            pair = ipaddress.IPv4Network((start, 23))
            if not any(pair.overlaps(other) for other in taken):
                data, control = (str(net.network_address).removesuffix(".0") for net in pair.subnets())
                return Networks(data, control)
    raise LabError(f"no free network is left in {' and '.join(map(str, SPACES))}")


def lay(name: Name, rates: Sequence[BytesPerSecond | None], nets: Networks) -> None:
    """Make everything; after a failure the caller removes what was made."""
    hosts = range(len(rates))
    batch("ip", [f"netns add {name.switch}", *(f"netns add {name.host(f'h{n}')}" for n in hosts)])
    batch("ip", _switch(name, len(rates)), name.switch)
    batch("ip", [
        f"link add {name.link} type veth peer name launcher netns {name.switch}",
        f"link set {name.link} addrgenmode none",
        f"addr add {nets.control}.{LAUNCHER}/24 dev {name.link}",
        f"link set {name.link} up",
    ])  # fmt: skip
    batch("ip", ["link set launcher master control", "link set launcher up"], name.switch)
    for number, rate in enumerate(rates):
        inside = name.host(f"h{number}")
        batch("ip", _host(number, nets), inside)
        _settle(inside)
        if rate is not None:
            batch("tc", [f"qdisc add dev {DATA} root {_shape(rate)}"], inside)
            batch("tc", [f"qdisc add dev h{number} root {_shape(rate)}"], name.switch)


def _switch(name: Name, hosts: int) -> list[str]:
    lines = [f"link add {bridge} type bridge" for bridge in (DATA, CONTROL)]
    lines += [f"link set {bridge} up" for bridge in (DATA, CONTROL)]
    for number in range(hosts):
        inside = name.host(f"h{number}")
        for port, bridge in ((f"h{number}", DATA), (f"c{number}", CONTROL)):
            lines += [
                f"link add {port} type veth peer name {bridge} netns {inside}",
                f"link set {port} addrgenmode none master {bridge} up",
            ]
    return lines


def _host(number: int, nets: Networks) -> list[str]:
    lines = ["link set lo up"]
    for link, network in ((DATA, nets.data), (CONTROL, nets.control)):
        lines += [
            f"link set {link} addrgenmode none",
            f"addr add {network}.{number + 1}/24 dev {link}",
            f"link set {link} up",
        ]
    return lines


def _shape(rate: BytesPerSecond) -> str:
    """A token bucket of a millisecond or two frames: what is smaller would pass unshaped."""
    burst, queue = max(2 * FRAME, round(rate / 1000)), max(64 * FRAME, round(rate * QUEUE))
    return f"tbf rate {round(rate * 8)}bit burst {burst}b limit {queue}b"


def _settle(namespace: str) -> None:
    """TCP's oldest congestion control, which every kernel has, for labs that are alike."""
    line = f"echo reno > {CONGESTION}"
    inside = ["ip", "netns", "exec", namespace, "sh", "-c", line]
    done = subprocess.run(inside, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"TCP cannot be set up in {namespace}: {done.stderr.strip()}")
