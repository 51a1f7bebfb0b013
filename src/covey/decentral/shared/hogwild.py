"""Hogwild and Hogwild++: workers write a vector in shared memory, without locks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from torch.optim import Optimizer

from covey.decentral.leaving import addresses, leave
from covey.errors import PlanError
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Effect, Memory, Node
from covey.servers.goodbye import Goodbye
from covey.strategy import KEEP, Description, Role, Strategy, TaskTerms, Taxonomy
from covey.vector import Vector

Momentum = Literal["refuse", "drop"]
GONE = -1  # the token is elsewhere


class VectorReady(Message):
    """The weights lie in shared memory."""

    wire_name = "hogwild.laid"
    counted = False


class WriteToken(Message):
    """Whoever holds it may write into the next cluster's vector; there is exactly one."""

    wire_name = "hogwild.token"
    counted = False


@dataclass(frozen=True, slots=True)
class WorkerGroups:
    """Workers in groups of neighbours; each group writes one vector."""

    workers: int
    groups: int

    def group(self, rank: int) -> int:
        return rank * self.groups // self.workers

    def members(self, group: int) -> list[int]:
        return [rank for rank in range(self.workers) if self.group(rank) == group]

    def leaders(self) -> list[int]:
        return [self.members(group)[0] for group in range(self.groups)]


# -- one vector, many writers -----------------------------------------------------------------------------------------


async def worker(node: Node, replica: Replica, *, groups: WorkerGroups, momentum: Momentum) -> None:
    """Read without a lock, differentiate, write without a lock (Recht et al. 2011)."""
    if groups.workers > 1:
        forbid_momentum(replica, momentum)
        await settle(node, replica, 0, range(groups.workers))
    await train(node, replica)


async def train(node: Node, replica: Replica) -> None:
    for _ in node.steps():
        await step(node, replica)


async def step(node: Node, replica: Replica) -> None:
    replica.apply(await replica.gradient(node))
    await node.note("update")


async def settle(
    node: Node, replica: Replica, group: int, members: Sequence[int], neighbours: Sequence[int] = ()
) -> None:
    """Move to the vector of one's group, which its first worker lays out before anybody reads or writes it.

    Those who meet other groups wait for these `neighbours`, their first workers, too.
    """
    shared = node.share(replica.flat, group)
    if shared.parts[0].data_ptr() == replica.flat.parts[0].data_ptr():
        return  # the program began again in the middle of a run: it lives there already
    first = node.rank == members[0]
    if first:
        shared.copy_(replica.flat)
        await node.broadcast(addresses([*members[1:], *neighbours]), VectorReady())
    await node.gather(VectorReady, addresses(neighbours if first else members[:1]))
    replica.move(shared)


def check_momentum(optimizer: Optimizer, momentum: Momentum) -> None:
    """Racing writers are proven to agree for plain steps on sparse gradients; momentum makes every step dense."""
    for group in optimizer.param_groups:
        if momentum == "drop" and "momentum" in group:
            group["momentum"], group["nesterov"] = 0.0, False
        if group.get("momentum") or "betas" in group:
            raise PlanError(
                f"the task's {type(optimizer).__name__} keeps momentum, which Hogwild's writers cannot share; "
                "use torch.optim.SGD without momentum, or momentum=drop to train without the task's own"
            )


def forbid_momentum(replica: Replica, momentum: Momentum) -> None:
    """The same, and of a loop that gives its optimizer momentum later, as some schedules do."""
    check_momentum(replica.optimizer, momentum)
    replica.updates.obey(refuse_momentum)


def refuse_momentum(optimizer: Optimizer) -> None:
    if any(group.get("momentum") for group in optimizer.param_groups):
        raise PlanError(
            f"the loop gave its {type(optimizer).__name__} momentum, which Hogwild's writers cannot share: leave it at "
            "0 (a OneCycleLR or CyclicLR has cycle_momentum=False)"
        )


# -- one vector for each cluster, and a token -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mixing:
    """How two clusters meet (Zhang et al. 2016, section 3)."""

    beta: float
    pull: float  # lambda in the paper
    tolerance: float

    @staticmethod
    def of(clusters: int, tolerance: float) -> Mixing:
        """beta^clusters + beta = 1, and lambda = 1 - beta^(clusters - 1)."""
        low, high = 0.5, 1.0
        while high - low > 1e-12:
            middle = (low + high) / 2
            low, high = (low, middle) if middle**clusters + middle > 1 else (middle, high)
        return Mixing(low, 1 - low ** (clusters - 1), tolerance)

    def meet(self, mine: Vector, old: Vector, following: Vector) -> None:
        """Give the next cluster the changes since the last meeting, and come towards it."""
        for w, before, other in zip(mine.parts, old.parts, following.parts, strict=True):
            delta, theirs = w - before, other.clone()
            large = delta.abs() > self.tolerance
            given = delta.mul(self.beta)
            other.add_(given.where(large, given.new_zeros(())))  # in place, while others write: nothing guards it
            w.copy_((1 - self.pull) * before + self.pull * theirs + given.where(large, delta))
            before.copy_(w - delta.where(~large, delta.new_zeros(())))  # small changes are kept for the next time


