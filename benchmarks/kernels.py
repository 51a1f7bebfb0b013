"""How fast are the compression kernels, beside the same in plain PyTorch, in one run?

On the CPU: GB/s of float32 input on one thread, with error feedback. On a GPU, if there is one: the share of the card's
own copy speed, counting the bytes of the passes that the definition needs, and the ratio to eager PyTorch.
`python -m benchmarks.kernels`, or for a GPU alone with sizes in MB and blocks `... --gpu 64,1024 512,0`. Needs PyTorch
and numba or Triton, nothing else. Whether what is timed is right: `python -m tests.exchange.kernel_laws cuda`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covey.exchange import kernels
from covey.exchange.kernels import plain, plain_choice, plain_levels

HOMES = (plain, plain_levels, plain_choice)


class Plain:
    """The plain form of every kernel."""

    def __getattr__(self, name: str) -> Any:
        return next(getattr(home, name) for home in HOMES if hasattr(home, name))


class Case(NamedTuple):
    """How to run it, and how many bytes a number its definition moves with block-wise and with one global scale."""

    run: Callable[[Any, Tensor, Tensor, int], Any]
    wire: float
    passes: int = 2  # with one scale for all: the first only reads x and the residual


CODECS = {
    "onebit": Case(lambda on, x, r, block: on.onebit_encode(x, r, block), 1 / 8),
    "twobit": Case(lambda on, x, r, block: on.twobit_encode(x, r, 0.5), 1 / 4),
    "int8": Case(lambda on, x, r, block: on.int8_encode(x, r, block, 1), 1),
    "int8 nearest": Case(lambda on, x, r, block: on.int8_encode(x, r, block, None), 1),
    "terngrad": Case(lambda on, x, r, block: on.terngrad_encode(x, r, block, 1, 0.0), 1 / 4),
    "terngrad clipped": Case(lambda on, x, r, block: on.terngrad_encode(x, r, block, 1, 2.5), 1 / 4),
    "qsgd l2": Case(lambda on, x, r, block: on.qsgd_encode(x, r, block, 127, 1, "l2"), 1),
    "qsgd max": Case(lambda on, x, r, block: on.qsgd_encode(x, r, block, 7, 1, "max"), 1),
    "fixed16": Case(lambda on, x, r, block: on.fixed16_encode(x, r, 12, 1), 2),
    "dorefa": Case(lambda on, x, r, block: on.dorefa_encode(x, r, block, 6, 1), 6 / 8),
    "natural": Case(lambda on, x, r, block: on.natural_encode(x, r, 1), 9 / 8),
}
CHOICES = {
    "select 1 %": Case(lambda on, x, r, block: on.select(x, r, 3.6428), 0.08, 1),
    "topk 1 %": Case(lambda on, x, r, block: on.topk(x, r, x.numel() // 100), 0.08),
    "topk 0.1 %": Case(lambda on, x, r, block: on.topk(x, r, x.numel() // 1000), 0.008),
    "mstopk 1 %": Case(lambda on, x, r, block: on.mstopk(x, r, x.numel() // 100, 30, 1), 0.08),
}
FAST = {name: CODECS[name] for name in ("onebit", "int8", "terngrad", "terngrad clipped", "qsgd l2", "qsgd max")}
GLOBAL = {"twobit", "fixed16", "natural"}  # they have no scale to choose


DECODERS: dict[str, Callable[[Any, Any, Tensor, int], Any]] = {
    "onebit": lambda on, wire, out, block: on.onebit_decode(*wire, block, out, 0.5),
    "twobit": lambda on, wire, out, block: on.twobit_decode(wire, 0.5, out, 0.5),
    "int8": lambda on, wire, out, block: on.int8_decode(*wire, block, out, 0.5),
    "terngrad": lambda on, wire, out, block: on.terngrad_decode(*wire, block, out, 0.5),
    "qsgd l2": lambda on, wire, out, block: on.qsgd_decode(*wire, block, 127, out, 0.5),
    "fixed16": lambda on, wire, out, block: on.fixed16_decode(wire, 12, out, 0.5),
    "dorefa": lambda on, wire, out, block: on.dorefa_decode(*wire, block, 6, out, 0.5),
    "natural": lambda on, wire, out, block: on.natural_decode(*wire, out, 0.5),
}


def seconds(work: Callable[[Tensor], Any], residual: Tensor, times: int) -> float:
    """The median of processor time, so that a busy machine does not count; every time from the same residual."""
    spans, own = [], residual.clone()
    for _ in range(times + 1):
        own.copy_(residual)
        start = time.process_time()
        work(own)
        spans.append(time.process_time() - start)
    return statistics.median(spans[1:])


def beside_plain(name: str, case: Case, x: Tensor, residual: Tensor, block: int, times: int) -> dict[str, float]:
    """GB/s of float32, encoding with error feedback and decoding into a sum; and the ratio to the plain form."""
    forms, gigabytes, row = (kernels, Plain()), 4e-9 * x.numel(), {}
    fast, slow = (seconds(lambda own, on=on: case.run(on, x, own, block), residual, times) for on in forms)
    row |= {"encode GB/s": round(gigabytes / fast, 2), "encode x plain": round(slow / fast, 1)}
    if name in DECODERS:
        wire, back = case.run(kernels, x, residual.clone(), block), DECODERS[name]
        fast, slow = (seconds(lambda own, on=on: back(on, wire, own, block), residual, times) for on in forms)
        row |= {"decode GB/s": round(gigabytes / fast, 2), "decode x plain": round(slow / fast, 1)}
    return row


def on_cpu(count: int = 4_000_000, times: int = 5) -> dict[str, dict[str, float]]:
    """On one thread."""
    threads, rows = torch.get_num_threads(), {}
    torch.set_num_threads(1)
    x, residual = torch.randn(count), torch.randn(count)
    for name, case in (CODECS | CHOICES).items():
        for block in (0,) if name in GLOBAL or name in CHOICES else (512, 0):
            label = f"{name}, block {block}" if block else name
            rows[label] = beside_plain(name, case, x, residual, block, times)
    torch.set_num_threads(threads)
    return rows


@contextmanager
def as_one_would_write_it() -> Iterator[Any]:
    """The plain form with PyTorch's own generator and without looking for NaN: the fastest eager form."""
    before = {
        (home, name): getattr(home, name) for home in HOMES for name in ("uniform", "wanted") if hasattr(home, name)
    }
    for home, name in before:
        setattr(home, name, {"uniform": _rand, "wanted": _sum}[name])
    yield Plain()
    for (home, name), function in before.items():
        setattr(home, name, function)


