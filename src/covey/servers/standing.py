"""How does a worker that was restarted find its place? Servers say which of its steps they have not had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from covey.membership import MEMBERSHIP
from covey.message import Address, Message
from covey.model.batches import CommonLoop
from covey.model.replica import Replica
from covey.program import Memory, Node
from covey.vector import Vector

T = TypeVar("T")

LEFT = -1  # in place of a step, to one that has already said goodbye
UNKNOWN = -2  # from one that keeps no account of steps: the engine knows where its client was last seen


class AskStanding(Message):
    """A client asks whether all that it has sent has come."""

    wire_name = "servers.ask_standing"

    incarnation: int

    counted = kept = False


class ClientStanding(Message):
    """The first step of a client of which nothing has come to the sender; the mean float buffers, if it keeps them."""

    wire_name = "servers.standing"

    incarnation: int
    step: int
    buffers: Vector

    counted = kept = False


def remembered(node: Node, name: str, value: T) -> Memory[T]:
    """A value that survives a restart where workers are restarted; the checkpoint of another run gives this one."""
    return node.remember(MEMBERSHIP + name, value) if node.incarnation.elastic else Memory(value)


async def rejoin(node: Node, replica: Replica, servers: Sequence[Address], *stale: type[Message]) -> bool:
    """Begin, or go on where an earlier incarnation was lost: at the first step a server lacks; False: none is left.

    Answers to the earlier incarnation, of the kinds `stale`, are dropped: a server sends none after it told the step.
    """
    if not node.incarnation.enters:
        return True
    # Whoever has heard a goodbye has everything, and so do all others: see `complete`.
    if node.incarnation.ended and any(server in node.incarnation.ended for server in servers):
        return False
    steps = []
    for server in servers:
        standing = await _standing(node, server)
        while node.receive_nowait(*stale, sender=server):
            pass
        steps.append(standing.step)
        if standing.buffers.parts:
            replica.buffers.copy_(standing.buffers)
    if LEFT in steps:
        return False
    await begin(node, replica, node.incarnation.step if UNKNOWN in steps else min(steps))
    return True


async def begin(node: Node, replica: Replica, step: int) -> None:
    """Let this step be the next; all before it count as done."""
    done = await skip_to(node, replica.batch_source.samples, step)
    replica.progress.reach(done * node.workers)


async def skip_to(
    node: Node, samples: Callable[[int, int], int], step: int, loop: CommonLoop | None = None
) -> int:  # fmt: skip
    """Let this step be the next; how many of its own samples a worker has done then, as a loop of its own counts them.

    Programs count those of a loop as one in each step.
    """
    while node.step < step - 1:
        node.training()
    done = sum(samples(node.rank, past) for past in range(step))
    await node.note("resumed", loop.samples if loop else done)
    return done


async def complete(node: Node, servers: Sequence[Address]) -> None:
    """Before the goodbye, where lost workers are restarted: wait until every server has all that was sent to it.

    So no server ends while another one lacks a step, which a next incarnation could not do without the first's weights.
    """
    if not node.incarnation.elastic:
        return
    await node.broadcast(servers, AskStanding(node.incarnation.number))
    for server in servers:
        await _standing(node, server)


async def _standing(node: Node, server: Address) -> ClientStanding:
    """What this server says to this incarnation, and not to an earlier one."""
    while (found := await node.receive(ClientStanding, sender=server)).incarnation != node.incarnation.number:
        pass
    return found
