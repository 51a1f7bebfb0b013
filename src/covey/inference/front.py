"""The front: takes requests, puts them into batches, and answers each one exactly once."""

from __future__ import annotations

from typing import Final

from covey.inference.messages import (
    CLIENTS,
    AnsweredBatch,
    EndReplica,
    InferenceRequest,
    LoadQuestion,
    ReplicaLost,
    ReplicaReady,
    RetireReplica,
)
from covey.inference.request_desk import FrontSettings, RequestDesk
from covey.program import Node, Receive

KINDS: Final = (InferenceRequest, AnsweredBatch, ReplicaReady, ReplicaLost, LoadQuestion, RetireReplica)


async def front(node: Node, settings: FrontSettings) -> None:
    """Answer requests by means of whichever replicas are there."""
    desk, now = RequestDesk(settings), await node.now()
    while True:
        message = await Receive(KINDS, timeout=desk.patience(now))
        now = await node.now()
        for answer in [*desk.take(message, now), *desk.expired(now)]:
            await node.send(CLIENTS, answer)
        if isinstance(message, LoadQuestion):
            await node.send(message.sender, desk.load())
        for replica in desk.stuck(now):
            await node.send(replica, EndReplica())
        for replica in desk.retired():
            await node.send(replica, RetireReplica(replica.rank))
        for replica, batch in desk.batches(now):
            await node.send(replica, batch, paced=True)
            await node.note("batch", len(batch.rows.parts[0]))
