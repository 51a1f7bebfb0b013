"""Butterfly mixing: one stage of a butterfly all-reduce a step, so that a gradient reaches everyone in log2 n steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.exchange.differences import Shadows, gain, model_coder, refuse_lagging
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.strategy import GROW, Description, Role, Strategy, Taxonomy
from covey.vector import Vector


class Mix(Message):
    """A worker's model after its step, for the partner of that step."""

    wire_name = "butterfly.mix"

    step: int
    model: Vector


async def worker(node: Node, replica: Replica) -> None:
    """Step, then take the mean with the partner of this stage (Zhao & Canny 2013)."""
    for step in node.steps():
        replica.apply(await replica.gradient(node))
        await node.note("update")
        rank = partner(node.rank, step, node.workers)
        if rank != node.rank and rank in node.present(step):  # without a partner one's model stays
            peer = Address("worker", rank)
            await node.send(peer, Mix(step, replica.model))
            theirs = await node.receive(Mix, sender=peer, step=step)
            # (a + b) / 2 is the same to the bit on both sides; a + (b - a) / 2 is not
            replica.model.add_(theirs.model).mul_(0.5)


async def compressed(node: Node, replica: Replica, *, codec: Codec) -> None:
    """The same with models that travel as changes since the partner was last met; both move by the same, so their mean
    stays."""
    coder = model_coder(node, replica, codec, "mix")
    own, theirs = (Shadows(node, name, coder, replica.model) for name in ("own", "theirs"))
    share = gain(coder, replica.model, len(replica.flat.parts))
    for step in node.steps():
        replica.apply(await replica.gradient(node))
        await node.note("update")
        rank = partner(node.rank, step, node.workers)
        if rank != node.rank and rank in node.present(step):
            peer = Address("worker", rank)
            await node.send(peer, Mix(step, own.tell(replica.model, rank)))
            came = await node.receive(Mix, sender=peer, step=step)
            replica.model.add_(theirs.hear(came.model, rank) - own.of(rank), alpha=share / 2)


def partner(rank: int, step: int, workers: int) -> int:
    """Eight workers: at distance 1, 2, 4, 1, 2, 4…; one worker is its own."""
    stages = workers.bit_length() - 1
    return rank ^ (1 << step % stages) if stages else rank


@dataclass(frozen=True, kw_only=True, slots=True)
class Butterfly:
    """Each step every worker averages with one partner, at distance 1, 2, 4… of a butterfly network."""

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        refuse_lagging(codec)
        if workers & (workers - 1):
            below, above = 1 << (workers.bit_length() - 1), 1 << workers.bit_length()
            raise PlanError(
                f"butterfly pairs all workers at every distance, so their number must be a power of two: "
                f"use {below} or {above} workers instead of {workers}, or dpsgd over exponential"
            )

        def roles(workers: int, servers: int) -> list[Role]:
            work = worker if codec.traits.plain else partial(compressed, codec=codec)
            return [Role(Address("worker", rank), work, trains=True, scored=True) for rank in range(workers)]

        return Strategy(
            name="butterfly", settings={}, roles=roles,
            description=Description(
                scored="the mean of the workers' models", rate="unchanged: each worker's own", scaling=GROW,
            ),
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", scheduling="synchronous", exchange="pairwise",
                topology="butterfly",
            ),
        )  # fmt: skip
