"""A server of slices: each is updated, and given back, as soon as every worker's gradient for it is there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from covey.central.clipping import clip_part
from covey.central.pulls import Pulls
from covey.central.pushing import Turn, Wish
from covey.central.roles import addresses
from covey.central.slices import Confirmed, Finished, Gradient, Manner, Statistics, Updated, form, piece, slices, view
from covey.exchange.codec import Codec, seed
from covey.message import Address
from covey.optimizers import ELEMENTWISE
from covey.program import Node
from covey.replica import Replica
from covey.vector import mean_


class Keeper:
    """One server: slices of the parameters, each updated as soon as every worker's gradient for it is there."""

    def __init__(
        self, node: Node, replica: Replica, index: int, count: int, manner: Manner, codec: Codec
    ) -> None:  # fmt: skip
        self.node, self.replica, self.manner = node, replica, manner
        self.peers, self.first = addresses(count), index == 0
        self.slices = slices(replica, manner, count)
        mine = [place for place, where in enumerate(self.slices) if where.server == index]
        # by the norm of all of it, or by an optimizer that counts its steps itself, a step is taken as a whole; and so
        # it is where workers wait for their turns, which would stand in line behind the updates
        timed = any(part.is_meta for part in replica.flat.parts)
        alone = timed or type(replica.optimizer) in ELEMENTWISE
        self.apart = alone and replica.clip_norm is None and not manner.flows
        owned = [self.slices[place] for place in mine]
        replica.keep(piece(len(replica.flat.parts), owned, self.apart and not timed), buffers=index == 0)
        self.shards = {p.data_ptr(): (g, p) for g in replica.optimizer.param_groups for p in g["params"] if p.numel()}
        forms = {place: form(replica, self.slices[place]) for place in mine}
        self.coders = {place: codec.made(forms[place], seed(node, place)) for place in mine}
        self.pulls = {place: Pulls(node, forms[place], codec, together=True) for place in mine if codec.pull}
        self.came: dict[int, dict[int, Gradient]] = {place: {} for place in mine}
        self.whole: list[Gradient] = []  # one for each slice of this step that every worker has pushed
        self.statistics: dict[int, Statistics] = {}
        self.pushing: set[int] = set()
        self.wishes: deque[Address] = deque()
        self.left: set[int] = set()  # not remembered: after a restart all say it anew

    async def serve(self) -> None:
        while len(self.left) < self.node.workers:
            message = await self.node.receive_any(Gradient, Statistics, Wish, Finished)
            rank = message.sender.rank
            if isinstance(message, Gradient):
                await self.take(message)
            elif isinstance(message, Statistics):
                self.keep_buffers(message)
            elif isinstance(message, Wish):
                self.wishes.append(message.sender)
            else:
                self.pushing.discard(rank)
                self.left.add(rank)
            while self.wishes and len(self.pushing - {self.wishes[0].rank}) < self.manner.flows:
                self.pushing.add(self.wishes[0].rank)
                await self.node.send(self.wishes.popleft(), Turn(), priority=1)

    async def take(self, gradient: Gradient) -> None:
        self.pushing.discard(gradient.sender.rank)
        if self.manner.credit:
            await self.node.send(gradient.sender, Confirmed(gradient.grad.nbytes), priority=1)
        came, present = self.came[gradient.place], self.node.present(gradient.step)
        came[gradient.sender.rank] = gradient
        if len(came) < len(present):
            return
        samples = [self.replica.lessons.samples(rank, gradient.step) for rank in present]
        grads = [self.coders[gradient.place].decode(came[rank].grad) for rank in present]
        mean_(view(self.replica.grad, self.slices[gradient.place]), grads, samples)
        came.clear()
        self.whole.append(gradient)
        if self.apart:
            self.update(gradient.place)
            await self.give([gradient], present)
        if len(self.whole) == len(self.came):
            await self.end_step(gradient.step, present, sum(samples))

    async def end_step(self, step: int, present: Sequence[int], samples: int) -> None:
        """All slices of a step are there; here they are also stepped on, where none could be alone."""
        in_order = self.manner.order != "fifo"
        whole = sorted(self.whole, key=lambda gradient: gradient.urgency if in_order else 0)
        self.whole.clear()
        if self.first:
            await self.node.note("update")
            await self.node.note("staleness", 0)
        if not self.apart:
            await clip_part(self.node, self.replica, self.replica.grad.cut(self.replica.trained), step, self.peers)
            self.replica.update()
            self.replica.seen += samples
            await self.give(whole, present)
        else:
            self.replica.seen += samples

    def update(self, place: int) -> None:
        """Step the optimizer on one slice only; each slice has its own state."""
        optimizer = self.replica.optimizer
        found = self.shards.get(view(self.replica.flat, self.slices[place]).parts[0].data_ptr())
        if found is None:  # no numbers
            return
        groups, (group, shard) = optimizer.param_groups, found
        params = group["params"]
        optimizer.param_groups, group["params"] = [group], [shard]
        try:
            self.replica.update()
        finally:
            optimizer.param_groups, group["params"] = groups, params

    async def give(self, gradients: Sequence[Gradient], present: Sequence[int]) -> None:
        """Send the new numbers to all who took part; lent where nobody can change them before all have them."""
        for gradient in gradients:
            fresh = Updated(gradient.step, gradient.place, view(self.replica.flat, self.slices[gradient.place]))
            if pulls := self.pulls.get(gradient.place):
                fresh.params, fresh.whole = pulls.give(0, fresh.params, gradient.step)
            lent = self.node.present(gradient.step + 1) == present
            priority = 0 if self.manner.order == "fifo" else -gradient.urgency
            for rank in present:
                await self.node.send(Address("worker", rank), fresh, loan=lent, priority=priority)

    def keep_buffers(self, message: Statistics) -> None:
        """Keep the mean of all workers' float buffers, as far as they are of all."""
        present = self.node.present(message.step)
        self.statistics[message.sender.rank] = message
        if len(self.statistics) == len(present):
            pushed = [self.statistics.pop(rank).buffers for rank in present]
            mean = mean_(self.replica.buffers.clone(), pushed, [1.0] * len(pushed))
            self.replica.buffers.lerp_(mean, len(pushed) / self.node.workers)


async def server(node: Node, replica: Replica, *, index: int, count: int, manner: Manner, codec: Codec) -> None:
    """Hold some slices until every worker has finished."""
    await Keeper(node, replica, index, count, manner, codec).serve()
