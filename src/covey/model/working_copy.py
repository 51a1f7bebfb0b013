"""On which weights does a replica compute, while a companion may write its own?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from covey.model.flat import Flat
from covey.vector import Vector


class WorkingCopy:
    """A second set of parameters, of a replica that has asked for one.

    Parameters that are views of one vector defeat autograd's own check for writes, so the copy is not optional.
    """

    def __init__(self, layout: Flat) -> None:
        self._layout = layout
        self._copy: Vector | None = None

    def make(self) -> None:
        """Let the module compute on a copy from now on."""
        if self._copy is None:
            self._copy = self._layout.params.clone()
            self._layout.aim(self._copy)

    def refresh(self) -> None:
        """Bring the copy up to date: where no companion runs, and not on the compute thread."""
        if self._copy is not None:
            self._copy.copy_(self._layout.params)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let the module have the replica's own parameters meanwhile, for a step of the optimizer."""
        if self._copy is not None:
            self._layout.aim(self._layout.params)
        try:
            yield
        finally:
            if self._copy is not None:
                self._layout.aim(self._copy)
