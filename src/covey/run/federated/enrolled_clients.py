"""Who are the clients of a service? Those that are enrolled in its folder of keys, as it is now."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from covey.engines.service.guest_keys import GuestList, KeyFolder
from covey.engines.transport.refusals import Refusals
from covey.errors import WireError
from covey.federated.messages import AGGREGATOR, ClientReport, ComeBack
from covey.message import Address, Message
from covey.observe.instruments import Instrument
from covey.simulate.population import CLIENT

KEYS_EVERY = 1.0  # seconds between two looks at the list of clients
MOST_REFUSED = 5  # reports of a client in a row, after which it is turned away


class EnrolledClients(Sequence[range]):
    """The clients of a service as they are enrolled now: of each, as many numbers as its reports may count samples."""

    def __init__(self, folder: KeyFolder) -> None:
        self.folder = folder
        self.known: GuestList = folder.guests()
        self._seen, self._looked = folder.changed(), time.monotonic()

    def changed(self) -> bool:
        """Look at the list now and then; whether it is another one. WireError, once, if that one cannot be used."""
        if time.monotonic() - self._looked < KEYS_EVERY:
            return False
        self._looked = time.monotonic()
        if (seen := self.folder.changed()) == self._seen:
            return False
        self._seen = seen
        found = self.folder.guests()
        for before, after in zip_longest(self.known.guests, found.guests):
            if before and (after is None or (before.name, before.public) != (after.name, after.public)):
                raise WireError(f"client {before.number} ({before.name}) is missing in {self.folder.folder}")
            if before and before.revoked and not after.revoked:
                raise WireError(f"client {before.number} ({before.name}) was revoked, which cannot be undone")
        self.known = found
        return True

    def welcome(self) -> dict[str, Address]:
        """Those that may come, by their public keys."""
        return {one.public: Address(CLIENT, one.number) for one in self.known.guests if not one.revoked}

    def name(self, client: Address) -> str:
        return self.known.guests[client.rank].name

    def __len__(self) -> int:
        return len(self.known.guests)

    def __getitem__(self, client: Any) -> Any:
        return range(self.known.guests[client].samples)


class RefusedReports(Instrument):
    """Counts the reports that a role of the service has refused, by the reason that it gives the client.

    Clients of which several in a row are refused are `unwanted`, with what they are told.
    """

    def __init__(self, refusals: Refusals, clients: EnrolledClients) -> None:
        self._refusals, self._clients = refusals, clients
        self._row, self._reported = Counter[Address](), set[Address]()
        self.unwanted: dict[Address, str] = {}

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if isinstance(message, ClientReport):
            self._reported.add(sender)

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        if not isinstance(message, ComeBack):
            return
        if message.refused:
            self._refusals.note(f"a report of {to} ({self._clients.name(to)}): {message.refused}")
            self._row[to] += 1
            if self._row[to] >= MOST_REFUSED:
                self.unwanted[to] = f"{MOST_REFUSED} of its reports in a row were refused, the last: {message.refused}"
        elif sender == AGGREGATOR or to in self._reported:  # one that counts, or was only late
            self._row.pop(to, None)
        self._reported.discard(to)
