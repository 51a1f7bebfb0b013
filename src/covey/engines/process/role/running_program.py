"""A program that runs in a role's process, and what it waits for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

from covey.message import Address, Message
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
        self.held: RunningProgram | None = None  # the main program, while it stands before a step
        self.ended = False  # the main program is through

    def launch(self, running: RunningProgram) -> None:
        self.running.append(running)
        self.ready.append((running, None, None))

    @property
    def main(self) -> RunningProgram | None:
        return next((running for running in self.running if running.main), None)

    def patience(self, most: float, pause: float | None) -> float:
        """How long nothing needs doing: until one of them goes on by itself, or a pause ends; at most this long."""
        if self.ready:
            return 0.0
        moments = pause, *(running.deadline() for running in self.running)
        deadlines = [moment for moment in moments if moment is not None]
        return max(0.0, min(min(deadlines) - time.monotonic(), most)) if deadlines else most

    def await_peer(self, peer: Address) -> bool:
        """Whether one waits for something that may be this peer's."""
        return any(running.effect and running.effect.awaits(peer) for running in self.running)

    def receiver(self, message: Message) -> tuple[RunningProgram, Receive] | None:
        """The program that waits for this message, and its wait; one that is held takes no message."""
        for running in self.running:
            want = running.effect
            if isinstance(want, Receive) and running is not self.held and want.matches(message):
                return running, want
        return None

    def unseen(self) -> list[Message]:
        """The messages that lie ready for them."""
        return [value for _, value, _ in self.ready if isinstance(value, Message)]

    def close(self) -> None:
        """End all of them where they stand."""
        for running in self.running:
            running.coroutine.close()
        self.running.clear()
