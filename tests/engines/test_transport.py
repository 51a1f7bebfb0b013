"""Links between roles: what is sent arrives once and in order, and nothing that arrives can do harm."""

from __future__ import annotations

import multiprocessing
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from covey.engines.process.role.allocator import keep_memory
from covey.engines.transport import outbox as outbox_module
from covey.engines.transport.credits import Credits
from covey.engines.transport.frames import DATA, MAX_OPEN, OPEN, SMALL, TAKEN, Frame
from covey.engines.transport.inbox import Inbox, ReplayWindow
from covey.engines.transport.landing import landed
from covey.engines.transport.link import FRAMES_AHEAD, PeerLink
from covey.engines.transport.outbox import Outbox, OutgoingMessage, SendOrder
from covey.engines.transport.token import NONE
from covey.engines.transport.zmq import ZmqTransport
from covey.engines.window import weight
from covey.errors import PlanError, WireError
from covey.message import DTYPES, Address, Header, Message, Shape, pack
from covey.program import Receive
from covey.vector import Vector

A, B = Address("worker", 0), Address("worker", 1)
FRAME = 64 << 10
LARGE = 40 * FRAME // 4  # numbers: more frames than ZeroMQ takes while nobody listens
LIMIT = 1 << 30


class Note(Message, kw_only=True):
    wire_name = "test.transport.note"

    step: int = 0


class Load(Message, kw_only=True):
    wire_name = "test.transport.load"

    step: int = 0
    what: Vector


def ones(count: int, value: float = 1.0) -> Vector:
    return Vector([torch.full((count,), value)])


def load(step: int, count: int = LARGE, value: float = 1.0) -> Load:
    return Load(sender=A, step=step, what=ones(count, value))


def note(step: int) -> Note:
    return Note(sender=A, step=step)


class Two:
    """Two roles in one process, each with its own sockets."""

    def __init__(self, window: int = 64 << 20) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="covey-"))
        book = {role: f"ipc://{self.place}/{role.rank}" for role in (A, B)}
        self.a = ZmqTransport(A, book, limit=LIMIT, window=window, frame=FRAME)
        self.b = ZmqTransport(B, book, limit=LIMIT, window=window, frame=FRAME)

    def collect(self, count: int) -> list[Any]:
        """What reaches B, in order, until `count` messages are there."""
        return self.until(lambda got: len(got) >= count)

    def until(self, done: Callable[[list[Any]], bool]) -> list[Any]:
        got: list[Any] = []
        end = time.monotonic() + 10
        while not done(got):
            assert time.monotonic() < end, f"only {len(got)} messages came, refused: {list(self.b.refusals.counts)}"
            self.a.poll(0)
            got += self.b.poll(0.001)[0]
        return got

    def close(self) -> None:
        self.a.close()
        self.b.close()
        assert list(self.place.iterdir()) == []
        self.place.rmdir()


@pytest.fixture
def two() -> Iterator[Two]:
    pair = Two()
    yield pair
    pair.close()


