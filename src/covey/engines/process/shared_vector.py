"""Memory that all roles of one machine share: an anonymous file that the fork server opens before it forks them."""

from __future__ import annotations

import os
from functools import cache

from covey.engines.transport.shared.blocks import FileSpan, MappedSpan, in_pages, room
from covey.engines.transport.shared.segment import new_file
from covey.errors import PlanError
from covey.vector import Vector

FILE: list[int] = []  # inherited by the roles; without a name, so that nothing can be left behind


def create(file: int | None = None) -> None:
    """Make the file, or take one that others have too; it takes no memory until a vector is shared."""
    FILE.append(new_file() if file is None else file)


def share(vector: Vector, place: int) -> Vector:
    """The vector of this shape at a place that is the same for all roles; what it holds is what they wrote there."""
    if not FILE:
        raise PlanError("these roles live on several hosts and share no memory: use one host, or dogwild")
    if any(part.device.type != "cpu" for part in vector.parts):
        raise PlanError(
            "only numbers in the memory of the CPU can be shared between roles: train on the CPU, or use dogwild"
        )
    return _region(in_pages(room(vector.parts)), place).vector(vector)


@cache  # the same addresses whenever a role asks again
def _region(size: int, place: int) -> MappedSpan:
    end = size * (place + 1)
    if os.fstat(FILE[0]).st_size < end:
        os.posix_fallocate(FILE[0], 0, end)  # grows and never shrinks; fails here if there is no room
    return MappedSpan(FILE[0], FileSpan(size * place, size))
