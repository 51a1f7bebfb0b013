"""How is a cluster written down? What `cluster_file` reads again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from covey.errors import PlanError
from covey.simulate.cluster import WINDOW, Cluster, Sharing
from covey.simulate.machines import CpuTime, Handling, Link, Machine, machine_name

_SHARED: Mapping[Sharing, str] = {
    "fifo": "one message after another",
    "fair": "all at once, in equal parts",
    "tcp": "all at once; the one that began first has more",
}
_SMALLER = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def written(cluster: Cluster, heading: str = "") -> str:
    """The text of a cluster file; of what a group or a host has of its own, only links of machines can be written."""
    for field in ("slowdowns", "kills", "price", "spot_price", "watts", "workers"):
        if getattr(cluster, field):
            raise PlanError(f"a cluster with {field} is written by hand: see examples/cluster.toml")
    sections = [
        [f"# {line}" for line in heading.splitlines()],
        [f'place = "{cluster.place}"'] if cluster.place else [],
        _compute(cluster), _handling(cluster.handling), *_codings(cluster), _link(cluster), _local(cluster),
        *_machines(cluster), _backend(cluster),
    ]  # fmt: skip
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _compute(cluster: Cluster) -> list[str]:
    return [
        "[compute]",
        _line("batch", cluster.compute, "forward and backward of one batch"),
        *([_line("prepare", cluster.prepare, "transforming its samples")] if cluster.prepare else []),
        _said("jitter", f"{cluster.jitter:.4g}", "how much that varies: standard deviation / mean"),
        _said("fixed", f"{cluster.fixed:.4g}", "the share of it that a part of a batch takes all the same"),
        _line("update", cluster.update, "an optimizer step, for each byte of parameters"),
        _said("threads", str(cluster.threads), "that compute a batch"),
        *([_said("error", f"{cluster.error:.4g}", "of steps that are foreseen")] if cluster.error else []),
    ]


def _handling(handling: Handling) -> list[str]:
    return [
        "[handling]  # CPU time of covey's own work",
        *_toll("send", handling.send, "to send a message", "for each byte that is copied"),
        *_toll("receive", handling.receive, "to receive one", "for each byte"),
        *_toll("sums", handling.sums, "to add, copy or scale vectors", "for each byte that is read"),
        _line("step", handling.step, "an optimizer step, besides [compute] update"),
        _line("report", handling.report, "a report to the launcher, every 20 ms"),
    ]


def _codings(cluster: Cluster) -> Iterator[list[str]]:
    for name, coding in cluster.coding.items():
        yield [
            f'[coding."{name}"]',
            *_toll("encode", coding.encode, "CPU time to encode a vector", "and for each byte of its plain numbers"),
            *_toll("decode", coding.decode, "to decode it", "for each byte of its plain numbers"),
        ]


def _link(cluster: Cluster) -> list[str]:
    link = cluster.link
    return [
        "[link]  # between machines",
        *_crossing(link),
        _said("sharing", f'"{cluster.sharing}"', _SHARED[cluster.sharing]),
        *([_said("window", f'"{cluster.window}B"', "with which a flow begins")] if cluster.window != WINDOW else []),
        _said("headers", f"{link.headers:.4g}", "what the network adds to each byte"),
        *_toll("cpu", link.cpu, "CPU time of the network at either end, for a message", "and for each byte"),
    ]


def _local(cluster: Cluster) -> list[str]:
    link = cluster.local
    return (
        [] if link is None else ["[local]  # between roles of one machine", *_crossing(link), *_toll("cpu", link.cpu)]
    )


def _crossing(link: Link) -> list[str]:
    rates = [_said("bandwidth", _rate(link.bandwidth))]
    rates += [] if link.uplink is None else [_said("uplink", _rate(link.uplink), "what leaves")]
    return [*rates, _line("latency", link.latency, "one way")]


def _rate(rate: float) -> str:
    return f'"{rate * 8 / 1e6:.6g}mbit"'


def _machines(cluster: Cluster) -> Iterator[list[str]]:
    """Equal machines in a row are written once."""
    described = [(machine, cluster.links.get(machine_name(number))) for number, machine in enumerate(cluster.machines)]
    for (machine, link), alike in groupby(described):
        yield [
            "[[machine]]",
            _said("count", str(len(list(alike)))),
            *_machine(machine),
            *(_crossing(link) if link else []),
        ]


def _machine(machine: Machine) -> Iterator[str]:
    yield _said("cores", f"{machine.cores:g}", "shared by the roles that live on it")
    if machine.period:
        yield _line("period", machine.period, "a quota: this many cores on average over this time")
    if machine.wake:
        yield _line("wake", machine.wake, "until a role has its share, where all cores are in use")


def _backend(cluster: Cluster) -> list[str]:
    """What is not limited is not written."""
    if (known := cluster.backend) is None:
        return []
    rates = {"rate": (known.rate, "of all requests"), "per_request": (known.per_request, "of each")}
    return [
        "[backend]  # that samples are read from",
        *(_said(name, _rate(rate), meaning) for name, (rate, meaning) in rates.items() if rate is not None),
        _line("latency", known.latency, "until the first byte of a request"),
        _said("requests", str(known.requests), "of a reader at once"),
        *([_said("sample", f'"{known.sample}B"')] if known.sample else []),
        _said("cache", f'"{known.cache}"', "where what was read is kept"),
        *([_said("filled", "true", "an earlier job has read the set")] if known.filled else []),
    ]


def _toll(name: str, toll: CpuTime, each: str = "", byte: str = "") -> list[str]:
    return [_line(name, toll.each, each), _line(f"{name}_byte", toll.byte, byte)]


def _line(name: str, seconds: float, meaning: str = "") -> str:
    return _said(name, f'"{_duration(seconds)}"', meaning)


def _said(name: str, value: str, meaning: str = "") -> str:
    line = f"{name} = {value}"
    return f"{line:<28}# {meaning}" if meaning else line


def _duration(seconds: float) -> str:
    """Four digits, in the unit that keeps them short."""
    for unit, size in _SMALLER.items():
        if seconds >= size:
            return f"{seconds / size:.4g}{unit}"
    return f"{seconds / 1e-9:.4g}ns"
