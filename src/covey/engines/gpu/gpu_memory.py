"""GPU memory that the roles of one GPU share: handles travel, and a peer's numbers are read where they lie.

Memory that others may have mapped is not freed: the parameters and gradients of a role stay for its life, and other
tensors are copied into rooms that stay too. What a lost role had offered is unmapped before the next sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from covey.address import Address
from covey.engines.gpu.cuda_driver import HANDLE, CudaRefused, driver
from covey.errors import WireError
from covey.vector import Vector

MOST = 512  # tensors of one offer, and allocations of a role that another one maps
ALIGNED = 256  # bytes: what kernels read fastest
ROOM = 2 << 20  # bytes of the smallest room

Group = tuple[Address, ...]


class GpuPlace(msgspec.Struct, array_like=True, frozen=True):
    """Where a tensor lies: an allocation, by its handle, and the offset in it, in bytes."""

    handle: bytes
    offset: int


class GpuPlaces(msgspec.Struct, array_like=True, frozen=True):
    """Where tensors lie on a GPU, which its `card` names; `fresh` ones the group has not been offered before."""

    card: str
    places: list[GpuPlace]
    fresh: bool


class OnGpu(NamedTuple):
    """A role's own tensors where the others can read them, and what they are told."""

    tensors: list[Tensor]
    told: GpuPlaces


class _Mapped:
    """Another role's allocation, mapped here; torch reads its bytes by this interface."""

    def __init__(self, handle: bytes) -> None:
        self.address = driver().open(handle)
        _, self.size = driver().allocation(self.address)
        self.__cuda_array_interface__ = {
            "shape": (self.size,), "typestr": "|u1", "data": (self.address, False), "version": 2,
        }  # fmt: skip

    def bytes(self, device: torch.device) -> Tensor:
        return torch.as_tensor(self, device=device)


class GpuMemory:
    """A role's side of what it shares with the other roles of its GPU."""

    def __init__(self) -> None:
        self.apart: set[Group] = set()  # of whom some cannot open what the others offer
        self._lasting: list[Tensor] = []
        self._rooms: list[Tensor] = []
        self._offered: dict[Group, set[bytes]] = {}
        self._mapped: dict[Address, dict[bytes, _Mapped]] = {}
        self._past: list[_Mapped] = []  # of roles that are no more

    def keep(self, vector: Vector) -> None:
        """These tensors stay where they are for the role's life, so others may read them in place."""
        self._lasting += [part for part in vector.parts if part.is_cuda]

    def place(self, parts: Sequence[Tensor], group: Group) -> OnGpu | None:
        """(At the beginning of a sum) Bring tensors where the group can read them; None if they cannot be there."""
        self._unmap()
        if group in self.apart or len(parts) > MOST or len({part.device for part in parts}) != 1:
            return None
        device = parts[0].device
        if device.type != "cuda":
            return None
        try:
            with torch.cuda.device(device):
                tensors = self._brought(parts)
                places = [_place(tensor) for tensor in tensors]
        except (CudaRefused, torch.OutOfMemoryError):
            return None
        known = self._offered.setdefault(group, set())
        handles = {place.handle for place in places}
        fresh = not handles <= known
        known |= handles
        return OnGpu(tensors, GpuPlaces(card(device), places, fresh))

    def tensors(self, who: Address, told: GpuPlaces, parts: Sequence[Tensor]) -> list[Tensor]:
        """The numbers of another role, in place; what CUDA does not open raises CudaRefused."""
        if len(told.places) != len(parts):
            raise WireError(f"{who} sums {len(told.places)} tensors where {len(parts)} are summed here")
        return [self._tensor(who, place, part) for place, part in zip(told.places, parts, strict=True)]

    def renew(self, who: Address) -> None:
        """A role was restarted: a sum that it broke off may still hold what its earlier incarnation had offered."""
        self._past += self._mapped.pop(who, {}).values()

    def _brought(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Those that last as they are, the others in a room."""
        moved = [part for part in parts if not self._lasts(part)]
        room = self._room(sum(_rounded(part.nbytes) for part in moved), parts[0].device) if moved else None
        offset, found = 0, []
        for part in parts:
            if room is None or self._lasts(part):
                found.append(part)
                continue
            there = room[offset : offset + part.nbytes].view(part.dtype)
            found.append(there.copy_(part.detach()))
            offset += _rounded(part.nbytes)
        return found

    def _lasts(self, part: Tensor) -> bool:
        at, size = part.data_ptr(), part.nbytes
        return any(one.data_ptr() <= at and at + size <= one.data_ptr() + one.nbytes for one in self._lasting)

    def _room(self, size: int, device: torch.device) -> Tensor:
        """Bytes that stay; the next larger room is at least twice as large, so that few are made."""
        fitting = [room for room in self._rooms if room.nbytes >= size and room.device == device]
        if not fitting:
            wanted = max(ROOM, 1 << (size - 1).bit_length())
            fitting.append(torch.empty(wanted, dtype=torch.uint8, device=device))
            self._rooms.append(fitting[0])
        return fitting[0]

    def _tensor(self, who: Address, place: GpuPlace, part: Tensor) -> Tensor:
        region = self._region(who, place.handle, part.device)
        if place.offset < 0 or place.offset % part.dtype.itemsize or place.offset + part.nbytes > region.size:
            raise WireError(f"{who} sums a vector that is not where it says")
        return region.bytes(part.device)[place.offset : place.offset + part.nbytes].view(part.dtype)

    def _region(self, who: Address, handle: bytes, device: torch.device) -> _Mapped:
        known = self._mapped.setdefault(who, {})
        if handle not in known:
            if len(handle) != HANDLE or len(known) >= MOST:
                raise WireError(f"{who} named GPU memory that it does not have")
            with torch.cuda.device(device):
                known[handle] = _Mapped(handle)
        return known[handle]

    def _unmap(self) -> None:
        """Close what lost roles had offered; no sum is under way that could read it."""
        if self._past:
            torch.cuda.synchronize()
        while self._past:
            driver().close(self._past.pop().address)


def one_card(offers: Sequence[GpuPlaces | None]) -> bool:
    """Whether all of these lie on the same GPU."""
    return None not in offers and len({offer.card for offer in offers if offer}) == 1


def card(device: torch.device) -> str:
    """What names a GPU in all processes."""
    return str(torch.cuda.get_device_properties(device).uuid)


def _place(tensor: Tensor) -> GpuPlace:
    start, _ = driver().allocation(tensor.data_ptr())
    return GpuPlace(driver().handle(tensor.data_ptr()), tensor.data_ptr() - start)


def _rounded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
