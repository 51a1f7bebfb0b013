"""What clients and the server of a secure sum say to each other. None of it is ever kept in a checkpoint."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from covey.message import Message
from covey.vector import Vector


class SumTerms(Message):
    """The terms of one secure sum, from the server."""

    wire_name = "secagg.terms"
    kept: ClassVar[bool] = False
    sized = ("clients", "about")
    round: bytes  # 16 bytes, never used twice
    clients: tuple[int, ...]  # who may take part, in ascending order
    length: int  # numbers of each client
    bits: int  # of the ring, 32 or 64
    largest: int  # absolute value of a client's number
    threshold: float  # which part of the holders opens a secret
    neighbours: int  # with which a client shares secrets; 0: with all
    least: int  # clients in a sum
    simulated: bool  # whether secrets come from a seed
    about: bytes = b""  # the hash of what the numbers are computed from, which every client must have been given alike


class ClientKeys(msgspec.Struct, array_like=True, frozen=True):
    """One client's public keys for one sum, signed with its identity."""

    client: int
    box_key: bytes  # X25519, for the shares sent to it
    mask_key: bytes  # X25519, for the masks that it has in common with others
    signature: bytes


class SealedShares(msgspec.Struct, array_like=True, frozen=True):
    """Shares of two secrets, which only their receiver can read."""

    client: int  # the other one: to whom they go, or from whom they come
    box: bytes


class SignedMasks(msgspec.Struct, array_like=True, frozen=True):
    """With which of its neighbours a client has masked its numbers, signed by it."""

    client: int
    without: tuple[int, ...]  # the neighbours with which it has not, in ascending order
    signature: bytes


class SignedBy(msgspec.Struct, array_like=True, frozen=True):
    """A client's signature under the list of survivors."""

    client: int
    signature: bytes


class RevealedShare(msgspec.Struct, array_like=True, frozen=True):
    """A share of one secret of a client, for the server."""

    client: int
    share: bytes


class AdvertiseKeys(Message):
    """A client's public keys."""

    wire_name = "secagg.keys"
    kept: ClassVar[bool] = False
    sized = ("box_key", "mask_key", "signature")
    round: bytes
    box_key: bytes
    mask_key: bytes
    signature: bytes


class KeyList(Message):
    """The keys of all clients, from the server."""

    wire_name = "secagg.key_list"
    kept: ClassVar[bool] = False
    sized = ("keys",)
    round: bytes
    keys: tuple[ClientKeys, ...]


class ShareKeys(Message):
    """A client's secrets, in shares for its neighbours."""

    wire_name = "secagg.share"
    kept: ClassVar[bool] = False
    sized = ("commitment", "boxes")
    round: bytes
    commitment: bytes  # to the seed of its own mask
    boxes: tuple[SealedShares, ...]


class DeliveredShares(Message):
    """The shares that a client's neighbours have sent it; with those it has masks in common."""

    wire_name = "secagg.delivered"
    kept: ClassVar[bool] = False
    sized = ("boxes",)
    round: bytes
    boxes: tuple[SealedShares, ...]


class MaskedInput(Message):
    """A client's numbers under its masks."""

    wire_name = "secagg.masked"
    kept: ClassVar[bool] = False
    sized = ("signature",)
    round: bytes
    numbers: Vector
    signature: bytes  # under the neighbours with which they are masked


class SurvivorList(Message):
    """Whose masked numbers have come, from the server."""

    wire_name = "secagg.survivors"
    kept: ClassVar[bool] = False
    sized = ("survivors", "masks")
    round: bytes
    survivors: tuple[int, ...]
    masks: tuple[SignedMasks, ...]  # of the receiver's neighbours among them; empty where all are neighbours of all


class Endorsement(Message):
    """A client's signature under the list of survivors."""

    wire_name = "secagg.endorsement"
    kept: ClassVar[bool] = False
    sized = ("signature",)
    round: bytes
    signature: bytes


class UnmaskRequest(Message):
    """The server asks for shares: of the own masks of survivors, and of the mask keys of those who dropped out."""

    wire_name = "secagg.unmask"
    kept: ClassVar[bool] = False
    sized = ("survivors", "dropped", "endorsements")
    round: bytes
    survivors: tuple[int, ...]
    dropped: tuple[int, ...]
    endorsements: tuple[SignedBy, ...]


class UnmaskShares(Message):
    """The shares that the server asked for."""

    wire_name = "secagg.unmasked"
    kept: ClassVar[bool] = False
    sized = ("seeds", "mask_keys")
    round: bytes
    seeds: tuple[RevealedShare, ...]
    mask_keys: tuple[RevealedShare, ...]
