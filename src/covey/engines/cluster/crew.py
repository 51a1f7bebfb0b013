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
from covey.engines.cluster.placement import place, sites_of
from covey.engines.cluster.words import Arrived, Bear, Downward, Failed, Gone, Leave, Letter, upward
from covey.engines.process.brood import Brood
from covey.engines.process.contacts import Contacts
from covey.engines.process.control import Switchboard
from covey.engines.process.driver import SCORER
from covey.engines.process.nursery import Job
from covey.engines.transport.keys import LAUNCHER, Guard, Ring, new_pair
from covey.errors import PeerLost, PlanError, WireError
from covey.message import Address
from covey.strategy import Role

COMING = 90.0  # seconds until all sites must be there
SILENT = 6.0  # seconds without a sign of life, after which a site is lost


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

    def __init__(self, places: Places, terms: Terms, warm: str, task: str, handed: bytes) -> None:
        self.places, self.terms, self.task = places, terms, task
        self.stack = ExitStack()
        self.error: BaseException | None = None
        self.stack.callback(lambda: places.close(self.error is None))
        try:
            self.hosts = places.open()
            self.sites = sites_of(self.hosts)
            self.brood = self.stack.enter_context(Brood(warm))
            self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            self.stack.callback(lambda: self.context.destroy(linger=1000))
            self.names = [Address("site", site.number) for site in self.sites]
            self.pairs = {who: new_pair() for who in (LAUNCHER, *self.names)}
            self.guard = None if terms.insecure else Guard(self.context, self._ring(LAUNCHER))
            self.gate = self._gate()
            self.bells = self._bells()
            self.away: dict[Address, int] = {}  # the roles that live on a site
            self.heard = dict.fromkeys(range(len(self.sites)), time.monotonic())
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
        ring = None if self.terms.insecure else self._ring(LAUNCHER)
        board = Switchboard(self.context, here.endpoint(self.places.address), everybody, ring)
        book = {str(who): here.endpoint(self.arrived[site.number].address) for who, site in homes.items()}
        book[str(SCORER)] = here.endpoint(self.places.address)
        contacts = Contacts(book=book, launcher=board.endpoint)
        for site in self.sites:
            mine = [who for who, home in homes.items() if home == site]
            alone = len(set(homes.values())) == 1
            self._tell(site.number, Bear(entry, mine, pack(self._with_keys(contacts, mine)), alone))
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
            if time.monotonic() - self.heard[number] > SILENT:
                how = f"was lost with {self._called(number)}, of which nothing was heard for {SILENT:g} s"
                gone.append((who, how))
        return gone

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.error = error
        for site in self.sites:
            self._tell(site.number, Leave())
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
                    f"not heard of within {COMING:g} s: {', '.join(missing)}; can they reach {self.places.address}?"
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
        while self.gate.poll(0):
            name, data = self.gate.recv_multipart()
            number = self._number(name)
            self.heard[number] = time.monotonic()
            word = upward.decode(data)
            if isinstance(word, Failed):
                raise PlanError(f"{self._called(number)}: {word.reason}")
            if isinstance(word, Arrived) and arrived is not None:
                arrived[number] = word
            if isinstance(word, Gone):
                gone.append(word)
        return gone

    def _number(self, name: bytes) -> int:
        try:
            number = int(name.decode().removeprefix("site/"))
            return self.sites[number].number
        except (ValueError, IndexError):
            raise WireError(f"{name!r} is no site of this run") from None

    def _tell(self, number: int, word: Downward) -> None:
        self.gate.send_multipart([f"site/{number}".encode(), msgspec.msgpack.encode(word)])

    def _called(self, number: int) -> str:
        site = self.sites[number]
        alone = self.hosts.count(site.host) == 1
        return f"host {site.host}" if alone else f"host {site.host}, site {number}"

    # -- keys and doors ----------------------------------------------------------------------------------------------

    def _gate(self) -> zmq.Socket[bytes]:
        gate = self.context.socket(zmq.ROUTER)
        gate.ipv6 = True
        gate.setsockopt(zmq.LINGER, 1000)
        if not self.terms.insecure:
            self._ring(LAUNCHER).lock(gate)
        gate.bind(here.endpoint(self.places.address))
        return gate

    def _bells(self) -> list[int | zmq.Socket[bytes]]:
        guarded = [self.guard.socket] if self.guard else []
        return [self.brood.line.fileno(), self.gate, *guarded]

    def _letter(self, number: int, warm: str) -> Letter:
        launcher = self.gate.getsockopt_string(zmq.LAST_ENDPOINT)
        return Letter(
            site=number, launcher=launcher, warm=warm, task=self.task, interface=self.terms.interface,
            key="" if self.terms.insecure else self.pairs[LAUNCHER].public,
            pair=None if self.terms.insecure else self.pairs[self.names[number]],
        )  # fmt: skip

    def _ring(self, who: Address) -> Ring:
        return Ring(self.pairs[who], {name: pair.public for name, pair in self.pairs.items()})

    def _with_keys(self, contacts: Contacts, mine: Sequence[Address]) -> Contacts:
        """The contacts with everybody's public keys, and the secret ones of these roles only."""
        if self.terms.insecure:
            return contacts
        public = {str(who): pair.public for who, pair in self.pairs.items()}
        return msgspec.structs.replace(contacts, public=public, pairs={str(who): self.pairs[who] for who in mine})
