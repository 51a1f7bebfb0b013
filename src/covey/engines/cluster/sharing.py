"""Which roles share memory: those of one machine, across its sites; the launcher arranges it beforehand.

It lays the memory of its own machine itself, and has the first site of any other do so. Where one site cannot have it,
no other site of that machine does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from covey.engines.cluster.memory_broker import MemoryBroker
from covey.engines.cluster.placement import Site
from covey.engines.cluster.site_messages import FetchMemory, LayMemory, MemoryShared
from covey.engines.cluster.this_host import HostIdentity
from covey.engines.process.snapshot_parts import SCORER
from covey.engines.transport.shared.segment import MOST, too_many
from covey.message import Address

Ask = Callable[[Mapping[int, LayMemory | FetchMemory]], Mapping[int, MemoryShared]]
"""Sends commands to sites, and returns the answer of each."""

SLOWLY = "what they send each other goes through sockets, more slowly"


@dataclass(kw_only=True, slots=True)
class Group:
    """The sites of one machine, and the launcher with its scorer if it is the launcher's."""

    sites: list[int] = field(default_factory=list)
    roles: list[Address] = field(default_factory=list)
    leads: bool = False
    door: str = ""  # where the memory is to be had
    why: str = ""  # there is none

    @property
    def guests(self) -> list[int]:
        """The sites that fetch what another has laid."""
        return self.sites if self.leads else self.sites[1:]


class Sharing:
    """The memory that the roles of a run share, machine by machine."""

    def __init__(
        self, homes: Mapping[Address, Site], machines: Mapping[int, HostIdentity], mine: HostIdentity,
        apart: bool = False,
    ) -> None:  # fmt: skip
        """`apart`: only the roles of one site share memory, as a site may be lost and started again."""
        self.homes, self.machines, self.mine, self.apart = homes, machines, mine, apart
        self.groups = [] if apart else grouped(homes, machines, mine)
        self.broker: MemoryBroker | None = None

    def settle(self, secret: bytes, ask: Ask) -> None:
        """Have memory laid and fetched wherever several sites, or a site and the launcher, are on one machine."""
        for group in self.groups:
            if len(group.roles) > MOST:
                group.why = too_many(group.roles)
            elif group.leads:
                self._lay(group, secret)
        first = {group.sites[0]: group for group in self.groups if not group.leads and not group.why}
        self._note(first, ask({number: LayMemory(group.roles, self._common(group)) for number, group in first.items()}))
        guests = {number: group for group in self.settled for number in group.guests}
        self._note(guests, ask({number: FetchMemory(group.door) for number, group in guests.items()}))

    def _lay(self, group: Group, secret: bytes) -> None:
        try:
            self.broker = MemoryBroker(group.roles, secret, self._common(group))
            group.door = self.broker.door
        except OSError as error:
            group.why = error.strerror or str(error)

    def _common(self, group: Group) -> bool:
        """Whether all roles of the run are of this machine."""
        return {site.number for site in self.homes.values()} <= set(group.sites)

    def _note(self, asked: Mapping[int, Group], answers: Mapping[int, MemoryShared]) -> None:
        for number, group in asked.items():
            group.door = group.door or answers[number].door
            group.why = group.why or answers[number].why

    # -- how it came out ---------------------------------------------------------------------------------------------

    @property
    def settled(self) -> list[Group]:
        return [group for group in self.groups if not group.why]

    def roles(self, number: int) -> list[Address]:
        """The roles with which those of a site share memory; empty: only with one another."""
        return next((group.roles for group in self.settled if number in group.sites), [])

    @property
    def scorers(self) -> list[Address]:
        """The same of the scorer, which lives with the launcher."""
        return next((group.roles for group in self.settled if group.leads), [])

    @property
    def handles(self) -> Sequence[int]:
        """The memory of the launcher's own machine."""
        return self.broker.handles if self.broker and self.scorers else ()

    @property
    def alone(self) -> bool:
        """Whether all roles of the run share memory."""
        return not self.apart and len(set(self.places().values())) == 1

    def places(self) -> dict[str, int]:
        """A number for every role, the same for those that share memory."""
        first = {number: group.sites[0] for group in self.settled for number in group.sites}
        return {str(who): first.get(site.number, site.number) for who, site in self.homes.items()}

    def lines(self, called: Callable[[int], str], separate: bool) -> list[str]:
        """What a person should know; not that networks are `separate` machines, where they are meant to be."""
        found = [
            f"{', '.join(map(called, group.sites))}: roles on one machine share no memory ({group.why}); {SLOWLY}"
            for group in self.groups if group.why
        ]  # fmt: skip
        if not self.apart and (why := separated([self.mine, *self.machines.values()], separate)):
            found.append(f"not all roles of this machine share memory ({why}): {SLOWLY}")
        return found

    def close(self) -> None:
        """All that should have the memory have it."""
        if self.broker:
            self.broker.close()


def grouped(homes: Mapping[Address, Site], machines: Mapping[int, HostIdentity], mine: HostIdentity) -> list[Group]:
    """Which roles could share memory: by machine, where more than one process has roles."""
    found = {mine: Group(leads=True)}
    for who, site in homes.items():
        group = found.setdefault(machines[site.number], Group())
        group.roles.append(who)
        if site.number not in group.sites:
            group.sites.append(site.number)
    found[mine].roles.append(SCORER)
    return [group for group in found.values() if len(group.sites) + group.leads > 1]


def separated(machines: Sequence[HostIdentity], separate: bool) -> str:
    """Why processes of one kernel may not share memory, if that is so."""
    kernels = {machine.kernel for machine in machines}
    networks = {(machine.kernel, machine.network) for machine in machines}
    if len(networks) < len(set(machines)):
        return "they run as different users"
    if len(kernels) < len(networks) and not separate:
        return "they live in networks of their own, as containers do"
    return ""
