"""Reports of failures in virtual time: who waits for whom, and the last messages of a lost role."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from covey.engines.virtual.virtual_actor import RoleProgram, VirtualActor
from covey.errors import PlanError
from covey.message import Address
from covey.program import Receive, Send

ROLE = "_covey_role"
"""Where an error keeps the name of the role whose it is."""


def picture(now: float, actors: Mapping[Address, VirtualActor]) -> str:
    """Who waits for what from whom since when, whom it last heard, and the circle if there is one."""
    threads = [thread for actor in actors.values() if not actor.ended for thread in actor.threads if not thread.done]
    lines = [f"at {clock(now)} every role waits, and nothing is on its way:"]
    lines += [f"  {_waits(thread, actors)}" for thread in threads]
    circle = _circle({thread.actor.address: peer for thread in threads if thread.main and (peer := _peer(thread))})
    if circle:
        lines.append("  a circle: " + " waits for ".join(map(str, circle)))
    return "\n".join(lines)


def obituary(now: float, lost: VirtualActor, actors: Mapping[Address, VirtualActor]) -> str:
    """Who was lost when, and when anybody last heard of it."""
    heard = [actor.heard[lost.address] for actor in actors.values() if lost.address in actor.heard]
    last = f"last heard at {clock(max(heard))}" if heard else "nothing heard from it"
    return f"{lost.name} was killed at {clock(now)}; {last}"


def blame(error: BaseException, name: str, now: float) -> None:
    """Note on an error which role raised it, once; a request that cannot work belongs to no role."""
    if not hasattr(error, ROLE) and not isinstance(error, PlanError):
        with suppress(AttributeError):  # an exception of the user's own may have no room for it
            setattr(error, ROLE, name)
        error.add_note(f"(in {name}, at {clock(now)} of virtual time)")


def clock(seconds: float) -> str:
    """A time as reports show it: `4.98 s`."""
    return f"{round(seconds, 4)} s"


def _waits(thread: RoleProgram, actors: Mapping[Address, VirtualActor]) -> str:
    actor = thread.actor
    who = actor.name if thread.main else f"{actor.name} (a companion)"
    return f"{who} waits for {thread.waits_for()} since {clock(thread.since)}; {_heard(actor, _peer(thread), actors)}"


def _heard(actor: VirtualActor, peer: Address | None, actors: Mapping[Address, VirtualActor]) -> str:
    if peer is not None and peer in actors and actors[peer].ended:
        return f"{peer} has ended"
    if peer is not None:
        heard = peer in actor.heard
        return f"{peer} was last heard at {clock(actor.heard[peer])}" if heard else f"nothing was heard from {peer}"
    if not actor.heard:
        return "nobody was ever heard"
    last = max(actor.heard, key=lambda address: actor.heard[address])
    return f"the last it heard was {last} at {clock(actor.heard[last])}"


def _peer(thread: RoleProgram) -> Address | None:
    if isinstance(thread.want, Receive):
        return thread.want.sender
    return thread.want.to if isinstance(thread.want, Send) else None


def _circle(waits: Mapping[Address, Address]) -> list[Address]:
    """The first circle of `who -> whom`, from its lowest rank on and back to it."""
    for start in waits:
        path = [start]
        while (onward := waits.get(path[-1])) is not None:
            if onward in path:
                cycle = path[path.index(onward) :]
                first = cycle.index(min(cycle))
                return [*cycle[first:], *cycle[:first], cycle[first]]
            path.append(onward)
    return []
