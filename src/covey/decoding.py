"""How is what another process sent read? Into a value of one type, or refused by name; nothing else ever comes of it.

Every format registers itself, and the fuzzers of `tests/safety` read all of them: a new one cannot be forgotten.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from covey.errors import PlanError, WireError

T = TypeVar("T")

UNREADABLE = (
    msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError, OverflowError, StopIteration,
    RuntimeError, MemoryError,
)  # fmt: skip
"""What a decoder raises over bytes that are wrong: a RecursionError (a RuntimeError) over what is nested too deeply."""

KEPT, UNPRINTABLE = "\n\t", "?"
LONGEST = 300  # letters of what an error may quote of what was read

MOST = 1 << 30  # bytes: a site's config may carry a task's code and tables
TEXT = 1 << 24  # bytes of a text that a person has written, such as a plan of faults

WIRE_FORMATS: list[WireFormat[Any]] = []


class WireFormat(Generic[T]):
    """How values of one kind are written; `name` completes "this is an invalid …"."""

    def __init__(self, name: str, kind: Any, form: Literal["msgpack", "json"] = "msgpack", most: int = MOST) -> None:
        WIRE_FORMATS.append(self)
        self.name, self.kind, self.form, self.most = name, kind, form, most
        decode = (msgspec.msgpack if form == "msgpack" else msgspec.json).Decoder(kind).decode
        self._decode = decode if form == "msgpack" else lambda data: reckonable(decode(data))

    def read(self, data: bytes | memoryview, sender: object = "a peer") -> T:
        """The value that `sender` sent; WireError if these bytes are none."""
        if len(data) > self.most:
            raise WireError(f"{sender} sent a {self.name} of {len(data)} bytes; the limit is {self.most}")
        try:
            return self._decode(data)  # type: ignore[no-any-return]
        except (*UNREADABLE, PlanError) as error:
            raise WireError(f"{sender} sent an invalid {self.name}: {error or type(error).__name__}") from None

    def read_file(self, path: Path) -> T:
        """The value that a file contains; WireError if it contains none, or is no plain file."""
        data = file_bytes(path, self.most)
        try:
            return self._decode(data)  # type: ignore[no-any-return]
        except (*UNREADABLE, PlanError) as error:
            raise WireError(f"{path} contains no {self.name}: {error or type(error).__name__}") from None


def brief(error: BaseException) -> str:
    """What an error says, or its kind where it says nothing; the end of a long text is cut off."""
    text = str(error) or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def printable(text: str) -> str:
    """The text with a question mark in place of each character that a terminal may obey."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in KEPT else UNPRINTABLE for sign in text)


def reckonable(value: T) -> T:
    """The value; OverflowError if it has an integer of more than 64 bits.

    JSON has integers of any length, which cannot be divided, formatted or drawn; msgpack has none.
    """
    try:
        msgspec.msgpack.encode(value)
    except OverflowError:
        raise OverflowError("an integer of more than 64 bits") from None
    return value


def named_text(path: Path, most: int = TEXT) -> str:
    """The text of a file that a person has named, where a link is followed; UNREADABLE or WireError if it is none."""
    return file_bytes(Path(os.path.realpath(path)), most).decode()


def file_bytes(path: Path, most: int = MOST) -> bytes:
    """The bytes of a plain file; a link, a pipe, a device, a folder or a file that is too large is a WireError.

    For folders in which anybody may have put anything: nothing is waited for, and no size is believed.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            known = os.fstat(handle)
            if not stat.S_ISREG(known.st_mode):
                raise WireError(f"{path} is {'a folder, ' if stat.S_ISDIR(known.st_mode) else ''}not a plain file")
            if known.st_size > most:
                raise WireError(f"{path} has {known.st_size} bytes; the limit is {most}")
            with open(handle, "rb", closefd=False) as file:
                return file.read(most)
        finally:
            os.close(handle)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "it is a link, which is not followed" if path.is_symlink() else error.strerror or str(error)
        raise WireError(f"{path} cannot be read: {why}") from None
