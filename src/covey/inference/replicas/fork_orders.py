"""What the front's process tells the fork server of its replicas."""

from __future__ import annotations

import msgspec

from covey.decoding import WireFormat
from covey.inference.replicas.replica_process import ReplicaConfig
from covey.inference.served_model import ModelPlace


class StartOrder(msgspec.Struct, frozen=True, tag=True):
    """Fork a replica; the open file of its link follows."""

    config: ReplicaConfig


class EndOrder(msgspec.Struct, frozen=True, tag=True):
    """Kill the process of a replica."""

    rank: int


orders: WireFormat[StartOrder | EndOrder] = WireFormat("order for replicas", StartOrder | EndOrder)
places: WireFormat[ModelPlace] = WireFormat("place of a model", ModelPlace, "json", most=1 << 20)
