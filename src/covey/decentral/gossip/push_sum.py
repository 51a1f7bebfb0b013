"""SGP: push shares of one's model and weight along a directed graph; the quotient of both comes to the mean."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from covey.decentral.gossip.gossip_lists import Contents
from covey.decentral.gossip.leased_gossip import GossipLeases
from covey.decentral.step_shares import StepShares
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.exchange.differences import model_gaps, model_wires, refuse_lagging
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Memory, Node
from covey.strategy import GROW, Description, Role, Strategy, Taxonomy
from covey.topology import Graph
from covey.vector import Vector


class PushShare(Message):
    """A share of a worker's x, and the same share of its weight; or, encoded, how its z has changed."""

    wire_name = "push_sum.push"

    step: int
    share: Vector
    weight: float


class CountedPush(Message):
    """The same where workers come and go, and which batches the share contains."""

    wire_name = "push_sum.counted"

    step: int
    share: Vector
    weight: float
    contains: Contents


class PushedShares:
    """Shares that travel as they are."""

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        self.replica = replica

    def give(self, peer: int, weight: float) -> Vector:
        """What goes to this peer with this much of one's weight."""
        return self.replica.model * weight

    def take_in(self, kept: float, pushes: Sequence[PushShare | CountedPush], total: float) -> None:
        """z = (kept z + shares) / total."""
        self.replica.model.mul_(kept / total)
        for push in pushes:
            self.replica.model.add_(push.share, alpha=1 / total)


class EncodedShares(PushedShares):
    """Shares that travel as what has changed of z since this peer last heard it."""

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        super().__init__(node, replica, codec)
        self.gaps = model_gaps(node, replica, codec)
        self.told = model_wires(node, replica, codec, "told", "push")

    def give(self, peer: int, weight: float) -> Vector:
        return self.told.tell(self.replica.model, peer)

    def take_in(self, kept: float, pushes: Sequence[PushShare | CountedPush], total: float) -> None:
        gaps = [self.gaps.hear(push.share, push.sender.rank) for push in pushes]
        for gap, push in zip(gaps, pushes, strict=True):
            self.replica.model.add_(gap, alpha=push.weight / total)


async def worker(node: Node, replica: Replica, *, graph: Graph, overlap: int, codec: Codec) -> None:
    """Step at z, push shares of x along the graph of this step, take in those that were pushed `overlap` steps ago.

    The replica holds z = x / y, where gradients are taken, and y is its weight in the scored model: sum x / sum y.
    """
    if node.incarnation.leased:
        return await leased_worker(node, replica, graph=graph, overlap=overlap)
    weight = node.remember("weight", 0.0 if node.incarnation.number else 1.0)
    # (step, sender) of what was pushed and has not come
    missing: Memory[list[tuple[int, int]]] = node.remember("missing", [])
    replica.weigh(weight.value)
    # without a codec shares of x are added up, which is exact; a change can only be of z
    travelling = codec.either(PushedShares, EncodedShares)(node, replica, codec)
    pushed = StepShares(node, replica, PushShare, graph.neighbours(node.rank), weight)
    going = await pushed.enter()
    for step in node.steps() if going else ():
        grad = await replica.gradient(node)
        replica.apply(grad, scale=1 / weight.value)  # x - rate * gradient, seen from z = x / y
        await node.note("update")
        present, now = node.present(step), graph.at(step)
        shares = given(now, node.rank, present)
        for peer, share in shares.items():
            push = PushShare(step, travelling.give(peer, share * weight.value), share * weight.value)
            await node.send(Address("worker", peer), push, loan=True, paced=True)  # it waits for theirs, below
        pushed.sent(step)
        weight.value = weight.value * (1 - sum(shares.values()))
        replica.weigh(weight.value)
        missing.value += [(step, peer) for peer in now.neighbours(node.rank) if peer in present]
        await take_in(pushed, travelling, weight, missing, due=step - overlap)
    if going:
        await take_in(pushed, travelling, weight, missing, due=node.step)
    await pushed.part()


