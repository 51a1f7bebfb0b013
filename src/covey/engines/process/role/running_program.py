"""A program that runs in a role's process, and what it waits for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

from covey.message import Address
from covey.program import Collective, Effect, Receive, Send, Sleep


class LoopEnded(Exception):
    """The user's own loop has ended; raised in place of the gradient it will not give."""

    def __init__(self, votes: int = 0) -> None:
        super().__init__()
        self.votes = votes  # in which the loop has taken part


class RunningProgram:
    """A program, and the effect it waits for."""

    __slots__ = ("behind", "coroutine", "effect", "main", "since")

    def __init__(self, coroutine: Coroutine[Effect[Any], Any, None], main: bool) -> None:
        self.coroutine, self.main = coroutine, main
        self.effect: Effect[Any] | None = None
        self.since = 0.0
        self.behind = 0  # of a Send: the bytes that were offered to its link before

    def wants(self, effect: Effect[Any]) -> None:
        self.effect, self.since = effect, time.monotonic()

    def deadline(self) -> float | None:
        """When it goes on by itself, if it does."""
        if isinstance(self.effect, Sleep):
            return self.since + self.effect.seconds
        if isinstance(self.effect, Receive) and self.effect.timeout is not None:
            return self.since + self.effect.timeout
        return None

    def waits_for(self) -> str:
        """What it waits for from others, in words; empty while it computes or sleeps."""
        if isinstance(self.effect, Send):
            return f"room on the link to {self.effect.to}"
        if isinstance(self.effect, Collective):
            return f"the sum over {len(self.effect.group)} roles"
        return str(self.effect) if isinstance(self.effect, Receive) else ""


class RolePrograms:
    """A role's main program and its companions, and the answers that lie ready for them."""

    def __init__(self) -> None:
        self.running: list[RunningProgram] = []
        self.ready: deque[tuple[RunningProgram, Any, BaseException | None]] = deque()

    def launch(self, running: RunningProgram) -> None:
        self.running.append(running)
        self.ready.append((running, None, None))

    @property
    def main(self) -> RunningProgram | None:
        return next((running for running in self.running if running.main), None)

    def deadlines(self) -> list[float]:
        """When they go on by themselves, those that do."""
        return [deadline for running in self.running if (deadline := running.deadline()) is not None]

    def await_peer(self, peer: Address) -> bool:
        """Whether one waits for something that may be this peer's."""
        return any(running.effect and running.effect.awaits(peer) for running in self.running)

    def close(self) -> None:
        """End all of them where they stand."""
        for running in self.running:
            running.coroutine.close()
        self.running.clear()
