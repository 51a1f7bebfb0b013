# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Triton: launches that cost little, tell the processor a word while they go on, and may wait for each other.

A cooperative launch keeps all its programs on the device at once, so that several passes over the numbers take one
launch. Counters and tables lie in a workspace that is zero before each launch; the last program to leave zeroes it.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TABLE, EACH = 1024, 2048  # words of the workspace: tables of counts, then what each program has found, per kind
KINDS = 9
REGISTERS = 65536  # of each processor of a device
TESTED = ("3.6",)  # versions of Triton whose compiled kernels are launched directly
LOOKS = 2000  # at the word, about 0.2 ms, before the thread sleeps and lets others have the interpreter
REFUSED = 0x7FFFFFFF
REFUSAL, PROGRAMS = tl.constexpr(REFUSED), tl.constexpr(2)  # in the workspace: how many are done, two words
EXACT = {"enable_fp_fusion": False}  # a*b+c in two roundings, as on the CPU: the codes are the same


@triton.jit
def meet(counter, goal):
    """Wait until `goal` programs, one for each call so far, have come."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="acq_rel")
    while tl.atomic_add(counter, 0, sem="acquire") < goal:
        pass
    tl.debug_barrier()


@triton.jit
def leave(work, goal, ZEROED: tl.constexpr):
    """The last program zeroes the first words of the workspace."""
    tl.debug_barrier()
    if tl.atomic_add(work, 1, sem="acq_rel") == goal - 1:
        for first in range(0, ZEROED, 1024):
            lane = first + tl.arange(0, 1024)
            tl.store(work + lane, tl.zeros((1024,), tl.int32), mask=lane < ZEROED)


@triton.jit
def share(tiles, program, programs):
    """The tiles of a program, in a row."""
    first = tiles.to(tl.int64) * program // programs
    last = tiles.to(tl.int64) * (program + 1) // programs
    return first.to(tl.int32), last.to(tl.int32)


@triton.jit
def tell(told, turn, value):
    """A word to the processor, which knows by the turn that it is this launch's."""
    tl.store(told, (turn.to(tl.int64) << 32) | value.to(tl.int64), cache_modifier=".wt")


@triton.jit
def report(work, told, turn, refused):
    """Programs that do not wait for each other: the last one tells whether any has refused."""
    done = (work + PROGRAMS).to(tl.pointer_type(tl.int64), bitcast=True)
    mine = refused.to(tl.int64) << 32
    before = tl.atomic_add(done, mine + 1, sem="relaxed")
    if (before & 0xFFFFFFFF) == tl.num_programs(0) - 1:
        tl.store(done, (turn * 0).to(tl.int64))
        tell(told, turn, tl.where(((before + mine) >> 32) > 0, REFUSAL, 0))


class LaunchShape(NamedTuple):
    """The numbers of a tile, the warps of a program and the programs on each processor of the device."""

    tile: int
    warps: int
    on_each: int


class Workspace:
    """Of one thread on one stream of a device: zeros for counting, and the word that a launch tells the processor."""

    def __init__(self, x: Tensor, stream: int) -> None:
        self.zeros = torch.zeros(32 + TABLE + KINDS * EACH, dtype=torch.int32, device=x.device)
        self.told = torch.zeros(1, dtype=torch.int64, pin_memory=x.is_cuda)
        self.stream, self.turn = stream, 0
        self.places = self.zeros.data_ptr(), self.told.data_ptr()
        self._word = memoryview(self.told.numpy())  # type: ignore[arg-type]

    @staticmethod
    def of(x: Tensor) -> Workspace:
        if not x.is_cuda:  # Triton's interpreter
            return Workspace(x, 0)
        index = x.device.index
        key = index, triton.runtime.driver.active.get_current_stream(index), threading.get_ident()
        found = _workspaces.get(key)
        if found is None:
            found = _workspaces[key] = Workspace(x, key[1])
        return found

    def answer(self) -> int:
        """What the last launch has told; the device may go on, and later work on its stream waits for it."""
        for _ in range(LOOKS):
            told: int = self._word[0]
            if told >> 32 == self.turn:
                return told & 0xFFFFFFFF
        if self.zeros.is_cuda:
            torch.cuda.current_stream(self.zeros.device).synchronize()
        told = self._word[0]
        assert told >> 32 == self.turn, "a kernel ended and told nothing"
        return told & 0xFFFFFFFF


