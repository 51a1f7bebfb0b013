"""Which settings does a search choose from? A space, the points in it, and the trial that a point stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Protocol

from covey.spec.call import Scalar, written
from covey.task.made import written_arguments

STRATEGY, CODEC = "strategy", "codec"  # settings that are not the task's
NONE = "none"  # no codec
PERTURBED = (0.8, 1.25)  # Jaderberg et al. 2017: factors on a number of a trial that is copied

Point = Mapping[str, Scalar]
"""A value for each setting that was chosen, by its path: `rate`, `strategy`, `strategy.easgd.period`."""


@dataclass(frozen=True, slots=True)
class NumberRange:
    """All numbers from `low` to `high`; whole ones, or with equal chances for equal ratios."""

    low: float
    high: float
    whole: bool = False
    logarithmic: bool = False

    def clipped(self, value: float) -> Scalar:
        value = min(self.high, max(self.low, value))
        return round(value) if self.whole else value

    def __str__(self) -> str:
        name = {(False, False): "uniform", (False, True): "log", (True, False): "int", (True, True): "logint"}
        return f"{name[self.whole, self.logarithmic]}({self.low:g}, {self.high:g})"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of several values: a number, a word, or a name with settings, which may have several values themselves."""

    value: Scalar
    settings: Mapping[str, Values] = field(default_factory=dict)
    at: int = field(default=0, compare=False)


Values = NumberRange | tuple[Alternative, ...]


class Chooser(Protocol):
    """Who chooses: for each path one of several values, or a number of a range."""

    def choice(self, path: str, among: tuple[Scalar, ...]) -> Scalar: ...
    def number(self, path: str, among: NumberRange) -> Scalar: ...


@dataclass(frozen=True, slots=True)
class TrialSetup:
    """What a point says: the arguments of the task's function, and the strategy."""

    arguments: Mapping[str, Scalar]
    strategy: str

    def task(self, where: str) -> str:
        """The name of the task with these arguments."""
        if not self.arguments:
            return where
        name = where if ":" in where else f"{where}:task"
        return f"{name}({written_arguments(self.arguments)})"


@dataclass(frozen=True, slots=True)
class Space:
    """Settings by name, each with its values."""

    settings: Mapping[str, Values]
    places: Mapping[str, int] = field(default_factory=dict, compare=False)
    text: str = field(default="", compare=False)

    def draw(self, chooser: Chooser) -> dict[str, Scalar]:
        """A point; settings of an alternative are chosen only where it is."""
        point: dict[str, Scalar] = {}
        for name, values in self.settings.items():
            _draw(name, values, chooser, point)
        return point

    def setup(self, point: Point, usual: str) -> TrialSetup:
        """The trial of a point; `usual` is the strategy where the space has none."""
        found = {name: _built(name, values, point) for name, values in self.settings.items()}
        strategy = str(found.pop(STRATEGY, usual))
        codec = str(found.pop(CODEC, NONE))
        return TrialSetup(found, strategy if codec == NONE else f"{strategy} + {codec}")

    def perturbed(self, point: Point, random: Random) -> dict[str, Scalar]:
        """The point with each number that a checkpoint does not fix a fifth smaller, or a quarter larger."""
        changed = dict(point)
        for path, among in self.free_ranges():
            value = changed.get(path)
            if isinstance(value, int | float):
                changed[path] = among.clipped(value * random.choice(PERTURBED))
        return changed

    def ranges(self) -> Iterator[tuple[str, NumberRange]]:
        """All ranges of numbers, by path."""
        for name, values in self.settings.items():
            yield from _ranges(name, values)

    def free_ranges(self) -> Iterator[tuple[str, NumberRange]]:
        """The ranges whose numbers may change while a trial trains: not whole ones, on which the shapes of models and
        batches depend, nor those of strategies and codecs, of which checkpoints are."""
        for path, among in self.ranges():
            if not among.whole and path.partition(".")[0] not in (STRATEGY, CODEC):
                yield path, among

    def points(self) -> Iterator[dict[str, Scalar]]:
        """All of them, where there are only so many."""
        for parts in product(*(_points(name, values) for name, values in self.settings.items())):
            yield {path: value for part in parts for path, value in part.items()}

    @property
    def size(self) -> float:
        """How many points there are; infinite with a range of numbers that are not whole."""
        size = 1.0
        for values in self.settings.values():
            size *= _size(values)
        return size


def _draw(path: str, values: Values, chooser: Chooser, point: dict[str, Scalar]) -> None:
    if isinstance(values, NumberRange):
        point[path] = chooser.number(path, values)
        return
    names = tuple(one.value for one in values)
    point[path] = names[0] if len(names) == 1 else chooser.choice(path, names)
    chosen = values[names.index(point[path])]
    for name, inner in chosen.settings.items():
        _draw(f"{path}.{chosen.value}.{name}", inner, chooser, point)


def _built(path: str, values: Values, point: Point) -> Scalar:
    """The value of a point under a path; with its settings, where it has some."""
    value = point[path]
    if isinstance(values, NumberRange):
        return value
    chosen = next(one for one in values if one.value == value)
    inside = [
        f"{name}={written(_built(f'{path}.{value}.{name}', inner, point))}" for name, inner in chosen.settings.items()
    ]
    return f"{value}({', '.join(inside)})" if inside else value


def _ranges(path: str, values: Values) -> Iterator[tuple[str, NumberRange]]:
    if isinstance(values, NumberRange):
        yield path, values
        return
    for one in values:
        for name, inner in one.settings.items():
            yield from _ranges(f"{path}.{one.value}.{name}", inner)


def _points(path: str, values: Values) -> list[dict[str, Scalar]]:
    if isinstance(values, NumberRange):
        assert values.whole, "there are endlessly many"
        return [{path: number} for number in range(int(values.low), int(values.high) + 1)]
    found: list[dict[str, Scalar]] = []
    for one in values:
        inside = product(*(_points(f"{path}.{one.value}.{name}", inner) for name, inner in one.settings.items()))
        found += [{path: one.value} | {key: value for part in parts for key, value in part.items()} for parts in inside]
    return found


def _size(values: Values) -> float:
    if isinstance(values, NumberRange):
        return values.high - values.low + 1 if values.whole else float("inf")
    total = 0.0
    for one in values:
        size = 1.0
        for inner in one.settings.values():
            size *= _size(inner)
        total += size
    return total


KINDS: Mapping[str, tuple[bool, bool]] = {
    "uniform": (False, False), "log": (False, True), "int": (True, False), "logint": (True, True)
}  # fmt: skip
"""How ranges are written, and whether they are whole and logarithmic."""
