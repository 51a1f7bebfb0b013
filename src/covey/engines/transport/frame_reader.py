"""Messages of the frames that come in: by a role's socket, by lanes of its host, and beside ZeroMQ."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from covey.engines.transport import frames
from covey.engines.transport.early_frames import EarlyFrame, EarlyFrames
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
        self.early = EarlyFrames(inbox.limit)
        self.frames = 0  # that have come from roles of this run

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
            self.frames += 1
            if not self.inbox.outdated(frame):
                self._hear(frame, rest, found)
        except WireError as error:
            self.refusals.note(str(error))

    def proved(self, frame: Frame, body: bytes, found: Found) -> None:
        """The same for a frame that came beside ZeroMQ, where only its sender could have sealed it."""
        self.frames += 1
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
        self.frames += 1
        if self.inbox.ahead(frame) and self._wait(frame, rest):
            return
        if not self.inbox.outdated(frame):
            self._pass(EarlyFrame(frame, rest, None), claimed, found)

    def _wait(self, frame: Frame, rest: memoryview) -> bool:
        """Keep a frame until `renewed`; False if there is no room."""
        body = self.door.socket.recv() if self.door.socket.get(zmq.RCVMORE) else None
        return self.early.keep(EarlyFrame(frame, bytes(rest), body))

    def renewed(self, who: Address, found: Found) -> None:
        """Add the messages of what has come of this incarnation before this role had heard of it."""
        for early in self.early.of(self.inbox.book.index(who)):
            try:
                if self.inbox.ahead(early.frame):
                    self.early.keep(early)
                elif not self.inbox.outdated(early.frame):
                    self._pass(early, who, found)
            except WireError as error:
                self.refusals.note(str(error))

    def _pass(self, came: EarlyFrame, claimed: Address, found: Found) -> None:
        """Take a frame of the incarnation that is known; bytes that have not been taken yet wait at the socket."""
        frame, rest, body = came
        if self.lanes:
            for data in self.lanes.come(claimed):  # they had left before this one
                self.by_lane(claimed, data, found)
            self.lanes.socketed[claimed] += 1
        if frame.kind == frames.OFFER and self.invited:
            self.invited(claimed, memoryview(rest))
            return
        if opens := frame.kind == frames.OPEN and frame.offset > 0:
            self.inbox.begin(frame, memoryview(rest))
            frame = frame.first_piece
        if opens or frame.kind == frames.DATA:
            door, inbox = self.door.socket, self.inbox
            _add(fill(door, inbox, frame) if body is None else inbox.put(frame, body), found)
        else:
            self._hear(frame, memoryview(rest), found)

    def _hear(self, frame: Frame, rest: memoryview, found: Found) -> None:
        sender = self.inbox.book[frame.sender]
        if frame.kind == frames.OPEN and frame.offset:
            raise WireError(f"{sender} opened a message without the {frame.offset} bytes that it said came with it")
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
