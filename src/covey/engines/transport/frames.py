"""The frames in which messages travel.

A message begins with one frame that holds its header, and all its bytes when they are few. Otherwise its bytes follow
in pieces of a few megabytes, in order, cut where a tensor ends, so that each can be received where it belongs: the
first one in the same frame, so that its receiver wakes up once for most messages, the others in frames of their own.
Frames of other messages may come in between. Between roles of one host the bytes stay in memory that both can read,
and the first frame says where.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from torch import Tensor

from covey.engines.transport.token import NONE, TOKEN
from covey.errors import WireError
from covey.message import raw

OPEN, DATA, SHARED, TAKEN, OFFER = 1, 2, 3, 4, 5
"""TAKEN stands alone: its number says how many bytes of the receiver's messages the sender's programs have taken. OFFER
is the last frame on its socket: what follows on the link travels on a connection of its own (`cipher/`).
"""

SMALL = 32 << 10
"""Up to this many bytes travel in one piece with their header."""

MAX_OPEN = 16
"""How many messages of one link may be half-way at once: one, and those of higher priority that interrupt it."""

KIND_BITS = 4  # of the first word; the others are the sender's incarnation
INCARNATIONS = 1 << (16 - KIND_BITS)

_prefix = Struct(f"<HHIQQ{TOKEN}s")


class Frame(NamedTuple):
    """What stands in front of a frame: whose message it belongs to, and which of its bytes these are."""

    kind: int
    sender: int  # its place in the sorted address book
    size: int  # of the header in a frame that opens a message, else of the bytes that follow
    number: int  # of the message, counted on each link as they leave
    offset: int  # of these bytes in the message; where one opens: how many follow in a piece of their own
    token: bytes = NONE  # of the run
    incarnation: int = 0  # of the sender, counted again from 0 after very many

    @property
    def first_piece(self) -> Frame:
        """What would stand in front of the bytes that come with the opening of a message."""
        return self._replace(kind=DATA, size=self.offset, offset=0)

    def pack(self) -> bytes:
        first = self.kind | self.incarnation % INCARNATIONS << KIND_BITS
        return _prefix.pack(first, self.sender, self.size, self.number, self.offset, self.token)


def read(data: bytes) -> tuple[Frame, memoryview]:
    """The frame's prefix, and what follows it."""
    if len(data) < _prefix.size:
        raise WireError(f"a frame of {len(data)} bytes is refused: it is shorter than its prefix")
    first, sender, size, number, offset, token = _prefix.unpack_from(data)
    frame = Frame(first % (1 << KIND_BITS), sender, size, number, offset, token, first >> KIND_BITS)
    if frame.kind not in (OPEN, DATA, SHARED, TAKEN, OFFER):
        raise WireError(f"a frame of unknown kind {frame.kind} is refused")
    return frame, memoryview(data)[_prefix.size :]


def cut(tensors: list[Tensor], size: int) -> Iterator[memoryview]:
    """The tensors' bytes in order, in pieces of at most `size`, none of which spans two tensors."""
    for tensor in tensors:
        data = raw(tensor)
        for start in range(0, len(data), size):
            yield data[start : start + size]
