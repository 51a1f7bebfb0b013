"""The identities of simulated clients, which follow from a seed; each is made when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from covey.federated.private.secure_client import EnrolledParty
from covey.privacy.randomness import RandomnessSource
from covey.privacy.secagg import Identity


class SimulatedDirectory(Mapping[int, bytes]):
    """The public identities of a population."""

    def __init__(self, clients: int, randomness: RandomnessSource) -> None:
        self._clients = clients
        self.identity = lru_cache(maxsize=8192)(lambda client: Identity.create(randomness.of("identity", client)))

    def __getitem__(self, client: int) -> bytes:
        if not 0 <= client < self._clients:
            raise KeyError(client)
        return self.identity(client).public

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._clients))

    def __len__(self) -> int:
        return self._clients


def simulated_party(clients: int, randomness: RandomnessSource) -> EnrolledParty:
    """All clients of a simulated population."""
    directory = SimulatedDirectory(clients, randomness)
    return EnrolledParty(directory.identity, directory, randomness)
