"""SparkNet: a master hands out the model, workers train alone for a few steps, the master takes the mean of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from covey.decentral.averaging.optimizer_state import Momentum, OptimizerMoments
from covey.decentral.written_settings import written
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.exchange.collectives.compressed import change_coder
from covey.exchange.differences import Shadows, model_coder, refuse_carrying
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.servers.server_program import ServerProgram, serve
from covey.strategy import Description, Role, Strategy, Taxonomy
from covey.vector import Vector, mean_

MASTER = Address("master", 0)


class Trained(Message):
    """A worker's model at the end of its round; `last` when it will train no more."""

    wire_name = "sparknet.trained"

    last: int
    model: Vector


class Averaged(Message):
    """The mean of all models: where the next round begins."""

    wire_name = "sparknet.averaged"

    model: Vector


class MasterLink:
    """A worker's model on its way to the master and back, as it is; `momentum`: whether the optimizer's goes along."""

    def __init__(self, node: Node, replica: Replica, momentum: Momentum, codec: Codec) -> None:
        self.node, self.replica, self.momentum = node, replica, momentum

    async def average(self) -> None:
        """Hand the model over, and go on from the mean."""
        moments = OptimizerMoments(self.replica.optimizer, averaged=self.momentum == "average")
        both = self.replica.model.join(moments.flat)
        await self.node.send(MASTER, Trained(0, both), loan=True)
        await self.node.receive(Averaged, sender=MASTER, into=both)
        moments.put_back()

    async def end(self) -> None:
        """Hand the model over for the last time."""
        await self.node.send(MASTER, Trained(1, self.replica.model))


class EncodedLink(MasterLink):
    """Models travel as changes: since the common model, up; and of that one, down."""

    def __init__(self, node: Node, replica: Replica, momentum: Momentum, codec: Codec) -> None:
        super().__init__(node, replica, momentum, codec)
        self.common = Shadows(node, "common", model_coder(node, replica, codec, "down"), replica.model)
        self.up = change_coder(node, replica, codec, "up")
        self.memory = node.remember("codec", self.up.memory)

    async def average(self) -> None:
        await self.hand_over(0)
        averaged = await self.node.receive(Averaged, sender=MASTER)
        self.replica.model.copy_(self.common.hear(averaged.model))

    async def end(self) -> None:
        await self.hand_over(1)

    async def hand_over(self, last: int) -> None:
        wire, self.memory.value = self.up.encode(self.replica.model - self.common.of(), self.memory.value)
        await self.node.send(MASTER, Trained(last, wire), loan=True)


async def worker(node: Node, replica: Replica, *, period: int, momentum: Momentum, codec: Codec) -> None:
    """Train for `period` steps, hand the model over, go on from the mean (Moritz et al. 2016).

    All begin at the same weights, so the first broadcast is omitted. A round that is cut short counts as well.
    """
    under_way = node.remember("under_way", [0])  # the steps of this round that are done
    link = codec.either(MasterLink, EncodedLink)(node, replica, momentum, codec)
    for step in node.steps():
        replica.apply(await replica.gradient(node))
        await node.note("update")
        under_way.value[0] += 1
        if (step + 1) % period == 0:
            under_way.value[0] = 0
            await link.average()
            if momentum == "reset":
                replica.optimizer.state.clear()
    if under_way.value[0]:
        under_way.value[0] = 0
        await link.end()
    await node.send(MASTER, Goodbye())


class AveragingMaster(ServerProgram):
    """Waits for the model of everyone who began the round, and gives their mean to those who go on."""

    def __init__(self, node: Node, replica: Replica, *, period: int, codec: Codec) -> None:
        super().__init__(node, replica)
        self.period = period
        self.round: dict[str, Any] = node.remember("round", {"round": 0, "models": {}, "going_on": []}).value
        self.hears = {Trained: self.take}

    async def take(self, trained: Trained) -> None:
        models, going_on = self.round["models"], self.round["going_on"]
        models[trained.sender.rank] = trained.model
        if not trained.last:
            going_on.append(trained.sender.rank)
        if len(models) == len(self.node.present(self.round["round"] * self.period)):
            mean = self.mean(models)
            self.replica.moved()
            self.round.update(round=self.round["round"] + 1, models={}, going_on=[])
            await self.node.broadcast([Address("worker", rank) for rank in sorted(going_on)], Averaged(mean))

    def mean(self, models: dict[int, Vector]) -> Vector:
        """What to give to those who go on."""
        return averaged(self.replica, models)


class EncodedMaster(AveragingMaster):
    """The same with changes. Those that workers have not heard of yet stay in the master's model."""

    def __init__(self, node: Node, replica: Replica, *, period: int, codec: Codec) -> None:
        super().__init__(node, replica, period=period, codec=codec)
        self.up = change_coder(node, replica, codec, "up")
        self.common = Shadows(node, "common", model_coder(node, replica, codec, "down"), replica.model)

    def mean(self, models: dict[int, Vector]) -> Vector:
        for rank in sorted(models):
            self.replica.model.add_(self.up.decode(models[rank]), alpha=1 / len(models))
        return self.common.tell(self.replica.model)


def averaged(replica: Replica, models: dict[int, Vector]) -> Vector:
    """The mean in rank order; its first part becomes the master's model, what follows is the optimizers'."""
    size = len(replica.model.parts)
    ordered = [models[rank] for rank in sorted(models)]
    mean_(replica.model, [Vector(model.parts[:size]) for model in ordered], [1.0] * len(ordered))
    whole = [Vector(model.parts[size:]) for model in ordered if len(model.parts) > size]
    return replica.model.join(mean_(whole[0].clone(), whole, [1.0] * len(whole))) if whole else replica.model


@dataclass(frozen=True, kw_only=True, slots=True)
class SparkNet:
    """Train alone for `period` steps; a dedicated master averages the models and hands the mean out."""

    period: int = 5
    momentum: Momentum = "keep"  # neither averaged nor reset in the released SparkNet

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        refuse_carrying(codec)
        if self.momentum == "average":
            codec.refuse(
                "sparknet(momentum=average)", "the optimizers' state would travel as it is, and that is as much as the "
                "model; use momentum=keep or reset",
            )  # fmt: skip
        if self.period < 1:
            raise PlanError(f"sparknet(period={self.period}): average after every 1 step or more")

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, period=self.period, momentum=self.momentum, codec=codec)
            master = codec.either(AveragingMaster, EncodedMaster)
            return [
                *(Role(Address("worker", rank), work, trains=True) for rank in range(workers)),
                Role(MASTER, partial(serve, master, period=self.period, codec=codec), scored=True),
            ]

        return Strategy(
            name="sparknet", settings=written(self, period=self.period), roles=roles,
            description=Description(scored="the master's mean", rate="unchanged: each worker's own"),
            taxonomy=Taxonomy(
                optimization="decentral", architecture="server", scheduling="synchronous", exchange="reduce",
                topology="dedicated master",
            ),
        )  # fmt: skip
