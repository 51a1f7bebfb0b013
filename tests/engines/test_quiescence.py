"""How a run comes to rest, step by step; tests/real has it at work."""

from __future__ import annotations

from covey.engines.process.launcher.quiescence import Quiescence


class Counting(Quiescence):
    """Is told so many messages, one count after the other; None: something moves, or is under way."""

    def __init__(self, counts: list[int | None]) -> None:
        self.counts = counts

    def still(self) -> int | None:
        return self.counts.pop(0)


def test_a_checkpoint_waits_for_two_equal_counts_in_a_row() -> None:
    """Roles are counted one by one: one count may miss what was sent behind its back (Mattern 1987)."""
    counts = [None, 5, 6, None, 6, 6, 7]
    Counting(counts).drain()
    assert counts == [7]
