"""What do servers and workers have in common where either may own partitions of the parameters?

In every step the owners give out their partitions, and gather the gradients of the team. They step when the controller
says whose gradients all of them have: so all partitions are made of the same gradients, whoever is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from covey.central.sliced.optimizer_parts import load_optimizer, optimizer_state, shards_of, union
from covey.central.tiered.tier_messages import (
    ApplyRound,
    PartitionStates,
    PushesHeld,
    RoundParams,
    RoundPush,
    StandDown,
    StartRound,
)
from covey.central.tiered.tier_stages import TierRule
from covey.membership import Departed, Joined
from covey.message import Address, Message, stamped
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.program import Node
from covey.servers.packed_state import packed, unpacked
from covey.servers.roles import addresses
from covey.servers.server_program import Hears
from covey.vector import Piece, Vector, mean_

States = dict[int, dict[str, Any]]
"""By the numbers of partitions: parameters, what the optimizer knows, and the samples seen."""


class TierRole:
    """A role that may own partitions; `round` is the step under way."""

    def __init__(self, node: Node, replica: Replica, rule: TierRule) -> None:
        self.node, self.replica, self.rule = node, replica, rule
        self.servers = addresses(rule.reliable)
        self.partitions = replica.pieces(rule.partitions)
        self.round = StartRound(-1, -1, (), (), (), -1, 0, 0)
        self.pieces: dict[Address, Piece] = {}  # of each owner
        self.owned: list[int] = []  # partitions of this role
        self.ready = False  # what it owns has come
        self.given = self.told = False  # its partitions to the team; to the controller what it holds
        self.pushes: dict[int, RoundPush] = {}
        self.lost: dict[int, int] = {}  # of each worker the last incarnation that is gone
        self.over = False
        self._early: list[Message] = []  # of steps that the controller has not told this role of
        self._own: deque[Message] = deque()  # what it tells itself
        self.hears: Hears = {
            StartRound: self.start, RoundPush: self.gather, ApplyRound: self.apply, StandDown: self.stand_down,
            PartitionStates: self.receive_states, Departed: self.depart, Joined: self.join,
        }  # fmt: skip

    @property
    def me(self) -> Address:
        return self.node.address

    @property
    def owners(self) -> Sequence[Address]:
        return list(self.pieces)

    async def run(self) -> None:
        """Do what comes, until the run is over."""
        while not self.over:
            message = self._own.popleft() if self._own else await self.node.receive_any(*self.hears)
            await self.hears[type(message)](message)

    async def tell(self, to: Address, message: Message) -> None:
        if to == self.me:
            self._own.append(stamped(message, to, copy=True))
        else:
            await self.node.send(to, message)

    # -- a step ----------------------------------------------------------------------------------------------------

    async def start(self, word: StartRound) -> None:
        """A step begins, and a view with it where others serve now."""
        new, self.round = word.view != self.round.view, word
        self.pushes, self.given, self.told = {}, False, False
        if new:
            numbers = {who: [n for n, owner in enumerate(word.owners) if owner == who] for who in word.owners}
            self.pieces = {who: union(self.partitions, held) for who, held in numbers.items()}
            self.owned = numbers.get(self.me, [])
            await self.begin_view()
        await self.begin_step()
        early, self._early = self._early, []
        for message in early:
            await self.hears[type(message)](message)
        await self.advance()

    async def begin_view(self) -> None:
        """Others serve from now on."""
        raise NotImplementedError

    async def begin_step(self) -> None:
        """The step is known."""

    async def advance(self) -> None:
        """Do what has become possible."""
        if self.owned and self.ready and not self.given:
            self.given = True
            await self._give_out()
        if (
            self.owned
            and self.given
            and not self.told
            and all(map(self._is_here, self.round.team, self.round.incarnations))
        ):
            self.told = True
            held = PushesHeld(self.round.view, self.round.step, tuple(sorted(self.pushes)))
            await self.tell(self.servers[0], held)

    async def _give_out(self) -> None:
        params = self.replica.flat.cut(self.pieces[self.me])
        buffers = self.replica.buffers if 0 in self.owned else NOTHING
        for rank in self.round.team:
            if rank != self.me.rank or self.me.role != "worker":
                word = RoundParams(self.round.view, self.round.step, params, buffers)
                await self.node.send(Address("worker", rank), word)

    def _is_here(self, rank: int, incarnation: int) -> bool:
        """Whether a worker's gradient has come, or will not."""
        return rank in self.pushes or self.lost.get(rank, -1) >= incarnation

    def of_now(self, message: Any) -> bool:
        """Whether a message is of this step; it is looked at again when it is of a later one."""
        theirs, here = (message.view, message.step), (self.round.view, self.round.step)
        if theirs > here:
            self._early.append(message)
        return theirs == here

    async def gather(self, push: RoundPush) -> None:
        if self.of_now(push):
            self.pushes[push.sender.rank] = push
            await self.advance()

    async def apply(self, word: ApplyRound) -> None:
        """One step of the optimizer with the mean gradient over the samples of these workers, added in rank order."""
        if not self.of_now(word):
            return
        pushes = [self.pushes[rank] for rank in word.ranks]
        if pushes and self.owned:
            samples = [push.samples for push in pushes]
            self.replica.progress.begin(sum(samples))
            mean_(self.replica.grad.cut(self.pieces[self.me]), [push.grad for push in pushes], samples)
            if 0 in self.owned and self.replica.buffers.parts:
                buffers = [push.buffers for push in pushes]
                self.replica.buffers.copy_(mean_(self.replica.buffers.clone(), buffers, [1.0] * len(buffers)))
            self.replica.update()
        if word.backup:
            await self.back_up(word.step + 1)

    async def back_up(self, clock: int) -> None:
        """Bring what this role owns to where it is safe."""
        raise NotImplementedError

    # -- who is there ----------------------------------------------------------------------------------------------

    async def depart(self, news: Departed) -> None:
        await self._lose(news.sender, news.incarnation)

    async def join(self, news: Joined) -> None:
        await self._lose(news.sender, news.incarnation - 1)

    async def _lose(self, who: Address, incarnation: int) -> None:
        """A worker's incarnations up to this one are gone, and send nothing more."""
        self.lost[who.rank] = max(incarnation, self.lost.get(who.rank, -1))
        await self.advance()

    async def stand_down(self, word: StandDown) -> None:
        self.over = word.over

    # -- states of partitions --------------------------------------------------------------------------------------

    async def receive_states(self, word: PartitionStates) -> None:
        raise NotImplementedError

    def states(self, numbers: Sequence[int], kept: Sequence[int]) -> Vector:
        """The states of partitions, of which the optimizer of this role keeps those in `kept`."""
        replica, shards = self.replica, shards_of(self.replica, self.partitions, kept)
        found = dict[str, Any]()
        for number in numbers:
            params, known = replica.flat.cut(self.partitions[number]), optimizer_state(replica, shards[number])
            buffers = {} if number else {"buffers": replica.buffers}
            found[str(number)] = {"params": params, "optimizer": known, "seen": replica.progress.seen, **buffers}
        return packed(found)

    def load(self, states: Mapping[int, Mapping[str, Any]], kept: Sequence[int]) -> None:
        """Go on from these states."""
        replica, shards = self.replica, shards_of(self.replica, self.partitions, kept)
        for number, state in states.items():
            replica.flat.cut(self.partitions[number]).copy_(state["params"])
            load_optimizer(replica, shards[number], state["optimizer"])
            if "buffers" in state:
                replica.buffers.copy_(state["buffers"])


def read_states(word: PartitionStates) -> States:
    """The states that somebody sent."""
    return {int(number): state for number, state in unpacked(word.states.clone(), word.sender).items()}
