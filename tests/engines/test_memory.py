"""Tensors between roles of one host: read in place or copied once, given back, and never a surprise for either side."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey.engines.transport.frames import SHARED, Frame
from covey.engines.transport.landing import landed
from covey.engines.transport.shared import blocks as shared_blocks
from covey.engines.transport.shared.blocks import FileSpan, TensorPlace, TensorPlaces
from covey.engines.transport.shared.memory import HostMemory, read_places
from covey.engines.transport.shared.segment import SharedSegment
from covey.engines.transport.shared.spare import spare_memory
from covey.engines.transport.zmq import ZmqTransport
from covey.message import DTYPES, Address, Message, pack, read_header
from covey.program import Receive
from covey.vector import Vector

A, B = Address("worker", 0), Address("worker", 1)
NUMBERS = 100_000


class Load(Message, kw_only=True):
    wire_name = "test.memory.load"

    step: int = 0
    what: Vector


class Neighbours:
    """Two roles of one host, each with its own sockets and its own view of the memory."""

    def __init__(self, window: int = 64 << 20) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="covey-"))
        self.segment = SharedSegment([A, B])
        book = {role: f"ipc://{self.place}/{role.rank}" for role in (A, B)}
        self.a, self.b = (
            ZmqTransport(role, book, limit=1 << 30, window=window, memory=HostMemory(role, self.segment))
            for role in (A, B)
        )
        assert self.a.memory is not None
        self.blocks = self.a.memory.blocks
        self.came: list[Any] = []

    def send(self, vector: Vector, step: int = 0, **how: Any) -> None:
        self.a.offer(B, Load(sender=A, step=step, what=vector), **how)

    def receive(self, want: Receive | None = None) -> Any:
        if want:
            self.b.expect(want)
        end = time.monotonic() + 10
        while not self.came:
            assert time.monotonic() < end, f"nothing came; refused: {list(self.b.refusals.counts)}"
            self.a.poll(0)
            self.came += self.b.poll(0.001)[0]
        self.b.taken(self.came[0])
        return self.came.pop(0)

    def close(self) -> None:
        self.a.close()
        self.b.close()
        for handle in (*self.segment.files, *self.segment.wakeups):
            os.close(handle)
        self.place.rmdir()


@pytest.fixture
def two() -> Iterator[Neighbours]:
    two = Neighbours()
    yield two
    two.close()


def numbers(value: float = 1.0, count: int = NUMBERS) -> Vector:
    return Vector([torch.full((count,), value)])


def test_what_is_lent_is_read_in_place(two: Neighbours) -> None:
    mine = two.blocks.house(numbers(3.0))
    two.send(mine, loan=True)
    theirs = two.receive().what.parts[0]
    assert bool((theirs == 3).all()) and not two.blocks.blocks
    mine.parts[0][-1] = 7.0
    assert theirs[-1] == 7.0


def test_a_slice_is_lent_in_place_too(two: Neighbours) -> None:
    mine = two.blocks.house(Vector([torch.arange(NUMBERS, dtype=torch.float32)]))
    two.send(mine.cut(((1, NUMBERS - 1),)), loan=True)
    theirs = two.receive().what.parts[0]
    assert theirs[0] == 1 and theirs[-1] == NUMBERS - 2 and not two.blocks.blocks


@pytest.mark.parametrize("cut", [lambda m: m.T, lambda m: m[:, ::2]], ids=["transpose", "columns"])
def test_what_does_not_lie_in_one_piece_is_copied_though_lent(two: Neighbours, cut: Callable[[Tensor], Tensor]) -> None:
    matrix = two.blocks.house(Vector([torch.arange(90_000.0).view(300, 300)])).parts[0]
    two.send(Vector([cut(matrix)]), loan=True)
    assert torch.equal(two.receive().what.parts[0], cut(matrix))


def test_memory_that_others_have_mapped_cannot_be_taken_from_under_them(two: Neighbours) -> None:
    """They would be killed by SIGBUS."""
    two.blocks.house(numbers())
    with pytest.raises(PermissionError):
        os.ftruncate(two.segment.file(A), 0)


def test_what_is_sent_is_what_it_held_then(two: Neighbours) -> None:
    mine = two.blocks.house(numbers(3.0))
    two.send(mine)
    mine.parts[0].fill_(9.0)
    assert bool((two.receive().what.parts[0] == 3).all())


def test_what_lies_elsewhere_is_copied_though_lent(two: Neighbours) -> None:
    two.send(numbers(5.0), loan=True)
    assert bool((two.receive().what.parts[0] == 5).all()) and len(two.blocks.blocks) == 1


def test_it_lands_where_it_is_awaited_and_the_block_is_free_at_once(two: Neighbours) -> None:
    target = numbers(0.0)
    want = Receive((Load,), into=target)
    two.send(numbers(2.0))
    message = two.receive(want)
    assert landed(message, want) and bool((target.parts[0] == 2).all())
    gc.collect()
    assert all(block.free() for block in two.blocks.blocks)


def test_blocks_are_used_again_when_the_last_tensor_in_them_is_dropped(two: Neighbours) -> None:
    two.send(numbers(1.0))
    piece = two.receive().what.parts[0][10:20]  # holds the block
    two.send(numbers(2.0))
    assert two.receive().what.parts[0][0] == 2 and len(two.blocks.blocks) == 2 and bool((piece == 1).all())
    del piece
    for step in range(20):
        two.send(numbers(float(step)))
        assert two.receive().what.parts[0][0] == step
    assert len(two.blocks.blocks) <= 3


def test_nobody_waits_for_a_reader() -> None:
    """What it holds on to beyond a window goes through the sockets, into memory of its own."""
    two = Neighbours(window=1 << 20)
    held = []
    for step in range(6):
        two.send(numbers(float(step)), step)
        held.append(two.receive())
        two.a.poll(0.1)
        assert two.a.room(B)
    assert [message.what.parts[0][-1].item() for message in held] == list(range(6)) and len(two.blocks.blocks) == 3
    held.clear()
    for step in range(6):
        two.send(numbers(), step)
        two.receive()
    assert len(two.blocks.blocks) == 3
    two.close()


def test_a_child_of_the_reader_gives_nothing_back(two: Neighbours) -> None:
    two.send(numbers())
    message = two.receive()
    pid = os.fork()
    if pid == 0:
        del message
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)
    assert not two.blocks.blocks[0].free()
    del message
    assert two.blocks.blocks[0].free()


def test_messages_of_changing_length_find_the_same_blocks(two: Neighbours) -> None:
    for count in range(100_000, 130_000, 500):
        two.send(numbers(1.0, count))
        two.receive()
    assert len(two.blocks.blocks) <= 4


def test_in_a_container_no_more_is_taken_than_it_has(tmp_path: Path) -> None:
    machine = tmp_path / "meminfo"
    machine.write_text("MemTotal: 4000 kB\nMemAvailable: 2000 kB\n")
    assert spare_memory(tmp_path, machine) == round(0.9 * (2000 << 10))
    for name, text in (("max", "1000000"), ("current", "600000"), ("stat", "anon 5\ninactive_file 100000")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert spare_memory(tmp_path, machine) == 450_000
    (tmp_path / "memory.max").write_text("max")
    assert spare_memory(tmp_path, machine) == round(0.9 * (2000 << 10))


def test_what_a_newer_one_replaces_gives_its_block_back(two: Neighbours) -> None:
    book = {A: two.a.book[A], B: f"ipc://{two.place}/nobody"}
    lonely = ZmqTransport(
        Address("worker", 0), {**book, A: f"ipc://{two.place}/again"}, limit=1 << 30, memory=two.a.memory
    )
    for step in range(30):
        lonely.offer(B, Load(sender=A, step=step, what=numbers()), keep="latest")
    assert len(two.blocks.blocks) < 10  # those that ZeroMQ has taken, and the one that waits
    lonely.close()


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 40), max_size=3)), min_size=1, max_size=4
    ),
    st.booleans(),
    st.booleans(),
)
def test_any_tensors_arrive_as_they_are(shapes: list[tuple[str, list[int]]], housed: bool, loan: bool) -> None:
    two = Neighbours()
    parts = [torch.randint(0, 2, dims).to(DTYPES[dtype]) for dtype, dims in shapes] + [torch.ones(20_000)]
    vector = two.blocks.house(Vector(parts)) if housed else Vector(parts)
    two.send(vector, loan=loan)
    came = two.receive().what.parts
    assert [(p.dtype, p.shape) for p in came] == [(p.dtype, p.shape) for p in parts]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(parts, came, strict=True))
    del came
    two.close()


@pytest.mark.parametrize(
    ("places", "says"),
    [
        (TensorPlaces([TensorPlace(FileSpan(0, 1 << 40), 0)]), "memory that it does not have"),
        (TensorPlaces([TensorPlace(FileSpan(0, 4096), 4096)]), "not where it says"),
        (TensorPlaces([TensorPlace(FileSpan(0, 1 << 20), 1)]), "not where it says"),
        (TensorPlaces([TensorPlace(FileSpan(-4096, 1 << 20), 0)]), "memory that it does not have"),
        (TensorPlaces([]), "0 of its tensors"),
        (TensorPlaces([TensorPlace(FileSpan(0, 1 << 20), 0)], FileSpan(0, 1 << 41)), "memory that it does not have"),
        (TensorPlaces([TensorPlace(FileSpan(0, 1 << 20), 0)], FileSpan(0, 5)), "memory that it does not have"),
        (TensorPlaces([TensorPlace(FileSpan(0, 4096), 64)], FileSpan(0, 4096)), "a block where it has none"),
        ("nothing of the kind", "an invalid place of numbers"),
    ],
)
def test_a_place_that_cannot_be_is_refused(two: Neighbours, places: Any, says: str) -> None:
    two.blocks.house(numbers(1.5))
    header, _ = pack(Load(sender=A, what=numbers()))
    head = Frame(SHARED, 0, len(header), 0, 0).pack() + header + msgspec.msgpack.encode(places)
    two.a._link(B).socket.send(head)
    end = time.monotonic() + 5
    while not two.b.refusals.total and time.monotonic() < end:
        assert two.b.poll(0.01)[0] == []
    assert any(says in line for line in two.b.refusals.counts), list(two.b.refusals.counts)


def test_a_stranger_shares_no_memory() -> None:
    two = Neighbours()
    plain = ZmqTransport(B, {A: two.a.book[A], B: f"ipc://{two.place}/plain"}, limit=1 << 30)
    two.a.book = {A: two.a.book[A], B: plain.endpoint}
    two.a.lanes = None
    mine = two.blocks.house(numbers())
    two.send(mine, loan=True)
    end = time.monotonic() + 5
    while not plain.refusals.total and time.monotonic() < end:
        assert plain.poll(0.01)[0] == []
    assert any("does not share" in line for line in plain.refusals.counts)
    plain.close()
    two.close()


OWNER = """
import sys, time, msgspec, torch
from covey.engines.transport.shared.blocks import SharedBlocks
from covey.message import Address
from covey.vector import Vector
blocks = SharedBlocks(int(sys.argv[1]))
mine = blocks.house(Vector([torch.full((100_000,), 8.0)]))
places = blocks.place_tensors(Address("worker", 1), mine.parts, lent=True)
print(msgspec.msgpack.encode(places).hex(), flush=True)
time.sleep(60)
"""


def test_memory_outlives_its_owner() -> None:
    """What a role lent can be read though it was killed meanwhile; no file has a name that could stay behind."""
    segment = SharedSegment([A, B])
    file = segment.file(A)
    assert all(os.readlink(f"/proc/self/fd/{one}").startswith("/memfd:") for one in segment.files)
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(file)], pass_fds=[file], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout
        places = read_places(bytes.fromhex(owner.stdout.readline()), A)
        owner.kill()
    header = read_header(pack(Load(sender=A, what=numbers()))[0], 1 << 30, A)
    (tensor,) = HostMemory(B, segment).neighbours.tensors(header, places)
    assert bool((tensor == 8).all())
    for handle in (*segment.files, *segment.wakeups):
        os.close(handle)


def test_what_only_may_lie_there_leaves_room_for_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Vector([torch.arange(1000.0)])
    with tempfile.TemporaryFile() as file:
        blocks = shared_blocks.SharedBlocks(file.fileno())
        monkeypatch.setattr(shared_blocks, "spare_memory", lambda: 6000)
        assert blocks.house_if_ample(state) is state and not blocks.full
        monkeypatch.setattr(shared_blocks, "spare_memory", lambda: 60_000)
        assert blocks.house_if_ample(state).parts[0].equal(state.parts[0]) and blocks.lasting
