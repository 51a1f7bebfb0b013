"""Messages of the frames that come in: by a role's socket, by lanes of its host, and beside ZeroMQ."""

from __future__ import annotations

from collections.abc import Callable

from covey.engines.transport import frames
from covey.engines.transport.frames import Frame
from covey.engines.transport.inbox import Inbox, fill
from covey.engines.transport.link import ReceivingSocket
from covey.engines.transport.refusals import Refusals
from covey.engines.transport.shared.role_lanes import RoleLanes
from covey.errors import WireError
from covey.message import Address, Message

Found = list[Message]
Invited = Callable[[Address, memoryview], None]
"""Hears of a peer's offer to connect beside ZeroMQ."""


class FrameReader:
    """Checks each frame. What is malformed is refused, and counted.

    Args:
        keyed: Whether who sends by the socket has proved who it is.
        credit: Hears how many bytes of this role's messages a peer's programs have taken; False if that cannot be.
    """

    def __init__(
        self, door: ReceivingSocket, inbox: Inbox, refusals: Refusals, *, keyed: bool, lanes: RoleLanes | None,
        credit: Callable[[Address, int], bool], invited: Invited | None,
    ) -> None:  # fmt: skip
        self.door, self.inbox, self.refusals, self.keyed, self.lanes = door, inbox, refusals, keyed, lanes
        self.credit, self.invited = credit, invited

    def close(self) -> None:
        """Forget whom it tells: what they hold open is closed as soon as nobody else needs it."""
        self.credit, self.invited = _nobody, None

    def by_socket(self, found: Found) -> None:
        """Add the messages that are whole with the frames which have come by the socket."""
        for head, proved in self.door.frames():
            try:
                self._take(head, proved, found)
            except WireError as error:
                self.refusals.note(str(error))
            finally:
                self.door.drop_rest()

    def by_lane(self, peer: Address, data: bytes, found: Found) -> None:
        """The same for a frame that came by a lane."""
        try:
            frame, rest = frames.read(data)
            if self.inbox.admit(frame) != peer:
                raise WireError(f"{peer} sent a frame in the name of {self.inbox.book[frame.sender]}")
            if not self.inbox.outdated(frame):
                self._hear(frame, rest, found)
        except WireError as error:
            self.refusals.note(str(error))

    def proved(self, frame: Frame, body: bytes, found: Found) -> None:
        """The same for a frame that came beside ZeroMQ, where only its sender could have sealed it."""
        try:
            if frame.kind == frames.DATA:
                _add(self.inbox.put(frame, body), found)
            else:
                self._hear(frame, memoryview(body), found)
        except WireError as error:
            self.refusals.note(str(error))

    def _take(self, head: bytes, proved: Address | None, found: Found) -> None:
        frame, rest = frames.read(head)
        claimed = self.inbox.admit(frame)
        if self.keyed and claimed != proved:
            raise WireError(f"{proved} sent a frame in the name of {claimed}")
        if self.inbox.outdated(frame):
            return
        if self.lanes:
            for data in self.lanes.come(claimed):  # they had left before this one
                self.by_lane(claimed, data, found)
            self.lanes.socketed[claimed] += 1
        if frame.kind == frames.OFFER and self.invited:
            self.invited(claimed, rest)
        elif frame.kind == frames.DATA:
            _add(fill(self.door.socket, self.inbox, frame), found)
        else:
            self._hear(frame, rest, found)

    def _hear(self, frame: Frame, rest: memoryview, found: Found) -> None:
        sender = self.inbox.book[frame.sender]
        if frame.kind == frames.OPEN:
            _add(self.inbox.open(frame, rest), found)
        elif frame.kind == frames.SHARED:
            found.append(self.inbox.share(frame, rest))
        elif frame.kind == frames.OFFER:
            raise WireError(f"{sender} offered a connection where none can be")
        elif frame.kind == frames.DATA:
            raise WireError(f"{sender} sent bytes of a message by a lane, where only whole ones go")
        elif not self.credit(sender, frame.number):
            raise WireError(
                f"{sender} claims to have taken {frame.number} bytes, which were never sent to it, or less than before"
            )


def _nobody(peer: Address, taken: int) -> bool:
    return False


def _add(message: Message | None, found: Found) -> None:
    if message is not None:
        found.append(message)
