"""eSGD (Tao and Li 2018): a client sends a few numbers, the more often those whose sending was followed by progress."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from covey.errors import PlanError
from covey.exchange.codec import expect, refused
from covey.exchange.codecs.sparse import of
from covey.federated.reports.report_form import drawn
from covey.vector import Vector

LEAST, MOST = 2.0**-10, 2.0**10  # of an importance: no number is ever given up, or sent always


@dataclass(frozen=True, kw_only=True, slots=True)
class ESgd:
    """A few numbers of each update, chosen by importance; the rest waits (Tao and Li 2018).

    Args:
        fraction: Of the numbers that is sent.
        factor: By which the importance of numbers rises when the loss has fallen since they were sent, else falls.
        momentum: Of what waits.
    """

    fraction: float = 0.1
    factor: float = 2.0
    momentum: float = 0.0

    def check(self) -> None:
        if not (0 < self.fraction <= 1 and self.factor > 1 and 0 <= self.momentum < 1):
            raise PlanError(
                f"esgd(fraction={self.fraction:g}, factor={self.factor:g}, momentum={self.momentum:g}): fraction above "
                "0 and at most 1, factor above 1, momentum from 0 to below 1"
            )


@dataclass(slots=True)
class Importance:
    """What a client remembers between rounds, for one part of the vector."""

    weights: Tensor  # the larger, the more likely a number is sent
    waiting: Tensor  # what was not sent yet
    moving: Tensor  # the momentum of that
    sent: Tensor  # the places of the last time

    @staticmethod
    def of(part: Tensor) -> Importance:
        numbers = part.detach().reshape(-1)
        nothing = torch.zeros_like(numbers)
        return Importance(torch.ones_like(numbers), nothing, nothing.clone(), torch.zeros(0, dtype=torch.int64))

    def learn(self, fell: bool, factor: float) -> None:
        """The loss fell since the last numbers were sent, or did not."""
        self.weights[self.sent] = (self.weights[self.sent] * (factor if fell else 1 / factor)).clamp(LEAST, MOST)

    def choose(self, count: int, chance: torch.Generator) -> Tensor:
        """Places in order, drawn without repetition by their importance (Efraimidis and Spirakis 2006)."""
        keys = torch.rand(self.weights.shape, generator=chance, dtype=torch.float64).log() / self.weights.double()
        return keys.topk(count).indices.sort().values


class ESgdReports:
    """Reports of a few numbers and their places; what each client remembers stays where it trains."""

    def __init__(self, like: Vector, seed: int, settings: ESgd) -> None:
        self._like, self._seed, self._settings = like, seed, settings
        self._counts = [of(settings.fraction, part.numel()) for part in like.parts]
        self._kept: dict[int, tuple[list[Importance], float]] = {}

    def encode(self, client: int, number: int, update: Vector, loss: float) -> Vector:
        parts, before = self._kept.get(client) or ([Importance.of(part.cpu()) for part in self._like.parts], None)
        values, indices = [], []
        for index, (part, held, count) in enumerate(zip(update.parts, parts, self._counts, strict=True)):
            if before is not None:
                held.learn(loss < before, self._settings.factor)
            held.moving = self._settings.momentum * held.moving + part.cpu()
            held.waiting = held.waiting + held.moving
            chance = torch.Generator().manual_seed(drawn(self._seed, client, number, index))
            held.sent = held.choose(count, chance)
            values.append(held.waiting[held.sent])
            held.waiting[held.sent] = held.moving[held.sent] = 0
            indices.append(held.sent.to(torch.int32))
        self._kept[client] = parts, loss
        return Vector([*values, *indices])

    def decode(self, client: int, number: int, wire: Vector) -> Vector:
        values = [(count, part.dtype) for count, part in zip(self._counts, self._like.parts, strict=True)]
        found = expect(wire, *values, *((count, torch.int32) for count in self._counts))
        whole = []
        for like, numbers, indices in zip(self._like.parts, found, found[len(values) :], strict=False):
            where = indices.long()
            if len(where) and (int(where[0]) < 0 or int(where[-1]) >= like.numel() or bool((where.diff() <= 0).any())):
                raise refused(wire, "places that are not in order, or outside of the model")
            part = torch.zeros_like(like)
            part[where.to(like.device)] = numbers.to(like.device)
            whole.append(part)
        return Vector(whole)
