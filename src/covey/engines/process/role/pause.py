"""A role's pause while the model is scored: all roles pause equally long, whenever their pause began."""

from __future__ import annotations

import time


class Pause:
    """Roles stop one after another, each at the end of its work, and go on in the same order.

    So no role loses the lead that it had. A role stands still from the moment in which it would have gone on: one that
    waits for a message does so until the message is there.
    """

    __slots__ = ("_since", "_until", "on")

    def __init__(self) -> None:
        self.on = False
        self._since: float | None = None  # work has been waiting
        self._until: float | None = None  # it waits; unknown before the launcher's word

    def begin(self) -> None:
        """Who still stands from the last time does so for that long, and then for this one."""
        self._since = self._until if self.on else None
        self.on, self._until = True, None

    def refuse(self) -> None:
        """There is work, which must wait."""
        if self._since is None:
            self._since = time.monotonic()

    @property
    def waiting(self) -> bool:
        """Whether work waits for nothing but the end of the pause."""
        return self.on and self._since is not None

    def end(self, pause: float) -> None:
        """All roles stand still for this long."""
        now = time.monotonic()
        self._until = now if self._since is None else self._since + pause

    def cancel(self) -> None:
        """Whoever pauses, and has not been told for how long, goes on now."""
        if self.endless:
            self.end(0.0)

    @property
    def endless(self) -> bool:
        """Whether nobody has said yet how long the pause is."""
        return self.on and self._until is None

    @property
    def deadline(self) -> float | None:
        """When the role goes on, if that is known."""
        return self._until if self.on else None

    def over(self) -> bool:
        """Whether the role goes on now; true once for every pause."""
        if self._until is None or not self.on or time.monotonic() < self._until:
            return False
        self.on = False
        return True
