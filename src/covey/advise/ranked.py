"""One strategy of the advice, with its reasons and risks."""

from __future__ import annotations

from typing import Literal

import msgspec

Basis = Literal["trained in virtual time", "timed in virtual time", "formulas"]


class RankedStrategy(msgspec.Struct, kw_only=True):
    """One strategy of the list."""

    spec: str
    workers: int
    relative: float  # time to the target, in that of one worker alone
    seconds: float | None = None  # to the target, where one was trained for
    step: float  # seconds
    exchange: float  # the share of a step that is exchange
    staleness: float = 0.0  # updates
    missed: bool = False  # a short run of it did not come to the target
    times: list[float] = []  # to the target, of each run
    tried: float = 0.0  # seconds of a run that ended before the target
    money: float | None = None
    basis: Basis
    family: str
    reasons: list[str] = []
    risks: list[str] = []
    command: str = ""
