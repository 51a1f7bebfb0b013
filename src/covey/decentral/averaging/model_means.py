"""How models become the mean of a group's: by summing them, or by the mean of what has changed in each, encoded."""

from __future__ import annotations

from covey.decentral.averaging.optimizer_state import stop_sent
from covey.exchange.auto import means
from covey.exchange.codec import Codec
from covey.exchange.collectives.compressed import Means, change_coder, gradient_coder
from covey.exchange.collectives.sums import Group, Pattern
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Vector


class ModelMeans:
    """Models are summed as they are."""

    def __init__(self, node: Node, replica: Replica) -> None:
        self.node, self.replica = node, replica

    async def average(self, members: Group, pattern: Pattern, also: Vector) -> None:
        """Replace the model, and what travels with it as it is, by the group's mean."""
        with self.replica.shown.steady():  # the sum grows in place
            await self.node.sum(self.replica.model.join(also), members, pattern, share=1 / len(members))

    def begin(self) -> None:
        """Everybody has the same model now."""

    def of_gradients(self) -> Means | None:
        """What encodes gradients where all step together."""
        return None


class ChangeMeans(ModelMeans):
    """Only what has changed since the model at which all began travels, encoded.

    That one moves by the mean of what others make of everybody's change, so it stays the same to the bit on all.
    """

    def __init__(self, node: Node, replica: Replica, codec: Codec, start: Vector, *seeded: str) -> None:
        super().__init__(node, replica)
        self.codec, self.start = codec, start
        self.changes = means(node, change_coder(node, replica, codec, *seeded))

    async def average(self, members: Group, pattern: Pattern, also: Vector) -> None:
        change = await self.changes.mean(self.replica.model - self.start, members, pattern)
        if self.codec.traits.momentum == "reset" and self.changes.told:
            stop_sent(self.replica, self.changes.told)
        self.replica.model.copy_(self.start).add_(change)
        if also.parts:
            await self.node.sum(also, members, pattern, share=1 / len(members))

    def begin(self) -> None:
        self.start.copy_(self.replica.model)

    def of_gradients(self) -> Means | None:
        return means(self.node, gradient_coder(self.node, self.replica, self.codec, "gradients"), "gradients")


def model_means(node: Node, replica: Replica, codec: Codec, *seeded: str, start: Vector | None = None) -> ModelMeans:
    """Means of models with a codec. All began at `start`; without one it is kept, and moves with `begin`."""
    if codec.traits.plain:
        return ModelMeans(node, replica)
    start = node.remember("common", replica.model.clone()).value if start is None else start
    return ChangeMeans(node, replica, codec, start, *seeded)
