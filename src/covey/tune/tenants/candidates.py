"""Which models could a tenant have? Points of a space, and how alike two of them are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from covey.errors import PlanError
from covey.spec.call import Scalar
from covey.tune.space import NumberRange, Point, Space

MOST = 1000  # candidates: the likeness of each to each is worked with
NEAR = 0.5  # how far apart, in units of a whole range, two points are still alike
TRIES = 20  # draws for each point, as some repeat others


class _RandomChooser:
    """Chooses at random, as the space says how likely values are."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def choice(self, path: str, among: tuple[Scalar, ...]) -> Scalar:
        return self.random.choice(among)

    def number(self, path: str, among: NumberRange) -> Scalar:
        if among.whole and not among.logarithmic:
            return self.random.randint(int(among.low), int(among.high))
        share = self.random.random()
        if among.logarithmic:
            return among.clipped(math.exp(math.log(among.low) + share * math.log(among.high / among.low)))
        return among.clipped(among.low + share * (among.high - among.low))


def candidates(space: Space, count: int, seed: int) -> list[dict[str, Scalar]]:
    """`count` points of a space, or all where it has fewer, in a random order."""
    if count > MOST:
        raise PlanError(f"easeml chooses among at most {MOST} points for each task, not {count}: ask for fewer trials")
    random = Random(f"candidates {seed}")
    if space.size <= count:
        found = list(space.points())
        random.shuffle(found)
        return found
    chooser, found = _RandomChooser(random), []
    for _ in range(count * TRIES):
        point = space.draw(chooser)
        if point not in found:
            found.append(point)
        if len(found) == count:
            break
    return found


def likeness(space: Space, points: Sequence[Point]) -> NDArray[np.float64]:
    """1 for equal points, less the further they are apart: in shares of a range, and 1 for each other choice."""
    ranges = dict(space.ranges())
    columns: list[list[float]] = []
    for path in sorted({path for point in points for path in point}):
        values = [point.get(path) for point in points]
        if path in ranges:
            columns.append([0.0 if value is None else _share(ranges[path], value) for value in values])
            values = [None if value is None else "chosen" for value in values]
        columns.extend([(value == one) / math.sqrt(2) for value in values] for one in set(values))
    places = np.array(columns, float).reshape(len(columns), len(points)).T
    squares = np.sum(places**2, 1)
    apart = np.maximum(0.0, squares[:, None] + squares[None, :] - 2 * places @ places.T)
    return np.asarray(np.exp(-apart / (2 * NEAR**2)))


def _share(among: NumberRange, value: Scalar) -> float:
    """Where in its range a number is, from 0 to 1."""
    assert not isinstance(value, str)
    low, high, at = among.low, among.high, float(value)
    if among.logarithmic:
        low, high, at = math.log(low), math.log(high), math.log(at)
    return (at - low) / (high - low) if high > low else 0.0
