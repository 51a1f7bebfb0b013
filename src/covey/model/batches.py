"""The batches of a replica, and the batch sizes of all workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import isnan
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from covey.data.feed import Feed
from covey.data.shards import samples_together
from covey.errors import PlanError
from covey.faults import in_task
from covey.model.randomness import seed_of, seed_torch
from covey.nn.experts import experts_in
from covey.program import Node
from covey.task import Task
from covey.vector import chunk

AHEAD = 2  # batches that a GPU may be given before the loss of the first of them is there


class Batch:
    """What one forward and backward reports. A loss on a GPU is on its way, and waited for when somebody asks."""

    __slots__ = ("_came", "_loss", "samples", "seen")

    def __init__(self, loss: float | Tensor, samples: int, seen: int | None = None) -> None:
        self.samples = samples  # what the gradient counts, beside those of other workers
        self.seen = samples if seen is None else seen  # of how many samples it is
        self._came: torch.cuda.Event | None = None
        self._loss: float | Tensor = loss if isinstance(loss, Tensor) else float(loss)
        if isinstance(loss, Tensor) and loss.is_cuda:
            there = torch.empty(loss.shape, dtype=loss.dtype, pin_memory=True)
            self._loss = there.copy_(loss.detach(), non_blocking=True)
            self._came = torch.cuda.current_stream(loss.device).record_event()
        elif isinstance(loss, Tensor):
            self._loss = float(loss.item())

    @property
    def known(self) -> bool:
        """Whether the loss can be read without waiting."""
        came = self._came
        return came is None or came.query()

    @property
    def loss(self) -> float:
        loss, came = self._loss, self._came  # two threads may ask at once
        if isinstance(loss, Tensor):
            if came is not None:
                came.synchronize()
            loss = self._loss = float(loss.item())
            self._came = None
        return loss


def backward(loss: Tensor) -> None:
    """Add the gradients of a task's loss to those that lie in the parameters."""
    with in_task("loss, while its gradient was computed"):
        loss.backward()


FIRST_SCALE, LARGEST_SCALE = 2.0**16, 2.0**24
GROWTH = 2000  # steps without an overflow, after which the scale doubles


class LossScale:
    """The factor on a worker's loss, which its gradients are divided by at once: in 16 bits they would vanish.

    Where a gradient overflows, its batch is computed again with half the factor. So no step is skipped, workers need
    not agree on anything, and every strategy gets gradients as if there were no scale.
    """

    def __init__(self) -> None:
        self.scale, self.since = FIRST_SCALE, 0

    def settle(self, loss: Tensor, parameters: Sequence[nn.Parameter]) -> bool:
        """Divide the gradients by the scale; False: they overflowed, and must be computed again with half of it."""
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()  # as it is exchanged anyway
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        finite = not grads or bool(torch.stack([grad.isfinite().all() for grad in grads]).all())
        if not finite and self.scale > 1 and bool(loss.isfinite()):
            self.scale, self.since = self.scale / 2, 0
            return False
        torch._foreach_mul_(grads, 1 / self.scale)
        self.since += finite
        if self.since == GROWTH:
            self.scale, self.since = min(LARGEST_SCALE, self.scale * 2), 0
        return True

    def state(self) -> dict[str, Any]:
        return {"scale": self.scale, "since": self.since}

    def restore(self, state: dict[str, Any]) -> None:
        self.scale, self.since = float(state["scale"]), int(state["since"])


class Losses:
    """Those of a role's batches, in order; a GPU is not made to wait for whoever tells them."""

    def __init__(self) -> None:
        self._begun: list[Batch] = []
        self._untold: list[Batch] = []
        self.count = 0  # of all batches that were differentiated

    def of(self, source: Callable[[], Batch]) -> Batch:
        """(On the compute thread) The next batch, begun when the one before the last is through."""
        if len(self._begun) == AHEAD:
            self._begun.pop(0).loss  # noqa: B018  # waits
        batch = source()
        self.count += 1
        self._begun.append(batch)
        return batch

    def add(self, batch: Batch) -> None:
        """This one is to be told."""
        self._untold.append(batch)

    def told(self, every: bool = False) -> list[float]:
        """The losses that have come since, or `every` one that was added; NaN is not reported."""
        found = []
        while self._untold and (every or self._untold[0].known):
            found.append(self._untold.pop(0).loss)
        return [loss for loss in found if not isnan(loss)]


