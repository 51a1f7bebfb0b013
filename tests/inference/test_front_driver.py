"""The front's program on a real event loop."""

from __future__ import annotations

import asyncio

import pytest
import torch

from covey.inference.front_driver import FrontDriver
from covey.inference.messages import AnsweredBatch, ReplicaReady, RequestBatch
from covey.inference.request_desk import FrontSettings
from covey.inference.versions.bandit import Exp4
from covey.message import Address, Message

REPLICA = Address("replica", 0)


def test_a_deadline_that_comes_before_the_one_that_is_waited_for_is_kept() -> None:
    """Version 1 never answers: after 50 ms clients have the answer of version 0, and the front waits for the deadline
    of what version 1 has. Then somebody asks again."""

    async def seconds() -> list[float]:
        clock, found = asyncio.get_running_loop(), list[float]()

        def send(to: Address, message: Message) -> None:
            if to == REPLICA and isinstance(message, RequestBatch):
                clock.call_soon(driver.deliver, AnsweredBatch(message.number, message.rows, sender=to))

        driver = FrontDriver(FrontSettings(objective=5.0, deadline=5.0), send, choice=Exp4(2, patience=0.05))
        try:
            for rank in (0, 1):
                driver.deliver(ReplicaReady(sender=Address("replica", rank)))
            for _ in range(2):
                begun = clock.time()
                assert (await driver.ask(torch.ones(2))).status == 200
                found.append(clock.time() - begun)
            return found
        finally:
            driver.close()

    assert max(asyncio.run(seconds())) < 3.0


def test_the_loop_of_the_command_may_be_asked_to_wait_for_less_than_a_millisecond() -> None:
    """uvloop then gives a handle that does not tell its time, as it will ring at once."""
    uvloop = pytest.importorskip("uvloop")

    async def statuses() -> dict[int, int]:
        driver = FrontDriver(FrontSettings(objective=1e-4, deadline=3e-4), lambda to, message: None)
        try:
            await asyncio.gather(*(asked(driver, wait) for wait in (0.0, 1e-4, 2e-4)))
            return dict(driver.statuses)
        finally:
            driver.close()

    async def asked(driver: FrontDriver, wait: float) -> None:
        await asyncio.sleep(wait)
        asking = asyncio.ensure_future(driver.ask(torch.ones(2)))
        await asyncio.sleep(0)
        driver.deliver(ReplicaReady(sender=REPLICA))
        await asking

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(asyncio.wait_for(statuses(), 5)) == {504: 3}


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
