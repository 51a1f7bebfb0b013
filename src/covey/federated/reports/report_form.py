"""How a client's update travels: the service makes of it again what it would have got."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Protocol

from covey.federated.local_training import ClientTraining, LocalResult
from covey.federated.messages import Configuration
from covey.vector import Vector


class ReportForm(Protocol):
    """What travels in place of a client's update. What is left to chance follows from the client and the round."""

    def encode(self, client: int, number: int, update: Vector, loss: float) -> Vector:
        """What a client sends for its update in the round of this number."""
        ...

    def decode(self, client: int, number: int, wire: Vector) -> Vector:
        """The update that this client's report stands for; WireError for what it cannot have sent."""
        ...


class EncodedTraining:
    """Trains clients, whose reports have a form."""

    def __init__(self, inner: ClientTraining, form: ReportForm) -> None:
        self._inner, self._form = inner, form

    def load(self, client: int) -> float:
        return self._inner.load(client)

    def train(self, client: int, given: Configuration) -> LocalResult:
        done = self._inner.train(client, given)
        return replace(done, update=self._form.encode(client, given.number, done.update, done.loss))


def drawn(seed: int, client: int, number: int, what: object) -> int:
    """A number that follows from the run, the client and the round, for one use."""
    return Random(f"{seed}/{client}/{number}/{what}").getrandbits(62)
