"""Value-bounded asynchrony (VAP): a worker waits by the size of its unseen changes, not by its lead in steps.

A worker's change is applied at home at once, and elsewhere when the server makes it visible; it is synchronized once
everybody has seen it. Wei et al. 2013; Dai et al. 2015.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from math import sqrt

from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.exchange.collectives.compressed import gradient_coder
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.names import option
from covey.observe.tally import GradientAge
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.servers.server_program import ServerProgram, serve
from covey.strategy import Description, Role, ServerPlan, Strategy, Taxonomy
from covey.vector import Vector, largest

SERVER = Address("server", 0)


class ViewChange(Message):
    """What a worker did to its weights in a step, having seen this many changes before."""

    wire_name = "value_bound.change"

    step: int
    seen: int
    change: Vector
    buffers: Vector


class Visible(Message):
    """Another worker's change."""

    wire_name = "value_bound.visible"

    owner: int
    step: int
    change: Vector


class ChangeSeen(Message):
    """A worker has applied that change."""

    wire_name = "value_bound.seen"

    owner: int
    step: int

    counted = False


class ChangeSynchronized(Message):
    """Everybody has applied your change of this step."""

    wire_name = "value_bound.synchronized"

    step: int

    counted = False


class Room(Message):
    """(From a worker's listener to itself) Something was synchronized: look again."""

    wire_name = "value_bound.room"
    counted = False


@dataclass(frozen=True, slots=True)
class UnseenBound:
    """How much may be unseen; where it decays, v0 / sqrt(t) with the number t of its worker's change, from 1."""

    start: float
    decays: bool = False

    def at(self, step: int) -> float:
        return self.start / sqrt(step + 1) if self.decays else self.start


def fits(unseen: list[Vector], change: Vector, bound: float) -> bool:
    """Whether all of them together stay within max(u, bound); alone, any change does (or nobody could ever go on)."""
    if not unseen:
        return True
    total = change.clone()
    for other in unseen:
        total.add_(other)
    return largest(total) <= max(largest(change), bound)


class WorkerView:
    """A worker's weights: its own changes at once, the others' as they become visible."""

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        self.node, self.replica = node, replica
        self.coder = gradient_coder(node, replica, codec)
        self.memory = node.remember("codec", self.coder.memory)
        self.pending: dict[int, Vector] = {}  # own changes that somebody has not seen
        self.seen = node.remember("seen", [0]).value  # how many changes these weights hold
        self.waiting = False
        replica.shield()

    async def listen(self) -> None:
        """Take in what becomes visible, also while the worker computes."""
        while True:
            word = await self.node.receive_any(Visible, ChangeSynchronized)
            if isinstance(word, Visible):
                self.replica.flat.add_(self.coder.decode(word.change))
                self.seen[0] += 1
                await self.node.send(SERVER, ChangeSeen(word.owner, word.step))
            elif isinstance(word, ChangeSynchronized):
                del self.pending[word.step]
                if self.waiting:
                    self.waiting = False
                    await self.node.send(self.node.address, Room())

    def step(self, grad: Vector, scale: float) -> Vector:
        """What one step of the optimizer would change; the weights stay."""
        before = self.replica.flat.clone()
        self.replica.apply(grad, scale)
        change = self.replica.flat - before
        self.replica.flat.copy_(before)
        return change

    async def make(self, change: Vector, bound: UnseenBound) -> None:
        """Apply and push a change, as it travels, as soon as one's unseen changes together stay within the bound."""
        step = self.node.step
        wire, self.memory.value = self.coder.encode(change, self.memory.value)
        change = self.coder.decode(wire)
        while not fits(list(self.pending.values()), change, bound.at(step)):
            self.waiting = True
            await self.node.receive(Room, sender=self.node.address)
        self.pending[step] = change
        self.replica.flat.add_(change)
        await self.node.send(SERVER, ViewChange(step, self.seen[0], wire, self.replica.buffers))
        self.seen[0] += 1


async def worker(node: Node, replica: Replica, *, bound: UnseenBound, codec: Codec) -> None:
    """Differentiate, and change the weights while what is unseen of one's changes stays small."""
    view = WorkerView(node, replica, codec)
    await node.spawn(view.listen())
    while node.training():
        change = view.step(await replica.gradient(node), 1 / node.workers)
        await view.make(change, bound)
    await node.send(SERVER, Goodbye())
    await node.receive(Goodbye, sender=SERVER)


