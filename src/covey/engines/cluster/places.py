"""What an engine gives a run, and on which terms the hosts of a run meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from covey.engines.cluster.site_messages import SiteConfig
from covey.engines.process.liveness import STALL


class Places(Protocol):
    """As many sites as the engine has names of hosts, and news of those that died."""

    address: str  # at which the launcher is found from the sites

    def open(self, patience: float) -> list[str]:
        """The host of each site, which will be invited; those that come by themselves do so in `patience` seconds."""
        ...

    def invite(self, configs: Sequence[SiteConfig], handed: bytes) -> None:
        """Have one site begin for each config."""
        ...

    def lost(self) -> str:
        """What the engine itself knows to have died, in words; nothing if all is well."""
        ...

    def pids(self) -> list[int]:
        """The processes of this machine by which the engine runs its sites, as far as covey has started them."""
        ...

    def close(self, well: bool) -> None:
        """The run is over: leave nothing behind. Sites were told to leave if all went `well`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingTerms:
    """How the hosts of a run meet."""

    place: str = ""
    interface: str = ""
    insecure: bool = False
    threads: int = 1  # with which a role computes
    stall: float = STALL  # seconds for which a process may give no sign of life
    say: Callable[[str], None] = lambda line: None  # tells a person
