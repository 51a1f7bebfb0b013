"""Tensors between roles of one host: they stay in memory that both map, and only their location uses a socket."""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covey.decoding import WireFormat
from covey.engines.gpu.gpu_memory import GpuMemory
from covey.engines.transport.shared.blocks import FileSpan, MappedSpan, SharedBlocks, TensorPlaces, numbers_of
from covey.engines.transport.shared.segment import SharedSegment
from covey.engines.transport.shared.semaphore import Semaphore
from covey.errors import WireError
from covey.message import DTYPES, MAX_HEADER, Address, Header
from covey.vector import Vector

MOST = 1 << 14  # spans of one role; it grows its memory in few

_shelves: WireFormat[TensorPlaces] = WireFormat("place of numbers in shared memory", TensorPlaces, most=MAX_HEADER)


def read_places(data: bytes | memoryview, sender: Address) -> TensorPlaces:
    return _shelves.read(data, sender)


class Neighbour:
    """The memory of another role of this host, as far as it is announced."""

    def __init__(self, who: Address, file: int) -> None:
        self.who, self.file = who, file
        self.regions: dict[FileSpan, MappedSpan] = {}
        self.past: list[tuple[int, weakref.ref[mmap.mmap]]] = []  # where regions of earlier incarnations begin

    def renew(self) -> None:
        """It was restarted, and has other regions; those of the earlier incarnation stay mapped while they are read."""
        self.past += [(span.start, weakref.ref(region.map)) for span, region in self.regions.items()]
        self.regions = {}

    def floor(self) -> int:
        """Nothing below this byte of the file, which an earlier incarnation wrote, is mapped here any more."""
        self.past = [(start, region) for start, region in self.past if region() is not None]
        return min((start for start, _ in self.past), default=os.fstat(self.file).st_size)

    def region(self, span: FileSpan) -> MappedSpan:
        """A span of its file, mapped here once and for all."""
        if span not in self.regions:
            size = os.fstat(self.file).st_size
            whole = span.start % mmap.PAGESIZE == 0 == span.size % mmap.PAGESIZE and span.size > 0
            if span.start < 0 or not whole or span.start + span.size > size or len(self.regions) >= MOST:
                raise WireError(f"{self.who} named memory that it does not have")
            try:
                self.regions[span] = MappedSpan(self.file, span)
            except (OSError, ValueError) as error:  # the machine maps no more
                raise WireError(f"{self.who} speaks of memory that cannot be mapped here: {error}") from None
        return self.regions[span]

    def lent(self, span: FileSpan) -> NDArray[np.uint8]:
        """All bytes of a block, which is given back when no tensor holds any of them."""
        region = self.region(span)
        sign = Semaphore(region.map, 0)
        if not sign.sound():
            raise WireError(f"{self.who} speaks of a block where it has none")
        held = np.frombuffer(region.map, dtype=np.uint8)
        weakref.finalize(held, _give_back, os.getpid(), sign).atexit = False
        return held


def _give_back(pid: int, sign: Semaphore) -> None:
    """(On whichever thread) The block may be used again; a child that was forked meanwhile has no say."""
    if os.getpid() == pid and sign.sound():
        sign.give()


class Neighbours:
    """The memory of the other roles of this host."""

    def __init__(self, segment: SharedSegment) -> None:
        self._known = {who: Neighbour(who, segment.file(who)) for who in segment.places}

    def __contains__(self, who: Address) -> bool:
        return who in self._known

    def of(self, who: Address) -> Neighbour:
        return self._known[who]

    def tensors(self, header: Header, places: TensorPlaces) -> list[Tensor]:
        """A message's tensors in place; those in a block give it back when the last of them is dropped."""
        if len(places.places) != len(header.tensors):
            raise WireError(f"{header.sender} sent a {header.kind} with {len(places.places)} of its tensors")
        sender = self.of(header.sender)
        block = sender.lent(places.block) if places.block else None
        found = []
        for shape, place in zip(header.tensors, places.places, strict=True):
            dtype, size = DTYPES[shape.dtype], shape.nbytes
            if not 0 <= place.offset <= place.span.size - size or place.offset % dtype.itemsize:
                raise WireError(f"{header.sender} sent a {header.kind} whose numbers are not where it says")
            if not size:
                found.append(torch.empty(shape.dims, dtype=dtype))
                continue
            data = block if place.span == places.block else sender.region(place.span).map
            assert data is not None
            found.append(numbers_of(data, place.offset, dtype, math.prod(shape.dims)).view(shape.dims))
        return found


class HostMemory:
    """A role's side of what it shares with the other roles of its host."""

    def __init__(self, me: Address, segment: SharedSegment) -> None:
        self.me, self.segment, self.wakeup = me, segment, segment.wakeup(me)
        self.blocks = SharedBlocks(segment.file(me))
        self.neighbours, self.gpu = Neighbours(segment), GpuMemory()
        self.sums: dict[object, object] = {}  # what is remembered of sums in all members' memory
        self.told = False

    def house(self, vector: Vector) -> Vector:
        """Numbers that stay for the role's life, where others can read them."""
        self.gpu.keep(vector)
        return self.blocks.house(vector)

    def renew(self, who: Address) -> None:
        """A neighbour was restarted."""
        self.sums.clear()  # or its earlier memory would be held for good
        if who in self.neighbours:
            self.neighbours.of(who).renew()
            self.gpu.renew(who)
            self.blocks.reclaim(who)

    def cramped(self) -> str:
        """Why there is no more memory to share, the first time after that has happened."""
        why = "" if self.told else self.blocks.full
        self.told = self.told or bool(why)
        return why

    def shelving(self, to: Address, most: int) -> Callable[[Sequence[Tensor], bool], TensorPlaces | None] | None:
        """How tensors are brought where this peer can read them, if it lives on this host.

        Not while it holds `most` bytes or more: no sender waits for a reader, which may itself wait to send.
        """
        here = to in self.neighbours and self.blocks.outstanding(to) < most
        return partial(self.blocks.place_tensors, to) if here else None
