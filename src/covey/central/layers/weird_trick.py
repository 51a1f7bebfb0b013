"""One weird trick: convolutions are data parallel, the fully connected layers after them model parallel.

Every worker has all of the first part, and 1/n of the units of each fully connected layer. What the first part makes of
everybody's samples goes to everybody, outputs and errors of the layers go to whoever needs them, and only the first
part's gradients are summed: weights of fully connected layers never travel (Krizhevsky 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from covey.central.layers.rounds import Round, Rows
from covey.errors import PlanError
from covey.exchange.collectives.sums import ring
from covey.message import Address, Message
from covey.model.batches import Batch
from covey.model.optimizers import elementwise
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.names import option
from covey.parallelism.units.unit_replica import UnitReplica, share_of
from covey.program import Node
from covey.servers.clipping import Square
from covey.strategy import GROW, Description, Role, Strategy, TaskTerms, Taxonomy
from covey.vector import Vector, chunk

NAME = "one_weird_trick"
Scheme = Literal["a", "b", "c"]


class StepAnnouncement(Message):
    """To a worker that has no samples left: whether there is another step, for which its units are needed."""

    wire_name = "weird_trick.word"

    step: int
    more: int

    counted = False


def rounds(scheme: Scheme, sizes: Sequence[int]) -> list[list[Rows]]:
    """Which rows of each worker's batch go through the layers together: all; one worker's; the n-th part of all."""
    many = len(sizes)
    if scheme == "a":
        turns = [[(0, size) for size in sizes]]
    elif scheme == "b":
        turns = [[(0, size if rank == turn else 0) for rank, size in enumerate(sizes)] for turn in range(many)]
    else:
        turns = [[chunk(size, many, turn) for size in sizes] for turn in range(many)]
    return [rows for rows in turns if any(first < stop for first, stop in rows)]


class Trick:
    """One worker's steps."""

    def __init__(self, node: Node, share: UnitReplica, scheme: Scheme, variable: bool) -> None:
        self.node, self.share, self.scheme, self.variable = node, share, scheme, variable
        self.peers = [Address("worker", rank) for rank in range(node.workers)]
        self.others = [peer for peer in self.peers if peer != node.address]
        self.units, self.front = share.grad.cut(share.units), share.grad.cut(share.front)

    async def step(self, step: int) -> None:
        """One batch of everybody's, in rounds, and one update with its mean gradient; all workers take all steps."""
        node, share, present = self.node, self.share, self.node.present(step)
        sizes = [share.batch_source.samples(rank, step) if rank in present else 0 for rank in range(node.workers)]
        if node.rank == present[0]:
            await node.broadcast(
                [self.peers[rank] for rank, size in enumerate(sizes) if not size], StepAnnouncement(step, 1)
            )
        made = await share.begin(node, step) if sizes[node.rank] else None
        if made is None:
            share.start(step)
        loss, error = await self.rounds(step, sizes, made)
        if made is not None:
            if error is not None:
                await share.end(node, made, error)
            share.layout.collect()
            await share.report(node, Batch(loss, sizes[node.rank]))
        await self.sum_front(sizes)
        await self.update(step, sum(sizes))
        if node.rank == present[0]:
            await node.note("update")
            await node.note("staleness", 0)

    async def rounds(self, step: int, sizes: Sequence[int], made: Tensor | None) -> tuple[float, Tensor | None]:
        """All rounds; the mean loss of one's own batch, and its error. What a round needs travels during the last."""
        node, share, mine = self.node, self.share, sizes[self.node.rank]
        turns = [
            Round(node, share, step * node.workers + number, rows)
            for number, rows in enumerate(rounds(self.scheme, sizes))
        ]
        loss, error = 0.0, None if made is None or not made.requires_grad else torch.zeros_like(made)
        await turns[0].hand_out(made)
        for turn, after in zip(turns, [*turns[1:], None], strict=True):
            if after:
                await after.hand_out(made)
            # one update with all samples, or one with those of the round: of these the loss is the mean
            whole = turn.samples if self.variable else sum(sizes)
            lost, slope = await turn.through(made, whole)
            loss += lost * turn.count / mine if mine else 0.0
            if error is not None and slope is not None:
                error[slice(*turn.rows[node.rank])] = slope * (whole / mine)  # the front's is of one's own batch
            if self.variable:
                await self.update_units(turn.number)
        return loss, error

    async def sum_front(self, sizes: Sequence[int]) -> None:
        """The mean of the first part's gradients by samples, and of float buffers over those who have computed."""
        mine, buffers = sizes[self.node.rank], self.share.buffers
        self.front.mul_(mine / sum(sizes))
        buffers.mul_(1 / sum(map(bool, sizes)) if mine else 0.0)
        both = Vector(part for part in self.front.join(buffers).parts if part.numel())
        if both.parts:
            await self.node.sum(both, tuple(self.peers), ring)

    async def update(self, step: int, samples: int) -> None:
        """Step on everything, or on what the rounds have left."""
        self.share.progress.begin(samples)
        await self.clip(-1 - step, NOTHING if self.variable else self.units, self.front)
        if not self.variable:
            self.share.update()
        else:
            with self.share.only(units=False):
                self.share.update()

    async def update_units(self, number: int) -> None:
        """Step on the fully connected layers alone; the rate is that of the step, whose samples are not yet seen."""
        self.share.progress.begin(0)
        await self.clip(number, self.units, NOTHING)
        with self.share.only(units=True):
            self.share.update()
        self.units.zero_()

    async def clip(self, number: int, own: Vector, shared: Vector) -> None:
        """Shorten the gradient of an update by its norm: of everybody's units, and of what all have alike."""
        if self.share.updates.clip_norm is None:
            return
        mine = own.norm() ** 2
        await self.node.broadcast(self.others, Square(number, mine))
        squares = {word.sender: word.square for word in await self.node.gather(Square, self.others, step=number)}
        squares[self.node.address] = mine
        self.share.updates.clip_(own.join(shared), sqrt(sum(squares[peer] for peer in self.peers) + shared.norm() ** 2))

    async def serve_the_rest(self, served: list[int]) -> None:
        """Units are needed until the last worker has ended. Who is stopped before its end tells those who serve."""
        node, limit = self.node, self.node.limits[self.node.rank]
        if limit is None or node.step < limit:
            present = node.present(node.step)
            if node.rank == present[0]:
                gone = [peer for peer in self.peers if peer.rank not in present]
                await node.broadcast(gone, StepAnnouncement(node.step, 0))
            return
        served[0] = max(served[0], limit)
        while present := node.present(served[0]):
            word = await node.receive(StepAnnouncement, sender=self.peers[present[0]], step=served[0])
            if not word.more:
                return
            await self.step(served[0])
            served[0] += 1


