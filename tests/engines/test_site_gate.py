"""How soon the launcher misses a site: after the silence that a run allows, and soon where its line broke."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from covey.engines.cluster.gate import BROKEN, SiteGate
from covey.engines.process import liveness

STALL = 30.0


class Gate:
    """A door with two sites, and time that passes when the test says so."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], patch: pytest.MonkeyPatch, stall: float) -> None:
        self.now = 100.0
        patch.setattr(liveness.time, "monotonic", lambda: self.now)
        self.gate = SiteGate(context, "inproc://gate", 2, stall=stall)
        self.gate.words()

    def wait(self, seconds: float, speaks: int | None = None) -> list[float]:
        """For how long each site is missed after so much time, in which one of them speaks."""
        for _ in range(round(seconds / self.gate.silence.every)):
            self.now += self.gate.silence.every
            if speaks is not None:
                self.gate.words_of[speaks] += 1
            self.gate.words()
        return [self.gate.silent(number) for number in range(2)]


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def test_a_silent_site_is_missed_after_the_silence_that_is_allowed(
    context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Gate(context, monkeypatch, STALL)
    assert found.wait(STALL, speaks=0) == [0, 0]
    assert found.wait(1, speaks=0) == [0, STALL + 1]


def test_after_a_line_broke_whoever_says_nothing_is_missed_soon(
    context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not known whose line it was: the other one goes on speaking."""
    found = Gate(context, monkeypatch, STALL)
    assert found.wait(1, speaks=0) == [0, 0]
    found.gate._line_broke()
    first, second = found.wait(BROKEN + 0.5, speaks=0)
    assert first == 0 and BROKEN < second < STALL
    assert found.wait(1, speaks=1) == [0, 0], "it speaks again, on another line"


def test_a_shorter_patience_holds_after_a_broken_line_too(
    context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Gate(context, monkeypatch, 1.0)
    found.wait(0.5, speaks=0)
    found.gate._line_broke()
    first, second = found.wait(1.0, speaks=0)
    assert first == 0 and 1.0 < second < BROKEN
