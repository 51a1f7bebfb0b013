"""Bounded delay: push and pull continue while a worker computes, within a bound on unfinished steps.

Li et al. 2014: task k is step k of all workers. On every range of keys (a server's) its gradients make one update, in
the order of tasks; it is finished when the updated range has come back. Task k starts when all up to k - delay - 1 are.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.observe.tally import GradientAge
from covey.program import Node
from covey.servers.clients import PieceClient
from covey.servers.pieces import PieceServer
from covey.servers.roles import addresses, workers_and_servers
from covey.servers.server_program import serve
from covey.strategy import Description, Role, ServerPlan, Strategy, TaskTerms, Taxonomy
from covey.vector import Vector


class RangeTask(Message):
    """A worker's part of a task on one range: its gradient, taken when `seen` tasks were finished on that range."""

    wire_name = "delayed.task"

    step: int
    seen: int
    samples: int
    grad: Vector
    buffers: Vector


class TaskDone(Message):
    """The task is finished on a range of keys, whose parameters these are."""

    wire_name = "delayed.done"

    step: int
    params: Vector


class TaskFinished(Message):
    """(From a worker's listener to itself) Look again: a task was finished."""

    wire_name = "delayed.finished"

    counted = False


class Tasks(PieceClient):
    """A worker's tasks on all ranges: what was issued, and what is finished."""

    def __init__(self, node: Node, replica: Replica, count: int, codec: Codec) -> None:
        super().__init__(node, replica, addresses(count), codec)
        self.finished = node.remember("finished", [0] * count).value  # tasks, on each range
        self.issued = node.remember("issued", [0]).value
        self.waiting = False
        replica.shield()  # results come while backward runs

    async def listen(self) -> None:
        """Take in results when they come, so that no server has to wait for this worker."""
        while True:
            done = await self.node.receive(TaskDone)
            index = done.sender.rank
            self.place(index).copy_(done.params)
            self.finished[index] = done.step + 1
            if self.waiting:
                self.waiting = False
                await self.node.send(self.node.address, TaskFinished())

    async def until(self, count: int) -> None:
        """Wait until the first `count` tasks are finished on every range."""
        while min(self.finished) < count:
            self.waiting = True
            await self.node.receive(TaskFinished, sender=self.node.address)

    async def issue(self, step: int, seen: list[int], grad: Vector) -> None:
        """Give every server its range of the gradient; nobody waits for what comes of it."""
        samples = self.replica.batch.samples
        for index, server in enumerate(self.servers):
            wire = self.encode(index, grad.cut(self.pieces[index]))
            await self.replica.updates.inform(self.node, server)
            await self.node.send(server, RangeTask(step, seen[index], samples, wire, self.buffers(index)))


async def worker(node: Node, replica: Replica, *, count: int, delay: int, codec: Codec) -> None:
    """Start a task as soon as the one `delay` + 1 before it is finished; differentiate, issue, go on."""
    tasks = Tasks(node, replica, count, codec)
    await node.spawn(tasks.listen())
    for step in node.steps():
        await node.save_point()  # before which no task counts as issued
        await tasks.until(step - delay)
        seen = list(tasks.finished)
        await node.note("lead", step - min(seen))
        grad = await replica.gradient(node, clip=False)
        tasks.issued[0] = step + 1  # only now: a loop of the user's own may have ended instead
        await tasks.issue(step, seen, grad)
    await tasks.until(tasks.issued[0])
    await tasks.leave()


class Range(PieceServer):
    """One server: a range of keys, which each task changes once, when every worker's part of it is there."""

    def __init__(self, node: Node, replica: Replica, *, count: int, codec: Codec) -> None:
        super().__init__(node, replica, addresses(count), codec)
        self.done = node.remember("done", [0]).value  # tasks
        self.came: list[RangeTask] = node.remember("came", []).value
        self.hears = {RangeTask: self.take}

    async def take(self, task: RangeTask) -> None:
        self.came.append(task)
        while await self.finish():
            pass

    async def finish(self) -> bool:
        """Do the oldest task that is not finished, if all of it is there: those after it wait for their turn."""
        step = self.done[0]
        present = self.node.present(step)
        parts = {task.sender.rank: task for task in self.came if task.step == step}
        if not present or len(parts) < len(present):
            return False
        self.came[:] = [task for task in self.came if task.step != step]
        await self.update(step, [parts[rank] for rank in present])
        self.done[0] += 1
        for rank in present:
            await self.node.send(Address("worker", rank), TaskDone(step, self.params))
        return True

    async def update(self, step: int, parts: list[RangeTask]) -> None:
        """One step with the mean over all samples, added in the order of ranks."""
        self.replica.updates.follow(self.node, [(task.sender, task.step) for task in parts])
        grads = [self.coder.decode(task.grad) for task in parts]
        grad = await self.mean(grads, [task.samples for task in parts], step)
        await self.note_update(GradientAge(step - task.seen, task.sender) for task in parts)
        self.keep_buffers([task.buffers for task in parts])
        self.replica.apply(grad)
        self.replica.progress.add(sum(task.samples for task in parts))


@dataclass(frozen=True, kw_only=True, slots=True)
class BoundedDelay:
    """Push and pull are tasks that go on while workers compute; step k starts when all up to k - delay - 1 are done."""

    delay: int = 1

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        if self.delay < 0:
            raise PlanError(
                f"bounded_delay(delay={self.delay}): the delay must be 0 or more; 0 is bsp; use asynchronous for no "
                "bound"
            )

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, count=servers, delay=self.delay, codec=codec)
            tend = partial(serve, Range, codec=codec)
            return workers_and_servers(workers, work, servers, tend, one_batch=self.delay == 0)

        return Strategy(
            name="bounded_delay", settings=asdict(self), roles=roles, servers=ServerPlan(1),
            description=Description(
                scored="the servers' parameters", rate="unchanged: the mean over all workers' samples",
            ),
            terms=TaskTerms(clips="each update"),
            taxonomy=Taxonomy(
                optimization="central", architecture="server", scheduling="bounded", exchange="reduce / broadcast",
                topology="parameter servers",
            ),
        )  # fmt: skip
