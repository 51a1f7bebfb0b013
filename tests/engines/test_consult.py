"""Work that asks its peers something before it is done."""

from __future__ import annotations

from contextlib import suppress
from threading import enumerate as enumerate_threads
from typing import Any

import pytest
import torch

from covey.engines.virtual.interrupted_work import Asked, InterruptedWork, WorkClosed
from covey.errors import Stalled
from covey.message import Message
from covey.model.replica import Replica
from covey.program import Node
from tests.worlds import INSTANT, perform, slowed, worker


class Word(Message):
    wire_name = "test.consult.word"

    number: float

    counted = False


async def exchange(node: Node, number: float) -> float:
    """Tell the other worker a number, and hear its own."""
    other = worker(1 - node.rank)
    await node.send(other, Word(number))
    return (await node.receive(Word, sender=other)).number


def asking(*progress: float, numbers: dict[int, list[float]], ends: dict[int, float]) -> Any:
    async def program(node: Node, replica: Replica) -> None:
        def work() -> list[float]:
            return [node.consult(exchange(node, 10 * node.rank + turn), at) for turn, at in enumerate(progress)]

        while node.training():
            numbers[node.rank] = await node.compute(work, talks=True)
            ends[node.rank] = await node.now()

    return program


def test_everybody_hears_the_other_at_every_turn_and_time_goes_on_from_there() -> None:
    """Work takes 10 ms, and worker 1's 30: it asks half way, at 15 ms, where the other has waited since 5."""
    numbers: dict[int, list[float]] = {}
    ends: dict[int, float] = {}
    program = asking(0.5, 0.5, numbers=numbers, ends=ends)
    log = perform(program, program, cluster=slowed(INSTANT, w1=3))
    assert numbers == {0: [10, 11], 1: [0, 1]}
    assert ends == pytest.approx({0: 0.020, 1: 0.030})
    computed = [(round(1e3 * begin), round(1e3 * end)) for begin, end, who in log.computes if who == worker(0)]
    assert computed == [(0, 5), (15, 20)]


def test_chance_goes_on_where_it_stood() -> None:
    drawn: dict[int, list[float]] = {0: [], 1: []}

    async def program(node: Node, replica: Replica) -> None:
        def work() -> None:
            torch.manual_seed(node.rank)
            for turn in range(3):
                drawn[node.rank].append(torch.rand(()).item())
                node.consult(exchange(node, turn), 0.5)

        await node.compute(work, talks=True)

    perform(program, program)
    for rank in (0, 1):
        torch.manual_seed(rank)
        assert drawn[rank] == [torch.rand(()).item() for _ in range(3)]


def test_a_failure_after_a_question_is_the_works_own() -> None:
    async def program(node: Node, replica: Replica) -> None:
        def work() -> None:
            node.consult(exchange(node, 1.0), 0.5)
            raise ValueError("no more")

        await node.compute(work, talks=True)

    with pytest.raises(ValueError, match="no more") as failure:
        perform(program, program)
    assert "worker" in failure.value.__notes__[0]
    assert not [thread for thread in enumerate_threads() if thread.name == "work"]


def test_a_question_that_nobody_answers_is_seen_in_the_picture() -> None:
    async def silent(node: Node, replica: Replica) -> None:
        pass

    program = asking(0.5, numbers={}, ends={})
    with pytest.raises(Stalled, match="worker 0 .a companion. waits for Word from worker 1.*worker 1 has ended"):
        perform(program, silent)
    assert not [thread for thread in enumerate_threads() if thread.name == "work"]


@pytest.mark.parametrize("asked", [0.0, 0.25, 0.5, 0.75])
def test_what_work_posts_after_a_question_comes_in_its_time(asked: float) -> None:
    """Work takes 10 ms; three quarters of it are done at 7.5 ms, whenever it has asked."""
    came: dict[int, float] = {}

    async def program(node: Node, replica: Replica) -> None:
        def work() -> None:
            node.consult(exchange(node, node.rank), asked)
            node.host.post(Word(7.0, sender=node.address), 0.75)

        async def hears() -> None:
            await node.receive(Word, sender=node.address)
            came[node.rank] = await node.now()

        await node.spawn(hears())
        while node.training():
            await node.compute(work, talks=True)

    perform(program, program, cluster=INSTANT)
    assert came == pytest.approx({0: 0.0075, 1: 0.0075})


def test_work_that_asks_again_after_its_end_gets_no_answer() -> None:
    """What catches the error and asks once more would else wait for ever, and the engine for it."""
    asked: list[str] = []

    def work() -> None:
        for _ in range(2):
            with suppress(WorkClosed):
                found.ask(_nothing(), 0.5)
            asked.append("answered")

    found = InterruptedWork(work)
    assert isinstance(found.go_on(), Asked)
    found.close()
    assert asked == ["answered", "answered"]


async def _nothing() -> None:
    pass
