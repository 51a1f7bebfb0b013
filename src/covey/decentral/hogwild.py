"""Hogwild and its kin: workers that write one vector in shared memory, without locks; and vectors that meet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from covey.decentral.parting import Leaving, addresses, leave, part
from covey.errors import PlanError
from covey.message import Address, Message
from covey.program import Node
from covey.replica import Replica
from covey.strategy import Role, Strategy, Taxonomy
from covey.vector import Vector, chunks

Momentum = Literal["refuse", "drop"]


class Laid(Message):
    """The weights lie in shared memory."""

    counted = False


class Token(Message):
    """Whoever holds it may write into the next cluster's vector; there is exactly one."""

    counted = False


class Block(Message):
    """What one block of a machine's vector holds."""

    index: int
    values: Vector


@dataclass(frozen=True, slots=True)
class Herd:
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


async def worker(node: Node, replica: Replica, *, herd: Herd, momentum: Momentum) -> None:
    """Read without a lock, differentiate, write without a lock (Recht et al. 2011)."""
    await gather_round(node, replica, herd, momentum)
    for _ in node.steps():
        await step(node, replica)


async def step(node: Node, replica: Replica) -> None:
    replica.apply(await replica.gradient(node))
    await node.note("update")


async def gather_round(node: Node, replica: Replica, herd: Herd, momentum: Momentum, alone: bool = False) -> None:
    """Move to the vector of the group, which its first worker has laid out before; `alone` shares even a lone one's."""
    group = herd.group(node.rank)
    members = herd.members(group)
    if len(members) > 1:
        check_momentum(replica, momentum)
    elif not alone:
        return
    shared = node.share(replica.flat, group)
    if shared.parts[0].data_ptr() == replica.flat.parts[0].data_ptr():
        return  # begun again in the middle of a run
    if node.rank == members[0]:
        shared.copy_(replica.flat)
        await node.broadcast(addresses(members[1:]), Laid())
    else:
        await node.receive(Laid)
    replica.move(shared)


def check_momentum(replica: Replica, momentum: Momentum) -> None:
    """Racing writers are proven to agree for plain steps on sparse gradients; momentum makes every step dense."""
    for group in replica.optimizer.param_groups:
        if momentum == "drop" and "momentum" in group:
            group["momentum"], group["nesterov"] = 0.0, False
        if group.get("momentum") or "betas" in group:
            raise PlanError(
                f"the task's {type(replica.optimizer).__name__} keeps momentum, which Hogwild's writers cannot share: use "
                "torch.optim.SGD without momentum, or momentum=drop to train without the one that the task asks for"
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
        """beta^clusters + beta = 1 and lambda = 1 - beta^(clusters - 1): so an update counts once when it came round."""
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


async def clustered(node: Node, replica: Replica, *, herd: Herd, mixing: Mixing, hold: int, momentum: Momentum) -> None:
    """Write the cluster's vector; its first worker also carries the token round the ring of clusters."""
    await gather_round(node, replica, herd, momentum, alone=herd.groups > 1)
    leaders, group = herd.leaders(), herd.group(node.rank)
    if node.rank not in leaders or herd.groups == 1:
        for _ in node.steps():
            await step(node, replica)
        return
    ring = Ring(node, replica, node.share(replica.flat, (group + 1) % herd.groups), mixing)
    following = Address("worker", leaders[(group + 1) % herd.groups])
    others = [rank for rank in leaders if rank != node.rank]
    # the updates until the token goes on; -1: it is elsewhere
    held = node.remember(hold if group == 0 else -1)
    old = node.remember(replica.flat.clone())
    await see_ready(node, others)
    for _ in node.steps():
        await step(node, replica)
        if held.value < 0 and node.receive_nowait(Token):
            held.value = hold
        ...
