"""Tensors between roles of one host: they lie in memory that both map, and only word of where goes over a socket."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from covey.decoding import WireFormat
from covey.engines.transport.arena import Arena, Region, Shelf, Span
from covey.engines.transport.ground import Ground
from covey.engines.transport.semaphore import Semaphore
from covey.errors import WireError
from covey.message import DTYPES, MAX_HEADER, Address, Header

MOST = 1 << 14  # spans of one role; it grows its memory in few

_shelves: WireFormat[Shelf] = WireFormat("place of numbers in shared memory", Shelf, most=MAX_HEADER)


def read_shelf(data: bytes | memoryview, sender: Address) -> Shelf:
    return _shelves.read(data, sender)


class Neighbour:
    """The memory of another role of this host, as far as it has told of it."""

    def __init__(self, who: Address, file: int) -> None:
        self.who, self.file = who, file
        self.regions: dict[Span, Region] = {}

    def region(self, span: Span) -> Region:
        """A span of its file, mapped here once and for all."""
        if span not in self.regions:
            size = os.fstat(self.file).st_size
            whole = span.start % mmap.PAGESIZE == 0 == span.size % mmap.PAGESIZE and span.size > 0
            if span.start < 0 or not whole or span.start + span.size > size or len(self.regions) >= MOST:
                raise WireError(f"{self.who} speaks of memory that it does not have")
            try:
                self.regions[span] = Region(self.file, span)
            except (OSError, ValueError) as error:  # the machine maps no more
                raise WireError(f"{self.who} speaks of memory that cannot be mapped here: {error}") from None
        return self.regions[span]

    def lent(self, span: Span) -> Tensor:
        """All bytes of a block, which is given back when nobody holds any of them any more."""
        region = self.region(span)
        if not Semaphore(region.map, 0).sound():
            raise WireError(f"{self.who} speaks of a block where it has none")
        held = np.frombuffer(region.map, dtype=np.uint8)
        weakref.finalize(held, _give_back, os.getpid(), Semaphore(region.map, 0)).atexit = False
        return torch.from_numpy(held)


def _give_back(pid: int, sign: Semaphore) -> None:
    """(On whichever thread) The block may be used again; a child that was forked meanwhile has no say."""
    if os.getpid() == pid and sign.sound():
        sign.give()


class Neighbours:
    """The memory of the other roles of this host."""

    def __init__(self, ground: Ground) -> None:
        self._known = {who: Neighbour(who, ground.file(who)) for who in ground.places}

    def __contains__(self, who: Address) -> bool:
        return who in self._known

    def of(self, who: Address) -> Neighbour:
        return self._known[who]

    def tensors(self, header: Header, shelf: Shelf) -> list[Tensor]:
        """A message's tensors in place; those in a block give it back when the last of them is dropped."""
        if len(shelf.places) != len(header.tensors):
            raise WireError(f"{header.sender} sent a {header.kind} with {len(shelf.places)} of its tensors")
        sender = self.of(header.sender)
        block = sender.lent(shelf.block) if shelf.block else None
        found = []
        for shape, place in zip(header.tensors, shelf.places, strict=True):
            dtype, size = DTYPES[shape.dtype], shape.nbytes
            if not 0 <= place.offset <= place.span.size - size or place.offset % dtype.itemsize:
                raise WireError(f"{header.sender} sent a {header.kind} whose numbers are not where it says")
            if not size:
                found.append(torch.empty(shape.dims, dtype=dtype))
                continue
            data = block if place.span == shelf.block else sender.region(place.span).bytes
            assert data is not None
            found.append(data[place.offset : place.offset + size].view(dtype).view(shape.dims))
        return found


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

    def shelving(self, to: Address, most: int) -> Callable[[Sequence[Tensor], bool], Shelf | None] | None:
        """How tensors are brought where this peer can read them, if it lives on this host.

        Not while it holds on to `most` bytes or more: nobody waits for a reader, which may itself wait to send.
        """
        here = to in self.neighbours and self.arena.outstanding(to) < most
        return partial(self.arena.shelve, to) if here else None
