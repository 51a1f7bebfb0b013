"""A model as operators: what each costs and may be split by, and who needs whose output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

Way = Literal["whole", "column", "row", "through"]
"""How the members of a group divide an operator: not at all; by outputs; by inputs, whose partial outputs are summed;
or as its input is divided, which an element-wise operator can be."""


WHOLE: tuple[Way, int] = "whole", 1


@dataclass(frozen=True, slots=True, order=True)
class OperatorConfig:
    """How one operator is divided: its samples into parts, and each of these among a group of `members`.

    Members of a `whole` operator all compute the same. Part p of all of them runs on device first + p.
    """

    samples: int = 1
    members: int = 1
    way: Way = "whole"
    first: int = 0

    @property
    def parts(self) -> int:
        return self.samples * self.members

    @property
    def divides(self) -> int:
        """Among how many the operator itself is divided."""
        return 1 if self.way == "whole" else self.members

    def __str__(self) -> str:
        divided = f", {self.way} / {self.members}" if self.divides > 1 else ""
        return f"samples / {self.samples}{divided}" + (f" from device {self.first}" if self.first else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One step of a forward. Times are forward and backward of all samples on one device."""

    name: str
    ways: tuple[Way, ...] = ("whole",)
    times: Mapping[tuple[Way, int], tuple[float, float]] = field(default_factory=dict)  # seconds, by (way, members)
    weights: int = 0  # bytes that are trained
    fixed: int = 0  # bytes of buffers and frozen parameters
    kept: int = 0  # bytes of what it makes that backward needs, for all samples
    output: int = 0  # bytes, for all samples
    most: int = 1  # among how many it can be divided
    alike: str = ""  # operators of one such name share one choice
    experts: int = 0  # that it has, where it is a layer of them
    routed: int = 0  # bytes of their weights, of all its weights
    tokens: int = 0  # bytes that travel to experts and back, for all samples

    def seconds(self, config: OperatorConfig) -> tuple[float, float]:
        """Forward and backward of one part; what was not measured is in proportion to the whole operator."""
        measured = self.times.get((config.way, config.divides))
        share = 1 / config.samples if measured else 1 / (config.samples * config.divides)
        ahead, back = measured or self.times.get(WHOLE, (0.0, 0.0))
        return ahead * share, back * share

    def split(self, config: OperatorConfig) -> str:
        """What `split=` of a mesh calls this; empty for what it does not name."""
        if config.divides == 1 or config.way not in ("column", "row"):
            return ""
        return config.way if "row" in self.ways else "width"  # the columns of an embedding

    def scaled(self, factor: int) -> Operator:
        """The same for this many times as many samples."""
        times = {key: (factor * ahead, factor * back) for key, (ahead, back) in self.times.items()}
        return replace(
            self, times=times, kept=factor * self.kept, output=factor * self.output, tokens=factor * self.tokens
        )

    def takes_split(self, config: OperatorConfig) -> bool:
        """Whether a member needs only its part of the input's columns."""
        return config.way in ("row", "through") and config.members > 1

    def gives_split(self, config: OperatorConfig) -> bool:
        """Whether a member has only its part of the output's columns."""
        return config.way in ("column", "through") and config.members > 1


@dataclass(frozen=True, kw_only=True)
class OperatorGraph:
    """Operators in an order in which they can run, and the edges between them."""

    operators: tuple[Operator, ...]
    edges: tuple[tuple[int, int], ...]  # (from, to), each once
    samples: int = 0  # of a batch
    state: float = 0.0  # bytes that the optimizer keeps for each byte of weights
    notes: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()  # names of all that `split=` of a mesh could mean

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def before(self) -> Sequence[Sequence[int]]:
        return [[a for a, b in self.edges if b == number] for number in range(len(self))]

    @cached_property
    def after(self) -> Sequence[Sequence[int]]:
        return [[b for a, b in self.edges if a == number] for number in range(len(self))]

    @cached_property
    def groups(self) -> Sequence[Sequence[int]]:
        """Operators that share one choice."""
        found: dict[str, list[int]] = {}
        for number, operator in enumerate(self.operators):
            found.setdefault(operator.alike or f"#{number}", []).append(number)
        return list(found.values())

    def configs(self, group: Sequence[int], allowed: Sequence[OperatorConfig]) -> list[OperatorConfig]:
        """Those of the allowed configurations that all operators of a group can have."""
        return [
            config for config in allowed
            if all(self._can(self.operators[number], config) for number in group)
        ]  # fmt: skip

    def _can(self, operator: Operator, config: OperatorConfig) -> bool:
        fits = config.samples <= self.samples if self.samples else True
        return fits and config.way in operator.ways and config.divides <= operator.most

    def scaled(self, factor: int) -> OperatorGraph:
        """The same for a batch this many times as large."""
        larger = tuple(operator.scaled(factor) for operator in self.operators)
        return replace(self, operators=larger, samples=factor * self.samples)

    def data_parallel(self, devices: int) -> list[OperatorConfig]:
        """Every operator on a share of the samples, on every device."""
        return [OperatorConfig(samples=devices)] * len(self)


def factors(devices: int) -> Iterator[tuple[int, int]]:
    """Groups of samples, and members of each, that together are this many devices or fewer of it."""
    for samples in range(1, devices + 1):
        for members in range(1, devices // samples + 1):
            if devices % (samples * members) == 0:
                yield samples, members


def every_config(devices: int, anywhere: bool = False) -> list[OperatorConfig]:
    """All configurations on these devices; `anywhere`: also on others than the first (SOAP's operator dimension)."""
    found = []
    for samples, members in factors(devices):
        ways: tuple[Way, ...] = ("whole",) if members == 1 else ("column", "row", "through")
        for way in ways:
            step = samples * members
            firsts = range(0, devices, step) if anywhere else [0]
            found += [OperatorConfig(samples, members, way, first) for first in firsts]
    return found


def group_configs(replicas: int, members: int) -> list[OperatorConfig]:
    """The configurations of a mesh of replicas, each a group of `members`: what a run can do."""
    ways: tuple[Way, ...] = ("whole",) if members == 1 else ("whole", "column", "row", "through")
    return [OperatorConfig(replicas, members, way) for way in ways]
