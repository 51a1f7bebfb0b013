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


async def worker(node: Node, replica: Replica, *, period: int, momentum: Momentum) -> None:
    """Train for `period` steps, hand the model over, go on from the mean (Moritz et al. 2016).

    All begin at the same weights, so the first broadcast is omitted. A round that is cut short counts as well.
    """
    under_way = node.remember("under_way", [0])  # the steps of this round that are done
    for step in node.steps():
        replica.apply(await replica.gradient(node))
        await node.note("update")
        under_way.value[0] += 1
        if (step + 1) % period == 0:
            under_way.value[0] = 0
            moments = OptimizerMoments(replica.optimizer, averaged=momentum == "average")
            both = replica.model.join(moments.flat)
            await node.send(MASTER, Trained(0, both), loan=True)
            await node.receive(Averaged, sender=MASTER, into=both)
            moments.put_back()
            if momentum == "reset":
                replica.optimizer.state.clear()
    if under_way.value[0]:
        under_way.value[0] = 0
        await node.send(MASTER, Trained(1, replica.model))
    await node.send(MASTER, Goodbye())


async def compressed(node: Node, replica: Replica, *, period: int, momentum: Momentum, codec: Codec) -> None:
    """The same with models that travel as changes: since the common model, up; and of that one, down."""
    under_way = node.remember("under_way", [0])
    common = Shadows(node, "common", model_coder(node, replica, codec, "down"), replica.model)
    up = change_coder(node, replica, codec, "up")
    memory = node.remember("codec", up.memory)

    async def hand_over(last: int) -> None:
        under_way.value[0] = 0
        wire, memory.value = up.encode(replica.model - common.of(), memory.value)
        await node.send(MASTER, Trained(last, wire), loan=True)

    for step in node.steps():
        replica.apply(await replica.gradient(node))
        await node.note("update")
        under_way.value[0] += 1
        if (step + 1) % period == 0:
            await hand_over(0)
            replica.model.copy_(common.hear((await node.receive(Averaged, sender=MASTER)).model))
            if momentum == "reset":
                replica.optimizer.state.clear()
    if under_way.value[0]:
        await hand_over(1)
    await node.send(MASTER, Goodbye())


class AveragingMaster(ServerProgram):
    """Waits for the model of everyone who began the round, and gives their mean to those who go on."""

    def __init__(self, node: Node, replica: Replica, *, period: int, codec: Codec) -> None:
        super().__init__(node, replica)
        self.period, self.plain = period, codec.traits.plain
        if not self.plain:
            self.up = change_coder(node, replica, codec, "up")
            self.common = Shadows(node, "common", model_coder(node, replica, codec, "down"), replica.model)
        self.round: dict[str, Any] = node.remember("round", {"round": 0, "models": {}, "going_on": []}).value
        self.hears = {Trained: self.take}

    async def take(self, trained: Trained) -> None:
        models, going_on = self.round["models"], self.round["going_on"]
        models[trained.sender.rank] = trained.model
        if not trained.last:
            going_on.append(trained.sender.rank)
        if len(models) == len(self.node.present(self.round["round"] * self.period)):
            mean = self.mean(models)
            self.round.update(round=self.round["round"] + 1, models={}, going_on=[])
            await self.node.broadcast([Address("worker", rank) for rank in sorted(going_on)], Averaged(mean))

    def mean(self, models: dict[int, Vector]) -> Vector:
        """What to give to those who go on. Changes that workers have not heard of yet stay in the master's model."""
        if self.plain:
            return averaged(self.replica, models)
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
        if self.momentum == "average" and not codec.traits.plain:
            raise PlanError(
                f"sparknet(momentum=average) with {codec.name}: the optimizers' state would travel as it is, and that "
                "is as much as the model; use momentum=keep or reset"
            )
        if self.period < 1:
            raise PlanError(f"sparknet(period={self.period}): average after every 1 step or more")

        def roles(workers: int, servers: int) -> list[Role]:
            program = worker if codec.traits.plain else partial(compressed, codec=codec)
            work = partial(program, period=self.period, momentum=self.momentum)
            return [
                *(Role(Address("worker", rank), work, trains=True) for rank in range(workers)),
                Role(MASTER, partial(serve, AveragingMaster, period=self.period, codec=codec), scored=True),
            ]

        return Strategy(
            name="sparknet", settings=written(self, period=self.period), roles=roles,
            description=Description(scored="the master's mean", rate="unchanged: each worker's own"),
            taxonomy=Taxonomy(
                optimization="decentral", architecture="server", scheduling="synchronous", exchange="reduce",
                topology="dedicated master",
            ),
        )  # fmt: skip
