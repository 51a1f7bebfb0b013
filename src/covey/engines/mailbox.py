"""Where do messages wait until a program takes them?"""

from __future__ import annotations

from collections.abc import Callable

from covey.message import Message
from covey.program import Receive


class Mailbox:
    """Messages that arrived and were not taken yet, in the order of arrival; `taken` hears of each that is."""

    __slots__ = ("taken", "waiting")

    def __init__(self, taken: Callable[[Message], None]) -> None:
        self.waiting: list[Message] = []
        self.taken = taken

    def put(self, message: Message) -> None:
        self.waiting.append(message)

    def take(self, want: Receive) -> Message | None:
        for index, message in enumerate(self.waiting):
            if want.matches(message):
                del self.waiting[index]
                self.taken(message)
                return message
        return None

    def holds(self, *kinds: type[Message]) -> bool:
        """Whether a message of one of these kinds waits."""
        return any(type(message) in kinds for message in self.waiting)
