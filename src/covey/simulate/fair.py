"""A model of a NIC that all messages share equally."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from covey.simulate.cluster import Cluster, Host
from covey.simulate.machines import Link
from covey.simulate.network import FRAME, Arrival, Event, Kind, Parcel, Waiting, not_known, untouched


class Port:
    """One direction of a NIC, and the flows that share it by their weights."""

    __slots__ = ("bandwidth", "flows", "latency", "total")

    def __init__(self, link: Link, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.latency: float = link.latency
        self.flows: dict[HostFlow, float] = {}  # in the order in which they came: the same run happens again exactly
        self.total = 0.0  # of their weights

    def share(self, flow: HostFlow) -> float:
        """What this flow gets, if it can use it."""
        return self.bandwidth * self.flows[flow] / self.total

    def weigh(self, flows: dict[HostFlow, float]) -> None:
        """From now on these share it."""
        self.flows, self.total = flows, sum(flows.values())


class HostFlow:
    """What one host has to send to one other: a queue of parcels, of which one frame is on the wire."""

    __slots__ = ("dst", "due", "kind", "latency", "left", "loaded", "parcel", "queue", "rate", "since", "src")

    def __init__(self, src: Port, dst: Port) -> None:
        self.src, self.dst = src, dst
        self.latency = max(src.latency, dst.latency)
        self.queue: list[Waiting] = []
        self.parcel: Parcel
        self.kind: Kind
        self.due: Event | None = None  # when the frame will have left at today's rate; one replaced here is stale
        self.loaded = 0  # bytes of the frames that it has put on the wire since it began
        self.left = 0.0  # bytes of the frame that had not left at the time `since`
        self.since = 0.0
        self.rate = 0.0  # 0: the flow has nothing on the wire

    def unsent(self, now: float) -> float:
        """Bytes of the frame that have not left yet."""
        return max(0.0, self.left - self.rate * (now - self.since))

    def carried(self, now: float) -> float:
        """Bytes that have left since it began."""
        return self.loaded - self.unsent(now)


class Fair:
    """Each direction of a NIC is shared equally by the pairs of hosts that use it."""

    def __init__(self, cluster: Cluster, *, frame: int = FRAME) -> None:
        self.cluster, self.frame = cluster, frame
        self.egress: dict[Host, Port] = {}
        self.ingress: dict[Host, Port] = {}
        self.flows: dict[tuple[Host, Host], HostFlow] = {}
        self.order = count()

    def arrivals(self, src: Host, dst: Host) -> Arrival:
        """Only those of what stays on its machine: later parcels slow down whatever shares a port with them."""
        return (lambda now, size: now + self.cluster.nearby(size)) if src == dst else not_known

    def send(self, now: float, parcel: Parcel) -> list[Event]:
        """Take a parcel: it leaves at once when no other is on its way between the same hosts."""
        if parcel.src == parcel.dst:
            return [Event(now + self.cluster.nearby(parcel.size), "delivered", parcel)]
        flow = self.flows.get((parcel.src, parcel.dst)) or self._flow(parcel.src, parcel.dst)
        heappush(flow.queue, (-parcel.priority, next(self.order), parcel, parcel.size))
        if flow.rate:
            return []
        for port in (flow.src, flow.dst):
            port.weigh(self._joined(now, port, flow))
        flow.loaded = 0
        self._load(now, flow)
        return self._share(now, flow)

    def happen(self, now: float, event: Event) -> tuple[list[Event], Parcel | None]:
        """A parcel arrived, or a frame has left."""
        if event.kind == "delivered":
            return [], event.parcel
        flow = self.flows[event.parcel.src, event.parcel.dst]
        if flow.due is not event:
            return [], None
        arrived = [Event(now + flow.latency, "delivered", event.parcel)] if event.kind == "last" else []
        if flow.queue:
            self._load(now, flow)
            return [*arrived, _due(now, flow)], None
        flow.rate, flow.due = 0.0, None
        for port in (flow.src, flow.dst):
            del port.flows[flow]
            port.weigh(port.flows)
        return [*arrived, *self._share(now, flow)], None

    def waits(self, parcel: Parcel) -> bool:
        """Whether it still stands whole in the queue of its flow."""
        flow = self.flows.get((parcel.src, parcel.dst))
        return flow is not None and untouched(flow.queue, parcel)

    def _joined(self, now: float, port: Port, flow: HostFlow) -> dict[HostFlow, float]:
        """The flows of a port and their weights when another begins."""
        return {**port.flows, flow: 1.0}

    def _load(self, now: float, flow: HostFlow) -> None:
        """Put the next frame of a flow on the wire."""
        rank, order, parcel, unsent = heappop(flow.queue)
        size = min(unsent, self.frame)
        flow.parcel, flow.left, flow.since = parcel, size, now
        flow.loaded += size
        flow.kind = "last" if unsent == size else "frame"
        if unsent > size:
            heappush(flow.queue, (rank, order, parcel, unsent - size))

    def _share(self, now: float, changed: HostFlow) -> list[Event]:
        """A flow began or ended: those that share a port with it run at another rate from now on."""
        events = []
        for flow in changed.src.flows | changed.dst.flows:
            rate = min(flow.src.share(flow), flow.dst.share(flow))
            if rate != flow.rate:
                flow.left = flow.unsent(now)
                flow.rate, flow.since = rate, now
                events.append(_due(now, flow))
        return events

    def _flow(self, src: Host, dst: Host) -> HostFlow:
        source, target = self.cluster.link_of(src), self.cluster.link_of(dst)
        egress = self.egress.setdefault(src, Port(source, source.outward))
        ingress = self.ingress.setdefault(dst, Port(target, target.goodput))
        flow = self.flows[src, dst] = HostFlow(egress, ingress)
        return flow


def _due(now: float, flow: HostFlow) -> Event:
    """The event at which the frame on the wire has left; it replaces the one expected so far."""
    flow.due = Event(now + flow.left / flow.rate, flow.kind, flow.parcel)
    return flow.due
