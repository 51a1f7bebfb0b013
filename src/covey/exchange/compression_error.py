"""What does compression lose? Now and then an encoded vector is decoded again where it was encoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covey.vector import Vector

SAMPLED, LATER = 100, 500  # vectors of which one is looked at, at first and later

Encode = Callable[[Vector, Any], tuple[Vector, Any]]


def measuring(encode: Encode, decode: Callable[[Vector], Vector], measure: Callable[[str, float], None]) -> Encode:
    """The same encoding, which tells what is lost of a vector, as a share of its norm; virtual time is not charged."""
    count = 0

    def measured(vector: Vector, memory: Any) -> tuple[Vector, Any]:
        nonlocal count
        count += 1
        wire, memory = encode(vector, memory)
        if count % (SAMPLED if count < 10 * SAMPLED else LATER) == 1 and (whole := vector.quick_norm()) > 0:
            measure("compression", (vector - decode(wire)).quick_norm() / whole)
        return wire, memory

    return measured
