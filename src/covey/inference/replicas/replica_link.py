"""Messages on the stream between the front and a replica's process. Nothing here unpickles anything."""

from __future__ import annotations

from collections.abc import Iterator

from covey.errors import WireError
from covey.message import MAX_HEADER, Address, Message, allocate, assemble, pack, raw, read_header

PREFIX, HEAD = 12, 4  # bytes before a message: how many its header has, and how many its tensors
MOST = 1 << 31  # bytes of a message's tensors


def encode(message: Message) -> bytes:
    """The bytes of a message, whose sender is set."""
    header, tensors = pack(message)
    body = b"".join(raw(tensor) for tensor in tensors)
    return b"".join((len(header).to_bytes(HEAD), len(body).to_bytes(PREFIX - HEAD), header, body))


class MessageStream:
    """Finds messages in the bytes that one peer sends."""

    def __init__(self, peer: Address) -> None:
        self.peer = peer
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with these bytes; WireError if they are none."""
        self._bytes += data
        while len(self._bytes) >= PREFIX:
            head, body = int.from_bytes(self._bytes[:HEAD]), int.from_bytes(self._bytes[HEAD:PREFIX])
            if head > MAX_HEADER or body > MOST:
                raise WireError(f"{self.peer} announced a message of {head} + {body} bytes")
            if len(self._bytes) < PREFIX + head + body:
                return
            yield self._message(bytes(self._bytes[PREFIX : PREFIX + head]), PREFIX + head, body)
            del self._bytes[: PREFIX + head + body]

    def _message(self, head: bytes, begin: int, size: int) -> Message:
        header = read_header(head, MOST, self.peer)
        if header.nbytes != size:
            raise WireError(f"{self.peer} announced tensors of {header.nbytes} bytes and sent {size}")
        tensors = allocate(header)
        for tensor in tensors:
            room = raw(tensor)
            room[:] = self._bytes[begin : begin + len(room)]
            begin += len(room)
        return assemble(header, tensors)
