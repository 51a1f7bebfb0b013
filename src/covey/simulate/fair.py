"""What if the messages of a NIC share it equally, as TCP flows roughly do?"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from covey.simulate.cluster import Cluster, Host
from covey.simulate.machines import Link
from covey.simulate.network import FRAME, Event, Kind, Parcel, Waiting, untouched
from covey.simulate.units import Seconds


class Port:
    """One direction of a NIC, and the flows that share it."""

    __slots__ = ("bandwidth", "flows", "latency")

    def __init__(self, link: Link) -> None:
        self.bandwidth = link.goodput
        self.latency: float = link.latency
        self.flows: dict[Flow, None] = {}  # a set that keeps its order: the same run happens again exactly

    def share(self) -> float:
        """What each flow gets."""
        return self.bandwidth / len(self.flows)


class Flow:
    """What one host has to send to one other: a queue of parcels, of which one frame is on the wire."""

    __slots__ = ("dst", "due", "kind", "latency", "left", "parcel", "queue", "rate", "since", "src")

    def __init__(self, src: Port, dst: Port) -> None:
        self.src, self.dst = src, dst
        self.latency = max(src.latency, dst.latency)
        self.queue: list[Waiting] = []
        self.parcel: Parcel
        self.kind: Kind
        self.due: Event | None = None  # when the frame will have left at today's rate; one replaced here is stale
        self.left = 0.0  # bytes of the frame that had not left at the time `since`
        self.since = 0.0
        self.rate = 0.0  # 0: the flow has nothing on the wire


class Fair:
    """Each direction of a NIC is shared equally by the pairs of hosts that use it."""

    def __init__(self, cluster: Cluster, *, frame: int = FRAME) -> None:
        self.cluster, self.frame = cluster, frame
        self.egress: dict[Host, Port] = {}
        self.ingress: dict[Host, Port] = {}
        self.flows: dict[tuple[Host, Host], Flow] = {}
        self.order = count()

    def send(self, now: Seconds, parcel: Parcel) -> list[Event]:
        """Take a parcel: it leaves at once when no other is on its way between the same hosts."""
        if parcel.src == parcel.dst:
            return [Event(Seconds(now + self.cluster.nearby(parcel.size)), "delivered", parcel)]
        flow = self.flows.get((parcel.src, parcel.dst)) or self._flow(parcel.src, parcel.dst)
        heappush(flow.queue, (-parcel.priority, next(self.order), parcel, parcel.size))
        if flow.rate:
            return []
        flow.src.flows[flow] = flow.dst.flows[flow] = None
        self._load(now, flow)
        return self._share(now, flow)

    def happen(self, now: Seconds, event: Event) -> tuple[list[Event], Parcel | None]:
        """A parcel arrived, or a frame has left."""
        if event.kind == "delivered":
            return [], event.parcel
        flow = self.flows[event.parcel.src, event.parcel.dst]
        if flow.due is not event:
            return [], None
        arrived = [Event(Seconds(now + flow.latency), "delivered", event.parcel)] if event.kind == "last" else []
        if flow.queue:
            self._load(now, flow)
            return [*arrived, _due(now, flow)], None
        flow.rate, flow.due = 0.0, None
        del flow.src.flows[flow], flow.dst.flows[flow]
        return [*arrived, *self._share(now, flow)], None

    def waits(self, parcel: Parcel) -> bool:
        """Whether it still stands whole in the queue of its flow."""
        flow = self.flows.get((parcel.src, parcel.dst))
        return flow is not None and untouched(flow.queue, parcel)

    def _load(self, now: float, flow: Flow) -> None:
        """Put the next frame of a flow on the wire."""
        rank, order, parcel, unsent = heappop(flow.queue)
        size = min(unsent, self.frame)
        flow.parcel, flow.left, flow.since = parcel, size, now
        flow.kind = "last" if unsent == size else "frame"
        if unsent > size:
            heappush(flow.queue, (rank, order, parcel, unsent - size))

    def _share(self, now: float, changed: Flow) -> list[Event]:
        """A flow began or ended: those that share a port with it run at another rate from now on."""
        events = []
        for flow in changed.src.flows | changed.dst.flows:
            rate = min(flow.src.share(), flow.dst.share())
            if rate != flow.rate:
                flow.left = max(0.0, flow.left - flow.rate * (now - flow.since))
                flow.rate, flow.since = rate, now
                events.append(_due(now, flow))
        return events

    def _flow(self, src: Host, dst: Host) -> Flow:
        egress = self.egress.setdefault(src, Port(self.cluster.link_of(src)))
        ingress = self.ingress.setdefault(dst, Port(self.cluster.link_of(dst)))
        flow = self.flows[src, dst] = Flow(egress, ingress)
        return flow


def _due(now: float, flow: Flow) -> Event:
    """The event at which the frame on the wire has left; it replaces the one expected so far."""
    flow.due = Event(Seconds(now + flow.left / flow.rate), flow.kind, flow.parcel)
    return flow.due
