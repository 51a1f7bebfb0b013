"""What front and replicas say to each other, and clients to the front."""

from __future__ import annotations

from covey.message import Address, Message
from covey.vector import Vector

CLIENTS, FRONT = Address("client", 0), Address("front", 0)


class InferenceRequest(Message):
    """A client asks for the answer to one input."""

    wire_name = "inference.request"
    ticket: int
    row: Vector
    key: str = ""  # a hash of the row: equal ones may be answered from the cache


class InferenceAnswer(Message):
    """The answer to it; `status` as in HTTP, and with another one than 200 a reason instead of numbers."""

    wire_name = "inference.answer"
    ticket: int
    status: int
    row: Vector
    reason: str = ""


class RequestBatch(Message):
    """Inputs for a replica, stacked."""

    wire_name = "inference.batch"
    number: int
    rows: Vector


class AnsweredBatch(Message):
    """A replica's answers to them, stacked."""

    wire_name = "inference.answered"
    number: int
    rows: Vector  # of the inputs that could be computed
    reasons: tuple[str, ...] = ()  # one of each input, empty for those that could; none where all could


class ReplicaReady(Message):
    """A replica has its model, and takes batches."""

    wire_name = "inference.ready"


class EndReplica(Message):
    """The front has no use for a replica that does not answer; whoever watches its process ends it."""

    wire_name = "inference.end"


class ReplicaLost(Message):
    """A replica is gone, with the batch that it had; whoever watches it says so in its name."""

    wire_name = "inference.lost"
