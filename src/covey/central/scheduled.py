"""Servers and workers that exchange slices, the first layer's first: p3, tictac, bytescheduler and staggered.

A gradient leaves as soon as backward has made it, a server updates a slice as soon as all have pushed it, and the next
forward begins with the first layer's update, while others still travel. The numbers are bsp's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from covey.central.gates import Gated
from covey.central.pushing import Pushing, Ready
from covey.central.roles import addresses, workers_and_servers
from covey.central.slices import Finished, Manner, Order, Statistics, Updated, of_slot, slices, view
from covey.central.updating import server
from covey.errors import PlanError
from covey.program import Node
from covey.replica import Replica
from covey.strategy import GROW, Role, Strategy, Taxonomy
from covey.vector import Vector


class Copy:
    """A worker's parameters, slice by slice: which update each of them has."""

    def __init__(self, node: Node, replica: Replica, count: int, manner: Manner) -> None:
        self.node, self.replica = node, replica
        self.slices = slices(replica, manner, count)
        self.of_slot = of_slot(self.slices)
        self.have = node.remember([-1] * len(self.slices)).value  # the step whose update each slice holds
        self.done = node.remember([-1]).value  # the last step whose gradient was made

    def fresh(self, slot: int) -> bool:
        return all(self.have[place] >= self.done[0] for place in self.of_slot[slot])

    async def freshen(self, slots: Sequence[int]) -> None:
        """Wait for the last update of these parameters; forward, which uses none of what comes, stands still."""
        while not all(map(self.fresh, slots)):
            self.install(await self.node.receive(Updated))

    def install(self, message: Updated) -> None:
        assert message.step <= self.done[0], "an update before this worker's gradient"
        view(self.replica.flat, self.slices[message.place]).copy_(message.params)
        self.have[message.place] = message.step

    def install_arrived(self) -> None:
        while message := self.node.receive_nowait(Updated):
            self.install(message)


async def worker(node: Node, replica: Replica, *, count: int, manner: Manner) -> None:
    """Differentiate as soon as the first layer is fresh, and push gradients while that goes on."""
    servers, everything = addresses(count), range(len(replica.layout.slots))
    copy = Copy(node, replica, count, manner)
    gated = Gated(node, replica, copy.fresh, copy.freshen)
    await node.spawn(Pushing(node, servers, copy.slices, manner).run())

    def ready(step: int, slot: int, grad: Vector, progress: float) -> None:
        node.host.post(Ready(step, slot, gated.urgency(slot), grad, sender=node.address), progress)

    for step in node.steps():
        copy.install_arrived()
        if gated.blind:
            await copy.freshen(everything)
        work = partial(gated.work, step, partial(ready, step))
        compute = replica.differentiation(node, work) if replica.norms else node.compute(work, talks=True)
        replica.batch = await compute
        copy.done[0] = step
        await replica.announce(node)
        if replica.buffers.parts:
            await node.send(servers[0], Statistics(step, replica.buffers))
    await copy.freshen(everything)
    await node.broadcast(servers, Finished())


def scheduled(name: str, manner: Manner, settings: dict[str, object]) -> Strategy:
    """The family: slices in any manner."""
    for key, value in settings.items():
        if isinstance(value, int) and value < 0:
            raise PlanError(f"{name}({key}={value}): must be 0 or more; 0 sets no limit")

    def roles(workers: int, servers: int) -> list[Role]:
        work, serve = partial(worker, count=servers, manner=manner), partial(server, manner=manner)
        return workers_and_servers(workers, work, servers, serve, one_batch=True)

    return Strategy(
        name=name, settings=settings, roles=roles, servers=1, scored="the servers' parameters",
        rate="unchanged: the mean over all workers' samples", scaling=GROW, clips="each update",
        taxonomy=Taxonomy(
            optimization="central", architecture="server", scheduling="synchronous", exchange="reduce / broadcast",
            topology="parameter servers",
        ),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class P3:
    """Parameters in slices, those of the first layers first both ways; forward waits for each layer by itself."""

    slice: int = 50_000  # numbers (Jayarajan et al. 2019); 0: parameters stay whole
    order: Order = "layers"  # fifo: as gradients are made; pulls: layers first only on the way back

    def strategy(self, workers: int) -> Strategy:
        return scheduled("p3", Manner(self.order, self.slice), {"slice": self.slice, "order": self.order})


@dataclass(frozen=True, kw_only=True, slots=True)
class TicTac:
    """Whole parameters come back in the order in which forward uses them (TIC); gradients leave as they are made."""

    def strategy(self, workers: int) -> Strategy:
        return scheduled("tictac", Manner("pulls"), {})


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteScheduler:
    """Partitions of so many bytes, the first layers' first; no more than `credit` bytes are on their way."""

    partition: int = 4_096_000  # bytes
    credit: int = 16_384_000  # bytes of a worker that servers have not confirmed

    def strategy(self, workers: int) -> Strategy:
        manner = Manner(most=self.partition, in_bytes=True, credit=self.credit)
        return scheduled("bytescheduler", manner, {"partition": self.partition, "credit": self.credit})


@dataclass(frozen=True, kw_only=True, slots=True)
class Staggered:
    """Workers take turns, a parameter at a time: at most `flows` push to a server at once, and none slows another."""

    flows: int = 1

    def strategy(self, workers: int) -> Strategy:
        if self.flows < 1:
            raise PlanError(f"staggered(flows={self.flows}): at least 1, or nobody would ever push")
        return scheduled("staggered", Manner("fifo", flows=self.flows), {"flows": self.flows})
