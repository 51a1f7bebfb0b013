"""The keeper of a host: it serves the stripes on its disk, and has each stripe fetched once by all hosts together."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

from covey.data.stripe_cache.keeper_messages import (
    KEEPER,
    BringStripe,
    FetchStripe,
    GiveUpStripe,
    HungUp,
    StripeBytes,
    WantStripe,
)
from covey.data.stripe_cache.stripe import Stripe, owners
from covey.errors import WireError
from covey.membership import Departed, Joined
from covey.message import Address, raw
from covey.program import Effect, Node, Receive, Send
from covey.vector import Vector

Reading = Coroutine[Effect[Any], Any, bytes]


class StripeStore(Protocol):
    """Where a keeper has its stripes."""

    def read(self, stripe: Stripe, first: int, last: int) -> bytes | None: ...
    def store(self, stripe: Stripe, data: bytes) -> None: ...


@dataclass(slots=True)
class WantedStripe:
    """A stripe that somebody waits for: who fetches it, and which keeper was asked for it, if not this one."""

    waiting: list[WantStripe] = field(default_factory=list)
    fetching: Address | None = None
    asked: Address | None = None


class Keeper:
    """One keeper among those of several hosts.

    Which host keeps a stripe is arithmetic. Its keeper answers with the bytes, or tells the first who asks to fetch
    the stripe; others who ask meanwhile wait until that one brings it. A keeper that a peer asks never asks another.

    Args:
        hosts: The keepers of all hosts, by the names of these.
        store: Where this one has its stripes.
        refused: Hears what was refused, and why.
    """

    def __init__(
        self, node: Node, hosts: Mapping[str, Address], store: StripeStore,
        refused: Callable[[str], object] = lambda line: None,
    ) -> None:  # fmt: skip
        self._node, self._hosts, self._store, self._refused = node, hosts, store, refused
        self._away: set[Address] = set()
        self._wanted: dict[Stripe, WantedStripe] = {}
        self._answers: dict[type, Callable[[Any], Coroutine[Effect[Any], Any, None]]] = {
            WantStripe: self._want, StripeBytes: self._pass_on, FetchStripe: self._appoint, BringStripe: self._bring,
            GiveUpStripe: self._give_up, HungUp: self._hung_up, Departed: self._departed, Joined: self._joined,
        }  # fmt: skip

    async def run(self) -> None:
        """Answer for ever."""
        while True:
            message = await self._node.receive_any(*self._answers)
            try:
                await self._answers[type(message)](message)
            except WireError as error:
                self._refused(str(error))

    def _owner(self, stripe: Stripe) -> Address:
        present = [host for host, keeper in self._hosts.items() if keeper not in self._away]
        return self._hosts[owners(stripe, present)[0]]

    async def _want(self, want: WantStripe) -> None:
        stripe = want.stripe
        stripe.check(want.sender)
        if not 0 <= want.first <= want.last <= stripe.size:
            raise WireError(f"{want.sender} asked for bytes {want.first} to {want.last} of {stripe.size}")
        read = partial(self._store.read, stripe, want.first, want.last)
        if (found := await self._node.compute(read, load=0)) is not None:
            return await self._answer(want, found)
        wanted = self._wanted.setdefault(stripe, WantedStripe())
        wanted.waiting.append(want)
        await self._ask(stripe, wanted, want)

    async def _ask(self, stripe: Stripe, wanted: WantedStripe, want: WantStripe) -> None:
        """Ask the keeper who should have a stripe, or tell the first who waits to fetch it, unless somebody does."""
        owner = self._owner(stripe)
        if owner == self._node.address or want.sender.role == KEEPER:
            owner = wanted.asked or self._node.address
        if owner != self._node.address:
            wanted.asked = owner
            await self._node.send(owner, WantStripe(stripe, want.first, want.last))
        elif wanted.fetching is None:
            wanted.fetching = wanted.waiting[0].sender
            await self._node.send(wanted.fetching, FetchStripe(stripe))

    async def _appoint(self, told: FetchStripe) -> None:
        """(From the keeper who should have it) One of those who wait here is to fetch a stripe."""
        wanted = self._wanted.get(told.stripe)
        if wanted is None:
            await self._node.send(told.sender, GiveUpStripe(told.stripe))
        elif wanted.fetching is None:
            wanted.fetching = wanted.waiting[0].sender
            await self._node.send(wanted.fetching, told)

    async def _bring(self, brought: BringStripe) -> None:
        stripe, data = brought.stripe, bytes_of(brought.data)
        stripe.check(brought.sender)
        if not stripe.fits(data):
            self._refused(f"{brought.sender} brought bytes that are not those of stripe {stripe.name[:24]}…")
            return await self._give_up(GiveUpStripe(stripe, sender=brought.sender))
        owner = self._owner(stripe)
        if owner == self._node.address or brought.sender.role == KEEPER:
            await self._node.compute(partial(self._store.store, stripe, data), load=0)
        else:
            await self._node.send(owner, BringStripe(stripe, brought.data))
        for want in self._wanted.pop(stripe, WantedStripe()).waiting:
            if want.sender != brought.sender:  # who brings it has answered all that waited there
                await self._answer(want, data[want.first : want.last])

    async def _pass_on(self, found: StripeBytes) -> None:
        """(From the keeper who has it) Bytes for who waits for them here."""
        wanted = self._wanted.get(found.stripe, WantedStripe())
        span, data = (found.first, found.last), bytes_of(found.data)
        served = [one for one in wanted.waiting if (one.first, one.last) == span and one.sender != wanted.fetching]
        for want in served:  # who fetches it has been answered
            wanted.waiting.remove(want)
            await self._answer(want, data)
        if not wanted.waiting:
            self._wanted.pop(found.stripe, None)

    async def _give_up(self, given_up: GiveUpStripe) -> None:
        """Let the next one fetch a stripe, if the sender was to; it waits no more."""
        stripe, sender = given_up.stripe, given_up.sender
        wanted = self._wanted.get(stripe)
        if wanted is None:
            return
        wanted.waiting = [want for want in wanted.waiting if want.sender != sender]
        fetched_by_sender = wanted.fetching == sender
        if fetched_by_sender:
            wanted.fetching = None
        if not wanted.waiting:
            del self._wanted[stripe]
        if fetched_by_sender and wanted.asked is not None and not wanted.waiting:
            await self._node.send(wanted.asked, GiveUpStripe(stripe))
        elif fetched_by_sender and wanted.waiting:
            wanted.fetching = wanted.waiting[0].sender
            await self._node.send(wanted.fetching, FetchStripe(stripe))

    async def _hung_up(self, gone: HungUp) -> None:
        """A reader, or a keeper's line to this one, is gone."""
        for stripe in list(self._wanted):
            await self._give_up(GiveUpStripe(stripe, sender=gone.sender))

    async def _departed(self, gone: Departed) -> None:
        """A keeper cannot be reached: who waits for stripes of its host asks the next one."""
        self._away.add(gone.sender)
        for stripe, wanted in list(self._wanted.items()):
            if wanted.asked == gone.sender:
                wanted.asked = None
                for want in list(wanted.waiting) if wanted.fetching is None else ():
                    await self._ask(stripe, wanted, want)

    async def _joined(self, back: Joined) -> None:
        self._away.discard(back.sender)

    async def _answer(self, want: WantStripe, data: bytes) -> None:
        found = StripeBytes(want.stripe, want.first, want.last, as_vector(data))
        await self._node.send(want.sender, found, loan=True)


async def read_stripe(
    keeper: Address, stripe: Stripe, first: int, last: int, fetch: Callable[[], Reading]
) -> tuple[bytes, bool]:
    """(A reader's program) Bytes of a stripe from this host's keeper; and whether they had to be fetched.

    Args:
        fetch: Reads the whole stripe from its source.
    """
    await Send(keeper, WantStripe(stripe, first, last))
    answer = await Receive((StripeBytes, FetchStripe), keeper)
    if isinstance(answer, StripeBytes):
        return bytes_of(answer.data), False
    try:
        data = await fetch()
    except BaseException:
        await Send(keeper, GiveUpStripe(stripe))
        raise
    await Send(keeper, BringStripe(stripe, as_vector(data)))
    return data[first:last], True


def as_vector(data: bytes) -> Vector:
    """Bytes, as a message carries them."""
    return Vector([torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)])


def bytes_of(vector: Vector) -> bytes:
    """And back."""
    return b"".join(bytes(raw(part)) for part in vector.parts)
