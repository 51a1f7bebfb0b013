"""MPCA-SGD: a penalty in the loss draws each worker to a centre that is averaged in the background and extrapolated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from covey.decentral.averaging.hops import MASTER, Hops, relatives
from covey.decentral.written_settings import written
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.exchange.differences import refuse_carrying
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.server_program import ServerProgram, serve
from covey.strategy import Description, Role, Strategy, Taxonomy
from covey.vector import Vector

FIRMEST = 10.0  # times the penalty: as hard as an old centre may pull


class Gathered(Message):
    """The sum of the models of a subtree, and how many of its workers have done their last step."""

    wire_name = "extrapolated.gathered"

    done: int
    model: Vector


class Meaned(Message):
    """The new centre, on its way down; `last` when everybody has done their last step."""

    wire_name = "extrapolated.meaned"

    last: int
    model: Vector


class Stepped(Message):
    """The worker, to its own companion: there is something new to hand over."""

    wire_name = "extrapolated.stepped"
    counted = False


class LastRoundOver(Message):
    """The companion, to its own worker: the last round is over."""

    wire_name = "extrapolated.closed"
    counted = False


async def worker(node: Node, replica: Replica, *, rho: float, bound: int, codec: Codec) -> None:
    """Descend loss + rho/2 |w - C|^2, where C is the centre moved on along its last way; never wait for the network.

    The penalty goes through the gradient and so through the optimizer, unlike EASGD's pull (Langer et al. 2018).
    """
    view = CentreView(node.remember("view", CentreView.fresh(replica)).value)
    exchange = background_exchange(node, replica, codec)
    await node.spawn(companion(node, replica, exchange, view))
    for _ in node.steps():
        grad = await replica.gradient(node)
        view.add_penalty(grad, replica.flat, rho, bound)
        replica.apply(grad)
        await node.note("update")
        view.kept["step"] += 1
        await node.send(node.address, Stepped())
    exchange.kept["done"] = 1
    await node.send(node.address, Stepped())
    await node.receive(LastRoundOver, sender=node.address)


class CentreView:
    """What a worker knows of the centre: where it was, how it moves in one of its own steps, and how old that is."""

    def __init__(self, kept: dict[str, Any]) -> None:
        self.kept = kept

    @staticmethod
    def fresh(replica: Replica) -> dict[str, Any]:
        """`handed` is the step at which the model was handed over that the centre `formed` next is made of."""
        still = replica.flat.map(torch.zeros_like)
        return {"centre": replica.flat.clone(), "speed": still, "step": 0, "formed": 0, "handed": 0}

    @property
    def age(self) -> int:
        return int(self.kept["step"] - self.kept["formed"])

    def add_penalty(self, grad: Vector, flat: Vector, rho: float, bound: int) -> None:
        """rho (w - C): extrapolated for at most `bound` steps; older than that, it pulls harder (the soft bound)."""
        firm = rho * min(max(1.0, self.age / bound), FIRMEST)
        grad.add_(flat, alpha=firm).add_(self.kept["centre"], alpha=-firm)
        grad.add_(self.kept["speed"], alpha=-firm * min(self.age, bound))

    def hand_over(self) -> None:
        self.kept["handed"] = self.kept["step"]

    def take(self, centre: Vector) -> None:
        """A new centre, as old as the model that was handed over for it."""
        passed = max(1, self.kept["handed"] - self.kept["formed"])
        self.kept["speed"].copy_((centre - self.kept["centre"]) * (1 / passed))
        self.kept["centre"].copy_(centre)
        self.kept["formed"] = self.kept["handed"]


class BackgroundExchange:
    """One place in the binomial tree of the background exchange. What it has heard survives a restart."""

    def __init__(self, node: Node, kept: dict[str, Any], hops: Hops) -> None:
        self.kept, self.hops = kept, hops
        self.parent, self.children = relatives(node.address, node.workers)

    @staticmethod
    def fresh() -> dict[str, Any]:
        return {"heard": {}, "stepped": 0, "handed": 0, "done": 0}

    @property
    def complete(self) -> bool:
        return len(self.kept["heard"]) == len(self.children)

    @property
    def ready(self) -> bool:
        return self.complete and not self.kept["handed"] and bool(self.kept["stepped"] or self.kept["done"])

    def hear(self, message: Gathered) -> None:
        child = message.sender.rank
        self.kept["heard"][child] = [message.done, self.hops.heard.hear(message.model, child).clone()]

    def gather(self, own: Vector) -> Gathered:
        """Own model and the children's sums, in rank order; `own` becomes the sum."""
        heard = [self.kept["heard"][rank] for rank in sorted(self.kept["heard"])]
        for _, model in heard:
            own.add_(model)
        self.kept["heard"] = {}
        return Gathered(self.kept["done"] + sum(done for done, _ in heard), own)


