"""Sums over roles of one host in shared memory: each role sums one slice of all vectors, in place.

Small vectors are laid out, and everybody sums them all. Numbers are always added in the order of the group, so all
members have the same bits. Nobody waits in here: a role that must wait goes on listening until its bell rings. Those of
roles on one GPU are summed there, in place (`gpu_memory.py`); those of several GPUs are brought into shared memory and
back.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from covey.engines.gpu.cuda_driver import CudaRefused
from covey.engines.gpu.gpu_memory import OnGpu, one_card
from covey.engines.process.role.add_up import add_up
from covey.engines.process.role.native_sums import Group, PendingSum, SumDone
from covey.engines.process.role.sums.offers import OwnOffer, SlicePlan, SumOffer, SumOffers, encoded, slice_plan
from covey.engines.process.role.sums.slots import SlotLayout, Slots
from covey.engines.transport.shared.memory import HostMemory
from covey.engines.transport.shared.semaphore import GIVING_FENCES
from covey.engines.transport.staging import arrival
from covey.errors import WireError
from covey.message import Address
from covey.program import Collective

GROUPS = 256  # whose other members are remembered
SPIN = 3e-4  # seconds that a role looks again and again for the others, which is faster than to be woken

Steps = Generator[Group, None, bool]
"""A sum on its way: it gives those for whose sign it waits, and ends with whether it came about."""


class SharedSum:
    """The sums of one role, one after the other."""

    def __init__(self, me: Address, memory: HostMemory) -> None:
        self.me, self.memory = me, memory
        segment = memory.segment
        self.wakeups = ()  # its bell is that of the links, which hear it anyway
        self.wanted: deque[PendingSum] = deque()
        self.gives = {who: segment.sign(me, who).give for who in segment.places}
        self.takes = {who: segment.sign(who, me).take for who in segment.places}
        self.bells = {who: segment.wakeup(who) for who in segment.places}
        self.resting = {who: segment.resting(who) for who in segment.places}
        self.resting[me][0] = 0
        self.fence = segment.sign(me, me).fence
        self.others: dict[Group, Group] = {}  # none: the group cannot sum here
        self.under_way: Steps | None = None
        self.missing: Group = ()
        self.readers: Group = ()  # of what was laid out last; each will say when it has read it
        self.half = 0  # of the slot, in which that lies
        self.slots, self.offers = Slots(me, segment), SumOffers(me, memory)

    def take(self, program: Any, effect: Collective) -> bool:
        """Whether the sum is under way; `advance` at once, and again when the bell rings."""
        if not self._others(effect.group):
            return False
        for part in effect.vector.parts:
            if not (part.is_cpu or part.is_cuda):
                return False
        self.wanted.append(PendingSum(program, effect))
        return True

    def advance(self) -> list[SumDone]:
        """Go as far as can be without waiting; the sums that are done."""
        finished: list[SumDone] = []
        if self.wanted:
            self.resting[self.me][0] = 0
        while self.wanted:
            try:
                came = self._go_on(self.wanted[0].effect)
            except WireError as error:
                return [*finished, SumDone(self.wanted.popleft(), False, error)]
            if came is not None:
                finished.append(SumDone(self.wanted.popleft(), came, None))
            elif self._rests():
                break
        return finished

    def _others(self, group: Group) -> Group:
        """The other members of a group, if all of them share memory."""
        others = self.others.get(group)
        if others is None:
            if len(self.others) >= GROUPS:
                self.others.clear()
            here = len(group) > 1 and all(who in self.gives for who in group)
            others = self.others[group] = tuple(who for who in group if who != self.me) if here else ()
        return others

    def _go_on(self, effect: Collective) -> bool | None:
        """Continue a sum: whether it was made, or None while it waits for a member."""
        if self.under_way is None:
            group, others = effect.group, self._others(effect.group)
            parts = [part if part.dim() == 1 else part.view(-1) for part in effect.vector.parts if part.numel()]
            if layout := self.slots.next(group, parts):
                self.under_way = self._laid_out(parts, group, others, effect.share, layout)
            else:
                self.under_way = self._sliced(parts, group, others, effect.share)
        try:
            while not self.missing or self._all_there():
                self.missing = next(self.under_way)
        except StopIteration as end:
            self.under_way = None
            return bool(end.value)
        return None

    def _all_there(self) -> bool:
        """Whether no member's sign is missing; looks for a moment."""
        until = 0.0
        while self._still_missing():
            now = time.monotonic()
            if not until:
                until = now + SPIN
            elif now > until:
                return False
            os.sched_yield()  # even where there is a core for each: two may have been put on one
        return True

    def _still_missing(self) -> Group:
        takes = self.takes
        self.missing = tuple([who for who in self.missing if not takes[who]()])
        return self.missing

    def _rests(self) -> bool:
        """Have the bell rung from now on, and look once more: whether there is nothing but to wait for it."""
        self.resting[self.me][0] = 1
        self.fence()
        if self._still_missing():
            return True
        self.resting[self.me][0] = 0
        return False

    def _tell(self, others: Group) -> Group:
        """Give these a sign that one is so far, and ring for those who wait for it."""
        for who in others:
            self.gives[who]()
        if not GIVING_FENCES:
            self.fence()
        for who in others:
            if self.resting[who][0]:
                os.eventfd_write(self.bells[who], 1)
        return others

    def reset(self) -> None:
        """Forget a sum that a loss broke off, when no member is in it any more, and no sign will come of it."""
        self.wanted.clear()
        if self.under_way is not None:
            self.under_way.close()
        self.under_way, self.missing, self.readers = None, (), ()
        self.slots.turns.clear()
        for take in self.takes.values():
            while take():
                pass

    # -- the two ways ------------------------------------------------------------------------------------------------

    def _laid_out(self, parts: list[Tensor], group: Group, others: Group, share: float, layout: SlotLayout) -> Steps:
        """Every member lays its numbers out, and sums what all have laid out.

        A group alternates between the halves of the slots, so no member waits until all have read its last numbers.
        """
        if layout.half == self.half and self.readers:
            yield self.readers
            self.readers = ()
        before, self.readers, self.half = self.readers, others, layout.half
        layout.own_share[0] = share
        for mine, part in zip(layout.own, parts, strict=True):
            mine.copy_(part)
        self._tell(others)
        yield before + others
        shares = [theirs[0] for theirs in layout.shares]
        for part, tensors in zip(parts, layout.parts, strict=True):
            if part.is_cpu:
                add_up(tensors, shares, part, group)
            else:
                add_up(tensors, shares, total := torch.empty_like(part, device="cpu"), group)
                part.copy_(total)
        self._tell(others)
        return True

    def _sliced(self, parts: list[Tensor], group: Group, others: Group, share: float) -> Steps:
        """Every member sums its slice of all, then takes the others' slices. If one has no room, none does."""
        yield self.readers
        blocks = self.memory.blocks
        on_gpu = self.memory.gpu.place(parts, group)
        own = OwnOffer(encoded(SumOffer(None, share, on_gpu.told)), None) if on_gpu else self.offers.own(parts, share)
        try:
            texts = yield from self._exchanged(parts, group, others, own)
            if plan := self.offers.known((group, own.parts, *texts)):
                return (yield from self._in_place(parts, group, others, plan))
            offers = self._read(group, texts)
            if on_gpu and one_card([offer.gpu for offer in offers]):
                theirs = yield from self._opened(parts, group, others, on_gpu, offers)
                if theirs is not None:
                    plan = slice_plan(parts, theirs, [offer.share for offer in offers], group.index(self.me))
                    return (yield from self._in_place(parts, group, others, plan))
            if any(offer.gpu for offer in offers):  # not all can read it there, so nobody does
                yield self._tell(others)
                own = self.offers.own(parts, share) if on_gpu else own
                texts = yield from self._exchanged(parts, group, others, own)
                offers = self._read(group, texts)
            if any(offer.places is None for offer in offers):
                yield self._tell(others)
                return False
            plan = self.offers.plan((group, own.parts, *texts), parts, group, offers)
            return (yield from self._in_place(parts, group, others, plan))
        finally:
            blocks.take_back(own.places)

    def _exchanged(
        self, parts: list[Tensor], group: Group, others: Group, own: OwnOffer
    ) -> Generator[Group, None, list[bytes]]:
        """Say where one's numbers are, when they have come there, and hear where those of all are."""
        arrival(parts, 0)
        self.readers = ()  # all have read what is laid out when the sum is done
        self.offers.lay_out(own.text)
        yield self._tell(others)
        return [self.offers.text_of(who) for who in group]

    def _read(self, group: Group, texts: list[bytes]) -> list[SumOffer]:
        return [self.offers.read(who, text) for who, text in zip(group, texts, strict=True)]

    def _opened(
        self, parts: list[Tensor], group: Group, others: Group, own: OnGpu, offers: list[SumOffer]
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
        yield self._tell(others)
        found = OwnOffer(encoded(SumOffer(None, 0, own.told if theirs is not None else None)), None)
        texts = yield from self._exchanged(parts, group, others, found)
        if all(offer.gpu for offer in self._read(group, texts)):
            return theirs
        self.memory.gpu.apart.add(group)
        return None

    def _in_place(self, parts: list[Tensor], group: Group, others: Group, plan: SlicePlan) -> Steps:
        """The same, with everybody's numbers where all can read them."""
        for slices, total in plan.sums:
            add_up(slices, plan.shares, total, group)
        arrival(plan.mine, 0)
        yield self._tell(others)
        for number, start, stop, there in plan.takes:
            parts[number][start:stop].copy_(there)
        arrival(plan.mine, 0)
        yield self._tell(others)  # no member changes its numbers before all have taken them
        return True
