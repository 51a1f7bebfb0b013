"""One worker's parts of a cut model at work: forwards and backwards of micro-batches, and what is kept between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from covey.data.feed import Feed
from covey.data.group_batches import GroupBatches
from covey.model.batches import backward
from covey.model.randomness import Chance, seed_of, seed_torch
from covey.nn.experts import experts_in
from covey.nn.routing import RoutingNotes
from covey.parallelism.ends import Entrance, loss_of
from covey.parallelism.experts.token_exchange import ExpertGroup
from covey.parallelism.stages import Stage
from covey.parallelism.tensor.group import MemberGroup
from covey.parallelism.tensor.split_tensor import whole_value
from covey.parallelism.values import Value
from covey.task import Task
from covey.vector import chunk

Values = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Version:
    """Weights of a part of the model, by name, that are not the newest; `seen`: running means know the batch."""

    weights: Mapping[str, Tensor]
    seen: bool = False


@dataclass(frozen=True, slots=True)
class Microbatch:
    """A part of a batch: `number` of `parts` of the batch of a step."""

    step: int
    number: int
    parts: int


class Microbatches:
    """The batches of one replica, micro-batch by micro-batch, for the stages at its two ends."""

    def __init__(self, task: Task, feed: Feed, batches: GroupBatches, rank: int) -> None:
        self.task, self.feed, self.batches, self.rank = task, feed, batches, rank
        self.deal = batches.deal
        self._whole: Iterator[Any] = iter(())
        self._next = -1
        self._held: tuple[Microbatch, Any] | None = None
        self._sized = -1, 0  # the step that was asked for last, and the samples of its batch

    def whole(self, step: int) -> int:
        """Samples of the batch of a step; none where this share of the data is through with a pass."""
        known, size = self._sized
        if known != step:
            size = self.batches.batch(self.rank, step)
            self._sized = step, size
        return size

    def samples(self, micro: Microbatch) -> int:
        start, stop = chunk(self.whole(micro.step), micro.parts, micro.number)
        return stop - start

    def serves(self, micro: Microbatch) -> bool:
        """Whether it is computed only because others need it."""
        return False

    def share(self, micro: Microbatch) -> float:
        """What a micro-batch counts in its batch, whose loss is a mean over samples."""
        return self.samples(micro) / self.whole(micro.step)

    def batch(self, micro: Microbatch) -> Any:
        if self._held is None or self._held[0] != micro:
            self._held = micro, self._taken(micro)
        return self._held[1]

    def _taken(self, micro: Microbatch) -> Any:
        own = self._own(micro)
        if micro.parts > 1:
            numbers = self.deal.indices(self.rank, own)
            start, stop = chunk(len(numbers), micro.parts, micro.number)
            return self.feed.take(numbers[start:stop])
        if own != self._next:
            self._whole = self.feed.start(own)
        self._next = own + 1
        return next(self._whole)

    def seed(self, micro: Microbatch) -> int:
        """Of the chance inside the model: an uncut model has the same for a whole batch."""
        return seed_of(self.deal.seed, self.rank, self._own(micro), micro.number if micro.parts > 1 else None)

    def _own(self, micro: Microbatch) -> int:
        """Which of the batches of this share of the data it is a part of."""
        own = self.batches.own(self.rank, micro.step)
        assert own is not None, "a micro-batch without samples is not computed"
        return own


@dataclass(slots=True)
class MicrobatchInFlight:
    """A micro-batch that went forward through a part of the model, and has to come back."""

    taken: Values  # leaves, where a gradient goes back
    given: Values  # empty where they will be computed again
    chance: Tensor | None  # the state of chance before it, where it will be computed again
    weights: Version | None  # with which it went, and has to come back; None: as they are


@dataclass(frozen=True, slots=True)
class PipelineEnds:
    """What the first and the last part of a model need besides: the task's own code around its model."""

    entrance: Entrance
    rebuild: Callable[[Sequence[Tensor]], Any]


