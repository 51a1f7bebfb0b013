"""Who came and went in a run, and how much of its work counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

EventKind = Literal["restart", "rebirth", "leave", "join"]
"""All started again; a lost worker was replaced; one went and its seat is empty; one came to an empty seat."""


class MembershipEvent(msgspec.Struct, kw_only=True):
    """A change of who takes part: what happened to whom, and for how many seconds training stood still."""

    seconds: float  # of training, when it happened
    view: int  # the number of the membership that follows
    event: EventKind
    who: str
    cause: str
    workers: int
    stalled: float


@dataclass(slots=True)
class MembershipLog:
    """The changes of a run so far; `told` hears of each at once, before it is known for how long training stands still.

    It hears copies: `stalled` is set later.
    """

    told: Callable[[MembershipEvent], None] | None = None
    events: list[MembershipEvent] = field(default_factory=list)

    def add(
        self, event: EventKind, who: str, cause: str, *, seconds: float, workers: int,
        stalled: float = 0.0,
    ) -> MembershipEvent:  # fmt: skip
        made = MembershipEvent(
            seconds=seconds, view=len(self.events) + 1, event=event, who=who, cause=cause, workers=workers,
            stalled=stalled,
        )  # fmt: skip
        self.events.append(made)
        if self.told:
            self.told(msgspec.structs.replace(made))
        return made


class RunCost(msgspec.Struct, kw_only=True):
    """What the machines of the workers cost while they were there, and what that is for what counts."""

    money: float
    hours: float  # of all workers
    per_million: float | None  # money for a million samples that count

    @staticmethod
    def of(present: Sequence[float], prices: Mapping[int, float], samples: int) -> RunCost:
        """Of workers that were there for these seconds, at these prices per hour."""
        money = sum(seconds * prices.get(rank, 0.0) for rank, seconds in enumerate(present)) / 3600
        return RunCost(money=money, hours=sum(present) / 3600, per_million=money / samples * 1e6 if samples else None)


def seconds_present(
    events: Iterable[MembershipEvent], workers: int, seconds: float, absent: Collection[int] = ()
) -> list[float]:  # fmt: skip
    """How long the machine of each worker was there, of a run of this many seconds; it stays when its process dies.

    The `absent` ones were not there when the run began.
    """
    since: list[float | None] = [None if rank in absent else 0.0 for rank in range(workers)]
    total, changed = [0.0] * workers, set[int]()
    for event in events:
        if event.event not in ("leave", "join"):
            continue
        rank = int(event.who.rpartition(" ")[2])
        begun = since[rank]
        if event.event == "leave" and begun is not None:
            total[rank] += event.seconds - begun
        elif rank not in changed:
            total[rank] = 0.0  # its seat was empty when the run began
        since[rank] = event.seconds if event.event == "join" else None
        changed.add(rank)
    return [done + (seconds - begun if begun is not None else 0.0) for done, begun in zip(total, since, strict=True)]


class Goodput(msgspec.Struct, kw_only=True):
    """Samples that count in the final model, and those that were trained on in vain."""

    accepted: int
    repeated: int
    ratio: float

    @staticmethod
    def of(accepted: int, repeated: int) -> Goodput:
        total = accepted + repeated
        return Goodput(accepted=accepted, repeated=repeated, ratio=accepted / total if total else 1.0)


RoundState = Literal["committed", "abandoned", "not begun"]
"""Its reports made an update; there were too few of them; or too few clients checked in to begin."""


class RoundRecord(msgspec.Struct, kw_only=True):
    """One round: when it ended and how, the clients that were chosen, and what they did."""

    number: int
    state: RoundState
    seconds: float  # of virtual time, at its end
    took: float  # since its selection began to count
    chosen: int = 0
    reports: int = 0  # that count
    dropped: int = 0  # clients that went away, or whose reports were refused
    extra: int = 0  # reports that came in its time and do not count: too late, also of earlier rounds, or uninvited
    samples: int = 0
    loss: float | None = None  # the mean of the clients' training losses
    there: int = 0  # about how many clients were available, as the service saw it
    why: str = ""  # it was not committed
    declined: int = 0  # chosen clients that took no part, as its secure sum could be opened by too few
    tries: int = 1  # how often too few clients checked in, if it was not begun


class Participation(msgspec.Struct, kw_only=True):
    """The rounds of a run, and how many clients were there how often."""

    clients: int
    rounds: list[RoundRecord]
    committed: int
    abandoned: int
    not_begun: int = 0  # how often too few clients checked in; these do not count as rounds
    took_part: int  # clients whose report counted at least once
    drop_out: float | None  # the share of chosen clients that went away without a report
    times: dict[int, int]  # how many clients' reports counted so many times


class RoundLog:
    """Collects the rounds of a run while it goes."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.rounds: list[RoundRecord] = []
        self.counted: Counter[int] = Counter()

    @property
    def begun(self) -> int:
        """How many rounds have begun; one for which too few clients came is tried again."""
        return sum(record.state != "not begun" for record in self.rounds)

    def add(self, record: RoundRecord, counted: Sequence[int] = ()) -> None:
        """A round is over; the reports of these clients count. Tries in a row to begin one are one record."""
        if self.rounds and self.rounds[-1].state == record.state == "not begun":
            record = msgspec.structs.replace(record, tries=self.rounds.pop().tries + 1)
        self.rounds.append(record)
        self.counted.update(counted)

    def told(self) -> Participation:
        chosen = sum(record.chosen for record in self.rounds)
        dropped = sum(record.dropped for record in self.rounds)
        committed = sum(record.state == "committed" for record in self.rounds)
        not_begun = sum(record.tries for record in self.rounds if record.state == "not begun")
        return Participation(
            clients=self.clients, rounds=self.rounds, committed=committed, abandoned=self.begun - committed,
            not_begun=not_begun,
            took_part=len(self.counted), drop_out=dropped / chosen if chosen else None,
            times=dict(sorted(Counter(self.counted.values()).items())),
        )  # fmt: skip
