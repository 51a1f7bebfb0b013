"""Placement: which role runs on which site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey.errors import PlanError
from covey.message import Address
from covey.names import option
from covey.strategy import Role

REST = "rest"


@dataclass(frozen=True, slots=True)
class Site:
    """A place for roles: a slot of the cluster, on a host that may have several."""

    number: int
    host: str
    node: int  # the host's number among the hosts

    def called(self, name: str) -> bool:
        return name in (self.host, f"node{self.node}", f"site{self.number}")


def sites_of(hosts: Sequence[str]) -> list[Site]:
    """The sites of these hosts, in order; a host may be named several times."""
    order = list(dict.fromkeys(hosts))
    return [Site(number, host, order.index(host)) for number, host in enumerate(hosts)]


def place(roles: Sequence[Role], sites: Sequence[Site], wish: str = "") -> dict[Address, Site]:
    """A site for every role. Unless `wish` says otherwise, workers fill the sites in order of rank, the others go where
    the fewest roles are, copies of a server to different hosts, and a role that belongs to another lives with it."""
    allowed = _wishes(wish, roles, sites)
    placed: dict[Address, Site] = {}
    free = [role for role in roles if role.host is None]
    workers = [role for role in free if role.trains]
    for index, role in enumerate(workers):
        where = allowed.get(role.address.role, sites)
        placed[role.address] = where[index * len(where) // max(len(workers), len(where))]
    for role in free:
        if not role.trains:
            placed[role.address] = emptiest(allowed.get(role.address.role, sites), placed, role.copies)
    for role in roles:
        placed[role.address] = placed[role.home]
    return placed


def emptiest(
    sites: Sequence[Site], placed: Mapping[Address, Site], copies: Sequence[Address] = ()
) -> Site:
    """The site with the fewest roles; on a host without these copies, if there is one."""
    load = Counter(site.number for site in placed.values())
    taken = {placed[who].node for who in copies if who in placed}
    apart = [site for site in sites if site.node not in taken] or sites
    return min(apart, key=lambda site: (load[site.number], site.number))


def _wishes(wish: str, roles: Sequence[Role], sites: Sequence[Site]) -> Mapping[str, Sequence[Site]]:
    """The sites that each kind of role may have, from `servers:node0,workers:rest`."""
    kinds = {role.address.role for role in roles}
    asked: dict[str, list[str]] = {}
    for part in filter(None, (part.strip() for part in wish.split(","))):
        kind, colon, where = part.partition(":")
        kind = kind.strip().removesuffix("s")
        if not colon or kind not in kinds:
            known = ", ".join(f"{name}s" for name in sorted(kinds))
            raise PlanError(f"{option('place', part)}: write ROLES:HOST, where ROLES is one of {known}")
        asked[kind] = [name.strip() for name in where.split("+")]
    named = {name for names in asked.values() for name in names if name != REST}
    found: dict[str, Sequence[Site]] = {}
    for kind, names in asked.items():
        for name in names:
            if name != REST and not any(site.called(name) for site in sites):
                hosts = ", ".join(dict.fromkeys(site.host for site in sites))
                raise PlanError(
                    f"{option('place', f'{kind}s:{name}')}: no such host; there are {hosts} (or node0, node1, …)"
                )
        chosen = [
            site for site in sites
            if any(site.called(name) for name in names)
            or (REST in names and not any(site.called(name) for name in named))
        ]  # fmt: skip
        if not chosen:
            raise PlanError(
                f"{option('place', f'{kind}s:rest')}: no host is left for them; name fewer hosts for the others"
            )
        found[kind] = chosen
    return found