class StageCompute:
    """The parts of the model that one worker has. All its methods run on the compute thread."""

    def __init__(
        self, parts: Sequence[Stage], count: int, microbatches: Microbatches, ends: PipelineEnds, recompute: bool,
        group: MemberGroup | None = None, experts: ExpertGroup | None = None,
    ) -> None:  # fmt: skip
        """Where layers or experts are divided among members, all of their group do the same moves."""
        self.parts, self.count, self.microbatches, self.ends = parts, count, microbatches, ends
        self.recompute, self.group, self.experts = recompute, group, experts
        self.layers = [experts_in(part.module) for part in parts]
        self.device = next(parameter.device for part in parts for parameter in part.module.parameters())
        self.chance = Chance(self.device)
        self.flights: dict[tuple[Microbatch, int], MicrobatchInFlight] = {}
        self.losses: dict[Microbatch, Tensor] = {}

    def forward(
        self, micro: Microbatch, chunk: int, values: Values | None, chance: Tensor | None, weights: Version | None
    ) -> tuple[Values, Tensor]:
        """What the part gives, and the state of chance behind it; empty where nothing was drawn so far."""
        part = self.parts[chunk]
        seed_torch(self.microbatches.seed(micro))
        fresh = self.chance.state()
        if part.number == 0:
            values = self.ends.entrance(self.microbatches.batch(micro))
        elif chance is not None:
            self.chance.restore(chance)
        assert values is not None
        taken = _leaves([x.to(self.device) for x in values], part.takes, part.number > 0)
        before = self.chance.state() if self.recompute else None
        with torch.set_grad_enabled(not self.recompute), self._together("F", chunk, micro):
            given = self._run(part, micro, taken, weights)
        self.flights[micro, chunk] = MicrobatchInFlight(taken, () if self.recompute else given, before, weights)
        now = self.chance.state()
        last = part.number == self.count - 1
        return () if last else tuple(x.detach() for x in given), now.new_empty(0) if torch.equal(now, fresh) else now

    def backward(self, micro: Microbatch, chunk: int, errors: Values | None) -> Values:
        """The gradients for what the part took; those of its weights are added to what lies there."""
        part, flight = self.parts[chunk], self.flights.pop((micro, chunk))
        kept = [buffer.clone() for buffer in part.module.buffers()] if self.recompute else []
        with self._together("B", chunk, micro):
            given = self._again(part, micro, flight) if self.recompute else flight.given
            self._differentiate(part, micro, given, errors)
        with torch.no_grad():  # running means have seen the batch already, when it went forward
            for buffer, before in zip(part.module.buffers(), kept, strict=False):
                buffer.copy_(before)
        asked = [x for x, value in zip(flight.taken, part.takes, strict=True) if value.differentiable]
        return tuple(torch.zeros_like(x) if x.grad is None else x.grad for x in asked) if part.number else ()

    @property
    def talks(self) -> bool:
        """Whether a move asks other members."""
        return self.group is not None or self.experts is not None

    @contextmanager
    def _together(self, what: str, chunk: int, micro: Microbatch) -> Iterator[None]:
        """Meanwhile members do this move together; one that only serves the others leaves no trace of it."""
        serves, module = self.microbatches.serves(micro), self.parts[chunk].module
        for name, layer in self.layers[chunk].items():
            layer.loss_weight, layer.where = self.microbatches.share(micro), f"{name}, step {micro.step}"
        before = [layer.notes for layer in self.layers[chunk].values()]
        kept = [buffer.clone() for buffer in module.buffers()] if serves else []
        with (
            self.group.part((what, chunk)) if self.group else nullcontext(),
            self.experts.part((what, chunk), serves) if self.experts else nullcontext(),
        ):
            for layer in self.layers[chunk].values():
                layer.notes = RoutingNotes() if serves or what == "B" else layer.notes
            yield
        for layer, notes in zip(self.layers[chunk].values(), before, strict=True):
            layer.notes = notes
        with torch.no_grad():
            for buffer, value in zip(module.buffers(), kept, strict=False):
                buffer.copy_(value)

    def _differentiate(self, part: Stage, micro: Microbatch, given: Values, errors: Values | None) -> None:
        if part.number == self.count - 1:
            backward(given[0] * self.microbatches.share(micro))
        else:
            assert errors is not None
            wanted = [x for x, value in zip(given, part.gives, strict=True) if value.differentiable]
            pairs = [(x, e.to(self.device)) for x, e in zip(wanted, errors, strict=True) if x.requires_grad]
            if pairs:
                torch.autograd.backward([x for x, _ in pairs], [e for _, e in pairs])

    def mean_loss(self) -> float:
        """Of the micro-batches since it was asked last, each counting its samples."""
        total = sum(float(loss) * self.microbatches.share(micro) for micro, loss in self.losses.items())
        whole = sum(self.microbatches.share(micro) for micro in self.losses)
        self.losses.clear()
        return total / whole if whole else float("nan")

    def _run(self, part: Stage, micro: Microbatch, taken: Values, weights: Version | None) -> Values:
        """The part's forward; behind the last part its loss."""
        given = part(taken) if weights is None else _with(weights, part, taken)
        if part.number < self.count - 1:
            return tuple(whole_value(value, "the end of a stage") for value in given)
        state = self.chance.state()
        seed_torch(self.microbatches.seed(micro))  # what the task draws before it asks its model
        batch = self.microbatches.batch(micro)
        loss = loss_of(self.microbatches.task, batch, self.ends.rebuild(given), lambda: self.chance.restore(state))
        self.losses[micro] = loss.detach()
        return (loss,)

    def _again(self, part: Stage, micro: Microbatch, flight: MicrobatchInFlight) -> Values:
        """The same forward once more, and the same chance is drawn."""
        assert flight.chance is not None
        self.chance.restore(flight.chance)
        with torch.enable_grad():
            return self._run(part, micro, flight.taken, flight.weights)


def _with(version: Version, part: Stage, taken: Values) -> Values:
    """The part's forward with other weights; its buffers are written behind it, for backward may look at them."""
    buffers = {name: buffer.clone() for name, buffer in part.module.named_buffers()}
    given: Values = functional_call(part.module, {**version.weights, **buffers}, taken)
    if not version.seen:
        with torch.no_grad():
            for name, buffer in part.module.named_buffers():
                buffer.copy_(buffers[name])
    return given


def _leaves(values: Sequence[Tensor], kinds: Sequence[Value], differentiable: bool) -> Values:
    """Values as an autograd graph begins with them."""
    return tuple(
        x.detach().requires_grad_(differentiable and kind.differentiable) for x, kind in zip(values, kinds, strict=True)
    )
