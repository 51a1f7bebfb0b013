"""What members of a large sum tell each other: where their numbers are, which all read in place.

What was told before is not looked up again: the same text names the same bytes of the same file for as long as no
member is restarted.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import msgspec
from torch import Tensor

from covey.decoding import WireFormat
from covey.engines.gpu.gpu_memory import GpuPlaces
from covey.engines.process.role.native_sums import Group
from covey.engines.transport.shared.blocks import TensorPlace, TensorPlaces
from covey.engines.transport.shared.memory import HostMemory
from covey.engines.transport.shared.segment import SLOT
from covey.errors import WireError
from covey.message import Address
from covey.vector import chunk

KNOWN = 512  # sums, and offers of one's own, that are remembered
T = TypeVar("T")


class SumOffer(msgspec.Struct, array_like=True, frozen=True):
    """Where a member's numbers are, if there was room for them, and how much they count."""

    places: TensorPlaces | None
    share: float
    gpu: GpuPlaces | None = None


class OwnOffer(NamedTuple):
    """What a member tells the others, and what it may take back after the sum."""

    text: bytes
    places: TensorPlaces | None
    parts: object = ()  # which tensors they are


class SlicePlan(NamedTuple):
    """What a member does in a sum in place: it adds its slices of all up, then it takes the slices of the others."""

    mine: list[Tensor]
    shares: list[float]
    sums: list[tuple[list[Tensor], Tensor]]  # the slices of all, and where their sum goes
    takes: list[tuple[int, int, int, Tensor]]  # of which part, from where, to where, and what


_offers: WireFormat[SumOffer] = WireFormat("offer of numbers to sum", SumOffer, most=SLOT)


def encoded(offer: SumOffer) -> bytes:
    return msgspec.msgpack.encode(offer)


class SumOffers:
    """The offers of one role, and what it reads from those of others."""

    def __init__(self, me: Address, memory: HostMemory) -> None:
        self.me, self.memory = me, memory
        self._slots = {who: memory.segment.slot(who) for who in memory.segment.places}
        self._own: dict[object, OwnOffer] = {}  # of what is lent, and so stays where it is

    def own(self, parts: list[Tensor], share: float) -> OwnOffer:
        """Bring one's numbers where all can read them, if there is room and they are not there."""
        key = share, *[(part.data_ptr(), part.dtype, part.numel(), part.is_contiguous()) for part in parts]
        found = self._own.get(key)
        if found is None:
            places = self.memory.blocks.place_tensors(self.me, parts, lent=True)
            found = OwnOffer(encoded(SumOffer(places, share)), places, key)
            if places and not places.block:
                _remember(self._own, key, found)
        return found

    def lay_out(self, text: bytes) -> None:
        """Say where one's numbers are."""
        self._slots[self.me][: 4 + len(text)] = len(text).to_bytes(4, "little") + text

    def text_of(self, who: Address) -> bytes:
        slot = self._slots[who]
        return bytes(slot[4 : 4 + int.from_bytes(slot[:4], "little")])

    def read(self, who: Address, text: bytes) -> SumOffer:
        offer = _offers.read(text, who)
        if not math.isfinite(offer.share):
            raise WireError(f"{who} brought numbers to a sum that count {offer.share} times")
        return offer

    def known(self, key: object) -> SlicePlan | None:
        """The plan of a sum whose members told the same before."""
        found = self.memory.sums.get(key)
        assert found is None or isinstance(found, SlicePlan)
        return found

    def plan(self, key: object, parts: list[Tensor], group: Group, offers: list[SumOffer]) -> SlicePlan:
        """The plan of a sum of which everybody's numbers are where all can read them."""
        theirs = [self.tensors(who, offer, parts) for who, offer in zip(group, offers, strict=True)]
        plan = slice_plan(parts, theirs, [offer.share for offer in offers], group.index(self.me))
        _remember(self.memory.sums, key, plan)
        return plan

    def tensors(self, who: Address, offer: SumOffer, parts: list[Tensor]) -> list[Tensor]:
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


def slice_plan(parts: list[Tensor], theirs: list[list[Tensor]], shares: list[float], me: int) -> SlicePlan:
    """Who adds which slice up, and who takes which from whom."""
    mine, size, sums, takes = theirs[me], len(theirs), [], []
    for part, *tensors in zip(mine, *theirs, strict=True):
        start, stop = chunk(part.numel(), size, me)
        sums.append(([tensor[start:stop] for tensor in tensors], part[start:stop]))
    for place in (*range(me, size), *range(me)):  # not all from the same one first
        for number, (part, there) in enumerate(zip(parts, theirs[place], strict=True)):
            start, stop = chunk(part.numel(), size, place)
            if start < stop and part.data_ptr() != there.data_ptr():  # what one has summed oneself may be in place
                takes.append((number, start, stop, there[start:stop]))
    return SlicePlan(mine, shares, sums, takes)


def _remember(known: dict[object, T], key: object, value: T) -> None:
    if len(known) >= KNOWN:
        known.clear()
    known[key] = value
