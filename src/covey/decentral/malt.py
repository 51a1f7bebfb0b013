"""MALT: scatter a vector into slots at one's peers, and fold what lies in one's own slots, without waiting."""

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
Share = Literal["gradient", "model"]
Slots = dict[int, deque[Vector]]


class Scatter(Message):
    """A worker's gradient or model, for its slot at the receiver."""

    step: int
    vector: Vector


async def worker(node: Node, replica: Replica, *, graph: Graph, share: Share, fold: Fold, queue: int) -> None:
    """Differentiate, scatter, fold what has come since the last time, step (Li et al. 2015)."""
    heard, hearers = graph.neighbours(node.rank), graph.hearers(node.rank)
    slots: Slots = {rank: deque(maxlen=queue) for rank in heard}  # not remembered: what a restart loses is overwritten
    await node.spawn(keeper(node, slots))
    for step in node.steps():
        vector = await local(node, replica, share)
        for peer in addresses(hearers):
            # a newer one takes the place of one that has not left, and where the link is full it is lost: no waiting
            await node.send(peer, Scatter(step, vector), keep="latest", lossy=True)
        take(replica, vector, gathered(slots), share, fold)
        await node.note("update")
    await part(node, hearers, heard)


async def together(node: Node, replica: Replica, *, graph: Graph, share: Share, fold: Fold) -> None:
    """With a barrier: nobody goes on before it has this step's vector of everyone it hears."""
    for step in node.steps():
        present = node.present(step)
        vector = await local(node, replica, share)
        await node.broadcast(addresses(r for r in graph.hearers(node.rank) if r in present), Scatter(step, vector))
        heard = addresses(rank for rank in graph.neighbours(node.rank) if rank in present)
        others = [scatter.vector for scatter in await node.gather(Scatter, heard, step=step)]
        take(replica, vector, others, share, fold)
        await node.note("update")


async def local(node: Node, replica: Replica, share: Share) -> Vector:
    """What a worker has to give: its gradient, or its model after its own step."""
    grad = await replica.gradient(node)
    if share == "gradient":
        return grad
    replica.apply(grad)
    return replica.model


def take(replica: Replica, vector: Vector, others: Sequence[Vector], share: Share, fold: Fold) -> None:
    """Add the others' vectors to one's own, or take the average of all; a gradient is then stepped on."""
    for other in others:
        vector.add_(other)
    if fold == "average":
        vector.mul_(1 / (1 + len(others)))
    if share == "gradient":
        replica.apply(vector)


async def keeper(node: Node, slots: Slots) -> None:
    """Lay what comes into its sender's slots; the newest takes the place of the oldest, so they never grow."""
    while True:
        scatter = await node.receive(Scatter)
        slots[scatter.sender.rank].append(scatter.vector)


def gathered(slots: Slots) -> list[Vector]:
    """All that was not read yet, in rank order, and from now on is read."""
    unread = [vector for rank in sorted(slots) for vector in slots[rank]]
    for slot in slots.values():
        slot.clear()
    return unread


@dataclass(frozen=True, kw_only=True, slots=True)
class Malt:
    """Workers scatter gradients or models into each other's slots, and fold what lies in their own (Li et al. 2015)."""

    share: Literal["auto", "gradient", "model"] = "auto"  # gradients if all hear all, else models: these are passed on
    fold: Fold = "average"
    queue: int = 1  # slots for each sender
    barrier: bool = False

    def strategy(self, workers: int, graph: Graph, over: str) -> Strategy:
        if self.queue < 1:
            raise PlanError(f"malt(queue={self.queue}): each sender needs 1 slot or more")
        graph.check_linked()
        whole = all(graph.degree(rank) == workers - 1 for rank in graph.ranks)
        share: Share = self.share if self.share != "auto" else "gradient" if whole else "model"
        if share == "model" and self.fold == "sum":
            raise PlanError("malt(share=model, fold=sum): models can only be averaged; gradients can be summed, too")

        def roles(workers: int, servers: int) -> list[Role]:
            apart = partial(worker, graph=graph, share=share, fold=self.fold, queue=self.queue)
            work = partial(together, graph=graph, share=share, fold=self.fold) if self.barrier else apart
            return [Role(Address("worker", rank), work, trains=True, scored=True) for rank in range(workers)]

        return Strategy(
            name="malt", settings={**asdict(self), "share": share}, roles=roles, over=over,
            scored="the mean of the workers' models",
            rate="unchanged with fold=average; with fold=sum divide it by 1 + the peers",
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", exchange="scatter / gather",
                scheduling="synchronous" if self.barrier else "asynchronous",
                topology="peer-to-peer mesh" if over == "complete" else over,
            ),
        )  # fmt: skip
