"""Elastic averaging: workers and a centre pull at each other with the same force."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from covey.errors import PlanError
from covey.message import Address, Message
from covey.program import Node
from covey.replica import Replica
from covey.strategy import Role, Strategy, Taxonomy
from covey.vector import Vector

MASTER = Address("master", 0)


class Read(Message):
    """A worker asks for the centre."""


class Centre(Message):
    model: Vector


class Elastic(Message):
    """The force between a worker and the centre; both move by it, in opposite directions."""

    force: Vector


class Depart(Message):
    """A worker will pull no more."""

    counted = False


async def worker(node: Node, replica: Replica, *, period: int, pull: float) -> None:
    """Every `period` steps measure the force at the weights before the gradient, and move both sides by it."""
    for step in node.steps():
        force = None
        if step % period == 0:  # step 0 included (Zhang et al. 2015, Algorithm 1)
            centre = await node.ask(MASTER, Read(), Centre)
            force = (replica.model - centre.model) * pull
            await node.send(MASTER, Elastic(force), loan=True)
        replica.apply(await replica.gradient(node))
        await node.note("update")
        if force is not None:
            replica.model.add_(force, alpha=-1)
    await node.send(MASTER, Depart())


async def master(node: Node, replica: Replica) -> None:
    """Hand out the centre, and move it by each force as it comes."""
    left = node.remember([0])
    while left.value[0] < node.workers:
        message = await node.receive_any(Read, Elastic, Depart)
        if isinstance(message, Read):
            await node.send(message.sender, Centre(replica.model))
        elif isinstance(message, Elastic):
            replica.model.add_(message.force)
        else:
            left.value[0] += 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Easgd:
    """Elastic averaging, asynchronous: each worker and the centre are drawn towards each other (Zhang et al. 2015)."""

    period: int = 4
    pull: float | None = None  # 0.9 / workers (Zhang et al. 2015, section 5.1: beta = 0.9)

    def strategy(self, workers: int) -> Strategy:
        pull = 0.9 / workers if self.pull is None else self.pull
        if self.period < 1:
            raise PlanError(f"easgd(period={self.period}): exchange after every 1 step or more")
        if not 0 < pull * (workers + 1) < 2:
            limit = 2 / (workers + 1)
            raise PlanError(f"easgd(pull={pull:g}): with {workers} workers the pull must lie in (0, {limit:.3f})")

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, period=self.period, pull=pull)
            return [
                *(Role(Address("worker", rank), work, trains=True) for rank in range(workers)),
                Role(MASTER, master, scored=True),
            ]

        return Strategy(
            name="easgd", settings={"period": self.period, "pull": pull}, roles=roles, scored="the centre",
            rate="unchanged: each worker's own",
            taxonomy=Taxonomy(
                optimization="decentral", architecture="server", scheduling="asynchronous", exchange="ad hoc",
                topology="single master",
            ),
        )  # fmt: skip
