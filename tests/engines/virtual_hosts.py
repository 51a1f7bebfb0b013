"""Readers, keepers and the backend in virtual time: the same programs, over the network of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple

from covey.data.stripe_cache.keeper import Keeper, as_vector, bytes_of, read_stripe
from covey.data.stripe_cache.keeper_messages import KEEPER, READER, FetchStripe, HungUp, StripeBytes
from covey.data.stripe_cache.stripe import Stripe
from covey.engines.service.role_loop import LoopRole
from covey.engines.virtual.agenda import Agenda
from covey.membership import Departed
from covey.message import Address, Message, payload, stamped
from covey.program import Compute, Effect, Now, Receive, Send
from covey.simulate import Cluster, Event, Parcel, network

WAIT: Final = object()
BACKEND: Final = Address("backend", 0)  # its link is `links["backend 0"]` of the cluster


class MemoryStore:
    """The stripes of one host."""

    def __init__(self) -> None:
        self.stripes: dict[Stripe, bytes] = {}

    def read(self, stripe: Stripe, first: int, last: int) -> bytes | None:
        found = self.stripes.get(stripe)
        return None if found is None else found[first:last]

    def store(self, stripe: Stripe, data: bytes) -> None:
        self.stripes[stripe] = data


class EpochReading(NamedTuple):
    """What one pass over the data took: until when, and bytes by where they were."""

    ended: float
    backend: int
    peers: int


class StripeParcel(Parcel, kw_only=True):
    """A message on the network."""

    to: Address
    message: Message


class VirtualHosts:
    """Hosts that share their caches, each with a reader; reader r of n reads every n-th stripe, then the next epoch.

    Args:
        cluster: Its hosts are "keeper 0", "keeper 1", … and "backend 0".
        contents: What the backend has.
        hosts: How many there are.
        order: The stripes that a reader reads in an epoch: (reader, epoch).
    """

    def __init__(
        self, cluster: Cluster, contents: Mapping[Stripe, bytes], hosts: int,
        order: Callable[[int, int], Sequence[Stripe]],
    ) -> None:  # fmt: skip
        self.stores = [MemoryStore() for _ in range(hosts)]
        self.fetched: list[Stripe] = []  # from the backend
        self.refused: list[str] = []
        self._contents, self._order, self._network = contents, order, network(cluster)
        self._agenda, self._serial = Agenda(), count()
        self._keepers = {f"host{rank}": Address(KEEPER, rank) for rank in range(hosts)}
        self._roles: dict[Address, LoopRole] = {}
        self._peer_bytes = 0
        self._begin(BACKEND, self._serve)
        for rank in range(hosts):
            keeper = Address(KEEPER, rank)
            self._begin(keeper, lambda role, rank=rank: self._keep(role, rank))  # type: ignore[misc]

    def epoch(self, number: int) -> EpochReading:
        """Let all readers that are there read their stripes, each after the other's last epoch."""
        fetched, passed, left = len(self.fetched), self._peer_bytes, []
        for host in [who for who in self._roles if who.role == KEEPER]:
            reader = Address(READER, host.rank)
            left.append(self._begin(reader, lambda role, host=host: self._read(role, host, number)))  # type: ignore[misc]
        while not all(role.ended or self._roles.get(role.address) is not role for role in left):
            assert self._agenda.due, "readers wait for stripes that nobody fetches"
            self._agenda.step()
        ended = self._agenda.now
        while not self._agenda.still:  # what the last one fetched is on its way to who keeps it
            self._agenda.step()
        size = sum(stripe.size for stripe in self.fetched[fetched:])
        return EpochReading(ended, size, self._peer_bytes - passed)

    def lose(self, rank: int, at: float | None = None) -> None:
        """A host is lost, now or later, with its reader and its stripes; all other keepers hear of it."""
        if at is not None:
            return self._agenda.from_outside(at, lambda rank, _: self.lose(rank), rank)
        for who in (Address(READER, rank), keeper := Address(KEEPER, rank)):
            if role := self._roles.pop(who, None):
                role.close()
        for other in [who for who in self._roles if who.role == KEEPER]:
            self._deliver(other, HungUp(sender=keeper))
            self._deliver(other, Departed(0, sender=keeper))
        return None

    # -- programs -----------------------------------------------------------------------------------------------------

    def _keep(self, role: LoopRole, rank: int) -> Coroutine[Effect[Any], Any, None]:
        return Keeper(role.node, self._keepers, self.stores[rank], self.refused.append).run()

    async def _serve(self, role: LoopRole) -> None:
        while True:
            asked = await role.node.receive(FetchStripe)
            self.fetched.append(asked.stripe)
            data = as_vector(self._contents[asked.stripe])
            await role.node.send(asked.sender, StripeBytes(asked.stripe, 0, asked.stripe.size, data), loan=True)

    async def _read(self, role: LoopRole, keeper: Address, epoch: int) -> None:
        store = self.stores[keeper.rank]
        for stripe in self._order(keeper.rank, epoch):
            if store.read(stripe, 0, 0) is not None:
                continue

            async def fetch(stripe: Stripe = stripe) -> bytes:
                await Send(BACKEND, FetchStripe(stripe))
                return bytes_of((await role.node.receive(StripeBytes, sender=BACKEND)).data)

            found, _ = await read_stripe(keeper, stripe, 0, stripe.size, fetch)
            assert found == self._contents[stripe], "a reader was given other bytes"

    # -- effects ------------------------------------------------------------------------------------------------------

    def _begin(self, who: Address, program: Callable[[LoopRole], Coroutine[Effect[Any], Any, None]]) -> LoopRole:
        role = LoopRole(who, Random(0))
        self._roles[who], role.program = role, program(role)
        self._agenda.at(self._agenda.now, self._advance, role)
        return role

    def _advance(self, role: LoopRole, value: Any) -> None:
        assert role.program is not None
        while value is not WAIT and self._roles.get(role.address) is role:
            try:
                value = self._perform(role, role.program.send(value))
            except StopIteration:
                role.ended = True
                return

    def _perform(self, role: LoopRole, effect: Effect[Any]) -> Any:
        if isinstance(effect, Send):
            return self._send(role.address, effect)
        if isinstance(effect, Compute):
            return effect.work()
        if isinstance(effect, Now):
            return self._agenda.now
        assert isinstance(effect, Receive), f"{role.address} awaited a {type(effect).__name__}"
        if (found := role.mailbox.take(effect)) is not None:
            return found
        role.want = effect
        return WAIT

    def _send(self, sender: Address, effect: Send) -> None:
        message = stamped(effect.body, sender, copy=False)
        src, dst = _host(sender), _host(effect.to)
        if src != dst and sender != BACKEND and effect.to != BACKEND:
            self._peer_bytes += payload(message)
        parcel = StripeParcel(next(self._serial), src, dst, payload(message), to=effect.to, message=message)
        self._expect(self._network.send(self._agenda.now, parcel))

    def _expect(self, events: Sequence[Event]) -> None:
        for event in events:
            self._agenda.at(event.at, self._happen, event)

    def _happen(self, event: Event, _: object) -> None:
        events, parcel = self._network.happen(self._agenda.now, event)
        self._expect(events)
        if isinstance(parcel, StripeParcel) and parcel.message.sender in self._roles:
            self._deliver(parcel.to, parcel.message)

    def _deliver(self, to: Address, message: Message) -> None:
        if role := self._roles.get(to):
            role.mailbox.put(message)
            if role.want and (found := role.mailbox.take(role.want)) is not None:
                role.want = None
                self._agenda.at(self._agenda.now, self._advance, role, found)


def _host(who: Address) -> str:
    """The machine on which a role lives: a reader's is its keeper's."""
    return str(who if who == BACKEND else Address(KEEPER, who.rank))
