"""The roles of a run on many hosts: sites are invited, compared, given their roles, and watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import msgspec
import zmq

from covey.engines.cluster import here
from covey.engines.cluster.gate import Gate
from covey.engines.cluster.placement import place, sites_of
from covey.engines.cluster.words import Arrived, Bear, Failed, Gone, Leave, Letter
from covey.engines.process.brood import Brood
from covey.engines.process.contacts import Contacts
from covey.engines.process.lines import Switchboard
from covey.engines.process.nursery import Job
from covey.engines.process.shots import SCORER
from covey.engines.transport.keys import LAUNCHER, Guard, Ring, new_pair
from covey.engines.transport.token import new_token
from covey.errors import PeerLost, PlanError
from covey.message import Address
from covey.strategy import Role

COMING = 90.0  # seconds until all sites must be there


class Places(Protocol):
    """What an engine gives: as many sites as it has names of hosts, and news of those that died."""

    address: str  # at which the launcher is found from the sites

    def open(self) -> list[str]:
        """The host of each site, which will be invited."""
        ...

    def invite(self, letters: Sequence[Letter], handed: bytes) -> None:
        """Have one site begin for each letter."""
        ...

    def lost(self) -> str:
        """What the engine itself knows to have died, in words; nothing if all is well."""
        ...

    def close(self, well: bool) -> None:
        """The run is over: leave nothing behind. Sites were told to leave if all went `well`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How the hosts of a run meet."""

    place: str = ""
    interface: str = ""
    insecure: bool = False


class ClusterCrew:
    """All roles of a run, on the sites of an engine; the scorer lives with the launcher."""

    def __init__(
        self, places: Places, terms: Terms, warm: str, task: str, handed: bytes, roles: Sequence[Role] = ()
    ) -> None:
        self.places, self.terms, self.task = places, terms, task
        self.stack = ExitStack()
        self.error: BaseException | None = None
        self.stack.callback(lambda: places.close(self.error is None))
        try:
            self.hosts = places.open()
            self.sites = sites_of(self.hosts)
            self.homes = place(roles, self.sites, terms.place)
            self.brood = self.stack.enter_context(Brood(warm))
            self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            self.stack.callback(lambda: self.context.destroy(linger=1000))
            self.names = [Address("site", site.number) for site in self.sites]
            self.token = new_token()
            self.pairs = {who: new_pair() for who in (LAUNCHER, *self.names)}
            self.guard = None if terms.insecure else Guard(self.context, self._ring(LAUNCHER))
            self.address = here.interface_address(terms.interface) if terms.interface else places.address
            self.native = self._native()
            self.gate = Gate(
                self.context, here.endpoint(self.address), len(self.sites), self._own_ring(), self.guard, self.token
            )
            self.stack.callback(self._dismiss)
            self.bells = self._bells()
            self.away: dict[Address, int] = {}  # the roles that live on a site
            places.invite([self._letter(number, warm) for number in range(len(self.sites))], handed)
            self.arrived = self._await()
        except BaseException as error:
            self.error = error
            self.stack.__exit__(type(error), error, error.__traceback__)
            raise

    def __enter__(self) -> ClusterCrew:
        return self

    @property
    def directory(self) -> Path:
        return self.brood.directory

    @property
    def alive(self) -> set[Address]:
        return self.brood.alive | self.away.keys()

    def start(
        self, roles: Sequence[Role], entry: str, pack: Callable[[Contacts], bytes], handed: bytes = b""
    ) -> Switchboard:
        """Have the roles born where they belong; each calls `entry` with what `pack` makes of the contacts."""
        homes = place(roles, self.sites, self.terms.place)
        everybody = [*homes, SCORER]
        self.pairs.update({who: new_pair() for who in everybody})
        if self.guard:
            self.guard.admit((who, self.pairs[who].public) for who in everybody)
        board = Switchboard(
            self.context, here.endpoint(self.address), everybody, self._own_ring(), self.guard, self.token
        )
        book = {str(who): here.endpoint(self.arrived[site.number].address) for who, site in homes.items()}
        book[str(SCORER)] = here.endpoint(self.address)
        sites = {str(who): site.number for who, site in homes.items()}
        contacts = Contacts(book=book, launcher=board.endpoint, native=self.native, sites=sites, token=self.token)
        for site in self.sites:
            mine = [who for who, home in homes.items() if home == site]
            alone = len(set(homes.values())) == 1
            self.gate.tell(site.number, Bear(entry, mine, pack(self._with_keys(contacts, mine)), alone))
        self.away = {who: site.number for who, site in homes.items()}
        work = pack(self._with_keys(contacts, [SCORER]))
        self.brood.bear(Job(entry=entry, roles=[SCORER], work=work, handed=handed))
        return board

    def exits(self) -> list[tuple[Address, str]]:
        """Who has ended: told by a site, or lost with it."""
        gone = self.brood.exits()
        for word in self._hear():
            if isinstance(word, Gone):
                self.away.pop(word.who, None)
                gone.append((word.who, word.how))
        if self.away and (news := self.places.lost()):
            raise PeerLost(news)
        for who, number in self.away.items():
            if quiet := self.gate.silent(number):
                how = f"was lost with {self._called(number)}, of which nothing was heard for {quiet:.1f} s"
                gone.append((who, how))
        return gone

    def begin(self) -> None:
        """Training begins; an engine that wants to know (the lab, whose quotas hold from here) has `begin` too."""
        getattr(self.places, "begin", lambda: None)()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.error = error
        self.stack.__exit__(kind, error, tb)

    # -- sites -------------------------------------------------------------------------------------------------------

    def _await(self) -> dict[int, Arrived]:
        """Everybody's arrival; hosts with other versions than this one are named."""
        arrived: dict[int, Arrived] = {}
        poller = zmq.Poller()
        for bell in self.bells:
            poller.register(bell, zmq.POLLIN)
        until = time.monotonic() + COMING
        while len(arrived) < len(self.sites):
            poller.poll(50)
            for word in self._hear(arrived):
                if isinstance(word, Gone):
                    raise PeerLost(f"{word.who} {word.how}")
            if news := self.places.lost():
                raise PeerLost(news)
            if time.monotonic() > until:
                missing = [self._called(n) for n in range(len(self.sites)) if n not in arrived]
                raise PeerLost(
                    f"not heard of within {COMING:g} s: {', '.join(missing)}; can they reach {self.address}?"
                )
        mine = here.versions(self.task)
        for number, other in sorted(arrived.items()):
            for what, version in mine.items():
                if other.versions.get(what) != version:
                    theirs = other.versions.get(what, "none")
                    raise PlanError(
                        f"{self._called(number)} has {what} {theirs}, the launcher {version}: make them the same"
                        + (f" ({self.task} is read on every host)" if what == "task" else "")
                    )
        return arrived

    def _hear(self, arrived: dict[int, Arrived] | None = None) -> list[Gone]:
        if self.guard:
            self.guard.answer()
        gone = []
        for number, word in self.gate.words():
            if isinstance(word, Failed):
                raise PlanError(f"{self._called(number)}: {word.reason}")
            if isinstance(word, Arrived) and arrived is not None:
                arrived[number] = word
            if isinstance(word, Gone):
                gone.append(word)
        return gone

    def _dismiss(self) -> None:
        for site in self.sites:
            self.gate.tell(site.number, Leave(well=self.error is None))
        self.gate.close()

    def _called(self, number: int) -> str:
        site = self.sites[number]
        alone = self.hosts.count(site.host) == 1
        return f"host {site.host}" if alone else f"host {site.host}, site {number}"

    # -- keys and doors ----------------------------------------------------------------------------------------------

    def _native(self) -> str:
        """How roles may sum without covey's links, if the engine offers it and that is safe."""
        native: str = getattr(self.places, "native", "")
        if native and len(set(self.hosts)) > 1 and not self.terms.insecure:
            raise PlanError(
                "native=true: collectives of torch and MPI are neither encrypted nor authenticated between hosts; "
                "add --insecure if the network is yours alone, or leave native away"
            )
        return native

    def _bells(self) -> list[int | zmq.Socket[bytes]]:
        guarded = self.guard.bells if self.guard else []
        return [self.brood.line.fileno(), self.gate.socket, *guarded]

    def _letter(self, number: int, warm: str) -> Letter:
        return Letter(
            site=number, token=self.token, launcher=self.gate.endpoint, warm=warm, task=self.task,
            interface=self.terms.interface,
            key="" if self.terms.insecure else self.pairs[LAUNCHER].public,
            pair=None if self.terms.insecure else self.pairs[self.names[number]],
            roles=[str(who) for who, site in self.homes.items() if site.number == number],
        )  # fmt: skip

    def _ring(self, who: Address) -> Ring:
        return Ring(self.pairs[who], {name: pair.public for name, pair in self.pairs.items()})

    def _own_ring(self) -> Ring | None:
        return None if self.terms.insecure else self._ring(LAUNCHER)

    def _with_keys(self, contacts: Contacts, mine: Sequence[Address]) -> Contacts:
        """The contacts with everybody's public keys, and the secret ones of these roles only."""
        if self.terms.insecure:
            return contacts
        public = {str(who): pair.public for who, pair in self.pairs.items()}
        return msgspec.structs.replace(contacts, public=public, pairs={str(who): self.pairs[who] for who in mine})
