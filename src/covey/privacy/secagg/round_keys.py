"""Keys of one sum: X25519 agreements, HKDF, AES-GCM boxes, Ed25519 signatures. Each key has one use and one round.

Every derived key names what it is for, the transcript (the terms and everybody's keys) and its two ends, in order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from covey.errors import WireError
from covey.privacy.randomness import SYSTEM, Randomness
from covey.privacy.secagg.messages import ClientKeys, SumTerms
from covey.privacy.secagg.shamir import PRIME, SHARE

KEY, SIGNATURE, NONCE = 32, 64, 12
BOX = NONCE + 2 * SHARE + 16


def statement(purpose: str, *facts: object) -> bytes:
    """Bytes to sign or to derive a key from: equal only if purpose and facts are."""
    return msgspec.msgpack.encode(("covey secagg 3", purpose, *facts))


class Identity:
    """A client's lasting Ed25519 key, whose public half the others know from elsewhere.

    >>> len(Identity.create().public)
    32
    """

    def __init__(self, private: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()

    @classmethod
    def create(cls, randomness: Randomness = SYSTEM) -> Identity:
        return cls(randomness.take(KEY))

    def sign(self, what: bytes) -> bytes:
        return self._key.sign(what)


def signed(public: bytes, signature: bytes, what: bytes) -> bool:
    """Whether the holder of this identity signed it."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, what)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True, slots=True, repr=False)
class KeyPair:
    """An X25519 key for one sum."""

    private: bytes
    public: bytes

    @classmethod
    def of(cls, private: bytes) -> KeyPair:
        return cls(private, X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())

    def agree(self, other: bytes) -> bytes:
        """The secret in common with the holder of another key; ValueError for keys that give the same one to all."""
        return X25519PrivateKey.from_private_bytes(self.private).exchange(X25519PublicKey.from_public_bytes(other))


FIELD = (1 << 255) - 19
EIGHTH = 0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0
OTHER_EIGHTH = 0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F
SMALL_ORDER = {0, 1, FIELD - 1, FIELD, FIELD + 1, EIGHTH, OTHER_EIGHTH}
"""With these every agreement is 0 (cr.yp.to/ecdh.html); `agree` refuses them too."""


def usable(public: bytes) -> bool:
    """Whether this is a key with which agreements are secret: 32 bytes, no point of small order, and its only writing.

    Two writings of one point would pass for two keys.
    """
    number = int.from_bytes(public, "little")
    return len(public) == KEY and number < FIELD and number not in SMALL_ORDER


def transcript(terms: SumTerms, keys: tuple[ClientKeys, ...]) -> bytes:
    """What all clients must have seen alike: the terms and everybody's keys."""
    agreed = [getattr(terms, field) for field in terms.__struct_fields__ if field != "sender"]
    return hashlib.sha256(statement("transcript", agreed, keys)).digest()


def advertisement(terms: SumTerms, client: int, box_key: bytes, mask_key: bytes) -> bytes:
    """What a client signs when it shows its keys."""
    agreed = transcript(terms, ())
    return statement("keys", agreed, client, box_key, mask_key)


def masks_statement(seen: bytes, client: int, without: tuple[int, ...]) -> bytes:
    """What a client signs with its masked numbers: the neighbours with which it has no mask in common."""
    return statement("masks", seen, client, without)


def survivors_statement(seen: bytes, survivors: tuple[int, ...]) -> bytes:
    """What clients sign before they help to open a sum."""
    return statement("survivors", seen, survivors)


def commitment(seen: bytes, client: int, seed: bytes) -> bytes:
    """What tells the server that it has put a seed together rightly; the seed is random, so it hides it."""
    return hashlib.sha256(statement("commitment", seen, client, seed)).digest()


def own_mask(seed: bytes, seen: bytes, client: int) -> bytes:
    """The key of a client's own mask."""
    return _derived(seed, statement("own mask", seen, client))


def common_mask(mine: KeyPair, theirs: bytes, seen: bytes, pair: tuple[int, int]) -> bytes:
    """The key of the mask that two clients have in common; one of them adds it, the other subtracts it."""
    return _derived(mine.agree(theirs), statement("common mask", seen, *sorted(pair)))


@dataclass(frozen=True, slots=True)
class ShareBox:
    """The way from one client to another, through the server: AES-256-GCM with a key for this direction."""

    seen: bytes
    sender: int
    receiver: int

    @property
    def label(self) -> bytes:
        return statement("shares", self.seen, self.sender, self.receiver)

    def seal(self, agreed: bytes, shares: tuple[int, int], randomness: Randomness) -> bytes:
        nonce, plain = randomness.take(NONCE), b"".join(share.to_bytes(SHARE, "big") for share in shares)
        return nonce + AESGCM(_derived(agreed, self.label)).encrypt(nonce, plain, self.label)

    def open(self, agreed: bytes, box: bytes) -> tuple[int, int]:
        """Both shares; WireError if the sender did not seal this for the receiver in this round."""
        try:
            plain = AESGCM(_derived(agreed, self.label)).decrypt(box[:NONCE], box[NONCE:], self.label)
        except (InvalidTag, ValueError):
            raise WireError(f"client {self.sender} sealed no shares for client {self.receiver} in this box") from None
        return share(plain[:SHARE], self.sender), share(plain[SHARE:], self.sender)


def share(data: bytes, sender: int) -> int:
    """A share that came from a client; WireError if it is out of range."""
    number = int.from_bytes(data, "big")
    if len(data) != SHARE or number >= PRIME:
        raise WireError(f"client {sender} sent a share out of range")
    return number


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return HKDF(SHA256(), KEY, salt=None, info=purpose).derive(secret)
