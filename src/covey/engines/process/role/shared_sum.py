"""Sums over roles of one host in shared memory: each role sums one slice of all vectors, in place.

Small vectors are laid out, and everybody sums them all. Numbers are always added in the order of the group, so all
members have the same bits. Nobody waits in here: a role that must wait goes on listening until its bell rings. Those of
roles on one GPU are summed there, in place (`gpu_memory.py`); those of several GPUs are brought into shared memory and
back.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Generator
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from covey.decoding import WireFormat
from covey.engines.gpu.cuda_driver import CudaRefused
from covey.engines.gpu.gpu_memory import GpuPlaces, OnGpu, one_card
from covey.engines.process.role.add_up import add_up
from covey.engines.process.role.native_sums import Group, PendingSum, SumDone
from covey.engines.transport.memory import HostMemory
from covey.engines.transport.shared_blocks import TensorPlace, TensorPlaces, rounded
from covey.engines.transport.shared_segment import SLOT
from covey.engines.transport.staging import arrival
from covey.errors import WireError
from covey.message import Address
from covey.program import Collective
from covey.vector import chunk

HEAD = 64  # bytes in front of what is laid out
HALF = SLOT // 2  # bytes that are laid out at most
LAYOUTS = 64  # sizes of sums whose places are remembered
SPIN = 3e-4  # seconds that a role looks again and again for the others, which is faster than to be woken

LayoutKey = tuple[Group, tuple[tuple[torch.dtype, int], ...]]
Steps = Generator[Group, None, bool]
"""A sum on its way: it gives those for whose sign it waits, and ends with whether it came about."""


class SumOffer(msgspec.Struct, array_like=True, frozen=True):
    """Where a member's numbers are, if there was room for them, and how much they count."""

    places: TensorPlaces | None
    share: float
    gpu: GpuPlaces | None = None


class SlotLayout(NamedTuple):
    """Where the members of a group lay out parts of certain sizes: slots never move, so all such sums use it."""

    parts: list[list[Tensor]]  # those of each part, in the order of the group
    own: list[Tensor]
    shares: list[memoryview[float]]
    own_share: memoryview[float]
    others: Group


_offers: WireFormat[SumOffer] = WireFormat("offer of numbers to sum", SumOffer, most=SLOT)


