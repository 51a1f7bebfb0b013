"""Did other programs take cores from a run? What was measured, and the judgement."""

from __future__ import annotations

import msgspec

OTHERS = 0.15  # of the cores that a run may use: with less than this taken by others it is undisturbed
DELAY = 0.1  # of the time that roles could have run: with less spent on waiting for a core there were enough cores


class Contention(msgspec.Struct, frozen=True, kw_only=True):
    """What happened on this machine's cores while a run trained; null where Linux does not tell."""

    cores: int  # that the run may use
    cpu: float  # cores that the run used, with its scorer and launcher
    others: float | None  # cores that all other programs used
    delay: float | None  # share of the time in which a role could run and waited for a core
    pressure: float | None  # share of the time in which any program of this machine waited for a core

    @property
    def disturbed(self) -> bool | None:
        """Whether others used many of its cores and it had to wait; None where that was not measured."""
        if self.others is None or self.delay is None:
            return None
        return self.others >= OTHERS * self.cores and self.delay >= DELAY
