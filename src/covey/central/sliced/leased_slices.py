"""Owners of slices that come and go: each round survives any one loss, as every slice's state is with two workers.

All that are there take part in a round, also those without a batch: each owns something. An owner gives out its fresh
slice only when it has the copies that it keeps for another owner. So who has all fresh slices knows that the states
after this round are with two workers each, and who was interrupted before has them, too.
"""

from __future__ import annotations

from collections import defaultdict

from covey.central.sliced.slice_messages import FreshSlice, GradientSlice, SliceCopies, SlicesHeld
from covey.central.sliced.slice_states import SliceStates, owner_and_keeper, read_states
from covey.exchange.codec import Codec
from covey.exchange.collectives.sums import Group
from covey.message import Address
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.program import Node
from covey.servers.clipping import clip_part
from covey.servers.leased_batches import leased_gradient
from covey.servers.leased_rounds import LeasedRounds, one_step
from covey.servers.packed_state import packed
from covey.vector import mean_


async def leased_worker(node: Node, replica: Replica, *, codec: Codec) -> None:
    """Differentiate if there is a batch, hand slices of the gradient to their owners, step, collect fresh slices."""
    rounds = SliceRounds(node, replica, codec)
    going = await rounds.begin_here()
    while going:
        while await rounds.next(one_step) and node.training():
            if lease := rounds.lease():
                await leased_gradient(node, replica, lease, clip=False)
            if await rounds.conclude(rounds.exchange, replica.flat, replica.buffers, replica.grad):
                await rounds.tell()
        going = not await rounds.part_from_all()


class SliceRounds(LeasedRounds):
    """One owner among those that are there."""

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        self.slices = SliceStates(node, replica, codec)
        super().__init__(node, replica, self.slices)

    @property
    def active(self) -> Group:
        """All, if any of them has a batch in this round."""
        return tuple(Address("worker", rank) for rank in self.members) if super().active else ()

    # -- a round -------------------------------------------------------------------------------------------------------

    async def exchange(self, group: Group) -> None:
        """Scatter gradients, step the own slices, keep copies, gather fresh slices."""
        node, slices, step = self.node, self.slices, self.done
        others = [who for who in group if who != node.address]
        self.replica.settle_average()  # of the round before, where there was no batch
        came = await self._scatter(step, group)
        await self._update(step, group, came)
        own = slices.packed()
        slices.note_round(own)
        if slices.keeper and slices.kept_for:
            await node.send(slices.keeper, SliceCopies(step, own))
            copies = await node.receive(SliceCopies, sender=slices.kept_for, step=step)
            slices.fresh |= read_states(copies.states.clone(), slices.kept_for)
        fresh = FreshSlice(step, *slices.slice.give(step))
        for who in others:
            await node.send(who, fresh, loan=slices.slice.lends)
        for place, who in enumerate(group):
            if who != node.address:
                here = self.replica.flat.cut(slices.owned_by[who.rank])
                await slices.landing.receive(FreshSlice, place, here, who, step)

    async def _scatter(self, step: int, group: Group) -> dict[Address, GradientSlice]:
        """Send every owner its slices of the gradient; the gradients of all others for the own slices."""
        node, slices, grad = self.node, self.slices, self.replica.grad
        lease, came = self.lease(), dict[Address, GradientSlice]()
        samples = self.ledger.size(*lease) if lease else 0
        for who in group:
            piece = grad.cut(slices.owned_by[who.rank])
            if who == node.address:
                came[who] = GradientSlice(step, samples, (), piece, self.replica.buffers)
                continue
            wire = slices.coders[who.rank].encode(piece, None)[0] if samples else NOTHING
            buffers = self.replica.buffers if who == group[0] else NOTHING
            await node.send(who, GradientSlice(step, samples, (), wire, buffers), loan=True)
        for who in group:
            if who != node.address:
                came[who] = await node.receive(GradientSlice, sender=who, step=step)
        return came

    async def _update(self, step: int, group: Group, came: dict[Address, GradientSlice]) -> None:
        """Step the own slices with the mean over all samples of the round, which is added in rank order."""
        node, replica, slices = self.node, self.replica, self.slices
        given = {who: came[who] for who in group if came[who].samples}
        decode, me = slices.coders[node.rank].decode, node.address
        grads = [one.grad if who == me else decode(one.grad) for who, one in given.items()]
        replica.progress.begin(self.samples)
        slices.slice.back()
        grad = mean_(replica.grad.cut(slices.piece), grads, [one.samples for one in given.values()])
        await clip_part(node, replica, grad, step, group)
        if me == group[0] and replica.buffers.parts:
            buffers = [one.buffers for one in given.values()]
            replica.buffers.copy_(mean_(replica.buffers.clone(), buffers, [1.0] * len(buffers)))
        replica.update()

    async def tell(self) -> None:
        """After a round."""
        if self.group and self.node.address == self.group[0]:
            await self.node.note("update")
            await self.node.note("staleness", 0)

    def _settle(self, end: int) -> None:
        super()._settle(end)
        self.slices.finish()

    def _forget(self) -> None:
        if self._touched and self.replica.shown.average:
            self.replica.shown.average.due = False  # what it would average is undone
        super()._forget()

    # -- who is there --------------------------------------------------------------------------------------------------

    async def _catch_up(self, standings: dict[int, tuple[int, bool]]) -> None:
        await super()._catch_up(standings)
        await self._share_out()

    async def _share_out(self) -> None:
        """Bring the state of every slice to who owns it and who keeps a copy, among those that are there now."""
        node, slices, members = self.node, self.slices, self.members
        slices.fresh = {}  # of a round that is repeated
        have = {node.rank: tuple(sorted(slices.kept))}
        await node.broadcast(self.peers, SlicesHeld(have[node.rank]))
        for who in self.peers:
            have[who.rank] = (await node.receive(SlicesHeld, sender=who)).slices
        gifts, lost = _gifts(have, members, node.workers)
        for (donor, to), numbers in gifts.items():
            if donor == node.rank:
                states = packed({str(number): slices.kept[number] for number in numbers})
                await node.send(Address("worker", to), SliceCopies(self.done - 1, states))
        for donor, to in gifts:
            if to == node.rank:
                who = Address("worker", donor)
                came = await node.receive(SliceCopies, sender=who, step=self.done - 1)
                slices.kept |= read_states(came.states.clone(), who)
        slices.seat(members)
        gone = [number for number in lost if number in slices.owned]
        if gone and self.done > 0:
            await node.note("lost optimizer states", len(gone))


def _gifts(
    have: dict[int, tuple[int, ...]], members: list[int], seats: int
) -> tuple[dict[tuple[int, int], list[int]], list[int]]:
    """Who gives whom the states of which slices; and the slices of which nobody has the state."""
    gifts, lost = defaultdict[tuple[int, int], list[int]](list), list[int]()
    for number in range(seats):
        holders = [rank for rank in members if number in have[rank]]
        if not holders:
            lost.append(number)
            continue
        for rank in owner_and_keeper(number, members, seats):
            if rank not in holders:
                gifts[holders[0], rank].append(number)
    return gifts, lost
