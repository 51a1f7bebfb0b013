"""Who is not of the run does not get in, is counted, and does no harm; who is speaks in its own name only."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle, islice

import msgspec
import pytest
import zmq

from covey.engines.cluster import site_messages
from covey.engines.cluster.cluster_keys import ClusterKeys
from covey.engines.cluster.gate import SiteGate
from covey.engines.process import control, control_lines
from covey.engines.process.contacts import Contacts
from covey.engines.transport.frames import OPEN, Frame
from covey.engines.transport.keys import LAUNCHER, KeyRing, LockedSocket, Pair, new_pair
from covey.engines.transport.refusals import LONGEST, MOST, Refusals
from covey.engines.transport.token import new_token, seal
from covey.message import Address, pack
from tests.safety.members import A, B, Load, Two, knocking, two

SITE = Address("site", 0)
NOT_OURS = "a connection from 127.0.0.1: its key is not of this run"
TOO_MANY = "a connection: too many have not proved to be of this run"
NO_MEMBER = "a connection that did not speak as members of this run do"


def forged(token: bytes, step: int = 99) -> bytes:
    header, _ = pack(Load(sender=A, step=step))
    return Frame(OPEN, 0, len(header), 5, 0, token).pack() + header


@pytest.mark.parametrize(
    ("mine", "server", "why"),
    [
        (None, "", NO_MEMBER),
        (new_pair(), new_pair().public, NO_MEMBER),
        (new_pair(), "B", NOT_OURS),
    ],
    ids=["no key", "another server's key", "an unknown client key"],
)
def test_strangers_are_refused_and_counted(mine: Pair | None, server: str, why: str) -> None:
    with (
        two() as pair,
        knocking(pair.b.endpoint, mine=mine, server=pair.public[B] if server == "B" else server) as door,
    ):
        with suppress(zmq.Again):  # where it has been refused already, nothing can be sent any more
            door.send(forged(pair.token), zmq.NOBLOCK)
        pair.until(lambda: pair.b.refusals.counts[why] > 0)
        pair.exchange(20)
        assert pair.b.received == {A: 20}


def test_the_door_proves_itself_too() -> None:
    """B's address is taken by somebody else: A does not speak to it."""
    with two() as pair, zmq.Context() as context, context.socket(zmq.PULL) as impostor:
        impostor.linger = 0
        KeyRing(new_pair(), {}).lock(impostor)
        port = impostor.bind_to_random_port("tcp://127.0.0.1")
        pair.a.book = {**pair.a.book, B: f"tcp://127.0.0.1:{port}"}
        pair.a.offer(B, Load(sender=A, step=1))
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            pair.a.poll(0.01)
            assert not impostor.poll(0)


def test_nobody_comes_in_while_nobody_answers_for_keys() -> None:
    """ZeroMQ would let everybody in who speaks CURVE, if no guard is there."""
    mine = new_pair()
    with zmq.Context() as context, context.socket(zmq.PULL) as door:
        KeyRing(mine, {}).lock(door)
        port = door.bind_to_random_port("tcp://127.0.0.1")
        with knocking(f"tcp://127.0.0.1:{port}", mine=new_pair(), server=mine.public) as stranger:
            with suppress(zmq.Again):
                stranger.send(b"hello", zmq.NOBLOCK)
            assert not door.poll(500)


def test_a_member_speaks_in_its_own_name() -> None:
    """B's key is good, and its frames say that they are A's."""
    with two() as pair, knocking(pair.a.endpoint, mine=pair.pairs[B], server=pair.public[A]) as door:
        door.send(forged(pair.token))
        pair.until(lambda: pair.a.refusals.counts["worker 1 sent a frame in the name of worker 0"] > 0)
        pair.exchange(3)


def test_another_run_is_refused_where_there_are_no_keys() -> None:
    with two(insecure=True) as pair, knocking(pair.b.endpoint) as door:
        door.send(forged(new_token()))
        pair.until(lambda: pair.b.refusals.counts["a frame of another run is refused"] > 0)
        pair.exchange(3)


def test_a_message_that_comes_again_is_refused() -> None:
    with two(insecure=True) as pair, knocking(pair.b.endpoint) as door:
        header, _ = pack(Load(sender=A, step=7))
        recorded = [Frame(OPEN, 0, len(header), number, 0, pair.token).pack() + header for number in (1000, 700, 999)]
        for frame in recorded * 2:
            door.send(frame)
        pair.until(lambda: pair.b.refusals.total == 4)
        assert set(pair.b.refusals.counts) == {f"worker 0 sent its message number {n} again" for n in (1000, 700, 999)}
        assert pair.b.received == {A: 2}, "number 700 is older than the window: it may have come before"


# --- the lines to the launcher


