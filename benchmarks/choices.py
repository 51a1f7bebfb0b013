"""How fast are codecs on a GPU, as whole calls, and top-k for numbers of any distribution?

`python -m benchmarks.choices [megabytes] [names] [rounds]` times codecs and a threshold beside eager PyTorch, and
`topk` with a residual beside `torch.topk` of the same sizes of sums, which are known before or are added in the call;
of the distributions named, or of `none`. Calls take turns, from a cold cache, by the wall clock; each ends when the
device is done. Needs a CUDA device.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels import CHOICES, FAST, as_one_would_write_it
from covey.exchange import kernels

SHARES = (0.001, 0.01, 0.1)


def distributions(count: int) -> dict[str, Callable[[], Tensor]]:
    """Sums of every kind, each made when it is asked for."""

    def normal() -> Tensor:
        return torch.randn(count, device="cuda")

    def uniform() -> Tensor:
        return torch.rand(count, device="cuda")

    return {
        "normal": normal,
        "uniform": uniform,
        "bf16": lambda: normal().bfloat16().float(),
        "whole numbers": lambda: normal().mul(100).round(),
        "sorted up": lambda: normal().sort().values,
        "sorted down": lambda: normal().abs().sort(descending=True).values,
        "constant": lambda: torch.full((count,), -1.5, device="cuda"),
        "zeros": lambda: torch.zeros(count, device="cuda"),
        "signs": lambda: normal().sign(),
        "three values": lambda: uniform().mul(3).floor(),
        "powers of two": lambda: 2.0 ** (uniform() * 30).floor(),
        "half zeros": lambda: normal() * (uniform() < 0.5),
        "95 % zeros": lambda: normal() * (uniform() < 0.05),
        "99.95 % zeros": lambda: normal() * (uniform() < 0.0005),
        "heavy tails": lambda: (normal() / normal()).clamp(-1e30, 1e30),
        "heavier tails": lambda: torch.exp(20 * normal().clamp(-4, 4)),
        "denormal": lambda: normal() * 1e-40,
        "one outlier": lambda: normal().index_fill(0, torch.tensor([count // 3], device="cuda"), 1e30),
        "tiers": lambda: 100.0 * (uniform() < 0.012) + (uniform() < 0.02) + normal() / 1e4,
        "runs": lambda: normal()[: count // 4096].repeat_interleave(4096),
        "all exponents": lambda: (uniform() * 0x7F000000).int().view(torch.float32),
    }  # fmt: skip


class Race:
    """Calls that take turns on the same numbers."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.flush = rounds, torch.empty(2**26, device="cuda")

    def run(self, ready: Callable[[], Any], ways: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
        """Milliseconds of every call."""
        spans: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(self.rounds + 2):
            for way, call in ways.items():
                ready()
                self.flush.zero_()
                torch.cuda.synchronize()
                start = time.perf_counter()
                call()
                torch.cuda.synchronize()
                if number > 1:
                    spans[way].append(1e3 * (time.perf_counter() - start))
        return spans


def interval(mine: list[float], theirs: list[float]) -> list[float]:
    """The ratio of medians, and the least and most of eight parts of the calls."""
    parts = [statistics.median(theirs[n::8]) / statistics.median(mine[n::8]) for n in range(8)]
    return [round(statistics.median(theirs) / statistics.median(mine), 2), round(min(parts), 2), round(max(parts), 2)]


def top(race: Race, name: str, v: Tensor) -> dict[str, Any]:
    """Of one distribution: milliseconds, and the speed of covey relative to its rivals."""
    part = torch.randn_like(v) * v.abs().mean() if name == "normal" else torch.zeros_like(v)
    x, residual, sizes, row = v - part, part.clone(), v.abs(), {}
    for share in SHARES:
        k = int(v.numel() * share)
        spans = race.run(
            lambda: residual.copy_(part),
            {
                "covey": lambda k=k: kernels.topk(x, residual, k),
                "torch.topk": lambda k=k: torch.topk(sizes, k),
                "unsorted": lambda k=k: torch.topk(sizes, k, sorted=False),
                "with the sum": lambda k=k: torch.topk((x + residual).abs(), k),
            },
        )
        row[f"{share:.1%}"] = {
            "ms": {way: round(statistics.median(each), 3) for way, each in spans.items()},
            "ratio": {way: interval(spans["covey"], each) for way, each in spans.items() if way != "covey"},
        }
    return row


def codecs(race: Race, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each codec: milliseconds, and the speed of covey relative to eager PyTorch."""
    x, part = torch.randn(2, count, device="cuda")
    residual = part.clone()
    cases = [(f"{name}, block {block}", case, block) for name, case in FAST.items() for block in (0, 512)]
    for title, case, block in [*cases, ("a threshold, 1 %", CHOICES["select 1 %"], 0)]:
        with as_one_would_write_it() as eager:
            both = {"covey": kernels, "eager": eager}
            ways = {way: partial(case.run, on, x, residual, block) for way, on in both.items()}
            spans = race.run(lambda: residual.copy_(part), ways)
        ms = {way: round(statistics.median(each), 3) for way, each in spans.items()}
        yield title, {"ms": ms, "ratio": interval(spans["covey"], spans["eager"])}


def main(megabytes: int = 64, names: str = "", rounds: int = 24) -> None:
    count, race = megabytes * 2**18, Race(rounds)
    torch.manual_seed(0)
    for title, row in codecs(race, count):
        print(json.dumps({title: row}), flush=True)
    for name, made in distributions(count).items():
        if not names or name in names.split(","):
            print(json.dumps({f"{name} {megabytes} MB": top(race, name, made())}), flush=True)


if __name__ == "__main__":
    main(*(kind(word) for kind, word in zip((int, str, int), sys.argv[1:], strict=False)))
