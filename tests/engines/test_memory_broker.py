"""Memory that one process lays and others fetch: who gets it, who does not, and what is left of it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from covey.engines.cluster.memory_broker import SECRET, MemoryBroker, SiteMemory, fetch, new_secret
from covey.engines.cluster.placement import Site
from covey.engines.cluster.sharing import Sharing, separated
from covey.engines.cluster.site_messages import FetchMemory, LayMemory, MemoryShared
from covey.engines.cluster.this_host import HostIdentity, machine
from covey.engines.process.snapshot_parts import SCORER
from covey.engines.transport import handles
from covey.engines.transport.keys import KeyRing, new_pair
from covey.engines.transport.shared.memory import HostMemory
from covey.engines.transport.shared.segment import MOST, SharedSegment
from covey.engines.transport.zmq import ZmqTransport
from covey.message import Address, Message
from covey.vector import Vector

A, B, C = (Address("worker", rank) for rank in range(3))
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


class Load(Message, kw_only=True):
    wire_name = "test.keeper.load"

    what: Vector


@pytest.fixture
def secret() -> bytes:
    return new_secret()


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.fixture
def broker(secret: bytes) -> Iterator[MemoryBroker]:
    broker = MemoryBroker([A, B], secret, common=False)
    yield broker
    broker.close()
    assert broker.door not in Path("/proc/net/unix").read_text()


def test_what_one_lays_out_the_other_reads(broker: MemoryBroker, secret: bytes) -> None:
    fetched = fetch(broker.door, secret)
    assert not any(os.get_inheritable(handle) for handle in fetched)
    here, there = SharedSegment([A, B], broker.handles), SharedSegment([A, B], fetched)
    here.slot(A)[:3] = b"abc"
    here.sign(A, B).give()
    here.ring(B)
    assert there.sign(A, B).take() and not there.sign(A, B).take() and not there.sign(B, A).take()
    assert bytes(there.slot(A)[:3]) == b"abc"
    assert os.eventfd_read(there.wakeup(B)) == 1
    os.pwrite(here.file(A), b"xyz", 0)
    assert os.pread(there.file(A), 3, 0) == b"xyz"
    handles.close(fetched)


def test_more_files_than_one_message_takes(secret: bytes) -> None:
    broker = MemoryBroker([Address("worker", rank) for rank in range(MOST)], secret, common=True)
    fetched = fetch(broker.door, secret)
    assert [os.fstat(one).st_ino for one in fetched] == [os.fstat(one).st_ino for one in broker.handles]
    assert len(fetched) == 2 * MOST + 2 > handles.MOST
    broker.close()
    handles.close(fetched)


def test_whoever_does_not_know_the_secret_gets_nothing(broker: MemoryBroker, secret: bytes) -> None:
    with pytest.raises(ConnectionRefusedError):
        fetch(broker.door, new_secret())
    with pytest.raises(ConnectionRefusedError):
        fetch(broker.door, b"")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rude:
        rude.connect(f"\0{broker.door}")
        rude.recv(100)
        rude.send(b"x")
        assert rude.recv(100) == b""
    handles.close(fetch(broker.door, secret))  # it still serves those who do


def test_an_impostor_is_not_believed(secret: bytes) -> None:
    """Whoever took the door's name does not know the secret either."""
    impostor = MemoryBroker([A, B], new_secret(), common=False)
    with pytest.raises(OSError, match=r"refused|secret"):
        fetch(impostor.door, secret)
    impostor.close()


def test_an_impostor_that_asks_for_no_proof_is_not_believed_either(secret: bytes) -> None:
    """It takes any answer, and gives files of its own: a site that maps them would lend it the model."""
    door, file = "covey-test-impostor", os.memfd_create("impostor")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as impostor:
        impostor.bind(f"\0{door}{os.getpid()}")
        impostor.listen()

        def welcome() -> None:
            line, _ = impostor.accept()
            with line, suppress(OSError):
                line.send(bytes(SECRET))
                line.recv(2 * SECRET)
                line.send(bytes(SECRET) + (1).to_bytes(4, "little"))
                handles.give(line, [file])

        guest = Thread(target=welcome, daemon=True)
        guest.start()
        with pytest.raises(PermissionError, match="does not know the secret of this run"):
            handles.close(fetch(f"{door}{os.getpid()}", secret))
        guest.join(10)
    os.close(file)


KNOCK = """
import os, socket, sys
if sys.argv[2] == "nobody":
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
    try:
        line.connect("\\0" + sys.argv[1])
    except ConnectionRefusedError:
        print("nobody there")
    else:
        print(line.recv(100))
"""


def knocking(door: str, who: str, *prefix: str) -> str:
    command = [*prefix, sys.executable, "-c", KNOCK, door, who]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.strip()


@root
def test_another_user_gets_nothing(broker: MemoryBroker) -> None:
    assert knocking(broker.door, "nobody") == "b''"
    assert len(knocking(broker.door, "myself")) > 10  # the question that a guest answers


@root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_from_another_network_the_door_is_not_seen(broker: MemoryBroker) -> None:
    """So hosts of a lab can never share memory, though they are of one kernel and one user."""
    assert knocking(broker.door, "myself", "unshare", "-n") == "nobody there"


def test_fewer_files_than_promised_are_not_kept() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        handles.give(ours, [ours.fileno()])
        ours.send(b"+")
        with pytest.raises(ConnectionError):
            handles.take(theirs, 2)


# --- tensors between roles of two sites, whose links are encrypted


