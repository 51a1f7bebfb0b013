"""What may a person ask, where a run has several launchers?"""

from __future__ import annotations

from dataclasses import dataclass

from covey.checkpoint.etcd_client import place_of
from covey.run.option_parts import Kind, OptionPart

LOCAL: frozenset[Kind] = frozenset({"local"})
FILE = "file"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeadOptions(OptionPart):
    """Which launcher has the run, where there are several."""

    read_by = LOCAL

    keeper: str = FILE  # of the launcher's log, or etcd:HOST:PORT/NAME
    standby: bool = False

    def check(self) -> None:
        if self.keeper != FILE:
            place_of(self.keeper)
