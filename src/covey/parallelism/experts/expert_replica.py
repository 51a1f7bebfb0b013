"""A member of a group that divides experts, as a replica: it owns experts, and rows of all other weights."""

from __future__ import annotations

from functools import partial
from math import nan

from covey.model.batches import Batch, BatchSource
from covey.model.replica_spec import ReplicaSpec
from covey.nn.routing import RoutingNotes
from covey.parallelism.experts.token_exchange import ExpertGroup
from covey.parallelism.sharded.shard_replica import ShardParts, ShardReplica
from covey.program import Node


class ExpertReplica(ShardReplica):
    """One member's experts, which compute the tokens of all members.

    All other weights are whole while it computes. Each of their rows has one owner, as with `zero=1`: it brings the row
    to the others before a step, adds up its gradients and updates it.
    """

    instead = "members with experts cannot give: use allreduce or bsp"
    mesh = "mesh(expert=...)"

    def __init__(self, parts: ShardParts, group: ExpertGroup, given: ReplicaSpec, batch_source: BatchSource) -> None:
        super().__init__(parts, given, batch_source)
        self.group = group

    def changing(self) -> list[object]:
        return [*super().changing(), self.group]

    @property
    def needed(self) -> bool:
        return True  # others' tokens may have chosen the own experts

    def _differentiate(self, node: Node) -> Batch:
        """(On the compute thread) Forward and backward on the own batch, then on others' tokens while they come."""
        parts, step = self.parts, node.step
        group = self.samples(node)
        passes = [-(-samples // parts.size) for samples in group]
        own, batch = parts.batches.own(parts.rank, step), Batch(nan, 0)
        with self.group.step(node, group[parts.shard] / sum(group)):
            if own is not None:
                batch = self.compute.run(partial(self._batch, step, own))
            if more := max(passes) - passes[parts.shard]:
                self._serve(node, more)
        parts.weights.check_unchanged()
        return batch

    def _serve(self, node: Node, passes: int) -> None:
        """Compute the first batch of the pass again, of which no token is sent and nothing counts."""
        parts = self.parts
        assert parts.source is not None
        first = node.step // parts.batches.steps(node.rank) * parts.batches.deal.steps(parts.rank)
        dense = parts.weights.parameters.values()
        before = [parameter.grad for parameter in dense]
        notes = [layer.notes for layer in self.compute.experts]
        for parameter in dense:
            parameter.grad = None
        for layer in self.compute.experts:
            layer.notes = RoutingNotes()
        self.group.silent = True
        try:
            parts.source.without_weight(first, passes)
        finally:
            self.group.silent = False
            for layer, note in zip(self.compute.experts, notes, strict=True):
                layer.notes = note
        for parameter, grad in zip(dense, before, strict=True):
            parameter.grad = grad
