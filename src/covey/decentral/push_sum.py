"""SGP: push shares of one's model and weight along a directed graph; the quotient of both comes to the mean."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import partial

from covey.errors import PlanError
from covey.message import Address, Message
from covey.program import Memory, Node
from covey.replica import Replica
from covey.strategy import GROW, Role, Strategy, Taxonomy
from covey.topology import Graph
from covey.vector import Vector


class Push(Message):
    """A share of a worker's x, and the same share of its weight."""

    step: int
    share: Vector
    weight: float


async def worker(node: Node, replica: Replica, *, graph: Graph, overlap: int) -> None:
    """Step at z, push shares of x along the graph of this step, take in those that were pushed `overlap` steps ago.

    The replica holds z = x / y, where gradients are taken, and y is its weight in the scored model: sum x / sum y.
    """
    weight = node.remember(1.0)
    missing: Memory[list[tuple[int, int]]] = node.remember([])  # (step, sender) of what was pushed and has not come
    replica.weight = weight.value
    for step in node.steps():
        grad = await replica.gradient(node)
        replica.apply(grad, scale=1 / weight.value)  # x - rate * gradient, seen from z = x / y
        await node.note("update")
        present, now = node.present(step), graph.at(step)
        shares = given(now, node.rank, present)
        for peer, share in shares.items():
            push = Push(step, replica.model * (share * weight.value), share * weight.value)
            await node.send(Address("worker", peer), push, loan=True)
        replica.weight = weight.value = weight.value * (1 - sum(shares.values()))
        missing.value += [(step, peer) for peer in now.neighbours(node.rank) if peer in present]
        await take_in(node, replica, weight, missing, due=step - overlap)
    await take_in(node, replica, weight, missing, due=node.step)


def given(graph: Graph, rank: int, present: Collection[int]) -> dict[int, float]:
    """What a worker gives to each one that hears it; what it would give to those who have ended, it keeps."""
    return {peer: graph.weight(peer, rank) for peer in graph.hearers(rank) if peer in present}


async def take_in(
    node: Node, replica: Replica, weight: Memory[float], missing: Memory[list[tuple[int, int]]], due: int
) -> None:
    """Add up what was pushed to this worker: all that came, and all that is due."""
    pushes: list[Push] = []
    for step, peer in list(missing.value):
        sender = Address("worker", peer)
        push: Push | None
        if step <= due:  # the oldest come first, so that none of those below has a chance to come meanwhile
            push = await node.receive(Push, sender=sender, step=step)
        else:
            push = node.receive_nowait(Push, sender=sender)
        if push is not None:
            missing.value.remove((step, peer))
            pushes.append(push)
    kept = weight.value
    replica.weight = weight.value = kept + sum(push.weight for push in pushes)
    replica.model.mul_(kept / weight.value)
    for push in pushes:
        replica.model.add_(push.share, alpha=1 / weight.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sgp:
    """Push-sum over directed graphs that may change every step; a share may come `overlap` steps late (Assran 2019)."""

    overlap: int = 0

    def strategy(self, workers: int, graph: Graph, over: str) -> Strategy:
        graph.check_push()
        if self.overlap < 0:
            raise PlanError(
                f"sgp(overlap={self.overlap}): 0 waits for the shares of this step, 1 for those of the last"
            )

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, graph=graph, overlap=self.overlap)
            return [Role(Address("worker", rank), work, trains=True, scored=True) for rank in range(workers)]

        return Strategy(
            name="sgp", settings=asdict(self), roles=roles, over=over,
            scored="the mean of the workers' x, over that of their weights",
            rate="unchanged: each worker's own", scaling=GROW,
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", scheduling="bounded" if self.overlap else "synchronous",
                exchange="push-sum", topology="1-peer exponential" if over == "one_peer_exponential" else over,
            ),
        )  # fmt: skip
