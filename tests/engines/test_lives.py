"""What roles keep apart of two lives of a peer: its memory, its frames, its window."""

from __future__ import annotations

import pytest
import torch

from covey.engines.transport.frames import OPEN, Frame, read
from covey.engines.transport.inbox import Inbox
from covey.engines.transport.shared_blocks import SharedBlocks
from covey.engines.transport.shared_segment import new_file
from covey.errors import WireError
from covey.vector import Vector
from tests.worlds import server, worker


def test_a_next_life_writes_behind_what_its_predecessor_left() -> None:
    file = new_file()
    before = SharedBlocks(file).house(Vector([torch.ones(5000)]))
    now = SharedBlocks(file)
    after = now.house(Vector([torch.full((5000,), 2.0)]))
    assert bool((before.parts[0] == 1).all())
    now.release(1 << 62)  # nobody reads the old one: only that is given back
    assert bool((before.parts[0] == 0).all()) and bool((after.parts[0] == 2).all())


def test_frames_of_an_earlier_life_are_dropped_and_of_an_unknown_one_refused() -> None:
    inbox = Inbox([server(0), worker(0)], limit=1000)
    first, second = (Frame(OPEN, 1, 0, 0, 0, life=life) for life in (0, 1))
    assert read(first.pack())[0] == first and read(second.pack())[0] == second
    assert not inbox.outdated(first) and inbox.seen[1].first(0)
    with pytest.raises(WireError, match="life 1 of worker 0 is refused"):
        inbox.outdated(second)
    assert inbox.renew(worker(0), 1) and not inbox.renew(worker(0), 1)
    assert inbox.outdated(first) and not inbox.outdated(second)
    assert inbox.seen[1].first(0), "a new life counts its messages anew"
