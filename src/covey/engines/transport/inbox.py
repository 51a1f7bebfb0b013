"""Messages that are arriving: each frame is checked, then received where it belongs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import zmq
from torch import Tensor

from covey.engines.transport import token
from covey.engines.transport.frames import INCARNATIONS, MAX_OPEN, Frame
from covey.engines.transport.shared.memory import Neighbours, read_places
from covey.errors import WireError
from covey.message import DTYPES, Address, Header, Message, allocate, assemble, raw, read_header, vectors
from covey.program import Receive


class IncomingMessage:
    """A message of which some bytes are still on their way."""

    __slots__ = ("at", "header", "message", "offset", "places", "want")

    def __init__(self, header: Header, tensors: Sequence[Tensor], message: Message, want: Receive | None) -> None:
        self.header = header
        self.message = message
        self.want = want  # the Receive into whose vector it arrives
        self.places = _places(tensors)
        self.at = 0  # in the first of the places
        self.offset = 0

    def place(self, frame: Frame) -> memoryview:
        """Where the frame's bytes belong."""
        room = len(self.places[0]) - self.at
        if frame.offset != self.offset or not 0 < frame.size <= room:
            raise WireError(
                f"{self.header.sender} sent bytes {frame.offset} to {frame.offset + frame.size} "
                f"of a {self.header.kind} where {self.offset} to at most {self.offset + room} were due"
            )
        return self.places[0][self.at : self.at + frame.size]

    def moved(self, size: int) -> bool:
        """Note that `size` more bytes are in place; whether those were the last."""
        self.at += size
        self.offset += size
        if self.at == len(self.places[0]):
            self.places.pop(0)
            self.at = 0
        return not self.places

    def leave(self) -> None:
        """Go on in memory of its own, with what has arrived so far."""
        tensors = allocate(self.header)
        for mine, theirs in zip(tensors, vectors(self.message)[0].parts, strict=True):
            mine.copy_(theirs)
        self.message = assemble(self.header, tensors)
        self.places = _places(tensors)[-len(self.places) :]
        self.want = None


def _places(tensors: Sequence[Tensor]) -> list[memoryview]:
    return [raw(tensor) for tensor in tensors if tensor.numel()]


class ReplayWindow:
    """Which of a link's messages have come: each may come once. (RFC 4303 keeps such a window, section 3.4.3.)

    They are numbered as they leave, so they come in order; only what a broken connection left behind may be late.
    """

    __slots__ = ("_bits", "_newest")
    WINDOW = 256

    def __init__(self) -> None:
        self._newest, self._bits = -1, 0

    def first(self, number: int) -> bool:
        """Whether this one comes for the first time, as far as the window knows."""
        ahead = number - self._newest
        if ahead > 0:
            kept = self._bits << ahead if ahead < self.WINDOW else 0
            self._newest, self._bits = number, (kept | 1) & ((1 << self.WINDOW) - 1)
            return True
        if -ahead >= self.WINDOW or self._bits >> -ahead & 1:
            return False
        self._bits |= 1 << -ahead
        return True


