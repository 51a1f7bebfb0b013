"""Damage that goes deeper than flipped bytes: a value is unpacked, made hostile in a place or two, and packed again."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

DEEP = [b"\x91" * 3000 + b"\xc0", b"\x81\xa0" * 2000 + b"\xc0", b"\xdc\xff\xff" * 500, b"\x91" * 100 + b"\xc0"]
"""Nested thousands of times, in a few bytes."""

HOSTILE: list[Any] = [
    None, True, 0, -1, 1, 7, 1 << 31, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 0.5, float("nan"), float("inf"), -1e308,
    "", "x" * 300, "\x00", "float32", "object", b"", b"\xff" * 40, [], [[]], {}, {"": {}}, [0] * 70, ["worker", 0],
    msgspec.msgpack.Ext(5, b"deep"), *(msgspec.Raw(deep) for deep in DEEP), msgspec.Raw(b"\xa4\xff\xfe\xfd\xfc"),
    msgspec.Raw(b"\xc1"), msgspec.Raw(b"\xdb\xff\xff\xff\xff"), msgspec.Raw(b"\xdd\xff\xff\xff\xff"),
]  # fmt: skip
NUMBERS = [0, 1, 5, 64, 4095, 4096, 1 << 31, 1 << 47, 1 << 62, (1 << 63) - 1, (1 << 64) - 1, -1, -64, -(1 << 63)]
WORDS = ["float64", "float16", "bool", "complex128", "int64", "worker", "server", ""]


def flipped(rng: Random, data: bytes) -> bytes:
    """Bytes changed, cut out, repeated or put in."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(0, len(changed))
        end = min(len(changed), at + rng.choice([0, 1, 1, 2, 8]))
        changed[at:end] = rng.choice(
            [b"", bytes(changed[at:end]) * 2, rng.randbytes(rng.randint(1, 4)), rng.choice(DEEP)]
        )
    return bytes(changed)


def twisted(rng: Random, data: bytes) -> bytes:
    """The same value with hostile ones in some of its places."""
    try:
        value = msgspec.msgpack.decode(data)
        for _ in range(rng.choice([1, 1, 2])):
            value = _replaced(rng, value)
        return msgspec.msgpack.encode(value)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError):
        return flipped(rng, data)


def _replaced(rng: Random, value: Any) -> Any:
    if isinstance(value, bytes) and len(value) > 1 and rng.random() < 0.5:
        return flipped(rng, value)
    if type(value) is int and rng.random() < 0.7:
        return rng.choice([value + 1, value - 1, value + 4096, value // 2, -value, *NUMBERS])
    if isinstance(value, str) and rng.random() < 0.5:
        return rng.choice(WORDS)
    if isinstance(value, list) and rng.random() < 0.85:
        at = rng.randrange(len(value) + 1)
        if at == len(value) or rng.random() < 0.15:
            return value[:at] + rng.choice([[], value[at : at + 1] * 2, [rng.choice(NUMBERS)]]) + value[at + 1 :]
        return [*value[:at], _replaced(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        return {**value, key: _replaced(rng, value[key])}
    return rng.choice(HOSTILE)


def damaged(rng: Random, data: bytes) -> bytes:
    """One or the other; now and then none, so that what comes after it is reached."""
    return rng.choice([flipped, twisted, twisted, lambda _, same: same])(rng, data)
