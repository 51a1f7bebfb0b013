"""What is being trained: one copy of the model on one role, its gradients and its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from covey.errors import PlanError
from covey.model.batches import NONE, Batch, BatchSource
from covey.model.differentiation import Differentiation
from covey.model.flat import Flat, Form
from covey.model.norm import adopt
from covey.model.optimizers import MakeOptimizer, elementwise
from covey.model.progress import TrainingProgress
from covey.model.scored import ShownModel, Snapshot, WeightAverage
from covey.model.stream import GradientStream
from covey.model.updates import Updates
from covey.program import Compute, Node
from covey.settings import LoopSettings, SchedulePace
from covey.vector import Piece, Vector, chunks


class Replica:
    """One copy of the model, for a role's program.

    `flat`, `grad` and `buffers` are the vectors that programs read and write; `model` is all that models exchange.

    >>> async def work(node: covey.Node, replica: covey.Replica) -> None:
    ...     for step in node.steps():
    ...         replica.apply(await replica.gradient(node))
    """

    def __init__(
        self, module: nn.Module, optimizer: MakeOptimizer, batch_source: BatchSource = NONE, *,
        rate: Callable[[float], float] | None = None, budget: int | None = None, clip_norm: float | None = None,
        pace: SchedulePace | None = None, ema: float | None = None,
        layout: Flat | None = None, settings: LoopSettings | None = None,
    ) -> None:  # fmt: skip
        self.layout = layout or Flat(module)
        self.module, self.batch_source = module, batch_source
        self.progress = TrainingProgress(rate, budget, pace)
        whole: Piece = tuple((0, part.numel()) for part in self.flat.parts)
        self.updates = Updates(
            optimizer, self.layout, whole, self.progress,
            clip_norm=clip_norm, settings=settings, trains=lambda: self.batch_source.own is not None,
        )  # fmt: skip
        self.compute, self.shown = Differentiation(self.layout, adopt(module)), ShownModel(self.layout)
        if ema is not None:
            self.shown.average, self.progress.updated = WeightAverage(ema), self._updated
            self.compute.begins = self.settle_average  # the next forward changes buffers
        self.trained = whole
        self.divide: Callable[[Replica, int], list[Piece]] | None = None  # among servers, where a layout says how
        self.initial = ""  # the fingerprint of the whole model's first weights, where this is a part of it

    def enter(self, node: Node) -> None:
        """A program begins, or begins again from the top: recall what the replica itself has to."""

    def changing(self) -> list[object]:
        """Where training leaves new values, besides the numbers of the module and of the optimizer."""
        scale = [self.batch_source.scale] if self.batch_source.scale else []
        parts = [self.layout, self.updates, self.progress, self.compute, self.compute.working, self.shown]
        return [self, *parts, *scale, *([self.shown.average] if self.shown.average else [])]

    @property
    def bulk(self) -> int:
        """Bytes of the largest thing that messages carry."""
        return max(self.model.nbytes, self.batch_source.batch_bytes)

    @property
    def flat(self) -> Vector:
        """The parameters."""
        return self.layout.params

    @property
    def buffers(self) -> Vector:
        """The float ones."""
        return self.layout.buffers

    @property
    def model(self) -> Vector:
        """Parameters and float buffers, as one vector."""
        return self.layout.model

    @property
    def optimizer(self) -> Optimizer:
        return self.updates.optimizer

    # -- gradients ------------------------------------------------------------------------------------------------

    async def gradient(self, node: Node, clip: bool = True) -> Vector:
        """The mean gradient on the next batch, at the weights as they are now.

        Where it is only a part of the gradient that is stepped on, the program clips that one instead.
        """
        await self.compute.perform(node, self.batch_source, partial(self.differentiate, node.step))
        await self.announce(node)
        return self.updates.clip_(self.grad) if clip else self.grad

    @property
    def grad(self) -> Vector:
        """The gradient of the last batch, flat."""
        return self.compute.grad

    @property
    def batch(self) -> Batch:
        """The last one that was differentiated, or reported."""
        return self.compute.batch

    async def descend(self, node: Node) -> None:
        """Differentiate and take a step alone: nobody asks for the gradient, so it stays where backward left it."""
        work = partial(self.differentiate, node.step, self.updates.clip_norm is not None)
        await self.compute.perform(node, self.batch_source, work)
        await self.announce(node)
        if self.updates.clip_norm is not None:
            self.updates.clip_(self.grad)
        self.update()

    async def gradient_of(self, node: Node, rank: int, step: int, part: int = 0, parts: int = 1) -> Vector:
        """The mean gradient on one of `parts` equal parts of any worker's batch; the program `report`s what counts."""
        if self.batch_source.chosen is None:
            raise PlanError("this strategy chooses the samples itself: use it with a Task, not with your own loop")
        if self.batch_source.scale:
            raise PlanError("workers that compute the same gradient need the same scale: use precision='bf16' here")
        self.compute.working.refresh()
        self.compute.begins()
        work = partial(self.compute.run, partial(self.batch_source.chosen, rank, step, part, parts))
        reads = self.batch_source.reads and partial(self.batch_source.reads, rank, step, part, parts)
        self.compute.batch = await Compute(work, 1 / parts, reads=reads)
        return self.grad

    async def report(self, node: Node, batch: Batch) -> None:
        """Tell what was computed, where a program had it computed in its own way."""
        self.compute.batch = batch
        await self.announce(node)

    def stream(self, node: Node, bucket_bytes: int = 4 << 20, otherwise: str = "bucket=0") -> GradientStream:
        """The same gradient in pieces, last layers first, while backward runs; `otherwise`: for where it runs twice."""
        return GradientStream(self, node, bucket_bytes, otherwise)

    async def announce(self, node: Node) -> None:
        """Tell whoever watches what the last batch was."""
        self.progress.begin(self.batch.samples * node.workers)
        await node.note("samples", self.batch.seen)
        self.compute.losses.add(self.batch)
        for loss in self.compute.losses.told():
            await node.note("loss", loss)
        await self.compute.tell_routing(node)

    def differentiate(self, step: int, flat: bool = True) -> Batch:
        """(On the compute thread) Forward and backward on the batch of a step; whether the gradient is put together."""
        assert self.batch_source.own is not None, "this role has no data"
        return self.compute.run(partial(self._next_batch, step), flat)

    def _next_batch(self, step: int) -> Batch:
        assert self.batch_source.own is not None
        batch = self.batch_source.own(step)
        self.updates.note(step)  # before gradients are collected: some may be absent
        return batch

    def house(self, house: Callable[[Vector], Vector]) -> None:
        """Live elsewhere from now on, gradients and all: `house` brings a vector's numbers there. Before training."""
        self.layout.move(house)

    def move(self, to: Vector) -> None:
        """Live at another place from now on, with the weights that are there and that other workers write."""
        self.layout.params, self.layout.written_by_others = to, True
        self.layout.aim(to)

    def shield(self) -> None:
        """Compute on a copy of the weights from now on: a companion may write `flat` while backward runs."""
        self.compute.working.make()

    # -- updates --------------------------------------------------------------------------------------------------

    def load(self, params: Vector) -> None:
        """Take over weights that came from elsewhere."""
        self.flat.copy_(params)

    def apply(self, grad: Vector, scale: float = 1.0) -> None:
        """One step of the optimizer with this gradient; `scale` multiplies the learning rate for this step only."""
        if grad is not self.grad:
            self.grad.cut(self.trained).copy_(grad)
        self.update(scale)

    def update(self, scale: float = 1.0) -> None:
        """One step of the optimizer with the gradient that lies in `grad`."""
        with self.compute.working.aside():
            self.updates.step(scale)

    # -- shards ---------------------------------------------------------------------------------------------------

    def pieces(self, servers: int) -> list[Piece]:
        """How `servers` divide the parameters: equal slices where the optimizer allows, else whole parameters."""
        if self.divide and servers > 1:
            return self.divide(self, servers)
        return chunks(self.flat, servers) if servers == 1 or self.elementwise else self.layout.whole(servers)

    def form(self, piece: Piece) -> Form:
        """What gradients and parameters inside a piece look like."""
        known = self.batch_source.steps is not NONE.steps  # a loop of the user's own knows no epochs
        return replace(self.layout.form(piece), epoch=self.batch_source.steps(0) if known else 0)

    @property
    def elementwise(self) -> bool:
        """Whether the optimizer treats every number alone."""
        return elementwise(self.optimizer)

    def keep(self, piece: Piece, buffers: bool) -> None:
        """Become a server's shard: the optimizer sees only the parameters, or slices of them, inside `piece`.

        One of the servers keeps the mean of the float `buffers`.
        """
        self.shown.buffers = buffers
        if piece == self.trained:
            return
        self.trained = piece
        self.updates.keep(self.layout, piece)

    # -- what is shown and kept --------------------------------------------------------------------------------------

    def show(self, model: Vector) -> None:
        """Let the run score these parameters and float buffers, which a program keeps beside its own."""
        self.shown.instead = model

    def moved(self, counted: bool = True) -> None:
        """The model that this role shows has changed by what its program does; by one update, if that is `counted`."""
        if counted:
            self.shown.average_now(self.trained)
        elif self.shown.average:
            self.shown.average.due = True

    def _updated(self) -> None:
        """An update is done; what a worker shows of it may be complete only when others have had their part in it."""
        self.moved(counted=self.batch_source.own is None)

    def settle_average(self) -> None:
        """Average the model of the last update, if that is still due."""
        if self.shown.average and self.shown.average.due:
            self.moved()

    def weigh(self, weight: float) -> None:
        """Let this role's model count this much in the mean that the run scores, where others count 1."""
        self.shown.weight = weight

    def snapshot(self, scored: bool = True, counts: bool = False) -> Snapshot:
        """This role's part of the scored model, as it is now; buffers that are no floats where it `counts` batches."""
        return self.shown.snapshot(self.trained if scored else None, counts)

    def state(self) -> dict[str, Any]:
        """Everything a restart needs."""
        loop = {"settings": self.updates.settings.state()} if self.updates.settings else {}
        scale = {"loss_scale": self.batch_source.scale.state()} if self.batch_source.scale else {}
        own = {"optimizer": self.optimizer.state_dict(), "seen": self.progress.seen}
        heard = {"heard": list(self.progress.scores)} if self.progress.scores else {}
        self.settle_average()
        average = self.shown.average.state() if self.shown.average else {}
        return {**loop, **scale, **self.layout.state(), **own, **heard, **average}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a kept state; refused when it is of another model."""
        self.layout.restore(state)
        self.progress.restore(state["seen"], map(float, state.get("heard", ())))
        self.updates.restore(state["optimizer"])
        if self.updates.settings and "settings" in state:
            self.updates.settings.restore(state["settings"])
        if self.batch_source.scale and "loss_scale" in state:
            self.batch_source.scale.restore(state["loss_scale"])
        if self.shown.average and "ema" in state:
            self.shown.average.restore(state["ema"], self.flat.cut(self.trained), self.buffers)
