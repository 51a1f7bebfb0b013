"""What is being trained: one copy of the model on one role, its gradients and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer

from covey.errors import CheckpointError, PlanError
from covey.faults import in_task
from covey.message import Address
from covey.model.batches import NONE, Batch, BatchSource, Losses
from covey.model.flat import Flat, Form, TensorSlot
from covey.model.norm import NormGroup, adopt, together
from covey.model.optimizers import MakeOptimizer, check_momentum, elementwise, made
from covey.model.stream import GradientStream
from covey.program import Compute, Node
from covey.settings import FIRST, LoopSettings, Settings, SettingsUpdate, skipping
from covey.vector import Piece, Vector, chunks, ranges

NOTHING = Vector(())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A role's part of the scored model: a piece of the parameters, the buffers, and how much they count.

    Pieces are of the whole model, whatever part of it the role has.
    """

    piece: Piece
    params: Vector
    buffers: Vector  # the float ones, which are averaged
    weight: float
    counters: Vector = NOTHING  # the others, of a role that has seen batches
    floats: Piece | None = None  # which of the float buffers; None: all
    counts: tuple[int, ...] | None = None  # which of the counters; None: all


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
        layout: Flat | None = None, settings: LoopSettings | None = None,
    ) -> None:  # fmt: skip
        self.norms = adopt(module)  # layers that speak with those of the other workers
        self.layout = layout or Flat(module)
        self.module = module
        self.flat, self.buffers = self.layout.params, self.layout.buffers
        self.optimizer = made(optimizer, list(self.layout.parameters.items()))
        self.batch_source, self._make, self._rate, self._budget = batch_source, optimizer, rate, budget
        self.settings = settings  # of a loop of the user's own, which may change them at every step
        self._working: Vector | None = None  # a second set of parameters, where a companion may write the first
        self.trained: Piece = tuple((0, part.numel()) for part in self.flat.parts)
        self._shards = [[self.layout.parameters[slot.name]] for slot in self.layout.slots]  # what this role steps
        self.divide: Callable[[Replica, int], list[Piece]] | None = None  # among servers, where a layout says how
        self._buffers_kept = True
        self.clip_norm = clip_norm  # the most that the norm of a gradient may be
        self.weight = 1.0  # how much this replica counts in the scored model
        self.scored: Vector | None = None  # the model that a program names as its own, where that is not `model`
        self.seen = 0  # samples of the whole run before this step, as far as this role knows
        self.under_way = 0  # and those of this step
        self.batch, self.losses = Batch(float("nan"), 0), Losses()
        self._loose = False  # whether the gradient still lies where backward left it
        self.initial = ""  # the fingerprint of the whole model's first weights, where this is a part of it

    def enter(self, node: Node) -> None:
        """A program begins, or begins again from the top: recall what the replica itself has to."""

    @property
    def bulk(self) -> int:
        """Bytes of the largest thing that messages carry."""
        return self.model.nbytes

    @property
    def model(self) -> Vector:
        """Parameters and float buffers: what travels when models, not gradients, are exchanged."""
        return self.flat.join(self.buffers)

    # -- gradients ------------------------------------------------------------------------------------------------

    async def gradient(self, node: Node, clip: bool = True) -> Vector:
        """The mean gradient on the next batch, at the weights as they are now.

        Where it is only a part of the gradient that is stepped on, the program clips that one instead.
        """
        self.settle()
        self.batch = await self.differentiation(node, partial(self.differentiate, node.step))
        await self.announce(node)
        return self.clip_(self.grad) if clip else self.grad

    @property
    def grad(self) -> Vector:
        """The gradient, flat: put together when somebody asks for it, if that has not been done."""
        if self._loose:
            self._loose = False
            self.layout.collect_grads(self.layout.slots)
        return self.layout.grads

    async def descend(self, node: Node) -> None:
        """Differentiate and take a step alone: nobody asks for the gradient, so it stays where backward left it."""
        self.settle()
        work = partial(self.differentiate, node.step, self.clip_norm is not None)
        self.batch = await self.differentiation(node, work)
        await self.announce(node)
        if self.clip_norm is not None:
            self.clip_(self.grad)
        self.update()

    async def gradient_of(self, node: Node, rank: int, step: int, part: int = 0, parts: int = 1) -> Vector:
        """The mean gradient on one of `parts` equal parts of any worker's batch; the program `report`s what counts."""
        if self.batch_source.chosen is None:
            raise PlanError("this strategy chooses the samples itself: use it with a Task, not with your own loop")
        chosen = partial(self.batch_source.chosen, rank, step, part, parts)
        self.settle()
        self.batch = await node.compute(partial(self._run, chosen), 1 / parts)
        return self.grad

    def differentiation(self, node: Node, work: Callable[[], Batch]) -> Compute[Batch]:
        """Forward and backward as an effect; for their time synchronized layers know who takes this step."""
        if not self.norms:
            return node.compute(work)
        circle = NormGroup(node, self.batch_source.samples, len(self.norms), self.batch_source.weight)
        return node.compute(partial(together, self.norms, circle, work), talks=True)

    def clip_(self, grad: Vector, norm: float | None = None) -> Vector:
        """Shorten a gradient to the task's `clip_norm`, as torch's clip_grad_norm_; a shard's owner says the `norm`."""
        if self.clip_norm is not None:
            grad.shorten_(self.clip_norm, norm)
        return grad

    async def report(self, node: Node, batch: Batch) -> None:
        """Tell what was computed, where a program put it together from parts."""
        self.batch = batch
        await self.announce(node)

    def stream(self, node: Node, bucket_bytes: int = 4 << 20, otherwise: str = "bucket=0") -> GradientStream:
        """The same gradient in pieces, last layers first, while backward runs; `otherwise`: for where it runs twice."""
        return GradientStream(self, node, bucket_bytes, otherwise)

    async def announce(self, node: Node) -> None:
        """Tell whoever watches what the last batch was."""
        self.under_way = self.batch.samples * node.workers
        await node.note("samples", self.batch.seen)
        self.losses.add(self.batch)
        for loss in self.losses.told():
            await node.note("loss", loss)

    def differentiate(self, step: int, flat: bool = True) -> Batch:
        """(On the compute thread) Forward and backward on the batch of a step; whether the gradient is put together."""
        assert self.batch_source.own is not None, "this role has no data"
        return self._run(partial(self._next_batch, step), flat)

    def _next_batch(self, step: int) -> Batch:
        assert self.batch_source.own is not None
        batch = self.batch_source.own(step)
        if self.settings:
            self.settings.note(step, self.clip_norm)  # before gradients are collected: some may be absent
        return batch

    def settle(self) -> None:
        """Bring the weights to compute on up to date: here, where no companion runs, and not on the compute thread."""
        if self._working is not None:
            self._working.copy_(self.flat)

    def _run(self, source: Callable[[], Batch], flat: bool = True) -> Batch:
        self._loose = False
        batch = self.losses.of(source)
        if flat:
            self.layout.collect_grads(self.layout.slots)
        else:
            self.layout.complete_grads()
        self._loose = not flat
        self.layout.collect_buffers()
        return batch

    def house(self, house: Callable[[Vector], Vector]) -> None:
        """Live elsewhere from now on, gradients and all: `house` brings a vector's numbers there. Before training."""
        self.layout.move(house)
        self.flat, self.buffers = self.layout.params, self.layout.buffers

    def move(self, to: Vector) -> None:
        """Live at another place from now on, with the weights that are there."""
        self.flat = self.layout.params = to
        self._aim(to)

    def shield(self) -> None:
        """Compute on a copy of the weights from now on: a companion may write `flat` while backward runs.

        Parameters that are views of one vector defeat autograd's own check for writes, so the copy is not optional.
        """
        if self._working is None:
            self._working = self.flat.clone()
            for slot in self.layout.slots:
                self.layout.parameters[slot.name].data = slot.view(self._working)

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
        assert not self._led or self.settings.applied, "whose settings? `follow` says that"  # type: ignore[union-attr]
        factor = scale * self.schedule
        groups = self.optimizer.param_groups if factor != 1 else []  # a rate that stays is left alone
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor
        if self._working is not None:
            self._aim(self.flat)
        absent = self.settings.absent(self._led) if self.settings else ()
        with in_task("optimizer.step()"), skipping(shard for place in absent for shard in self._shards[place]):
            self.optimizer.step()
        if self.settings and not self._led:
            self.settings.stepped = True
        self.seen, self.under_way = self.seen + self.under_way, 0
        if self._working is not None:
            self._aim(self._working)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    def set_momentum(self, momentum: float) -> None:
        """Let the optimizer have this momentum, which may be negative."""
        check_momentum(self.optimizer)
        for group in self.optimizer.param_groups:
            group["momentum"] = momentum
        self.pin(["momentum"], f"this strategy sets the momentum itself, to {momentum:g}: leave it as it is")

    # -- the settings of a loop of the user's own: nothing of this happens to a task's ---------------------------------

    def pin(self, keys: Iterable[str], why: str) -> None:
        """These settings are not the loop's: whoever changes one is told `why` that cannot be."""
        if self.settings:
            self.settings.pin(keys, why)

    async def inform(self, node: Node, to: Address) -> None:
        """Before a gradient leaves: let whoever steps on it know the loop's settings, where they have changed."""
        if self.settings and (word := self.settings.due(to)):
            await node.send(to, word, priority=FIRST)

    def follow(self, node: Node, gradients: Iterable[tuple[Address, int]]) -> None:
        """Before a step: take over the settings that the loops of these workers had at these steps of theirs."""
        if self.settings:
            wanted = self._heard(node, gradients)
            if self._led:
                self.settings.apply(self.optimizer, wanted)
                self.clip_norm = wanted.clip

    def _heard(self, node: Node, gradients: Iterable[tuple[Address, int]]) -> Settings:
        assert self.settings is not None
        while word := node.receive_nowait(SettingsUpdate):
            self.settings.hear(word)
        return self.settings.of(node.address, gradients)

    @property
    def _led(self) -> bool:
        """Whether this role steps an optimizer that no loop changes, with the settings of one that some loop does."""
        return self.settings is not None and (self.batch_source.own is None or self.optimizer is not self.settings.live)

    def pass_on(self, node: Node, gradients: Iterable[tuple[Address, int]], step: int) -> None:
        """These gradients go on to somebody else as one, of a `step` of this role's own, and their settings with it."""
        if self.settings:
            self.settings.put(step, self._heard(node, gradients))

    @property
    def optimizer_of_loop(self) -> Optimizer | None:
        """The user's own, where a loop of the user's own holds it."""
        return self.settings.live if self.settings else None

    def obey(self, check: Callable[[Optimizer], None]) -> None:
        """Refuse settings of a loop that the strategy cannot do, now and whenever they change."""
        if self.settings:
            self.settings.obey(check)

    def _aim(self, vector: Vector) -> None:
        for slot in self.layout.slots:
            self.layout.parameters[slot.name].data = slot.view(vector)

    @property
    def schedule(self) -> float:
        """What the task's schedule makes of the learning rate now, as a factor."""
        with in_task("rate(progress)"):
            return float(self._rate(self.progress)) if self._rate else 1.0

    @property
    def progress(self) -> float:
        """How much of the run's budget of samples was seen before this step, from 0 to 1."""
        return min(1.0, self.seen / self._budget) if self._budget else 0.0

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
        self._buffers_kept = buffers
        if piece == self.trained:
            return
        self.trained = piece
        self._shards = [list(self._inside(slot, piece)) for slot in self.layout.slots]
        pairs = [(slot.name, s) for slot, inside in zip(self.layout.slots, self._shards, strict=True) for s in inside]
        self.optimizer = made(self._make, pairs)

    def _inside(self, slot: TensorSlot, piece: Piece) -> Iterator[nn.Parameter]:
        """What the piece has of a parameter: all of it, or slices of it."""
        for first, last in ranges(piece[slot.part]):
            start, stop = max(slot.start, first), min(slot.stop, last)
            if (start, stop) == (slot.start, slot.stop):
                yield self.layout.parameters[slot.name]
            elif start < stop:
                shard = nn.Parameter(self.flat.parts[slot.part][start:stop])
                shard.grad = self.grad.parts[slot.part][start:stop]
                yield shard

    # -- what is kept ---------------------------------------------------------------------------------------------

    def snapshot(self, scored: bool = True, counts: bool = False) -> Snapshot:
        """This role's part of the scored model, as it is now; buffers that are no floats where it `counts` batches."""
        others = self.layout.others().values() if counts else ()
        counters = Vector(buffer.detach().reshape(-1).clone() for buffer in others)
        if not scored:
            return Snapshot(((),) * len(self.flat.parts), NOTHING, NOTHING, self.weight, counters)
        parts, count = (self.model if self.scored is None else self.scored).parts, len(self.flat.parts)
        buffers = Vector(parts[count:]).clone() if self._buffers_kept else NOTHING
        params = Vector(parts[:count]).cut(self.trained).clone()
        return Snapshot(self.trained, params, buffers, self.weight, counters)

    def state(self) -> dict[str, Any]:
        """Everything a restart needs."""
        loop = {"settings": self.settings.state()} if self.settings else {}
        return {
            **loop, "layout": self.layout.describe(), "params": self.flat,
            "floats": self.layout.describe_floats(), "buffers": self.buffers,
            "others": self.layout.others(), "optimizer": self.optimizer.state_dict(), "seen": self.seen,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a kept state; refused when it is of another model."""
        differs = self.layout.differs(state["layout"])
        if differs:
            raise CheckpointError(f"the checkpoint is of another model: {differs}")
        self.flat.copy_(state["params"])
        self.buffers.copy_(state["buffers"])
        for name, buffer in self.layout.others().items():
            buffer.copy_(state["others"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.seen = state["seen"]
        if self.settings and "settings" in state:
            self.settings.restore(state["settings"])
