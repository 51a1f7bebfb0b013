"""Records: the frames of a link, each sealed with AES-256-GCM, and the answers that acknowledge them.

The sender of a link makes two random keys for each connection, and sends them in an offer over the link's CURVE socket.
The receiver connects and proves with its first answer that it has read the offer. Records are numbered from 0 on, on
all connections of the link. A nonce is the number of a record or an answer, and each key is for one direction of one
connection, so no pair of key and nonce is used twice.
"""

from __future__ import annotations

import secrets
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from covey.address import Address
from covey.decoding import WireFormat
from covey.engines.transport.frames import DATA, MAX_OPEN, OPEN, Frame
from covey.engines.transport.secretive import Secretive
from covey.errors import WireError

CIPHER = "aes-256-gcm"
KEY, TICKET, TAG = 32, 16, 16  # bytes
FORTH, BACK = b"records", b"answers"

_head = Struct("<IIBBQQQ")
_answer = Struct("<QQ")
HEAD = _head.size
ANSWER = _answer.size + TAG
HELLO = TICKET + ANSWER


class CipherOffer(Secretive, frozen=True):
    """An invitation to connect: where, with which ticket, and the keys of this connection."""

    port: int
    number: int  # of the link's offers
    ticket: bytes  # in the clear on the connection, and of use once
    forth: bytes  # the key of the records
    back: bytes  # the key of the answers


offers: WireFormat[CipherOffer] = WireFormat("offer of a connection", CipherOffer, most=256)


def new_offer(port: int, number: int) -> CipherOffer:
    return CipherOffer(port, number, *(secrets.token_bytes(size) for size in (TICKET, KEY, KEY)))


class LinkIdentity(NamedTuple):
    """Which link of which run this is, between which incarnations of its ends."""

    token: bytes
    sender: Address
    receiver: Address
    sender_incarnation: int
    receiver_incarnation: int

    def bound(self, offer: CipherOffer, direction: bytes) -> bytes:
        """To what all records, or all answers, of a connection are bound."""
        ends = (str(self.sender), str(self.receiver), self.sender_incarnation, self.receiver_incarnation)
        return msgspec.msgpack.encode((CIPHER, self.token, *ends, offer.number, direction))


class RecordHead(NamedTuple):
    """What precedes a record in the clear; all of it is authenticated."""

    length: int  # of the sealed bytes that follow
    size: int  # as in the frame
    kind: int
    last: bool  # of its message
    number: int  # of the record
    message: int
    offset: int

    @staticmethod
    def of(frame: Frame, body: int, last: bool, number: int) -> RecordHead:
        return RecordHead(body + TAG, frame.size, frame.kind, last, number, frame.number, frame.offset)

    @staticmethod
    def read(data: bytearray) -> RecordHead:
        length, size, kind, last, *rest = _head.unpack(data)
        return RecordHead(length, size, kind, bool(last), *rest)

    def pack(self) -> bytes:
        return _head.pack(*self)

    def frame(self, place: int, token: bytes, incarnation: int) -> Frame:
        return Frame(self.kind, place, self.size, self.message, self.offset, token, incarnation)


class HeaderDigests:
    """The headers of messages that are half-way: all records of a message are bound to its kind, dtypes and shapes."""

    def __init__(self) -> None:
        self._of: dict[int, bytes] = {}

    def bound(self, head: RecordHead) -> bytes:
        """To what a record is bound beside its own head."""
        if head.kind != DATA:
            return b""
        if (digest := self._of.get(head.message)) is None:
            raise WireError("a record of a message that is not open is refused")
        return digest

    def note(self, head: RecordHead, body: bytes) -> None:
        """A record has been sealed, or opened."""
        if head.last:
            self._of.pop(head.message, None)
        elif head.kind == OPEN:
            if len(self._of) >= MAX_OPEN:
                raise WireError(f"a record that opens a message while {MAX_OPEN} are half-way is refused")
            self._of[head.message] = sha256(body[: head.size]).digest()


class RecordCipher:
    """Seals and opens what travels in one direction of one connection."""

    def __init__(self, key: bytes, bound: bytes) -> None:
        self._cipher, self._bound = AESGCM(key), bound

    def seal(self, number: int, body: bytes | memoryview, head: bytes) -> bytes:
        return self._cipher.encrypt(number.to_bytes(12), body, self._bound + head)

    def open(self, number: int, sealed: bytes | memoryview, head: bytes) -> bytes:
        try:
            return self._cipher.decrypt(number.to_bytes(12), sealed, self._bound + head)
        except InvalidTag:
            raise WireError("a record with a wrong tag is refused: it was changed, or is not of this link") from None


def sealed_answer(cipher: RecordCipher, counter: int, number: int) -> bytes:
    """Acknowledges all records below this number."""
    head = _answer.pack(counter, number)
    return head + cipher.seal(counter, b"", head)


def read_answer(cipher: RecordCipher, data: bytes, above: int) -> tuple[int, int]:
    """The counter and the number of an answer, which must be a later one."""
    head = data[: _answer.size]
    counter, number = _answer.unpack(head)
    cipher.open(counter, data[_answer.size : ANSWER], head)
    if counter <= above:
        raise WireError("an answer that came before is refused")
    return counter, number
