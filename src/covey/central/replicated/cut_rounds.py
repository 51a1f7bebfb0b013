"""All-reduce among the replicas of a cut model, in which a lost worker is restarted with its part of the model.

Those who have the same part sum its gradient, and nobody steps before all sums of a step are complete. So after a loss
either somebody has done a step, and all who are there have their mean gradient of it, and do it too; or nobody has, and
all do it again, from its batches on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from torch import Tensor

from covey.errors import PeerLost
from covey.exchange.averaging import mean_gradient
from covey.exchange.collectives.sums import Pattern
from covey.membership import ViewChanged, all_lost, model_lost
from covey.message import Address, Message
from covey.parallelism.axis import Within, through
from covey.parallelism.cut_replica import CutReplica
from covey.program import Node
from covey.servers.common_states import WholeReplica
from covey.servers.packed_state import packed, unpacked
from covey.servers.round_messages import PeerReady, PeerState
from covey.servers.together import Together
from covey.vector import Vector


class SumComplete(Message):
    """The sender has its mean gradient of this step; from the first worker: all have theirs."""

    wire_name = "cut.sum_complete"

    step: int

    counted = kept = False


class CutRounds(Together):
    """One worker among all of a mesh; those at its own place have the same part of the model."""

    def __init__(self, node: Node, within: Within, replica: CutReplica) -> None:
        assert within.outer is not None, "a program along an axis is one of a run"
        super().__init__(within.outer, WholeReplica(replica))
        self.inner, self.axis, self.replica = node, within.axis, replica
        self.summed = -1  # the step whose mean gradient is complete here
        self._before: tuple[Vector, Mapping[str, Tensor]] | None = None  # what a step that is broken off has changed
        self._finish: Callable[[], None] = lambda: None

    @property
    def dealt(self) -> bool:
        """What its standing tells besides: whether its mean gradient of the next step is complete."""
        return self.done >= 0 and self.summed == self.done

    async def enter_part(self) -> bool:
        """Begin; or, in the place of a lost worker, with its part of another replica. False: all have ended."""
        if not self.node.incarnation.enters:
            return True
        if not self.peers:
            self.replica.weigh(0.0)  # nothing of it is scored
            return False
        await self.meet()
        while self.node.step < self.done - 1:
            self.node.training()
        speaks = all(place.last for place in self.axis.places if place.alike)
        samples = self.replica.batch_source.samples
        done = sum(samples(self.inner.rank, past) for past in range(self.done)) if speaks else 0
        await self.node.note("resumed", done)
        return True

    async def do(self, step: int, act: Callable[[], Awaitable[object]], finish: Callable[[], None]) -> None:
        """Do a step: `act` finds the mean gradient, and `finish` steps on it."""
        self.group, self._finish = self.node.members(step), finish
        while True:
            layout, self.summed = self.replica.layout, -1
            self._before = layout.buffers.clone(), {name: one.clone() for name, one in layout.others().items()}
            try:
                await act()
                self.summed = step
                await through(self._complete(step))
            except ViewChanged:
                if await through(self.meet()):
                    return
                continue
            self._before, self.open = None, True
            self._done.value = step + 1
            self.state.settle()
            return finish()

    async def _complete(self, step: int) -> None:
        """Wait until all have their mean gradients."""
        first, *others = self.group
        if self.node.address != first:
            await self.node.send(first, SumComplete(step))
            await self.node.receive(SumComplete, sender=first, step=step)
            return
        for who in others:
            await self.node.receive(SumComplete, sender=who, step=step)
        await self.node.broadcast(others, SumComplete(step))

    async def _catch_up(self, standings: dict[int, tuple[int, bool]]) -> None:
        """Bring all to the furthest: with their own mean gradients, or with the part of another replica."""
        node, furthest = self.node, max(done for done, _ in standings.values())
        if furthest < 0:
            raise all_lost(node.address)
        able = [rank for rank, (done, summed) in standings.items() if done + summed >= furthest]
        if self.done == furthest:
            self._undo()
        elif node.rank in able:
            self._finish()
            self.state.settle()
            self._done.value, self._before = furthest, None
        late = sorted(standings.keys() - set(able))
        donors = {rank: min((one for one in able if self._alike(one, rank)), default=-1) for rank in late}
        if lost := [rank for rank, donor in donors.items() if donor < 0]:
            raise PeerLost(f"worker {lost[0]} was lost, and no other worker had its part of the model")
        if node.rank in donors:
            donor = Address("worker", donors[node.rank])
            state = unpacked((await node.receive(PeerState, sender=donor)).state, donor)
            self.state.take(state, restarted=self.done < 0)
            self._done.value = furthest
            await node.broadcast(self.peers, PeerReady())
        elif mine := [Address("worker", rank) for rank, donor in donors.items() if donor == node.rank]:
            await node.broadcast(mine, PeerState(packed(self.state.give(), copied=False)))
        for rank in late:
            if rank != node.rank:
                await node.receive(PeerReady, sender=Address("worker", rank))
        self._before, self.open = None, False
        self.replica.enter(self.inner)  # what was under way between its parts is dropped

    def _undo(self) -> None:
        self.summed = -1
        if self._before:
            buffers, others = self._before
            self.replica.layout.buffers.copy_(buffers)
            self.replica.layout.set_others(others)

    def _alike(self, one: int, other: int) -> bool:
        """Whether two workers have the same part of the model."""
        return one % self.axis.members == other % self.axis.members


async def cut_worker(node: Node, replica: CutReplica, within: Within, summing: Pattern, tell: Any) -> None:
    """Differentiate with the others of the replica, sum among those with the same part, step when all have."""
    rounds = CutRounds(node, within, replica)
    if not await through(rounds.enter_part()):
        if node.rank == 0:
            raise model_lost(rounds.node.address)
        return
    told = -1
    for step in node.steps():
        present, group = node.present(step), node.members(step)

        async def act(step: int = step, present: Any = present, group: Any = group) -> None:
            nonlocal told
            batch = await replica.computed(node)
            if told < step:
                await replica.report(node, batch)
            told, replica.compute.batch = step, batch
            replica.progress.begin(replica.batch_source.together(present, step))
            await mean_gradient(node, replica, replica.grad, group, summing)

        await rounds.do(step, act, replica.update)
        if node.rank == present[0]:
            await tell(node)
        await through(rounds.part(step))
    await through(rounds.leave())
