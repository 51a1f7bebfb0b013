"""Masks: the key stream of AES-256-CTR, added to numbers modulo 2^32 or 2^64."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.unsignedinteger[Any]]

STRETCH = 1 << 17  # bytes in one go: numbers and mask stay in the processor's own memory
START = bytes(16)  # each key makes one mask, so every counter may begin at 0


def add_masks_(numbers: Numbers, added: Iterable[bytes], subtracted: Iterable[bytes] = ()) -> None:
    """Add the masks of some keys of 32 bytes to the numbers, in place, and subtract those of others."""
    changes = [(np.add, _stream(key)) for key in added] + [(np.subtract, _stream(key)) for key in subtracted]
    zeros, room = memoryview(bytes(STRETCH)), bytearray(STRETCH + 15)  # the cipher wants room for a block more
    mask = np.frombuffer(room, dtype=numbers.dtype.newbyteorder("<"), count=STRETCH // numbers.itemsize)
    for start in range(0, len(numbers), len(mask)):
        part = numbers[start : start + len(mask)]
        for change, stream in changes:
            stream.update_into(zeros[: part.nbytes], room)
            change(part, mask[: len(part)], out=part)


def _stream(key: bytes) -> Any:
    assert len(key) == 32, "AES-256"
    return Cipher(AES(key), CTR(START)).encryptor()


def unsigned(numbers: Tensor) -> Numbers:
    """The same memory as numbers without a sign, whose sums wrap around."""
    return numbers.numpy().view(np.uint32 if numbers.element_size() == 4 else np.uint64)