@pytest.fixture
def stranger(two: Two) -> Iterator[zmq.Socket[bytes]]:
    """A socket that can send anything to B."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = 0
        socket.connect(two.b.book[B])
        yield socket


@pytest.fixture(scope="module")
def pair() -> Iterator[Two]:
    pair = Two()
    yield pair
    pair.close()


# --- what arrives is what was sent


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 3), max_size=3)), max_size=4),
    st.sampled_from([1, 200]),
)
def test_any_tensors_arrive(pair: Two, shapes: list[tuple[str, list[int]]], times: int) -> None:
    """Empty ones, single numbers, views with holes; in one piece, and in frames."""
    parts = [torch.randint(0, 2, (*dims, 2 * times)).to(DTYPES[dtype])[..., ::2] for dtype, dims in shapes]
    parts += [torch.tensor(3.0), torch.ones(0, 3), torch.arange(SMALL if times > 1 else 1)]
    pair.a.offer(B, Load(sender=A, step=7, what=Vector(parts)))
    (got,) = pair.collect(1)
    assert (got.sender, got.step) == (A, 7)
    for mine, theirs in zip(got.what.parts, parts, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert torch.equal(mine, theirs)


def test_order_is_kept_between_large_and_small(two: Two) -> None:
    for step in range(40):
        two.a.offer(B, load(step) if step % 10 == 0 else note(step))
    assert [message.step for message in two.collect(40)] == list(range(40))
    assert two.a.sent == {B: 40}
    assert two.b.received == {A: 40}


def test_many_small_messages(two: Two) -> None:
    for step in range(2000):
        two.a.offer(B, note(step))
    assert [message.step for message in two.collect(2000)] == list(range(2000))


def test_a_message_to_oneself_needs_no_socket(two: Two) -> None:
    vector = ones(3)
    two.a.offer(A, Load(sender=A, what=vector))
    vector.zero_()
    (got,), _ = two.a.poll(None)
    assert isinstance(got, Load)
    assert got.what.parts[0].tolist() == [1, 1, 1]
    assert two.a.sent == two.a.received == {A: 1}


def test_what_was_sent_is_what_the_tensor_held(two: Two) -> None:
    vectors = [ones(10), ones(LARGE)]
    for vector in vectors:
        two.a.offer(B, Load(sender=A, what=vector))
        vector.zero_()
    assert all(bool(got.what.parts[0].eq(1).all()) for got in two.collect(2))


def test_what_is_lent_is_not_copied(two: Two) -> None:
    vector = ones(LARGE)
    two.a.offer(B, Load(sender=A, what=vector), loan=True)
    vector.zero_()
    (got,) = two.collect(1)
    assert got.what.parts[0][-1] == 0, "the end had not left when the owner broke the loan"


def test_what_is_lent_stays_alive_until_it_has_left(two: Two) -> None:
    two.a.offer(B, load(0, value=5.0), loan=True)
    torch.full((LARGE,), 7.0)  # would take the memory, were it free
    (got,) = two.collect(1)
    assert bool(got.what.parts[0].eq(5).all())


# --- what leaves first


def test_a_higher_priority_overtakes_at_frames(two: Two) -> None:
    two.a.offer(B, load(0))
    two.a.offer(B, load(1), priority=1)
    two.a.offer(B, note(2), priority=1)
    two.a.offer(B, note(3), priority=9)
    two.a.offer(B, note(4))
    assert [message.step for message in two.collect(5)] == [3, 1, 2, 0, 4]


class Copying:
    """Stands for the event of a GPU that is still bringing a message's numbers."""

    done = False

    def query(self) -> bool:
        return self.done


