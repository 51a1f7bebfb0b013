"""MALT: scatter the gradient into slots at one's peers, and fold what lies in one's own slots, without waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

from covey.decentral.parting import addresses, part
from covey.errors import PlanError
from covey.message import Address, Message
from covey.program import Node
from covey.replica import Replica
from covey.strategy import Role, Strategy, Taxonomy
from covey.topology import Graph
from covey.vector import Vector

Fold = Literal["average", "sum"]
Slots = dict[int, deque[Vector]]


class Scatter(Message):
    """A worker's gradient, for its slot at the receiver."""

    step: int
    grad: Vector


async def worker(node: Node, replica: Replica, *, graph: Graph, fold: Fold, queue: int) -> None:
    """Differentiate, scatter, fold what has come since the last time, step (Li et al. 2015)."""
    heard, hearers = graph.neighbours(node.rank), graph.hearers(node.rank)
    slots: Slots = {rank: deque(maxlen=queue) for rank in heard}  # not remembered: what a restart loses is overwritten
    await node.spawn(keeper(node, slots))
    for step in node.steps():
        grad = await replica.gradient(node)
        for peer in addresses(hearers):
            # a newer one takes the place of one that has not left, and where the link is full it is lost: no waiting
            await node.send(peer, Scatter(step, grad), keep="latest", lossy=True)
        folded(grad, gathered(slots), fold)
        replica.apply(grad)
        await node.note("update")
    await part(node, hearers, heard)


async def keeper(node: Node, slots: Slots) -> None:
    """Lay what comes into its sender's slots; the newest takes the place of the oldest, so they never grow."""
    while True:
        scatter = await node.receive(Scatter)
        slots[scatter.sender.rank].append(scatter.grad)


def gathered(slots: Slots) -> list[Vector]:
    """All that was not read yet, in rank order, and from now on is read."""
    unread = [grad for rank in sorted(slots) for grad in slots[rank]]
    for slot in slots.values():
        slot.clear()
    return unread


async def together(node: Node, replica: Replica, *, graph: Graph, fold: Fold) -> None:
    """With a barrier: nobody steps before it has this step's gradient of everyone it hears."""
    for step in node.steps():
        present = node.present(step)
        grad = await replica.gradient(node)
        await node.broadcast(addresses(r for r in graph.hearers(node.rank) if r in present), Scatter(step, grad))
        heard = addresses(rank for rank in graph.neighbours(node.rank) if rank in present)
        folded(grad, [scatter.grad for scatter in await node.gather(Scatter, heard, step=step)], fold)
        replica.apply(grad)
        await node.note("update")


def folded(grad: Vector, others: Sequence[Vector], fold: Fold) -> None:
    """Add the others' gradients to one's own, or take the average of all."""
    for other in others:
        grad.add_(other)
    if fold == "average":
        grad.mul_(1 / (1 + len(others)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Malt:
    """Each worker scatters its gradient to its peers, who fold what they have of each other into their own step."""

    fold: Fold = "average"
    queue: int = 1  # slots for each sender
    barrier: bool = False

    def strategy(self, workers: int, graph: Graph, over: str) -> Strategy:
        if self.queue < 1:
            raise PlanError(f"malt(queue={self.queue}): each sender needs 1 slot or more")
        graph.check_linked()

        def roles(workers: int, servers: int) -> list[Role]:
            apart = partial(worker, graph=graph, fold=self.fold, queue=self.queue)
            work = partial(together, graph=graph, fold=self.fold) if self.barrier else apart
            return [Role(Address("worker", rank), work, trains=True, scored=True) for rank in range(workers)]

        return Strategy(
            name="malt", settings=asdict(self), roles=roles, over=over, scored="the mean of the workers' models",
            rate="unchanged with fold=average; with fold=sum divide it by 1 + the peers",
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", exchange="scatter / gather",
                scheduling="synchronous" if self.barrier else "asynchronous",
                topology="peer-to-peer mesh" if over == "complete" else over,
            ),
        )  # fmt: skip
