"""A program that runs in a role's process, and what it waits for."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any

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
