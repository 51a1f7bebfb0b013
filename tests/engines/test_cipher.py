"""Tensors on connections beside CURVE's: what was changed, comes again or is not of this link is never taken."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from struct import Struct

import msgspec
import pytest
import torch

from covey.engines.transport.cipher import stream, ticket_door
from covey.engines.transport.cipher.records import (
    ANSWER,
    BACK,
    FORTH,
    HEAD,
    HELLO,
    TAG,
    CipherOffer,
    HeaderDigests,
    LinkIdentity,
    RecordCipher,
    RecordHead,
    new_offer,
    read_answer,
    sealed_answer,
)
from covey.engines.transport.cipher.ticket_door import NO_TICKET, TOO_MANY
from covey.engines.transport.frames import DATA, MAX_OPEN, OPEN
from covey.errors import WireError
from covey.message import Header, Message, Shape, pack
from covey.program import Receive
from covey.vector import Vector
from tests.engines.cipher_wire import FRAME, NUMBERS, Cut, Wired, load, wired
from tests.safety.members import A, B, Load, two

WRONG_TAG = "worker 0: a record with a wrong tag is refused: it was changed, or is not of this link"
LINK = LinkIdentity(b"run" * 5 + b"!", A, B, 0, 0)
OFFERED = new_offer(1, 0)


def values(message: object) -> torch.Tensor:
    assert isinstance(message, Load)
    return message.what.parts[0]


def check(pair: Wired, count: int) -> None:
    """These came, each once, in order and as they were sent."""
    assert [getattr(message, "step", None) for message in pair.got] == list(range(count))
    for message in pair.got:
        assert isinstance(message, Load)
        if message.what.parts:
            assert torch.equal(values(message), torch.full((NUMBERS,), float(message.step)))


# --- what travels


def test_tensors_travel_sealed_beside_curve_and_what_is_said_later_comes_later() -> None:
    with wired() as pair:
        offers: list[CipherOffer] = []
        for step in range(4):
            pair.a.offer(B, load(step, step) if step % 2 else Load(sender=A, step=step))
        told = pair.a.cipher.streams if pair.a.cipher else {}
        offers += [stream.offer for stream in told.values() if stream.offer]
        pair.arrive(4)
        check(pair, 4)
        travelled = b"".join(pair.wire.records)
        plain = torch.full((16,), 1.0).numpy().tobytes()
        assert len(travelled) > 2 * 4 * NUMBERS and plain not in travelled
        (offer,) = offers
        digests, cipher, opened = HeaderDigests(), RecordCipher(offer.forth, link(pair).bound(offer, FORTH)), b""
        for number, record in enumerate(pair.wire.records):
            head = RecordHead.read(bytearray(record[:HEAD]))
            body = cipher.open(number, record[HEAD:], record[:HEAD] + digests.bound(head))
            digests.note(head, body)
            opened += body if head.kind == DATA else b""
        assert opened == torch.cat([torch.full((NUMBERS,), float(step)) for step in (1, 3)]).numpy().tobytes()
        assert [len(said) % ANSWER for said in pair.wire.greetings] == [HELLO % ANSWER]


def link(pair: Wired) -> LinkIdentity:
    return LinkIdentity(pair.token, A, B, 0, 0)


def test_small_messages_stay_with_curve() -> None:
    with wired() as pair:
        pair.exchange(5)
        assert not pair.wire.greetings


# --- what was changed on its way


HEAD_FIELDS = dict(zip(RecordHead._fields, "IIBBQQQ", strict=True))


def flipped(record: bytes, at: int) -> bytes:
    return record[:at] + bytes([record[at] ^ 1]) + record[at + 1 :]


def starts() -> dict[str, int]:
    found, layout = {}, "<"
    for name, code in HEAD_FIELDS.items():
        found[name], layout = Struct(layout).size, layout + code
    return found


OTHERWISE = {
    "number": "worker 0: record 3 is refused: 2 is due",
    "message": "worker 0: a record of a message that is not open is refused",
}


@pytest.mark.parametrize(
    ("at", "why"),
    [
        *((start, OTHERWISE.get(name, WRONG_TAG)) for name, start in starts().items()),
        (HEAD, WRONG_TAG), (-TAG - 1, WRONG_TAG), (-1, WRONG_TAG),
    ],
    ids=[*HEAD_FIELDS, "the first byte", "the last byte", "the tag"],
)  # fmt: skip
def test_a_changed_record_is_refused_by_name_and_never_taken(at: int, why: str) -> None:
    """It ends the connection; the sender offers another one, on which the record comes as it was."""
    with wired() as pair:
        pair.wire.change = lambda head, record: (
            flipped(record, at % len(record)) if head.number == 2 and len(pair.wire.greetings) == 1 else record
        )
        pair.a.offer(B, load(0, 0.0))
        into = Vector([torch.full((NUMBERS,), 7.0)])
        pair.b.expect(Receive((Load,), into=into))
        pair.until(lambda: pair.b.refusals.total > 0, pair.turn)
        assert list(pair.b.refusals.counts) == [why]
        first = FIRST_RECORD // 4
        assert bool((into.parts[0][:first] == 0).all()) and bool((into.parts[0][first:] == 7).all())
        pair.arrive(1)
        check(pair, 1)
        assert pair.got[0].what.parts[0] is into.parts[0]  # type: ignore[attr-defined]
        assert len(pair.wire.greetings) == 2


FIRST_RECORD = FRAME  # bytes of the tensor that came before the record that was changed


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda seen, record: record + record, "record 2 is refused: 3 is due"),
        (lambda seen, record: b"", "record 3 is refused: 2 is due"),
        (lambda seen, record: seen[1], "record 1 is refused: 2 is due"),
    ],
    ids=["comes twice", "is left out", "an earlier one in its place"],
)
def test_records_come_once_and_in_order(change: Callable[[list[bytes], bytes], bytes], why: str) -> None:
    with wired() as pair:
        pair.wire.change = lambda head, record: (
            change(pair.wire.records, record) if head.number == 2 and len(pair.wire.greetings) == 1 else record
        )
        for step in range(3):
            pair.a.offer(B, load(step, step))
        pair.arrive(3)
        check(pair, 3)
        assert list(pair.b.refusals.counts) == [f"worker 0: {why}"] and len(pair.wire.greetings) == 2


def test_two_records_do_not_change_places() -> None:
    held: list[bytes] = []

    def swap(head: RecordHead, record: bytes) -> bytes:
        if head.number == 1 and len(pair.wire.greetings) == 1:
            held.append(record)
            return b""
        return record + held.pop() if held else record

    with wired() as pair:
        pair.wire.change = swap
        pair.a.offer(B, load(0, 0.0))
        pair.arrive(1)
        check(pair, 1)
        assert list(pair.b.refusals.counts) == ["worker 0: record 2 is refused: 1 is due"]


def test_records_sent_back_to_their_sender_are_refused() -> None:
    with wired() as pair:
        pair.a.offer(B, load(0, 0.0))
        pair.arrive(1)
        pair.wire.back = pair.wire.records[0]
        pair.until(lambda: pair.a.refusals.total > 0, pair.turn)
        assert "a record with a wrong tag is refused" in next(iter(pair.a.refusals.counts))
        pair.a.offer(B, load(1, 1.0))
        pair.arrive(2)
        check(pair, 2)


def test_a_record_of_one_connection_is_none_of_the_next() -> None:
    """Each has keys of its own."""
    with wired() as pair:
        pair.a.offer(B, load(0, 0.0))
        pair.arrive(1)
        first = pair.wire.records[1]
        pair.wire.cut()

        def old(head: RecordHead, record: bytes) -> bytes:
            """The new head, with what the first connection carried: as long, and the same numbers inside."""
            return record[:HEAD] + first[HEAD:] if head.length == len(first) - HEAD and changing() else record

        def changing() -> bool:
            return len(pair.wire.greetings) == 2

        pair.wire.change = old
        pair.a.offer(B, load(1, 1.0))
        pair.arrive(2)
        check(pair, 2)
        assert list(pair.b.refusals.counts) == [WRONG_TAG] and len(pair.wire.greetings) == 3


# --- to what a record is bound


BOUND = {
    "run": LINK._replace(token=bytes(16)), "sender": LINK._replace(sender=B), "receiver": LINK._replace(receiver=A),
    "incarnation of the sender": LINK._replace(sender_incarnation=1),
    "incarnation of the receiver": LINK._replace(receiver_incarnation=1),
}  # fmt: skip


@pytest.mark.parametrize("name", BOUND)
def test_a_record_is_bound_to_its_link(name: str) -> None:
    sealed = RecordCipher(OFFERED.forth, LINK.bound(OFFERED, FORTH)).seal(0, b"body", b"head")
    assert RecordCipher(OFFERED.forth, LINK.bound(OFFERED, FORTH)).open(0, sealed, b"head") == b"body"
    with pytest.raises(WireError, match="wrong tag"):
        RecordCipher(OFFERED.forth, BOUND[name].bound(OFFERED, FORTH)).open(0, sealed, b"head")


def test_a_record_is_bound_to_its_connection_direction_and_number() -> None:
    sealed = RecordCipher(OFFERED.forth, LINK.bound(OFFERED, FORTH)).seal(0, b"body", b"head")
    later = CipherOffer(1, 1, OFFERED.ticket, OFFERED.forth, OFFERED.back)
    for key, offer, direction, number in [
        (OFFERED.back, OFFERED, FORTH, 0), (OFFERED.forth, later, FORTH, 0), (OFFERED.forth, OFFERED, BACK, 0),
        (OFFERED.forth, OFFERED, FORTH, 1),
    ]:  # fmt: skip
        with pytest.raises(WireError, match="wrong tag"):
            RecordCipher(key, LINK.bound(offer, direction)).open(number, sealed, b"head")


@pytest.mark.parametrize("shape", [Shape("int32", (4,)), Shape("float32", (2, 2))], ids=["dtype", "shape"])
def test_a_record_is_bound_to_the_dtypes_and_shapes_of_its_message(shape: Shape) -> None:
    header, _ = pack(Load(sender=A, what=Vector([torch.zeros(4)])))
    other = header.replace(*(_shape(one) for one in (Shape("float32", (4,)), shape)))
    assert other != header
    ends, opening = (HeaderDigests(), HeaderDigests()), RecordHead(0, len(header), OPEN, False, 0, 5, 0)
    for end, known in zip(ends, (header, other), strict=True):
        end.note(opening._replace(size=len(known)), known)
    part, cipher = RecordHead(0, 16, DATA, True, 1, 5, 0), RecordCipher(OFFERED.forth, b"")
    sealed = cipher.seal(1, bytes(16), ends[0].bound(part))
    with pytest.raises(WireError, match="wrong tag"):
        cipher.open(1, sealed, ends[1].bound(part))


def _shape(shape: Shape) -> bytes:
    return msgspec.msgpack.encode(Header("", A, (shape,), msgspec.Raw(b"\x80")).tensors[0])


def test_half_way_messages_are_bounded() -> None:
    digests, opening = HeaderDigests(), RecordHead(0, 1, OPEN, False, 0, 0, 0)
    for message in range(MAX_OPEN):
        digests.note(opening._replace(message=message), b"x")
    with pytest.raises(WireError, match="half-way"):
        digests.note(opening._replace(message=MAX_OPEN), b"x")
    with pytest.raises(WireError, match="not open"):
        digests.bound(opening._replace(kind=DATA, message=99))


def test_answers_come_once_and_are_bound_to_what_they_say() -> None:
    cipher = RecordCipher(OFFERED.back, LINK.bound(OFFERED, BACK))
    answer = sealed_answer(cipher, 4, 17)
    assert read_answer(cipher, answer, 3) == (4, 17)
    with pytest.raises(WireError, match="came before"):
        read_answer(cipher, answer, 4)
    for at in range(ANSWER):
        with pytest.raises(WireError, match="wrong tag"):
            read_answer(cipher, flipped(answer, at), 3)


def test_offers_share_no_key_and_show_none() -> None:
    made = [new_offer(1, number) for number in range(3)]
    secrets = [part for offer in made for part in (offer.forth, offer.back, offer.ticket)]
    assert len({*secrets}) == 9 and {len(offer.forth) for offer in made} == {32}
    assert not any(repr(secret)[2:-1] in repr(made) for secret in secrets)


# --- connections that end


@pytest.mark.parametrize("keep", [0, HEAD - 1, HEAD, 1000], ids=lambda keep: f"after {keep} bytes of a record")
def test_after_a_cut_everything_comes_once_and_in_order(keep: int) -> None:
    def cut(head: RecordHead, record: bytes) -> bytes:
        if head.number in (2, 9) and len(pair.wire.greetings) < 3:
            assert pair.wire.ends
            pair.wire.ends[1].sendall(record[:keep])
            raise Cut
        return record

    with wired() as pair:
        pair.wire.change = cut
        for step in range(3):
            pair.a.offer(B, load(step, step), loan=False)
        pair.arrive(3)
        check(pair, 3)
        assert len(pair.wire.greetings) == 3 and not pair.b.refusals.total and not pair.a.refusals.total
        pair.until(lambda: not pair.a.cipher.streams[B].kept, pair.turn)  # type: ignore[union-attr]


def test_an_offer_that_nobody_answers_is_made_again() -> None:
    with wired() as pair:
        door, pair.wire.door = pair.wire.door, socket.create_server(("127.0.0.1", 0))
        pair.wire.door.setblocking(False)
        door.close()  # B finds nobody there
        pair.a.offer(B, load(0, 0.0))
        for _ in range(20):
            pair.turn()
        stream = pair.a.cipher.streams[B]  # type: ignore[union-attr]
        assert stream.offer and pair.b.cipher
        pair.wire.door.close()
        pair.wire.door = socket.create_server(("127.0.0.1", stream.offer.port))
        pair.wire.door.setblocking(False)
        pair.arrive(1)
        check(pair, 1)


def test_a_role_that_was_restarted_has_links_of_its_own() -> None:
    with wired() as pair:
        pair.a.offer(B, load(0, 0.0))
        pair.arrive(1)
        assert pair.a.cipher and pair.b.cipher
        before = pair.a.cipher.streams[B]
        records, hello = list(pair.wire.records), pair.wire.greetings[0][:HELLO]
        pair.b.close()
        pair.b = pair.member(B, incarnations={B: 1})
        pair.b.book = {A: pair.a.endpoint, B: pair.b.endpoint}
        pair.a.renew(B, 1, pair.b.endpoint, [])
        pair.wire.cut()
        pair.got.clear()
        pair.a.offer(B, load(0, 0.0))
        pair.arrive(1)
        check(pair, 1)
        after = pair.a.cipher.streams[B]
        assert (before.link.receiver_incarnation, after.link.receiver_incarnation) == (0, 1) and before is not after
        new = pair.wire.records[len(records) :]
        assert [record[:HEAD] for record in new] == [record[:HEAD] for record in records]
        assert all(one != other for one, other in zip(new, records, strict=True)), "another key"
        with socket.create_connection(("127.0.0.1", pair.wire.port)) as old:  # the earlier incarnation's connection
            old.sendall(hello)
            pair.until(lambda: pair.a.refusals.counts[NO_TICKET] == 1, pair.turn)


def test_the_last_small_messages_behind_a_crowd_are_not_left_behind() -> None:
    """The receiver stops after 64 records while it still waits for a large part of one."""
    with wired() as pair:
        pair.a.offer(B, load(0, 0.0))
        pair.arrive(1)
        source = pair.b.cipher.sources[A]  # type: ignore[union-attr]
        assert source.line
        for step in range(1, 68):
            pair.a.offer(B, Load(sender=A, step=step))
        for _ in range(10):
            pair.a.poll(0)
            pair.wire.pump()
        source.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1000)  # as while it waits for a body
        pair.arrive(68)
        check(pair, 68)


# --- strangers at the open port


def test_strangers_are_refused_counted_and_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticket_door, "HANDSHAKE", 50)
    with wired() as pair:
        said = [b"", b"GET / HTTP/1.0\r\n\r\n", bytes(HELLO), b"\xff" * 5000]
        lines = [socket.create_connection(("127.0.0.1", pair.wire.port)) for _ in said]
        for line, words in zip(lines, said, strict=True):
            line.sendall(words)
        lines[1].close()
        pair.a.offer(B, load(0, 0.0))
        pair.arrive(1)
        pair.until(lambda: pair.a.refusals.counts[NO_TICKET] == 4, pair.turn)
        check(pair, 1)
        assert set(pair.a.refusals.counts) == {NO_TICKET}
        for line in lines:
            line.close()


def test_a_flood_of_silent_strangers_is_bounded() -> None:
    with wired() as pair:
        assert pair.a.cipher
        door, lines = pair.a.cipher.door, list[socket.socket]()

        def flood() -> None:
            for _ in range(200):
                try:
                    lines.append(socket.create_connection(("127.0.0.1", pair.wire.port), timeout=5))
                    lines[-1].send(bytes(HELLO - 1))
                except OSError:
                    continue

        crowd = threading.Thread(target=flood)
        crowd.start()
        pair.until(lambda: not crowd.is_alive(), pair.turn)
        crowd.join()
        pair.until(lambda: pair.a.refusals.counts[TOO_MANY] == 200 - door.most, pair.turn)
        assert len(door.waiting) == door.most == 28
        for line in lines:  # while they stay, members of the run are too many as well
            line.close()
        pair.a.offer(B, load(0, 0.0))
        pair.arrive(1)
        check(pair, 1)


def test_somebody_else_at_the_port_learns_nothing_and_sends_nothing_that_counts() -> None:
    """Who takes the place of A's port gets a ticket, and has no key."""
    with wired() as pair, socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(10)
        assert pair.a.cipher
        pair.a.cipher.door.port = other.getsockname()[1]
        pair.a.offer(B, load(0, 0.0))
        for _ in range(20):
            pair.turn()
        line, _ = other.accept()
        line.sendall(RecordHead(16 + TAG, 0, OPEN, True, 0, 0, 0).pack() + bytes(16 + TAG))
        pair.until(lambda: pair.b.refusals.total > 0, pair.turn)
        assert list(pair.b.refusals.counts) == [WRONG_TAG] and not pair.got
        line.close()


