# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Triton: launches whose programs wait for each other, and all numbers that reach a threshold in one of them.

A cooperative launch keeps all its programs on the device at once, so that several passes over the numbers take one
launch. Counters and tables lie in a workspace that is zero before each launch; the last program to leave zeroes it.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from covey.exchange.kernels.gpu_rows import INFINITE, sized

TABLE, EACH = 1024, 2048  # words of the workspace: tables of counts, then what each program has found, per kind
KINDS = 9
REGISTERS = 65536  # of each processor of a device
TESTED = ("3.6",)  # versions of Triton whose compiled kernels are launched directly
MANY, TOPS = tl.constexpr(32), tl.constexpr(32 + EACH)  # in the workspace
ROWS, WIDE = tl.constexpr(16), tl.constexpr(32)


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


class Workspace(NamedTuple):
    """Of one thread on one stream of a device: zeros for counting, and words that a launch tells the processor."""

    zeros: Tensor
    told: Tensor

    @staticmethod
    def of(x: Tensor) -> Workspace:
        if not x.is_cuda:  # Triton's interpreter
            return _new(x)
        key = x.device.index, _stream(x), threading.get_ident()
        if key not in _workspaces:
            _workspaces[key] = _new(x)
        return _workspaces[key]


_workspaces: dict[tuple[int, int, int], Workspace] = {}
_launchers: dict[tuple[Any, ...], Any] = {}


def _new(x: Tensor) -> Workspace:
    zeros = torch.zeros(32 + TABLE + KINDS * EACH, dtype=torch.int32, device=x.device)
    return Workspace(zeros, torch.zeros(4, dtype=torch.int32, pin_memory=x.is_cuda))


def _stream(x: Tensor) -> int:
    stream: int = triton.runtime.driver.active.get_current_stream(x.device.index)
    return stream


def programs_for(x: Tensor, tiles: int, on_each: int) -> int:
    """As many as the device holds at once, on each of its processors this many."""
    if not x.is_cuda:
        return 1  # the interpreter runs one after the other
    return max(1, min(tiles, EACH, on_each * _processors(x.device.index)))


def _processors(device: int) -> int:
    if device not in _counted:
        _counted[device] = torch.cuda.get_device_properties(device).multi_processor_count
    return _counted[device]


_counted: dict[int, int] = {}


def launch(
    kernel: Any, programs: int, tensors: tuple[Tensor, ...], n: int, numbers: tuple[int, ...],
    constants: tuple[Any, ...], warps: int, on_each: int,
) -> None:  # fmt: skip
    """Launch programs that wait for each other; the second time without asking again what was compiled."""
    x = tensors[0]
    if not x.is_cuda:
        kernel[(programs,)](*tensors, n, *numbers, *constants)
        return
    places = [tensor.data_ptr() for tensor in tensors]
    even = *(place % 16 == 0 for place in places), n % 16 == 0, n == 1  # what Triton compiles for
    key = kernel.__name__, x.device.index, programs, constants, warps, even
    launcher = _launchers.get(key)
    if launcher is None:
        most = REGISTERS // (32 * warps * on_each) // 8 * 8
        compiled = kernel[(programs,)](
            *tensors, n, *numbers, *constants, num_warps=warps, launch_cooperative_grid=True, maxnreg=min(most, 255)
        )
        if triton.__version__.startswith(TESTED):
            _launchers[key] = compiled[(programs, 1, 1)]
        return
    launcher(*places, n, *numbers, *constants, stream=_stream(x))


# -- a threshold -------------------------------------------------------------------------------------------------------


@triton.jit
def most_and_sum(most, count, other_most, other_count):
    return tl.maximum(most, other_most), count + other_count


@triton.jit
def streamed(x, r, at, mask, KEEP: tl.constexpr):
    """v, of numbers that are not read again soon."""
    v = tl.load(x + at, mask=mask, other=0.0, eviction_policy="evict_first")
    if KEEP:
        v += tl.load(r + at, mask=mask, other=0.0)
    return v


@triton.jit(do_not_specialize=["bits", "room", "tiles"])
def choose(
    x, r, out, scratch, work, told, n, bits, room, tiles, KEEP: tl.constexpr, TILE: tl.constexpr, ALL: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """v goes to the residual, or 0 of what leaves; a tile with NaN or infinity stays as it is, and gives nothing.

    A program goes over tiles in a row. It puts what it chooses into parts of a pool, which it takes as it needs them.
    Then the programs wait for each other, and each copies what is its own to its place in the order of the numbers.

    `scratch` holds how many each tile chose, where they begin, its largest size, and the pool's indices and values;
    tiles that come after the pool is full are counted alone. `told` is how many reach, and the largest size.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    first, last = share(tiles, program, programs)
    tile_many, tile_base, tile_top = scratch, scratch + tiles, scratch + 2 * tiles
    indices = scratch + 3 * tiles
    pool = 2 * room + programs * CHUNK  # enough for `room`, also where parts are left that are too short
    values = (indices + pool).to(tl.pointer_type(tl.float32), bitcast=True)
    every, most, free, left = first * 0, first * 0, first * 0, first * 0
    for tile in range(first, last):
        at = tile * TILE + tl.arange(0, TILE)
        mask = at < n
        v = streamed(x, r, at, mask, KEEP)
        reach = (sized(v) >= bits) & mask
        top, here = tl.reduce((sized(v), reach.to(tl.int32)), 0, most_and_sum)
        reach &= top < INFINITE
        here = tl.where(top < INFINITE, here, 0)
        if here > left:
            left = tl.maximum(here, CHUNK)
            free = tl.atomic_add(work + 1, left, sem="relaxed")
        base = free
        free += here
        left -= here
        reach &= free <= pool
        if KEEP:
            tl.store(r + at, tl.where(reach, 0.0, v), mask=mask & (top < INFINITE))
        to = base + tl.cumsum(reach.to(tl.int32), 0) - 1
        tl.store(indices + to, at, mask=reach)
        tl.store(values + to, v, mask=reach)
        tl.store(tile_many + tile, here)
        tl.store(tile_base + tile, base)
        tl.store(tile_top + tile, top)
        every += here
        most = tl.maximum(most, top)
    tl.store(work + MANY + program, every)
    tl.store(work + TOPS + program, most)
    meet(work, programs)
    lane = tl.arange(0, ALL)
    counts = tl.load(work + MANY + lane, mask=lane < programs, other=0)
    every = tl.sum(counts)
    if program == 0:
        tl.store(told, every)
        tl.store(told + 1, tl.max(tl.load(work + TOPS + lane, mask=lane < programs, other=0)))
    if every <= room:
        before = tl.sum(tl.where(lane < program, counts, 0))
        out_values = (out + room).to(tl.pointer_type(tl.float32), bitcast=True)
        for row in range(first, last, ROWS):
            own = row + tl.arange(0, ROWS)
            each = tl.load(tile_many + own, mask=own < last, other=0)
            begin = tl.load(tile_base + own, mask=own < last, other=0)[:, None]
            end = (before + tl.cumsum(each, 0) - each)[:, None]
            before += tl.sum(each)
            for column in range(0, tl.max(each), WIDE):
                lanes = column + tl.arange(0, WIDE)[None, :]
                mine = lanes < each[:, None]
                tl.store(out + end + lanes, tl.load(indices + begin + lanes, mask=mine, other=0), mask=mine)
                tl.store(out_values + end + lanes, tl.load(values + begin + lanes, mask=mine, other=0.0), mask=mine)
    leave(work, 2 * programs, 2)