async def clustered(
    node: Node, replica: Replica, *, groups: WorkerGroups, mixing: Mixing, hold: int, momentum: Momentum
) -> None:
    """Write the cluster's vector; its first worker carries the token on the ring of clusters (Zhang et al. 2016)."""
    cluster, leaders = groups.group(node.rank), groups.leaders()
    members, others = groups.members(cluster), [rank for rank in leaders if rank != node.rank]
    if len(members) > 1:
        forbid_momentum(replica, momentum)
    if len(members) == groups.workers == 1:
        return await train(node, replica)
    await settle(node, replica, cluster, members, others if node.rank in leaders else ())
    if node.rank not in leaders or not others:
        return await train(node, replica)

    following = (cluster + 1) % groups.groups
    before = node.remember("before", replica.flat.clone()).value
    meet = partial(mixing.meet, replica.flat, before, node.share(replica.flat, following))
    held = node.remember("held", hold if cluster == 0 else GONE)  # updates until the token goes on
    for _ in node.steps():
        if held.value == GONE and node.receive_nowait(WriteToken):
            meet()
            held.value = hold
        await step(node, replica)
        if held.value != GONE:
            held.value = max(0, held.value - len(members))
        if held.value == 0:
            held.value = GONE
            await node.send(Address("worker", leaders[following]), WriteToken())
    await carry_on(node, meet, held, Address("worker", leaders[following]), others)


async def carry_on(
    node: Node, meet: Callable[[], None], held: Memory[int], following: Address, others: Sequence[int]
) -> None:
    """Let the token go round while others still train, without keeping it."""
    if held.value != GONE:
        held.value = GONE
        await node.send(following, WriteToken())
    await leave(node, others)
    missing = set(others)
    while missing:
        message = await node.receive_any(WriteToken, Goodbye)
        if isinstance(message, WriteToken):
            meet()
            await node.send(following, WriteToken())
        missing.discard(message.sender.rank if isinstance(message, Goodbye) else GONE)


# -- their names ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Hogwild:
    """Workers of one machine write one vector without locks; proven for sparse gradients only (Recht et al. 2011)."""

    momentum: Momentum = "refuse"

    def strategy(self, workers: int) -> Strategy:
        groups = grouped("hogwild", "groups", 1, workers)
        program = partial(worker, groups=groups, momentum=self.momentum)
        return herding(
            "hogwild", asdict(self), program, groups, scored="the shared vector",
            rate="as given: every update counts in full, so n workers move n times as far",
            scaling="divide it by n",
            taxonomy=Taxonomy(
                optimization="central", architecture="memory", scheduling="asynchronous", exchange="none",
                topology="one machine",
            ),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class HogwildPlusPlus:
    """Hogwild in clusters, each with its own vector; a token walks their ring and lets neighbours meet (Zhang 2016)."""

    clusters: int | None = None  # 2, as many as a machine often has sockets
    hold: int = 16  # updates of a cluster between the token's coming and going; 64 single samples in the paper
    tolerance: float = 1e-6
    momentum: Momentum = "refuse"

    def strategy(self, workers: int) -> Strategy:
        groups = grouped("hogwild++", "clusters", min(2, workers) if self.clusters is None else self.clusters, workers)
        if self.hold < 1 or self.tolerance < 0:
            raise PlanError("hogwild++: hold must be 1 or more, and tolerance 0 or more")
        mixing = Mixing.of(groups.groups, self.tolerance)
        program = partial(clustered, groups=groups, mixing=mixing, hold=self.hold, momentum=self.momentum)
        return herding(
            "hogwild++", {**asdict(self), "clusters": groups.groups}, program, groups,
            scored="the mean of the workers' vectors",
            rate="as given: every update counts in full", scaling="divide it by the workers of a cluster",
            taxonomy=Taxonomy(
                optimization="decentral", architecture="memory", scheduling="asynchronous", exchange="token",
                topology="ring of clusters",
            ),
        )  # fmt: skip


UNDIVIDED = "changes weights in one memory while a step computes, and experts compute the tokens of several members"


def grouped(name: str, setting: str, groups: int, workers: int) -> WorkerGroups:
    if not 1 <= groups <= workers:
        raise PlanError(f"{name}({setting}={groups}): {workers} workers can form 1 to {workers}")
    return WorkerGroups(workers, groups)


def herding(
    name: str, settings: dict[str, Any], program: Callable[[Node, Replica], Coroutine[Effect[Any], Any, None]],
    groups: WorkerGroups, *, scored: str, rate: str, taxonomy: Taxonomy, scaling: str = KEEP,
) -> Strategy:  # fmt: skip
    """The family; where writers share a vector, the task's optimizer is looked at before anything starts."""
    shared = groups.groups < groups.workers
    accept = partial(check_momentum, momentum=settings["momentum"]) if shared else None

    def roles(workers: int, servers: int) -> list[Role]:
        return [Role(Address("worker", rank), program, trains=True, scored=True) for rank in range(workers)]

    return Strategy(
        name=name, settings=settings, roles=roles, description=Description(scored=scored, rate=rate, scaling=scaling),
        terms=TaskTerms(accept=accept, undivided=UNDIVIDED), taxonomy=taxonomy,
    )  # fmt: skip
