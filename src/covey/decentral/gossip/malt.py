"""MALT: scatter a vector into slots at one's peers, and fold what lies in one's own slots, without waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

from covey.decentral.gossip.folding import Fold, Share, folded, take
from covey.decentral.gossip.leased_malt import leased_in_step, leased_slots, leased_together
from covey.decentral.leaving import addresses, part
from covey.decentral.peer_membership import PeerMembership
from covey.decentral.step_shares import StepShares
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.exchange.collectives.compressed import gradient_coder
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node, Program
from covey.servers.common_states import WholeReplica
from covey.servers.together import Together
from covey.strategy import GROW, Description, Role, Strategy, Taxonomy
from covey.topology import Graph
from covey.vector import Vector

Slots = dict[int, deque[Vector]]


class Scatter(Message):
    """A worker's gradient or model, for its slot at the receiver."""

    wire_name = "malt.scatter"

    step: int
    vector: Vector


class MaltWires:
    """Vectors as they travel: models as they are, gradients as a codec writes them."""

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        self.coder = gradient_coder(node, replica, codec)
        self.memory = node.remember("codec", self.coder.memory)

    def of(self, step: int, vector: Vector) -> Scatter:
        wire, self.memory.value = self.coder.encode(vector, self.memory.value)
        return Scatter(step, wire)

    def read(self, vectors: Sequence[Vector]) -> list[Vector]:
        return [self.coder.decode(vector) for vector in vectors]


async def worker(
    node: Node, replica: Replica, *, graph: Graph, share: Share, fold: Fold, queue: int, codec: Codec
) -> None:  # fmt: skip
    """Differentiate, scatter, fold what has come since the last time, step (Li et al. 2015)."""
    if node.incarnation.leased:
        return await leased_slots(node, replica, graph=graph, share=share, fold=fold, queue=queue)
    wires = MaltWires(node, replica, codec)
    heard, hearers = graph.neighbours(node.rank), graph.hearers(node.rank)
    slots: Slots = {rank: deque(maxlen=queue) for rank in heard}  # not remembered: what a restart loses is overwritten
    peers = PeerMembership(node, replica, sorted(heard))
    going = await peers.enter()
    await node.spawn(slot_keeper(node, slots))
    for step in node.steps() if going else ():
        await peers.look()
        vector = await local(node, replica, share)
        scatter = wires.of(step, vector)
        for peer in addresses(hearers):
            # a newer one takes the place of one that has not left, and where the link is full it is lost: no waiting
            await node.send(peer, scatter, keep="latest", lossy=True)
        take(replica, vector, wires.read(gathered(slots)), share, fold)
        await node.note("update")
    await (peers.part() if peers.elastic else part(node, hearers, heard))


async def together(node: Node, replica: Replica, *, graph: Graph, share: Share, fold: Fold, codec: Codec) -> None:
    """With a barrier: nobody goes on before it has this step's vector of everyone it hears."""
    if node.incarnation.leased:
        return await leased_together(node, replica, graph=graph, share=share, fold=fold)
    wires, shares = MaltWires(node, replica, codec), StepShares(node, replica, Scatter, graph.neighbours(node.rank))
    for step in node.steps() if await shares.enter() else ():
        present = node.present(step)
        vector = await local(node, replica, share)
        hearers = [rank for rank in graph.hearers(node.rank) if rank in present]
        await shares.broadcast(hearers, step, wires.of(step, vector))
        heard = [rank for rank in graph.neighbours(node.rank) if rank in present]
        others = [scatter.vector for scatter in await shares.gather(heard, step)]
        take(replica, vector, wires.read(others), share, fold)
        await node.note("update")
    await shares.part()


async def in_step(node: Node, replica: Replica, *, graph: Graph, share: Share, fold: Fold, codec: Codec) -> None:
    """The same where all hear all, and gradients travel: the models stay alike, also when a worker is lost."""
    if node.incarnation.leased:
        return await leased_in_step(node, replica, fold=fold)
    wires, round_of_all = MaltWires(node, replica, codec), Together(node, WholeReplica(replica))
    for step in node.steps() if await round_of_all.enter(replica) else ():
        group = node.members(step)
        grad = await replica.gradient(node)
        fold_all = partial(exchange, node, wires, [who for who in group if who != node.address], grad, fold)
        if await round_of_all.round(step, group, fold_all, grad):
            replica.apply(grad)
            await node.note("update")
            await round_of_all.part(step)
    await round_of_all.leave()


async def exchange(node: Node, wires: MaltWires, others: Sequence[Address], grad: Vector, fold: Fold) -> None:
    """Give all others this step's gradient, and fold theirs."""
    await node.broadcast(others, wires.of(node.step, grad))
    came = [scatter.vector for scatter in await node.gather(Scatter, others, step=node.step)]
    folded(grad, wires.read(came), fold)


