"""Damaged messages of secure sums are refused by name, or do no harm; nothing else ever comes of them."""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import pytest
import torch

from covey.errors import SumAbandoned, WireError
from covey.message import Message, assemble, pack, read_header
from covey.privacy.secagg.messages import DeliveredShares, MaskedInput, UnmaskShares
from tests.privacy.sums import NEVER, Sum
from tests.safety.mutating import damaged

FEW, MANY = 20_000, 1_000_000
LIMIT = 1 << 20


def hostile(rng: Random, message: Message) -> Message:
    """The message after a journey on which it was damaged; WireError if it did not arrive."""
    header, tensors = pack(message)
    found: Any = read_header(header, LIMIT, message.sender)
    body = msgspec.Raw(damaged(rng, bytes(found.body)))
    if tensors and rng.random() < 0.5:
        dtype = rng.choice([torch.int32, torch.int64, torch.float32, torch.bool])
        tensors = [torch.zeros(rng.choice([0, 1, 5, 6]), dtype=dtype) for _ in range(rng.choice([0, 1, 1, 2]))]
    return assemble(msgspec.structs.replace(found, body=body), tensors)


class Sums:
    """Sums that have come to each phase, with one client fewer after the masked numbers."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.at_server: list[tuple[Sum, int, Message]] = []
        self.at_client: list[tuple[Sum, int, Message]] = []
        for phase in range(5):
            sums = Sum(range(4), neighbours=0)
            sent = sums.begin()
            for now in range(phase):
                sent = sums.step(self.left(now, sent))
            self.at_server += [(sums, client, message) for client, message in self.left(phase, sent).items()]
            if phase < 4:
                other = Sum(range(4), neighbours=0)
                sent = other.begin()
                for now in range(phase):
                    sent = other.step(self.left(now, sent))
                for client, message in self.left(phase, sent).items():
                    other.server.receive(client, message)
                self.at_client += [(other, client, message) for client, message in other.server.advance().items()]

    def left(self, phase: int, sent: dict[int, Message]) -> dict[int, Message]:
        return sent if phase < 2 else {client: message for client, message in sent.items() if client != 3}

    def throw(self, rng: Random) -> None:
        target = rng.choice([self.to_server, self.to_client])
        told = ""
        try:
            target(rng)
        except WireError as error:
            told = str(error)
            self.seen["refused"] += 1
        assert not told or told.startswith(("the server ", "client ", "nobody -1 ")), told

    def to_server(self, rng: Random) -> None:
        sums, client, message = rng.choice(self.at_server)
        server = copy.copy(sums.server)
        server.waiting = set(server.waiting)
        for name in ("_keys", "_shared", "_masked", "_endorsed", "_revealed", "_total"):
            setattr(server, name, copy.copy(getattr(server, name)) if name != "_total" else server._total.clone())
        server._take = getattr(server, server._take.__name__)
        server.receive(client, hostile(rng, message))
        self.seen[f"server {type(message).__name__}"] += 1

    def to_client(self, rng: Random) -> None:
        sums, number, message = rng.choice(self.at_client)
        client = copy.copy(sums.clients[number])
        client._secrets = copy.copy(client._secrets)
        arrived: Any = hostile(rng, message)
        extra = [sums.numbers[number]] if isinstance(message, DeliveredShares) else []
        answer = getattr(client, {"KeyList": "share", "DeliveredShares": "mask", "SurvivorList": "endorse"}.get(
            type(message).__name__, "unmask"))(arrived, *extra)  # fmt: skip
        if isinstance(answer, UnmaskShares):
            both = {one.client for one in answer.seeds} & {one.client for one in answer.mask_keys}
            assert not both and {one.client for one in answer.seeds} <= {0, 1, 2}
        self.seen[f"client {type(message).__name__}"] += 1


def fuzz(count: int, seed: int) -> Counter[str]:
    rng, sums = Random(seed), Sums()
    for _ in range(count):
        sums.throw(rng)
    return sums.seen


def test_twenty_thousand_damaged_messages() -> None:
    seen = fuzz(FEW, 1)
    assert seen["refused"] > FEW * 0.6
    assert len(seen) == 10, "some of every kind were still whole, or did no harm"


@pytest.mark.full
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(4))
def test_a_million_damaged_messages(seed: int) -> None:
    assert len(fuzz(MANY // 4, seed)) == 10


def test_sums_with_damaged_messages_are_exact_or_abandoned() -> None:
    """Whole sums, in which some messages to the server are damaged, and those refused count as drop-outs."""
    rng, exact = Random(3), 0
    for seed in range(40):
        sums = Sum(range(5), seed % 3)
        sent = sums.begin()
        try:
            for _ in range(NEVER):
                for client, message in sent.items():
                    damage = not isinstance(message, MaskedInput) and rng.random() < 0.1
                    with suppress(WireError):
                        sums.server.receive(client, hostile(rng, message) if damage else message)
                sent = {client: sums.answer(client, asked) for client, asked in sums.server.advance().items()}
        except (SumAbandoned, WireError):
            assert sums.server.outcome is None
            continue
        outcome: Any = sums.server.outcome
        assert outcome.total.equal(sums.plain(outcome.clients))
        exact += 1
    assert 10 < exact < 40