class VisibilityGate(ServerProgram):
    """The server's work: make changes visible, know who has seen them; strong: only this much at a time."""

    def __init__(self, node: Node, replica: Replica, *, bound: UnseenBound | None, codec: Codec) -> None:
        super().__init__(node, replica)
        self.bound, self.coder = bound, gradient_coder(node, replica, codec)
        self.members = list(range(node.workers))
        self.changes = node.remember("changes", [0]).value
        self.queue: list[ViewChange] = []
        self.half: dict[tuple[int, int], tuple[Vector, set[int]]] = {}  # visible to some: the change, who is missing
        self.hears = {ViewChange: self.take, ChangeSeen: self.see}

    async def take(self, change: ViewChange) -> None:
        await self.note_update([GradientAge(self.changes[0] - change.seen, change.sender)])
        self.keep_buffers([change.buffers])
        self.changes[0] += 1
        self.queue.append(change)

    async def see(self, seen: ChangeSeen) -> None:
        if (seen.owner, seen.step) in self.half:  # else the sender has left, and was not waited for
            self.half[seen.owner, seen.step][1].discard(seen.sender.rank)

    async def left(self, who: Address) -> None:
        """No change goes there any more."""
        self.members = [member for member in self.members if member != who.rank]
        for _, missing in self.half.values():
            missing.discard(who.rank)
        await self.node.send(who, Goodbye())

    async def settle(self) -> None:
        """Tell owners what everybody has seen, and make visible what may become so."""
        released = True
        while released:
            for owner, step in [key for key, (_, missing) in self.half.items() if not missing]:
                del self.half[owner, step]
                if owner in self.members:
                    await self.node.send(Address("worker", owner), ChangeSynchronized(step))
            released = bool(self.queue) and self.may_release(self.queue[0])
            if released:
                await self.release(self.queue.pop(0))

    def may_release(self, change: ViewChange) -> bool:
        half = [half for half, _ in self.half.values()]
        return self.bound is None or fits(half, self.coder.decode(change.change), self.bound.at(change.step))

    async def release(self, change: ViewChange) -> None:
        owner = change.sender.rank
        others = [rank for rank in self.members if rank != owner]
        decoded = self.coder.decode(change.change)
        self.half[owner, change.step] = decoded, set(others)
        self.replica.flat.add_(decoded)
        self.replica.moved()
        for rank in others:
            await self.node.send(Address("worker", rank), Visible(owner, change.step, change.change))


@dataclass(frozen=True, kw_only=True, slots=True)
class Vap:
    """Value bound: a worker waits while its own changes that others have not seen would exceed `bound` anywhere."""

    bound: float = 0.1
    strong: bool = False  # also hold back changes while those seen by some but not all would exceed it
    decay: bool = False  # the bound of a worker's t-th change is bound / sqrt(t), under which convergence is proven

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        if not self.bound > 0:
            raise PlanError(
                f"vap(bound={self.bound}): the bound must be more than 0 (a tiny one allows one unseen change at a "
                "time)"
            )

        bound = UnseenBound(self.bound, self.decay)

        def roles(workers: int, servers: int) -> list[Role]:
            if servers != 1:
                raise PlanError(
                    f"{option('servers', servers)}: vap needs 1 server, which tracks what each worker has seen"
                )
            work, held = partial(worker, bound=bound, codec=codec), bound if self.strong else None
            return [
                *(Role(Address("worker", rank), work, trains=True) for rank in range(workers)),
                Role(SERVER, partial(serve, VisibilityGate, bound=held, codec=codec), scored=True),
            ]

        return Strategy(
            name="vap", settings=asdict(self) | {"decay": self.decay or None}, roles=roles, servers=ServerPlan(1),
            description=Description(scored="the server's parameters", rate="each change counts 1/workers"),
            taxonomy=Taxonomy(
                optimization="central", architecture="server", scheduling="bounded", exchange="ad hoc",
                topology="single server",
            ),
        )  # fmt: skip
