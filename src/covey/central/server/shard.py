"""The program of a parameter server: it holds a shard, delays reads and applies gradients as its rule says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from covey.central.clipping import clip_part
from covey.central.pulls import Given, Pulls
from covey.central.server.codec_trials import Sample, Samples
from covey.central.server.versions import Versions
from covey.exchange.codec import Codec, dense, seed
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.synchronization import Board, Ending, Epochs, GatherChoice, Rule, WaitingGradient
from covey.vector import Vector, mean_


class Pull(Message):
    """A worker asks for the parameters of its step, a proxy for those of its group's."""

    wire_name = "shard.pull"

    step: int


class Params(Message):
    """A server's shard of the parameters, after `version` updates: all gradients of the first `clock` steps are in."""

    wire_name = "shard.params"

    step: int
    version: int
    params: Vector
    clock: int = 0
    over: int = 0  # epochs that have ended for everybody
    whole: int = 1  # else it is what has changed, encoded


class Push(Message):
    """A worker's gradient for a shard, taken at the parameters of `version`; its float buffers travel along."""

    wire_name = "shard.push"

    step: int
    version: int
    samples: int
    grad: Vector
    buffers: Vector
    gradients: int = 1  # of which it is the mean, where it comes from a proxy

    @property
    def arrival(self) -> WaitingGradient:
        return WaitingGradient(self.sender.rank, self.version, self.samples, self.gradients)


class Arrivals(Sequence[WaitingGradient]):
    """The gradients that wait, as a rule sees them; looked at one by one, as most rules look at few."""

    def __init__(self, waiting: list[Push]) -> None:
        self.waiting = waiting

    def __len__(self) -> int:
        return len(self.waiting)

    def __getitem__(self, place: Any) -> Any:
        return self.waiting[place].arrival

    def __iter__(self) -> Iterator[WaitingGradient]:
        return (push.arrival for push in self.waiting)


class LeaveShard(Message):
    """A worker will push no more."""

    wire_name = "shard.leave"
    counted = False


class Correction(Protocol):
    """Changes a gradient for its age; it may keep what each worker was given."""

    def gave(self, rank: int, params: Vector) -> None: ...
    def correct(self, rank: int, grad: Vector, params: Vector) -> Vector: ...


@dataclass(frozen=True, slots=True)
class ShardPolicy:
    """How servers keep the truth: the rule they ask, the codec gradients come in, what corrects their age."""

    rule: Rule
    codec: Codec = dense
    correction: Callable[[Node, Vector], Correction] | None = None  # for a server and its parameters
    momentum: float | None = None  # the optimizer's momentum, where the strategy sets it
    ending: Ending | None = None  # when an epoch ends for everybody
    lagging_first: bool = False  # answers to those behind overtake others'


