"""Letters for sites of this machine: in memory of the launcher's, which only processes of its own user can open."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from covey.decoding import WireFormat
from covey.engines.cluster.words import Letter

MAIL = "COVEY_MAIL"  # the environment of a site tells where the letters lie


class Mail(msgspec.Struct, frozen=True):
    """What lies ready for the sites."""

    letters: list[Letter]
    handed: bytes


_mails: WireFormat[Mail] = WireFormat("mail for the sites", Mail)


class Mailbox:
    """The memory; it has no name, so that nothing can be left behind."""

    def __init__(self, letters: Sequence[Letter], handed: bytes) -> None:
        self.handle = os.memfd_create("covey-mail", os.MFD_CLOEXEC)
        self.path = f"/proc/{os.getpid()}/fd/{self.handle}"
        with os.fdopen(os.dup(self.handle), "wb") as file:
            file.write(msgspec.msgpack.encode(Mail(list(letters), handed)))

    def close(self) -> None:
        os.close(self.handle)


def read() -> Mail:
    """(A site) what lies there; OSError if the launcher is gone."""
    with open(os.environ.pop(MAIL), "rb") as file:
        return _mails.read(file.read(), "the launcher")
