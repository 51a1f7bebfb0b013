"""Messages between a launcher and its sites, and the config that a site starts with."""

from __future__ import annotations

import os
import sys

import msgspec

from covey.address import Address
from covey.decoding import WireFormat
from covey.engines.cluster.this_host import HostIdentity
from covey.engines.process.line_identity import secret_identity
from covey.engines.process.liveness import STALL
from covey.engines.transport.keys import Pair
from covey.engines.transport.secretive import Secretive
from covey.engines.transport.token import NONE
from covey.model.threads import limited_to

SITE = "covey.engines.cluster.site"


class SiteConfig(Secretive, frozen=True, kw_only=True):
    """What a site must know to start; the engine's own channel carries it, for it holds the site's key.

    An engine starts `command` with the variables of `environment`, and writes `packed(handed)` to its standard input.
    `called` names the site and the roles that will live there.

    >>> def start(config: covey.SiteConfig, handed: bytes) -> None:
    ...     subprocess.run(config.command, env=config.environment, input=config.packed(handed))
    """

    site: int
    incarnation: int = 0  # how many sites of this number were lost before
    token: bytes = NONE  # of the run
    launcher: str  # the endpoint at which sites are awaited
    key: str = ""  # the launcher's public key; none: --insecure
    pair: Pair | None = None
    warm: str  # the module that roles need
    threads: int = 1  # with which a role computes
    task: str = ""  # the file that must be the same everywhere
    interface: str = ""  # where the roles listen: the name of an interface, or an address
    code: bytes = b""  # the task's file and the modules beside it, for a host that does not have them
    roles: list[str] = msgspec.field(default_factory=list)  # who will live there, for engines that show names
    stall: float = STALL  # seconds for which a process may give no sign of life
    secret: bytes = b""  # of the sites, by which those of one machine know each other when they share memory
    apart: bool = False  # the run goes on without this site when it is lost, so others share nothing with it

    @property
    def identity(self) -> bytes:
        """By which the launcher knows this site, and no earlier one of its number."""
        return secret_identity(Address("site", self.site), self.incarnation, self.pair)

    @property
    def called(self) -> str:
        return f"site {self.site}" + (f": {', '.join(self.roles)}" if self.roles else "")

    @property
    def command(self) -> list[str]:
        """A site: it reads its config from its standard input."""
        return [sys.executable, "-m", SITE]

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a site on this machine, which finds the modules that this process finds."""
        path = os.pathsep.join(path for path in sys.path if path)
        return {**os.environ, **limited_to(self.threads), "PYTHONPATH": path}

    def packed(self, handed: bytes = b"") -> bytes:
        """The config and what was handed over, as a site reads them."""
        data = msgspec.msgpack.encode(self)
        return len(data).to_bytes(8, "big") + data + handed


class SiteMessage(msgspec.Struct, frozen=True, tag=True):
    """Something said on the line between a site and the launcher."""


class Arrived(SiteMessage, frozen=True):
    """The site is there."""

    host: str
    address: str  # where its roles hear
    cores: int
    versions: dict[str, str]
    machine: HostIdentity = HostIdentity("", 0, (0, 0))


class MemoryShared(SiteMessage, frozen=True):
    """The site has laid memory, which others find behind this door, or has fetched it; or why it could not."""

    door: str = ""
    why: str = ""


class SiteFailed(SiteMessage, frozen=True):
    """The site cannot do what it was asked, or has `lost` its fork server."""

    reason: str
    lost: bool = False


class ProcessGone(SiteMessage, frozen=True):
    """A role's process has ended, and how."""

    who: Address
    how: str


class Heartbeat(SiteMessage, frozen=True):
    """The site is still there; of its roles, these have used the CPU since the last time, and these are stopped."""

    busy: list[Address] = []
    stopped: list[tuple[Address, str]] = []  # with the letter by which Linux says how


class SitesReached(SiteMessage, frozen=True):
    """The hosts of these sites have answered."""

    sites: list[int]


class LayMemory(SiteMessage, frozen=True):
    """Lay memory for these roles of this machine; `common`: and for what all roles of the run have in common."""

    roles: list[Address]
    common: bool


class FetchMemory(SiteMessage, frozen=True):
    """Fetch the memory of this machine, behind this door."""

    door: str


class StartRoles(Secretive, SiteMessage, frozen=True):
    """Start these roles."""

    entry: str
    roles: list[Address]
    work: bytes  # with the keys of these roles
    alone: bool  # all roles of the run start here, or share memory with these
    sharing: list[Address] = []  # the roles that share the memory of this machine; empty: those that start here


class RenewRole(Secretive, SiteMessage, frozen=True):
    """Start a role again whose process was lost, here or on a site before this one."""

    who: Address
    work: bytes  # with its keys


class SignalRole(SiteMessage, frozen=True):
    """Send the process of a role this signal; one that has ended does not need it any more."""

    who: Address
    number: int


class ReachSites(SiteMessage, frozen=True):
    """Try to reach the hosts of these sites, at these addresses."""

    addresses: dict[int, str]


class LeaveRun(SiteMessage, frozen=True):
    """The run is over."""

    well: bool = True
    why: str = ""  # if not


Upward = Arrived | MemoryShared | SiteFailed | ProcessGone | Heartbeat | SitesReached
Downward = LayMemory | FetchMemory | StartRoles | RenewRole | SignalRole | ReachSites | LeaveRun

upward: WireFormat[Upward] = WireFormat("control message of a site", Upward)
configs: WireFormat[SiteConfig] = WireFormat("config of a site", SiteConfig)
downward: WireFormat[Downward] = WireFormat("control message to a site", Downward)
