"""Secure sums among a few clients in this process, any of which may drop out in any phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from covey.message import Message
from covey.privacy.randomness import SeededRandomness
from covey.privacy.secagg import FixedPoint, Identity, SumClient, SumOutcome, SumServer, sum_terms
from covey.privacy.secagg.messages import (
    DeliveredShares,
    KeyList,
    SumTerms,
    SurvivorList,
    UnmaskRequest,
)  # fmt: skip

ANSWERS = {KeyList: "share", DeliveredShares: "mask", SurvivorList: "endorse", UnmaskRequest: "unmask"}
NEVER = 5  # phases are 0 (keys) to 4 (unmasking)
LENGTH = 5


@cache
def identity(client: int) -> Identity:
    return Identity.create(SeededRandomness(f"identity {client}"))


class Sum:
    """A server and its clients, with numbers that tell them apart."""

    def __init__(
        self, clients: Sequence[int], seed: int = 0, length: int = LENGTH, numbers: Mapping[int, Tensor] | None = None,
        bits: int = 32, **terms: Any,
    ) -> None:  # fmt: skip
        chance = SeededRandomness(f"round {seed}")
        self.fixed = FixedPoint(bits=bits)
        self.terms: SumTerms = sum_terms(clients, length, self.fixed, randomness=chance, **terms)
        self.directory = {client: identity(client).public for client in clients}
        self.server = SumServer(self.terms, self.directory)
        self.clients = {client: self.client(client, seed) for client in clients}
        self.numbers = dict(numbers) if numbers else {c: drawn(c, length, self.fixed) for c in clients}
        self.revealed: list[tuple[int, Any]] = []

    def client(self, client: int, seed: int = 0) -> SumClient:
        chance = SeededRandomness(f"client {client} of {seed}")
        return SumClient(client, self.terms, identity(client), self.directory, randomness=chance)

    def plain(self, clients: Sequence[int]) -> Tensor:
        return torch.stack([self.numbers[client].long() for client in clients]).sum(0)

    def answer(self, client: int, message: Message) -> Any:
        """What a client says to the server's message."""
        extra = [self.numbers[client]] if isinstance(message, DeliveredShares) else []
        return getattr(self.clients[client], ANSWERS[type(message)])(message, *extra)

    def begin(self) -> dict[int, Message]:
        return {client: one.advertise() for client, one in self.clients.items()}

    def step(self, sent: Mapping[int, Message]) -> dict[int, Message]:
        """The server hears the clients, and they its answers."""
        for client, message in sent.items():
            self.server.receive(client, message)
        return {client: self.answer(client, asked) for client, asked in self.server.advance().items()}

    def upto(self, phase: int) -> dict[int, Message]:
        """What clients send in a phase, everybody having taken part until then."""
        sent = self.begin()
        for _ in range(phase):
            sent = self.step(sent)
        return sent

    def run(self, drops: Mapping[int, int] | None = None) -> SumOutcome:
        """The whole sum; each client falls silent in the phase that `drops` says. SumAbandoned if it fails."""
        last = drops or {}
        sent = self.begin()
        for phase in range(5):
            there = {client: message for client, message in sent.items() if last.get(client, NEVER) > phase}
            if phase == 4:
                self.revealed = list(there.items())
            sent = self.step(there)
        assert self.server.outcome
        return self.server.outcome


def drawn(client: int, length: int, fixed: FixedPoint) -> Tensor:
    """Numbers of a client, the largest and the smallest among them."""
    chance = torch.Generator().manual_seed(client)
    drawn = torch.randint(-fixed.levels, fixed.levels + 1, (length,), generator=chance)
    drawn[:2] = torch.tensor([fixed.levels, -fixed.levels])[:length]
    return drawn.to(torch.int32 if fixed.bits == 32 else torch.int64)
