"""Executors and their micro-tasks (Qiao et al. 2018: Litz): the work of a step does not depend on who does it.

Each seat's share of the data is an executor, also when its seat is empty. A micro-task is the gradient of one batch of
an executor. The server gives every worker the micro-tasks of the executors that live there, and makes an update when
those of all executors are done; it adds them in the order of executors. So an executor that moves changes no number.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from covey.data.leases import Lease
from covey.membership import Joined
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.observe.tally import AcceptedSamples, GradientAge
from covey.program import Node
from covey.servers.leased_batches import leased_gradient
from covey.servers.pieces import PieceServer
from covey.servers.roles import addresses
from covey.servers.standing import AskStanding
from covey.vector import Vector

OVER = -1  # in place of a step: none is left


class AskTask(Message):
    """A worker has begun, and asks for its first micro-task."""

    wire_name = "executors.ask"

    counted = kept = False


class MicroTask(Message):
    """The batch to do next; the parameters and float buffers come with the first one of a step."""

    wire_name = "executors.task"

    step: int
    seat: int
    number: int
    done: int  # samples of this worker that count
    params: Vector
    buffers: Vector

    kept = False


class TaskGradient(Message):
    """The gradient of a micro-task, with the float buffers after it; `stop`: the run is to end."""

    wire_name = "executors.gradient"

    step: int
    seat: int
    number: int
    samples: int
    stop: bool
    grad: Vector
    buffers: Vector

    kept = False


def placement(present: Collection[int], seats: int) -> dict[int, int]:
    """On which worker each executor lives: that of its own seat, or in turn those that are there.

    The numbers of executors of any two workers differ by at most one.
    """
    ranks, orphans = sorted(present), [seat for seat in range(seats) if seat not in present]
    moved = {seat: ranks[place % len(ranks)] for place, seat in enumerate(orphans)} if ranks else {}
    return {rank: rank for rank in ranks} | moved


async def micro_task_worker(node: Node, replica: Replica) -> None:
    """Do the micro-tasks of the executors that live here."""
    (server,) = addresses(1)
    if node.incarnation.closing or server in node.incarnation.ended:
        return
    told, stopped = not (node.incarnation.number or node.incarnation.resumed), False
    begin = replica.buffers.clone()  # of the step: what another executor's batch made of them must not matter
    await node.send(server, AskTask())
    while (task := await node.receive(MicroTask, sender=server)).step != OVER:
        while node.step < task.step and not stopped:
            stopped = not node.training()
        if not told:
            told = True
            await node.note("resumed", task.done)
        if task.params.parts:
            replica.flat.copy_(task.params)
            begin.copy_(task.buffers)
        replica.buffers.copy_(begin)
        grad = await leased_gradient(node, replica, Lease(task.seat, task.number), clip=False)
        samples, buffers = replica.batch.samples, replica.buffers
        await node.send(server, TaskGradient(task.step, task.seat, task.number, samples, stopped, grad, buffers))


@dataclass(slots=True)
class ExecutorRecord:
    """How far all executors are; it survives a restart."""

    applied: list[int]  # samples of each worker that are in updates
    steps: int = 0


class ExecutorServer(PieceServer):
    """The server: it has the parameters, and knows where each executor lives."""

    def __init__(self, node: Node, replica: Replica) -> None:
        super().__init__(node, replica, addresses(1), together=True)
        self.present = set(range(node.workers))
        self.homes = placement(self.present, node.workers)
        self.record = node.remember("executors", ExecutorRecord([0] * node.workers)).value
        self.stopping = self.ended = False
        self.given: dict[int, int] = {}  # which worker has the micro-task of each executor
        self.results: dict[int, TaskGradient] = {}  # by executors
        self.idle: set[int] = set()  # workers that wait
        self.versions: dict[int, int] = {}  # the step whose parameters each worker has
        self.hears = {AskTask: self.ask, TaskGradient: self.take}

    @property
    def steps(self) -> int:
        """The updates that are made."""
        return self.record.steps

    def counts(self, rank: int) -> int:
        """The samples of a worker that need not be done again."""
        here = sum(result.samples for result in self.results.values() if result.sender.rank == rank)
        return self.record.applied[rank] + here

    @property
    def executors(self) -> list[int]:
        """Those that have a batch in this step."""
        return [seat for seat, limit in enumerate(self.node.limits) if self.steps < (limit or 0)]

    async def ask(self, question: AskTask) -> None:
        self.idle.add(question.sender.rank)

    async def take(self, result: TaskGradient) -> None:
        rank = result.sender.rank
        self.given.pop(result.seat, None)
        self.results[result.seat] = result
        self.stopping |= result.stop
        self.idle.add(rank)

    async def settle(self) -> None:
        """Make the update of a step that is complete, and give out what can be done."""
        while not self.ended and len(self.results) == len(self.executors):
            if self.executors:
                await self._update()
            self.ended = self.stopping or not self.executors
        for rank in sorted(self.idle):
            await self._give(rank)

    async def _update(self) -> None:
        """The mean over all samples of the step, added in the order of executors."""
        results = [self.results[seat] for seat in sorted(self.results)]
        await self.note_update(GradientAge(0, result.sender) for result in results)
        grads = [self.coder.decode(result.grad) for result in results]
        grad = await self.mean(grads, [result.samples for result in results], self.steps)
        self.keep_buffers([result.buffers for result in results])
        self.replica.apply(grad)
        self.replica.progress.add(sum(result.samples for result in results))
        for result in results:
            self.record.applied[result.sender.rank] += result.samples
        self.record.steps, self.results = self.steps + 1, {}

    async def _give(self, rank: int) -> None:
        """Give a worker a micro-task of an executor that lives there, if one is left in this step."""
        who = Address("worker", rank)
        if self.ended:
            self.idle.discard(rank)
            await self.node.send(who, MicroTask(OVER, 0, 0, self.counts(rank), NOTHING, NOTHING))
            self.gone.add(who)
            return
        taken = self.given.keys() | self.results.keys()
        seat = next((one for one in self.executors if self.homes[one] == rank and one not in taken), None)
        if seat is None:
            return
        self.idle.discard(rank)
        self.given[seat] = rank
        fresh = self.versions.get(rank) != self.steps
        self.versions[rank] = self.steps
        params, buffers = (self.params, self.replica.buffers) if fresh else (NOTHING, NOTHING)
        await self.node.send(who, MicroTask(self.steps, seat, self.steps, self.counts(rank), params, buffers))

    # -- who is there ----------------------------------------------------------------------------------------------

    async def departed(self, who: Address) -> None:
        """Its executors live elsewhere from now on; what it had begun of them is done again."""
        self._forget(who.rank)
        await self.node.note("accepted", AcceptedSamples(self.counts(who.rank), who))
        await self._move(self.present - {who.rank})

    async def tell_standing(self, message: Joined | AskStanding) -> None:
        """Another incarnation of a worker is there, and will ask."""
        who = message.sender
        self.gone.discard(who)
        self._forget(who.rank)
        await self._move(self.present | {who.rank})

    def _forget(self, rank: int) -> None:
        self.idle.discard(rank)
        self.versions.pop(rank, None)
        self.given = {seat: worker for seat, worker in self.given.items() if worker != rank}

    async def _move(self, present: set[int]) -> None:
        before, self.present = self.homes, present
        self.homes = placement(present, self.node.workers)
        moved = sum(before.get(seat) != home for seat, home in self.homes.items())
        if moved:
            await self.node.note("moved executors", moved)


async def executor_server(node: Node, replica: Replica) -> None:
    """The program of the server."""
    await ExecutorServer(node, replica).serve()
