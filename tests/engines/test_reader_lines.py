"""The lines of readers to their keeper: one answer at most waits for a reader, whatever it asks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.data.stripe_cache.keeper import as_vector
from covey.data.stripe_cache.keeper_client import HERE, ME, socket_path
from covey.data.stripe_cache.keeper_messages import (
    BringStripe,
    FetchStripe,
    GiveUpStripe,
    HungUp,
    StripeBytes,
    WantStripe,
)
from covey.data.stripe_cache.stripe import LARGEST, Stripe
from covey.engines.keeper.reader_lines import ReaderLines
from covey.message import Message, MessageStream, stamped, streamed

SIZE = 8 << 20  # more than sockets hold
STRIPE = Stripe("0" * 64, "sha256", "1" * 64, SIZE)
WANT, FOUND = WantStripe(STRIPE, 0, SIZE), StripeBytes(STRIPE, 0, SIZE, as_vector(bytes(SIZE)))
BRING = BringStripe(STRIPE, as_vector(b"1234"))


class Line:
    """A keeper's lines, and one reader, which reads when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.lines = ReaderLines(folder)
        self.reader = socket.socket(socket.AF_UNIX)
        with socket_path(folder) as path:
            self.reader.connect(path)
        self.lines.poll()
        (self.who,) = self.lines._readers

    def asks(self, *messages: Message) -> list[str]:
        self.reader.sendall(b"".join(streamed(stamped(one, ME, copy=False)) for one in messages))
        return [type(one).__name__ for one in self.lines.poll()]

    def answer(self, message: Message) -> None:
        self.lines.send(self.who, message)

    def reads(self) -> str:
        stream = MessageStream(HERE, LARGEST)
        while not (came := list(stream.feed(self.reader.recv(1 << 20)))):
            self.lines.poll()
        return type(came[0]).__name__

    @property
    def waiting(self) -> int:
        return sum(len(part) for line in self.lines._readers.values() for part in line.unsent)

    def close(self) -> None:
        self.reader.close()
        self.lines.close()


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    found = Line(tmp_path)
    yield found
    found.close()


def test_a_reader_that_stops_reading_is_hung_up_on_when_it_asks_for_more(line: Line) -> None:
    assert line.asks(WANT) == ["WantStripe"]
    line.answer(FOUND)
    assert 0 < line.waiting <= SIZE + 1000
    assert line.asks(WANT) == ["HungUp"]
    line.answer(FOUND)
    assert line.waiting == 0


def test_a_reader_that_receives_its_answer_may_ask_again(line: Line) -> None:
    for _ in range(3):
        assert line.asks(WANT) == ["WantStripe"]
        line.answer(FOUND)
        assert line.reads() == "StripeBytes"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ((), (WANT, WANT)),  # before it was answered
        ((), (BRING,)),  # which nobody told it to fetch
        ((), (GiveUpStripe(STRIPE),)),
        ((FetchStripe(STRIPE),), (WANT,)),  # before it has brought what it fetches
        ((FetchStripe(STRIPE),), (BRING, BRING)),
        ((), (FOUND,)),
    ],
)
def test_what_a_reader_sends_out_of_turn_ends_its_line(
    line: Line, before: tuple[Message, ...], said: tuple[Message, ...]
) -> None:
    if before:
        assert line.asks(WANT) == ["WantStripe"]
    for one in before:
        line.answer(one)
    if said == (FOUND,):
        line.reader.sendall(streamed(stamped(StripeBytes(STRIPE, 0, 4, as_vector(b"1234")), ME, copy=False)))
        news = [type(one).__name__ for one in line.lines.poll()]
    else:
        news = line.asks(*said)
    assert news[-1] == HungUp.__name__ and not line.lines._readers


def test_a_reader_brings_or_gives_up_what_it_was_told_to_fetch(line: Line) -> None:
    for end in (BRING, GiveUpStripe(STRIPE)):
        assert line.asks(WANT) == ["WantStripe"]
        line.answer(FetchStripe(STRIPE))
        assert line.asks(end) == [type(end).__name__]
