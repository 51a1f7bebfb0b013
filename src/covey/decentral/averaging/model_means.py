"""How models become the mean of a group's: by summing them, or by the mean of what has changed in each, encoded."""

from __future__ import annotations

from torch.optim import SGD, Optimizer

from covey.decentral.averaging.optimizer_state import stop_sent
from covey.exchange.auto import means
from covey.exchange.codec import Codec
from covey.exchange.collectives.compressed import Means, change_coder, gradient_coder
from covey.exchange.collectives.sums import Group, Pattern
from covey.exchange.gradient_noise import NoiseProbe, due
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Vector


class ModelMeans:
    """Models are summed as they are."""

    def __init__(self, node: Node, replica: Replica) -> None:
        self.node, self.replica = node, replica
        self.rounds, self.begun = 0, -1
        self.before: Vector | None = None  # the parameters at which all began, where their changes are looked at

    async def average(self, members: Group, pattern: Pattern, also: Vector) -> None:
        """Replace the model, and what travels with it as it is, by the group's mean."""
        before, probe, samples = self.before, None, 0
        if before is not None:
            samples = self.replica.batch.samples * (self.node.step - self.begun)
            probe = NoiseProbe(self.node, self.replica.flat - before, samples)
        with self.replica.shown.steady():  # the sum grows in place
            await self.node.sum(self.replica.model.join(also), members, pattern, share=1 / len(members))
        if before is not None and probe:
            probe.met(self.replica.flat - before, samples * len(members))

    def begin(self) -> None:
        """Everybody has the same model now."""
        self.rounds, self.begun = self.rounds + 1, self.node.step
        looked_at = due(self.rounds) and steps_on_gradients(self.replica.optimizer)
        self.before = self.replica.flat.clone() if looked_at else None

    def of_gradients(self) -> Means | None:
        """What encodes gradients where all step together."""
        return None


def steps_on_gradients(optimizer: Optimizer) -> bool:
    """Whether the change of a model is the sum of its gradients, but for their rate."""
    plain = isinstance(optimizer, SGD)
    return plain and not any(group["momentum"] or group["weight_decay"] for group in optimizer.param_groups)


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
