"""What the launcher of a search and its trial server say to each other, besides segments."""

from __future__ import annotations

import msgspec

from covey.decoding import WireFormat


class Prepare(msgspec.Struct, frozen=True):
    """Which file the tasks of all trials are in."""

    task: str


class TrialEnded(msgspec.Struct, frozen=True):
    """The process of these trials has ended."""

    trials: list[int]
    code: int  # a negative one is a signal


preparations: WireFormat[Prepare] = WireFormat("task of a trial server", Prepare)
endings: WireFormat[TrialEnded] = WireFormat("report of the trial server", TrialEnded)