class Inbox:
    """The half-received messages of a role, by sender and number."""

    def __init__(
        self, book: Sequence[Address], limit: int, token: bytes = token.NONE, neighbours: Neighbours | None = None,
        incarnations: Mapping[Address, int] | None = None,
    ) -> None:  # fmt: skip
        self.book = book
        self.neighbours = neighbours
        self.limit = limit  # bytes of one message, and of all that are half-way from one sender
        self.token = token
        self.seen = [ReplayWindow() for _ in book]
        self.wants: list[Receive] = []
        self.arrivals: list[dict[int, IncomingMessage]] = [{} for _ in book]
        self.incarnations = [(incarnations or {}).get(who, 0) for who in book]

    def expect(self, want: Receive) -> None:
        """Receive the next message that fits directly into `want.into`."""
        if want.into is not None:
            self.wants.append(want)

    def forget(self, want: Receive) -> None:
        """Touch `want.into` no more, even if a message is half-way in it."""
        self.wants = [other for other in self.wants if other is not want]
        for arrivals in self.arrivals:
            for arrival in arrivals.values():
                if arrival.want is want:
                    arrival.leave()

    def admit(self, frame: Frame) -> Address:
        """Whose frame this claims to be, if it is of this run at all."""
        token.check(self.token, frame.token, "a frame")
        if frame.sender >= len(self.book):
            raise WireError(f"a frame of role number {frame.sender} is refused: this run has {len(self.book)} roles")
        return self.book[frame.sender]

    def ahead(self, frame: Frame) -> bool:
        """Whether its sender has been restarted, which this role has not heard of yet."""
        later = (frame.incarnation - self.incarnations[frame.sender]) % INCARNATIONS
        return 0 < later < INCARNATIONS // 2

    def outdated(self, frame: Frame) -> bool:
        """Whether an earlier incarnation of its sender sent it; one that is not known yet is refused."""
        if frame.incarnation == (known := self.incarnations[frame.sender] % INCARNATIONS):
            return False
        if (known - frame.incarnation) % INCARNATIONS < INCARNATIONS // 2:
            return True
        raise WireError(
            f"a frame of incarnation {frame.incarnation} of {self.book[frame.sender]} is refused: it is in {known}"
        )

    def renew(self, sender: Address, incarnation: int) -> bool:
        """Hear only this incarnation from now on, which numbers its messages anew; False if that is so already."""
        place = self.book.index(sender)
        if self.incarnations[place] == incarnation:
            return False
        self.incarnations[place], self.seen[place], self.arrivals[place] = incarnation, ReplayWindow(), {}
        return True

    def open(self, frame: Frame, data: memoryview) -> Message | None:
        """Begin a message with the frame that holds its header; the message itself, if it is whole."""
        sender, arrivals = self.book[frame.sender], self.arrivals[frame.sender]
        if not self.seen[frame.sender].first(frame.number):
            raise WireError(f"{sender} sent its message number {frame.number} again")
        header = read_header(data[: frame.size], self.limit, sender)
        inline, due = len(data) - frame.size, header.nbytes
        if inline not in (0, due):
            raise WireError(f"{header.sender} sent a {header.kind} with {inline} of its {due} bytes")
        if not due and not header.tensors:
            return assemble(header, ())
        if inline or not due:
            arrival = self._begin(header)
            _spread(data[frame.size :], arrival.places)
            return self._whole(arrival)
        if len(arrivals) >= MAX_OPEN:
            raise WireError(f"{header.sender} opened a {header.kind} while {len(arrivals)} messages are half-way")
        if sum(arrival.header.nbytes for arrival in arrivals.values()) + due > self.limit:
            raise WireError(f"{sender} opened a {header.kind} while its half-way messages fill all the room they have")
        arrivals[frame.number] = self._begin(header)
        return None

    def begin(self, frame: Frame, data: memoryview) -> None:
        """The same for a message whose first piece comes with its header."""
        if self.open(frame, data) is not None:
            raise WireError(f"{self.book[frame.sender]} sent more bytes than its message has")

    def share(self, frame: Frame, data: memoryview) -> Message:
        """A message of this host, whose tensors lie in memory that its sender owns."""
        sender = self.book[frame.sender]
        if self.neighbours is None or sender not in self.neighbours:
            raise WireError(f"{sender} spoke of memory that it does not share with this role")
        if not self.seen[frame.sender].first(frame.number):
            raise WireError(f"{sender} sent its message number {frame.number} again")
        header = read_header(data[: frame.size], self.limit, sender)
        tensors = self.neighbours.tensors(header, read_places(data[frame.size :], sender))
        for want in self.wants:
            message = self._fits(header, want)
            if message is not None:
                assert want.into is not None
                for mine, theirs in zip(want.into.parts, tensors, strict=True):
                    mine.copy_(theirs)
                self.wants = [other for other in self.wants if other is not want]
                return message
        return assemble(header, tensors)

    def place(self, frame: Frame) -> memoryview:
        """Where the bytes of this frame go."""
        arrival = self.arrivals[frame.sender].get(frame.number)
        if arrival is None:
            raise WireError(f"{self.book[frame.sender]} sent bytes of a message that is not open, or was refused")
        return arrival.place(frame)

    def put(self, frame: Frame, data: bytes) -> Message | None:
        """Bytes of an open message that lie elsewhere; the message, if they were the last."""
        try:
            place = self.place(frame)
            if len(data) != frame.size:
                raise WireError(f"{self.book[frame.sender]} sent {len(data)} bytes in a frame of {frame.size}")
        except WireError:
            self.drop(frame)
            raise
        place[:] = data
        return self.filled(frame)

    def filled(self, frame: Frame) -> Message | None:
        """Note that the frame's bytes are in place; the message, if they were the last."""
        arrivals = self.arrivals[frame.sender]
        if not arrivals[frame.number].moved(frame.size):
            return None
        return self._whole(arrivals.pop(frame.number))

    def drop(self, frame: Frame) -> None:
        """Give up the message that this frame belongs to."""
        self.arrivals[frame.sender].pop(frame.number, None)

    def _begin(self, header: Header) -> IncomingMessage:
        for want in self.wants:
            message = self._fits(header, want)
            if message is not None:
                assert want.into is not None
                return IncomingMessage(header, want.into.parts, message, want)
        try:
            tensors = allocate(header)
        except (RuntimeError, TypeError):  # not enough memory, or a length that no tensor can have
            raise WireError(f"{header.sender} announced a {header.kind} for which there is no room here") from None
        return IncomingMessage(header, tensors, assemble(header, tensors), None)

    def _fits(self, header: Header, want: Receive) -> Message | None:
        """The message, to be received into `want.into`, if `want` waits for it and no other is on its way there."""
        assert want.into is not None
        if len(header.tensors) != len(want.into.parts) or self._taken(want):
            return None
        for shape, part in zip(header.tensors, want.into.parts, strict=True):
            if shape.dims != tuple(part.shape) or DTYPES[shape.dtype] != part.dtype:
                return None
            if part.device.type != "cpu" or not part.is_contiguous():
                return None
        message = assemble(header, want.into.parts)
        return message if want.matches(message) and len(vectors(message)) == 1 else None

    def _taken(self, want: Receive) -> bool:
        return any(arrival.want is want for arrivals in self.arrivals for arrival in arrivals.values())

    def _whole(self, arrival: IncomingMessage) -> Message:
        if arrival.want is not None:
            self.wants = [want for want in self.wants if want is not arrival.want]
        return arrival.message


def _spread(data: memoryview, places: list[memoryview]) -> None:
    for place in places:
        place[:] = data[: len(place)]
        data = data[len(place) :]


def fill(door: zmq.Socket[bytes], inbox: Inbox, frame: Frame) -> Message | None:
    """Receive bytes of an open message where they belong; one that gets wrong bytes is given up."""
    try:
        place = inbox.place(frame)
        size = door.recv_into(place) if door.get(zmq.RCVMORE) else 0
        if size != frame.size:
            raise WireError(f"{inbox.book[frame.sender]} sent {size} bytes in a frame of {frame.size}")
    except WireError:
        inbox.drop(frame)
        raise
    return inbox.filled(frame)
