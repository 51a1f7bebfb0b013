"""The coordinator: holds the model, chooses the clients of each round, and commits what the aggregator brings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

import msgspec
from torch import Tensor

from covey.federated.messages import AGGREGATOR, CheckIn, ComeBack, RoundBegin, RoundEnd, address
from covey.federated.pace_steering import PaceSteering, until
from covey.federated.rounds import RoundTerms, Selection
from covey.federated.server_steps import ServerState, ServerStep
from covey.membership import Departed
from covey.message import Message
from covey.model.replica import Replica
from covey.observe.membership import RoundLog, RoundRecord, RoundState
from covey.program import Memory, Node, Receive
from covey.servers.goodbye import Goodbye
from covey.vector import Vector

LOST = "its aggregator was lost"
NOT_FINITE = "the model, or the state of its optimizer, would not be finite"


class Spending(Protocol):
    """A privacy budget."""

    @property
    def left(self) -> bool:
        """Whether another round is within it."""
        ...

    def spend(self) -> dict[str, Any]:
        """A round begins; what a checkpoint keeps of all that was spent."""
        ...

    def resume(self, kept: dict[str, Any] | None) -> None:
        """Go on with what a checkpoint keeps; None: there is none."""


@dataclass(frozen=True, slots=True)
class FederatedService:
    """What the roles of the service have been asked to do.

    Args:
        rounds: How many there are, of which some may be abandoned; those that are not begun do not count.
        terms: Of a round.
        step: What happens to the model with the aggregate of a round; None: a step of the task's optimizer.
        steering: When clients come again.
        log: Hears of every round.
        select: Makes the selection of a round; None: those who check in first.
        spending: What rounds spend of a privacy budget.
        tries: How often in a row too few clients may check in before the run ends; None: it waits for them.
        passes: How often a client trains on each of its samples in a round.
    """

    rounds: int
    terms: RoundTerms
    step: ServerStep | None
    steering: PaceSteering
    log: RoundLog
    select: Callable[[], Selection] | None = None
    spending: Spending | None = None
    tries: int | None = None
    passes: int = 1

    def selection(self) -> Selection:
        return self.select() if self.select else Selection(self.terms)


class HeldModel:
    """The model of the service, and how it changes."""

    def __init__(self, node: Node, replica: Replica, step: ServerStep | None) -> None:
        self.replica, self.step = replica, step
        fresh: ServerState = step.init(replica.flat) if step else ()
        self.state = node.remember("server state", fresh)

    def commit(self, number: int, update: Vector, buffers: Vector) -> str:
        """Make an update of the aggregate of some clients' reports, in the round of this number.

        Where a number of the model would not be finite any more, all stays as it was, and why is returned.
        """
        replica = self.replica
        weights, before = replica.flat.clone(), replica.buffers.clone()
        state, optimizer = tuple(one.clone() for one in self.state.value), deepcopy(replica.optimizer.state_dict())
        replica.progress.reach(number)
        if self.step is None:
            replica.apply(update)
        else:
            self.state.value = self.step.move(replica.flat, update, self.state.value)
        replica.buffers.copy_(buffers)
        if all(vector.finite() for vector in self._vectors()):
            return ""
        replica.load(weights)
        replica.buffers.copy_(before)
        self.state.value = state
        replica.updates.restore(optimizer)
        return NOT_FINITE

    def _vectors(self) -> Iterator[Vector]:
        """All numbers that later rounds build on."""
        yield from (self.replica.flat, self.replica.buffers, *self.state.value)
        for kept in self.replica.optimizer.state.values():
            yield Vector(value for value in kept.values() if isinstance(value, Tensor))


class RoundCoordinator:
    """Drives the selection phase of one round after another; check-ins are answered at any time."""

    def __init__(self, node: Node, replica: Replica, service: FederatedService) -> None:
        self.node, self.service, self.model = node, service, HeldModel(node, replica, service.step)
        self.selection = service.selection()
        self.busy = False  # a round is under way
        self.spent: Memory[dict[str, Any] | None] = node.remember("privacy", None)
        if service.spending:
            service.spending.resume(self.spent.value)

    async def run(self) -> None:
        spending = self.service.spending
        for number in self.node.steps():
            if number < self.service.log.begun:  # an earlier incarnation has ended this round
                continue
            if spending and not spending.left:
                break
            began = await self.selected(number)
            if began is None:
                break
            end = await self.conduct(number, began)
            if spending and end.hopeless:  # the next round would be spent for nothing
                break
        await self.node.send(AGGREGATOR, Goodbye())

    async def selected(self, number: int) -> float | None:
        """Wait until enough clients have checked in; when the selection began that has them. None: too few come."""
        first = await self.node.now()
        tries = 0
        while self.service.tries is None or tries < self.service.tries:
            began = await self.node.now()
            self.selection.start(began)
            while (state := self.selection.state(now := await self.node.now())) == "open":
                assert self.selection.deadline is not None
                await self.hear(self.selection.deadline - now)
            if state == "ready":
                return began
            tries += 1
            await self.give_up(number, first)
        return None

    async def conduct(self, number: int, began: float) -> RoundEnd:
        """Let the aggregator have the chosen clients, and commit what it brings; others check in meanwhile."""
        chosen, self.selection = list(self.selection.accepted), self.service.selection()
        if self.service.spending:
            self.spent.value = self.service.spending.spend()
            await self.node.save_point()  # a service that dies in this round has spent it
        self.busy, configured = True, await self.node.now()
        earliest, latest = self.service.steering.period(configured)
        replica, share = self.model.replica, number / self.service.rounds
        begin = RoundBegin(number, share, chosen, earliest, latest, replica.flat, replica.buffers)
        while self.node.receive_nowait(RoundEnd):  # of a round that an earlier incarnation had begun
            pass
        await self.node.send(AGGREGATOR, begin)
        end = await self.ended(number, chosen)
        self.busy, now = False, await self.node.now()
        self.service.steering.round_ended(now - configured)
        if end.committed:  # from here until the round is in the log nothing is awaited: both happen, or neither
            why = self.model.commit(number, end.update, end.buffers)
            end = msgspec.structs.replace(end, committed=not why, why=why)
        state: RoundState = "committed" if end.committed else "abandoned"
        await self.tell(state, number, now - began, now, len(chosen), end)
        return end

    async def ended(self, number: int, chosen: list[int]) -> RoundEnd:
        """What came of a round; one whose aggregator is lost has come to nothing, and its clients are sent away."""
        while True:
            message = await self.hear(None, RoundEnd)
            if isinstance(message, RoundEnd) and message.number == number:
                return message
            if isinstance(message, Departed):
                for client in chosen:  # those that it had not given the model do not know it, and wait for an answer
                    if client not in self.selection.accepted:  # else it has checked in again
                        await self.turn_away(client)
                return RoundEnd(number, False, [], 0, 0, 0, 0, float("nan"), Vector(()), Vector(()), LOST)

    async def tell(self, state: RoundState, number: int, took: float, now: float, chosen: int, end: RoundEnd) -> None:
        """Write down what came of a round."""
        committed = state == "committed"
        record = RoundRecord(
            number=number, state=state, seconds=now, took=took, chosen=chosen, reports=len(end.clients),
            dropped=end.dropped, extra=end.extra, samples=end.samples, loss=end.loss if isfinite(end.loss) else None,
            there=self.service.steering.there, why=end.why, declined=end.declined,
        )  # fmt: skip
        self.service.log.add(record, end.clients if committed else ())
        show(self.node, record)
        if end.refused:
            await self.node.note("refused reports", end.refused)
        if committed:
            if isfinite(end.loss):
                await self.node.note("loss", end.loss)
            await self.node.note("update")
            await self.node.note("samples", end.samples * self.service.passes)
            await self.node.sleep(0)  # a score of this model may end the run before the next round begins

    async def give_up(self, number: int, began: float) -> None:
        """Too few clients have checked in: send those away, and begin anew."""
        accepted, now = list(self.selection.accepted), await self.node.now()
        self.selection = self.service.selection()
        for client in accepted:
            await self.turn_away(client)
        why = f"{len(accepted)} clients checked in, and it needs {self.service.terms.enough}"
        self.service.log.add(not_begun(number, began, now, self.service.steering, why))

    async def hear(self, timeout: float | None, *kinds: type[Message]) -> Message | None:
        """Take one message, and answer it if it is a client's; None: it was, or none came in time.

        That the aggregator is lost is heard at any time.
        """
        message = await Receive((CheckIn, Departed, *kinds), timeout=timeout)
        if isinstance(message, CheckIn):
            self.service.steering.came(await self.node.now(), message.sender.rank)
            closed = self.busy and not self.service.terms.overlap
            if closed or not self.selection.check_in(message.sender.rank):
                await self.turn_away(message.sender.rank)
            return None
        if isinstance(message, Departed) and message.sender != AGGREGATOR:
            self.selection.lost(message.sender.rank)
            return None
        return message

    async def turn_away(self, client: int) -> None:
        """Say when to come again."""
        now = await self.node.now()
        await self.node.send(address(client), ComeBack(*until(self.service.steering.period(now), now)))


def show(node: Node, record: RoundRecord) -> None:
    """Let whoever watches the run see what came of a round."""
    node.host.measure("round reports", record.reports)
    node.host.measure("round drop-outs", record.dropped)
    node.host.measure("round seconds", record.took)
    node.host.measure("clients there", record.there)


def not_begun(number: int, began: float, now: float, steering: PaceSteering, why: str) -> RoundRecord:
    """What is written down of a round for which too few came."""
    return RoundRecord(number=number, state="not begun", seconds=now, took=now - began, there=steering.there, why=why)


def coordinating(service: FederatedService) -> Callable[[Node, Replica], Any]:
    """The program of the coordinator."""
    return lambda node, replica: RoundCoordinator(node, replica, service).run()