class CommonLoop(Protocol):
    """A loop of the user's own among those of other workers, which take the same steps."""

    @property
    def samples(self) -> int:
        """Of this worker, in the steps so far."""
        ...

    def give(self, under_way: bool) -> dict[str, Any]:
        """(While the loop waits in a step) Where it is; with `under_way` before this step, which is not done."""
        ...

    def take(self, state: dict[str, Any]) -> None:
        """(Before the loop begins) Go on where another worker's is."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSource:
    """Forward and backward leave gradients in the module's parameters."""

    own: Callable[[int], Batch] | None = None  # of a step; a role that does not train has none
    chosen: Callable[[int, int, int, int], Batch] | None = None  # of a part of any worker's: (rank, step, part, parts)
    leased: Callable[[int, int], Batch] | None = None  # of any seat: (seat, number)
    samples: Callable[[int, int], int] = lambda rank, step: 1  # in the batch of (rank, step)
    steps: Callable[[int], int] = lambda rank: 1  # batches in a pass of this rank over its data
    weight: Callable[[], float] | None = None  # of the batch under way, where only the loop that has it knows
    begin: Callable[[int], None] = lambda step: None  # the batch of this step comes next: it may be loaded already
    scale: LossScale | None = None  # where losses are multiplied before backward
    last: Callable[[], bool] = lambda: True  # whether the backward under way is the last of its step
    whole: bool = False  # no part of a gradient may be seen before all of it is there
    loop: Callable[[], dict[str, Any]] | None = None  # what a checkpoint holds of a loop of the user's own
    shared: CommonLoop | None = None  # that loop, where another worker's can go on in its place
    prepare: Callable[[int, int], list[Any]] | None = None  # of a preparer: the batches of any (rank, step)
    arrive: Callable[[Node], Awaitable[None]] | None = None  # waits for those of a step, which preparers make
    arrived: dict[int, list[Any]] | None = None  # those that came, by step
    pieces: Callable[[int, int], int] = lambda rank, step: 1  # batches that (rank, step) accumulates
    prepares: Callable[[int], float] = lambda step: 0.0  # how many batches are transformed when a step is computed
    batch_bytes: int = 0  # of one that travels
    reads: Callable[..., Sequence[int]] | None = None  # samples of (rank, step, part, parts), where reading takes time

    def together(self, ranks: Sequence[int], step: int) -> int:
        """How many samples the batches of these workers have together."""
        return samples_together(self.samples, tuple(ranks), step)


NONE = BatchSource()