def test_numbers_are_read_in_place_though_words_are_encrypted(broker: MemoryBroker, secret: bytes) -> None:
    fetched = fetch(broker.door, secret)
    pairs = {who: new_pair() for who in (A, B)}
    public = {who: pair.public for who, pair in pairs.items()}
    book = dict.fromkeys((A, B), "tcp://127.0.0.1:*")
    memories = HostMemory(A, SharedSegment([A, B], broker.handles)), HostMemory(B, SharedSegment([A, B], fetched))
    a, b = (
        ZmqTransport(memory.me, book, limit=1 << 30, key_ring=KeyRing(pairs[memory.me], public), memory=memory)
        for memory in memories
    )
    a.book = b.book = {A: a.endpoint, B: b.endpoint}
    mine = memories[0].blocks.house(Vector([torch.full((100_000,), 3.0)]))
    a.offer(B, Load(sender=A, what=mine), loan=True)
    came: list[Any] = []
    end = time.monotonic() + 30
    while not came:
        assert time.monotonic() < end, list(b.refusals.counts)
        a.poll(0.001)
        came += b.poll(0.001)[0]
    theirs = came[0].what.parts[0]
    mine.parts[0][-1] = 7.0
    assert theirs[0] == 3.0 and theirs[-1] == 7.0
    a.close()
    b.close()
    handles.close(fetched)


# --- who shares with whom

HERE = machine()
NODE = HostIdentity("another kernel", 1, (0, 1))


def settled(
    machines: Mapping[int, HostIdentity], homes: Mapping[Address, int], secret: bytes, refusing: int = -1
) -> Any:
    """What comes of it, and the sites' parts in it; one of them may not know the secret."""
    sites = {number: SiteMemory(new_secret() if number == refusing else secret) for number in machines}

    def ask(words: Mapping[int, LayMemory | FetchMemory]) -> dict[int, MemoryShared]:
        return {number: sites[number].obey(word) for number, word in words.items()}

    sharing = Sharing({who: Site(number, "host", 0) for who, number in homes.items()}, machines, HERE)
    sharing.settle(secret, ask)
    return sharing, sites


def closed(sharing: Sharing, sites: Mapping[int, SiteMemory]) -> None:
    sharing.close()
    for share in sites.values():
        share.close()


def test_all_sites_of_the_launchers_machine_share_with_its_scorer(secret: bytes) -> None:
    sharing, sites = settled({0: HERE, 1: HERE}, {A: 0, B: 1, C: 1}, secret)
    assert sharing.roles(0) == sharing.roles(1) == sharing.scorers == [A, B, C, SCORER]
    assert sharing.alone and set(sharing.places().values()) == {0}
    inodes = [[os.fstat(one).st_ino for one in held] for held in (sharing.handles, sites[0].handles, sites[1].handles)]
    assert inodes[0] == inodes[1] == inodes[2] and len(inodes[0]) == 2 * 4 + 2
    assert not sharing.lines(str, separate=False)
    closed(sharing, sites)


def test_each_machine_has_its_own(secret: bytes) -> None:
    sharing, sites = settled({0: HERE, 1: NODE, 2: NODE}, {A: 0, B: 1, C: 2}, secret)
    assert sharing.roles(0) == sharing.scorers == [A, SCORER] and sharing.roles(1) == sharing.roles(2) == [B, C]
    assert not sharing.alone and sharing.places() == {"worker 0": 0, "worker 1": 1, "worker 2": 1}
    assert sites[1].broker and len(sites[2].handles) == 2 * 2 + 1
    closed(sharing, sites)


def test_a_site_that_is_alone_is_not_asked(secret: bytes) -> None:
    sharing, sites = settled({0: NODE}, {A: 0, B: 0}, secret)
    assert not sites[0].handles and sharing.roles(0) == [] and sharing.alone
    closed(sharing, sites)


def test_where_one_site_cannot_none_does_and_a_line_says_so(secret: bytes) -> None:
    sharing, sites = settled({0: HERE, 1: HERE, 2: NODE, 3: NODE}, {A: 0, B: 1, C: 2}, secret, refusing=1)
    assert sharing.roles(0) == sharing.roles(1) == sharing.scorers == [] and not sharing.handles
    assert len(set(sharing.places().values())) == 3
    (line,) = sharing.lines(lambda number: f"site {number}", separate=True)
    assert line.startswith("site 0, site 1: roles on one machine share no memory (") and "refused" in line
    closed(sharing, sites)


@pytest.mark.parametrize("refusing", [1, 2])
def test_where_one_of_several_guests_cannot_the_others_share_nothing_either(secret: bytes, refusing: int) -> None:
    sharing, sites = settled({0: HERE, 1: HERE, 2: HERE}, {A: 0, B: 1, C: 2}, secret, refusing)
    assert [sharing.roles(number) for number in range(3)] == [[], [], []] and not sharing.scorers
    (line,) = sharing.lines(lambda number: f"site {number}", separate=True)
    assert line.startswith("site 0, site 1, site 2: roles on one machine share no memory (")
    closed(sharing, sites)


@pytest.mark.parametrize(
    ("others", "apart", "why"),
    [
        ([HERE, NODE], False, ""),
        ([HostIdentity(HERE.kernel, HERE.network, (65534, HERE.user[1]))], True, "different users"),
        ([HostIdentity(HERE.kernel, HERE.network + 1, HERE.user)], False, "networks of their own"),
        ([HostIdentity(HERE.kernel, HERE.network + 1, HERE.user)], True, ""),
    ],
)
def test_why_processes_of_one_kernel_share_no_memory(others: list[HostIdentity], apart: bool, why: str) -> None:
    found = separated([HERE, *others], apart)
    assert why in found and bool(found) == bool(why)
