"""A message that is under way moves, however slow its link."""

from __future__ import annotations

from tests.real.harness import Room, fit


def test_what_is_under_way_at_the_end_is_waited_for_longer_than_roles_may_be_silent(room: Room) -> None:
    """Models of 1.4 KB leave at 4 KB/s: the last of 14 comes 6 s after the last step, and nothing else does."""
    task = room.task(model="nn.Linear(6, 60)")
    result = fit(task, "tree_easgd(up=1)", 2, steps=14, stall="2s", link_rate="32kbit")
    assert result.stopped == "budget" and result.samples
