"""What does a SPEC say?  Its parts as values, and back to text."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from covey.errors import PlanError
from covey.names import meant

Scalar = int | float | str

BARE = re.compile(r"[A-Za-z0-9_.:/@%*+-]+")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


AROUND = 100  # characters that an error shows on each side of its place


class SpecError(PlanError):
    """A SPEC that cannot be read, with a caret under the character that is wrong."""

    def __init__(self, text: str, at: int, why: str) -> None:
        self.text, self.at, self.why = text, at, why
        first, last = (max(0, at - AROUND), at + AROUND) if len(text) > 4 * AROUND else (0, len(text))
        shown = re.sub(r"\s", " ", text[first:last])  # a line break would move the caret
        before, after = "… " * (first > 0), " …" * (last < len(text))
        super().__init__(f"{before}{shown}{after}\n{' ' * (len(before) + at - first)}^ {why}" if shown else why)


@dataclass(frozen=True, slots=True)
class Grid:
    """Several values to try for one setting."""

    values: tuple[Scalar, ...]

    def __str__(self) -> str:
        return "|".join(written(value) for value in self.values)


Value = Scalar | Grid


@dataclass(frozen=True, slots=True)
class Made:
    """What a name from outside covey stands for: the settings object, and a strategy's entry in the catalog."""

    settings: Any
    entry: Any = None


@dataclass(frozen=True, slots=True)
class Call:
    """A name with settings, and where each was written."""

    name: str
    settings: Mapping[str, Value] = field(default_factory=dict, hash=False)
    at: int = field(default=0, compare=False)
    places: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)
    made: Made | None = field(default=None, compare=False, repr=False)  # of a name that only this process knows

    def __str__(self) -> str:
        inside = ", ".join(f"{key}={written(value)}" for key, value in self.settings.items())
        return f"{self.name}({inside})" if inside else self.name


@dataclass(frozen=True, slots=True)
class Spec:
    """A strategy, what its messages pass through, whom it speaks to, how its model is cut."""

    strategy: Call
    codecs: tuple[Call, ...] = ()
    topology: Call | None = None
    mesh: Call | None = None
    text: str = field(default="", compare=False, repr=False)  # as it was typed: every `at` points into it

    @property
    def from_outside(self) -> bool:
        """Whether it names something that another process could not look up."""
        return any(call.made for call in (self.strategy, *self.codecs))

    def __str__(self) -> str:
        parts = [" + ".join(map(str, (self.strategy, *self.codecs)))]
        parts += [f"over {self.topology}"] if self.topology else []
        parts += [f"with {self.mesh}"] if self.mesh else []
        return " ".join(parts)


def expand(spec: Spec) -> list[Spec]:
    """Every combination of the grids in a SPEC, the last one varying fastest."""
    codecs = product(*map(_points, spec.codecs))
    choices = product(_points(spec.strategy), codecs, _points_or_none(spec.topology), _points_or_none(spec.mesh))
    return [replace(spec, strategy=s, codecs=c, topology=t, mesh=m) for s, c, t, m in choices]


def unknown(text: str, at: int, what: str, name: str, known: Iterable[str]) -> SpecError:
    """The error for a name that is not in a table: the nearest of those that are."""
    return SpecError(text, at, f"no {what} '{name}'{meant(name, sorted(known))}")


def read(word: str) -> Scalar | None:
    """A bare word as the number it spells, or as itself; None for a number that no float can hold."""
    if not _FLOAT.fullmatch(word):
        return word
    number = float(word)
    if not math.isfinite(number):
        return None
    return int(word) if _INTEGER.fullmatch(word) else number


def written(value: Value) -> str:
    """A value as `parse` reads it back."""
    if not isinstance(value, str):
        return str(value)
    if BARE.fullmatch(value) and read(value) == value:
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: did you mean …?"""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else "."


def _points(call: Call) -> list[Call]:
    """A call for every combination of its grids."""
    axes = [value.values if isinstance(value, Grid) else (value,) for value in call.settings.values()]
    return [replace(call, settings=dict(zip(call.settings, point, strict=True))) for point in product(*axes)]


def _points_or_none(call: Call | None) -> Sequence[Call | None]:
    return [None] if call is None else _points(call)
