"""A model of a NIC that TCP flows share, where earlier flows have a larger part."""

from __future__ import annotations

from covey.simulate.cluster import Cluster
from covey.simulate.fair import Fair, HostFlow, Port
from covey.simulate.network import FRAME


class Tcp(Fair):
    """As `Fair`, but the part of a flow is as large as its window, and a window grows by what it has carried.

    So flows that begin together share equally, a newcomer has less than those that it meets, and roles that exchange
    again and again drift apart until each has the link for itself. Windows that share one link grow in proportion to
    each other: nobody's part changes until a flow begins or ends. The larger the window of the cluster with which flows
    begin, the less earlier ones have before later ones.
    """

    def __init__(self, cluster: Cluster, *, frame: int = FRAME, window: int | None = None) -> None:
        super().__init__(cluster, frame=frame)
        self.window = float(window or cluster.window)

    def _joined(self, now: float, port: Port, flow: HostFlow) -> dict[HostFlow, float]:
        windows = {other: self.window + other.carried(now) for other in port.flows}
        return {**windows, flow: self.window}