class SharedSum:
    """The sums of one role, one after the other."""

    def __init__(self, me: Address, memory: HostMemory) -> None:
        self.me, self.memory = me, memory
        self.segment = segment = memory.segment
        self.wakeups = ()  # its bell is that of the links, which hear it anyway
        self.wanted: deque[PendingSum] = deque()
        self.signs = {who: (segment.sign(me, who), segment.sign(who, me)) for who in segment.places}
        self.spare = len(os.sched_getaffinity(0)) >= len(segment.places)
        self.under_way: Steps | None = None
        self.missing: Group = ()
        self.readers: Group = ()  # of what was laid out last; each will say when it has read it
        self.half = 0  # of the slot, in which that lies
        self.turns: dict[Group, int] = {}  # the half that a group used last; all its members know the same
        self.layouts: dict[LayoutKey, list[SlotLayout]] = {}  # in either half; none: the parts are too large

    def take(self, program: Any, effect: Collective) -> bool:
        """Whether the sum is under way; `advance` at once, and again when the bell rings."""
        here = all(who in self.signs for who in effect.group) and len(effect.group) > 1
        if not here or any(part.device.type not in ("cpu", "cuda") for part in effect.vector.parts):
            return False
        self.wanted.append(PendingSum(program, effect))
        return True

    def advance(self) -> list[SumDone]:
        """Go as far as can be without waiting; the sums that are done."""
        finished: list[SumDone] = []
        while self.wanted:
            try:
                came = self._go_on(self.wanted[0].effect)
            except WireError as error:
                return [*finished, SumDone(self.wanted.popleft(), False, error)]
            if came is None:
                break
            finished.append(SumDone(self.wanted.popleft(), came, None))
        return finished

    def _go_on(self, effect: Collective) -> bool | None:
        """Continue a sum: whether it was made, or None while it waits for a member."""
        if self.under_way is None:
            parts = [part if part.dim() == 1 else part.view(-1) for part in effect.vector.parts if part.numel()]
            if halves := self._layouts(effect.group, parts):
                half = self.turns[effect.group] = 1 - self.turns.get(effect.group, 1)
                self.under_way = self._laid_out(parts, effect.group, effect.share, halves[half], half)
            else:
                self.under_way = self._sliced(parts, effect.group, effect.share)
        try:
            while self._all_there():
                self.missing = next(self.under_way)
        except StopIteration as end:
            self.under_way = None
            return bool(end.value)
        return None

    def _all_there(self) -> bool:
        """Whether no member's sign is missing; looks for a moment."""
        if not self.missing:
            return True
        until = time.monotonic() + SPIN
        while True:
            self.missing = tuple([who for who in self.missing if not self.signs[who][1].take()])
            if not self.missing or time.monotonic() > until:
                return not self.missing
            if not self.spare:
                os.sched_yield()

    def _tell(self, others: Group) -> Group:
        """Give these a sign that one is so far."""
        for who in others:
            self.signs[who][0].give()
            self.segment.ring(who)
        return others

    def reset(self) -> None:
        """Forget a sum that a loss broke off, when no member is in it any more, and no sign will come of it."""
        self.wanted.clear()
        if self.under_way is not None:
            self.under_way.close()
        self.under_way, self.missing, self.readers = None, (), ()
        self.turns.clear()
        for _, sign in self.signs.values():
            while sign.take():
                pass

    # -- the two ways ------------------------------------------------------------------------------------------------

    def _laid_out(self, parts: list[Tensor], group: Group, share: float, layout: SlotLayout, half: int) -> Steps:
        """Every member lays its numbers out, and sums what all have laid out.

        A group alternates between the halves of the slots, so no member waits until all have read its last numbers.
        """
        if half == self.half:
            yield self.readers
            self.readers = ()
        before, self.readers, self.half = self.readers, layout.others, half
        layout.own_share[0] = share
        for mine, part in zip(layout.own, parts, strict=True):
            mine.copy_(part)
        self._tell(layout.others)
        yield before
        yield layout.others
        shares = [theirs[0] for theirs in layout.shares]
        for part, tensors in zip(parts, layout.parts, strict=True):
            total = torch.empty_like(part, device="cpu") if part.is_cuda else part
            add_up(tensors, shares, total, group)
            if part.is_cuda:
                part.copy_(total)
        self._tell(layout.others)
        return True

    def _layouts(self, group: Group, parts: list[Tensor]) -> list[SlotLayout]:
        """Where each member lays such parts out, in either half of its slot; none if they are too large for that."""
        key = group, tuple([(part.dtype, part.numel()) for part in parts])
        if key not in self.layouts:
            if len(self.layouts) >= LAYOUTS:
                self.layouts.clear()
            small = HEAD + sum(rounded(part.nbytes) for part in parts) <= HALF
            self.layouts[key] = [self._lay_slots_out(group, parts, start) for start in ((0, HALF) if small else ())]
        return self.layouts[key]

    def _lay_slots_out(self, group: Group, parts: list[Tensor], start: int) -> SlotLayout:
        slots = [self.segment.slot(who)[start : start + HALF] for who in group]
        offset, found, me = HEAD, [], group.index(self.me)
        for part in parts:
            place = partial(torch.frombuffer, dtype=part.dtype, count=part.numel(), offset=offset)
            found.append(list(map(place, slots)))
            offset += rounded(part.nbytes)
        shares = [slot[:HEAD].cast("d") for slot in slots]  # how much a member's numbers count: the first of these
        others = tuple(who for who in group if who != self.me)
        return SlotLayout(found, [tensors[me] for tensors in found], shares, shares[me], others)

    def _sliced(self, parts: list[Tensor], group: Group, share: float) -> Steps:
        """Every member sums its slice of all, then takes the others' slices. If one has no room, none does."""
        yield self.readers
        others, blocks = tuple(who for who in group if who != self.me), self.memory.blocks
        own = self.memory.gpu.place(parts, group)
        places = None if own else blocks.place_tensors(self.me, parts, lent=True)
        try:
            offers = yield from self._offers(parts, group, SumOffer(places, share, own.told if own else None))
            if own and one_card([offer.gpu for offer in offers]):
                theirs = yield from self._opened(parts, group, own, offers)
                if theirs is not None:
                    return (yield from self._in_place(parts, group, theirs, offers))
            if any(offer.gpu for offer in offers):  # not all can read it there, so nobody does
                yield self._tell(others)
                places = places or blocks.place_tensors(self.me, parts, lent=True)
                offers = yield from self._offers(parts, group, SumOffer(places, share))
            if any(offer.places is None for offer in offers):
                yield self._tell(others)
                return False
            theirs = [self._tensors(who, offer, parts) for who, offer in zip(group, offers, strict=True)]
            return (yield from self._in_place(parts, group, theirs, offers))
        finally:
            blocks.take_back(places)

    def _offers(self, parts: list[Tensor], group: Group, mine: SumOffer) -> Generator[Group, None, list[SumOffer]]:
        """Say where one's numbers are, when they have come there, and hear where those of all are."""
        arrival(parts, 0)
        self._lay_out(mine)
        yield self._tell(tuple(who for who in group if who != self.me))
        return [self._offer_of(who) for who in group]

    def _opened(
        self, parts: list[Tensor], group: Group, own: OnGpu, offers: list[SumOffer]
    ) -> Generator[Group, None, list[list[Tensor]] | None]:
        """The numbers of all on their common GPU; None if a member cannot reach those of another, which all hear of."""
        try:
            theirs = [
                own.tensors if who == self.me else self.memory.gpu.tensors(who, offer.gpu, parts)
                for who, offer in zip(group, offers, strict=True)
                if offer.gpu
            ]
        except CudaRefused:
            theirs = None
        if not any(offer.gpu.fresh for offer in offers if offer.gpu):
            if theirs is None:
                raise WireError(f"{self.me} cannot open memory of its GPU that it could open before")
            return theirs
        yield self._tell(tuple(who for who in group if who != self.me))
        found = SumOffer(None, 0, own.told if theirs is not None else None)
        if all(offer.gpu for offer in (yield from self._offers(parts, group, found))):
            return theirs
        self.memory.gpu.apart.add(group)
        return None

    def _in_place(
        self, parts: list[Tensor], group: Group, theirs: list[list[Tensor]], offers: list[SumOffer]
    ) -> Steps:  # fmt: skip
        """The same, with everybody's numbers where all can read them."""
        others, me, size = tuple(who for who in group if who != self.me), group.index(self.me), len(group)
        mine, shares = theirs[me], [offer.share for offer in offers]
        for part, *tensors in zip(mine, *theirs, strict=True):
            start, stop = chunk(part.numel(), size, me)
            add_up([tensor[start:stop] for tensor in tensors], shares, part[start:stop], group)
        arrival(mine, 0)
        yield self._tell(others)
        for place in (*range(me, size), *range(me)):  # not all from the same one first
            for part, theirs_there in zip(parts, theirs[place], strict=True):
                start, stop = chunk(part.numel(), size, place)
                if part.data_ptr() != theirs_there.data_ptr():  # what one has summed oneself may be in place
                    part[start:stop].copy_(theirs_there[start:stop])
        arrival(mine, 0)
        yield self._tell(others)  # no member changes its numbers before all have taken them
        return True

    def _lay_out(self, offer: SumOffer) -> None:
        """Say where one's numbers are."""
        self.readers = ()  # all have read it when the sum is done
        text = msgspec.msgpack.encode(offer)
        self.segment.slot(self.me)[: 4 + len(text)] = len(text).to_bytes(4, "little") + text

    def _offer_of(self, who: Address) -> SumOffer:
        slot = self.segment.slot(who)
        offer = _offers.read(slot[4 : 4 + int.from_bytes(slot[:4], "little")], who)
        if not math.isfinite(offer.share):
            raise WireError(f"{who} brought numbers to a sum that count {offer.share} times")
        return offer

    def _tensors(self, who: Address, offer: SumOffer, parts: list[Tensor]) -> list[Tensor]:
        """The numbers of a member, in place."""
        places = offer.places.places if offer.places else []
        if len(places) != len(parts):
            raise WireError(f"{who} sums {len(places)} tensors where {self.me} sums {len(parts)}")
        return [self._tensor(who, place, part) for place, part in zip(places, parts, strict=True)]

    def _tensor(self, who: Address, place: TensorPlace, part: Tensor) -> Tensor:
        if place.offset + part.nbytes > place.span.size:
            raise WireError(f"{who} sums a vector that is shorter than that of {self.me}")
        if place.offset < 0 or place.offset % part.dtype.itemsize:
            raise WireError(f"{who} sums a vector that is not where it says")
        memory = self.memory.blocks if who == self.me else self.memory.neighbours.of(who)
        return memory.region(place.span).tensor(place.offset, part.dtype, part.numel())