class OwnBatches:
    """Forward and backward on a worker's own share of the data, in as many batches as a step accumulates."""

    def __init__(self, task: Task, module: nn.Module, feed: Feed) -> None:
        self.task, self.module, self.feed, self.deal, self.rank = task, module, feed, feed.shards, feed.rank
        self.model = module
        if task.compile:
            backend = "inductor" if task.compile is True else task.compile
            self.model = torch.compile(module, backend=backend)  # type: ignore[assignment]  # it is a module still
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.batches: Iterator[Any] = iter(())
        self.next = -1
        self.last = True  # whether the backward under way is the last of its step
        self.turn = 0  # which of them it is
        self.experts = experts_in(module)
        self.scale = LossScale() if task.precision == "fp16" else None
        self.found = False  # whether gradients were seen by somebody who takes them away
        self._reached = False  # whether a loss has had a gradient in the model
        self.arrived: dict[int, list[Any]] = {}  # batches that preparers made

    def begin(self, step: int) -> None:
        """Forget what was drawn. Processes that load samples begin with those of this step, if they were needed."""
        again = self.next >= 0 and self.task.loaders > 0
        self.batches, self.next = (self.feed.start(step), step) if again else (iter(()), -1)

    def __call__(self, step: int) -> Batch:
        if came := self.arrived.pop(step, None):
            self.batches = map(self.feed.placed, came)
        elif step != self.next:  # the first one, or after steps that were skipped
            self.batches = self.feed.start(step)
        with in_task("data"):
            batch = next(self.batches)
        self.next = -1 if came else step + 1
        samples, most = self.deal.batch(self.rank, step), self.task.batch_size
        sizes = [min(most, samples - first) for first in range(0, samples, most)]
        return Batch(self._differentiate(lambda index: next(self.batches) if index else batch, sizes, step), samples)

    def without_weight(self, step: int, passes: int) -> None:
        """Forward and backward on the first batch of a step, so many times, for gradients that do not count."""
        batch, self.next = next(self.feed.start(step)), -1
        before = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        for _ in range(passes):
            backward(self.task.forward(self.model, batch))
        for buffer, value in before:
            buffer.copy_(value)

    def of(self, seat: int, number: int) -> Batch:
        """The same on a batch of any seat, with the chance that its own worker would have."""
        if seat == self.rank:
            return self(number)
        pieces, epoch = self.deal.indices(seat, number).split(self.task.batch_size), number // self.deal.steps(seat)
        sizes, take = [*map(len, pieces)], self.feed.take
        return Batch(self._differentiate(lambda index: take(pieces[index], epoch), sizes, number, seat), sum(sizes))

    def part(self, rank: int, step: int, part: int, parts: int) -> Batch:
        """The same on one of `parts` equal parts of any worker's batch: whoever computes it gets the same numbers."""
        numbers = self.deal.indices(rank, step)
        start, stop = chunk(len(numbers), parts, part)
        seed_torch(seed_of(self.deal.seed, rank, step, part))
        if start == stop:
            for parameter in self.parameters:
                parameter.grad = None
            return Batch(float("nan"), 0)
        pieces, epoch = numbers[start:stop].split(self.task.batch_size), step // self.deal.steps(rank)
        return Batch(self._backward(lambda i: self.feed.take(pieces[i], epoch), [*map(len, pieces)]), stop - start)

    def _differentiate(
        self, batch: Callable[[int], Any], sizes: Sequence[int], step: int, seat: int | None = None
    ) -> Tensor:
        """`_backward` with the chance of this step; again with a smaller scale of the loss while gradients overflow."""
        for name, layer in self.experts.items():
            layer.where = f"{name}, step {step}"
        seed = seed_of(self.deal.seed, self.rank if seat is None else seat, step)
        if self.scale is None:
            seed_torch(seed)
            return self._backward(batch, sizes)
        given = cache(batch)
        before = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        while True:
            seed_torch(seed)
            loss = self._backward(given, sizes, self.scale.scale)
            if self.scale.settle(loss, self.parameters):
                return loss
            for buffer, value in before:
                buffer.copy_(value)

    def _backward(self, batch: Callable[[int], Any], sizes: Sequence[int], scale: float = 1.0) -> Tensor:
        """The mean loss over all samples of these batches; its gradient is left in the parameters."""
        for parameter in self.parameters:
            parameter.grad = None
        losses = []
        for index, size in enumerate(sizes):
            with in_task("data"):
                given = batch(index)
            share = 1.0 if len(sizes) == 1 else size / sum(sizes)
            for layer in self.experts.values():
                layer.loss_weight = share * scale
            loss = self.task.forward(self.model, given)
            loss = loss if share == 1 else loss * share
            self.turn, self.last = index, index == len(sizes) - 1
            backward(loss if scale == 1 else loss.float() * scale)
            losses.append(loss.detach())
        self._reached = self._reached or self._reaches_model()
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _reaches_model(self) -> bool:
        """Refuse a first loss of something else: no parameter would ever learn anything, and nothing would say so."""
        if self.found or any(parameter.grad is not None for parameter in self.parameters):
            return True
        source = "step(model, batch)" if self.task.step is not None else "loss(model(x), y)"
        raise PlanError(
            f"Task: {source} gave a loss that depends on no parameter of the model: compute it with the model that it "
            "is given, not with another one"
        )
