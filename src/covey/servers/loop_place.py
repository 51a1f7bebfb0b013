"""Where is the loop of a worker when a round is done? There the loop of one that replaces a lost worker goes on."""

from __future__ import annotations

from typing import Any

from covey.model.batches import CommonLoop
from covey.model.updates import copied
from covey.program import Node
from covey.servers.standing import remembered

PLACE = "own loop"
"""The name of it beside what workers have in common."""


class LoopPlace:
    """Of a loop of the user's own; a task has none, and nothing of this does anything then.

    Args:
        node: That of the worker.
        each_step: Whether every step is a round: then the loop waits at its place whenever somebody asks.
    """

    def __init__(self, node: Node, each_step: bool) -> None:
        self._each_step = each_step
        self._kept = remembered(node, "loop", dict[str, Any]())  # after the last round
        self.loop: CommonLoop | None = None
        self.inside = False  # a round is under way, and the loop waits for its outcome

    def begin(self, loop: CommonLoop | None) -> None:
        """The program begins."""
        self.loop = loop
        if not self._kept.value:
            self.mark()

    def mark(self) -> None:
        """A round is done, or none is begun: note where the loop is, if its worker now goes on alone."""
        self.inside = False
        if self.loop and not self._each_step:
            self._kept.value = copied(self.loop.give(under_way=False))  # it goes on, and writes into its tensors

    def give(self) -> dict[str, Any]:
        """For one that replaces a lost worker."""
        if not self.loop:
            return {}
        return {PLACE: self.loop.give(self.inside) if self._each_step else self._kept.value}

    def take(self, state: dict[str, Any], restarted: bool) -> None:
        """Let the loop of one that was restarted go on at this place."""
        place = state.pop(PLACE, None)
        if self.loop and place and restarted:
            self._kept.value = copied(place)
            self.loop.take(place)
