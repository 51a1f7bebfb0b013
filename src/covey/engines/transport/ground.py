"""What the roles of one host share from birth: their parent lays it, and every one of them holds all of it.

Nothing of it has a name, so nothing can be left behind. (Named blocks can, and Python's tracker removes them under the
processes that still use them.)
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress

from covey.engines.transport.semaphore import SIZE, Semaphore
from covey.message import Address

MOST = 128  # roles that share memory; every one of them holds two files of each
SLOT = 128 << 10  # bytes that a role can lay out for the others

GROUND: list[Ground] = []  # the host's, in the parent and in all that are born of it
WITHOUT: list[str] = []  # why there is none


class Ground:
    """A file of memory and a bell for each role; and a table, where they tell each other what they have done."""

    def __init__(self, roles: Sequence[Address]) -> None:
        self.places = {who: place for place, who in enumerate(roles)}
        self.files = [new_file() for _ in roles]
        self.bells = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in roles]
        self._signs = SIZE * len(roles) ** 2
        self._table = mmap.mmap(-1, self._signs + SLOT * len(roles))
        for here in roles:
            for there in roles:
                self.sign(here, there).clear()

    def sign(self, giver: Address, taker: Address) -> Semaphore:
        """By which one role tells another that it has come one step further."""
        place = self.places[giver] * len(self.places) + self.places[taker]
        return Semaphore(self._table, SIZE * place)

    def slot(self, who: Address) -> memoryview:
        """Where a role lays out something small for the others."""
        begin = self._signs + SLOT * self.places[who]
        return memoryview(self._table)[begin : begin + SLOT]

    def file(self, who: Address) -> int:
        return self.files[self.places[who]]

    def bell(self, who: Address) -> int:
        """Readable after somebody rang it."""
        return self.bells[self.places[who]]

    def ring(self, who: Address) -> None:
        os.eventfd_write(self.bell(who), 1)

    def silence(self, who: Address) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self.bell(who))


def lay(roles: Sequence[Address]) -> None:
    """(In the parent of these roles, before they are born) Give them memory to share; it takes none yet."""
    if len(roles) > MOST:
        WITHOUT.append(f"{len(roles)} roles, and at most {MOST} can")
    elif len(roles) > 1:
        try:
            GROUND.append(Ground(roles))
        except OSError as error:  # too many files, or no memory at all
            WITHOUT.append(str(error.strerror))


def new_file() -> int:
    """Memory with a handle and no name, for whoever inherits the handle; it takes none before it is grown."""
    file = os.memfd_create("covey", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.fchmod(file, 0o600)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # what others have mapped stays
    return file
