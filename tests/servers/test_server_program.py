"""The skeleton of servers: who is waited for, what is dispatched, and goodbyes of older checkpoints."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from covey.checkpoint.packing import unpack
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.servers.server_program import ServerProgram, serve
from covey.servers.standing import skip_to
from covey.servers.taking_part import first_step
from tests.worlds import perform, vector, worker

HEARD: list[str] = []
OLD = [
    "aggressive.leave_supersteps", "cache.retire", "cache.retired", "coded.leave_coded", "delayed.leave",
    "elastic.depart", "gossip.farewell", "lbfgs.close_shard", "lbfgs.leave_batches", "parting.leaving",
    "sandblaster.no_more", "shard.leave", "sliced.slice_done", "slices.finished", "sparknet.finished", "store.gone",
    "value_bound.leave_view", "value_bound.view_closed",
]  # fmt: skip
"""What each strategy called its own goodbye."""


class Word(Message):
    wire_name = "test_servers.word"

    text: str


class Listener(ServerProgram):
    """Writes down all that happens to it."""

    def __init__(self, node: Node, replica: Replica, *, clients: int) -> None:
        super().__init__(node, replica, clients)
        self.hears = {Word: self.listen}

    async def listen(self, word: Word) -> None:
        HEARD.append(f"{word.sender.rank}: {word.text}")

    async def left(self, who: Address) -> None:
        HEARD.append(f"{who.rank} left")

    async def settle(self) -> None:
        HEARD.append("-")


async def client(node: Node, replica: Replica, *, words: list[str], goodbyes: int, after: float) -> None:
    await node.sleep(after)
    for text in words:
        await node.send(worker(0), Word(text))
    for _ in range(goodbyes):
        await node.send(worker(0), Goodbye())


def test_a_server_hears_all_clients_to_their_goodbyes_and_counts_none_twice() -> None:
    """After a restart a client says goodbye again: whoever counted it twice would leave worker 2 alone."""
    HEARD.clear()
    first = partial(client, words=["hello"], goodbyes=2, after=0.0)
    second = partial(client, words=["late"], goodbyes=1, after=1.0)
    perform(partial(serve, Listener, clients=2), first, second)
    assert HEARD == ["1: hello", "-", "1 left", "-", "1 left", "-", "2: late", "-", "2 left", "-"]


@pytest.mark.parametrize("name", OLD)
def test_a_goodbye_of_an_older_checkpoint_is_still_one(name: str) -> None:
    kept = {"$message": name, "fields": {"sender": {"$tuple": ["worker", 3]}}}
    assert unpack(kept, {}) == Goodbye(sender=worker(3))


def test_no_new_message_takes_the_name_of_an_old_goodbye() -> None:
    with pytest.raises(TypeError, match=r"one wire_name, 'shard.leave': give one of them another"):

        class Newcomer(Message):
            wire_name = "shard.leave"


def test_statistics_move_as_far_as_the_gradients_are_of_all_workers() -> None:
    """One push of four moves them a quarter of the way; two that count twice as much, all of it."""
    server: Any = SimpleNamespace(first=True, team=4, replica=SimpleNamespace(buffers=vector(0.0)))
    ServerProgram.keep_buffers(server, [vector(8.0)])
    assert server.replica.buffers.parts[0].item() == 2.0
    ServerProgram.keep_buffers(server, [vector(8.0), vector(10.0)], [2.0, 4.0])
    assert server.replica.buffers.parts[0].item() == pytest.approx((2 * 8 + 4 * 10) / 6)
    server.first = False
    ServerProgram.keep_buffers(server, [vector(100.0)])
    ServerProgram.replace_buffers(server, [vector(100.0)])
    assert server.replica.buffers.parts[0].item() < 10, "another server has them"


def test_who_skips_steps_tells_of_the_samples_before_them() -> None:
    """Batches of 4 and of 5 samples in turn; the third is the next."""

    async def program(node: Node, replica: Replica) -> None:
        assert await skip_to(node, lambda rank, step: 4 + step % 2, 3) == 13
        assert list(node.steps()) == [3, 4]

    assert perform(program, steps=5).values("resumed") == [13]


@pytest.mark.parametrize(
    ("told", "step"),
    [
        ([(0, 4, False), (0, 6, False)], 6),  # it has pushed nothing yet, and is to be behind none
        ([(1, 4, True), (1, 6, True)], 4),  # one lacks two of its gradients
        ([(1, 4, True), (1, 6, False)], 3),  # one has none of them: that before its first is done again, too
        ([(1, 9, True), (2, 4, True)], 3),  # what one heard of an earlier incarnation says nothing of this one
    ],
)
def test_a_worker_goes_on_where_no_server_lacks_anything(told: list[tuple[int, int, bool]], step: int) -> None:
    entries: Any = [SimpleNamespace(entries=entry, step=at, pushed=pushed) for entry, at, pushed in told]
    assert first_step(entries) == step
