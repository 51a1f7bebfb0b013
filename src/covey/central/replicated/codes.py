"""Codes for gradients: which parts each worker computes, what they count, and how exact the decoded sum can be.

Tandon et al. 2017: any n - s workers give the sum of all parts. Their factors for the cyclic code are random, and of no
use in float32 for tens of workers: here they are those of a cyclic code that decodes well (Raviv et al. 2018). What is
remembered is computed by NumPy: virtual time charges a role for its calls of torch, the first time as any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Scheme = Literal["blocks", "cyclic", "fractional"]

Matrix = NDArray[np.float64]

EXACT = 1e-5  # the largest relative error of a decoded sum of float32 gradients that is still called exact


@cache
def code(workers: int, stragglers: int, scheme: Scheme) -> Tensor:
    """Row i says which parts worker i computes, and how much each counts in what it sends."""
    sizes = blocks(workers, stragglers, scheme)
    whole, start = np.zeros((workers, workers)), 0
    for size in sizes:
        whole[start : start + size, start : start + size] = cyclic(size, min(stragglers, size - 1))
        start += size
    return torch.from_numpy(whole)


def blocks(workers: int, stragglers: int, scheme: Scheme) -> list[int]:
    """How many workers share parts with each other only.

    As each has more than `stragglers` workers, each can do without this many. Blocks of stragglers + 1 all compute the
    same parts, and decode best: so there are as many blocks as there can be, the larger ones last.
    """
    count = 1 if scheme == "cyclic" else max(1, workers // (stragglers + 1))
    return [workers // count + (block >= count - workers % count) for block in range(count)]


@cache
def cyclic(workers: int, stragglers: int) -> Matrix:
    """Worker i computes parts i to i + s, with the factors of a polynomial whose roots are on the unit circle.

    Its s roots are those of x^n = 1 that are nearest to -1 or, where these do not come in pairs, of x^n = -1:
    neighbours, so that any n - s rows have full rank, and real together. Parts count what makes all of them 1 possible.
    """
    frequencies = _frequencies(workers, stragglers)
    polynomial = np.ones(1, dtype=np.complex128)
    for frequency in frequencies:
        root = complex(math.cos(2 * math.pi * frequency / workers), math.sin(2 * math.pi * frequency / workers))
        polynomial = np.append(0, polynomial) - root * np.append(polynomial, 0)
    turned = -1.0 if (workers - stragglers) % 2 == 0 and stragglers else 1.0  # the sign of what passes the end
    matrix = np.zeros((workers, workers))
    for row in range(workers):
        for hop, factor in enumerate(polynomial.real.tolist()):
            matrix[row, (row + hop) % workers] = factor * (turned if row + hop >= workers else 1.0)
    matrix /= _reached(workers, frequencies)
    found: Matrix = matrix * (stragglers + 1) / np.abs(matrix).sum(1, keepdims=True)
    return found


def _frequencies(workers: int, stragglers: int) -> list[float]:
    return [workers / 2 + place - (stragglers - 1) / 2 for place in range(stragglers)]


def _waves(workers: int, frequencies: Sequence[float]) -> NDArray[np.complex128]:
    """The vectors that every row of the code is orthogonal to."""
    turns = 2 * math.pi / workers * np.array(frequencies, dtype=np.float64).reshape(-1, 1) * np.arange(workers)
    waves: NDArray[np.complex128] = np.exp(1j * turns)
    return waves


def _reached(workers: int, frequencies: Sequence[float]) -> Matrix:
    """The vector nearest to all ones that rows can be added up to; all ones where roots are of x^n = 1."""
    waves = _waves(workers, frequencies)
    found: Matrix = 1 - (waves.conj().T @ waves.sum(1)).real / workers
    return found


def decode(matrix: Tensor, rows: Sequence[int]) -> list[float]:
    """What the codes of these workers must count so that every part counts 1."""
    some = matrix[list(rows)].T
    ones = torch.ones(len(matrix), 1, dtype=torch.float64)
    factors = torch.linalg.lstsq(some, ones, driver="gelsd").solution
    assert torch.allclose(some @ factors, ones, atol=1e-8), f"the codes of {list(rows)} do not give the gradient"
    return [float(factor) for factor in factors.view(-1)]


@cache
def error(workers: int, stragglers: int, scheme: Scheme) -> float:
    """A bound on what decoding adds, over the parts' own sizes: every number sent is rounded, and counts its factor.

    Largest where the stragglers are neighbours, whose waves differ least.
    """
    return max(_error(size, min(stragglers, size - 1)) for size in set(blocks(workers, stragglers, scheme)))


@cache
def _error(workers: int, stragglers: int) -> float:
    """With one way to decode, `some`, and the ways to add up to nothing: of their sums, the one without those late."""
    matrix, rank = cyclic(workers, stragglers), workers - stragglers
    left, values, right = np.linalg.svd(matrix)
    some = left[:, :rank] @ (right[:rank].sum(1) / values[:rank])
    nothing = left[:, rank:]
    late = (np.arange(workers).reshape(-1, 1) + np.arange(stragglers)) % workers
    without = some - np.linalg.solve(nothing[late], some[late][..., None])[..., 0] @ nothing.T
    if not np.allclose(without @ matrix, 1, atol=1e-8):
        return math.inf
    counted = (np.abs(without) @ np.abs(matrix).sum(1)) / workers
    return float(counted.max()) * (stragglers + 2) * 2.0**-24


def tolerated(workers: int, stragglers: int, scheme: Scheme) -> int:
    """How many late workers a code of this many can do without and stay exact: fewer, where some have ended."""
    most = min(stragglers, workers - 1)
    fits = (
        late
        for late in range(most, 0, -1)
        if (scheme != "fractional" or workers % (late + 1) == 0) and error(workers, late, scheme) <= EXACT
    )
    return next(fits, 0)
