"""Which waits end when a worker goes or comes? Those for a peer in a round of all of them, where a role takes part."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from covey.engines.mailbox import Mailbox
from covey.membership import Departed, Joined, ViewChanged
from covey.program import Collective, Effect, Receive


def in_round(effect: Effect[Any] | None, mailbox: Mailbox) -> bool:
    """Whether this is a wait for peers that a change, of which the program has not heard, has broken off.

    One that is alone waits for nobody: it does its round, and hears of those that come before the next one.
    """
    if isinstance(effect, Receive):
        waits = effect.sender is not None and effect.sender.role == "worker" and Joined not in effect.kinds
    else:
        waits = isinstance(effect, Collective) and len(effect.group) > 1
    return waits and mailbox.holds(Joined, Departed)


class Breakable(Coroutine[Effect[Any], Any, None]):
    """A program that is thrown what it is sent, if that is ViewChanged."""

    def __init__(self, program: Coroutine[Effect[Any], Any, None]) -> None:
        self._program = program

    def send(self, value: Any) -> Effect[Any]:
        if isinstance(value, ViewChanged):
            return self._program.throw(value)
        return self._program.send(value)

    def throw(self, *error: Any) -> Effect[Any]:
        return self._program.throw(*error)

    def close(self) -> None:
        self._program.close()

    def __await__(self) -> Any:
        return self._program.__await__()