def _rand(seed: int, count: int, device: torch.device) -> Tensor:
    return torch.rand(count, device=device)


def _sum(x: Tensor, residual: Tensor | None) -> Tensor:
    return x if residual is None else x + residual


class Unchecked:
    """The GPU's kernels without waiting for their verdict, to time the device alone."""

    def __getattr__(self, name: str) -> Any:
        from covey.exchange.kernels.gpu import choosing, levels

        if hasattr(levels, name):
            return partial(getattr(levels, name), check=False)
        return partial(getattr(choosing, name), wait=False)


def device_ms(work: Callable[[], Any], before: Callable[[], Any], times: int) -> float:
    """The median between two events on the device, with a cold cache, all that is to be done being known there."""
    spans = []
    for _ in range(times + 2):
        before()
        torch.cuda._sleep(2_000_000)  # cycles, a millisecond: else a short one is the time of launching
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        spans.append(start.elapsed_time(end))
    return statistics.median(spans[2:])


def on_gpu(megabytes: Sequence[int] = (64, 256, 1024, 4096), blocks: Sequence[int] = (512, 4096, 0)) -> dict[str, Any]:
    """Per size and codec: ms on the device, share of the copy's speed, ms of a whole call, and both against eager."""
    flush = torch.empty(2**28, device="cuda")
    rows: dict[str, Any] = {}
    for size in megabytes:
        rows |= of_size(size, blocks, flush)
    return rows


def of_size(size: int, blocks: Sequence[int], flush: Tensor) -> dict[str, Any]:
    count, times = size * 2**18, 20 if size < 1024 else 8
    x, first = torch.randn(count, device="cuda"), torch.randn(count, device="cuda")
    residual = first.clone()

    def ready() -> None:
        residual.copy_(first)
        flush.zero_()

    copy = device_ms(lambda: residual.copy_(x), ready, times)
    speed = 8 * count / copy
    rows: dict[str, Any] = {f"copy {size} MB": {"ms": round(copy, 4), "TB/s": round(speed / 1e9, 2)}}
    for name, case in (FAST | CHOICES).items():
        for block in (0,) if name in CHOICES else blocks:
            passes = 1 if block else case.passes
            moved = (12 + 8 * (passes - 1) + case.wire) * count
            run = partial(case.run, x=x, r=residual, block=block)
            own, whole = (device_ms(partial(run, on), ready, times) for on in (Unchecked(), kernels))
            with as_one_would_write_it() as eager:
                other = device_ms(partial(run, eager), ready, 3)
            rows[f"{name} {size} MB block {block}"] = {
                "ms": round(own, 4), "of copy": round(moved / own / speed, 2), "x eager": round(other / own, 1),
                "whole ms": round(whole, 4), "whole x eager": round(other / whole, 1),
            }  # fmt: skip
    return rows


def measure() -> dict[str, Any]:
    return {"cpu": on_cpu()} | ({"gpu": on_gpu()} if torch.cuda.is_available() else {})


def main(arguments: list[str]) -> None:
    rows = on_gpu(*(tuple(map(int, part.split(","))) for part in arguments[1:])) if "--gpu" in arguments else measure()
    print(json.dumps(rows).replace("}, ", "},\n"))


if __name__ == "__main__":
    main(sys.argv[1:])