class Shard:
    """One server, message by message. Its clients are workers, or proxies, known by their ranks."""

    hears: ClassVar[tuple[type[Message], ...]] = (Pull, Push, LeaveShard, Sample)

    def __init__(
        self, node: Node, replica: Replica, keeping: ShardPolicy, clients: Iterable[int], shards: Sequence[Address] = ()
    ) -> None:
        self.node, self.replica, self.keeping, self.shards = node, replica, keeping, shards
        self.first = node.address in shards[:1]  # notes of updates and staleness come from one server only
        self.board = node.remember("board", Board(dict.fromkeys(clients, 0))).value
        waiting: list[Push] = []
        self.waiting = node.remember("waiting", waiting).value
        epochs = Epochs.of(epoch_of(replica, node.workers)) if keeping.ending else None
        self.epochs = node.remember("epochs", epochs).value if epochs else None
        self.params = replica.flat.cut(replica.trained)
        self.correction = keeping.correction(node, self.params) if keeping.correction else None
        self.versions = Versions() if keeping.rule.gate.holds_by == "change" else None
        form = replica.form(replica.trained)
        self.coder = keeping.codec.made(form, seed(node))
        self.pulls = Pulls(node, form, keeping.codec, keeping.rule.lends) if keeping.codec.pull else None
        self.samples = Samples(node, self.coder, together=keeping.rule.gather.everyone)
        self.parked: dict[int, Pull] = {}

    async def serve(self) -> None:
        """Until every client has left."""
        while self.board.clocks:
            message = await self.node.receive_any(*self.hears)
            await self.hear(message)
            while choice := self.keeping.rule.gather.choose(Arrivals(self.waiting), self.board):
                await self.update(choice)
            self.own(message)
            self.end_epochs()
            await self.answer()
            await self.samples.answer(len(self.board.clocks))

    async def hear(self, message: Message) -> None:
        if isinstance(message, Sample):
            return self.samples.hear(message)
        rank = message.sender.rank
        if self.versions:
            self.versions.back(rank)
        if isinstance(message, Pull):
            self.board.stands(rank, message.step)
            self.parked[rank] = message
        elif isinstance(message, Push):
            self.board.came(message.arrival, await self.node.now())
            self.waiting.append(message)
            if self.epochs:
                self.epochs.came(rank, message.step, message.samples)
        else:
            self.board.leave(rank)

    def own(self, message: Message) -> None:
        """Copy a gradient that waits on although its worker may be answered: until then it is only lent."""
        if self.waiting and (push := self.waiting[-1]) is message and not self.keeping.rule.lends:
            push.grad, push.buffers = push.grad.clone(), push.buffers.clone()

    def end_epochs(self) -> None:
        """End the epochs of which enough is done; for a schedule of the rate, what is skipped of them was seen."""
        if self.epochs and self.keeping.ending and self.epochs.end(self.keeping.ending):
            self.replica.progress.reach(self.epochs.over * self.epochs.samples)

    async def update(self, choice: GatherChoice) -> None:
        """One step of the optimizer with the chosen gradients; their mean is added in the order of the choice."""
        pushes = [self.waiting[place] for place in choice.used]
        self.replica.updates.follow(self.node, [(push.sender, push.step) for push in pushes])
        await self.note(choice, pushes)
        grads = [self.fresh(push) for push in pushes]
        grad = grads[0]
        if self.keeping.rule.gather.averages:  # else the worker has clipped what it pushed
            grad = mean_(grad.map(lambda part: part.new_empty(part.shape)), grads, choice.weights)
            await clip_part(self.node, self.replica, grad, self.board.version, self.shards)
        self.keep_buffers(pushes)
        self.replica.apply(grad, choice.scale)
        self.board.version += 1
        self.replica.progress.add(sum(push.samples for push in pushes))
        self.forget(choice)

    def forget(self, choice: GatherChoice) -> None:
        gone = {*choice.used, *choice.dropped}
        self.waiting[:] = [push for place, push in enumerate(self.waiting) if place not in gone]

    def fresh(self, push: Push) -> Vector:
        """The gradient as numbers, corrected for its age."""
        grad = self.coder.decode(push.grad)
        return self.correction.correct(push.sender.rank, grad, self.params) if self.correction else grad

    async def note(self, choice: GatherChoice, pushes: Sequence[Push]) -> None:
        if self.first:
            for push in pushes:
                await self.node.note("staleness", self.board.version - push.version)
            await self.node.note("update")
            if choice.dropped:
                await self.node.note("dropped", len(choice.dropped))

    def keep_buffers(self, pushes: Sequence[Push]) -> None:
        """Move the server's buffers to the mean of those pushed, as far as these workers are of all."""
        if self.first and self.replica.buffers.parts:
            counts = [push.gradients for push in pushes]
            pushed = mean_(self.replica.buffers.clone(), [push.buffers for push in pushes], counts)
            self.replica.buffers.lerp_(pushed, min(1.0, sum(counts) / self.node.workers))

    def admits(self, rank: int) -> bool:
        return self.keeping.rule.gate.admits(rank, self.board)

    async def answer(self) -> None:
        """Answer the parked pulls that are admitted now, in rank order or those of lagging workers first."""
        if self.versions:
            self.board.moved = self.versions.moved(self.params)
        order = sorted(self.parked)
        if self.keeping.lagging_first:
            order.sort(key=self.priority, reverse=True)
        for rank in order:
            if not self.admits(rank):
                continue
            pull = self.parked.pop(rank)
            await self.node.note("lead", self.board.clocks[rank] - self.board.slowest)
            answer = self.current(pull.step)
            given = self.pulls.give(rank, self.params, answer.version) if self.pulls else Given(self.params, 1)
            answer.params, answer.whole = given
            if self.correction:
                self.correction.gave(rank, self.pulls.of(rank) if self.pulls else self.params)
            if self.versions:
                self.versions.gave(rank, self.board.version, self.params)
            lent = self.keeping.rule.lends or not given.whole
            await self.node.send(pull.sender, answer, loan=lent, priority=self.priority(rank))

    def priority(self, rank: int) -> int:
        """Of an answer, among those that wait for this server's link (Mai et al. 2015: MLNet)."""
        return self.board.urgency(rank, self.node.workers) if self.keeping.lagging_first else 0

    def current(self, step: int) -> Params:
        """The answer to a pull: the parameters as they are."""
        over = self.epochs.over if self.epochs else 0
        return Params(step, self.board.version, self.params, self.board.slowest, over)


def epoch_of(replica: Replica, workers: int) -> list[list[int]]:
    """The samples of each batch of every worker's epoch."""
    batch_source = replica.batch_source
    return [[batch_source.samples(rank, step) for step in range(batch_source.steps(rank))] for rank in range(workers)]


async def server(node: Node, replica: Replica, *, index: int, count: int, clients: int, keeping: ShardPolicy) -> None:
    """Hold one piece of the parameters until every client has left."""
    replica.keep(replica.pieces(count)[index], buffers=index == 0)
    if keeping.momentum is not None:
        replica.updates.set_momentum(keeping.momentum)
    shards = [Address("server", shard) for shard in range(count)]
    await Shard(node, replica, keeping, range(clients), shards).serve()
