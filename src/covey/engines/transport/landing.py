"""Does a message lie in the vector that awaits it?"""

from __future__ import annotations

from covey.message import Message, vectors
from covey.program import Receive


def landed(message: Message, want: Receive) -> bool:
    """Whether the message was received straight into `want.into`."""
    if want.into is None or len(found := vectors(message)) != 1 or len(found[0].parts) != len(want.into.parts):
        return False
    return all(mine is theirs for mine, theirs in zip(want.into.parts, found[0].parts, strict=True))


def placed(message: Message, want: Receive) -> Message:
    """Bring a message that came before it was expected into the vector that awaits it."""
    if want.into is not None and not landed(message, want):
        (vector,) = vectors(message)
        want.into.copy_(vector)
    return message
