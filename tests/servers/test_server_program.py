"""The skeleton of servers: who is waited for, what is dispatched, and goodbyes of older checkpoints."""

from __future__ import annotations

from functools import partial

import pytest

from covey.checkpoint.packing import unpack
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.servers.server_program import ServerProgram, serve
from tests.worlds import perform, worker

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
