"""What a run with faults did, of which a restart takes back all that came after the newest checkpoint."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from covey.message import Address, Message, raw, vectors
from covey.model.replica import Replica
from covey.observe.instruments import Instrument
from covey.task import Task


class RunsOn(BaseException):
    """A run that should have ended long ago; no exception of a role's, which others would catch."""


@dataclass(slots=True)
class AcceptedWork:
    """What counts of a run: each batch with the weights that it was computed at, and how far optimizers have moved."""

    batches: list[tuple[tuple[int, ...], bytes]] = field(default_factory=list)
    moved: float = 0.0

    def copy(self) -> AcceptedWork:
        return AcceptedWork(list(self.batches), self.moved)


class FaultLog(Instrument):
    """Watches a run through all its attempts."""

    def __init__(self, limit: float) -> None:
        self.limit = limit  # seconds after which it does not end any more
        self.work, self._kept = AcceptedWork(), AcceptedWork()
        self.sends: Counter[tuple[object, ...]] = Counter()
        self.deliveries: Counter[tuple[object, ...]] = Counter()
        self.effects: Counter[str] = Counter()  # about how many each role has performed
        self.links: dict[tuple[str, str], None] = {}
        self.restarts = 0
        self.initial: float | None = None  # the sum of all numbers of all replicas
        self.replicas: Mapping[Address, Replica] = {}

    def built(self, replicas: Mapping[Address, Replica]) -> None:
        """An attempt begins with these."""
        self.replicas = replicas
        if self.initial is None:
            self.initial = total(replicas)

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self._check(at)
        self.sends[_print(sender, to, message)] += 1
        self.links[str(sender), str(to)] = None
        self.effects[str(sender)] += 1

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self.deliveries[_print(sender, to, message)] += 1
        self.effects[str(to)] += 1

    def computed(self, begin: float, end: float, who: Address) -> None:
        self._check(end)
        self.effects[str(who)] += 1

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        self.effects[str(who)] += 1

    def kept(self, at: float) -> None:
        self._kept = self.work.copy()

    def restarted(self, at: float) -> None:
        self.work = self._kept.copy()
        self.limit += at
        self.restarts += 1
        self.sends.clear()
        self.deliveries.clear()

    def doubled(self) -> list[str]:
        """What was delivered more often than it was sent."""
        return [" ".join(map(str, key[:3])) for key, count in self.deliveries.items() if count > self.sends[key]]

    def _check(self, at: float) -> None:
        if at > self.limit:
            raise RunsOn

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, add up how far optimizers move."""

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self.work.moved -= _held(optimizer)

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self.work.moved += _held(optimizer)

        handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def watched(self, task: Task) -> Task:
        """The task, whose samples end with their numbers, with its batches written down."""
        whole = task.data
        assert isinstance(whole, tuple)

        def step(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
            *inputs, numbers = batch
            made: Tensor = model(inputs[0])  # divided models are asked twice, and answer once
            self.work.batches.append((tuple(numbers.tolist()), _digest(model)))
            return nn.functional.cross_entropy(made, inputs[1])

        return Task(
            model=task.model, data=(*whole, torch.arange(len(whole[0]))), optimizer=task.optimizer, step=step,
            batch_size=task.batch_size,
        )  # fmt: skip


def total(replicas: Mapping[Address, Replica]) -> float:
    """The sum of all numbers of all replicas."""
    return sum(part.double().sum().item() for replica in replicas.values() for part in replica.flat.parts)


def _held(optimizer: Optimizer) -> float:
    return sum(float(one.detach().double().sum()) for group in optimizer.param_groups for one in group["params"])


def _digest(model: nn.Module) -> bytes:
    hashed = hashlib.blake2b(digest_size=8)
    for parameter in model.parameters():
        hashed.update(parameter.detach().numpy().tobytes())
    return hashed.digest()


def _print(sender: Address, to: Address, message: Message) -> tuple[object, ...]:
    """What tells a message from others."""
    plain = [getattr(message, name) for name in message.__struct_fields__ if name not in ("sender",)]
    words = tuple(value for value in plain if isinstance(value, int | float | str))
    sums = tuple(hash(raw(part).tobytes()) for vector in vectors(message) for part in vector.parts)
    return f"{sender} ->", to, type(message).__name__, words, sums
