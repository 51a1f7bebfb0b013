"""select, topk and mstopk on a CPU: what lies around the compiled loops of `cpu_choice`.

For the k largest a sample says where to look, one pass gathers what may count, and few remain to judge.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from covey.exchange.kernels import cpu_choice, plain
from covey.exchange.kernels.compiled import shared
from covey.exchange.kernels.cpu_blocks import key_of
from covey.exchange.kernels.cpu_stats import F, U
from covey.exchange.kernels.plain_choice import draw

SAMPLING = key_of(0)


class AboveThreshold(NamedTuple):
    """What reaches a threshold, in index order, the largest size of all, and the sum of all sizes."""

    indices: Any
    values: Any
    top: float
    total: float


def _arrays(x: Tensor, residual: Tensor | None) -> tuple[Any, Any]:
    return x.numpy(), None if residual is None else residual.numpy()


def gather(a: Any, r: Any, threshold: float, zero: bool) -> AboveThreshold:
    """All |v| >= threshold in index order; v goes to the residual, with 0 there if `zero`."""
    bits, bad = F(threshold).view(U), np.zeros(-(-a.size // cpu_choice.TILE), np.uint8)
    runs = shared(lambda s, e: cpu_choice.gather(a, r, bits, zero, bad, s, e), a.size, cpu_choice.TILE)
    indices, values = runs[0][:2]
    if len(runs) > 1:
        indices, values = (np.concatenate([run[part] for run in runs]) for part in (0, 1))
    if bad.any():
        _ungather(a, r, indices, values, zero, bad)
        raise plain.refused()
    top = max(U(run[2]).view(F) for run in runs)
    return AboveThreshold(indices, values, float(top), sum(run[3] for run in runs))


def _ungather(a: Any, r: Any, indices: Any, values: Any, zero: bool, bad: Any) -> None:
    if r is None:
        return
    if zero:
        r[indices] = values
    for tile in np.flatnonzero(bad == 0):
        part = slice(tile * cpu_choice.TILE, (tile + 1) * cpu_choice.TILE)
        r[part] -= a[part]


def select(x: Tensor, residual: Tensor | None, threshold: float) -> tuple[Tensor, Tensor]:
    found = gather(*_arrays(x, residual), threshold, zero=True)
    return torch.from_numpy(found.indices), torch.from_numpy(found.values)


def topk(x: Tensor, residual: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Those above the k-th largest, then the first of its equals."""
    a, r = _arrays(x, residual)
    if k == 0 or k == a.size:
        return _all_or_none(x, residual, k)
    found, _ = _candidates(a, r, k)
    kth = _largest(found, k).view(U)
    sure, _ = cpu_choice.tally(found.values, U(kth + 1), kth)
    return _handed_out(found, r, U(kth + 1), kth, 0, k - sure, k)


def mstopk(x: Tensor, residual: Tensor | None, k: int, rounds: int, seed: int) -> tuple[Tensor, Tensor]:
    """Shi et al. 2021, whose bisection asks only whether more than k reach a threshold: the next size after the k
    largest answers that for every threshold at once."""
    a, r = _arrays(x, residual)
    if k == 0 or k == a.size:
        return _all_or_none(x, residual, k)
    found, floor = _candidates(a, r, k)
    upper, lower = bisect(float(_largest(found, k + 1)), rounds, found.total / a.size, found.top)
    if lower < floor:  # few rounds: the run may lie among numbers that were not gathered
        found = gather(a if r is None else r, None, lower, False)
    limits = F(upper).view(U), F(lower).view(U)
    sure, between = cpu_choice.tally(found.values, *limits)
    return _handed_out(found, r, *limits, draw(seed) % (between - (k - sure) + 1), k - sure, k)


def bisect(after: float, rounds: int, mean: float, top: float) -> tuple[float, float]:
    """The lowest threshold tried that at most k sizes reach, and the highest that more reach."""
    upper, lower, low, high = float("inf"), 0.0, 0.0, 1.0
    for _ in range(rounds):
        ratio = (low + high) / 2
        threshold = float(F(mean + ratio * (top - mean)))
        if after < threshold:
            upper, high = min(upper, threshold), ratio
        else:
            lower, low = max(lower, threshold), ratio
    return upper, lower


def _all_or_none(x: Tensor, residual: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    return select(x, residual, 0.0 if k else float("inf"))


def _floor(a: Any, r: Any, k: int, more: int) -> float:
    """A size that somewhat more than k numbers reach, by a sample; a poor one costs time, never a wrong number."""
    many = min(65536, a.size // 64)
    rank = k * many / a.size
    rank = int(more * (rank + 4 * rank**0.5 + 4))
    if many < 256 or rank >= many:
        return 0.0
    sizes = cpu_choice.sampled(a, r, many, SAMPLING)
    least = float(np.partition(sizes, many - rank)[many - rank])
    return least if least >= 0 else 0.0  # NaN: the pass will see it too


def _candidates(a: Any, r: Any, k: int) -> tuple[AboveThreshold, float]:
    """More than k numbers that hold the k largest; the residual now holds v."""
    floor, more = _floor(a, r, k, 1), 1
    found, whole = gather(a, r, floor, False), a if r is None else r
    while found.values.size <= k:
        more *= 4
        floor = _floor(whole, None, k, more)
        found = gather(whole, None, floor, False)
    return found, floor


def _largest(found: AboveThreshold, rank: int) -> Any:
    place = found.values.size - rank
    return np.partition(np.abs(found.values), place)[place]


def _handed_out(
    found: AboveThreshold, r: Any, upper: Any, lower: Any, start: int, need: int, k: int
) -> tuple[Tensor, Tensor]:
    indices, values = np.empty(k, np.int32), np.empty(k, F)
    cpu_choice.hand_out(found.indices, found.values, r, upper, lower, start, need, indices, values)
    return torch.from_numpy(indices), torch.from_numpy(values)
