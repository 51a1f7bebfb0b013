"""Tensors between roles of one host: they lie in memory that both map, and only word of where goes over a socket.

A role writes its own file alone. What it lends is read there in place; what it sends is copied into a block, which the
receiver gives back when the last tensor in it is dropped.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
import torch
from torch import Tensor

from covey.engines.transport.ground import Ground
from covey.engines.transport.semaphore import SIZE, Semaphore
from covey.errors import WireError
from covey.message import DTYPES, Address, Header
from covey.vector import Vector

ALIGNED = 64  # bytes: every tensor begins on a cache line of its own
LEAST = 64 << 10  # bytes of the smallest block


class Span(msgspec.Struct, array_like=True, frozen=True):
    """A stretch of a role's file, mapped as a whole by whoever reads in it."""

    start: int
    size: int


class Place(msgspec.Struct, array_like=True, frozen=True):
    """Where a tensor lies: so many bytes from the beginning of a span."""

    span: Span
    offset: int


NOWHERE = Place(Span(0, 0), 0)
"""Of a tensor that has no numbers."""


class Shelf(msgspec.Struct, array_like=True, frozen=True):
    """Where a message's tensors lie; the block, if any of them do in one, is to be given back."""

    places: list[Place]
    block: Span | None = None


_shelves = msgspec.msgpack.Decoder(Shelf)


def read_shelf(data: bytes | memoryview, sender: Address) -> Shelf:
    try:
        return _shelves.decode(data)
    except (msgspec.DecodeError, OverflowError) as error:
        raise WireError(f"{sender} sent a message without saying where its numbers are: {error}") from None


class Region:
    """A span, mapped here."""

    def __init__(self, file: int, span: Span) -> None:
        self.span = span
        self.map = mmap.mmap(file, span.size, offset=span.start)
        self.bytes = torch.frombuffer(self.map, dtype=torch.uint8)
        self.address = self.bytes.data_ptr()

    def tensor(self, offset: int, dtype: torch.dtype, numel: int) -> Tensor:
        return self.bytes[offset : offset + numel * dtype.itemsize].view(dtype)


class Block(Region):
    """Room for what is sent; its first bytes are the sign that it has been given back."""

    def __init__(self, file: int, span: Span) -> None:
        super().__init__(file, span)
        self.back = Semaphore(self.map, 0)
        self.back.clear()
        self.reader: Address | None = None

    def put(self, offset: int, tensor: Tensor) -> Place:
        """Copy a tensor to this offset."""
        self.tensor(offset, tensor.dtype, tensor.numel()).view(tensor.shape).copy_(tensor)
        return Place(self.span, offset)

    def free(self) -> bool:
        """Whether nobody reads here any more."""
        if self.reader is not None and self.back.take():
            self.reader = None
        return self.reader is None


class Arena:
    """A role's own memory, which its neighbours can read."""

    def __init__(self, file: int) -> None:
        self.file, self.end = file, 0
        self.lasting: list[Region] = []  # what is in them may be lent
        self.blocks: list[Block] = []
        self.full = ""  # why there is no more, once there is none

    def house(self, vector: Vector) -> Vector:
        """The same numbers in this memory, where they can be lent; where there is no room they stay where they are."""
        size = _room(vector.parts)
        if not size or any(part.device.type != "cpu" for part in vector.parts) or not (span := self._grow(size)):
            return vector
        region, parts, offset = Region(self.file, span), [], 0
        for part in vector.parts:
            parts.append(region.tensor(offset, part.dtype, part.numel()).view(part.shape))
            offset += rounded(part.nbytes)
        self.lasting.append(region)
        return Vector(parts, vector.origin).copy_(vector)

    def find(self, tensor: Tensor) -> Place | None:
        """Where a tensor lies in this memory, if it does, and in one piece."""
        at = tensor.data_ptr()
        for region in self.lasting:
            if region.address <= at and at + tensor.nbytes <= region.address + region.span.size:
                return Place(region.span, at - region.address) if tensor.is_contiguous() else None
        return None

    def block(self, size: int, reader: Address) -> Block | None:
        """Room for so many bytes until the reader gives it back; None when there is no more."""
        wanted = max(LEAST, size + SIZE)
        found = [block for block in self.blocks if wanted <= block.span.size <= 2 * wanted and block.free()]
        if not found and (span := self._grow(wanted)):
            found.append(Block(self.file, span))
            self.blocks.append(found[0])
        if not found:
            return None
        found[0].reader = reader
        return found[0]

    def shelve(self, reader: Address, tensors: Sequence[Tensor], lent: bool) -> Shelf | None:
        """Bring a message's tensors where the reader finds them; None when there is no room for them."""
        places = [_place(self, tensor, lent) for tensor in tensors]
        moved = [tensor for tensor, place in zip(tensors, places, strict=True) if place is None]
        if not moved:
            return Shelf([place or NOWHERE for place in places])
        block = self.block(_room(moved), reader)
        if block is None:
            return None
        offset, found = SIZE, []
        for tensor, place in zip(tensors, places, strict=True):
            if place is None:
                place = block.put(offset, tensor)
                offset += rounded(tensor.nbytes)
            found.append(place)
        return Shelf(found, block.span)

    def take_back(self, shelf: Shelf) -> None:
        """Nobody will read this."""
        for block in self.blocks:
            if block.span == shelf.block:
                block.reader = None

    def outstanding(self, reader: Address) -> int:
        """Bytes that were sent to this reader and have not been given back."""
        return sum(block.span.size for block in self.blocks if block.reader == reader and not block.free())

    def _grow(self, size: int) -> Span | None:
        """More bytes at the end of the file, which are really there; None when the machine gives no more."""
        span = Span(self.end, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)
        if self.full:
            return None
        try:
            os.posix_fallocate(self.file, span.start, span.size)
        except OSError as error:
            self.full = f"{error.strerror} beyond {self.end / 1e6:.1f} MB"
            return None
        self.end += span.size
        return span


