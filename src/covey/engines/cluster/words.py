"""What a launcher and the sites of a run say to each other, and the letter by which a site is invited."""

from __future__ import annotations

import msgspec

from covey.decoding import WireFormat
from covey.engines.cluster.here import Machine
from covey.engines.process.liveness import STALL
from covey.engines.transport.keys import Discreet, Pair
from covey.engines.transport.token import NONE
from covey.message import Address


class Letter(Discreet, frozen=True, kw_only=True):
    """What a site must know to come: it travels through the engine's own channel, for it holds the site's key."""

    site: int
    token: bytes = NONE  # of the run
    launcher: str  # the endpoint at which sites are awaited
    key: str = ""  # the launcher's public key; none: --insecure
    pair: Pair | None = None
    warm: str  # the module that roles need
    threads: int = 1  # with which a role computes
    task: str = ""  # the file that must be the same everywhere
    interface: str = ""  # where the roles shall hear: the name of an interface, or an address
    code: bytes = b""  # the task's file and the modules beside it, for a host that does not have them
    roles: list[str] = msgspec.field(default_factory=list)  # who will live there, for engines that show names
    stall: float = STALL  # seconds for which a process may give no sign of life
    secret: bytes = b""  # of the sites, by which those of one machine know each other when they share memory

    @property
    def called(self) -> str:
        return f"site {self.site}" + (f": {', '.join(self.roles)}" if self.roles else "")


class Word(msgspec.Struct, frozen=True, tag=True):
    """Something said on the line between a site and the launcher."""


class Arrived(Word, frozen=True):
    """The site is there."""

    host: str
    address: str  # where its roles hear
    cores: int
    versions: dict[str, str]
    machine: Machine = Machine("", 0, (0, 0))


class Shares(Word, frozen=True):
    """The site has laid memory, which others find behind this door, or has fetched it; or why it could not."""

    door: str = ""
    why: str = ""


class Failed(Word, frozen=True):
    """The site cannot do what it was asked, or has `lost` the parent of its roles."""

    reason: str
    lost: bool = False


class Gone(Word, frozen=True):
    """A role's process has ended, and how."""

    who: Address
    how: str


class Beat(Word, frozen=True):
    """The site is still there; of its roles, these have used the CPU since the last time, and these are stopped."""

    busy: list[Address] = []
    stopped: list[tuple[Address, str]] = []  # with the letter by which Linux says how


class Lay(Word, frozen=True):
    """Lay memory for these roles of this machine; `common`: and for what all roles of the run have in common."""

    roles: list[Address]
    common: bool


class Fetch(Word, frozen=True):
    """Fetch the memory of this machine, behind this door."""

    door: str


class Bear(Discreet, Word, frozen=True):
    """Have these roles born."""

    entry: str
    roles: list[Address]
    work: bytes  # with the keys of these roles
    alone: bool  # all roles of the run are born here, or share memory with these
    sharing: list[Address] = []  # the roles that share the memory of this machine; none: those that are born here


class Leave(Word, frozen=True):
    """The run is over."""

    well: bool = True
    why: str = ""  # if not


Upward = Arrived | Shares | Failed | Gone | Beat
Downward = Lay | Fetch | Bear | Leave

upward: WireFormat[Upward] = WireFormat("word up the line to the sites", Upward)
letters: WireFormat[Letter] = WireFormat("letter to a site", Letter)
downward: WireFormat[Downward] = WireFormat("word down the line to the sites", Downward)
