"""The cluster as it is drawn: roles by what they do, links by what they carry, who waits for whom."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import msgspec

from covey.observe.journal import RunNow
from covey.observe.progress import RoleProgress

DRAWN = 64  # roles that are drawn with their names and links; of more, one dot each
LINKS, WAITS = 400, 8
COMPUTES, WAITING, STILL = "c", "w", "s"
_named = re.compile(r"\b[a-z_]+ \d+")  # a search begins only where a word does: otherwise its time is quadratic


class ClusterView(msgspec.Struct, kw_only=True):
    """What the page draws; bytes are those so far, so that rates are what comes between two views."""

    seconds: float
    phase: str
    states: dict[str, str]  # of each kind of role, a letter for each rank: computes, waits, stands still
    links: list[tuple[str, str, int]]  # between roles; of a large cluster, between kinds
    waits: list[tuple[str, str, int]]  # who waits for whom, and how many do
    roles: dict[str, RoleProgress]  # empty in a large cluster


def cluster(now: RunNow) -> ClusterView:
    """The view of a run; its size is bounded, however many roles there are."""
    large = len(now.roles) > DRAWN
    still = now.phase != "training"
    states: dict[str, list[str]] = {}
    for name, role in now.roles.items():
        states.setdefault(_kind(name), []).append(STILL if still else WAITING if role.waiting else COMPUTES)
    links: Counter[tuple[str, str]] = Counter()
    for sender, peers in now.links.items():
        for to, size in peers.items():
            links[(_kind(sender), _kind(to)) if large else (sender, to)] += size
    waits: Counter[tuple[str, str]] = Counter()
    if not still:
        for name, role in now.roles.items():
            for other in _waited_for(role.waiting, now.roles):
                waits[_kind(name) if large else name, other] += 1
    return ClusterView(
        seconds=now.seconds,
        phase=now.phase,
        states={kind: "".join(letters) for kind, letters in states.items()},
        links=[(*link, size) for link, size in links.most_common(LINKS)],
        waits=[(*pair, count) for pair, count in waits.most_common(WAITS if large else DRAWN)],
        roles={} if large else now.roles,
    )


def _kind(name: str) -> str:
    return name.rpartition(" ")[0]


def _waited_for(what: str, roles: dict[str, RoleProgress]) -> Iterator[str]:
    """The roles that a wait names."""
    yield from dict.fromkeys(name for name in _named.findall(what) if name in roles)
