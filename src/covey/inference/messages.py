"""What front, replicas and scaler say to each other, and clients to the front."""

from __future__ import annotations

from covey.message import Address, Message
from covey.vector import Vector

CLIENTS, FRONT, POOL = (Address(role, 0) for role in ("client", "front", "pool"))


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
    version: int = 0  # which one has answered
    confidence: float = 1.0  # the weight of the versions that agree


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
    apart: bool = False  # together they could not be computed: let each be tried alone


class StageValues(Message):
    """What one stage of a replica makes of a batch, for the next one."""

    wire_name = "inference.stage"
    number: int  # of the batch; that of the example with which stages begin is 0
    count: int  # inputs of the batch
    values: Vector
    reason: str = ""  # why there are none


class ReplicaReady(Message):
    """A replica has its model, and takes batches; how long it takes for some sizes of them, where it has measured."""

    wire_name = "inference.ready"
    sizes: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()


class EndReplica(Message):
    """The front has no use for a replica that does not answer; whoever watches its process ends it."""

    wire_name = "inference.end"


class ReplicaLost(Message):
    """A replica is gone, with the batch that it had; whoever watches it says so in its name."""

    wire_name = "inference.lost"


class LoadQuestion(Message):
    """The scaler asks how much there is to do."""

    wire_name = "inference.ask_load"


class LoadReport(Message):
    """The front's answer."""

    wire_name = "inference.load"
    arrived: int  # requests since the beginning
    waiting: int  # those of them without a replica
    ready: tuple[int, ...]  # ranks of the replicas that take batches
    capacity: float  # requests per second that one of them can answer; 0 while that is not known
    wanted: bool = True  # it may still get requests


class StartReplica(Message):
    """The scaler wants another replica, with a rank that none has had."""

    wire_name = "inference.start"
    rank: int


class RetireReplica(Message):
    """A replica is not needed: the scaler tells the front, and the front, when it has no batch, whoever ends it."""

    wire_name = "inference.retire"
    rank: int


class InferenceFeedback(Message):
    """A client says how good an answer was: its loss, from 0 to 1, or which class would have been right."""

    wire_name = "inference.feedback"
    ticket: int
    loss: float | None = None
    label: int | None = None


class TrialDecided(Message):
    """The trial of a new version is over; whoever runs the front is told."""

    wire_name = "inference.decided"
    winner: int
    reason: str
