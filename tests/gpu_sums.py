"""Sums of processes on one GPU, by hand: `PYTHONPATH=src python -m tests.gpu_sums [members] [megabytes]`.

Every member has the bits that the processor finds, for several dtypes, shares, and tensors that stay or do not; who
brings NaN is named; a role that is killed in a sum leaves nobody hanging and no memory mapped; a handle that is no
handle, and an offset that lies outside, are refused. Needs a CUDA device; part of `tests.on_gpu`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from itertools import count

import torch
from torch import Tensor

from covey.address import Address
from covey.engines.gpu.cuda_driver import CudaRefused
from covey.engines.gpu.gpu_memory import GpuPlace, GpuPlaces
from covey.engines.process.role.add_up import add_up
from covey.engines.process.role.native_sums import SumDone
from covey.engines.process.role.shared_sum import SharedSum
from covey.engines.transport.shared.memory import HostMemory
from covey.engines.transport.shared.segment import SharedSegment
from covey.errors import WireError
from covey.exchange.collectives.sums import ring
from covey.program import Collective
from covey.strategy import workers
from covey.vector import Vector

PATIENCE = 60.0
KINDS = (torch.float32, torch.bfloat16, torch.float16, torch.int64)


def numbers(rank: int, length: int, dtype: torch.dtype, turn: int) -> Tensor:
    chance = torch.Generator().manual_seed(100 * turn + rank)
    return (100 * torch.randn(length, generator=chance)).to(dtype)


def finished(sums: SharedSum, wanted: Collective) -> SumDone | None:
    """How a sum ended; None if it did not in good time."""
    assert sums.take(None, wanted)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if done := sums.advance():
            return done[0]
    return None


class Member:
    """One process of the sums."""

    def __init__(self, rank: int, group: tuple[Address, ...], segment: SharedSegment) -> None:
        self.rank, self.group, self.me = rank, group, group[rank]
        self.memory = HostMemory(self.me, segment)
        self.sums = SharedSum(self.me, self.memory)
        torch.zeros(1, device="cuda")

    def sum(self, vector: Vector, share: float = 1.0) -> None:
        done = finished(self.sums, Collective(vector, self.group, ring, share))
        assert done is not None and done.came and done.error is None, done

    def alike(self) -> None:
        """The bits of the processor."""
        for turn, (dtype, lasting, equal) in enumerate((d, k, e) for d in KINDS for k in (True, False) for e in (1, 0)):
            if dtype == torch.int64 and not equal:
                continue
            lengths = (1_000_003, 77, 300_000)
            everybody = range(len(self.group))
            one = 1.0 if dtype == torch.int64 else 1 / len(self.group)
            shares = [one if equal else 1 / (rank + 2) for rank in everybody]
            given = [[numbers(rank, length, dtype, turn) for length in lengths] for rank in everybody]
            mine = Vector(part.cuda() for part in given[self.rank])
            if lasting:
                mine = self.memory.house(mine)
            self.sum(mine, shares[self.rank])
            for place, part in enumerate(mine.parts):
                total = torch.empty(lengths[place], dtype=dtype)
                add_up([one[place] for one in given], shares, total, self.group)
                assert torch.equal(part.cpu(), total), (dtype, lasting, equal, place)
        assert not self.memory.blocks.blocks, "it went through the processor's memory"

    def mixed(self) -> None:
        """One member's numbers lie in the processor's memory."""
        vector = Vector([torch.full((500_000,), float(self.rank), device="cpu" if self.rank == 1 else "cuda")])
        self.sum(vector)
        assert bool((vector.parts[0] == sum(range(len(self.group)))).all())

    def unopened(self) -> None:
        """One member cannot open what the others offer: all sum by the processor, also the next time."""
        whole = self.memory.gpu.tensors
        if self.rank == 1:
            def refuse(who: Address, told: GpuPlaces, parts: object) -> list[Tensor]:
                raise CudaRefused("not here")
            self.memory.gpu.tensors = refuse  # type: ignore[method-assign,assignment]
        self.memory.gpu._offered.clear()
        for _ in range(2):
            vector = Vector([torch.full((500_000,), float(self.rank), device="cuda")])
            self.sum(vector)
            assert bool((vector.parts[0] == sum(range(len(self.group)))).all())
        assert self.group in self.memory.gpu.apart
        self.memory.gpu.tensors = whole  # type: ignore[method-assign]
        self.memory.gpu.apart.clear()

    def hostile(self) -> None:
        """Handles and offsets of others are checked."""
        part = torch.zeros(1000, device="cuda")
        other = self.group[1 - min(self.rank, 1)]
        known = next(iter(self.memory.gpu._mapped[other]))
        size = self.memory.gpu._mapped[other][known].size
        for offset in (-4, 2, size - 3996, 1 << 60):
            refused(partial(self.read, other, known, offset, part))
        self.read(other, known, size - 4000, part).sum().item()
        refused(partial(self.read, other, b"short", 0, part))
        for odd in (bytes(64), b"\xff" * 64):
            try:
                self.read(other, odd, 0, part)
            except CudaRefused:
                continue
            raise AssertionError("a handle that is none was opened")
        torch.zeros(1, device="cuda").item()  # the GPU still works

    def read(self, who: Address, handle: bytes, offset: int, part: Tensor) -> Tensor:
        return self.memory.gpu.tensors(who, GpuPlaces("", [GpuPlace(handle, offset)], False), [part])[0]

    def spoilt(self) -> None:
        vector = Vector([torch.ones(500_000, device="cuda")])
        if self.rank == 0:
            vector.parts[0][7] = float("nan")
        done = finished(self.sums, Collective(vector, self.group, ring)) if self.rank == 0 else None
        if self.rank:
            self.sums.take(None, Collective(vector, self.group, ring))
            until = time.monotonic() + 3
            while time.monotonic() < until and done is None:
                done = next(iter(self.sums.advance()), None)
        assert self.rank or "worker 0 brought NaN" in str(done and done.error), done

    def timed(self, megabytes: int) -> float:
        vector = self.memory.house(Vector([torch.ones(megabytes * 250_000, device="cuda")]))
        times = []
        for _ in range(12):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            self.sum(vector, 1 / len(self.group))
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - begin))
        if self.rank == 0:
            least, most = min(times[2:]), max(times[2:])
            print(f"{len(self.group)} members, {megabytes} MB: {least:.2f} to {most:.2f} ms", flush=True)
        return min(times[2:])

    def killed(self) -> None:
        """The last member dies when it has offered its numbers and the others have mapped them."""
        vector = self.memory.house(Vector([torch.ones(100_000_000, device="cuda")]))
        self.sum(vector)
        self.sums.take(None, Collective(vector, self.group, ring))
        if self.rank == len(self.group) - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            assert not self.sums.advance()
        self.sums.reset()
        free = torch.cuda.mem_get_info()[0]
        self.memory.renew(self.group[-1])
        self.memory.gpu.place([torch.ones(50_000, device="cuda")], self.group)
        time.sleep(2)
        assert not self.memory.gpu._mapped.get(self.group[-1])
        gained = (torch.cuda.mem_get_info()[0] - free) / 1e6
        print(f"{self.me}: {gained:.0f} MB free again", flush=True)
        assert self.rank or gained > 300, gained


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except WireError:
        return
    raise AssertionError("not refused")


def run(member: Member, megabytes: int) -> None:
    member.alike()
    member.mixed()
    member.hostile()
    member.timed(megabytes)
    member.unopened()
    member.killed()


def main(size: int = 2, megabytes: int = 404) -> int:
    """Fork the members before anything touches the GPU; how many failed."""
    group = tuple(workers(size))
    broken = 0
    for what in (lambda one: run(one, megabytes), Member.spoilt):
        segment, children = SharedSegment(group), dict[int, int]()
        for rank in range(size):
            if not (child := os.fork()):
                try:
                    what(Member(rank, group, segment))
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            children[child] = rank
        for _ in count():
            if not children:
                break
            child, status = os.wait()
            rank = children.pop(child)
            meant = what is not Member.spoilt and rank == size - 1 and os.WIFSIGNALED(status)
            broken += bool(status) and not meant
    print("BROKEN sums" if broken else f"sums of {size} processes: the processor's bits", flush=True)
    return broken


if __name__ == "__main__":
    sys.exit(min(1, main(*map(int, sys.argv[1:]))))
