"""What elastic averaging is made of: a centre and its master, the force that a worker feels, a worker's own step."""

from __future__ import annotations

from covey.exchange.codec import Codec
from covey.exchange.differences import model_coder, model_gaps, model_wires
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.server_program import ServerProgram
from covey.vector import Vector

MASTER = Address("master", 0)


class ReadCentre(Message):
    """A worker asks for the centre."""

    wire_name = "elastic.read"


class Centre(Message):
    wire_name = "elastic.centre"

    model: Vector


class Elastic(Message):
    """The force between a worker and the centre; both move by it, in opposite directions."""

    wire_name = "elastic.elastic"

    force: Vector


class ElasticForce:
    """How a worker's force comes about and travels. What a codec does not tell of it is there again next time."""

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        self.replica = replica
        self.gaps = model_gaps(node, replica, codec, whole=True)
        self.coder = model_coder(node, replica, codec, "force")
        self.memory = node.remember("codec", self.coder.memory)

    def force(self, centre: Vector, pull: float) -> tuple[Vector, Vector]:
        """The force, by which both sides move, and what travels of it."""
        wire, self.memory.value = self.coder.encode(self.gaps.hear(centre) * -pull, self.memory.value)
        force = self.coder.decode(wire)
        self.gaps.moved(force)
        return force, wire


def move(replica: Replica, grad: Vector, velocity: Vector, momentum: float) -> None:
    """Step on a gradient that was taken where momentum leads."""
    if not momentum:
        return replica.apply(grad)
    before = replica.flat.clone()
    # 1 - momentum: a steady gradient moves the model as fast as without momentum
    replica.apply(grad, scale=1 - momentum)
    velocity.add_(replica.flat - before)  # the optimizer's step alone: the force is no part of it


class Trend:
    """DeepSpark's pull (Kim et al. 2016): where the loss does not fall by 1 % from one exchange to the next, it rises
    by a tenth, up to what is still stable; where the loss falls again, it goes back to where it began.

    `kept` survives a restart: the pull, sum and number of the losses since the last exchange, their mean before it.
    """

    def __init__(self, kept: list[float], base: float, ceiling: float) -> None:
        self.kept, self.base, self.ceiling = kept, base, max(base, ceiling)

    def add(self, loss: float) -> None:
        self.kept[1] += loss
        self.kept[2] += 1

    def pull(self) -> float:
        pull, total, count, before = self.kept
        if count:
            mean = total / count
            stalls = before > 0 and mean > 0.99 * before
            pull = min(self.ceiling, 1.1 * pull) if stalls else self.base
            self.kept[:] = [pull, 0.0, 0.0, mean]
        return pull


class CentreMaster(ServerProgram):
    """Hands out the centre, and moves it by each force as it comes."""

    def __init__(self, node: Node, replica: Replica, *, codec: Codec) -> None:
        super().__init__(node, replica)
        self.decode = model_coder(node, replica, codec, "force").decode
        self.told = model_wires(node, replica, codec, "told", "force")
        self.hears = {ReadCentre: self.read, Elastic: self.move}

    async def read(self, read: ReadCentre) -> None:
        await self.show(read.sender)

    async def show(self, to: Address) -> None:
        model = self.replica.model
        await self.node.send(to, Centre(self.told.tell(model, to.rank)))

    async def move(self, elastic: Elastic) -> None:
        force = self.decode(elastic.force)
        self.replica.model.add_(force)
        self.replica.moved()
        self.told.moved(force, elastic.sender.rank)
