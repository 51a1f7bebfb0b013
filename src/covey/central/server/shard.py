"""The program of a parameter server: it holds a shard, delays reads and applies gradients as its rule says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from covey.central.server.codec_trials import Sample, Samples
from covey.central.server.versions import Versions
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.exchange.gradient_noise import due, measure_noise
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.observe.tally import GradientAge
from covey.program import Node
from covey.servers.pieces import PieceServer, epoch_of
from covey.servers.roles import addresses
from covey.servers.standing import LEFT
from covey.synchronization import Board, Ending, Epochs, Everyone, GatherChoice, Rule, WaitingGradient
from covey.synchronization.arrivals import Arrivals, Lacking
from covey.vector import Vector


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


class Shard(PieceServer):
    """One server of the family. Its clients are workers, or proxies, known by their ranks."""

    only_rule: ClassVar[bool] = True  # whether the rule alone decides who waits: `candidates` may then skip some

    def __init__(
        self, node: Node, replica: Replica, *, keeping: ShardPolicy, clients: Collection[int], count: int = 0
    ) -> None:
        together = keeping.rule.lends
        servers = self.seated(node, count)
        super().__init__(node, replica, servers, keeping.codec, together=together, clients=len(clients))
        if count and keeping.momentum is not None:
            replica.updates.set_momentum(keeping.momentum)
        self.keeping = keeping
        self.board = node.remember("board", Board(dict.fromkeys(clients, 0))).value
        self.waiting: list[Push] = node.remember("waiting", []).value
        self.newest: Push | None = None
        epochs = Epochs.of(epoch_of(replica, node.workers)) if keeping.ending else None
        self.epochs = node.remember("epochs", epochs).value if epochs else None
        self.correction = keeping.correction(node, self.params) if keeping.correction else None
        self.versions = Versions() if keeping.rule.gate.holds_by == "change" else None
        self.samples = Samples(node, self.coder, together=keeping.rule.gather.everyone)
        self.parked: dict[int, Pull] = {}
        plain = self.only_rule and not node.incarnation.elastic
        self.skips = plain and keeping.rule.gate.awaits_slowest  # those whom the gate would refuse again
        of_all = plain and isinstance(keeping.rule.gather, Everyone)
        self.lacking = Lacking(self.waiting, self.board) if of_all else None
        self.unasked: set[int] = set()  # of those parked, whom it has not refused
        self.refused_at: int | None = None  # the slowest clock when it refused the others
        self.before: Vector | None = None  # the version before this one, for a worker that does its step again
        self.hears = {Pull: self.park, Push: self.take, Sample: self.samples.hear}

    def seated(self, node: Node, count: int) -> list[Address]:
        """The servers, this one among them."""
        return addresses(count)

    async def park(self, pull: Pull) -> None:
        self.back(pull.sender.rank)
        self.board.stands(pull.sender.rank, pull.step)
        self.parked[pull.sender.rank] = pull
        self.unasked.add(pull.sender.rank)

    async def take(self, push: Push) -> None:
        rank = push.sender.rank
        if self.repeats(push):
            return
        self.back(rank)
        if self.node.incarnation.elastic:
            self.board.stands(rank, push.step)  # steps may have been skipped since its pull
        self.board.came(push.arrival, await self.node.now())
        self.waiting.append(push)
        self.newest = push
        if self.epochs:
            self.epochs.came(rank, push.step, push.samples)

    async def left(self, who: Address) -> None:
        self.back(who.rank)
        self.board.leave(who.rank)

    def repeats(self, message: Pull | Push) -> bool:
        """Whether a worker that was restarted does a step of which an earlier incarnation's gradient has come here."""
        return self.node.incarnation.elastic and message.step < self.board.clocks[message.sender.rank]

    def next_step(self, rank: int) -> int:
        return self.board.clocks.get(rank, LEFT)  # one that had left before a restart

    def forget_requests(self, rank: int) -> None:
        self.parked.pop(rank, None)
        self.back(rank)

    def back(self, rank: int) -> None:
        """A client is through with what it was given last."""
        if self.versions:
            self.versions.back(rank)

    async def settle(self) -> None:
        while choice := self.choose():
            await self.update(choice)
        self.own()
        self.end_epochs()
        await self.answer()
        await self.samples.answer(len(self.board.clocks))

    def choose(self) -> GatherChoice | None:
        """The next update to make; None when more must come."""
        if self.lacking and self.lacking.somebody():
            return None
        return self.keeping.rule.gather.choose(Arrivals(self.waiting), self.board)

    def own(self) -> None:
        """Copy a gradient that waits on although its worker may be answered: until then it is only lent."""
        push, self.newest = self.newest, None
        if push and self.waiting and self.waiting[-1] is push and not self.keeping.rule.lends:
            push.grad, push.buffers = push.grad.clone(), push.buffers.clone()

    def end_epochs(self) -> None:
        """End the epochs of which enough is done; for a schedule of the rate, what is skipped of them was seen."""
        if self.epochs and self.keeping.ending and self.epochs.end(self.keeping.ending):
            self.replica.progress.reach(self.epochs.over * self.epochs.samples)

    async def update(self, choice: GatherChoice) -> None:
        """One step of the optimizer with the chosen gradients; their mean is added in the order of the choice."""
        if not choice.used:
            return await self.drop(choice)
        pushes = [self.waiting[place] for place in choice.used]
        self.replica.updates.follow(self.node, [(push.sender, push.step) for push in pushes])
        await self.note_update(GradientAge(self.board.version - push.version, push.sender) for push in pushes)
        await self.note_dropped(choice)
        grads, averages = [self.fresh(push) for push in pushes], self.keeping.rule.gather.averages
        # one that makes an update alone was clipped by its worker
        if averages and due(self.board.version):
            measure_noise(self.node, grads, [push.samples for push in pushes])
        grad = await self.mean(grads, choice.weights, self.board.version) if averages else grads[0]
        self.keep_buffers([push.buffers for push in pushes], [push.gradients for push in pushes])
        await self.made(pushes, grad, choice.scale)
        self.step(grad, choice.scale, sum(push.samples for push in pushes))
        self.forget(choice)

    async def made(self, pushes: Sequence[Push], grad: Vector, scale: float) -> None:
        """An update is about to be applied."""

    def step(self, grad: Vector, scale: float, samples: int) -> None:
        """Apply an update."""
        # one of several servers may lack a worker's gradient
        several = len(self.servers) > 1 or self.node.incarnation.replicas > 1
        if self.keeping.rule.lends and self.node.incarnation.elastic and several:
            self.before = self.params.clone()
        self.replica.apply(grad, scale)
        self.board.version += 1
        self.replica.progress.add(samples)

    async def drop(self, choice: GatherChoice) -> None:
        """Forget gradients without an update."""
        if not choice.dropped:
            raise PlanError(
                f"{type(self.keeping.rule.gather).__name__}.choose gave a choice without a gradient: return None to "
                "wait, or name gradients in used or dropped"
            )
        await self.note_dropped(choice)
        self.forget(choice)

    async def note_dropped(self, choice: GatherChoice) -> None:
        if self.first and choice.dropped:
            await self.node.note("dropped", len(choice.dropped))

    def forget(self, choice: GatherChoice) -> None:
        gone = {*choice.used, *choice.dropped}
        self.waiting[:] = [push for place, push in enumerate(self.waiting) if place not in gone]
        if self.lacking:
            self.lacking.forget()

    def fresh(self, push: Push) -> Vector:
        """The gradient as numbers, corrected for its age."""
        grad = self.coder.decode(push.grad)
        return self.correction.correct(push.sender.rank, grad, self.params) if self.correction else grad

    def admits(self, rank: int) -> bool:
        return self.keeping.rule.gate.admits(rank, self.board)

    async def answer(self) -> None:
        """Answer the parked pulls that are admitted now, in rank order or those of lagging workers first."""
        if self.versions:
            self.board.moved = self.versions.moved(self.params)
        order = sorted(self.candidates())
        if self.keeping.lagging_first:
            order.sort(key=self.priority, reverse=True)
        for rank in order:
            if self.keeping.rule.lends and self.repeats(self.parked[rank]):
                await self.answer_again(self.parked.pop(rank))
                continue
            if not self.admits(rank):
                continue
            pull = self.parked.pop(rank)
            await self.node.note("lead", self.board.clocks[rank] - self.board.slowest)
            answer = self.current(pull)
            answer.params, answer.whole = self.give(rank, answer.version)
            if self.correction:
                self.correction.gave(rank, self.pulls.of(rank, self.params))
            if self.versions:
                self.versions.gave(rank, self.board.version, self.params)
            lent = self.keeping.rule.lends or not answer.whole
            await self.reply(pull, answer, lent)

    def candidates(self) -> Collection[int]:
        """Whom to ask the gate about: of thousands that it has refused, none before that can change."""
        asked, self.unasked = self.unasked, set()
        if not self.skips or not self.board.clocks:
            return self.parked
        before, self.refused_at = self.refused_at, self.board.slowest
        return asked & self.parked.keys() if before == self.refused_at else self.parked

    async def reply(self, pull: Pull, answer: Params, lent: bool = False) -> None:
        await self.node.send(pull.sender, answer, loan=lent, priority=self.priority(pull.sender.rank))

    async def answer_again(self, pull: Pull) -> None:
        """Give the parameters that the step began with: its gradient must be the same for those that lack it."""
        answer = self.current(pull)
        if answer.version > pull.step:  # where parameters are lent, updates are counted as steps are
            assert self.before is not None and answer.version == pull.step + 1, "no worker is two steps behind a server"
            answer.version, answer.params = pull.step, self.before
        await self.reply(pull, answer)

    def priority(self, rank: int) -> int:
        """Of an answer, among those that wait for this server's link (Mai et al. 2015: MLNet)."""
        return self.board.urgency(rank, self.node.workers) if self.keeping.lagging_first else 0

    def current(self, pull: Pull) -> Params:
        """The answer to a pull: the parameters as they are."""
        over = self.epochs.over if self.epochs else 0
        return Params(pull.step, self.board.version, self.params, self.board.slowest, over)
