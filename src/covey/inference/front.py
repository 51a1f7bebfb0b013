"""The front: takes requests, puts them into batches, and answers each one exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from covey.inference.messages import (
    CLIENTS,
    POOL,
    AnsweredBatch,
    EndReplica,
    InferenceAnswer,
    InferenceFeedback,
    InferenceRequest,
    LoadQuestion,
    ReplicaLost,
    ReplicaReady,
    RetireReplica,
)
from covey.inference.request_desk import FrontSettings, RequestDesk
from covey.inference.versions.choice import OneVersion, VersionChoice
from covey.message import Message
from covey.program import Node, Receive

KINDS: Final = (
    InferenceRequest, AnsweredBatch, ReplicaReady, ReplicaLost, LoadQuestion, RetireReplica, InferenceFeedback,
)  # fmt: skip


async def front(node: Node, settings: FrontSettings, choice: VersionChoice | None = None) -> None:
    """Answer requests by means of whichever replicas are there."""
    choice = choice or OneVersion()
    desks, now = [RequestDesk(settings, version) for version in range(choice.count)], await node.now()
    while True:
        message = await Receive(KINDS, timeout=patience([*desks, choice], now))
        now = await node.now()
        if isinstance(message, InferenceFeedback):
            choice.learn(message)
        found = [*answers(message, desks, choice, now, node.rng)]
        while more := node.receive_nowait(InferenceRequest):  # requests that came at once go into one batch
            found += answers(more, desks, choice, now, node.rng)
        for answer in found:
            await node.send(CLIENTS, answer)
        if isinstance(message, LoadQuestion):
            await node.send(message.sender, desks[message.sender.rank].load())
        if decided := choice.decided():
            for desk in desks:
                desk.closed = desk.version != decided.winner
            await node.send(POOL, decided)
        for desk in desks:
            await look_after(node, desk, now)


async def look_after(node: Node, desk: RequestDesk, now: float) -> None:
    """Give batches to the replicas of a version, and end those that are stuck or not needed."""
    for replica in desk.stuck(now):
        await node.send(replica, EndReplica())
    for replica in desk.retired():
        await node.send(replica, RetireReplica(replica.rank))
    for replica, batch in desk.batches(now):
        await node.send(replica, batch, paced=True)
        await node.note("batch", len(batch.rows.parts[0]))


def answers(
    message: Message | None, desks: Sequence[RequestDesk], choice: VersionChoice, now: float, rng: Random
) -> Iterator[InferenceAnswer]:
    """What clients get because of a message, or because it is late."""
    concerned = concerns(message, choice, now, rng)
    for desk in desks:
        for answer in [*(desk.take(message, now) if desk.version in concerned else ()), *desk.expired(now)]:
            if (told := choice.collect(desk.version, answer, now)) is not None:
                yield told
    yield from choice.overdue(now)


def concerns(message: Message | None, choice: VersionChoice, now: float, rng: Random) -> Sequence[int]:
    """The versions that a message is for. Replicas have ranks from which follows whose they are."""
    match message:
        case InferenceRequest():
            return choice.choose(message, now, rng)
        case RetireReplica():
            return (message.rank % choice.count,)
        case AnsweredBatch() | ReplicaReady() | ReplicaLost():
            return (message.sender.rank % choice.count,)
    return ()


def patience(those: Sequence[RequestDesk | VersionChoice], now: float) -> float | None:
    """Seconds until the next deadline of any."""
    return min((found for one in those if (found := one.patience(now)) is not None), default=None)
