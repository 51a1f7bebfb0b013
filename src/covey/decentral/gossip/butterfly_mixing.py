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


class Pairs:
    """Models that are averaged as they are."""

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        self.replica = replica

    def share(self, partner: int) -> Vector:
        """What the partner is sent."""
        return self.replica.model

    def mix(self, partner: int, share: Vector) -> None:
        """(a + b) / 2, which is the same to the bit on both sides; a + (b - a) / 2 is not."""
        self.replica.model.add_(share).mul_(0.5)


class EncodedPairs(Pairs):
    """Models that travel as changes since the partner was last met; both move by the same, so their mean stays."""

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        super().__init__(node, replica, codec)
        coder = model_coder(node, replica, codec, "mix")
        self.own, self.theirs = (Shadows(node, name, coder, replica.model) for name in ("own", "theirs"))
        self.gain = gain(coder, replica.model, len(replica.flat.parts))

    def share(self, partner: int) -> Vector:
        return self.own.tell(self.replica.model, partner)

    def mix(self, partner: int, share: Vector) -> None:
        self.replica.model.add_(self.theirs.hear(share, partner) - self.own.of(partner), alpha=self.gain / 2)


async def worker(node: Node, replica: Replica, *, codec: Codec) -> None:
    """Step, then take the mean with the partner of this stage (Zhao & Canny 2013)."""
    models = codec.either(Pairs, EncodedPairs)(node, replica, codec)
    for step in node.steps():
        replica.apply(await replica.gradient(node))
        await node.note("update")
        rank = partner(node.rank, step, node.workers)
        if rank != node.rank and rank in node.present(step):  # without a partner one's model stays
            peer = Address("worker", rank)
            await node.send(peer, Mix(step, models.share(rank)))
            models.mix(rank, (await node.receive(Mix, sender=peer, step=step)).model)


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
            work = partial(worker, codec=codec)
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
