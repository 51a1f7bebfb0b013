"""The replica of a worker that has all of a model up to its fully connected end, and a slice of that end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import signature
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from covey.data.feed import Feed
from covey.errors import PlanError
from covey.model.batches import BatchSource, backward
from covey.model.build import data_of, device
from covey.model.compute_shares import BACKWARD, FORWARD
from covey.model.norm import NormGroup, together
from covey.model.randomness import Chance, seed_of, seed_torch
from covey.model.replica import Replica
from covey.model.replica_spec import ReplicaSpec
from covey.model.scored import NOTHING, Snapshot
from covey.model.slots import Outline, TensorSlot
from covey.parallelism.chain import chain_of
from covey.parallelism.ends import Entrance, inputs_of, loss_of
from covey.parallelism.plan.estimate import counted
from covey.parallelism.trace import Inputs, undisturbed
from covey.parallelism.units.output_units import DenseLayer, SplitModel, fully_connected
from covey.program import Compute, Node
from covey.vector import Piece, chunk

T = TypeVar("T")
LOOK = 4  # samples with which a model is looked at
FRONT = "/"  # its name among the costs, which no module has


def share_of(spec: ReplicaSpec, *, strategy: str, workers: int) -> UnitReplica:
    """What one of this many workers has of the task's model; the whole of it is let go."""
    task, module, rank = spec.task, spec.module, spec.who.rank
    feed = Feed(data_of(task), spec.deal, rank, task.loading, device=device(task, rank))
    inputs = inputs_of(task, module, feed.take(spec.deal.indices(rank, 0)[:LOOK]))
    ends = fully_connected(strategy, chain_of(module, inputs))
    costs, starts = _costs(ends, inputs), {slot.name: slot.start for slot in Outline.of(module).params}
    for block in ends.blocks:
        first, _ = chunk(block.units, workers, rank)
        for name, parameter in zip(block.names, block.layer.parameters(), strict=True):
            if parameter.requires_grad:
                starts[name] += first * prod(parameter.shape[1:])
        block.keep(workers, rank)
    return UnitReplica(spec, replace(ends, middle=None), feed, costs, starts)


def _costs(ends: SplitModel, inputs: Inputs) -> dict[str, float]:
    """What of a batch's time the front takes, and each block with all its units; by counting."""
    with undisturbed(ends.chain.model):
        times = counted([stage for stage in (ends.front, ends.middle) if stage], inputs)
    front, middle = times[0][0] if ends.front else 0.0, times[-1][0]
    weights = {block.name: block.layer.weight.numel() for block in ends.blocks}
    costs = {name: middle / (front + middle) * size / sum(weights.values()) for name, size in weights.items()}
    return {**costs, FRONT: front / (front + middle)}


