"""The roles of a run that goes on without lost hosts: `--on-failure continue` on a cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from covey.engines.cluster import this_host
from covey.engines.cluster.cluster_processes import COMING, ClusterProcesses
from covey.engines.cluster.losses.lost_sites import LostSites
from covey.engines.cluster.losses.reachability import ReachRounds
from covey.engines.cluster.placement import Site, emptiest
from covey.engines.cluster.places import MeetingTerms, Places
from covey.engines.cluster.site_messages import (
    Arrived,
    LeaveRun,
    ReachSites,
    RenewRole,
    SignalRole,
    SitesReached,
    StartRoles,
    Upward,
)
from covey.engines.interrupt import JoinRequests, asked_to_join
from covey.engines.process.contacts import Contacts
from covey.engines.process.control_lines import Switchboard
from covey.engines.process.forking.role_processes import describe
from covey.engines.process.role.notice import NOTICE
from covey.engines.signal_faults import SignalFaults
from covey.errors import PlanError
from covey.message import Address
from covey.names import option
from covey.simulate.faults import Fault
from covey.strategy import Role

ROUNDS = 4  # in which sites try to reach each other, while a process may be silent
UNREACHED = "which no other host reaches"
DEPARTED = "its machine departs"


class ElasticCluster(ClusterProcesses):
    """A lost site costs its own roles, which start again when it, or another in its place, is there."""

    apart = True  # a site that comes later cannot have the memory that others share

    def __init__(
        self, places: Places, terms: MeetingTerms, warm: str, task: str, handed: bytes, roles: Sequence[Role],
        joins: JoinRequests | None = None, faults: SignalFaults | None = None,
    ) -> None:  # fmt: skip
        self.faults = faults
        self.departed: set[int] = set()  # the sites whose machines are away as planned
        self.arriving: set[Address] = set()  # who joins as soon as a site is there for it
        super().__init__(places, terms, warm, task, handed, roles)
        self.patience = COMING * terms.stall  # seconds that others may wait for a lost host
        self.lost = LostSites(places, self._site_config, self.patience)
        self.copies = {role.address: role.copies for role in roles if role.copies}
        self.rounds, self.joins = ReachRounds(terms.stall / ROUNDS), joins
        self.entry: str
        self.pack: Callable[[Contacts], bytes]
        if joins:
            self.stack.enter_context(asked_to_join(joins))

    def start(
        self, roles: Sequence[Role], entry: str, pack: Callable[[Contacts], bytes], handed: bytes = b""
    ) -> Switchboard:
        self.entry, self.pack = entry, pack
        return super().start(roles, entry, pack, handed)

    def renewable(self, who: Address) -> bool:
        """Whether there is a site for a lost role, so that it can start again.

        A lost site is started if it can be. The copy of a server does not wait for it: it moves to another one.
        """
        number = self.homes[who].number
        here = number not in self.departed and self.lost.is_here(number, self.gate.renew)
        if who not in self.copies or here:
            return here
        sites = [site for site in self.sites if site.number not in self.lost.away]
        others = {other: site for other, site in self.homes.items() if other != who}
        if sites:
            self.homes[who] = emptiest(sites, others, self.copies[who])
        return bool(sites)

    def renew(self, who: Address, incarnations: Mapping[Address, int]) -> str:
        """Start a lost role again, in the newest of these incarnations; its endpoint, whose port it chooses itself."""
        number = self.homes[who].number
        endpoint = this_host.endpoint(self.arrived[number].address)
        book = {**self.contacts.book, str(who): endpoint}
        known = {str(address): incarnation for address, incarnation in incarnations.items()}
        self.contacts = msgspec.structs.replace(self.contacts, book=book, incarnations=known)
        self.gate.tell(number, RenewRole(who, self.pack(self.keys.added(self.contacts, [who]))))
        self.away[who] = number
        return endpoint

    def joining(self, empty: Sequence[Address]) -> list[Address]:
        """Which of the empty seats are to be taken now: by the plan of faults, or because a person asked."""
        for who in self.faults.joining(empty, self._depart) if self.faults else ():
            number = self.homes[who].number
            if number in self.departed:
                self.departed.remove(number)
                self.places.arrive(number)
            self.arriving.add(who)
        planned = [who for who in empty if who in self.arriving and self.renewable(who)]
        self.arriving.difference_update(planned)
        if not (self.joins and self.joins.asked):
            return planned
        here = [who for who in empty if who not in planned and self.renewable(who)]
        return [*planned, *here[: self.joins.taken(len(here))]]

    def release(self, who: Address) -> None:
        """Let a worker go when its batch is through."""
        self._send(who, NOTICE)

    def begin(self) -> None:
        super().begin()
        if self.faults:
            self.faults.begin()

    def exits(self) -> list[tuple[Address, str]]:
        if not self.faults:
            return super().exits()
        departed = list[Address]()

        def send(who: Address, number: signal.Signals, fault: Fault | None) -> None:
            if fault and fault.optional and fault.kind == "leave":  # of a trace: the machine goes
                departed.extend(self._depart(who))
            else:
                self._send(who, number)

        self.faults.strike({who: self.contacts.incarnations.get(str(who), 0) for who in self.alive}, send)
        gone = [(who, self.faults.told(who, how)) for who, how in super().exits()]
        return [*((who, describe(-signal.SIGTERM)) for who in departed), *gone]

    def _send(self, who: Address, number: signal.Signals) -> None:
        """A signal to the process of a role, wherever that is."""
        if who in self.away:
            self.gate.tell(self.away[who], SignalRole(who, number))
        elif who in self.processes.pids:
            with suppress(ProcessLookupError):
                os.kill(self.processes.pids[who], number)

    def _depart(self, who: Address) -> list[Address]:
        """Take the machine of a worker away; the roles that still ran on it."""
        number = self.homes[who].number
        self.departed.add(number)
        if not self.places.depart(number):
            self.gate.tell(number, LeaveRun(False, DEPARTED))
        return [role for role, _ in self._lose(number, DEPARTED)]

    def _placed(self, roles: Sequence[Role]) -> dict[Address, Site]:
        """Where roles are placed; refused where a machine that departs has more than one worker on it."""
        homes = super()._placed(roles)
        for who in sorted(who for who in homes if self.faults and str(who) in self.faults.departing):
            others = [other for other, home in homes.items() if home.number == homes[who].number and other != who]
            if others:
                raise PlanError(
                    f"{option('spot_trace')}: {who} is on {homes[who].host} together with {others[0]}, which would "
                    f"depart with it: have as many hosts as workers, and place others with workers that stay, as "
                    f"{option('place', 'servers:node0')}"
                )
        return homes

    def _lost_with_sites(self) -> list[tuple[Address, str]]:
        ended = self.places.ended()
        for number in self._cut_off():
            self.gate.tell(number, LeaveRun(False, UNREACHED))
            ended[number] = UNREACHED
        return [one for number, how in ended.items() for one in self._lose(number, how)]

    def _cut_off(self) -> list[int]:
        """The sites that no other one has reached for some time; now and then they are asked."""
        if not self.rounds.ended():
            return []
        lost = self.rounds.conclude()
        there = {*self.away.values()} - {*lost}
        for number, addresses in self.rounds.begin({site: self.arrived[site].address for site in there}).items():
            self.gate.tell(number, ReachSites(addresses))
        return lost

    def _hear(self) -> list[tuple[int, Upward]]:
        words = super()._hear()
        for number, word in words:
            if isinstance(word, SitesReached):
                self.rounds.hear(number, word.sites)
        return words

    def _lose(self, number: int, how: str) -> list[tuple[Address, str]]:
        self.lost.lose(number)
        return super()._lose(number, how)

    def _arrive(self, number: int, word: Arrived) -> None:
        """A site has come in the place of a lost one; what it runs must not have changed meanwhile."""
        try:
            self._check_versions(number, word)
        except PlanError as error:
            self.terms.say(f"{error}; the run goes on without it")
            self.gate.tell(number, LeaveRun(False, str(error)))
            self.lost.refused.add(number)
            return
        self.arrived[number] = word
        self.lost.arrive(number)
        mine = [who for who, home in self.homes.items() if home.number == number]
        self.gate.tell(number, StartRoles(self.entry, [], b"", alone=False, sharing=mine))
