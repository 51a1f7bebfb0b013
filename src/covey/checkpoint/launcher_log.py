"""Who leads a run, and what has happened to it? A log that one launcher at a time may write.

FileLog    DIR/log.jsonl, led by whoever has the lock of the folder        (a frozen launcher keeps it)
EtcdLog    keys of etcd, led by whoever has the lease                      (a frozen launcher loses it)
NoLog      a run without checkpoints, which nobody could take over
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

import msgspec

from covey.decoding import WireFormat
from covey.errors import CheckpointError, WireError
from covey.observe.membership import MembershipEvent

SCHEMA = "covey.log/1"
KEEP = 1000  # entries; older ones are forgotten
LONGEST = 1 << 16  # bytes of an entry

What = Literal["begin", "lead", "checkpoint", "membership", "end", "failed"]
"""A launcher began the run, or went on with it; a checkpoint was kept; a process came or went; it ended; it failed."""


class LogEntry(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One thing that happened, under the launcher of this generation."""

    schema: str
    generation: Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
    at: str  # the time of day there, for people
    what: What
    text: str = ""  # the launcher, the checkpoint, or how the run ended
    change: MembershipEvent | None = None
    folder: str = ""  # of the checkpoints, by its identity, where the log is not in it


class LogSchema(msgspec.Struct):
    """What every version of an entry has."""

    schema: str


_entries: WireFormat[LogEntry] = WireFormat("entry of a launcher's log", LogEntry, "json", LONGEST)
_schemas: WireFormat[LogSchema] = WireFormat("entry of any launcher's log", LogSchema, "json", LONGEST)


class LauncherLog(Protocol):
    """Where a launcher writes, while it leads; LeadLost as soon as it may not be the only one."""

    folder: str  # of the checkpoints, by its identity; "": the log is in it

    def take(self) -> None:
        """Lead from now on; AnotherLeads while another does."""

    def entries(self) -> list[LogEntry]:
        """What has been written, the oldest first."""

    def write(self, entry: LogEntry) -> None:
        """Add an entry; OSError if that is not possible now, even if it is tried again."""

    def check(self) -> None:
        """Return at once if this launcher surely leads."""

    def settle(self) -> None:
        """Wait until all entries are where they are safe."""

    def release(self) -> None:
        """Let others lead, if this launcher does."""


class NoLog:
    """Nobody could take this run over."""

    folder = ""

    def take(self) -> None: ...
    def entries(self) -> list[LogEntry]:
        return []

    def write(self, entry: LogEntry) -> None: ...
    def check(self) -> None: ...
    def settle(self) -> None: ...
    def release(self) -> None: ...


def entry(generation: int, what: What, text: str = "", change: MembershipEvent | None = None) -> LogEntry:
    """An entry of now."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return LogEntry(schema=SCHEMA, generation=generation, at=now, what=what, text=text, change=change)


def me() -> str:
    """This launcher, as others name it."""
    return f"{socket.gethostname()}:{os.getpid()}"


def read_entries(lines: Sequence[bytes], place: object, remedy: str, torn: bool = False) -> list[LogEntry]:
    """The entries in these lines, of which the last may be `torn`."""
    found: list[LogEntry] = []
    for number, line in enumerate(lines, 1):
        try:
            if (schema := _schemas.read(line, place).schema) != SCHEMA:
                raise CheckpointError(
                    f"{place} has entries of the format {schema[:40]!r}, and this covey reads {SCHEMA!r}: go on with "
                    f"the covey that wrote it, or {remedy}"
                )
            found.append(_entries.read(line, place))
        except WireError as error:
            if not torn or number < len(lines):
                raise CheckpointError(f"entry {number} of {place} cannot be read ({error}): {remedy}") from None
    return found