class UnitReplica(Replica):
    """Its module is the model, in which the fully connected layers at the end have only this worker's units."""

    def __init__(
        self, spec: ReplicaSpec, ends: SplitModel, feed: Feed, costs: Mapping[str, float], starts: Mapping[str, int]
    ) -> None:
        task, deal, self.rank = spec.task, spec.deal, spec.who.rank
        super().__init__(
            spec.module, task.optimizer, BatchSource(samples=deal.batch, steps=deal.steps),
            rate=task.rate, budget=spec.budget, clip_norm=task.clip_norm, pace=spec.pace,
        )  # fmt: skip
        self.task, self.ends, self.feed, self.costs = task, ends, feed, costs
        self.entrance = Entrance(task, signature(spec.module.forward))
        self.batches: Iterator[Any] = iter(())
        self.next = -1
        self.given: Any = None  # the batch of this step
        self.chance = Chance(self.flat.parts[0].device)
        self.fresh = self.drawn = self.chance.state()  # of this step: as it began, and as it was left
        self.circle: NormGroup | None = None
        mine = [slot for slot in self.layout.slots if slot.name in ends.names]
        rest = [slot for slot in self.layout.slots if slot.name not in ends.names]
        here = {slot.name: slot.start for slot in self.layout.slots}
        self.units, self.front = self._piece(mine, here), self._piece(rest, here)
        shown = mine if self.rank else [*self.layout.slots]
        self._own, self._places = self._piece(shown, here), self._piece(shown, starts)

    def _piece(self, slots: Iterable[TensorSlot], starts: Mapping[str, int]) -> Piece:
        ends: list[list[int]] = [[] for _ in self.flat.parts]
        for slot in slots:
            if slot.start < slot.stop:
                ends[slot.part] += [starts[slot.name], starts[slot.name] + slot.stop - slot.start]
        return tuple(map(tuple, ends))

    # -- computing ------------------------------------------------------------------------------------------------

    def begin(self, node: Node, step: int) -> Compute[Tensor]:
        """Forward of this worker's batch, up to the first block."""
        layers = len(self.compute.norms)
        self.circle = NormGroup(node, self.batch_source.samples, layers) if layers else None
        return self._on_front(node, partial(self._forward, step), FORWARD)

    def end(self, node: Node, made: Tensor, error: Tensor) -> Compute[None]:
        """Backward of it: the gradients of the front."""
        return self._on_front(node, partial(made.backward, error), BACKWARD)

    def forward(self, node: Node, block: DenseLayer, x: Tensor) -> Compute[Tensor]:
        """This worker's units of a block."""
        return node.compute(partial(self._drawing, partial(block, x)), FORWARD * self._load(block, len(x)))

    def backward(self, node: Node, block: DenseLayer, x: Tensor, y: Tensor, error: Tensor) -> Compute[Tensor | None]:
        """Add to its gradients; the error of what went in, as far as it is this worker's units'."""

        def work() -> Tensor | None:
            if y.requires_grad:
                y.backward(error)
            return x.grad

        return node.compute(work, BACKWARD * self._load(block, len(x)))

    def lose(self, node: Node, outputs: Tensor, rows: tuple[int, int], weight: float) -> Compute[tuple[float, Tensor]]:
        """The loss of these rows of the batch, of which these are the outputs, and `weight` times their error."""

        def work() -> tuple[float, Tensor]:
            leaf = outputs.detach().requires_grad_()
            given = self.ends.head((leaf,)) if self.ends.head else (leaf,)
            drawn = self.chance.state()
            self.chance.restore(self.fresh)  # for what the task draws before it asks its model
            batch, answer = part_of(self.given, rows), self.ends.chain.rebuild(given)
            loss = loss_of(self.task, batch, answer, lambda: self.chance.restore(drawn))
            backward(loss * weight)
            return float(loss.item()), torch.zeros_like(leaf) if leaf.grad is None else leaf.grad

        return node.compute(partial(self._drawing, work), 0.0)

    def start(self, step: int) -> None:
        """Forget the gradients of the last step; chance belongs to (seed, rank, step), as everywhere."""
        self.layout.clear()
        seed_torch(seed_of(self.feed.shards.seed, self.rank, step))
        self.fresh = self.drawn = self.chance.state()

    def _forward(self, step: int) -> Tensor:
        if step != self.next:  # the first one, or after steps that were skipped
            self.batches = self.feed.start(step)
        self.given, self.next = next(self.batches), step + 1
        self.start(step)
        inputs = self.entrance(self.given)
        made: Tensor = (self.ends.front(inputs) if self.ends.front else inputs)[0]
        self.drawn = self.chance.state()
        if len(made) != (samples := self.batch_source.samples(self.rank, step)):
            raise PlanError(
                f"the first fully connected layer gets {len(made)} rows for {samples} samples: samples must be the "
                "first dimension of what goes into it"
            )
        return made

    def _on_front(self, node: Node, work: Callable[[], T], share: float) -> Compute[T]:
        """Work in which synchronized layers may speak; one circle counts the turns of a step, there and back."""
        load = share * self.costs[FRONT]
        if self.circle is None:
            return node.compute(work, load)
        return node.compute(partial(together, self.compute.norms, self.circle, work), load, talks=True)

    def _drawing(self, work: Callable[[], T]) -> T:
        """Let chance go on where this worker's own last work of the step left it, whoever has drawn meanwhile."""
        self.chance.restore(self.drawn)
        result = work()
        self.drawn = self.chance.state()
        return result

    def _load(self, block: DenseLayer, rows: int) -> float:
        """What this many rows of this worker's units cost, in batches."""
        return self.costs[block.name] * rows / self.feed.shards.batch_size * block.layer.out_features / block.units

    # -- updates, and what is kept --------------------------------------------------------------------------------

    @contextmanager
    def only(self, units: bool) -> Iterator[None]:
        """Let the optimizer step on the units alone, or on all else."""
        for name, parameter in self.layout.parameters.items():
            if (name in self.ends.names) != units:
                parameter.grad = None
        yield
        self.layout.attach()

    @property
    def bulk(self) -> int:
        """A message may also carry what went into a layer, or came out of it, of everybody's samples."""
        widest = max(max(block.units, block.layer.in_features) for block in self.ends.blocks)
        return max(super().bulk, self.feed.shards.batch_size * self.feed.shards.workers * widest * 8)

    def snapshot(self, scored: bool = True, counts: bool = False) -> Snapshot:
        """Of the scored model everybody has its units, and the first worker all else."""
        shot = super().snapshot(False, counts)
        if not scored:
            return shot
        buffers = NOTHING if self.rank else self.buffers.clone()
        return replace(shot, piece=self._places, params=self.flat.cut(self._own).clone(), buffers=buffers)


def part_of(batch: Any, rows: tuple[int, int]) -> Any:
    """These samples of a batch: of every tensor in it that has one row for each of them."""
    first, stop = rows
    leaves = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim()]
    samples = len(leaves[0]) if leaves else stop

    def cut(leaf: Any) -> Any:
        return leaf[first:stop] if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == samples else leaf

    return batch if (first, stop) == (0, samples) else pytree.tree_map(cut, batch)
