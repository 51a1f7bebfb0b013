"""What an engine gives a run, and on which terms the hosts of a run meet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from covey.engines.cluster.site_messages import SiteConfig
from covey.engines.process.liveness import STALL

HERE = "127.0.0.1"


class Places(ABC):
    """The places of a run are its sites: processes of covey on the hosts of an engine, which start the roles.

    A subclass must have `open`, `invite`, `lost` and `close`. All else it may have: `address`, at which sites find the
    launcher; `pids` and `begin`; `native`, collectives of the engine's own; `separate`, whether networks of this
    machine count as different machines. One whose sites can be started again when they are lost has `ended` and
    `invite_again`, too; and if it can take a host away and bring it back, `depart` and `arrive`.

    >>> class Jobs(covey.Places):
    ...     def open(self, patience: float) -> list[str]:
    ...         return ["node1", "node2"]
    ...     def invite(self, configs: "list[covey.SiteConfig]", handed: bytes) -> None: ...
    ...     def lost(self) -> str:
    ...         return ""
    ...     def close(self, well: bool) -> None: ...
    """

    address: str = HERE
    separate: bool = False

    @abstractmethod
    def open(self, patience: float) -> list[str]:
        """Get the hosts, and return the name of each site's host.

        Args:
            patience: The seconds within which hosts that come by themselves must be there.
        """

    @abstractmethod
    def invite(self, configs: Sequence[SiteConfig], handed: bytes) -> None:
        """Start one site for each config, in the order of `open`, without waiting for them.

        Args:
            configs: What each site must know. It holds secrets: give it to nobody else.
            handed: A task of the launcher's memory, for every site; empty if the task is in a file.
        """

    @abstractmethod
    def lost(self) -> str:
        """Say in a sentence which site has ended; return an empty text if none has. It must not wait."""

    @abstractmethod
    def close(self, well: bool) -> None:
        """End all sites and remove what `open` and `invite` made, even if one of them failed or was not called.

        Args:
            well: Whether the run ended well. Its sites have been asked to leave, and need a moment for it.
        """

    def ended(self) -> dict[int, str]:
        """The sites that have ended since the last time, by number, each with a sentence as `lost` returns it."""
        return {}

    def invite_again(self, config: SiteConfig) -> bool:
        """Start a site in the place of a lost one, which must not live on; False while its host is away.

        Args:
            config: What the site must know. Its `site` is the number of the lost one.
        """
        raise NotImplementedError(f"sites of {type(self).__qualname__} are not started again")

    def depart(self, site: int) -> bool:
        """Take the host of a site away, with all that runs there; False if only the site is to end, which is asked to.

        Args:
            site: Its number. Nothing else of the run lives on this host.
        """
        return False

    def arrive(self, site: int) -> None:
        """Bring back a host that has departed: `invite_again` follows.

        Args:
            site: Its number.
        """
        return

    def pids(self) -> list[int]:
        """The processes of this machine that covey has started for the engine: a stopped one is reported."""
        return []

    def begin(self) -> None:
        """Training begins: all roles are ready."""
        return

    @property
    def native(self) -> str:
        """The module by which roles sum without covey's links, and its arguments; empty if there is none."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingTerms:
    """How the hosts of a run meet."""

    place: str = ""
    interface: str = ""
    insecure: bool = False
    cipher: str = ""  # of tensors between hosts; none: CURVE's
    threads: int = 1  # with which a role computes
    stall: float = STALL  # seconds for which a process may give no sign of life
    say: Callable[[str], None] = lambda line: None  # shows a line to the person
