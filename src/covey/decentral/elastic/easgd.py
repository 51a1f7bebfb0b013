"""Elastic averaging SGD: workers and a centre attract each other with the same force."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from covey.decentral.elastic.centre import MASTER, Centre, CentreMaster, Elastic, ElasticForce, ReadCentre, Trend, move
from covey.decentral.elastic.leased_easgd import LeasingMaster, leased_worker
from covey.decentral.written_settings import written
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.exchange.differences import refuse_carrying
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.servers.server_program import ServerProgram, serve
from covey.servers.standing import rejoin
from covey.strategy import Description, Role, Strategy, Taxonomy
from covey.vector import Vector

Mode = Literal["asynchronous", "synchronous", "round_robin"]


async def worker(
    node: Node, replica: Replica, *, period: int, pull: float, momentum: float, adapt: bool, codec: Codec
) -> None:  # fmt: skip
    """Every `period` steps measure the force at the weights before the gradient, and move both sides by it."""
    if node.incarnation.leased:
        return await leased_worker(node, replica, pull=pull, momentum=momentum, adapt=adapt, codec=codec)
    velocity = node.remember("velocity", replica.flat.map(torch.zeros_like) if momentum else Vector(())).value
    elastic_force = ElasticForce(node, replica, codec)
    trend = Trend(node.remember("trend", [pull, 0.0, 0.0, 0.0]).value, pull, ceiling=1.9 / (node.workers + 1))
    going = await rejoin(node, replica, [MASTER], Centre)
    if going and node.incarnation.enters:
        replica.model.copy_((await node.ask(MASTER, ReadCentre(), Centre)).model)
    for step in node.steps() if going else ():
        force = None
        if step % period == 0:  # step 0 included (Zhang et al. 2015, Algorithm 1)
            centre = await node.ask(MASTER, ReadCentre(), Centre)
            force, wire = elastic_force.force(centre.model, trend.pull() if adapt else pull)
            await node.send(MASTER, Elastic(wire), loan=True)
        if momentum:
            await node.save_point()  # before which nothing may have moved
            replica.flat.add_(velocity.mul_(momentum))  # Algorithm 2: the gradient is taken where momentum leads
        move(replica, await replica.gradient(node), velocity, momentum)
        await node.note("update")
        trend.add(replica.batch.loss)
        if force is not None:
            replica.model.add_(force, alpha=-1)
    await node.send(MASTER, Goodbye())


class OrderlyMaster(CentreMaster):
    """Serves every worker once a round: all from the same centre, or in rank order, each from a fresh one."""

    def __init__(self, node: Node, replica: Replica, *, period: int, together: bool, codec: Codec) -> None:
        super().__init__(node, replica, codec=codec)
        self.period, self.together = period, together
        self.round = node.remember("round", [0]).value
        self.asked, self.waiting = set[Address](), list[Address]()
        self.hears = {ReadCentre: self.read}

    async def read(self, read: ReadCentre) -> None:
        self.asked.add(read.sender)

    def turn(self) -> list[Address]:
        """Who is served next."""
        self.waiting = self.waiting or list(self.node.members(self.round[0] * self.period))
        return self.waiting if self.together else self.waiting[:1]

    async def settle(self) -> None:
        """Give all whose turn it is the centre as it is now, then move it by their forces, in rank order."""
        while (turn := self.turn()) and self.asked.issuperset(turn):
            for peer in turn:
                await self.show(peer)
            for elastic in await self.node.gather(Elastic, turn):
                await self.move(elastic)
            self.asked.difference_update(turn)
            self.waiting = self.waiting[len(turn) :]
            self.round[0] += not self.waiting


def free_master(node: Node, replica: Replica, *, codec: Codec, period: int) -> ServerProgram:
    """A master that waits for nobody, in a run of a fixed number of workers or in one to which they come and go."""
    if node.incarnation.leased:
        return LeasingMaster(node, replica, codec=codec, period=period)
    return CentreMaster(node, replica, codec=codec)


@dataclass(frozen=True, kw_only=True, slots=True)
class Easgd:
    """Elastic averaging: each worker and the centre are drawn towards each other (Zhang et al. 2015)."""

    period: int = 4
    pull: float | None = None  # 0.9 / workers (Zhang et al. 2015, section 5.1: beta = 0.9)
    mode: Mode = "asynchronous"
    momentum: float = 0.0
    adapt: bool = False  # raise the pull while the loss stalls

    def strategy(self, workers: int, codec: Codec = dense, name: str = "easgd") -> Strategy:
        refuse_carrying(codec)
        pull = 0.9 / workers if self.pull is None else self.pull
        if self.period < 1:
            raise PlanError(f"{name}(period={self.period}): exchange after every 1 step or more")
        if not 0 < pull * (workers + 1) < 2:
            limit = 2 / (workers + 1)
            raise PlanError(f"{name}(pull={pull:g}): with {workers} workers the pull must lie in (0, {limit:.3f})")
        if not 0 <= self.momentum < 1:
            raise PlanError(f"{name}(momentum={self.momentum:g}): must lie in [0, 1)")

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(
                worker, period=self.period, pull=pull, momentum=self.momentum, adapt=self.adapt, codec=codec
            )  # fmt: skip
            orderly = partial(OrderlyMaster, period=self.period, together=self.mode == "synchronous")
            free = partial(free_master, period=self.period)
            tend = partial(serve, free if self.mode == "asynchronous" else orderly, codec=codec)
            return [
                *(Role(Address("worker", rank), work, trains=True) for rank in range(workers)),
                Role(MASTER, tend, scored=True),
            ]

        shown: dict[str, Any] = {"momentum": self.momentum} if name == "eamsgd" else {}
        return Strategy(
            name=name, settings=written(self, period=self.period, pull=pull, **shown), roles=roles,
            rigid="" if self.mode == "asynchronous" else "its master waits for all workers: use mode=asynchronous",
            description=Description(
                scored="the centre",
                rate="times 1 - momentum: it keeps its meaning" if self.momentum else "unchanged: each worker's own",
            ),
            taxonomy=Taxonomy(
                optimization="decentral", architecture="server",
                scheduling="asynchronous" if self.mode == "asynchronous" else "synchronous", exchange="ad hoc",
                topology="single master",
            ),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Eamsgd(Easgd):
    """Elastic averaging with Nesterov momentum: the gradient is taken ahead, the force acts on the model alone."""

    momentum: float = 0.99

    def strategy(self, workers: int, codec: Codec = dense, name: str = "eamsgd") -> Strategy:
        return Easgd.strategy(self, workers, codec, name)
