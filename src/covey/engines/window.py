"""The flow-control window: how many bytes may be in flight or unread before the sender's program waits."""

from __future__ import annotations

from covey.message import Message, sizes, vectors
from covey.program import Send

LEAST = 256  # bytes that a message without numbers counts: about what it takes where it waits


def weight(message: Message) -> int:
    """What a message counts in the window of its link; both ends find the same."""
    carried = sizes(message)[1]
    return carried if carried > LEAST else LEAST


def waits(effect: Send) -> bool:
    """Whether it waits for room at all: what has no numbers is too small, and may be what ends another wait."""
    return not effect.paced and bool(vectors(effect.body))


def idle(unread: int, window: int) -> bool:
    """Whether a message of any size may leave: `unread` bytes were sent and not yet taken by the receiver's program.

    Less than half a window never delays a sender, so a receiver acknowledges at most twice per window.
    """
    return 2 * unread < window


def fits(unread: int, size: int, window: int) -> bool:
    """Whether this many more bytes may leave."""
    return idle(unread, window) or unread + size <= window
