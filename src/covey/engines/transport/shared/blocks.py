"""A role's own memory, which the other roles of its host can read: what is there, and where.

A role writes its own file alone. What it lends lies in a lasting region and is read there in place; what it sends is
copied into a block, which the reader gives back.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from covey.engines.transport.shared.semaphore import SIZE, Semaphore
from covey.engines.transport.shared.spare import spare_memory
from covey.engines.transport.staging import brought, pin
from covey.message import Address
from covey.vector import Vector

ALIGNED = 64  # bytes: every tensor begins on a cache line of its own
LEAST = 64 << 10  # bytes of the smallest block


class FileSpan(msgspec.Struct, array_like=True, frozen=True):
    """A stretch of a role's file, which each reader maps as a whole."""

    start: int
    size: int


class TensorPlace(msgspec.Struct, array_like=True, frozen=True):
    """Where a tensor lies: its offset in bytes from the beginning of a span."""

    span: FileSpan
    offset: int


NOWHERE = TensorPlace(FileSpan(0, 0), 0)
"""Of a tensor that has no numbers."""


class TensorPlaces(msgspec.Struct, array_like=True, frozen=True):
    """Where a message's tensors lie; the block, if any of them do in one, is to be given back."""

    places: list[TensorPlace]
    block: FileSpan | None = None


class MappedSpan:
    """A span, mapped here."""

    def __init__(self, file: int, span: FileSpan) -> None:
        self.span = span
        self.map = mmap.mmap(file, span.size, offset=span.start)
        self.bytes = torch.frombuffer(self.map, dtype=torch.uint8)
        self.address = self.bytes.data_ptr()
        pin(self.address, span.size)

    def tensor(self, offset: int, dtype: torch.dtype, numel: int) -> Tensor:
        return self.bytes[offset : offset + numel * dtype.itemsize].view(dtype)

    def vector(self, like: Vector) -> Vector:
        """Room for such a vector from the beginning on, every part on a cache line of its own."""
        parts, offset = [], 0
        for part in like.parts:
            parts.append(self.tensor(offset, part.dtype, part.numel()).view(part.shape))
            offset += rounded(part.nbytes)
        return Vector(parts, like.origin)


class SharedBlock(MappedSpan):
    """Room for what is sent; its first bytes are the sign that it has been given back."""

    def __init__(self, file: int, span: FileSpan) -> None:
        super().__init__(file, span)
        self.back = Semaphore(self.map, 0)
        self.back.clear()
        self.reader: Address | None = None

    def put(self, offset: int, tensor: Tensor) -> TensorPlace:
        """Copy a tensor to this offset; from a GPU it comes by and by."""
        brought(tensor, numbers_of(self.map, offset, tensor.dtype, tensor.numel()).view(tensor.shape))
        return TensorPlace(self.span, offset)

    def free(self) -> bool:
        """Whether no reader is left."""
        if self.reader is not None and self.back.take():
            self.reader = None
        return self.reader is None


