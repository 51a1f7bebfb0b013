"""TreeEASGD: workers in a tree; a model that comes from above or below pulls its receiver, and only it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from covey.decentral.leaving import addresses, part
from covey.decentral.peer_membership import PeerMembership
from covey.decentral.written_settings import written
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.exchange.differences import model_gaps, model_wires, refuse_lagging
from covey.membership import model_lost
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.strategy import Description, Role, Strategy, Taxonomy
from covey.vector import Vector


class NeighbourPull(Message):
    """A neighbour's model, which draws the receiver towards it."""

    wire_name = "tree.sway"

    model: Vector


@dataclass(frozen=True, slots=True)
class TreePlace:
    """A worker's place in the tree: whom it hears, and after how many steps it speaks to them."""

    parent: int | None
    children: tuple[int, ...]
    up: int
    down: int

    @property
    def near(self) -> set[int]:
        return {*self.children, *([] if self.parent is None else [self.parent])}


async def worker(node: Node, replica: Replica, *, place: TreePlace, pull: float, codec: Codec) -> None:
    """Be pulled by what has come, step, and now and then send the model up or down (Zhang 2016)."""
    gone: set[int] = set()
    peers = PeerMembership(node, replica, sorted(place.near))  # the one above it first
    gaps = model_gaps(node, replica, codec)
    told = model_wires(node, replica, codec, "told", "sway")

    def be_pulled() -> None:
        while sway := node.receive_nowait(NeighbourPull):
            gaps.follow(sway.model, pull, sway.sender.rank)  # w - a (w - theirs); they do not move by it

    def sway(way: int) -> NeighbourPull:
        """The model as it travels up (1) or down (0): who hears it hears it every time."""
        return NeighbourPull(told.tell(replica.model, way))

    going = await peers.enter()
    if not going and node.rank == 0:
        raise model_lost(node.address)
    for step in node.steps() if going else ():
        be_pulled()
        await peers.look()
        gone = peers.through if peers.elastic else gone  # one that was restarted is there again
        while leaving := node.receive_nowait(Goodbye):
            gone.add(leaving.sender.rank)
        replica.apply(await replica.gradient(node))
        await node.note("update")
        if (step + 1) % place.up == 0 and place.parent is not None:
            await node.broadcast(addresses({place.parent} - gone), sway(1))
        if (step + 1) % place.down == 0:
            await node.broadcast(addresses(sorted(set(place.children) - gone)), sway(0))
    await (peers.part() if peers.elastic else part(node, place.near, place.near - gone))
    be_pulled()


def places(workers: int, fanout: int, up: int, down: int, slower: float) -> list[TreePlace]:
    """Worker 0 is the root, and r's children are r * fanout + 1, + 2…; each level nearer to the root is `slower`."""
    parents = [None if rank == 0 else (rank - 1) // fanout for rank in range(workers)]
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent is None else depths[parent] + 1)

    def every(period: int, depth: int) -> int:
        """The period of the links between this depth and the one above it."""
        return max(1, round(period * slower ** (max(depths) - depth)))

    return [
        TreePlace(
            parents[rank], tuple(child for child in range(workers) if parents[child] == rank),
            every(up, depths[rank]), every(down, depths[rank] + 1),
        )
        for rank in range(workers)
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeEasgd:
    """Elastic averaging on a tree of workers: models go up often and down rarely, and pull only their receiver."""

    fanout: int = 16
    up: int = 10
    down: int = 100
    slower: float = 1.0  # how many times as rare every level nearer to the root speaks
    pull: float | None = None  # 0.9 / (fanout + 1) (Zhang 2016)

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        refuse_lagging(codec)
        if min(self.fanout, self.up, self.down) < 1:
            raise PlanError("tree_easgd: fanout, up and down must be at least 1")
        pull = 0.9 / (self.fanout + 1) if self.pull is None else self.pull
        if not 0 < pull <= 1:
            raise PlanError(f"tree_easgd(pull={pull:g}): must lie in (0, 1]; 1 takes the other's model over")
        if self.slower < 1:
            raise PlanError(f"tree_easgd(slower={self.slower:g}): must be 1 or more")

        def roles(workers: int, servers: int) -> list[Role]:
            tree = places(workers, self.fanout, self.up, self.down, self.slower)
            works = [partial(worker, place=place, pull=pull, codec=codec) for place in tree]
            return [
                Role(Address("worker", rank), work, trains=True, scored=rank == 0) for rank, work in enumerate(works)
            ]

        shown = written(self, fanout=self.fanout, up=self.up, down=self.down, pull=pull)
        return Strategy(
            name="tree_easgd", settings=shown, roles=roles, leaves_behind=True,
            description=Description(scored="the root's model", rate="unchanged: each worker's own"),
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", scheduling="bounded", exchange="ad hoc",
                topology="tree",
            ),
        )  # fmt: skip
