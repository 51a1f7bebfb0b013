"""A run in virtual time as a picture: a lane for each role, and who said what when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from textwrap import wrap

from covey.message import Address
from tests.worlds import World

WIDTH = 118
TIED = "\N{NO-BREAK SPACE}"  # until lines are broken
KEY = "one column is 1 ms: - computes, . waits; below, the messages by the ms in which they leave (s0*3: three of them)"


def picture(title: str, world: World) -> str:
    """Lanes first, then the messages; messages of a role to itself are left out."""
    lanes = [f"  {short(who):>2}  {lane(world, who)}".rstrip() for who in sorted(world.replicas)]
    said = wrap("   ".join(words(world)), WIDTH, initial_indent="  ", subsequent_indent="      ")
    return "\n".join([title, *lanes, *said]).replace(TIED, " ") + "\n"


def lane(world: World, who: Address) -> str:
    cells: dict[int, str] = {}
    for wait in world.log.waits:
        if wait.who == who:
            cells |= dict.fromkeys(range(ms(wait.begin), ms(wait.end)), ".")
    for begin, end, computer in world.log.computes:
        if computer == who:
            cells |= dict.fromkeys(range(ms(begin), ms(end)), "-")
    return "".join(cells.get(column, " ") for column in range(max(cells, default=-1) + 1))


def words(world: World) -> Iterator[str]:
    sends = [event for event in world.log.sends if event.sender != event.to]
    for at, events in groupby(sends, key=lambda event: ms(event.at)):
        heard: dict[tuple[str, str], list[str]] = {}
        for event in events:
            heard.setdefault((short(event.sender), type(event.message).__name__), []).append(short(event.to))
        told = [f"{who}>{counted(to)}{TIED}{what}" for (who, what), to in heard.items()]
        yield f"{at}:{TIED}" + ", ".join(told)


def counted(names: list[str]) -> str:
    return "+".join(f"{name}*{times}" if times > 1 else name for name, times in Counter(names).items())


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def short(who: Address) -> str:
    """Workers by their number, others with a letter: 2, s0, m0."""
    return str(who.rank) if who.role == "worker" else f"{who.role[0]}{who.rank}"
