"""Shards for L-BFGS: they hold the vectors; the coordinator sends only names and scalars (Dean 2012)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite, sqrt

import torch

from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.pieces import PieceServer
from covey.servers.roles import addresses
from covey.vector import Vector


class VectorCommand(Message):
    """A command to a shard, on vectors by name: into *= factor, into += factor * other, into = other, into . other."""

    wire_name = "lbfgs.order"

    task: str
    into: str
    other: str
    factor: float

    counted = False


class Scalar(Message):
    """A shard's part of a dot product."""

    wire_name = "lbfgs.scalar"

    value: float

    counted = False


class Collect(Message):
    """Combine this many pushes into the gradient of a batch."""

    wire_name = "lbfgs.collect"

    pushes: int
    samples: int

    counted = False


class FetchModel(Message):
    wire_name = "lbfgs.fetch_model"

    batch: int

    counted = False


class Model(Message):
    wire_name = "lbfgs.model"

    params: Vector


class PortionGradient(Message):
    """The sum of a portion's gradients; where a search went too far they may be infinite, and it goes back."""

    wire_name = "lbfgs.portion_gradient"
    finite = False

    grad: Vector
    buffers: Vector


@dataclass(slots=True)
class SearchState:
    """Where the search stands: scalars only, which a checkpoint keeps."""

    loss: float = 0.0  # at the point that the direction began at
    slope: float = 0.0  # along it
    length: float = 0.0  # how far along it the weights are; 0 before the first
    tries: int = 0
    slots: list[int] = field(default_factory=list)  # the history, oldest first: where it lies on the shards
    curvatures: list[float] = field(default_factory=list)  # 1 / (s . y) of each


class Lbfgs:
    """The two-loop recursion and a backtracking line search, as commands to the shards."""

    def __init__(self, node: Node, shards: Sequence[Address], history: int, search: SearchState) -> None:
        self.node, self.shards, self.history, self.search = node, shards, history, search

    async def order(self, task: str, into: str, other: str = "", factor: float = 1.0) -> None:
        await self.node.broadcast(self.shards, VectorCommand(task, into, other, factor))

    async def dot(self, one: str, other: str) -> float:
        """Over all shards; answered when every earlier command is done."""
        await self.order("dot", one, other)
        return sum(part.value for part in await self.node.gather(Scalar, self.shards))

    async def step(self, loss: float) -> None:
        """Move the weights `w` on, knowing the loss and the gradient `g` where they are."""
        at = self.search
        down = loss <= at.loss + 1e-4 * at.length * at.slope  # Armijo; a NaN loss is not down
        if at.length and not down and (at.tries < 5 or not isfinite(loss)):
            await self.order("add", "w", "d", -at.length / 2)  # half way back
            at.length, at.tries = at.length / 2, at.tries + 1
        else:
            if at.length:
                await self.learn()
            await self.order("copy", "old", "g")
            await self.turn()
            at.loss, at.tries = loss, 0
            size = sqrt(await self.dot("g", "g"))
            at.length = 1.0 if at.slots or not size else min(1.0, 1 / size)
            await self.order("add", "w", "d", at.length)
        await self.dot("g", "g")  # nobody may fetch before this is done

    async def learn(self) -> None:
        """Keep the last move s and how it changed the gradient, y, where the curvature is positive."""
        at = self.search
        slot = next(free for free in range(self.history + 1) if free not in at.slots)
        await self.order("copy", f"s{slot}", "d")
        await self.order("scale", f"s{slot}", factor=at.length)
        await self.order("copy", f"y{slot}", "g")
        await self.order("add", f"y{slot}", "old", -1.0)
        curvature = await self.dot(f"s{slot}", f"y{slot}")
        if curvature > 1e-10:
            at.slots = [*at.slots, slot][-self.history :]
            at.curvatures = [*at.curvatures, 1 / curvature][-self.history :]

    async def turn(self) -> None:
        """Let `d` be the direction of descent: minus the gradient, seen through the history."""
        at = self.search
        await self.order("copy", "d", "g")
        pairs = list(zip(at.slots, at.curvatures, strict=True))
        factors = []
        for slot, rho in reversed(pairs):
            factors.append(rho * await self.dot(f"s{slot}", "d"))
            await self.order("add", "d", f"y{slot}", -factors[-1])
        if pairs:
            slot, rho = pairs[-1]
            await self.order("scale", "d", factor=1 / (rho * await self.dot(f"y{slot}", f"y{slot}")))
        for (slot, rho), factor in zip(pairs, reversed(factors), strict=True):
            await self.order("add", "d", f"s{slot}", factor - rho * await self.dot(f"y{slot}", "d"))
        await self.order("scale", "d", factor=-1.0)
        at.slope = await self.dot("g", "d")
        if at.slope >= 0 and pairs:
            at.slots, at.curvatures = [], []
            await self.turn()


def obey(vectors: dict[str, Vector], order: VectorCommand) -> float | None:
    """A shard does what it is told; only a dot product has an answer."""
    into = vectors.setdefault(order.into, vectors["w"].clone()) if order.into != "w" else vectors["w"]
    if order.task == "scale":
        into.mul_(order.factor)
    elif order.task == "add":
        into.add_(vectors[order.other], alpha=order.factor)
    elif order.task == "copy":
        into.copy_(vectors[order.other])
    else:
        pairs = zip(into.parts, vectors[order.other].parts, strict=True)
        return sum(float(a.double() @ b.double()) for a, b in pairs if not a.is_meta)
    return None


class VectorShard(PieceServer):
    """Holds its piece of every vector of the search, adds up what is pushed, and does what is ordered."""

    def __init__(self, node: Node, replica: Replica, *, count: int) -> None:
        super().__init__(node, replica, addresses(count), clients=node.workers + 1)  # who drives is one more
        self.vectors = node.remember("vectors", {"g": self.params.map(torch.zeros_like)}).value
        self.vectors["w"] = self.params
        self.total, self.sum, self.pushes = self.params.map(torch.zeros_like), replica.buffers * 0.0, 0
        self.hears = {
            FetchModel: self.show, PortionGradient: self.take, Collect: self.collect, VectorCommand: self.obey,
        }  # fmt: skip

    async def show(self, fetch: FetchModel) -> None:
        await self.node.send(fetch.sender, Model(self.params))

    async def obey(self, order: VectorCommand) -> None:
        answer = obey(self.vectors, order)
        if answer is not None:
            await self.node.send(order.sender, Scalar(answer))

    async def take(self, push: PortionGradient) -> None:
        self.total.add_(push.grad)
        if push.buffers.parts:
            self.sum.add_(push.buffers)
        self.pushes += 1

    async def collect(self, wanted: Collect) -> None:
        """The batch's gradient, once all of it has come."""
        while self.pushes < wanted.pushes:
            await self.take(await self.node.receive(PortionGradient))
        self.vectors["g"].copy_(self.total).mul_(1 / wanted.samples)
        self.replica.buffers.copy_(self.sum).mul_(1 / wanted.pushes)
        self.replica.progress.add(wanted.samples)
        self.total.zero_()
        self.sum.zero_()
        self.pushes = 0
