"""Who is here? The incarnations in which a role of a run exists, and when a lost one is replaced."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from covey.errors import PeerLost
from covey.message import Address, Message
from covey.names import option

OnLoss = Literal["continue", "restart"]
"""What a run can do when it loses a worker: go on while the worker is restarted, or start again."""

MEMBERSHIP = "membership."
"""How names begin of what only runs remember in which workers are restarted: checkpoints of other runs lack it."""

PAUSES = (0.0, 1.0, 2.0, 4.0)  # seconds before another try after failures in a row: the last one for all later ones


class Incarnation(NamedTuple):
    """What a role's program knows of its own existence: the first one, or one that replaces a lost one."""

    number: int = 0  # of the role's earlier incarnations
    step: int = 0  # the last in which its predecessor was seen
    ended: Collection[Address] = frozenset()  # whose programs were through when it began
    elastic: bool = False  # whether lost workers of this run are restarted
    leased: bool = False  # whether workers come and go, and each batch is done by whoever holds its lease
    replicas: int = 1  # copies of what each server holds
    others: Mapping[Address, int] = MappingProxyType({})  # the numbers of the incarnations of those that were restarted
    resumed: bool = False  # the servers go on from a checkpoint; its worker, which has nothing of its own, asks them
    closing: bool = False  # the program begins again only to say goodbye

    @property
    def enters(self) -> bool:
        """Whether the program begins in the place of a lost role, and has to find out where it goes on."""
        return self.number > 0 and not self.closing


class Joined(Message):
    """(From the engine) The sender was lost, and is restarted: what came before this is of its earlier incarnations."""

    wire_name = "membership.joined"

    incarnation: int

    counted = kept = False


class Departed(Message):
    """(From the engine) The sender is gone, and its seat is empty: what came before this is all that it sent.

    `incarnation` is the seat's last one, or a number between that and the next one's.
    """

    wire_name = "membership.departed"

    incarnation: int

    counted = False


class LeaveNotice(Message):
    """(From the engine, to a role that is `warned`) Its machine departs soon: when it computes nothing, or by force."""

    wire_name = "membership.notice"

    counted = kept = False


class BatchesLeft(Message):
    """To one that takes no part: there are batches again, or all are done."""

    wire_name = "leased.left"

    over: bool

    counted = False


class ViewChanged(Exception):
    """(To a program that waits for its peers in a round of all workers) One went or came: the round will not end."""


def all_lost(who: Address) -> PeerLost:
    """Why a run ends that loses, at once, all workers that have the model."""
    return PeerLost(f"{who} was lost, and no other worker had the model", str(who))


def model_lost(who: Address) -> PeerLost:
    """Why a run ends that loses the worker whose model is scored when nobody is left to take one from."""
    return PeerLost(f"{who} was lost after all others had ended, and with it the model", str(who))


def copies_lost(who: Address) -> PeerLost:
    """Why a run ends that loses, at once, all copies of what a server holds."""
    return PeerLost(f"{who} was lost together with all other copies of its parameters", str(who))


def by_seniority(copies: Iterable[Address], incarnations: Mapping[Address, int]) -> list[Address]:
    """The copies of a server's parameters, the longest there first: that one leads, and the newest is the last."""
    return sorted(copies, key=lambda who: incarnations.get(who, 0))


def too_few(who: Address, cause: str, left: int, least: int) -> PeerLost:
    """Why a run ends in which workers come and go."""
    return PeerLost(
        f"{who} {cause}: only {workers(left)} {'is' if left == 1 else 'are'} left, and {option('workers')} asks for at "
        f"least {least}: use a smaller MIN in MIN:MAX",
        str(who),
    )


def workers(count: int) -> str:
    """A number of workers, in words."""
    return f"{count} worker{'s' if count != 1 else ''}"


def go_on(left: int) -> str:
    """What the others do when a worker has left."""
    return f"{workers(left)} {'goes' if left == 1 else 'go'} on"


def pause(failures: int) -> float:
    """Seconds before another try, after this number of failures in a row."""
    return PAUSES[min(failures, len(PAUSES)) - 1]


@dataclass(slots=True)
class Deaths:
    """The deaths of a run's workers: each may be restarted, unless it dies again and again at the same step."""

    most: int  # deaths in a row, without a new step between them, that a worker survives
    incarnations: dict[Address, int] = field(default_factory=dict)  # of those that were restarted
    count: int = 0
    copies: Mapping[Address, Sequence[Address]] = field(default_factory=dict)  # of servers: each, and its others
    _rows: dict[Address, tuple[int, int]] = field(default_factory=dict)  # how far each came, and deaths since then

    def note(self, who: Address, reached: int, cause: str) -> float:
        """Count a death of one that came so far; the seconds until its next incarnation, or the end of the run."""
        furthest, row = self._rows.get(who, (-1, 0))
        row = 1 if reached > furthest else row + 1
        self._rows[who] = max(reached, furthest), row
        if row > self.most:
            raise PeerLost(
                f"{who} {cause}: it died {row} times without finishing a step; the step itself may be what kills it, "
                f"and a larger {option('max_failures')} tries more often",
                str(who),
            )
        self.count += 1
        # among the copies of a server's parameters, the numbers of incarnations tell who has been there longest
        self.incarnations[who] = 1 + max(self.incarnations.get(other, 0) for other in self.copies.get(who, (who,)))
        return pause(row)

    def joined(self, who: Address) -> int:
        """Another worker takes an empty seat, and what its predecessor died of is not counted; its next incarnation."""
        self._rows.pop(who, None)
        return self.next_incarnation(who)

    def next_incarnation(self, who: Address) -> int:
        """A seat has another incarnation, or none for a while."""
        incarnation = self.incarnations[who] = self.incarnations.get(who, 0) + 1
        return incarnation
