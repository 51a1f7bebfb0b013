"""A parameter server's work: hold one piece of the parameters, hold reads back, apply what the rule chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from covey.exchange.codec import Codec, dense
from covey.message import Address, Message
from covey.program import Node
from covey.replica import Replica
from covey.synchronization import Arrival, Board, Choice, Rule
from covey.vector import Vector, mean_


class Pull(Message):
    """A worker asks for the parameters of its step."""

    step: int


class Params(Message):
    """A server's shard of the parameters, after `version` updates."""

    step: int
    version: int
    params: Vector


class Push(Message):
    """A worker's gradient for a shard, taken at the parameters of `version`; its float buffers travel along."""

    step: int
    version: int
    samples: int
    grad: Vector
    buffers: Vector

    @property
    def arrival(self) -> Arrival:
        return Arrival(self.sender.rank, self.version, self.samples)


class Leave(Message):
    """A worker will push no more."""

    counted = False


class Correction(Protocol):
    """Changes a gradient for its age; it may keep what each worker was given."""

    def gave(self, rank: int, params: Vector) -> None: ...
    def correct(self, rank: int, grad: Vector, params: Vector) -> Vector: ...


@dataclass(frozen=True, slots=True)
class Keeping:
    """How servers keep the truth: the rule they ask, the codec gradients come in, what corrects their age."""

    rule: Rule
    codec: Codec = dense
    correction: Callable[[], Correction] | None = None
    momentum: float | None = None  # the optimizer's momentum, where the strategy sets it


class Shard:
    """One server, message by message."""

    def __init__(self, node: Node, replica: Replica, keeping: Keeping, index: int) -> None:
        self.node, self.replica, self.keeping = node, replica, keeping
        self.first = index == 0  # notes of updates and staleness come from one server only
        self.board = node.remember(Board(dict.fromkeys(range(node.workers), 0))).value
        self.params = replica.flat.cut(replica.trained)
        self.correction = keeping.correction() if keeping.correction else None
        self.parked: dict[int, Pull] = {}
        self.waiting: list[Push] = []

    async def serve(self) -> None:
        """Until every worker has left."""
        while self.board.clocks:
            message = await self.node.receive_any(Pull, Push, Leave)
            rank = message.sender.rank
            if isinstance(message, Pull):
                self.parked[rank] = message
            elif isinstance(message, Push):
                self.board.came(message.arrival, await self.node.now())
                self.waiting.append(message)
            else:
                self.board.leave(rank)
            while choice := self.keeping.rule.gather.choose([push.arrival for push in self.waiting], self.board):
                await self.update(choice)
            await self.answer()

    async def update(self, choice: Choice) -> None:
        """One step of the optimizer with the chosen gradients; their mean is added in the order of the choice."""
        pushes = [self.waiting[place] for place in choice.used]
        await self.note(choice, pushes)
        grads = [self.fresh(push) for push in pushes]
        grad = grads[0]
        if len(grads) > 1:
            grad = mean_(grad.map(lambda part: part.new_empty(part.shape)), grads, choice.weights)
        self.keep_buffers(pushes)
        self.replica.apply(grad, choice.scale)
        self.board.version += 1
        self.replica.seen += sum(push.samples for push in pushes)
        gone = {*choice.used, *choice.dropped}
        self.waiting = [push for place, push in enumerate(self.waiting) if place not in gone]

    def fresh(self, push: Push) -> Vector:
        """The gradient as numbers, corrected for its age."""
        grad = self.keeping.codec.decode(push.grad, self.params)
        return self.correction.correct(push.sender.rank, grad, self.params) if self.correction else grad

    async def note(self, choice: Choice, pushes: Sequence[Push]) -> None:
        if self.first:
            for push in pushes:
                await self.node.note("staleness", self.board.version - push.version)
            await self.node.note("update")
            if choice.dropped:
                await self.node.note("dropped", len(choice.dropped))

    def keep_buffers(self, pushes: Sequence[Push]) -> None:
        """Move the server's buffers to the mean of those pushed, as far as these workers are of all."""
        if self.first and self.replica.buffers.parts:
            pushed = mean_(self.replica.buffers.clone(), [push.buffers for push in pushes], [1.0] * len(pushes))
            self.replica.buffers.lerp_(pushed, min(1.0, len(pushes) / self.node.workers))

    async def answer(self) -> None:
        """Answer the parked pulls that the rule admits now, in rank order."""
        for rank in sorted(self.parked):
            if not self.keeping.rule.gate.admits(rank, self.board):
                continue
            step = self.parked.pop(rank).step
            await self.node.note("lead", self.board.clocks[rank] - self.board.slowest)
            if self.correction:
                self.correction.gave(rank, self.params)
            answer = Params(step, self.board.version, self.params)
            await self.node.send(Address("worker", rank), answer, loan=self.keeping.rule.lends)


async def server(node: Node, replica: Replica, *, index: int, count: int, keeping: Keeping) -> None:
    """Hold one piece of the parameters until every worker has left."""
    replica.keep(replica.pieces(count)[index], buffers=index == 0)
    if keeping.momentum is not None:
        replica.set_momentum(keeping.momentum)
    await Shard(node, replica, keeping, index).serve()
