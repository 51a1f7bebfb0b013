"""What would the world do?"""

from collections.abc import Callable, Mapping

from covey.simulate.backend import Backend
from covey.simulate.cluster import Cluster, Host, Sharing, from_flags
from covey.simulate.cluster_file import load
from covey.simulate.cluster_text import written
from covey.simulate.fair import Fair
from covey.simulate.machines import CodecTime, CpuTime, Handling, Link, Machine, coding_of
from covey.simulate.network import FRAME, Event, Fifo, Network, Parcel
from covey.simulate.tcp import Tcp
from covey.simulate.units import (
    Bytes,
    BytesPerSecond,
    Seconds,
    format_bytes,
    format_duration,
    format_rate,
    parse_duration,
    parse_rate,
    parse_size,
)

SHARINGS: Mapping[Sharing, Callable[[Cluster], Network]] = {"fifo": Fifo, "fair": Fair, "tcp": Tcp}


def network(cluster: Cluster) -> Network:
    """The network of a cluster, as its links are shared."""
    return SHARINGS[cluster.sharing](cluster)


__all__ = [
    "FRAME",
    "Backend",
    "Bytes",
    "BytesPerSecond",
    "Cluster",
    "CodecTime",
    "Event",
    "Fair",
    "Fifo",
    "Handling",
    "Host",
    "Link",
    "Machine",
    "Network",
    "Parcel",
    "Seconds",
    "Tcp",
    "CpuTime",
    "coding_of",
    "format_bytes",
    "format_duration",
    "format_rate",
    "from_flags",
    "load",
    "network",
    "parse_duration",
    "parse_rate",
    "parse_size",
    "written",
]
