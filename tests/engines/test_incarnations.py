"""What roles keep apart of two incarnations of a peer: its memory, its frames, its window."""

from __future__ import annotations

import pytest
import torch

from covey.engines.transport.credits import Credits
from covey.engines.transport.frames import OPEN, Frame, read
from covey.engines.transport.inbox import Inbox
from covey.engines.transport.shared.blocks import SharedBlocks
from covey.engines.transport.shared.segment import new_file
from covey.engines.window import weight
from covey.errors import WireError
from covey.message import stamped
from covey.vector import Vector
from tests.engines.stage import ping
from tests.worlds import server, worker


def test_a_next_incarnation_writes_behind_what_its_predecessor_left() -> None:
    file = new_file()
    before = SharedBlocks(file).house(Vector([torch.ones(5000)]))
    now = SharedBlocks(file)
    after = now.house(Vector([torch.full((5000,), 2.0)]))
    assert bool((before.parts[0] == 1).all())
    now.release(1 << 62)  # nobody reads the old one: only that is given back
    assert bool((before.parts[0] == 0).all()) and bool((after.parts[0] == 2).all())


def test_frames_of_an_earlier_incarnation_are_dropped_and_of_an_unknown_one_refused() -> None:
    inbox = Inbox([server(0), worker(0)], limit=1000)
    first, second = (Frame(OPEN, 1, 0, 0, 0, incarnation=incarnation) for incarnation in (0, 1))
    assert read(first.pack())[0] == first and read(second.pack())[0] == second
    assert not inbox.outdated(first) and inbox.seen[1].first(0)
    with pytest.raises(WireError, match="incarnation 1 of worker 0 is refused"):
        inbox.outdated(second)
    assert inbox.renew(worker(0), 1) and not inbox.renew(worker(0), 1)
    assert inbox.outdated(first) and not inbox.outdated(second)
    assert inbox.seen[1].first(0), "a new incarnation counts its messages anew"


def test_what_a_dead_reader_had_given_back_does_not_free_the_next_readers_block() -> None:
    blocks = SharedBlocks(new_file())
    block = blocks.block(1000, worker(0))
    assert block is not None
    block.back.give()  # just before its death; nobody has looked since
    blocks.reclaim(worker(0))
    assert blocks.block(1000, worker(1)) is block and not block.free()
    block.back.give()
    assert block.free()


def test_what_lies_unread_of_an_earlier_incarnation_is_not_in_the_window_of_the_next() -> None:
    credits = Credits(window=4000)
    old, new = ([stamped(ping(step), worker(0), copy=False) for step in range(3)] for _ in range(2))
    for message in old:
        credits.arrived(message)
    credits.renew(worker(0), old)
    for message in new:
        credits.arrived(message)
    for message in old:
        credits.taken(message)
    unread = sum(map(weight, new))
    assert credits.unread[worker(0)] == unread and credits.due(worker(0), lambda who: False) is None
    for message in new:
        credits.taken(message)
    assert worker(0) not in credits.unread and credits.due(worker(0), lambda who: False) == unread


def test_what_an_earlier_incarnation_was_told_holds_back_no_receipt_of_the_next() -> None:
    """The next one has sent less than its predecessor, and its window is as narrow as that one's was."""
    credits, step = Credits(window=4000), stamped(ping(), worker(0), copy=False)
    for _ in range(9):
        credits.arrived(step)
        credits.taken(step)
    assert credits.due(worker(0), lambda who: False) == 9 * weight(step)
    credits.renew(worker(0), [])
    for _ in range(3):
        credits.arrived(step)
        credits.taken(step)
    assert credits.due(worker(0), lambda who: False) == 3 * weight(step)


def test_what_two_earlier_incarnations_left_is_in_no_window() -> None:
    """Both senders are restarted before anything of theirs was read."""
    credits = Credits(window=4000)
    old = [stamped(ping(0), worker(rank), copy=False) for rank in range(2)]
    for message in old:
        credits.arrived(message)
    for message in old:
        credits.renew(message.sender, [message])
    fresh = stamped(ping(1), worker(0), copy=False)
    credits.arrived(fresh)
    for message in old:
        credits.taken(message)
    assert credits.unread == {worker(0): weight(fresh)}
