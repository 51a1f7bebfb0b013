"""What clients and the service say to each other."""

from __future__ import annotations

from covey.message import Address, Message
from covey.simulate.population import CLIENT
from covey.vector import Vector

COORDINATOR, AGGREGATOR = Address("coordinator", 0), Address("aggregator", 0)


def address(client: int) -> Address:
    """Of a client, by its number."""
    return Address(CLIENT, client)


class CheckIn(Message):
    """(Client to coordinator) I could take part now."""

    wire_name = "federated.check_in"
    counted = False


class ComeBack(Message):
    """(To a client) You are not needed now, or no more: come again after so many seconds, drawn between these two.

    `refused` says why its report does not count, if there was one and something is wrong with it.
    """

    wire_name = "federated.come_back"

    earliest: float
    latest: float
    refused: str = ""

    counted = False


class Configuration(Message):
    """(To a client) Train from these weights, and report to whoever sent this; `share` of all rounds are over."""

    wire_name = "federated.configuration"

    number: int
    share: float
    params: Vector
    buffers: Vector


class ClientReport(Message):
    """(From a client) What training has changed, and on how many samples; NaN is refused by whoever aggregates."""

    wire_name = "federated.report"

    number: int
    samples: int
    loss: float
    update: Vector
    buffers: Vector

    finite = False


class RoundBegin(Message):
    """(Coordinator to aggregator) The chosen clients, the model, and from when until when those come again who report.

    These two are moments of the service's own clock, which both roles share.
    """

    wire_name = "federated.begin"

    number: int
    share: float
    clients: list[int]
    earliest: float
    latest: float
    params: Vector
    buffers: Vector

    counted = False


class SumWithdrawal(Message):
    """(From a client) I take no further part in this sum: my numbers are not finite, or I was asked what I refuse."""

    wire_name = "federated.withdrawal"
    counted = False

    number: int
    why: str = ""  # the terms were declined; what else went wrong may tell of the client's data, and stays with it


class RoundEnd(Message):
    """(Aggregator to coordinator) What came of a round; abandoned ones have no numbers."""

    wire_name = "federated.end"

    number: int
    committed: bool
    clients: list[int]  # whose reports count
    dropped: int
    extra: int
    refused: int
    samples: int
    loss: float
    update: Vector
    buffers: Vector
    why: str = ""  # it was not committed
    declined: int = 0  # chosen clients that take no part in its secure sum
    hopeless: bool = False  # as so many declined: another round with the same terms would come to nothing too

    counted = finite = False


FROM_CLIENTS: tuple[type[Message], ...] = (CheckIn, ClientReport)
"""All that a client may say. Real ones may be anybody's: what else they send is refused before a program sees it."""
