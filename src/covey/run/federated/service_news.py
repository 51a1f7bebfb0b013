"""What does whoever runs a service hear of its clients and rounds? Few lines, however many there are."""

from __future__ import annotations

from collections.abc import Callable

from covey.engines.transport.refusals import shown
from covey.federated.messages import ComeBack, Configuration, SumWithdrawal
from covey.membership import Departed
from covey.message import Address, Message
from covey.observe.instruments import Instrument
from covey.observe.membership import RoundLog, RoundRecord

NAMED = 20  # clients whose coming is told, or why they take no part


class ServiceNews:
    """Tells of each client that joins, and of rounds that came to nothing: the first, the 10th, the 100th in a row."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._came = say, set[Address]()
        self._told = self._tries = 0  # records of rounds, and of the next one how often it was tried
        self._failed = 0  # in a row

    def joined(self, client: Address, name: str) -> None:
        """A client was let in; it comes again for each round."""
        if client in self._came:
            return
        self._came.add(client)
        if len(self._came) <= NAMED:
            self._say(f"{client} ({name}) has joined")
        elif len(self._came) == NAMED + 1:
            self._say("further clients that join are not named")

    def resume(self, log: RoundLog) -> None:
        """These rounds were before."""
        self._told, self._tries = len(log.rounds), 0
        if log.rounds and log.rounds[-1].state == "not begun":  # it is tried again
            self._told, self._tries = len(log.rounds) - 1, log.rounds[-1].tries

    def look(self, log: RoundLog) -> None:
        """Tell of the rounds that ended since, and of those that were tried again."""
        for place, record in enumerate(log.rounds[self._told :], self._told):
            before = self._failed
            self._failed = 0 if record.state == "committed" else before + record.tries - self._tries
            if self._failed and (not before or len(str(self._failed)) > len(str(before))):
                self._say(reason(record) + (f", {self._failed} times in a row" if self._failed > 1 else ""))
            self._told, self._tries = place + 1, 0
        if log.rounds and log.rounds[-1].state == "not begun":
            self._told, self._tries = len(log.rounds) - 1, log.rounds[-1].tries


class DeclinedSums(Instrument):
    """Says which clients take no part in a secure sum, and why: of each client once."""

    def __init__(self, name: Callable[[Address], str], say: Callable[[str], None]) -> None:
        self._name, self._say, self._told = name, say, set[Address]()
        self.lines: list[str] = []

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        told = sender in self._told or len(self._told) >= NAMED
        if told or not isinstance(message, SumWithdrawal) or not message.why:
            return
        self._told.add(sender)
        self.lines.append(f"{sender} ({self._name(sender)}) declined a secure sum: {shown(message.why)}")
        self._say(self.lines[-1])


class LeftClients(Instrument):
    """Says which clients went away in the middle of a round: chosen, and gone before they were told to come again."""

    def __init__(self, name: Callable[[Address], str], say: Callable[[str], None]) -> None:
        self._name, self._say, self._told = name, say, 0
        self._chosen: dict[Address, int] = {}  # the round of each that was not told to come again yet

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if isinstance(message, Configuration):
            self._chosen[to] = message.number
        elif isinstance(message, ComeBack):
            self._chosen.pop(to, None)

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if not isinstance(message, Departed) or (number := self._chosen.pop(sender, None)) is None:
            return
        self._told += 1
        if self._told <= NAMED:
            self._say(f"{sender} ({self._name(sender)}) left in round {number + 1}, before it was done")
        elif self._told == NAMED + 1:
            self._say("further clients that leave are not named")


def reason(record: RoundRecord) -> str:
    """Why a round came to nothing."""
    if record.why:
        return f"round {record.number + 1} was {record.state}: {record.why}"
    if record.state == "not begun":
        return f"round {record.number + 1} was not begun: too few clients checked in (about {record.there} are there)"
    return (
        f"round {record.number + 1} was abandoned: {record.reports} of {record.chosen} chosen clients reported "
        f"in time, {record.dropped} went away or were refused"
    )
