"""The roles of a run on many hosts: sites are invited, compared, given their roles, and watched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import zmq

from covey.engines.cluster import fork_broker, this_host
from covey.engines.cluster.cluster_keys import ClusterKeys
from covey.engines.cluster.engine_processes import EngineProcesses
from covey.engines.cluster.gate import SiteGate
from covey.engines.cluster.placement import Site, place, sites_of
from covey.engines.cluster.places import MeetingTerms, Places
from covey.engines.cluster.sharing import Sharing
from covey.engines.cluster.site_messages import (
    Arrived,
    FetchMemory,
    Heartbeat,
    LayMemory,
    LeaveRun,
    MemoryShared,
    ProcessGone,
    SiteConfig,
    SiteFailed,
    StartRoles,
    Upward,
)
from covey.engines.process.contacts import Contacts
from covey.engines.process.control_lines import Switchboard
from covey.engines.process.forking.fork_server import RoleJob
from covey.engines.process.forking.fork_server_client import forked_by_server, import_seconds
from covey.engines.process.forking.role_processes import RoleProcesses
from covey.engines.process.launcher.run_processes import LOST_WITH
from covey.engines.process.liveness import Silence
from covey.engines.process.snapshot_parts import SCORER
from covey.errors import PeerLost, PlanError
from covey.message import Address
from covey.names import option
from covey.strategy import Role

COMING = 3  # times the silence that is allowed: until all sites must be there
PACE = 3  # times the seconds in which this machine's fork server imported everything: the least that sites have

W = TypeVar("W")


class ClusterProcesses:
    """All roles of a run, on the sites of an engine; the scorer lives with the launcher."""

    pids: tuple[int, ...] = ()  # of roles on this machine: theirs are on sites
    apart = False  # whether only the roles of one site share memory

    def __init__(
        self, places: Places, terms: MeetingTerms, warm: str, task: str, handed: bytes, roles: Sequence[Role] = ()
    ) -> None:
        self.places, self.terms, self.task, self.warm = places, terms, task, warm
        self.stack = ExitStack()
        self.error: BaseException | None = None
        self.stack.callback(lambda: places.close(self.error is None))
        try:
            self.hosts = places.open(COMING * terms.stall)
            self.sites = sites_of(self.hosts)
            self.homes = self._placed(roles)
            start = partial(forked_by_server, terms.threads)
            self.processes = self.stack.enter_context(RoleProcesses(warm, start=start, stall=terms.stall))
            self.engine = EngineProcesses(places.pids, terms.stall, self.apart)
            self.paused = 0.0  # Ctrl-Z does not reach other hosts
            self.took = 0.0  # seconds until this machine had imported everything
            self.signs: Counter[Address] = Counter()  # of roles on sites: how often each has used the CPU
            self.states: dict[Address, str] = {}
            self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            self.stack.callback(lambda: self.context.destroy(linger=1000))
            self.names = [Address("site", site.number) for site in self.sites]
            self.keys = ClusterKeys(self.names, terms.insecure)
            self.guard = self.keys.guard(self.context)
            self.address = this_host.interface_address(terms.interface) if terms.interface else places.address
            self.native = self._native()
            self.gate = SiteGate(
                self.context, this_host.endpoint(self.address), len(self.sites), self.keys, self.guard, terms.stall,
            )  # fmt: skip
            self.stack.callback(self._dismiss)
            self.wakeups: list[int | zmq.Socket[bytes]]
            self.wakeups = [self.processes.line.fileno(), self.gate.socket, *self.guard.wakeups]
            self.away: dict[Address, int] = {}  # the roles that live on a site
            self.stack.callback(fork_broker.offered(self.keys.secret, terms.threads, self.processes.fork_server))
            places.invite([self._site_config(number) for number in range(len(self.sites))], handed)
            self.arrived = self._await()
        except BaseException as error:
            self.error = error
            self.stack.__exit__(type(error), error, error.__traceback__)
            raise

    def __enter__(self) -> ClusterProcesses:
        return self

    @property
    def directory(self) -> Path:
        return self.processes.directory

    @property
    def alive(self) -> set[Address]:
        return self.processes.alive | self.away.keys()

    def start(
        self, roles: Sequence[Role], entry: str, pack: Callable[[Contacts], bytes], handed: bytes = b""
    ) -> Switchboard:
        """Start the roles where they belong; each calls `entry` with what `pack` makes of the contacts."""
        homes = self._placed(roles)
        everybody = [*homes, SCORER]
        self.keys.admit(everybody, self.guard)
        board = Switchboard(
            self.context, this_host.endpoint(self.address), everybody, self.keys.own_ring(), self.guard,
            self.keys.token,
        )  # fmt: skip
        book = {str(who): this_host.endpoint(self.arrived[site.number].address) for who, site in homes.items()}
        book[str(SCORER)] = this_host.endpoint(self.address)
        sites = {str(who): site.number for who, site in homes.items()}
        shared = self._share(homes)
        contacts = Contacts(
            book=book, launcher=board.endpoint, native=self.native, sites=sites, machines=shared.places(),
            token=self.keys.token, cipher=self.terms.cipher,
        )  # fmt: skip
        for number in range(len(self.sites)):
            mine = [who for who, home in homes.items() if home.number == number]
            work = pack(self.keys.added(contacts, mine))
            self.gate.tell(number, StartRoles(entry, mine, work, shared.alone, shared.roles(number)))
        self.away = {who: site.number for who, site in homes.items()}
        self.homes, self.contacts = homes, contacts
        work = pack(self.keys.added(contacts, [SCORER]))
        scoring = RoleJob(
            entry=entry, roles=[SCORER], work=work, alone=shared.alone, sharing=shared.scorers, handed=handed
        )
        self.processes.start_roles(scoring, shared.handles)
        shared.close()
        return board

    def exits(self) -> list[tuple[Address, str]]:
        """The roles that have ended: reported by a site, or lost with it."""
        gone = self.processes.exits()
        for number, word in self._hear():
            if isinstance(word, ProcessGone):
                self.away.pop(word.who, None)
                gone.append((word.who, word.how))
            elif isinstance(word, Arrived):
                self._arrive(number, word)
        gone += self._lost_with_sites()
        for number in sorted({*self.away.values()}):
            if quiet := self.gate.silent(number):
                gone += self._lose(number, f"of which nothing was heard for {quiet:.1f} s")
        if not gone:
            self.engine.check()
        return gone

    def _lost_with_sites(self) -> list[tuple[Address, str]]:
        if self.away and (news := self.places.lost()):
            raise PeerLost(news)
        return []

    def _lose(self, number: int, how: str) -> list[tuple[Address, str]]:
        """A site is gone, and all its roles with it."""
        roles = [who for who, site in self.away.items() if site == number]
        for who in roles:
            del self.away[who]
        return [(who, f"{LOST_WITH}{self._called(number)}, {how}") for who in roles]

    def _arrive(self, number: int, word: Arrived) -> None:
        """A site has come after all others: there is no use for it."""

    def sign(self, who: Address) -> object:
        return self.signs[who] if who in self.away else self.processes.sign(who)

    def state(self, who: Address) -> str:
        return self.states.get(who, "") if who in self.away else self.processes.state(who)

    def begin(self) -> None:
        """Training begins."""
        self.places.begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.error = error
        self.stack.__exit__(kind, error, tb)

    # -- sites -------------------------------------------------------------------------------------------------------

    def _await(self) -> dict[int, Arrived]:
        """The arrival of every site; hosts with other versions than this one are named."""
        patience = COMING * self.terms.stall
        arrived = self._gather(Arrived, range(len(self.sites)), patience)
        if missing := [self._called(n) for n in range(len(self.sites)) if n not in arrived]:
            raise PeerLost(
                f"no answer within {max(patience, PACE * self.took):.0f} s: {', '.join(missing)}; can they reach "
                f"{self.address}? A longer {option('stall')} gives them more time"
            )
        self.versions = this_host.versions(self.task)
        for number, other in sorted(arrived.items()):
            self._check_versions(number, other)
        return arrived

    def _check_versions(self, number: int, other: Arrived) -> None:
        for what, version in self.versions.items():
            if other.versions.get(what) != version:
                theirs = other.versions.get(what, "none")
                raise PlanError(
                    f"{self._called(number)} has {what} {theirs}, the launcher {version}: make them the same"
                    + (f" ({self.task} is read on every host)" if what == "task" else "")
                )

    def _gather(self, kind: type[W], sites: Iterable[int], patience: float) -> dict[int, W]:
        """One such word from each of these sites, or from those that say it in time.

        A machine that is slow to start here may be so there: nobody is late before this one has imported everything.
        """
        found: dict[int, W] = {}
        missing, clock = set(sites), Silence[int](self.terms.stall)
        poller = zmq.Poller()
        for wakeup in self.wakeups:
            poller.register(wakeup, zmq.POLLIN)
        while missing - found.keys() and clock.awake <= max(patience, PACE * self.took):
            poller.poll(50)
            clock.tick()
            self.processes.exits()
            self.took = max(self.took, import_seconds()) if self.processes.warm else clock.awake
            self.engine.check()
            for number, word in self._hear():
                if isinstance(word, ProcessGone):
                    raise PeerLost(f"{word.who} {word.how}")
                if isinstance(word, kind):
                    found[number] = word
            if news := self.places.lost():
                raise PeerLost(news)
        return found

    def _hear(self) -> list[tuple[int, Upward]]:
        self.guard.answer()
        words = self.gate.words()
        for number, word in words:
            if isinstance(word, SiteFailed) and not (self.apart and word.lost and self.away):  # such a site ends
                raise (PeerLost if word.lost else PlanError)(f"{self._called(number)}: {word.reason}")
            if isinstance(word, Heartbeat):
                self.signs.update(word.busy)
                self.states.update(dict.fromkeys(word.busy, "") | dict(word.stopped))
        return words

    def _share(self, homes: Mapping[Address, Site]) -> Sharing:
        """Have the roles of each machine share its memory."""
        machines = {number: site.machine for number, site in self.arrived.items()}
        shared = Sharing(homes, machines, this_host.machine(), apart=self.apart)
        self.stack.callback(shared.close)
        shared.settle(self.keys.secret, self._ask)
        for line in shared.lines(self._called, self.places.separate):
            self.terms.say(line)
        return shared

    def _ask(self, words: Mapping[int, LayMemory | FetchMemory]) -> dict[int, MemoryShared]:
        for number, word in words.items():
            self.gate.tell(number, word)
        answers = self._gather(MemoryShared, words, self.terms.stall)
        late = MemoryShared(why=f"no answer within {self.terms.stall:g} s")
        return {number: answers.get(number, late) for number in words}

    def _dismiss(self) -> None:
        why = "" if self.error is None else str(self.error).partition("\n")[0] or type(self.error).__name__
        for site in self.sites:
            self.gate.tell(site.number, LeaveRun(self.error is None, why))
        self.gate.close()

    def _called(self, number: int) -> str:
        site = self.sites[number]
        alone = self.hosts.count(site.host) == 1
        return f"host {site.host}" if alone else f"host {site.host}, site {number}"

    def _native(self) -> str:
        """How roles may sum without covey's links, if the engine offers it and that is safe."""
        native = self.places.native
        if native and len(set(self.hosts)) > 1 and not self.terms.insecure:
            raise PlanError(
                "native=true: collectives of torch and MPI are neither encrypted nor authenticated between hosts; "
                f"add {option('insecure', True)} if the network is yours alone, or omit native"
            )
        return native

    def _placed(self, roles: Sequence[Role]) -> dict[Address, Site]:
        return place(roles, self.sites, self.terms.place)

    def _site_config(self, number: int) -> SiteConfig:
        key, pair = self.keys.of_site(self.names[number])
        return SiteConfig(
            site=number, token=self.keys.token, launcher=self.gate.endpoint, warm=self.warm, threads=self.terms.threads,
            task=self.task, interface=self.terms.interface, key=key, pair=pair,
            roles=[str(who) for who, site in self.homes.items() if site.number == number], secret=self.keys.secret,
            stall=self.terms.stall, apart=self.apart,
        )  # fmt: skip
