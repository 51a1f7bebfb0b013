"""The server of a secure sum: it collects, passes on, and opens the sum when enough clients help it to.

A message that it refuses changes nothing. Masked numbers are added up as they come, and not kept one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.errors import SumAbandoned, WireError
from covey.message import Message
from covey.privacy.randomness import SYSTEM, SeededRandomness
from covey.privacy.secagg.fixed_point import RING
from covey.privacy.secagg.masks import add_masks_, unsigned
from covey.privacy.secagg.messages import (
    AdvertiseKeys,
    ClientKeys,
    DeliveredShares,
    Endorsement,
    KeyList,
    MaskedInput,
    RevealedShare,
    SealedShares,
    ShareKeys,
    SignedBy,
    SignedMasks,
    SumTerms,
    SurvivorList,
    UnmaskRequest,
    UnmaskShares,
)  # fmt: skip
from covey.privacy.secagg.round_keys import (
    BOX,
    KEY,
    KeyPair,
    advertisement,
    commitment,
    common_mask,
    masks_statement,
    own_mask,
    share,
    signed,
    survivors_statement,
    transcript,
    usable,
)  # fmt: skip
from covey.privacy.secagg.shamir import recover
from covey.privacy.secagg.terms import Neighbourhood, fewest
from covey.vector import Vector


@dataclass(frozen=True, slots=True)
class SumOutcome:
    """A sum that was opened."""

    total: Tensor  # int64
    clients: tuple[int, ...]  # whose numbers are in it
    randomness: str  # where the secrets came from


class SumServer:
    """The server's part in one sum: `receive` what clients send, `advance` when nothing more is waited for.

    Args:
        terms: Of the sum.
        directory: Everybody's public identities.
    """

    def __init__(self, terms: SumTerms, directory: Mapping[int, bytes]) -> None:
        self.terms, self._directory = terms, directory
        self.outcome: SumOutcome | None = None
        self.waiting: set[int] = set(terms.clients)
        self._total = torch.zeros(terms.length, dtype=RING[terms.bits])
        self._keys: dict[int, ClientKeys] = {}
        self._shared: dict[int, ShareKeys] = {}
        self._masked: dict[int, SignedMasks] = {}
        self._endorsed: dict[int, bytes] = {}
        self._revealed: dict[int, UnmaskShares] = {}
        self._phases = iter((
            (AdvertiseKeys, self._take_keys, self._close_keys),
            (ShareKeys, self._take_shares, self._close_shares),
            (MaskedInput, self._take_masked, self._close_masked),
            (Endorsement, self._take_endorsement, self._close_endorsements),
            (UnmaskShares, self._take_revealed, self._close_revealed),
        ))
        self._kind: type[Message]
        self._take: Callable[..., None]
        self._close: Callable[[], Mapping[int, Message]]
        self._kind, self._take, self._close = next(self._phases)

    def receive(self, client: int, message: Message) -> None:
        """Take what a client sent; WireError, and nothing has changed, if it is wrong."""
        if client not in self.waiting:
            raise WireError(f"client {client} sent a {type(message).__name__}, which is not expected of it")
        if not isinstance(message, self._kind) or getattr(message, "round", b"") != self.terms.round:
            wanted = self._kind.__name__
            raise WireError(f"client {client} sent a {type(message).__name__}, not the {wanted} of this round")
        self._take(client, message)
        self.waiting.discard(client)

    def advance(self) -> Mapping[int, Message]:
        """End a phase: what to send to whom. SumAbandoned where too few are left; then nothing can be opened."""
        try:
            sent = self._close()
        except SumAbandoned:
            self._forget()
            raise
        self.waiting = set(sent)
        if sent:
            self._kind, self._take, self._close = next(self._phases)
        else:
            self._forget()
        return sent

    def _take_keys(self, client: int, message: AdvertiseKeys) -> None:
        known = {key for keys in self._keys.values() for key in (keys.box_key, keys.mask_key)}
        for key in (message.box_key, message.mask_key):
            if not usable(key) or key in known:
                raise WireError(f"client {client} sent a key that keeps nothing secret, or is another's")
            known.add(key)
        what = advertisement(self.terms, client, message.box_key, message.mask_key)
        if client not in self._directory or not signed(self._directory[client], message.signature, what):
            raise WireError(f"client {client} sent keys that its identity has not signed")
        self._keys[client] = ClientKeys(client, message.box_key, message.mask_key, message.signature)

    def _close_keys(self) -> Mapping[int, Message]:
        self._enough(self._keys, fewest(self.terms), "keys")
        keys = tuple(self._keys[client] for client in sorted(self._keys))
        self._seen = transcript(self.terms, keys)
        self._places = Neighbourhood(self.terms, self._keys, self._seen)
        return dict.fromkeys(self._keys, KeyList(self.terms.round, keys))

    def _take_shares(self, client: int, message: ShareKeys) -> None:
        to = [sealed.client for sealed in message.boxes]
        if sorted(to) != sorted(self._places.neighbours[client]) or any(len(one.box) != BOX for one in message.boxes):
            raise WireError(f"client {client} sent other shares than one for each of its neighbours")
        if len(message.commitment) != KEY:
            raise WireError(f"client {client} sent a commitment of {len(message.commitment)} bytes")
        self._shared[client] = message

    def _close_shares(self) -> Mapping[int, Message]:
        self._enough(self._shared, self._places.least, "shares")
        self._openable(self._shared, self._shared)
        boxes: dict[int, list[SealedShares]] = {client: [] for client in self._shared}
        for client in sorted(self._shared):
            for sealed in self._shared[client].boxes:
                if sealed.client in boxes:
                    boxes[sealed.client].append(SealedShares(client, sealed.box))
        self._commitments = {client: message.commitment for client, message in self._shared.items()}
        return {client: DeliveredShares(self.terms.round, tuple(found)) for client, found in boxes.items()}

    def _take_masked(self, client: int, message: MaskedInput) -> None:
        parts = message.numbers.parts
        if len(parts) != 1 or parts[0].shape != self._total.shape or parts[0].dtype != self._total.dtype:
            wanted = Vector([self._total])
            raise WireError(f"client {client} sent {message.numbers} where {wanted} belongs")
        without = tuple(sorted(self._places.neighbours[client] - self._shared.keys()))
        if not signed(self._directory[client], message.signature, masks_statement(self._seen, client, without)):
            raise WireError(f"client {client} has not signed with whom it has masks in common")
        self._total += parts[0]  # whole numbers wrap around
        self._masked[client] = SignedMasks(client, without, message.signature)

    def _close_masked(self) -> Mapping[int, Message]:
        self._enough(self._masked, self._places.least, "masked numbers")
        self._openable(self._masked.keys() | self._dropped(), self._masked)
        if not self._places.connected(self._masked):
            raise SumAbandoned("the clients that are left are not tied together by masks: no sum is opened")
        self._survivors = tuple(sorted(self._masked))
        lists: dict[int, Message] = {}
        for client in self._survivors:
            near = () if self._places.complete else sorted(self._places.neighbours[client] & self._masked.keys())
            lists[client] = SurvivorList(self.terms.round, self._survivors, tuple(self._masked[one] for one in near))
        return lists

    def _dropped(self) -> set[int]:
        """Who shares masks with survivors, but is none."""
        gone = self._shared.keys() - self._masked.keys()
        return {client for client in gone if self._places.neighbours[client] & self._masked.keys()}

    def _take_endorsement(self, client: int, message: Endorsement) -> None:
        if not signed(self._directory[client], message.signature, survivors_statement(self._seen, self._survivors)):
            raise WireError(f"client {client} has not signed the list of survivors")
        self._endorsed[client] = message.signature

    def _close_endorsements(self) -> Mapping[int, Message]:
        dropped = self._dropped()
        self._enough(self._endorsed, self._places.quorum, "signatures")
        self._openable(self._masked.keys() | dropped, self._endorsed)
        signatures = tuple(SignedBy(one, self._endorsed[one]) for one in sorted(self._endorsed))
        asked: dict[int, Message] = {}
        for client in sorted(self._endorsed):
            gone = tuple(sorted(dropped & self._places.holders(client)))
            asked[client] = UnmaskRequest(self.terms.round, self._survivors, gone, signatures)
        return asked

    def _take_revealed(self, client: int, message: UnmaskShares) -> None:
        near = self._places.holders(client)
        alive, gone = near & self._masked.keys(), near & self._dropped()
        for shares, wanted in ((message.seeds, alive), (message.mask_keys, gone)):
            if [one.client for one in shares] != sorted(wanted):
                raise WireError(f"client {client} sent shares that it was not asked for")
            for one in shares:
                share(one.share, client)
        self._revealed[client] = message

    def _close_revealed(self) -> Mapping[int, Message]:
        dropped = self._dropped()
        self._openable(self._masked.keys() | dropped, self._revealed)
        added: list[bytes] = []
        subtracted: list[bytes] = []
        for client in self._survivors:
            seed = self._recovered(client, lambda message: message.seeds)
            if commitment(self._seen, client, seed) != self._commitments[client]:
                raise SumAbandoned(f"shares of client {client}'s seed do not fit together: one of them is wrong")
            subtracted.append(own_mask(seed, self._seen, client))
        for client in sorted(dropped):
            pair = KeyPair.of(self._recovered(client, lambda message: message.mask_keys))
            if pair.public != self._keys[client].mask_key:
                raise SumAbandoned(f"shares of client {client}'s key do not fit together: one of them is wrong")
            for other in sorted(self._places.neighbours[client] & self._masked.keys()):
                key = common_mask(pair, self._keys[other].mask_key, self._seen, (client, other))
                (subtracted if other < client else added).append(key)  # what the survivor did, undone
        add_masks_(unsigned(self._total), added, subtracted)
        source = SeededRandomness.source if self.terms.simulated else SYSTEM.source
        self.outcome = SumOutcome(self._total.long(), self._survivors, source)
        return {}

    def _recovered(self, client: int, which: Callable[[UnmaskShares], tuple[RevealedShare, ...]]) -> bytes:
        """A secret of a client, from as many shares as it takes."""
        holders = sorted(self._places.holders(client) & self._revealed.keys())[: self._places.needed(client)]
        found = {}
        for holder in holders:
            (revealed,) = (one.share for one in which(self._revealed[holder]) if one.client == client)
            found[self._places.point[holder]] = share(revealed, holder)
        secret = recover(found)
        if secret >> (8 * KEY):
            raise SumAbandoned(f"shares of a secret of client {client} do not fit together: one of them is wrong")
        return secret.to_bytes(KEY, "big")

    def _openable(self, secrets: Collection[int], left: Collection[int]) -> None:
        """Give up before anything is asked for if what is left of the holders cannot open these clients' secrets."""
        there = frozenset(left)
        for client in sorted(secrets):
            if len(self._places.holders(client) & there) < (least := self._places.needed(client)):
                raise SumAbandoned(f"fewer than the {least} clients are left that can open a secret of client {client}")

    def _enough(self, there: Collection[object], least: int, what: str) -> None:
        if len(there) < least:
            raise SumAbandoned(f"{len(there)} clients sent {what}; {least} are needed: no sum is opened")

    def _forget(self) -> None:
        """Drop what could open a sum."""
        self.waiting, self._total = set(), torch.zeros(0, dtype=self._total.dtype)
        self._shared, self._revealed, self._endorsed = {}, {}, {}
        self._phases, self._close = iter(()), self._over

    def _over(self) -> Mapping[int, Message]:
        raise SumAbandoned("this sum is over")