_workspaces: dict[tuple[int, int, int], Workspace] = {}
_launchers: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


class CooperativeShape(NamedTuple):
    """How many tiles there are, how many programs the device holds at once for them, and a power of two from there."""

    tiles: int
    programs: int
    covered: int

    @staticmethod
    def of(x: Tensor, shape: LaunchShape) -> CooperativeShape:
        return _shape(x.numel(), x.device.index if x.is_cuda else None, shape)


@lru_cache(maxsize=1024)
def _shape(count: int, device: int | None, shape: LaunchShape) -> CooperativeShape:
    assert count < 2**31 - shape.tile, f"{count} numbers at once: at most 2^31 - {shape.tile} fit these kernels"
    tiles, programs = -(-count // shape.tile), 1  # the interpreter runs one after the other
    if device is not None:
        each = torch.cuda.get_device_properties(device).multi_processor_count
        programs = max(1, min(tiles, EACH, shape.on_each * each))
    return CooperativeShape(tiles, programs, max(32, 1 << (programs - 1).bit_length()))


def launch(
    kernel: Any, programs: int, tensors: tuple[Tensor, ...], workspace: Workspace, n: int, numbers: tuple[float, ...],
    constants: tuple[Any, ...], together: LaunchShape | None = None,
) -> None:  # fmt: skip
    """A kernel of (tensors, workspace, word, turn, n, numbers, constants); the second time without asking Triton.

    Its programs may wait for each other if they are launched `together`. Nothing is compiled for certain `numbers`.
    """
    x = tensors[0]
    workspace.turn = turn = workspace.turn % REFUSED + 1
    if not x.is_cuda:
        kernel[(programs,)](*tensors, workspace.zeros, workspace.told, turn, n, *numbers, *constants)
        return
    places = [tensor.data_ptr() for tensor in tensors]
    even = [place % 16 == 0 for place in places]  # what Triton compiles for
    types = [tensor.dtype for tensor in tensors]
    key = kernel.__name__, x.device.index, constants, together, n % 16 == 0, n == 1, *even, *types
    found = _launchers.get(key)
    if found is None:
        found = _compiled(kernel, programs, tensors, workspace, n, numbers, constants, together)
        if found is not None:
            _launchers[key] = found
        return
    call, rest = found
    call(programs, 1, 1, workspace.stream, *rest, *places, *workspace.places, turn, n, *numbers, *constants)


def _compiled(
    kernel: Any, programs: int, tensors: tuple[Tensor, ...], workspace: Workspace, n: int, numbers: tuple[float, ...],
    constants: tuple[Any, ...], together: LaunchShape | None,
) -> tuple[Any, tuple[Any, ...]] | None:  # fmt: skip
    """Compile and launch; and what launches it again, where that is known."""
    more: dict[str, Any] = dict(EXACT)
    if together is not None:
        most = REGISTERS // (32 * together.warps * together.on_each) // 8 * 8
        more |= {"launch_cooperative_grid": True, "maxnreg": min(most, 255), "num_warps": together.warps}
    made = kernel[(programs,)](
        *tensors, workspace.zeros, workspace.told, workspace.turn, n, *numbers, *constants, **more
    )
    run = made.run
    if not triton.__version__.startswith(TESTED) or run.global_scratch_size or run.profile_scratch_size:
        return None
    if triton.knobs.runtime.launch_enter_hook.calls:  # of a profiler
        return None
    rest = run.launch_cooperative_grid, run.launch_pdl, None, None, made.packed_metadata, None, None, None
    return run.launch, (made.function, *rest)