class LeasedPushes:
    """What was pushed to a worker where workers come and go."""

    def __init__(self, node: Node, replica: Replica) -> None:
        self.node, self.replica = node, replica
        self.weight = Memory(0.0 if node.incarnation.number else 1.0)
        self.travelling = PushedShares(node, replica, dense)
        self.leases = GossipLeases(node, replica, self.take_in, self.weight)
        self.missing: list[tuple[int, int]] = []  # (step, sender) of what was pushed and has not come
        self.came: list[CountedPush] = []
        self.version = self.leases.version
        replica.weigh(self.weight.value)

    async def push(self, graph: Graph) -> None:
        """Give shares of x and y to those that hear this worker in this step."""
        if self.version != self.leases.version:  # when all met, nothing was on its way
            self.version, self.missing = self.leases.version, []
        node, active = self.node, self.leases.active()
        now = self.leases.among(graph).at(node.step)
        had, shares = self.weight.value, given(now, node.rank, active)
        self.weigh(had * (1 - sum(shares.values())))
        for peer, share in shares.items():
            push = CountedPush(node.step, self.travelling.give(peer, share * had), share * had, self.leases.contains())
            await node.send(Address("worker", peer), push, loan=True, paced=True)
        self.missing += [(node.step, peer) for peer in now.neighbours(node.rank) if peer in active]

    async def gather(self, due: int) -> None:
        """Wait for all that is due, and take what else has come of these steps, the oldest first."""
        for step, peer in list(self.missing):
            sender = Address("worker", peer)
            if step <= due:
                push = await self.node.receive(CountedPush, sender=sender, step=step)
            elif (come := self.node.receive_nowait(CountedPush, sender=sender)) is not None:
                push = come
            else:
                continue
            self.missing.remove((step, peer))
            self.came.append(push)

    def take_in(self) -> None:
        """All that has come, of whatever step."""
        while push := self.node.receive_nowait(CountedPush):
            self.came.append(push)
        self.add()

    def add(self) -> None:
        """z = (y z + shares) / (y + weights)."""
        pushes, self.came = self.came, []
        kept, total = self.weight.value, self.weight.value + sum(push.weight for push in pushes)
        if pushes:
            self.travelling.take_in(kept, pushes, total)
            self.weigh(total)
        for push in pushes:
            self.leases.took_in(push.sender, push.contains)

    def weigh(self, weight: float) -> None:
        self.weight.value = weight
        self.replica.weigh(weight)


async def leased_worker(node: Node, replica: Replica, *, graph: Graph, overlap: int) -> None:
    """The same on the graphs of those that are there, with batches that are leased."""
    pushed = LeasedPushes(node, replica)
    leases = pushed.leases
    going = await leases.begin_here()
    while going:
        while (lease := await leases.lease()) and node.training():
            grad = await leases.gradient(lease)
            replica.apply(grad, scale=1 / pushed.weight.value)
            leases.did()
            await node.note("update")
            await pushed.push(graph)
            await leases.conclude(partial(pushed.gather, node.step - overlap), pushed.add)
        going = not await leases.part_from_all()


def given(graph: Graph, rank: int, present: Collection[int]) -> dict[int, float]:
    """What a worker gives to each one that hears it; what it would give to those who have ended, it keeps."""
    return {peer: graph.weight(peer, rank) for peer in graph.hearers(rank) if peer in present}


async def take_in(
    pushed: StepShares[PushShare], travelling: PushedShares, weight: Memory[float],
    missing: Memory[list[tuple[int, int]]], due: int,
) -> None:  # fmt: skip
    """Add up what was pushed to this worker: all that came, and all that is due and was not lost."""
    pushes: list[PushShare] = []
    await pushed.look()
    for step, peer in list(missing.value):
        # the oldest come first, so that none of those below has a chance to come meanwhile
        push = await pushed.of(peer, step) if step <= due else pushed.now(peer, step)
        if push is not None or step <= due:
            missing.value.remove((step, peer))
        if push is not None:
            pushes.append(push)
    kept = weight.value
    weight.value = kept + sum(push.weight for push in pushes)
    travelling.replica.weigh(weight.value)
    travelling.take_in(kept, pushes, weight.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sgp:
    """Push-sum over directed graphs that may change every step; a share may come `overlap` steps late (Assran 2019)."""

    overlap: int = 0

    def strategy(self, workers: int, graph: Graph, over: str, codec: Codec = dense) -> Strategy:
        graph.check_push()
        refuse_lagging(codec)
        if self.overlap < 0:
            raise PlanError(
                f"sgp(overlap={self.overlap}): 0 waits for the shares of this step, 1 for those of the last"
            )

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, graph=graph, overlap=self.overlap, codec=codec)
            return [Role(Address("worker", rank), work, trains=True, scored=True) for rank in range(workers)]

        return Strategy(
            name="sgp", settings=asdict(self), roles=roles,
            description=Description(
                scored="the mean of the workers' x, over that of their weights", rate="unchanged: each worker's own",
                scaling=GROW,
            ),
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", scheduling="bounded" if self.overlap else "synchronous",
                exchange="push-sum", topology="1-peer exponential" if over == "one_peer_exponential" else over,
            ),
        )  # fmt: skip
