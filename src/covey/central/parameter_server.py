"""Servers hold shards of the parameters and step the optimizer; workers pull, differentiate and push.

`bsp`, `ssp`, `asynchronous`, `quorum` and the rest are one family: they differ in the rule that the servers ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from covey.central.compensation import Compensation
from covey.central.shard import Keeping, Leave, Params, Pull, Push, server
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.message import Address
from covey.program import Node
from covey.replica import Replica
from covey.strategy import Role, Scheduling, Strategy, Taxonomy
from covey.synchronization import Bounded, Each, Everyone, Newer, Open, Predicted, Quorum, Rule, Soft
from covey.vector import Vector

Damping = Literal["none", "inverse", "dynamic"]


class Servers:
    """The servers as a worker sees them: each holds one piece of the parameters."""

    def __init__(self, node: Node, replica: Replica, count: int, codec: Codec = dense) -> None:
        self.node, self.replica, self.codec = node, replica, codec
        self.addresses = [Address("server", index) for index in range(count)]
        self.pieces = replica.pieces(count)
        self.versions = [0] * count
        self.memories = [node.remember(codec.init(replica.grad.cut(piece))) for piece in self.pieces]

    async def pull(self) -> None:
        """Bring the newest parameters that the rule allows into the replica."""
        step = self.node.step
        for address in self.addresses:
            await self.node.send(address, Pull(step))
        for index, address in enumerate(self.addresses):
            mine = self.replica.flat.cut(self.pieces[index])
            params = await self.node.receive(Params, sender=address, step=step, into=mine)
            self.versions[index] = params.version

    async def push(self, grad: Vector) -> None:
        """Give each server its piece of the gradient; it is lent until the next pull is answered."""
        samples, none = self.replica.batch.samples, Vector(())
        for index, address in enumerate(self.addresses):
            buffers = self.replica.buffers if index == 0 else none
            memory = self.memories[index]
            wire, memory.value = self.codec.encode(grad.cut(self.pieces[index]), memory.value)
            push = Push(self.node.step, self.versions[index], samples, wire, buffers)
            await self.node.send(address, push, loan=True)

    async def leave(self) -> None:
        await self.node.broadcast(self.addresses, Leave())


async def worker(node: Node, replica: Replica, *, count: int, codec: Codec = dense) -> None:
    """Pull, differentiate, push."""
    servers = Servers(node, replica, count, codec)
    while node.training():
        await servers.pull()
        await servers.push(await replica.gradient(node))
    await servers.leave()


def parameter_server(
    name: str, scheduling: Scheduling, keeping: Keeping, settings: Mapping[str, object], samples: str = ""
) -> Strategy:
    """The family: any rule over any number of servers."""

    def roles(workers: int, servers: int) -> list[Role]:
        work = partial(worker, count=servers, codec=keeping.codec)
        serve = partial(partial, server, count=servers, keeping=keeping)
        return [
            *(Role(Address("worker", rank), work, trains=True) for rank in range(workers)),
            *(Role(Address("server", index), serve(index=index), scored=True) for index in range(servers)),
        ]

    one_each = isinstance(keeping.rule.gather, Each)
    return Strategy(
        name=name, settings=dict(settings), roles=roles, servers=1, codec=keeping.codec.name,
        scored="the servers' parameters",
        rate="each push counts 1/workers" if one_each else "unchanged: the mean over the gradients of an update",
        samples=samples or "every sample once per epoch",
        taxonomy=Taxonomy(
            optimization="central", architecture="server", scheduling=scheduling, topology="parameter servers",
            exchange="ad hoc" if one_each else "reduce / broadcast",
        ),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Bsp:
    """Bulk synchronous: every step waits for every worker, one update with the mean gradient."""

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        return parameter_server("bsp", "synchronous", Keeping(Rule(Bounded(0), Everyone()), codec), {})


@dataclass(frozen=True, kw_only=True, slots=True)
class Ssp:
    """Stale synchronous: a worker may read while it is at most `bound` steps ahead of the slowest."""

    bound: int = 3
    weight: float | None = None  # what a push counts; 1 / workers
    damping: Damping = "none"  # inverse: over its staleness; dynamic: over 1 + its staleness

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        at_least("ssp", "bound", self.bound, 0, "0 waits as bsp does")
        each = Each(share("ssp", self.weight, self.damping, workers), self.damping)
        settings = {"bound": self.bound, "weight": each.share, "damping": shown(self.damping, "none")}
        return parameter_server("ssp", "bounded", Keeping(Rule(Bounded(self.bound), each), codec), settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asynchronous:
    """Asynchronous: nobody waits; each gradient is applied when it comes, however old."""

    weight: float | None = None  # what a push counts; 1 / workers
    damping: Damping = "none"  # inverse: over its staleness; dynamic: over 1 + its staleness
    momentum: float | None = None  # wanted in all: the optimizer gets what asynchrony does not add (Mitliagkas 2016)

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        each = Each(share("asynchronous", self.weight, self.damping, workers), self.damping)
        explicit = None if self.momentum is None else max(-0.9, min(0.99, self.momentum - (1 - 1 / workers)))
        keeping = Keeping(Rule(Open(), each), codec, momentum=explicit)
        settings = {"weight": each.share, "damping": shown(self.damping, "none"), "momentum": self.momentum}
        return parameter_server("asynchronous", "asynchronous", keeping, settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dssp:
    """Stale synchronous with a bound between `low` and `low + extra`, chosen where the predicted wait is least."""

    low: int = 1
    extra: int = 4
    weight: float | None = None  # what a push counts; 1 / workers

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        at_least("dssp", "low", self.low, 0)
        at_least("dssp", "extra", self.extra, 0, "0 is ssp")
        each = Each(share("dssp", self.weight, "none", workers))
        settings = {"low": self.low, "extra": self.extra, "weight": each.share}
        return parameter_server(
            "dssp", "bounded", Keeping(Rule(Predicted(self.low, self.extra), each), codec), settings
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BackupWorkers:
    """The first `size` gradients of a step make the update; the late ones are dropped, or folded into the next."""

    size: int | None = None  # all but one
    late: Literal["drop", "fold"] = "drop"
    count: Literal["workers", "gradients"] = "workers"  # what `size` counts: TensorFlow counts gradients

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        size = max(1, workers - 1) if self.size is None else self.size
        if not 1 <= size <= workers:
            raise PlanError(f"quorum(size={size}): with {workers} workers it must lie between 1 and {workers}")
        keeping = Keeping(Rule(Newer(), Quorum(size, self.late, self.count)), codec)
        settings = {"size": size, "late": self.late, "count": shown(self.count, "workers")}
        samples = "every sample once per epoch, but late gradients are dropped" if self.late == "drop" else ""
        return replace(parameter_server("quorum", "synchronous", keeping, settings, samples), leaves_behind=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Softsync:
    """An update for every workers/groups gradients, of whatever age; groups=1 is nearly bsp, groups=workers is not."""

    groups: int = 1
    damping: Damping = "inverse"

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        if not 1 <= self.groups <= workers:
            raise PlanError(f"softsync(groups={self.groups}): with {workers} workers from 1 to {workers} groups")
        keeping = Keeping(Rule(Open(), Soft(workers // self.groups, self.damping)), codec)
        settings = {"groups": self.groups, "damping": self.damping}
        return parameter_server("softsync", "asynchronous", keeping, settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class DelayCompensated:
    """Asynchronous, each gradient corrected for how far the parameters have moved since its worker read them."""

    strength: float | None = None  # 0.04, adaptive 2 (Zheng et al. 2017)
    adaptive: bool = False
    weight: float | None = None  # what a push counts; 1 / workers

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        strength = (2.0 if self.adaptive else 0.04) if self.strength is None else self.strength
        if strength < 0:
            raise PlanError(f"dc_asgd(strength={strength}): must be 0 or more; 0 is asynchronous")
        each = Each(share("dc_asgd", self.weight, "none", workers))
        correction = partial(Compensation, strength=strength, adaptive=self.adaptive)
        keeping = Keeping(Rule(Open(), each), codec, correction)
        settings = {"strength": strength, "adaptive": shown(self.adaptive, False), "weight": each.share}
        return parameter_server("dc_asgd", "asynchronous", keeping, settings)


def share(name: str, weight: float | None, damping: str, workers: int) -> float:
    """What a push counts before damping: 1/workers, or all of it where its age says how much."""
    if weight is not None and weight <= 0:
        raise PlanError(f"{name}(weight={weight}): a push must count something; leave it away for 1/{workers}")
    return weight if weight is not None else 1 / workers if damping == "none" else 1.0


def at_least(name: str, key: str, value: int, least: int, note: str = "") -> None:
    if value < least:
        raise PlanError(f"{name}({key}={value}): must be {least} or more" + (f" ({note})" if note else ""))


def shown(value: object, usual: object) -> object:
    """A setting as the strategy's text shows it: not at all when it is as usual."""
    return None if value == usual else value
