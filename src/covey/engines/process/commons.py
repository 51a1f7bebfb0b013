"""Memory that all roles of one machine share: one anonymous file, made by their parent before they are born."""

from __future__ import annotations

import mmap
import os
from functools import cache

import torch

from covey.errors import PlanError
from covey.vector import Vector

ALIGNED = 64  # bytes: every part begins on a cache line of its own
FILE: list[int] = []  # inherited by the roles; without a name, so that nothing can be left behind


def lay() -> None:
    """Make the file; it takes no memory before somebody shares a vector."""
    FILE.append(os.memfd_create("covey", os.MFD_CLOEXEC))
    os.fchmod(FILE[-1], 0o600)


def share(vector: Vector, place: int) -> Vector:
    """The vector of this shape at a place that is the same for all roles; what it holds is what they wrote there."""
    if not FILE:
        raise PlanError("these roles live on several hosts and share no memory: use one host, or dogwild")
    if any(part.device.type != "cpu" for part in vector.parts):
        raise PlanError("only numbers in the memory of the CPU can be shared between roles")
    size = -(-sum(_room(part) for part in vector.parts) // mmap.PAGESIZE) * mmap.PAGESIZE
    region, begin, parts = _region(size, place), 0, []
    for part in vector.parts:
        parts.append(torch.frombuffer(region, dtype=part.dtype, count=part.numel(), offset=begin))
        begin += _room(part)
    return Vector(parts)


@cache  # the same addresses whenever a role asks again
def _region(size: int, place: int) -> mmap.mmap:
    end = size * (place + 1)
    if os.fstat(FILE[0]).st_size < end:
        os.posix_fallocate(FILE[0], 0, end)  # grows and never cuts, whoever comes first; fails here if there is no room
    return mmap.mmap(FILE[0], size, offset=size * place)


def _room(part: torch.Tensor) -> int:
    return -(-part.nbytes // ALIGNED) * ALIGNED
