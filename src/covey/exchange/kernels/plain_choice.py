"""Choosing the largest numbers, in plain PyTorch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from covey.exchange.kernels.chance import word
from covey.exchange.kernels.plain import wanted


def select(x: Tensor, residual: Tensor | None, threshold: float) -> tuple[Tensor, Tensor]:
    v = wanted(x, residual)
    return taken(v, residual, (v.abs() >= threshold).nonzero().view(-1))


def taken(v: Tensor, residual: Tensor | None, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The chosen numbers leave; the others wait in the residual."""
    values = v[chosen]
    if residual is not None:
        residual.copy_(v)
        residual[chosen] = 0
    return chosen.to(torch.int32), values


def topk(x: Tensor, residual: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    v = wanted(x, residual)
    size = v.abs()
    if k == 0 or v.numel() == 0:
        return taken(v, residual, torch.zeros(0, dtype=torch.int64, device=v.device))
    least = torch.topk(size, k, sorted=False).values.min()
    above = size > least
    tied = (size == least).nonzero().view(-1)[: k - int(above.sum())]
    above[tied] = True
    return taken(v, residual, above.nonzero().view(-1))


def mstopk(x: Tensor, residual: Tensor | None, k: int, rounds: int, seed: int) -> tuple[Tensor, Tensor]:
    v = wanted(x, residual)
    size = v.abs()
    if k == 0 or v.numel() == 0:
        return taken(v, residual, torch.zeros(0, dtype=torch.int64, device=v.device))
    upper, lower = bisect(size, k, rounds, float(size.mean()), float(size.max()))
    sure = size >= upper
    between = ((size >= lower) & ~sure).nonzero().view(-1)
    sure[run_of(between, k - int(sure.sum()), seed)] = True
    return taken(v, residual, sure.nonzero().view(-1))


def bisect(size: Tensor, k: int, rounds: int, mean: float, top: float) -> tuple[float, float]:
    """The lowest threshold tried that at most k reach, and the highest that more than k reach (Shi et al. 2021)."""
    upper, lower, low, high = float("inf"), 0.0, 0.0, 1.0
    for _ in range(rounds):
        ratio = (low + high) / 2
        threshold = float(np.float32(mean + ratio * (top - mean)))
        if int((size >= threshold).sum()) <= k:
            upper, high = min(upper, threshold), ratio
        else:
            lower, low = max(lower, threshold), ratio
    return upper, lower


def draw(seed: int) -> int:
    """24 random bits, for where a run starts."""
    return word(seed, 0) & 0xFFFFFF


def run_of(among: Tensor, count: int, seed: int) -> Tensor:
    """`count` of them in a row, from a random place."""
    start = draw(seed) % (among.numel() - count + 1)
    return among[start : start + count]