class Board:
    """A launcher's ends of the lines, and a guard for them."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], insecure: bool = False) -> None:
        self.keys = ClusterKeys([A, B, SITE], insecure)
        self.token, self.pairs, self.guard = self.keys.token, self.keys.pairs, self.keys.guard(context)
        self.control = control_lines.Switchboard(
            context, "tcp://127.0.0.1:*", [A, B], self.keys.own_ring(), self.guard, self.token
        )
        self.gate = SiteGate(context, "tcp://127.0.0.1:*", 1, self.keys, self.guard)

    def hear(self) -> list[object]:
        end, found = time.monotonic() + 60, []
        while time.monotonic() < end and not found and not self.guard.refusals.total:
            time.sleep(0.01)
            found = self.look()
        return found

    def look(self) -> list[object]:
        self.guard.answer()
        return [*self.control.heard(), *self.gate.words()]


@pytest.mark.parametrize(
    ("who", "claims", "says", "why"),
    [
        (A, b"worker/0", seal, ""),
        (B, b"worker/0", seal, "worker 1 sent the launcher a message in the name of worker 0"),
        (A, b"worker/7", seal, "the control link received a message that no role of this run sends"),
        (A, b"worker/0", lambda token, word: bytes(16) + seal(token, word)[16:], "a word of another run is refused"),
        (A, b"worker/0", lambda token, word: token + b"\x91" * 5000, "a peer sent an invalid message of a role"),
        (None, b"worker/0", seal, "a connection from 127.0.0.1: its key is not of this run"),
    ],
    ids=["a role", "another role", "no role", "another run", "nonsense", "a stranger"],
)
def test_the_control_line(who: Address | None, claims: bytes, says: Callable[..., bytes], why: str) -> None:
    with zmq.Context() as context:
        board = Board(context)
        mine = board.pairs[who] if who else new_pair()
        heard = _say(board, board.control.endpoint, mine, claims, says(board.token, control.RoleReady("x", 1)))
        assert heard == ([] if why else [(A, control.RoleReady("x", 1))])
        assert [reason.startswith(why) for reason in board.guard.refusals.counts] == ([True] if why else [])
        board.gate.close()
        context.destroy(0)


@pytest.mark.parametrize(("who", "welcome"), [(SITE, True), (A, False)])
def test_a_role_is_no_site(who: Address, welcome: bool) -> None:
    with zmq.Context() as context:
        board = Board(context)
        name, word = board.keys.identity(SITE), seal(board.token, site_messages.Heartbeat())
        heard = _say(board, board.gate.endpoint, board.pairs[who], name, word)
        assert heard == ([(0, site_messages.Heartbeat())] if welcome else [])
        assert (
            bool(board.guard.refusals.counts["worker 0 sent the launcher a message in the name of site 0"]) != welcome
        )
        board.gate.close()
        context.destroy(0)


def _say(board: Board, endpoint: str, mine: Pair, name: bytes, data: bytes) -> list[object]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as line:
        line.linger = 0
        line.identity = name
        line.curve_publickey, line.curve_secretkey = mine.public.encode(), mine.secret.encode()
        line.curve_serverkey = board.pairs[LAUNCHER].public.encode()
        line.connect(endpoint)
        line.send(data)
        return board.hear()


# --- floods


def greeting(mechanism: bytes) -> bytes:
    """The first 64 bytes of ZMTP 3.0 (its RFC 23)."""
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + b"\0" + bytes(31)


GIANT = b"\x06" + struct.pack(">Q", 2**62)  # a long command of four exabytes
RUDE = (
    b"", b"GET / HTTP/1.0\r\n\r\n", bytes(range(256)) * 16, greeting(b"NULL") + GIANT, greeting(b"CURVE") + GIANT,
    greeting(b"CURVE") + b"\x06" + struct.pack(">Q", 3 << 20), greeting(b"CURVE") + b"\x04\xc8\x05HELLO" + bytes(194),
)  # fmt: skip


def flood(endpoints: list[str], times: int) -> None:
    """Connect so often, say something rude, and hang up or stay."""
    staying = []
    for number, (endpoint, words_) in enumerate(islice(zip(cycle(endpoints), cycle(RUDE)), times)):
        port = endpoint.rpartition(":")[2]
        try:
            line = socket.create_connection(("127.0.0.1", int(port)), timeout=2)
            line.sendall(words_)
        except OSError:
            continue
        staying.append(line) if number % 5 == 0 else line.close()
    for line in staying:
        line.close()


def test_a_flood_starves_nobody() -> None:
    with two() as pair:
        pair.exchange(20)
        quiet = timed(pair, 300, 100)
        crowd = threading.Thread(target=flood, args=([pair.a.endpoint, pair.b.endpoint], 2000))
        crowd.start()
        flooded = timed(pair, 300, 1000)
        crowd.join()
        pair.until(lambda: pair.b.refusals.counts[NO_MEMBER] > 900)
        pair.exchange(20, 2000)
        assert flooded < 20 * quiet + 1, f"{quiet:.2f} s without, {flooded:.2f} s with the flood"
        assert set(pair.b.refusals.counts) <= {NO_MEMBER, TOO_MANY}


def test_of_too_many_connections_the_newest_are_broken_off() -> None:
    """Members came before the crowd did."""
    with zmq.Context() as context, context.socket(zmq.PULL) as door:
        door.bind("tcp://127.0.0.1:*")
        locked, numbers = LockedSocket(door, lambda: None), range(10**6, 10**6 + 5)  # files that nobody has
        locked.open = dict.fromkeys(numbers)
        assert locked.clear(3) == 2 and list(locked.open) == list(numbers[:3])
        assert locked.clear(3) == 0


@pytest.mark.alone
def test_strangers_fill_no_memory() -> None:
    """180 of them, each with a megabyte before it proves anything, at each kind of door, with keys and without."""
    command = [sys.executable, "-m", "tests.safety.flooded"]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=240, check=True).stdout)
    doors = ("role", "launcher", "sites")
    assert found.keys() == {*doors, *(f"{door} without keys" for door in doors)}
    for grown, refused in found.values():
        assert grown < 64, found
        assert refused[TOO_MANY] > 100 and set(refused) <= {TOO_MANY, NO_MEMBER}, found


@pytest.mark.parametrize(("insecure", "most"), [(False, 1.2), (True, 2.2)], ids=["between machines", "on one"])
def test_a_frame_has_a_most(insecure: bool, most: float) -> None:
    """ZeroMQ breaks the connection off before it takes memory for more."""
    with two(insecure=insecure) as pair:
        assert 0 < pair.b.door.socket.get(zmq.MAXMSGSIZE) <= most * 2**20, "-1 sets none"
        assert pair.b.door.socket.get(zmq.HANDSHAKE_IVL) <= 10_000


def test_a_word_of_the_control_line_has_a_most() -> None:
    with zmq.Context() as context:
        board = Board(context)
        ends = (board.control.socket, board.gate.socket)
        assert {end.get(zmq.MAXMSGSIZE) for end in ends} == {1 << 20}
        assert {end.get(zmq.HANDSHAKE_IVL) for end in ends} == {10_000}
        role = control_lines.RoleLine(
            context, board.control.endpoint, A, KeyRing(board.pairs[A], {LAUNCHER: new_pair().public})
        )
        assert role.socket.get(zmq.MAXMSGSIZE) == 16 << 20
        board.gate.close()
        context.destroy(0)


def timed(pair: Two, steps: int, first: int) -> float:
    begin = time.monotonic()
    pair.exchange(steps, first)
    return time.monotonic() - begin


def test_refusals_take_little_memory_and_no_terminal() -> None:
    refusals = Refusals()
    for number in range(10_000):
        refusals.note(f"{number} \x1b[2J" + "x" * 10_000)
    assert refusals.total == 10_000 == sum(refusals.counts.values())
    assert len(refusals.counts) == MOST + 1
    assert all(len(reason) <= LONGEST and reason.isprintable() for reason in refusals.counts)


def test_a_person_is_told_ever_more_rarely() -> None:
    heard, said = Refusals(), []
    for _ in range(200):
        said += heard.add({"a frame": 1}, "server 0")
    assert said == ["refused by server 0: a frame", *(f"refused by server 0: a frame ({n} times)" for n in (10, 100))]
    assert heard.lines() == ["refused by server 0: a frame (200 times)"]
    assert heard.news() == {"server 0: a frame": 200} and heard.news() == {}


def test_nor_do_ever_new_reasons_flood_the_terminal() -> None:
    heard, said = Refusals(), []
    for number in range(500):
        said += heard.add({f"frame {number}": 1}, "server 0")
    assert len(said) == MOST + 3 and said[-1] == "refused for yet other reasons (100 times)"
    assert heard.lines()[-1] == f"refused for yet other reasons ({500 - MOST} times)"


# --- secrets


def test_a_site_gets_the_secrets_of_its_own_roles_and_no_others() -> None:
    keys = ClusterKeys([A, B], insecure=False)
    told = keys.added(Contacts(book={}, launcher=""), [A])
    assert told.pairs == {str(A): keys.pairs[A]}
    assert told.public == {str(who): keys.pairs[who].public for who in (LAUNCHER, A, B)}


def test_secrets_are_not_shown() -> None:
    from rich.pretty import pretty_repr

    from covey.engines.process.forking.fork_server import RoleJob
    from covey.run.roles import RoleWork

    pair, token = new_pair(), new_token()
    contacts = Contacts(book={"worker 0": "tcp://x:1"}, launcher="", public={}, pairs={"worker 0": pair}, token=token)
    config = site_messages.SiteConfig(site=0, launcher="", warm="", pair=pair, key=pair.public, token=token)
    work = RoleWork(task="", text="bsp", workers=1, servers=1, limits=[1], seed=0, threads=1, contacts=contacts)
    packed = msgspec.msgpack.encode(work)
    holders = [
        pair, KeyRing(pair, {A: pair.public}), contacts, config, work,
        site_messages.StartRoles("m:f", [A], packed, True), RoleJob(entry="m:f", roles=[A], work=packed),
    ]  # fmt: skip
    for holder in holders:
        for shown in (repr(holder), str(holder), pretty_repr(holder), f"{[holder]}"):
            assert pair.secret not in shown
            assert repr(token)[2:-1] not in shown