async def worker(node: Node, replica: Replica, *, scheme: Scheme, variable: bool) -> None:
    """Take every step with all others, also when one's own samples are used up."""
    if not isinstance(replica, UnitReplica):
        raise PlanError(
            f"{NAME} divides the layers of a Task's model: it can neither be used with your own loop nor with "
            f"{option('timing_only', True)}, which know no layers"
        )
    trick, served = Trick(node, replica, scheme, variable), node.remember("served", [0])
    for step in node.steps():
        await trick.step(step)
    await trick.serve_the_rest(served.value)


def check_elementwise(optimizer: Optimizer) -> None:
    if not elementwise(optimizer):
        raise PlanError(
            f"{type(optimizer).__name__} looks at whole parameters, and {NAME} divides those of linear layers: use an "
            "element-wise optimizer (SGD, Adam, ...), or allreduce"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class OneWeirdTrick:
    """Data parallel up to the fully connected layers at the end, of which every worker has 1/n of the units."""

    scheme: Scheme = "a"  # who goes through them together: all samples; one worker's; the n-th part of everybody's
    variable: bool = False  # update fully connected layers after every round, with its samples only

    def strategy(self, workers: int) -> Strategy:
        if self.variable and self.scheme == "a":
            raise PlanError(f"{NAME}(variable=true): scheme a has one round for all samples; use scheme=b or scheme=c")
        work = partial(worker, scheme=self.scheme, variable=self.variable)

        def roles(workers: int, servers: int) -> list[Role]:
            part = partial(share_of, strategy=NAME, workers=workers)
            return [
                Role(Address("worker", rank), work, trains=True, scored=True, one_batch=True, part=part)
                for rank in range(workers)
            ]

        fast = "; fully connected layers: the mean over those of a round" if self.variable else ""
        return Strategy(
            name=NAME, settings={"scheme": self.scheme, **({"variable": True} if self.variable else {})}, roles=roles,
            description=Description(
                scored="worker 0's first part, and everybody's units of the fully connected layers",
                rate=f"unchanged: the mean over all workers' samples{fast}", scaling=GROW,
            ),
            terms=TaskTerms(clips="each update", accept=check_elementwise if workers > 1 else None),
            taxonomy=Taxonomy(
                parallelism="model + data", optimization="central", architecture="peers", scheduling="synchronous",
                exchange="all-reduce / all-gather", topology="complete",
            ),
        )  # fmt: skip
