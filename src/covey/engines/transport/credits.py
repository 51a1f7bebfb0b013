"""Flow control: the bytes that a role's programs have taken of each peer's messages, and acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from covey.engines.window import weight
from covey.message import Address, Message


class Credits:
    """The receiving end of all windows of a role: bytes that arrived, are unread, and were acknowledged."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.came: Counter[Address] = Counter()
        self.unread: Counter[Address] = Counter()  # of those that have something here
        self.told: Counter[Address] = Counter()
        self._orphans: dict[int, Message] = {}  # unread messages of earlier incarnations, by their identity

    def renew(self, sender: Address, unread: Iterable[Message]) -> None:
        """A sender was restarted: what lies here is of its earlier incarnation, whose window is closed."""
        for counts in (self.came, self.unread, self.told):
            counts.pop(sender, None)
        self._orphans.update((id(message), message) for message in unread)

    def arrived(self, message: Message) -> None:
        self.came[message.sender] += (size := weight(message))
        self.unread[message.sender] += size

    def kept(self, messages: Iterable[Message]) -> None:
        """These have been lying here since before the run began again; their senders do not know of them."""
        for message in messages:
            self.unread[message.sender] += weight(message)

    def taken(self, message: Message) -> None:
        """A program has taken it, or none ever will. What no peer sent does not count."""
        sender = message.sender
        if self._orphans.pop(id(message), None) is None and sender in self.unread:
            self.unread[sender] -= weight(message)
            if not self.unread[sender]:
                del self.unread[sender]

    def due(self, sender: Address, waives: Callable[[Address], bool]) -> int | None:
        """What to acknowledge, if it is half a window more than the sender knows: all bytes that it need not count.

        What lies unread is not among those, unless the role waives that.
        """
        free, told = self.came[sender], self.told[sender]
        if 2 * (free - told) < self.window:
            return None
        if sender in self.unread and not waives(sender):
            free -= self.unread[sender]
            if 2 * (free - told) < self.window:
                return None
        self.told[sender] = free
        return free
