"""The shared memory of the roles of one host: the fork server creates or receives it, and every role maps all of it.

Nothing of it has a name, so nothing can be left behind. (Named blocks can, and Python's tracker removes them under the
processes that still use them.)
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress

from covey.address import Address
from covey.engines.transport import handles as open_files
from covey.engines.transport.shared.lane import LANE, Lane
from covey.engines.transport.shared.semaphore import SIZE, Semaphore

MOST = 128  # roles that share memory; every one of them holds two files of each
SLOT = 256 << 10  # bytes that a role can lay out for the others
FEW = 16  # roles, at most, between all of which there are lanes

SEGMENT: list[SharedSegment] = []  # the host's, in the fork server and in all that it forks
WITHOUT: list[str] = []  # why there is none


class SharedSegment:
    """A file of memory and a bell for each role, and a table in which they show each other what they have done."""

    def __init__(self, roles: Sequence[Address], handles: Sequence[int] = ()) -> None:
        """For these roles and those who inherit it; or what was `laid` elsewhere for the same roles, by its handles."""
        self.places = {who: place for place, who in enumerate(roles)}
        table, *own = handles or (-1, *_for_each(len(roles)))
        self.files, self.wakeups = own[: len(roles)], own[len(roles) :]
        self._signs = SIZE * len(roles) ** 2
        self._table = mmap.mmap(table, _table_size(len(roles)))
        if not handles:
            self.clear()

    def clear(self) -> None:
        """Begin with no sign given; before anybody else sees it."""
        for here in self.places:
            for there in self.places:
                self.sign(here, there).clear()
                if self.has_lanes:
                    Lane(*self.lane(here, there)).clear()

    def sign(self, giver: Address, taker: Address) -> Semaphore:
        """By which one role shows another that it has come one step further."""
        place = self.places[giver] * len(self.places) + self.places[taker]
        return Semaphore(self._table, SIZE * place)

    def resting(self, who: Address) -> memoryview:
        """A byte beside the sign that a role gives to itself: whether it waits for its bell."""
        begin = SIZE * self.places[who] * (len(self.places) + 1) + SIZE // 2
        return memoryview(self._table)[begin : begin + 1]

    def listening(self, who: Address) -> memoryview:
        """The byte after that: whether it wants its bell rung for frames in lanes."""
        begin = SIZE * self.places[who] * (len(self.places) + 1) + SIZE // 2 + 1
        return memoryview(self._table)[begin : begin + 1]

    @property
    def has_lanes(self) -> bool:
        return len(self.places) <= FEW

    def lane(self, giver: Address, taker: Address) -> tuple[mmap.mmap, int]:
        """The memory in which a lane lies, and where it begins."""
        place = self.places[giver] * len(self.places) + self.places[taker]
        return self._table, _lanes_begin(len(self.places)) + LANE * place

    def slot(self, who: Address) -> memoryview:
        """Where a role lays out something small for the others."""
        begin = self._signs + SLOT * self.places[who]
        return memoryview(self._table)[begin : begin + SLOT]

    def file(self, who: Address) -> int:
        return self.files[self.places[who]]

    def wakeup(self, who: Address) -> int:
        """Readable after a role rang it."""
        return self.wakeups[self.places[who]]

    def ring(self, who: Address) -> None:
        os.eventfd_write(self.wakeup(who), 1)

    def silence(self, who: Address) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self.wakeup(who))


def create(roles: Sequence[Address], handles: Sequence[int] = ()) -> None:
    """(In the fork server, before it forks) Give these roles memory to share, or what others have made for them."""
    if len(roles) > MOST:
        WITHOUT.append(too_many(roles))
    elif len(roles) > 1:
        try:
            SEGMENT.append(SharedSegment(roles, handles))
        except OSError as error:  # too many files, or no memory at all
            WITHOUT.append(str(error.strerror))


def laid(roles: Sequence[Address]) -> list[int]:
    """A ground for roles of several parents, as the handles that each of those needs."""
    table = new_file()
    try:
        os.truncate(table, _table_size(len(roles)))
        handles = [table, *_for_each(len(roles))]
    except OSError:
        os.close(table)
        raise
    SharedSegment(roles, handles).clear()
    return handles


def too_many(roles: Sequence[Address]) -> str:
    return f"{len(roles)} roles, and at most {MOST} can"


def new_file() -> int:
    """Memory with a handle and no name, for processes that get the handle; it is empty until it is grown."""
    file = os.memfd_create("covey", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.fchmod(file, 0o600)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # what others have mapped stays
    return file


def _for_each(count: int) -> list[int]:
    """The files of this number of roles, then their bells."""
    found: list[int] = []
    try:
        found.extend(new_file() for _ in range(count))
        found.extend(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(count))
    except OSError:
        open_files.close(found)
        raise
    return found


def _table_size(roles: int) -> int:
    return _lanes_begin(roles) + (LANE * roles**2 if roles <= FEW else 0)


def _lanes_begin(roles: int) -> int:
    """After the signs and the slots."""
    return SIZE * roles**2 + SLOT * roles
