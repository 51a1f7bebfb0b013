"""Instruments are told of everything, and one that fails does not end the run."""

from __future__ import annotations

import logging

import pytest
import torch

from covey.message import Address, Message
from covey.observe.instruments import Instrument, Instruments
from covey.observe.recording import RecordingTeller
from covey.observe.tally import Teller
from covey.observe.trace import Trace
from covey.vector import Vector

ME, YOU = Address("worker", 1), Address("server", 0)


class Load(Message):
    wire_name = "test.instruments.load"

    vector: Vector


LOAD = Load(Vector([torch.zeros(1200)]))


def tell_all(watch: Instrument) -> None:
    """One event of each kind."""
    watch.computed(0.0, 0.02, ME)
    watch.sent(0.02, ME, YOU, LOAD, 4800)
    watch.delivered(0.03, ME, YOU, LOAD, 4800)
    watch.waited(0.01, 0.03, YOU, "Load from worker 1", 0.01)
    watch.noted(0.03, YOU, "staleness", 2)
    watch.ended(0.04, ME)


def test_everybody_is_told() -> None:
    first, second = Trace(), Trace()
    tell_all(Instruments([first, second]))
    assert first.text() == second.text()
    assert len(first.text().splitlines()) == 5  # a trace does not listen to deliveries


def test_one_that_raises_is_logged_and_removed(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    class Broken(Instrument):
        def computed(self, begin: float, end: float, who: Address) -> None:
            raise ValueError("broken")

        def ended(self, at: float, who: Address) -> None:
            calls.append("the removed one")

    class Sound(Instrument):
        def ended(self, at: float, who: Address) -> None:
            calls.append("the other")

    with caplog.at_level(logging.ERROR):
        tell_all(Instruments([Broken(), Sound()]))
    assert calls == ["the other"]
    assert "Broken failed and is removed" in caplog.text


def test_one_that_is_alone_may_raise_too(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Instrument):
        def noted(self, at: float, who: Address, kind: str, value: float) -> None:
            raise ValueError("broken")

    told = Instruments([Broken()])
    with caplog.at_level(logging.ERROR):
        told.noted(0.0, Address("worker", 0), "update", 1)
        told.noted(1.0, Address("worker", 0), "update", 1)
    assert caplog.text.count("failed and is removed") == 1


@pytest.mark.parametrize("others", [[], [Trace()]])
def test_one_that_a_run_cannot_do_without_ends_it(others: list[Instrument]) -> None:
    class Counts(Teller):
        def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
            raise ValueError("miscounted")

    with pytest.raises(ValueError, match="miscounted"):
        tell_all(Instruments([Counts(), *others]))


def test_waits_are_put_in_words_only_for_those_who_use_them() -> None:
    told = Instruments([Teller()])
    assert not told.explained
    told.attach(RecordingTeller())
    assert told.explained


def test_a_trace_reads_well() -> None:
    trace = Trace()
    tell_all(trace)
    trace.noted(0.05, ME, "loss", 0.123456789)
    trace.waited(0.05, 0.05001, ME, "nothing much")
    assert trace.text() == (
        "  0.0200  worker 1              computes 0.0200\n"
        "  0.0200  worker 1 -> server 0  Load 4.8 kB\n"
        "  0.0300  server 0              waits 0.0200 for Load from worker 1\n"
        "  0.0300  server 0              notes staleness 2\n"
        "  0.0400  worker 1              ends\n"
    )
