"""A client of a secure sum: five answers in five phases, or a refusal, after which it knows no secret any more.

Bonawitz et al. 2017, figure 4 (the version against a lying server); neighbours as in Bell et al. 2020.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from covey.errors import PlanError, WireError
from covey.privacy.randomness import SYSTEM, Randomness
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
    SumTerms,
    SurvivorList,
    UnmaskRequest,
    UnmaskShares,
)  # fmt: skip
from covey.privacy.secagg.round_keys import (
    BOX,
    KEY,
    SIGNATURE,
    Identity,
    KeyPair,
    ShareBox,
    advertisement,
    commitment,
    common_mask,
    masks_statement,
    own_mask,
    signed,
    survivors_statement,
    transcript,
    usable,
)  # fmt: skip
from covey.privacy.secagg.shamir import SHARE, split
from covey.privacy.secagg.terms import Neighbourhood, ascending, fewest, mistake
from covey.vector import Vector

Phase = Literal["advertise", "share", "mask", "endorse", "unmask", "over"]
PHASES: tuple[Phase, ...] = ("advertise", "share", "mask", "endorse", "unmask", "over")
Asked = KeyList | DeliveredShares | SurvivorList | UnmaskRequest


@dataclass(slots=True, repr=False)
class RoundSecrets:
    """What a client must not tell, and what others have told it in confidence."""

    box: KeyPair
    mask: KeyPair
    seed: bytes
    held: dict[int, tuple[int, int]]  # of each client: a share of its seed, and one of its mask key


class SumClient:
    """One client's part in one sum.

    Args:
        client: Its number.
        terms: What the server proposes; nothing of it is believed.
        identity: Its lasting key.
        directory: Everybody's public identities, which must not come from the server of this sum.
        least: It takes no part in sums that fewer clients can open.
        about: The hash of what this client's numbers are computed from.
        randomness: The operating system's, unless the sum is simulated.
    """

    def __init__(
        self, client: int, terms: SumTerms, identity: Identity, directory: Mapping[int, bytes], *, least: int = 2,
        about: bytes = b"", randomness: Randomness = SYSTEM,
    ) -> None:  # fmt: skip
        self.client, self.terms, self.phase = client, terms, PHASES[0]
        self._identity, self._directory, self._randomness = identity, directory, randomness
        if wrong := mistake(terms):
            raise self._refusal(f"proposed what cannot be: {wrong}")
        if client not in terms.clients:
            raise self._refusal("proposed a sum without this client")
        if (opens := fewest(terms)) < least:
            raise self._refusal(f"proposed a sum that {opens} clients can open; {least} or more must be needed")
        if terms.about != about:
            raise self._refusal("gave this client other weights, or other terms of reports, than the sum is about")
        if terms.simulated and not randomness.seeded:
            raise self._refusal("proposed a simulated sum, with secrets from a seed")
        if randomness.seeded and not terms.simulated:
            raise PlanError("secrets from a seed are for simulated sums only: omit the seed")
        box, mask = (KeyPair.of(randomness.take(KEY)) for _ in range(2))
        self._secrets: RoundSecrets | None = RoundSecrets(box, mask, randomness.take(KEY), {})

    def advertise(self) -> AdvertiseKeys:
        """First answer: the public keys."""
        with self._step("advertise", None) as secrets:
            box, mask = secrets.box.public, secrets.mask.public
            signature = self._identity.sign(advertisement(self.terms, self.client, box, mask))
            return AdvertiseKeys(self.terms.round, box, mask, signature)

    def share(self, message: KeyList) -> ShareKeys:
        """Second answer: the seed of the own mask, and the key of the others, in shares for the neighbours."""
        with self._step("share", message) as secrets:
            self._keys = self._checked_keys(message, secrets)
            self._seen = transcript(self.terms, message.keys)
            self._places = Neighbourhood(self.terms, self._keys, self._seen)
            points = {holder: self._places.point[holder] for holder in sorted(self._places.holders(self.client))}
            t = self._places.needed(self.client)
            seeds, keys = (
                split(int.from_bytes(secret, "big"), points.values(), t, self._randomness)
                for secret in (secrets.seed, secrets.mask.private)
            )
            boxes = []
            for holder, point in points.items():
                shares = seeds[point], keys[point]
                if holder == self.client:
                    secrets.held = {holder: shares}
                    continue
                way, agreed = ShareBox(self._seen, self.client, holder), secrets.box.agree(self._keys[holder].box_key)
                boxes.append(SealedShares(holder, way.seal(agreed, shares, self._randomness)))
            return ShareKeys(self.terms.round, commitment(self._seen, self.client, secrets.seed), tuple(boxes))

    def mask(self, message: DeliveredShares, numbers: Tensor) -> MaskedInput:
        """Third answer: the numbers, under the own mask and one mask with each neighbour that is still there."""
        with self._step("mask", message) as secrets:
            self._check_numbers(numbers)
            senders = [sealed.client for sealed in message.boxes]
            if not ascending(senders) or not self._places.neighbours[self.client].issuperset(senders):
                raise self._refusal("delivered shares of clients that are no neighbours, or twice")
            if len(senders) + 1 < self._places.needed(self.client):
                raise self._refusal(f"delivered shares of {len(senders)} neighbours, too few to open anything later")
            for sealed in message.boxes:
                if len(sealed.box) != BOX:
                    raise self._refusal(f"delivered a box of {len(sealed.box)} bytes from client {sealed.client}")
                way = ShareBox(self._seen, sealed.client, self.client)
                agreed = secrets.box.agree(self._keys[sealed.client].box_key)
                secrets.held = secrets.held | {sealed.client: way.open(agreed, sealed.box)}
            common = {other: self._common(secrets, other) for other in senders}
            added = [key for other, key in common.items() if other > self.client]
            masked = numbers.clone()
            add_masks_(
                unsigned(masked), [own_mask(secrets.seed, self._seen, self.client), *added],
                [key for other, key in common.items() if other < self.client],
            )  # fmt: skip
            without = tuple(sorted(self._places.neighbours[self.client] - common.keys()))
            signature = self._identity.sign(masks_statement(self._seen, self.client, without))
            return MaskedInput(self.terms.round, Vector([masked]), signature)

    def endorse(self, message: SurvivorList) -> Endorsement:
        """Fourth answer: a signature under the one list of survivors that this client will ever sign."""
        with self._step("endorse", message) as secrets:
            there, mine = set(message.survivors), self._places.neighbours[self.client]
            if not ascending(message.survivors) or not there <= self._keys.keys() or self.client not in there:
                raise self._refusal("listed survivors twice, unknown ones, or not this client")
            if not there & mine <= secrets.held.keys():
                raise self._refusal("listed survivors whose shares it never delivered")
            if len(there) < self._places.least or not self._places.connected(there):
                least = self._places.least
                raise self._refusal(f"listed {len(there)} survivors: at least {least} must be tied together by masks")
            self._check_masks(message)
            self._survivors = message.survivors
            return Endorsement(self.terms.round, self._identity.sign(survivors_statement(self._seen, self._survivors)))

    def unmask(self, message: UnmaskRequest) -> UnmaskShares:
        """Last answer: of each client one share, of its seed if it survived, of its mask key if it dropped out."""
        with self._step("unmask", message) as secrets:
            if both := set(message.survivors) & set(message.dropped):
                raise self._refusal(f"asked for both secrets of client {min(both)}")
            if message.survivors != self._survivors:
                raise self._refusal("asked with another list of survivors than it had signed")
            if not ascending(message.dropped) or not set(message.dropped) <= secrets.held.keys():
                raise self._refusal("asked for the mask keys of clients whose shares are not here")
            self._check_endorsements(message)
            alive = [client for client in message.survivors if client in secrets.held]
            seeds = tuple(RevealedShare(client, _packed(secrets.held[client][0])) for client in alive)
            keys = tuple(RevealedShare(client, _packed(secrets.held[client][1])) for client in message.dropped)
            return UnmaskShares(self.terms.round, seeds, keys)

    def forget(self) -> None:
        """Drop all secrets; whatever comes now is refused."""
        self.phase, self._secrets = "over", None

    @contextmanager
    def _step(self, phase: Phase, message: Asked | None) -> Iterator[RoundSecrets]:
        """One answer; after the last one, or a refusal, no secret is left."""
        now, self.phase = self.phase, "over"
        secrets, self._secrets = self._secrets, None
        if now != phase or secrets is None:
            when = "again, or after its time" if PHASES.index(now) > PHASES.index(phase) else "too early"
            raise self._refusal(f"sent a {type(message).__name__} {when}")
        if message is not None and message.round != self.terms.round:
            raise self._refusal(f"sent a {type(message).__name__} of another round")
        yield secrets
        self.phase = PHASES[PHASES.index(phase) + 1]
        self._secrets = secrets if self.phase != "over" else None

    def _checked_keys(self, message: KeyList, secrets: RoundSecrets) -> dict[int, ClientKeys]:
        found = {keys.client: keys for keys in message.keys}
        if not ascending([keys.client for keys in message.keys]) or not found.keys() <= set(self.terms.clients):
            raise self._refusal("listed keys of uninvited clients, or of one twice")
        if len(found) < fewest(self.terms):
            raise self._refusal(f"listed keys of {len(found)} clients; at least {fewest(self.terms)} were agreed")
        mine = found.get(self.client)
        if mine is None or (mine.box_key, mine.mask_key) != (secrets.box.public, secrets.mask.public):
            raise self._refusal("listed no keys of this client, or others in its name")
        if len({key for keys in message.keys for key in (keys.box_key, keys.mask_key)}) != 2 * len(found):
            raise self._refusal("listed one key twice")
        for client, keys in found.items():
            if not (usable(keys.box_key) and usable(keys.mask_key)):
                raise self._refusal(f"listed a key of client {client} that keeps nothing secret")
            what = advertisement(self.terms, client, keys.box_key, keys.mask_key)
            if client not in self._directory or not signed(self._directory[client], keys.signature, what):
                raise self._refusal(f"listed keys that client {client} has not signed")
        return found

    def _check_numbers(self, numbers: Tensor) -> None:
        fits = numbers.shape == (self.terms.length,) and numbers.dtype == RING[self.terms.bits]
        if not fits or int(numbers.max()) > self.terms.largest or int(numbers.min()) < -self.terms.largest:
            raise PlanError(
                f"client {self.client} wants to add {tuple(numbers.shape)} x {numbers.dtype} to a sum of "
                f"{self.terms.length} x {RING[self.terms.bits]} of at most {self.terms.largest}"
            )

    def _check_masks(self, message: SurvivorList) -> None:
        """Survivors whose seeds this client can open have masks with all their surviving neighbours.

        Else the server has kept shares from one of them, so that the list falls into parts that it could open alone.
        Where all are neighbours of all, each has a mask with one who signs, and who signs has one with all.
        """
        there, mine = set(message.survivors), self._places.neighbours[self.client]
        if [one.client for one in message.masks] != ([] if self._places.complete else sorted(there & mine)):
            raise self._refusal("did not show what masks the surviving neighbours have signed")
        for one in message.masks:
            what = masks_statement(self._seen, one.client, one.without)
            if not signed(self._directory[one.client], one.signature, what):
                raise self._refusal(f"showed masks that client {one.client} has not signed")
            if apart := there & set(one.without):
                raise self._refusal(f"listed clients {one.client} and {min(apart)}, whose mask in common it prevented")

    def _check_endorsements(self, message: UnmaskRequest) -> None:
        """Most of those who were invited signed this list, and each signs one: no other can be opened."""
        signers = [one.client for one in message.endorsements]
        if not ascending(signers) or not set(signers) <= set(message.survivors):
            raise self._refusal("sent signatures of clients that may not sign, or one twice")
        what = survivors_statement(self._seen, message.survivors)
        for one in message.endorsements:
            if len(one.signature) != SIGNATURE or not signed(self._directory[one.client], one.signature, what):
                raise self._refusal(f"sent a list of survivors that client {one.client} has not signed")
        if len(signers) < (quorum := self._places.quorum):
            raise self._refusal(f"sent a list of survivors that {len(signers)} have signed; {quorum} must")

    def _common(self, secrets: RoundSecrets, other: int) -> bytes:
        return common_mask(secrets.mask, self._keys[other].mask_key, self._seen, (self.client, other))

    def _refusal(self, what: str) -> WireError:
        return WireError(f"the server {what}: client {self.client} takes no further part in this sum")


def _packed(share: int) -> bytes:
    return share.to_bytes(SHARE, "big")