class Neighbours:
    """The memory of the other roles of this host, as far as they have told of it."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.regions: dict[tuple[Address, Span], Region] = {}

    def tensors(self, header: Header, shelf: Shelf) -> list[Tensor]:
        """A message's tensors in place; those in a block give it back when the last of them is dropped."""
        if len(shelf.places) != len(header.tensors):
            raise WireError(f"{header.sender} sent a {header.kind} with {len(shelf.places)} of its tensors")
        block = self._lent(header.sender, shelf.block) if shelf.block else None
        found = []
        for shape, place in zip(header.tensors, shelf.places, strict=True):
            dtype, size = DTYPES[shape.dtype], shape.nbytes
            if not 0 <= place.offset <= place.span.size - size or place.offset % dtype.itemsize:
                raise WireError(f"{header.sender} sent a {header.kind} whose numbers are not where it says")
            if not size:
                found.append(torch.empty(shape.dims, dtype=dtype))
                continue
            data = block if place.span == shelf.block else self.region(header.sender, place.span).bytes
            assert data is not None
            found.append(data[place.offset : place.offset + size].view(dtype).view(shape.dims))
        return found

    def region(self, who: Address, span: Span) -> Region:
        """A span of somebody's file, mapped here once and for all."""
        if (who, span) not in self.regions:
            file = self.ground.file(who)
            if span.start < 0 or span.size <= 0 or span.start + span.size > os.fstat(file).st_size:
                raise WireError(f"{who} speaks of memory that it does not have")
            self.regions[who, span] = Region(file, span)
        return self.regions[who, span]

    def _lent(self, who: Address, span: Span) -> Tensor:
        """All bytes of a block, which is given back when nobody holds any of them any more."""
        region = self.region(who, span)
        held = np.frombuffer(region.map, dtype=np.uint8)
        weakref.finalize(held, self._give_back, who, Semaphore(region.map, 0)).atexit = False
        return torch.from_numpy(held)

    def _give_back(self, who: Address, sign: Semaphore) -> None:
        """(On whichever thread) The block may be used again."""
        sign.give()
        if self.ground.hungry(who):
            self.ground.ring(who)


class Memory:
    """A role's side of what it shares with the other roles of its host."""

    def __init__(self, me: Address, ground: Ground) -> None:
        self.me, self.ground, self.bell = me, ground, ground.bell(me)
        self.arena = Arena(ground.file(me))
        self.neighbours = Neighbours(ground)
        self.told = False

    def cramped(self) -> str:
        """Why there is no more memory to share, the first time after that has happened."""
        why = "" if self.told else self.arena.full
        self.told = self.told or bool(why)
        return why

    def room(self, to: Address, most: int) -> bool:
        """Whether less than so many bytes wait to be read by this peer; if not, its reading will ring the bell."""
        room = self.arena.outstanding(to) < most
        if not room:
            self.ground.starve(self.me, hungry=True)  # first this, then look again: it may just have been given back
            room = self.arena.outstanding(to) < most
        if room and self.ground.hungry(self.me):
            self.ground.starve(self.me, hungry=False)
        return room

    def shelving(self, to: Address) -> Callable[[Sequence[Tensor], bool], Shelf | None] | None:
        """How tensors are brought where this peer can read them, if it lives on this host."""
        return partial(self.arena.shelve, to) if to in self.ground.places else None


def _place(arena: Arena, tensor: Tensor, lent: bool) -> Place | None:
    return (arena.find(tensor) if lent else None) if tensor.numel() else NOWHERE


def rounded(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _room(tensors: Sequence[Tensor]) -> int:
    return sum(rounded(tensor.nbytes) for tensor in tensors)
