"""The roles of a run that goes on without lost hosts: `--on-failure continue` on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from covey.engines.cluster import this_host
from covey.engines.cluster.cluster_processes import COMING, ClusterProcesses
from covey.engines.cluster.losses.lost_sites import LostSites
from covey.engines.cluster.losses.reachability import ReachRounds
from covey.engines.cluster.placement import emptiest
from covey.engines.cluster.places import MeetingTerms, Places
from covey.engines.cluster.site_messages import (
    Arrived,
    LeaveRun,
    ReachSites,
    RenewRole,
    SitesReached,
    StartRoles,
    Upward,
)
from covey.engines.interrupt import JoinRequests, asked_to_join
from covey.engines.process.contacts import Contacts
from covey.engines.process.control_lines import Switchboard
from covey.errors import PlanError
from covey.message import Address
from covey.strategy import Role

ROUNDS = 4  # in which sites try to reach each other, while a process may be silent
UNREACHED = "which no other host reaches"


class ElasticCluster(ClusterProcesses):
    """A lost site costs its own roles, which start again when it, or another in its place, is there."""

    apart = True  # a site that comes later cannot have the memory that others share

    def __init__(
        self, places: Places, terms: MeetingTerms, warm: str, task: str, handed: bytes, roles: Sequence[Role],
        joins: JoinRequests | None = None,
    ) -> None:  # fmt: skip
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
        here = self.lost.is_here(self.homes[who].number, self.gate.renew)
        if who not in self.copies or here:
            return here
        sites = [site for site in self.sites if site.number not in self.lost.away]
        others = {other: site for other, site in self.homes.items() if other != who}
        if sites:
            self.homes[who] = emptiest(sites, others, self.copies[who])
        return bool(sites)

    def renew(self, who: Address, lives: Mapping[Address, int]) -> str:
        """Start a lost role again, in the newest of these lives; its endpoint, whose port it chooses itself."""
        number = self.homes[who].number
        endpoint = this_host.endpoint(self.arrived[number].address)
        book = {**self.contacts.book, str(who): endpoint}
        known = {str(address): life for address, life in lives.items()}
        self.contacts = msgspec.structs.replace(self.contacts, book=book, lives=known)
        self.gate.tell(number, RenewRole(who, self.pack(self.keys.added(self.contacts, [who]))))
        self.away[who] = number
        return endpoint

    def joining(self, empty: Sequence[Address]) -> list[Address]:
        """Which of the empty seats are to be taken now, because a person asked."""
        if not (self.joins and self.joins.asked):
            return []
        here = [who for who in empty if self.renewable(who)]
        return here[: self.joins.taken(len(here))]

    def release(self, who: Address) -> None:
        raise NotImplementedError("a cluster does not choose how many workers there are")

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