def test_sizes_are_checked_before_memory_is_taken() -> None:
    with wired() as pair, socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(10)
        assert pair.a.cipher
        pair.a.cipher.door.port = other.getsockname()[1]
        pair.a.offer(B, load(0, 0.0))
        for _ in range(20):
            pair.turn()
        line, _ = other.accept()
        line.sendall(RecordHead(1 << 31, 0, OPEN, True, 0, 0, 0).pack())
        pair.until(lambda: pair.b.refusals.total > 0, pair.turn)
        assert "a record of 2147483648 bytes is refused" in next(iter(pair.b.refusals.counts))
        line.close()


def test_an_offer_where_no_cipher_was_asked_for_is_refused() -> None:
    with wired() as pair, two() as plain:
        assert pair.a.cipher
        offers: list[bytes] = []
        pair.a.cipher.stream(B, offers.append)
        link = plain.a._link(B)
        link._offer(offers[0])
        link.flush(plain.a.door.poller)
        plain.until(lambda: plain.b.refusals.total > 0)
        assert list(plain.b.refusals.counts) == ["worker 0 offered a connection where none can be"]
        plain.exchange(3)


def test_what_cannot_be_reached_stays_with_curve_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PATIENCE", 0.3)
    with wired() as pair:
        assert pair.a.cipher
        pair.wire.door.close()
        for step in range(3):
            pair.a.offer(B, load(step, step))
        pair.until(lambda: len(pair.got) >= 3, lambda: pair.got.extend(_turned(pair)))
        check(pair, 3)
        assert not pair.wire.records and not pair.a.cipher.streams
        (line,) = pair.a.cipher.news()
        assert line.startswith("worker 1 does not reach port ") and not pair.a.cipher.news()
        pair.a.offer(B, load(3, 3))
        pair.until(lambda: len(pair.got) >= 4, lambda: pair.got.extend(_turned(pair)))
        check(pair, 4)


def _turned(pair: Wired) -> list[Message]:
    """A step of both members, without the wire."""
    pair.a.poll(0)
    return pair.b.poll(0.001)[0]