async def companion(node: Node, replica: Replica, exchange: BackgroundExchange, view: CentreView) -> None:
    """Hand the model up the tree once it has moved and the children's are there; bring the new centre down."""
    kept, parent = exchange.kept, exchange.parent
    assert parent is not None, "only the master has none"
    while True:
        if exchange.ready:
            kept.update(stepped=0, handed=1)
            view.hand_over()
            gathered = exchange.gather(replica.model.clone())
            await node.send(parent, Gathered(gathered.done, exchange.hops.told.tell(gathered.model)))
        message = await node.receive_any(Stepped, Gathered, Meaned)
        if isinstance(message, Stepped):
            kept["stepped"] = 1
        elif isinstance(message, Gathered):
            exchange.hear(message)
        else:
            assert isinstance(message, Meaned)
            kept["handed"] = 0
            centre = exchange.hops.centre.hear(message.model)
            view.take(Vector(centre.parts[: len(replica.flat.parts)]))
            await node.broadcast(exchange.children, Meaned(message.last, message.model))
            if message.last:
                await node.send(node.address, LastRoundOver())
                return


class TreeRoot(ServerProgram):
    """Moves the centre towards the mean of all models, and sends it down, until all have done their last step.

    Nobody says goodbye to it: what comes up the tree says who is done.
    """

    over = False

    def __init__(self, node: Node, replica: Replica, *, mix: float, codec: Codec) -> None:
        super().__init__(node, replica)
        self.mix, self.exchange = mix, background_exchange(node, replica, codec)
        self.hears = {Gathered: self.take}

    async def take(self, gathered: Gathered) -> None:
        exchange, model = self.exchange, self.replica.model
        exchange.hear(gathered)
        if exchange.complete:
            total = exchange.gather(model.map(torch.zeros_like))
            model.lerp_(total.model.mul_(1 / self.node.workers), self.mix)
            self.replica.moved()
            self.over = total.done == self.node.workers
            await self.node.broadcast(exchange.children, Meaned(int(self.over), exchange.hops.centre.tell(model)))


def background_exchange(node: Node, replica: Replica, codec: Codec) -> BackgroundExchange:
    kept = node.remember("exchange", BackgroundExchange.fresh()).value
    return BackgroundExchange(node, kept, Hops(node, replica, codec))


@dataclass(frozen=True, kw_only=True, slots=True)
class Mpca:
    """A penalty in the loss draws workers to a centre, averaged in the background and extrapolated (soft-bounded)."""

    rho: float = 0.1
    bound: int = 10  # steps for which the centre is extrapolated; an older one pulls harder
    mix: float = 1.0  # how far the centre moves towards each new mean

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        refuse_carrying(codec)
        if self.rho < 0 or self.bound < 1:
            raise PlanError(f"mpca(rho={self.rho:g}, bound={self.bound}): rho is 0 or more, and bound at least 1 step")
        if not 0 < self.mix <= 1:
            raise PlanError(f"mpca(mix={self.mix:g}): must lie in (0, 1]")

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, rho=self.rho, bound=self.bound, codec=codec)
            return [
                *(Role(Address("worker", rank), work, trains=True) for rank in range(workers)),
                Role(MASTER, partial(serve, TreeRoot, mix=self.mix, codec=codec), scored=True),
            ]

        return Strategy(
            name="mpca", settings=written(self, rho=self.rho, bound=self.bound), roles=roles,
            description=Description(scored="the centre", rate="unchanged: each worker's own"),
            taxonomy=Taxonomy(
                optimization="decentral", architecture="server", scheduling="soft", exchange="binomial tree",
                topology="dedicated master",
            ),
        )  # fmt: skip
