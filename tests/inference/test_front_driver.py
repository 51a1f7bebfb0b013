"""The front's program on a real event loop."""

from __future__ import annotations

import asyncio

import torch

from covey.inference.front_driver import FrontDriver
from covey.inference.messages import AnsweredBatch, ReplicaReady, RequestBatch
from covey.inference.request_desk import FrontSettings
from covey.message import Address, Message

REPLICA = Address("replica", 0)


def test_requests_that_come_at_once_are_one_batch() -> None:
    """Whoever is read first does not go alone while the others wait for it."""

    async def batches() -> list[int]:
        clock = asyncio.get_running_loop()

        def send(to: Address, message: Message) -> None:
            assert isinstance(message, RequestBatch)
            clock.call_soon(driver.deliver, AnsweredBatch(message.number, message.rows, sender=to))

        driver = FrontDriver(FrontSettings(objective=100.0, deadline=100.0), send)
        try:
            driver.deliver(ReplicaReady(sender=REPLICA))
            for _ in range(20):  # in which the replica's batches grow
                answers = await asyncio.gather(*(driver.ask(torch.tensor([float(n)])) for n in range(5)))
                assert [answer.row.parts[0].item() for answer in answers] == [0, 1, 2, 3, 4]
            return list(driver.batches)
        finally:
            driver.close()

    assert asyncio.run(batches())[-10:] == [5] * 10
