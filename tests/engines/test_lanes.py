"""Small frames between roles of one host: through memory while there is room, in the order of the link, never lost."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from covey.engines.transport.frames import DATA, OPEN, SMALL, Frame
from covey.engines.transport.keys import KeyRing, new_pair
from covey.engines.transport.shared import role_lanes
from covey.engines.transport.shared.lane import LANE, PLACE, PLACES, Lane
from covey.engines.transport.shared.memory import HostMemory
from covey.engines.transport.shared.segment import FEW, SharedSegment
from covey.engines.transport.zmq import ZmqTransport
from covey.message import Address, Message, pack
from covey.vector import Vector

A, B = Address("worker", 0), Address("worker", 1)


class Parcel(Message, kw_only=True):
    wire_name = "test.lanes.parcel"

    number: int
    text: str = ""
    what: Vector = Vector(())


class Host:
    """Two roles with memory in common, one thread for both; a role of an `incarnation` was restarted."""

    def __init__(self, segment: SharedSegment | None = None) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="covey-"))
        self.segment = segment or SharedSegment([A, B])
        self.book = {role: f"ipc://{self.place}/{role.rank}" for role in self.segment.places}
        self.a, self.b = self.role(A), self.role(B)

    def role(self, who: Address, endpoint: str = "", **more: object) -> ZmqTransport:
        book = {**self.book, who: endpoint or self.book[who]}
        return ZmqTransport(who, book, limit=1 << 30, memory=HostMemory(who, self.segment), **more)  # type: ignore[arg-type]

    def send(self, number: int, text: str = "", numbers: int = 0) -> None:
        what = Vector([torch.full((numbers,), float(number))] if numbers else ())
        self.a.offer(B, Parcel(sender=A, number=number, text=text, what=what))

    def receive(self, count: int) -> list[Parcel]:
        found, until = list[Parcel](), time.monotonic() + 20
        while len(found) < count:
            assert time.monotonic() < until, f"{len(found)} of {count} came; refused: {dict(self.b.refusals.counts)}"
            self.a.poll(0)
            for message in self.b.poll(0.001)[0]:
                assert isinstance(message, Parcel)
                self.b.taken(message)
                found.append(message)
        return found

    def close(self) -> None:
        for links in (self.a, self.b):
            links.close()
        for handle in (*self.segment.files, *self.segment.wakeups):
            os.close(handle)
        shutil.rmtree(self.place)  # a role that was made beside them has left its socket


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()


def socketed(links: ZmqTransport, to: Address) -> int:
    """How many frames have left by the socket."""
    return links.links[to].socketed


def test_small_messages_need_no_socket(host: Host) -> None:
    for number in range(50):
        host.send(number, numbers=number)
        (came,) = host.receive(1)
        assert came.number == number and came.what.nbytes == 4 * number
        assert host.b.reader.frames == number + 1, "what comes by a lane is movement, too"
    host.a._link(B).socket.close(linger=0)  # nothing more can leave by it
    host.send(50)
    assert host.receive(1)[0].number == 50 and socketed(host.a, B) == 0


def test_what_travels_in_one_piece_fits(host: Host) -> None:
    host.send(1, numbers=SMALL // 4)
    assert host.receive(1)[0].what.nbytes == SMALL and socketed(host.a, B) == 0


def test_numbers_in_shared_memory_are_named_by_a_lane(host: Host) -> None:
    host.send(1, numbers=SMALL)
    (came,) = host.receive(1)
    assert bool((came.what.parts[0] == 1).all()) and socketed(host.a, B) == 0


def test_where_no_place_is_free_the_socket_is_used(host: Host) -> None:
    for number in range(5 * PLACES):
        host.send(number)
    assert socketed(host.a, B) > 0
    assert [one.number for one in host.receive(5 * PLACES)] == list(range(5 * PLACES))


@pytest.mark.parametrize("seed", range(6))
def test_messages_come_in_their_order_whichever_way_they_go(host: Host, seed: int) -> None:
    """Frames too long for a lane, numbers in pieces, and more messages than a lane has places."""
    chance, sent, came = random.Random(seed), 0, list[int]()
    host.a.frame = 64 << 10
    assert host.a.memory is not None
    for _ in range(60):
        for _ in range(chance.choice((1, 1, 2, 7))):
            kind = chance.randrange(4)
            if kind == 2:  # in pieces, as its numbers find no room in shared memory
                host.a.memory.blocks.place_tensors, kept = (lambda *_: None), host.a.memory.blocks.place_tensors  # type: ignore[method-assign]
                host.send(sent, numbers=40_000)
                host.a.memory.blocks.place_tensors = kept  # type: ignore[method-assign]
            else:
                host.send(sent, text="" if kind == 0 else "x" * PLACE if kind == 1 else "y" * 500)
            sent += 1
        if chance.random() < 0.5:
            time.sleep(0.002)  # the socket may catch up
        for message in host.b.poll(0)[0]:
            assert isinstance(message, Parcel)
            host.b.taken(message)
            came.append(message.number)
    came += [one.number for one in host.receive(sent - len(came))]
    assert came == list(range(sent)) and socketed(host.a, B) > 0
    assert not host.b.refusals.total


def test_a_sleeping_role_is_woken(host: Host) -> None:
    def late() -> None:
        time.sleep(0.3)
        host.send(7)

    sender = threading.Thread(target=late)
    sender.start()
    begin = time.monotonic()
    messages, _ = host.b.poll(20.0)
    sender.join()
    assert len(messages) == 1 and 0.2 < time.monotonic() - begin < 5


def echo(line: Connection, host: Host, rounds: int) -> None:
    for _ in range(rounds):
        while not (messages := host.b.poll(10.0)[0]):
            pass
        host.b.taken(messages[0])
        host.b.offer(A, Parcel(sender=B, number=messages[0].number + 1))  # type: ignore[attr-defined]
    line.send("done")
    os._exit(0)


def test_none_is_overslept_in_many_turns_between_processes() -> None:
    """Each waits until it sleeps or nearly so: whoever puts a frame and whoever goes to sleep must see each other."""
    host = Host()
    mine, theirs = multiprocessing.Pipe()
    host.b.close()
    process = multiprocessing.get_context("fork").Process(target=_echo_anew, args=(theirs, host, 3000), daemon=True)
    process.start()
    chance = random.Random(1)
    number, until = 0, time.monotonic() + 60
    for turn in range(3000):
        host.a.offer(B, Parcel(sender=A, number=number))
        while not (messages := host.a.poll(10.0)[0]):
            assert time.monotonic() < until
        host.a.taken(messages[0])
        number = messages[0].number  # type: ignore[attr-defined]
        if turn % 10 == 0:
            time.sleep(chance.random() * 2 * role_lanes.SPIN)
    assert number == 3000 and mine.recv() == "done"
    assert time.monotonic() < until - 50, "a turn was slept through until something else woke its role"
    process.join()
    host.a.close()


def _echo_anew(line: Connection, host: Host, rounds: int) -> None:
    host.b = host.role(B)
    echo(line, host, rounds)


def test_who_computes_besides_does_not_look_again_and_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[int]()
    monkeypatch.setattr(os, "sched_yield", lambda: looks.append(1))
    for _ in range(3):  # messages come at once: it pays to look
        assert host.b.lanes is not None
        host.b.lanes._soon = True
        host.b.poll(0.01, alone=False)
    assert not looks
    host.b.lanes._soon = True
    host.b.poll(0.01)
    assert looks and not host.b.lanes._soon, "nothing came: it does not look the next time"
    looks.clear()
    host.b.poll(0.01)
    assert not looks


def test_roles_with_keys_have_no_lanes(host: Host) -> None:
    """Memory does not prove who has written it."""
    pairs = {A: new_pair(), B: new_pair()}
    ring = KeyRing(pairs[A], {who: pair.public for who, pair in pairs.items()})
    locked = host.role(A, "tcp://127.0.0.1:*", key_ring=ring)
    assert locked.lanes is None
    locked.close()


def test_many_roles_have_no_lanes() -> None:
    few = SharedSegment([Address("worker", rank) for rank in range(FEW)])
    many = SharedSegment([Address("worker", rank) for rank in range(FEW + 1)])
    assert few.has_lanes and not many.has_lanes
    assert len(few._table) > LANE * FEW**2 > len(many._table)
    for segment in (few, many):
        for handle in (*segment.files, *segment.wakeups):
            os.close(handle)


@pytest.mark.parametrize("victim", [A, B], ids=["sender", "receiver"])
def test_after_a_loss_the_link_goes_by_sockets(host: Host, victim: Address) -> None:
    """What lies in its lanes was for, or from, a process that is no more."""
    host.send(1)
    host.send(2)
    other = host.b if victim == A else host.a
    again = host.role(victim, f"ipc://{host.place}/again", incarnations={victim: 1})
    assert again.lanes is None and other.renew(victim, 1, again.endpoint, [])
    if victim == A:
        host.a.close()
        host.a = again
        host.a.book = {**host.a.book, B: host.b.endpoint}
    else:
        host.b.close()
        host.b = again
    host.send(3)
    assert [one.number for one in host.receive(1)] == [3] and socketed(host.a, B) > 0
    assert host.b.poll(0.05)[0] == []


def test_a_third_role_keeps_its_lanes_when_another_is_lost() -> None:
    third = Address("worker", 2)
    host = Host(SharedSegment([A, B, third]))
    assert host.a.renew(third, 1, f"ipc://{host.place}/nobody", []) and host.b.lanes is not None
    late = host.role(B, f"ipc://{host.place}/late", incarnations={third: 1})  # one that hears of it as it begins
    assert late.lanes is not None and set(late.lanes.incoming) == {A}
    late.close()
    host.send(1)
    assert host.receive(1)[0].number == 1 and socketed(host.a, B) == 0
    host.close()


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"short", "shorter than its prefix"),
        (Frame(OPEN, 1, 0, 0, 0).pack(), "worker 0 sent a frame in the name of worker 1"),
        (Frame(OPEN, 9, 0, 0, 0).pack(), "a frame of role number 9"),
        (Frame(OPEN, 0, 0, 0, 0, b"x" * 16).pack(), "of another run"),
        (Frame(DATA, 0, 4, 0, 0).pack() + b"1234", "where only whole ones go"),
        (Frame(OPEN, 0, 5, 0, 0).pack() + b"nonse", "an invalid message header"),
        (Frame(OPEN, 0, 5, 0, 8).pack() + b"nonse", "without the 8 bytes that it said came with it"),
    ],
)
def test_nonsense_in_a_lane_is_refused(host: Host, frame: bytes, says: str) -> None:
    assert host.a.lanes is not None
    host.a.lanes.put(B, frame, 0)
    assert host.b.poll(0.01)[0] == []
    assert any(says in line for line in host.b.refusals.counts), dict(host.b.refusals.counts)
    host.a._link(B).left = 7
    host.send(1)
    assert host.receive(1)[0].number == 1


def test_a_length_that_cannot_be_ends_the_lane(host: Host) -> None:
    lane = Lane(*host.segment.lane(A, B))
    header, _ = pack(Parcel(sender=A, number=1))
    assert lane.put(Frame(OPEN, 0, len(header), 0, 0).pack() + header, 0)
    lane._places[0][:4] = (PLACE + 1).to_bytes(4, "little")
    assert host.b.poll(0.01)[0] == []
    assert any("worker 0: a frame of" in line for line in host.b.refusals.counts)
    assert host.b.lanes is not None and A not in host.b.lanes.incoming


def test_a_sender_that_dies_before_its_frame_is_whole_costs_a_place_only(host: Host) -> None:
    lane = Lane(*host.segment.lane(A, B))
    assert lane._free.take()  # and then it was killed
    for number in range(3 * PLACES):
        host.send(number)
        assert host.receive(1)[0].number == number
    assert socketed(host.a, B) == 0
