"""How is what another process sent read? Into a value of one type, or refused by name; nothing else ever comes of it.

Every format registers itself, and the fuzzers of `tests/safety` read all of them: a new one cannot be forgotten.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec

from covey.errors import WireError

T = TypeVar("T")

UNREADABLE = (
    msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError, OverflowError, StopIteration,
    RuntimeError, MemoryError,
)  # fmt: skip
"""What a decoder raises over bytes that are wrong: a RecursionError (a RuntimeError) over what is nested too deeply."""

MOST = 1 << 30  # bytes: a site's config may carry a task's code and tables

WIRE_FORMATS: list[WireFormat[Any]] = []


class WireFormat(Generic[T]):
    """How values of one kind are written; `name` completes "this is an invalid …"."""

    def __init__(self, name: str, kind: Any, form: Literal["msgpack", "json"] = "msgpack", most: int = MOST) -> None:
        WIRE_FORMATS.append(self)
        self.name, self.kind, self.form, self.most = name, kind, form, most
        self._decode = (msgspec.msgpack if form == "msgpack" else msgspec.json).Decoder(kind).decode

    def read(self, data: bytes | memoryview, sender: object = "a peer") -> T:
        """The value that `sender` sent; WireError if these bytes are none."""
        if len(data) > self.most:
            raise WireError(f"{sender} sent a {self.name} of {len(data)} bytes; the limit is {self.most}")
        try:
            return self._decode(data)  # type: ignore[no-any-return]
        except UNREADABLE as error:
            raise WireError(f"{sender} sent an invalid {self.name}: {error or type(error).__name__}") from None