class SharedBlocks:
    """A role's own memory, which its neighbours can read."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.first = self.end = os.fstat(file).st_size  # others may still read what an earlier incarnation left
        self.lasting: list[MappedSpan] = []  # what is in them may be lent
        self.blocks: list[SharedBlock] = []
        self.full = ""  # why there is no more, once there is none

    def house(self, vector: Vector) -> Vector:
        """The same numbers in this memory, where they can be lent; where there is no room they stay where they are."""
        size = room(vector.parts)
        if not size or any(part.device.type != "cpu" for part in vector.parts) or not (span := self._grow(size)):
            return vector
        self.lasting.append(MappedSpan(self.file, span))
        return self.lasting[-1].vector(vector).copy_(vector)

    def house_if_ample(self, vector: Vector) -> Vector:
        """The same where this much would be left for messages, which need it more."""
        return self.house(vector) if spare_memory() > 2 * room(vector.parts) else vector

    def find(self, tensor: Tensor) -> TensorPlace | None:
        """Where a tensor lies in this memory, if it does, and in one piece."""
        at = tensor.data_ptr()
        for region in self.lasting:
            if region.address <= at and at + tensor.nbytes <= region.address + region.span.size:
                return TensorPlace(region.span, at - region.address) if tensor.is_contiguous() else None
        return None

    def block(self, size: int, reader: Address) -> SharedBlock | None:
        """Room for this many bytes until the reader gives it back; None if there is none."""
        wanted = _generous(max(LEAST, size + SIZE))
        found = [block for block in self.blocks if wanted <= block.span.size <= 2 * wanted and block.free()]
        if not found and (span := self._grow(wanted)):
            found.append(SharedBlock(self.file, span))
            self.blocks.append(found[0])
        if not found:
            return None
        found[0].reader = reader
        return found[0]

    def place_tensors(self, reader: Address, tensors: Sequence[Tensor], lent: bool) -> TensorPlaces | None:
        """Bring a message's tensors where the reader finds them; None when there is no room for them."""
        places = [_place(self, tensor, lent) for tensor in tensors]
        moved = [tensor for tensor, place in zip(tensors, places, strict=True) if place is None]
        if not moved:
            return TensorPlaces([place or NOWHERE for place in places])
        block = self.block(room(moved), reader)
        if block is None:
            return None
        offset, found = SIZE, []
        for tensor, place in zip(tensors, places, strict=True):
            if place is None:
                place = block.put(offset, tensor)
                offset += rounded(tensor.nbytes)
            found.append(place)
        return TensorPlaces(found, block.span)

    def take_back(self, places: TensorPlaces | None) -> None:
        """No role will read this."""
        lent = places.block if places else None
        for block in self.blocks if lent else ():
            if block.span == lent:
                block.reader = None

    def reclaim(self, reader: Address) -> None:
        """Have back all that a reader was sent who is no more."""
        for block in self.blocks:
            if block.reader == reader:
                block.reader = None
                block.back.clear()

    def release(self, below: int) -> None:
        """Give the machine back the memory of earlier incarnations that nobody reads any more."""
        if size := min(below, self.first):
            with mmap.mmap(self.file, size) as past:
                past.madvise(mmap.MADV_REMOVE)

    def region(self, span: FileSpan) -> MappedSpan:
        """What lies at this span."""
        return next(region for region in (*self.lasting, *self.blocks) if region.span == span)

    def outstanding(self, reader: Address) -> int:
        """Bytes that were sent to this reader and have not been given back."""
        return sum(block.span.size for block in self.blocks if block.reader == reader and not block.free())

    def _grow(self, size: int) -> FileSpan | None:
        """More bytes at the end of the file, which are really there; None when the machine gives no more."""
        span = FileSpan(self.end, in_pages(size))
        if not self.full and span.size > (spare := spare_memory()):
            self.full = f"{spare / 1e6:.0f} MB are left, and {span.size / 1e6:.0f} MB wanted"
        if self.full:
            return None
        try:
            os.posix_fallocate(self.file, span.start, span.size)
        except OSError as error:
            self.full = f"{error.strerror} beyond {self.end / 1e6:.1f} MB"
            return None
        self.end += span.size
        return span


def numbers_of(memory: object, offset: int, dtype: torch.dtype, count: int) -> Tensor:
    """Numbers that lie in mapped memory, which stays mapped while they are held; one step where a view takes three."""
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)


def _place(blocks: SharedBlocks, tensor: Tensor, lent: bool) -> TensorPlace | None:
    return (blocks.find(tensor) if lent else None) if tensor.numel() else NOWHERE


def _generous(size: int) -> int:
    """A little more, so that messages of changing length find the same blocks."""
    step = 1 << max(0, size.bit_length() - 3)
    return -(-size // step) * step


def in_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def rounded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def room(tensors: Sequence[Tensor]) -> int:
    return sum(rounded(tensor.nbytes) for tensor in tensors)
