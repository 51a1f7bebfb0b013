"""The random token of a run, which begins every message and separates runs that have no keys."""

from __future__ import annotations

import secrets
from hmac import compare_digest
from typing import TypeVar

import msgspec

from covey.decoding import WireFormat
from covey.errors import WireError

T = TypeVar("T")

TOKEN = 16  # bytes
NONE = bytes(TOKEN)


def new_token() -> bytes:
    return secrets.token_bytes(TOKEN)


def check(mine: bytes, theirs: bytes, what: str) -> None:
    """Refuse what was said in another run."""
    if not compare_digest(mine, theirs):
        raise WireError(f"{what} of another run is refused")


def seal(token: bytes, word: msgspec.Struct) -> bytes:
    """A word as it travels."""
    return token + msgspec.msgpack.encode(word)


def unseal(token: bytes, data: bytes, words: WireFormat[T]) -> T:
    """A word of this run, of a kind that is said here."""
    check(token, data[:TOKEN], "a word")
    return words.read(memoryview(data)[TOKEN:])