async def bounded(
    node: Node, replica: Replica, *, graph: Graph, share: Share, fold: Fold, bound: int, codec: Codec
) -> None:  # fmt: skip
    """Bounded staleness: fold what has come, but never without the vectors of `bound` steps ago; none is lost.

    Who is `bound` steps ahead of a peer waits, so what lies unread is bounded too, and needs no slots.
    """
    if node.incarnation.leased:
        return await leased_together(node, replica, graph=graph, share=share, fold=fold, bound=bound)
    heard, hearers = graph.neighbours(node.rank), graph.hearers(node.rank)
    newest = node.remember("newest", dict.fromkeys(heard, -1)).value  # the last step that was folded of each
    wires, shares = MaltWires(node, replica, codec), StepShares(node, replica, Scatter, heard)
    for step in node.steps() if await shares.enter() else ():
        present = node.present(step)
        vector = await local(node, replica, share)
        scatter = wires.of(step, vector)
        for peer in addresses(rank for rank in hearers if rank in present):
            await node.send(peer, scatter, paced=True)  # nobody is more than `bound` of them ahead
        shares.sent(step)
        due = {rank: min(step - bound, last(node, rank)) for rank in heard}
        take(replica, vector, wires.read(await unread(shares, newest, due)), share, fold)
        await node.note("lead", max((step - newest[rank] for rank in heard if rank in present), default=0))
        await node.note("update")
    await (shares.part() if shares.elastic else part(node, hearers, heard))


def last(node: Node, rank: int) -> int:
    """The last step that a worker may do."""
    limit = node.limits[rank]
    return node.step if limit is None else limit - 1


async def unread(shares: StepShares[Scatter], newest: dict[int, int], due: dict[int, int]) -> list[Vector]:
    """All that has come, and all up to the step that is `due` of each peer; in the order of ranks, then of steps."""
    came: list[Vector] = []
    for rank in sorted(newest):
        scatters, newest[rank] = await shares.since(rank, newest[rank], due[rank])
        came += [scatter.vector for scatter in scatters]
    return came


async def local(node: Node, replica: Replica, share: Share) -> Vector:
    """What a worker has to give: its gradient, or its model after its own step."""
    grad = await replica.gradient(node)
    if share == "gradient":
        return grad
    replica.apply(grad)
    return replica.model


async def slot_keeper(node: Node, slots: Slots) -> None:
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
    bound: int | None = None  # bounded staleness: how many steps a worker may be ahead of those it hears

    def strategy(self, workers: int, graph: Graph, over: str, codec: Codec = dense) -> Strategy:
        if self.queue < 1:
            raise PlanError(f"malt(queue={self.queue}): each sender needs 1 slot or more")
        if self.bound is not None and (self.bound < 0 or self.barrier or self.queue > 1):
            raise PlanError(
                f"malt(bound={self.bound}): 0 steps or more, and without barrier and queue: a bound of 0 is a barrier, "
                "and within a bound nothing is overwritten"
            )
        graph.check_linked()
        whole = all(graph.degree(rank) == workers - 1 for rank in graph.ranks)
        share: Share = self.share if self.share != "auto" else "gradient" if whole else "model"
        if share == "model" and self.fold == "sum":
            raise PlanError("malt(share=model, fold=sum): models can only be averaged; gradients can be summed, too")
        if share == "model":
            codec.refuse(
                "malt(share=model)", "models would travel as changes, none of which may be lost, and malt's messages "
                "may; use share=gradient over complete, or dpsgd over this graph",
            )  # fmt: skip

        work: Program = partial(worker, queue=self.queue)
        stepwise = self.barrier or self.bound == 0
        alike = stepwise and whole and share == "gradient"
        if stepwise:
            work = in_step if alike else together
        elif self.bound:
            work = partial(bounded, bound=self.bound)

        def roles(workers: int, servers: int) -> list[Role]:
            program = partial(work, graph=graph, share=share, fold=self.fold, codec=codec)
            return [
                Role(Address("worker", rank), program, trains=True, scored=True, together=alike)
                for rank in range(workers)
            ]

        folded = "mean" if self.fold == "average" else "sum"
        return Strategy(
            name="malt", settings={**asdict(self), "share": share}, roles=roles,
            description=Description(
                scored="the mean of the workers' models",
                rate=f"unchanged: each worker's own, on the {folded} of what it has",
                scaling=GROW if self.fold == "average" else "divide it by 1 + the peers",
            ),
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", exchange="scatter / gather",
                scheduling="bounded" if self.bound else "synchronous" if stepwise else "asynchronous",
                topology="peer-to-peer mesh" if over == "complete" else over,
            ),
        )  # fmt: skip
