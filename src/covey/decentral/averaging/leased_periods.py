"""Workers that train alone between averages, and come and go: each does its batches, then those who did average."""

from __future__ import annotations

from collections.abc import Callable

from covey.model.replica import Replica
from covey.program import Node
from covey.servers.leased_batches import leased_gradient
from covey.servers.leased_rounds import GroupAct, LeasedRounds


async def leased_periods(
    node: Node, replica: Replica, rounds: LeasedRounds, length: Callable[[int], int],
    mean: GroupAct, then: Callable[[], None],
) -> None:  # fmt: skip
    """Train for periods of a `length` in steps, told by their first one; each ends with the `mean` of those who did so.

    What follows from that on each of them is `then`. Steps since the last mean go with a worker, and its batches back
    to the list. A period that is cut short, as batches run out or the run is told to end, is averaged as well.
    """
    going, stopped = await rounds.begin_here(), False
    while going:
        while not stopped and await rounds.next(length):
            stopped = not await steps_alone(node, replica, rounds)
            if node.step == rounds.done and stopped:
                break  # nobody has begun
            if await rounds.conclude(mean, replica.model, stopped=stopped):
                then()
                await rounds.hand_out()
        going = not await rounds.part_from_all()


async def steps_alone(node: Node, replica: Replica, rounds: LeasedRounds) -> bool:
    """This worker's steps of a period; False: the run is told to end.

    One that has fewer batches than others counts as many steps, so that all can end after the same one.
    """
    active = node.address in rounds.active
    while node.step < rounds.end - 1:
        if not node.training():
            return False
        if active:
            await rounds.look()
        if lease := rounds.lease():
            grad = await leased_gradient(node, replica, lease)
            replica.progress.begin(replica.batch.samples * len(rounds.members))
            replica.apply(grad)
            await node.note("update")
        else:
            await node.save_point()
    return True