def test_what_a_gpu_still_brings_does_not_leave_and_what_comes_after_it_waits(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Copying()
    monkeypatch.setattr(outbox_module, "arrival", lambda tensors, size: copy)
    two.a.offer(B, load(0))
    two.a.offer(B, note(1))
    two.a.offer(B, note(2), priority=1)
    assert [message.step for message in two.collect(1)] == [2], "what is more urgent overtakes"
    for _ in range(5):
        two.a.poll(0)
        assert not two.b.poll(0.01)[0]
    copy.done = True
    assert [message.step for message in two.collect(2)] == [0, 1]


def test_no_more_messages_are_interrupted_than_the_receiver_takes(two: Two) -> None:
    outbox = Outbox()
    for priority in range(2 * MAX_OPEN):
        outbox.put(OutgoingMessage(SendOrder(-priority, priority), 0, load(priority), FRAME, loan=True, latest=False))
        parcel = outbox.next()
        assert parcel is not None
        outbox.opened(parcel) if parcel.head else outbox.moved(parcel)
        assert len(outbox.begun) <= MAX_OPEN
    for priority in range(2 * MAX_OPEN):
        two.a.offer(B, load(priority, value=priority), priority=priority)
    got = two.collect(2 * MAX_OPEN)
    assert all(bool(message.what.parts[0].eq(message.step).all()) for message in got)


def test_the_latest_replaces_what_has_not_begun_to_leave(two: Two) -> None:
    two.a.offer(B, load(0))
    for step, fate in ((1, "sent"), (2, "replaced"), (3, "replaced")):
        assert two.a.offer(B, load(step), keep="latest") == fate
        assert two.a.offer(B, note(step)) == "sent"
    assert two.a.sent == {B: 5}
    assert two.a.offered(B) == 2 * weight(load(0)) + 3 * weight(note(0)), (
        "what was replaced holds no room in the window"
    )
    assert [message.step for message in two.collect(5)] == [0, 1, 2, 3, 3]
    assert two.b.received == {A: 5}


def test_what_was_not_sent_as_the_latest_is_never_replaced(two: Two) -> None:
    for step, keep in ((0, "all"), (1, "all"), (2, "latest")):
        assert two.a.offer(B, load(step), keep=keep) == "sent"  # type: ignore[arg-type]
    assert [message.step for message in two.collect(3)] == [0, 1, 2]


def test_the_order_stays_when_one_is_taken_back() -> None:
    chance = Random(1)
    for _ in range(50):
        outbox, urgencies = Outbox(), [chance.randrange(100) for _ in range(12)]
        latest = chance.randrange(12)
        for number, urgency in enumerate(urgencies):
            message = load(0, 4) if number == latest else note(0)
            outbox.put(
                OutgoingMessage(SendOrder(urgency, number), 0, message, FRAME, loan=False, latest=number == latest)
            )
        assert outbox.withdraw(Load) is not None
        left = []
        while parcel := outbox.next():
            left.append(parcel.rank.urgency)
            outbox.opened(parcel)
        assert left == sorted(urgencies[:latest] + urgencies[latest + 1 :]) and outbox.pending == 0


def test_what_was_kept_does_not_count_as_sent_in_this_run() -> None:
    """Its sender has begun anew, and would refuse to be told of bytes that it has not sent."""
    credits, kept, fresh = Credits(window=1000), load(0, 1000), load(1, 1000)
    credits.kept([kept])
    credits.taken(kept)
    assert credits.due(A, lambda sender: False) is None
    credits.arrived(fresh)
    credits.taken(fresh)
    assert credits.due(A, lambda sender: False) == weight(fresh)


def test_a_begun_message_is_not_replaced(two: Two) -> None:
    two.a.offer(B, load(0), keep="latest")
    two.a.offer(B, load(1), keep="latest")
    assert [message.step for message in two.collect(2)] == [0, 1]


def test_the_window_ends_where_the_program_takes_the_message() -> None:
    pair = Two(window=1 << 20)
    assert pair.a.room(B)
    pair.a.offer(B, load(0))
    assert not pair.a.room(B)
    assert pair.a.offer(B, load(1), lossy=True) == "lost"
    assert pair.a.sent == {B: 1}
    (message,) = pair.collect(1)
    pair.a.poll(0.05)
    assert not pair.a.room(B), "it has arrived, and lies there"
    pair.b.taken(message)
    pair.until(lambda _: pair.a.room(B))
    assert pair.a.offer(B, note(2), lossy=True) == "sent"
    pair.until(lambda _: pair.b.received[A] == 2)
    assert pair.a.links[B].outbox.pending == 0
    pair.close()


def test_what_lies_unread_does_not_count_where_that_is_waived() -> None:
    pair = Two(window=1 << 20)
    pair.a.offer(B, load(0))
    pair.collect(1)
    pair.b.waives = lambda sender: sender == A
    pair.b.waive()
    pair.until(lambda _: pair.a.room(B))
    pair.a.offer(B, load(1))
    pair.b.waives = lambda sender: False
    pair.collect(1)
    pair.b.waive()
    pair.a.poll(0.05)
    assert not pair.a.room(B)
    pair.close()


def test_small_messages_need_no_receipts(two: Two) -> None:
    for step in range(1000):
        two.a.offer(B, note(step))
    for message in two.collect(1000):
        two.b.taken(message)
    assert A not in two.b.links, "nothing went back"


@pytest.mark.parametrize("claimed", [1, 1 << 40])
def test_a_receipt_for_what_was_never_sent_is_refused(two: Two, stranger: zmq.Socket[bytes], claimed: int) -> None:
    two.b.offer(A, note(0))
    frame = Frame(TAKEN, 0, 0, claimed + two.b.offered(A), 0)
    stranger.send(frame.pack())
    two.until(lambda _: two.b.refusals.total == 1)
    assert "which were never sent to it" in next(iter(two.b.refusals.counts))


# --- where it arrives


@pytest.mark.parametrize("count", [5, LARGE])
def test_into_is_filled_in_place(two: Two, count: int) -> None:
    into = ones(count, 0.0)
    want = Receive((Load,), sender=A, step=1, into=into)
    two.b.expect(want)
    two.a.offer(B, load(0, count, 3.0))
    two.a.offer(B, load(1, count, 4.0))
    other, wanted = two.collect(2)
    assert (landed(other, want), landed(wanted, want)) == (False, True)
    assert wanted.what.parts[0] is into.parts[0]
    assert bool(into.parts[0].eq(4).all())
    two.a.offer(B, load(1, count, 5.0))
    (late,) = two.collect(1)
    assert not landed(late, want), "an expectation holds once"


@pytest.mark.parametrize(
    "into",
    [ones(4), Vector([torch.zeros(5, dtype=torch.int32)]), Vector([torch.zeros(10)[::2]]), Vector([])],
    ids=["length", "dtype", "holes", "parts"],
)
def test_into_that_does_not_fit_is_left_alone(two: Two, into: Vector) -> None:
    want = Receive((Load,), into=into)
    two.b.expect(want)
    two.a.offer(B, load(0, 5))
    (got,) = two.collect(1)
    assert not landed(got, want)
    assert got.what.parts[0].tolist() == [1] * 5


def test_a_forgotten_vector_is_touched_no_more(two: Two) -> None:
    into = ones(LARGE, 0.0)
    want = Receive((Load,), into=into)
    two.b.expect(want)
    two.a.offer(B, load(0))
    two.until(lambda _: bool(into.parts[0][0] == 1))
    assert into.parts[0][-1] == 0, "only half of it is there"
    two.b.forget(want)
    into.zero_()
    (got,) = two.collect(1)
    assert bool(got.what.parts[0].eq(1).all())
    assert bool(into.parts[0].eq(0).all())


def test_a_message_of_one_piece_comes_in_one_go(two: Two) -> None:
    """Its header and its bytes wake its receiver once."""
    two.a.offer(B, load(3, FRAME // 4))
    two.a.offer(B, load(4, FRAME // 2))
    assert [message.step for message in two.collect(2)] == [3, 4]
    assert two.a.links[B].socketed == two.b.reader.frames == 1 + 2


def test_what_has_left_counts_where_no_more_than_a_rate_may_leave(two: Two) -> None:
    left: list[float] = []
    link = two.a._link(B)
    link.bucket = SimpleNamespace(pour=left.append, pause=lambda: 0.0)  # type: ignore[assignment]
    two.a.offer(B, load(1))
    two.collect(1)
    assert 4 * LARGE < sum(left) < 4 * LARGE + FRAME and max(left) < 2 * FRAME


# --- what is refused


def opening(number: int = 1, message: Message | None = None, sender: int = 0, token: bytes = NONE) -> bytes:
    header, _ = pack(message or load(0))
    return Frame(OPEN, sender, len(header), number, 0, token).pack() + header


def begun(size: int, count: int = LARGE, rest: bytes = b"") -> bytes:
    """The opening of a message that says how many bytes come with it."""
    header, _ = pack(load(0, count))
    return Frame(OPEN, 0, len(header), 1, size).pack() + header + rest


def data(size: int, offset: int = 0, number: int = 1, sender: int = 0, token: bytes = NONE) -> bytes:
    return Frame(DATA, sender, size, number, offset, token).pack()


class Unknown(Message, kw_only=True):
    wire_name = "test.transport.unknown"


def unknown() -> bytes:
    return opening(message=Unknown(sender=A)).replace(b".unknown", b".unheard")


def impossible() -> bytes:
    """A tensor without bytes, and of a length that no tensor can have."""
    body = msgspec.Raw(msgspec.msgpack.encode({"what": 1}))
    header = Header(Load.wire_name, A, (Shape("float32", (2**64 - 1, 0)),), body)
    data = msgspec.msgpack.encode(header)
    return Frame(OPEN, 0, len(data), 1, 0).pack() + data


MALFORMED: dict[str, tuple[list[list[bytes]], str]] = {
    "no prefix": ([[b"abc"]], "shorter than its prefix"),
    "no frame": ([[Frame(7, 0, 0, 0, 0).pack()]], "unknown kind 7"),
    "no role": ([[opening(sender=9)]], "role number 9"),
    "no header": ([[Frame(OPEN, 0, 3, 1, 0).pack() + b"abc"]], "an invalid message header"),
    "cut header": ([[opening()[:-9]]], "an invalid message header"),
    "unknown kind": ([[unknown()]], "unknown kind"),
    "another's name": ([[opening(sender=1)]], "in the name of"),
    "not in the book": ([[opening(message=Note(sender=Address("spy", 0)))]], "in the name of"),
    "too large": ([[opening(message=Load(sender=A, what=Vector([torch.empty(LIMIT, device="meta")])))]], "at most"),
    "impossible shape": ([[impossible()]], "cannot be"),
    "cut bytes": ([[opening() + b"1234"]], "4 of its"),
    "opened twice": ([[opening()], [opening()]], "message number 1 again"),
    "another run's": ([[opening(token=bytes(15) + b"x")]], "another run"),
    "bytes of another run": ([[opening()], [data(4, token=bytes(15) + b"x"), b"1234"]], "another run"),
    "too many": ([[opening(number)] for number in range(1, MAX_OPEN + 2)], "half-way"),
    "not opened": ([[data(4), b"1234"]], "not open"),
    "wrong offset": ([[opening()], [data(4, offset=8), b"1234"]], "were due"),
    "beyond the end": ([[opening()], [data(5 * LARGE), b"1234"]], "were due"),
    "no bytes": ([[opening()], [data(0), b""]], "were due"),
    "cut frame": ([[opening()], [data(8), b"1234"]], "4 bytes in a frame of 8"),
    "oversized frame": ([[opening()], [data(4), b"12345678"]], "8 bytes in a frame of 4"),
    "frame without bytes": ([[opening()], [data(8)]], "0 bytes in a frame of 8"),
    "begun without bytes": ([[begun(8)]], "0 bytes in a frame of 8"),
    "begun with fewer bytes": ([[begun(8), b"1234"]], "4 bytes in a frame of 8"),
    "begun with too many bytes": ([[begun(5 * LARGE), b"1234"]], "were due"),
    "begun and whole": ([[begun(8, 2, bytes(8)), b"12345678"]], "more bytes than its message has"),
}


@pytest.mark.parametrize(("sent", "why"), MALFORMED.values(), ids=list(MALFORMED))
def test_the_malformed_is_refused(two: Two, stranger: zmq.Socket[bytes], sent: list[list[bytes]], why: str) -> None:
    for parts in sent:
        stranger.send_multipart(parts)
    two.until(lambda _: two.b.refusals.total > 0)
    assert why in next(iter(two.b.refusals.counts))
    two.a.offer(B, note(5))
    assert [message.step for message in two.collect(1)] == [5]
    assert two.b.received == {A: 1}


def test_what_comes_beside_zeromq_is_movement_too(two: Two) -> None:
    two.b.reader.proved(Frame(DATA, 0, 4, 9, 0), b"1234", [])
    assert two.b.reader.frames == 1 and two.b.refusals.total == 1


def test_what_follows_in_a_refused_frame_is_no_frame(two: Two, stranger: zmq.Socket[bytes]) -> None:
    """Numbers of a model may look like anything, also like a frame."""
    header, _ = pack(note(7))
    hidden = Frame(OPEN, 0, len(header), 1, 0).pack() + header
    stranger.send_multipart([data(len(hidden), number=5), hidden])
    two.until(lambda _: two.b.refusals.total > 0)
    two.a.offer(B, note(5))
    assert [message.step for message in two.collect(1)] == [5]
    assert two.b.received == {A: 1} and two.b.refusals.total == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(parts=st.lists(st.binary(max_size=60), min_size=1, max_size=3))
def test_random_frames_are_refused(two: Two, stranger: zmq.Socket[bytes], parts: list[bytes]) -> None:
    before = two.b.refusals.total
    stranger.send_multipart(parts)
    two.until(lambda _: two.b.refusals.total == before + 1)
    assert len(two.b.refusals.counts) <= 32


@given(st.data())
def test_damaged_frames_are_refused_or_harmless(draw: st.DataObject) -> None:
    inbox = Inbox([A, B], 1 << 12)
    good = bytearray(opening(message=load(0, 3)) + struct.pack("3f", 1, 2, 3))
    for at in draw.draw(st.lists(st.integers(24, len(good) - 1), max_size=3)):
        good[at] = draw.draw(st.integers(0, 255))
    frame = Frame(OPEN, 0, len(good) - 36, 1, 0)
    with suppress(WireError):
        inbox.open(frame, memoryview(bytes(good))[24:])


def test_an_expectation_survives_a_refused_message(two: Two, stranger: zmq.Socket[bytes]) -> None:
    want = Receive((Load,), into=ones(LARGE, 0.0))
    two.b.expect(want)
    for parts in ([opening(99)], [data(8, number=99), b"1234"]):
        stranger.send_multipart(parts)
    two.until(lambda _: two.b.refusals.total == 1)
    two.a.offer(B, load(0))
    assert landed(two.collect(1)[0], want)


# --- waiting, opening and closing


def test_poll_waits_for_others_too(two: Two) -> None:
    reading, writing = os.pipe()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.PULL) as control, context.socket(zmq.PUSH) as launcher:
        control.bind("inproc://control")
        launcher.connect("inproc://control")
        begin = time.monotonic()
        assert two.a.poll(0.05, [reading, control]) == ([], [])
        assert time.monotonic() - begin > 0.04
        os.write(writing, b"x")
        launcher.send(b"stop")
        assert two.a.poll(5.0, [control, reading])[1] == [control, reading]
    assert two.a.poll(0.0) == ([], [])
    os.close(reading)
    os.close(writing)


def test_close_sends_what_waits_if_given_the_time(two: Two) -> None:
    two.a.offer(B, load(0))
    got: list[Message] = []
    thread = threading.Thread(target=lambda: got.extend(wait_for_one(two.b)))
    thread.start()
    two.a.close(linger=5.0)
    thread.join()
    assert len(got) == 1


def wait_for_one(transport: ZmqTransport) -> list[Message]:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        messages, _ = transport.poll(0.1)
        if messages:
            return messages
    return []


def test_close_does_not_wait_for_a_peer_that_never_was() -> None:
    with tempfile.TemporaryDirectory() as place:
        book = {role: f"ipc://{place}/{role.rank}" for role in (A, B)}
        transport = ZmqTransport(A, book, limit=LIMIT)
        transport.offer(B, load(0))
        begin = time.monotonic()
        transport.close(linger=0.1)
        assert time.monotonic() - begin < 2
        assert list(Path(place).iterdir()) == []


def test_a_plan_that_cannot_work_is_told(two: Two) -> None:
    with pytest.raises(PlanError, match="107"):
        ZmqTransport(A, {A: "ipc:///tmp/" + "x" * 110}, limit=LIMIT)
    with pytest.raises(PlanError, match="no endpoint"):
        ZmqTransport(A, {B: "ipc:///tmp/b"}, limit=LIMIT)
    with pytest.raises(PlanError, match="server 3"):
        two.a.offer(Address("server", 3), note(0))


MANY = 25_000_000


def echo(book: dict[Address, str]) -> None:
    """B: add one to what comes, and send it back."""
    keep_memory()
    transport = ZmqTransport(B, book, limit=LIMIT)
    (message,) = wait_for_one(transport)
    assert isinstance(message, Load)
    message.what.parts[0].add_(1)
    transport.offer(A, Load(sender=B, what=message.what))
    transport.close(linger=10.0)


def test_two_processes_exchange_100_mb() -> None:
    with tempfile.TemporaryDirectory() as place:
        book = {role: f"ipc://{place}/{role.rank}" for role in (A, B)}
        process = multiprocessing.get_context("spawn").Process(target=echo, args=(book,), daemon=True)
        process.start()
        transport = ZmqTransport(A, book, limit=LIMIT)
        numbers, into = torch.arange(MANY, dtype=torch.float32), ones(MANY, 0.0)
        want = Receive((Load,), into=into)
        transport.expect(want)
        transport.offer(B, Load(sender=A, what=Vector([numbers])), loan=True)
        messages: list[Message] = []
        end = time.monotonic() + 60
        while not messages and time.monotonic() < end:
            messages = transport.poll(1.0)[0]
        assert landed(messages[0], want)
        assert torch.equal(into.parts[0], numbers + 1)
        process.join(10)
        transport.close()
        assert process.exitcode == 0
        assert list(Path(place).iterdir()) == []


def test_frames_ahead_are_few() -> None:
    """What ZeroMQ holds cannot be overtaken, so a large message must not fit in it whole."""
    assert 2 * FRAMES_AHEAD * FRAME < LARGE * 4


def test_what_is_too_old_to_be_known_counts_as_seen() -> None:
    """Messages come in order: one from long before the newest can only be a replay."""
    window = ReplayWindow()
    assert window.first(0) and window.first(2) and window.first(1) and not window.first(1)
    assert window.first(1000) and not window.first(3) and not window.first(1000 - window.WINDOW)
    assert window.first(1001 - window.WINDOW) and not window.first(1001 - window.WINDOW)


def test_what_lies_unread_is_acknowledged_when_half_a_window_was_taken() -> None:
    credits = Credits(window=40)
    credits.came[B] = 19
    assert credits.due(B, lambda who: False) is None
    credits.came[A], credits.unread[A] = 100, 90
    assert credits.due(A, lambda who: False) is None and not credits.told[A], "ten of twenty were taken"
    credits.unread[A] = 75
    assert credits.due(A, lambda who: False) == 25 == credits.told[A]
    assert credits.due(A, lambda who: False) is None
    assert credits.due(A, lambda who: True) == 100


def test_what_was_taken_is_never_less_than_before() -> None:
    link = object.__new__(PeerLink)
    link.offered, link.credited = 10, 5
    assert [link.credit(taken) for taken in (4, 11, 5, 10, 9)] == [False, False, True, True, False]
    assert link.credited == 10


# --- restarted peers


def restarted(two: Two, incarnation: int) -> None:
    """A new process in the place of A, of which B has not heard yet."""
    two.a.close()
    two.a = ZmqTransport(A, two.b.book, limit=LIMIT, frame=FRAME, incarnations={A: incarnation})


def test_what_a_restarted_role_sends_before_one_hears_of_that_waits_until_one_does(two: Two) -> None:
    restarted(two, 2)
    sent = [load(0), note(1), load(2, count=9)]
    for message in sent:
        two.a.offer(B, message)
    until = time.monotonic() + 0.5
    while time.monotonic() < until:
        two.a.poll(0)
        assert two.b.poll(0.001)[0] == []
    assert not two.b.refusals.counts
    assert two.b.renew(A, 2, two.b.book[A], ())
    came = two.collect(3)
    assert [(type(message), message.step) for message in came] == [(Load, 0), (Note, 1), (Load, 2)]
    assert torch.equal(came[0].what.parts[0], sent[0].what.parts[0])
    assert two.b.received[A] == 3 and two.b.reader.early.nbytes == 0 and not two.b.reader.early.waiting


@pytest.mark.parametrize("wrong", [FRAME - 4, FRAME + 4])
def test_bytes_that_waited_fit_or_their_message_is_given_up(wrong: int) -> None:
    inbox = Inbox([A, B], LIMIT)
    header, _ = pack(load(0))
    assert inbox.open(Frame(OPEN, 0, len(header), 1, 0), memoryview(header)) is None
    with pytest.raises(WireError, match=f"{wrong} bytes in a frame of {FRAME}"):
        inbox.put(Frame(DATA, 0, FRAME, 1, 0), bytes(wrong))
    with pytest.raises(WireError, match="not open"):
        inbox.put(Frame(DATA, 0, FRAME, 1, 0), bytes(FRAME))


def test_what_waits_of_an_incarnation_that_is_over_is_dropped(two: Two) -> None:
    restarted(two, 1)
    two.a.offer(B, note(1))
    while not two.b.reader.early.waiting:
        two.a.poll(0)
        two.b.poll(0.001)
    restarted(two, 2)
    assert two.b.renew(A, 2, two.b.book[A], ())
    two.a.offer(B, note(2))
    assert [message.step for message in two.collect(1)] == [2]


def test_no_more_waits_than_there_is_room_for(two: Two) -> None:
    restarted(two, 1)
    two.b.reader.early.limit = 1000
    two.a.offer(B, load(0, count=100))
    two.a.offer(B, load(1, count=1000))
    two.a.offer(B, load(2, count=150))
    while two.b.refusals.total < 2:
        two.a.poll(0)
        two.b.poll(0.001)
    assert ["incarnation 1 of worker 0 is refused" in told for told in two.b.refusals.counts] == [True]
    assert two.b.renew(A, 1, two.b.book[A], ())
    assert [message.step for message in two.collect(1)] == [0]
