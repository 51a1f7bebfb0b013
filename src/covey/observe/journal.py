"""The journal of a run: what happened in it, one line each, appended while it happens."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from covey import atomic_file
from covey.decoding import UNREADABLE, WireFormat, file_bytes, reckonable
from covey.errors import WireError
from covey.observe.facts import NOW
from covey.observe.membership import MembershipEvent
from covey.observe.progress import Phase, Progress, RoleProgress, Row

EVERY = 1.0  # seconds between two moments, until the journal is full for the first time
BOUND = 4 << 20  # bytes: above this, every second moment and score goes
LARGEST = 16 * BOUND  # bytes of a journal that is read
LINES = 1000  # of what is said
ROLES = 64  # a moment of more roles has only what they sum up to
LENGTH = 2000  # characters of a line that is said
TRIES = 50  # to lock a journal, 10 ms apart


class JournalMoment(msgspec.Struct, tag="moment", tag_field="event", frozen=True, omit_defaults=True):
    """The run as it was at a time of the wall clock (seconds since 1970)."""

    at: float
    phase: Phase
    seconds: float = 0.0
    samples: int = 0
    updates: int = 0
    bytes: int = 0
    loss: float | None = None
    staleness: float | None = None
    roles: dict[str, RoleProgress] = {}


class JournalScore(msgspec.Struct, tag="score", tag_field="event", frozen=True, omit_defaults=True):
    """A line of the history, and what covey measured beside it; a later one with as many samples replaces it."""

    at: float
    row: Row
    measured: dict[str, float] = {}


class JournalLine(msgspec.Struct, tag="said", tag_field="event", frozen=True):
    """A line for people: a warning, a long wait, a checkpoint."""

    at: float
    line: str


class JournalChange(msgspec.Struct, tag="membership", tag_field="event", frozen=True):
    """Who takes part has changed."""

    at: float
    change: MembershipEvent


class JournalEnd(msgspec.Struct, tag="ended", tag_field="event", frozen=True):
    """The last line: why the run stopped, and what went wrong if it failed."""

    at: float
    stopped: str
    why: str = ""


class RunNow(msgspec.Struct, frozen=True):
    """The whole run at one moment, all of its roles and links; the bytes are those so far."""

    at: float
    phase: Phase
    seconds: float
    roles: dict[str, RoleProgress]
    links: dict[str, dict[str, int]]


_nows: WireFormat[RunNow] = WireFormat("state of a run", RunNow, "json", most=1 << 26)

JournalEvent: TypeAlias = JournalMoment | JournalScore | JournalLine | JournalChange | JournalEnd

_encoder, _decoder = msgspec.json.Encoder(), msgspec.json.Decoder(JournalEvent)


class Journal:
    """A journal that is being written; its lock is held as long as the writer lives.

    A write that fails ends the journal and not the run: `troubled` is told once.
    """

    def __init__(self, path: Path, troubled: Callable[[str], None], clock: Callable[[], float] = time.time) -> None:
        self.path, self._troubled, self._clock = path, troubled, clock
        self._file: int | None = None
        self.trained = False  # the run has trained on a sample, or was scored
        self._size, self._said, self._every, self._last = 0, 0, EVERY, (0.0, "")
        self._shown = (0.0, "")
        try:
            self._open(os.O_EXCL)
        except OSError as error:
            self._give_up(error)

    def moment(self, progress: Progress) -> None:
        """Write down how far the run is, unless it was a short time ago and nothing has begun since."""
        now = self._clock()
        self._show(now, progress)
        before, phase = self._last
        self.trained = self.trained or progress.samples > 0
        if progress.phase == phase and now - before < self._every:
            return
        self._last = now, progress.phase
        roles = progress.roles if len(progress.roles) <= ROLES else {}
        self._write(JournalMoment(
            now, progress.phase, progress.seconds, progress.samples, progress.updates, progress.bytes, progress.loss,
            progress.staleness, roles,
        ))  # fmt: skip

    def _show(self, now: float, progress: Progress) -> None:
        """Write down what each role does now and what each link has carried, in place of what was there before."""
        before, phase = self._shown
        if self._file is None or (progress.phase == phase and now - before < EVERY):
            return
        self._shown = now, progress.phase
        whole = RunNow(now, progress.phase, progress.seconds, progress.roles, progress.links)
        new = self.path.with_name(f".{NOW}")  # of this record alone, so its name need not be a new one
        try:
            new.write_bytes(_encoder.encode(whole))
            new.replace(self.path.with_name(NOW))
        except OSError:  # the next line of the journal says what is wrong with the disk
            return

    def score(self, row: Row, measured: dict[str, float] | None = None) -> None:
        self.trained = True
        self._write(JournalScore(self._clock(), row, measured or {}))

    def say(self, line: str) -> None:
        self._said += 1
        if self._said <= LINES:
            line = line if self._said < LINES else "more lines were said than this journal holds"
            self._write(JournalLine(self._clock(), line[:LENGTH]))

    def change(self, change: MembershipEvent) -> None:
        self._write(JournalChange(self._clock(), change))

    def end(self, stopped: str, why: str = "") -> None:
        self._write(JournalEnd(self._clock(), stopped, why[:LENGTH]))
        self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _open(self, flags: int = 0) -> None:
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | flags, 0o666)
        for _ in range(TRIES):  # a reader that looks whether we live holds the lock for a moment
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.01)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _write(self, event: JournalEvent) -> None:
        if self._file is None:
            return
        line = _encoder.encode(event) + b"\n"
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(28, "the disk is full")
            self._size += len(line)
            if self._size > BOUND:
                self._thin()
        except (OSError, WireError) as error:  # also where somebody else has written into it
            self._give_up(error)

    def _thin(self) -> None:
        """Let every second moment and score go, and write moments half as often from now on."""
        self.close()
        kept = b"".join(_encoder.encode(event) + b"\n" for event in thinned(list(read(self.path))))
        with atomic_file.replacing(self.path, ours=True) as new:
            new.write_bytes(kept)
        self._size, self._every = len(kept), 2 * self._every
        self._open()

    def _give_up(self, error: OSError | WireError) -> None:
        self.close()
        why = getattr(error, "strerror", None) or error
        self._troubled(f"the record of this run ends here, the run goes on: {self.path}: {why}")


def thinned(events: Sequence[JournalEvent]) -> Iterator[JournalEvent]:
    """Without every second moment and every second score, from the first on."""
    counts: dict[type[Any], int] = {}
    for event in events:
        counts[type(event)] = number = counts.get(type(event), 0) + 1
        if not (isinstance(event, JournalMoment | JournalScore) and number % 2):
            yield event


def read(path: Path) -> Iterator[JournalEvent]:
    """The events of a journal; a last line that was not written whole is omitted."""
    lines = file_bytes(path, LARGEST).split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        yield read_line(line, f"{path}, line {number},")


def read_line(line: bytes, where: object) -> JournalEvent:
    """The event of one line."""
    try:
        return reckonable(_decoder.decode(line))  # type: ignore[no-any-return]
    except UNREADABLE as error:
        raise WireError(f"{where} is not an event of a journal that this covey knows: {error}") from None


def read_now(record: Path) -> RunNow | None:
    """What the roles of a record did last; None where nobody has written it."""
    try:
        return _nows.read_file(record / NOW)
    except FileNotFoundError:
        return None


def being_written(path: Path) -> bool:
    """Whether the process that writes this journal lives."""
    return atomic_file.is_locked(path)
