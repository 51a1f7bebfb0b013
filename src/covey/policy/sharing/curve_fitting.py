"""What will the loss be, and how fast would a job be with other workers? Curves with non-negative coefficients."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Points = tuple[tuple[float, float], ...]
FEWEST = 4  # points of a curve that can be fitted
FLOORS = 24  # values tried for what the loss tends to
THRESHOLD = 0.01  # of the loss: who learns less than this from a tenth more samples has converged
POINTS = 24  # of a curve that are used
LARGEST = 1e50  # loss of a curve that is used, and 1 over the smallest: fourth powers are summed


def non_negative(matrix: Numbers, wanted: Numbers) -> Numbers:
    """The non-negative coefficients with the least squared error: the best over all sets of those that are not zero."""
    best, coefficients = float(wanted @ wanted), np.zeros(matrix.shape[1])
    for size in range(1, matrix.shape[1] + 1):
        for chosen in combinations(range(matrix.shape[1]), size):
            found = np.linalg.lstsq(matrix[:, chosen], wanted, rcond=None)[0]
            error = float(np.sum((matrix[:, chosen] @ found - wanted) ** 2))
            if (found >= 0).all() and error < best - 1e-12:
                best, coefficients = error, np.zeros(matrix.shape[1])
                coefficients[list(chosen)] = found
    return coefficients


def optimus_curve(points: Points) -> tuple[float, float, float] | None:
    """b0, b1 and b2 of loss = 1 / (b0 k + b1) + b2 (Peng et al. 2018); None where no curve can be fitted.

    Residuals of the second and third third of the history count 4 and 16 times.
    """
    if (thinned := _thinned(points)) is None:
        return None
    scale, shares = thinned
    b0, b1, b2 = _optimus_fit(shares)
    return b0 / scale, b1, b2


@lru_cache(maxsize=100_000)
def _optimus_fit(points: Points) -> tuple[float, float, float]:
    k, loss = np.array(points).T
    weights = np.repeat([1.0, 4.0, 16.0], np.diff([0, *(len(k) * np.array([1, 2, 3]) // 3)]))
    return _lowest(loss, weights, lambda floor: _inverse_line(k, loss, weights, floor))


def largest_fall(points: Points) -> float:
    """The largest fall of the loss between two points that follow each other."""
    return max((before[1] - after[1] for before, after in pairwise(points)), default=0.0)


def samples_to_converge(points: Points, done: float) -> float | None:
    """Samples from now on until a tenth more of them lowers the fitted loss by less than THRESHOLD of itself.

    None where no curve can be fitted, or where it never comes to that.
    """
    found = optimus_curve(points)
    return None if found is None else until_converged(found, done)


def until_converged(fitted: tuple[float, float, float], done: float) -> float | None:
    """The same, of a curve that was fitted."""
    b0, b1, b2 = fitted
    # 1 / (x + b1) - 1 / (1.1 x + b1) < THRESHOLD (1 / (x + b1) + b2), with x = b0 k, is: 0 < a x^2 + b x + c
    a, c = 1.1 * THRESHOLD * b2, THRESHOLD * b1 * (1 + b1 * b2)
    b = THRESHOLD * (1.1 * (1 + b1 * b2) + b1 * b2) - 0.1
    x, inside = b0 * done, b * b - 4 * a * c
    if a * x * x + b * x + c > 0 or inside <= 0:
        return done / 10  # whoever judges this has to see that tenth
    return (-b + math.sqrt(inside)) / (2 * a) / b0 - done if a > 0 and b0 > 0 else None


def _inverse_line(k: Numbers, loss: Numbers, weights: Numbers, floor: float) -> tuple[Numbers, tuple[float, float]]:
    """1 / (loss - floor) is a line in k. An error of it counts as one of the loss: times (loss - floor) squared."""
    above = loss - floor
    b0, b1 = _line(k, 1 / above, weights * above**4)
    return 1 / np.maximum(b0 * k + b1, 1e-9) + floor, (b0, b1)


def _lowest(
    loss: Numbers, weights: Numbers, fit: Callable[[float], tuple[Numbers, tuple[float, float]]]
) -> tuple[float, float, float]:  # fmt: skip
    """The coefficients and the floor that fit best."""
    best, found = np.inf, (0.0, 1.0, 0.0)
    for share in np.linspace(0.0, 0.995, FLOORS):
        floor = float(loss.min() * share)
        fitted, (first, second) = fit(floor)
        error = float(weights @ (fitted - loss) ** 2)
        if error < best:
            best, found = error, (first, second, floor)
    return found


def _line(k: Numbers, wanted: Numbers, weights: Numbers) -> tuple[float, float]:
    """Slope and intercept, neither below zero, with the least weighted squared error."""
    total, mean_k, mean = weights.sum(), weights @ k / weights.sum(), weights @ wanted / weights.sum()
    spread = weights @ (k - mean_k) ** 2
    slope = float(weights @ ((k - mean_k) * (wanted - mean)) / spread) if spread > 0 else 0.0
    if slope < 0:
        return 0.0, max(0.0, float(mean))
    if (intercept := float(mean - slope * mean_k)) < 0:
        return float(weights @ (k * wanted) / max(weights @ k**2, 1e-300 * total)), 0.0
    return slope, intercept


def slaq_curve(points: Points) -> Callable[[float], float] | None:
    """The loss after k samples: 1 / (a k^2 + b k + c) + d, or mu^(k - b) + c, whichever fits better (Zhang 2017).

    The newest points count most: each one 0.8 times as much as the one after it.
    """
    if (thinned := _thinned(points)) is None:
        return None
    scale, shares = thinned
    curve = _slaq_fit(shares)
    return lambda samples: curve(samples / scale)


@lru_cache(maxsize=100_000)
def _slaq_fit(points: Points) -> Callable[[float], float]:
    x, loss = np.array(points).T
    weights = 0.8 ** np.arange(len(x))[::-1]
    best, found = np.inf, _inverse_square(0.0, 0.0, 1.0, 0.0)
    for share in np.linspace(0.0, 0.995, FLOORS):
        floor = float(loss.min() * share)
        above = loss - floor
        root = np.sqrt(weights) * above**2
        a, b, c = non_negative(np.stack([x**2, x, np.ones_like(x)], 1) * root[:, None], root / above)
        decay, start = _line(x, np.log(above.max() / above), weights * above**2)
        for curve in (_inverse_square(a, b, c, floor), _exponential(decay, start, float(above.max()), floor)):
            error = float(weights @ (np.array([curve(one) for one in x]) - loss) ** 2)
            if error < best:
                best, found = error, curve
    return found


def _inverse_square(a: float, b: float, c: float, floor: float) -> Callable[[float], float]:
    return lambda x: 1 / max(a * x * x + b * x + c, 1e-9) + floor


def _exponential(decay: float, start: float, height: float, floor: float) -> Callable[[float], float]:
    return lambda x: height * math.exp(-decay * x - start) + floor


@lru_cache(maxsize=100_000)
def _thinned(points: Points) -> tuple[float, Points] | None:
    """The largest k, and at most POINTS of the points with k as a share of it: what has one shape is fitted once.

    None where they are too few, or no curve goes through them.
    """
    good = [(k, loss) for k, loss in points if k > 0 and 1 / LARGEST < loss < LARGEST]
    if len(good) < FEWEST:
        return None
    chosen = sorted({round(i) for i in np.linspace(0, len(good) - 1, min(POINTS, len(good)))})
    scale = good[-1][0]
    return scale, tuple((round(good[i][0] / scale, 9), good[i][1]) for i in chosen)


@lru_cache(maxsize=100_000)
def speed_model(speeds: tuple[tuple[int, float], ...]) -> Callable[[int], float]:
    """Samples per second by workers (Peng et al. 2018), from measured ones.

    A step of w workers, each with a batch of its own, and p servers takes a + b w / p + c w + d p seconds. A job has
    one p, so a and d p are one coefficient, and so are b / p and c. Measured numbers are themselves; others follow the
    fit. With one measurement it is as if the workers did not slow each other down.
    """
    known = {workers: speed for workers, speed in speeds if workers > 0 and speed > 0}
    if not known:
        return float
    w = np.array(sorted(known), dtype=np.float64)
    seconds = np.array([n / known[int(n)] for n in w])  # of a step, over the samples of one worker
    if len(known) == 1:
        ((first, speed),) = known.items()
        return lambda workers: speed * workers / first
    coefficients = non_negative(np.stack([np.ones_like(w), w], 1) / seconds[:, None], np.ones_like(seconds))

    def at(workers: int) -> float:
        if workers in known:
            return known[workers]
        step = float(coefficients[0] + coefficients[1] * workers)
        return workers / step if step > 0 else known[int(w[-1])]

    return at
