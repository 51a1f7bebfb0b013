"""What does a client do with the model? Train it on its own samples; one replica serves all clients of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from covey.data.feed import Feed
from covey.data.shards import Shards
from covey.errors import PlanError
from covey.faults import in_task
from covey.federated.messages import Configuration
from covey.model.batches import backward
from covey.model.flat import Flat
from covey.model.optimizers import made
from covey.model.randomness import seed_of, seed_torch
from covey.model.slots import buffers_of
from covey.settings import check_rate
from covey.task import Task
from covey.task.data import check_data
from covey.task.device import device_of
from covey.vector import Vector

BatchSize = int | Literal["all"] | None
PIECE = 4096  # samples of a full gradient that are computed in one go


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalPlan:
    """How a client trains.

    Args:
        epochs: Passes over the client's samples; 0: no step at all, it reports the gradient of all its samples.
        batch: The samples of a batch: a number, "all", or None for the task's own.
        mu: How strongly it is pulled back to the weights with which it began (Li et al. 2020).
    """

    epochs: int = 1
    batch: BatchSize = None
    mu: float = 0.0

    def __post_init__(self) -> None:
        if self.epochs < 0 or (isinstance(self.batch, int) and self.batch < 1) or self.mu < 0:
            raise PlanError(f"epochs={self.epochs}, batch={self.batch}, mu={self.mu:g}: use positive numbers")

    def batches(self, samples: int, usual: int) -> float:
        """The batches of the task's `usual` size that a client of so many samples computes."""
        return self.passes * samples / usual

    def computes_one(self, samples: int, usual: int) -> bool:
        """Whether a client of so many samples computes a batch of one, where a batch is `usual` ones."""
        size = PIECE if self.epochs == 0 else self.batch or usual
        return samples == 1 or size == 1 or (size != "all" and samples % size == 1)

    @property
    def passes(self) -> int:
        """How often a client computes with each of its samples."""
        return max(1, self.epochs)


@dataclass(frozen=True, slots=True)
class LocalResult:
    """What a client reports: what it changed (or its gradient), its buffers, and its mean loss."""

    update: Vector
    buffers: Vector
    samples: int
    loss: float


Restrict = Callable[[int, int, Vector], Vector]
"""The part of a change that a client may make in a round: (client, number of the round, change)."""


class ClientTraining(Protocol):
    """What trains clients."""

    def load(self, client: int) -> float:
        """The work of a client, in batches."""

    def train(self, client: int, given: Configuration) -> LocalResult:
        """A client's report on the weights that it was given."""


@dataclass(frozen=True, slots=True)
class ClientWork:
    """A client's training as a piece of work, which an engine may do together with others' of the same kind."""

    training: ClientTraining
    client: int
    given: Configuration

    def __call__(self) -> LocalResult:
        return self.training.train(self.client, self.given)


class LocalTraining:
    """Trains any client of a population, one after another, on one copy of the model.

    A client begins with the weights that it is given and with a fresh optimizer: none keeps anything between rounds.
    """

    def __init__(
        self, task: Task, module: nn.Module, data: Any, plan: LocalPlan,
        samples: Sequence[Tensor] | Mapping[int, Tensor], seed: int,
        restrict: Restrict | None = None,
    ) -> None:  # fmt: skip
        refuse_settings(task)
        self._task, self._module, self._plan, self._samples, self._seed = task, module, plan, samples, seed
        self._layout, self._restrict = Flat(module), restrict
        self._counters = [  # buffers that do not travel, and what they begin with
            (owner, key, buffer.clone())
            for owner, key, buffer in buffers_of([module]).values()
            if not buffer.is_floating_point()
        ]
        self._optimizer = made(task.optimizer, list(self._layout.parameters.items()))
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        device = None if task.device is None else device_of(task.device, 0)
        self._feed = Feed(data, Shards(check_data(data), 1, task.batch_size, seed), 0, task.loading, device=device)

    def load(self, client: int) -> float:
        return self._plan.batches(len(self._samples[client]), self._task.batch_size)

    def train(self, client: int, given: Configuration) -> LocalResult:
        layout, mine = self._layout, self._samples[client]
        layout.params.copy_(given.params)
        layout.buffers.copy_(given.buffers)
        for owner, key, first in self._counters:
            getattr(owner, key).copy_(first)
        seed_torch(seed_of(self._seed, client, given.number))
        if self._plan.epochs == 0:
            loss = self._gradient(mine)
            update = layout.grads.clone()
        else:
            loss = self._descend(client, given, mine)
            update = layout.params - given.params
        return LocalResult(update, layout.buffers.clone(), len(mine), loss)

    def _gradient(self, samples: Tensor) -> float:
        """The mean gradient over all samples, left in the layout."""
        layout, total = self._layout, 0.0
        layout.clear()
        for numbers in samples.split(PIECE):
            loss = self._forward(numbers) * (len(numbers) / len(samples))
            backward(loss)
            total += loss.item()
        layout.collect()
        return total

    def _descend(self, client: int, given: Configuration, samples: Tensor) -> float:
        """Take steps of the task's optimizer; the mean loss of all batches."""
        layout, optimizer = self._layout, self._optimizer
        optimizer.state.clear()
        self._set_rate(given.share)
        losses = []
        for numbers in self._draws(client, given.number, samples):
            layout.clear()
            loss = self._forward(numbers)
            backward(loss)
            layout.collect()
            if self._plan.mu:
                layout.grads.add_(layout.params - given.params, alpha=self._plan.mu)
            if self._task.clip_norm is not None:
                layout.grads.shorten_(self._task.clip_norm)
            with in_task("optimizer.step()"):
                optimizer.step()
            if self._restrict:
                change = self._restrict(client, given.number, layout.params - given.params)
                layout.params.copy_(given.params).add_(change)
            losses.append(loss.detach())
        return torch.stack(losses).mean().item()

    def _draws(self, client: int, number: int, samples: Tensor) -> Iterator[Tensor]:
        size = self._plan.batch or self._task.batch_size
        for epoch in range(self._plan.epochs):
            if size == "all" or len(samples) <= size:
                yield samples
            else:
                order = np.random.default_rng((self._seed, client, number, epoch)).permutation(len(samples))
                yield from samples[torch.from_numpy(order)].split(size)

    def _forward(self, numbers: Tensor) -> Tensor:
        with in_task("data"):
            batch = self._feed.take(numbers)
        return self._task.forward(self._module, batch)

    def _set_rate(self, share: float) -> None:
        if self._task.rate is None:
            return
        with in_task("rate(progress)"):
            factor = float(self._task.rate(share))
        check_rate(f"Task: rate({share:g}), the factor on the learning rate,", factor)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor


class TimedTraining:
    """Only takes the time of training: reports have the size of the model, and no numbers."""

    def __init__(self, task: Task, plan: LocalPlan, sizes: list[int]) -> None:
        self._task, self._plan, self._sizes = task, plan, sizes

    def load(self, client: int) -> float:
        return self._plan.batches(self._sizes[client], self._task.batch_size)

    def train(self, client: int, given: Configuration) -> LocalResult:
        return LocalResult(given.params, given.buffers, self._sizes[client], float("nan"))


def refuse_settings(task: Task) -> None:
    """Refuse what of a task belongs to one long training, and has no meaning for a client that trains a little."""
    for name, unusual in (
        ("scheduler", task.scheduler is not None), ("ema", task.ema is not None), ("accumulate", task.accumulate > 1),
        ("precision='fp16'", task.precision == "fp16"), ("compile", bool(task.compile)),
        ("sampler", task.sampler is not None), ("drop_last", task.drop_last), ("loaders", task.loaders > 0),
        ("preparers", task.preparers > 0),
    ):  # fmt: skip
        if unusual:
            raise PlanError(f"Task({name}) cannot be used with clients, which train a little and go: omit it")
    if task.private is not None:
        raise PlanError("Task(private=…) hides samples, not clients: omit it, and hide who took part with '+ dp'")
