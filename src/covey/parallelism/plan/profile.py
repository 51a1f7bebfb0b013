"""What every layer costs, and so what any run of layers does. `measure.py` measures it; tests give it by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TypeVar

_N = TypeVar("_N", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """One layer, for one (micro-)batch."""

    name: str = ""
    forward: float = 0.0  # seconds
    backward: float = 0.0
    weights: int = 0  # bytes that are trained
    borrowed: int = 0  # of these: tied weights that the stage of an earlier layer owns
    fixed: int = 0  # bytes of buffers and frozen parameters
    kept: int = 0  # bytes of what it makes that backward needs
    sends: int = 0  # bytes that would cross a cut after it: all values alive there
    returns: int = 0  # bytes of gradients that would come back
    cuttable: bool = True  # whether a cut may come after it


@dataclass(frozen=True)
class Profile:
    """All layers of a model, and what its optimizer keeps for each byte of weights."""

    layers: tuple[LayerCost, ...]
    inputs: int = 0  # bytes of what the first layer takes
    state: float = 0.0
    fill: float = 1.0  # samples of the mean micro-batch over those of the largest, for which bytes are counted
    tied: bool = False  # weights that several layers share forbid some cuts

    def __len__(self) -> int:
        return len(self.layers)

    def scaled(self, factor: float) -> Profile:
        """The same, where computing takes this many times as long."""
        layers = (replace(one, forward=one.forward * factor, backward=one.backward * factor) for one in self.layers)
        return replace(self, layers=tuple(layers))

    def compute(self, first: int, last: int) -> float:
        """Seconds of forward and backward from one layer to another."""
        return self._compute[last + 1] - self._compute[first]

    def forward(self, first: int, last: int) -> float:
        return sum(layer.forward for layer in self.layers[first : last + 1])

    def backward(self, first: int, last: int) -> float:
        return sum(layer.backward for layer in self.layers[first : last + 1])

    def weights(self, first: int, last: int) -> int:
        return self._weights[last + 1] - self._weights[first]

    def trains(self, first: int, last: int) -> bool:
        """Whether a stage of these layers would own any weight."""
        return any(layer.weights > layer.borrowed for layer in self.layers[first : last + 1])

    def takes(self, first: int) -> int:
        """Bytes that a stage takes which begins here."""
        return self.layers[first - 1].sends if first else self.inputs

    def kept(self, first: int, last: int) -> int:
        return self._kept[last + 1] - self._kept[first]

    def standing(self, first: int, last: int, versions: int) -> float:
        """Bytes that a stage has without any batch: weights in all versions, their gradient, optimizer, buffers."""
        weights = self.weights(first, last)
        return weights * (versions + 1 + self.state) + self._fixed[last + 1] - self._fixed[first]

    def memory(self, first: int, last: int, in_flight: int, versions: int, recompute: bool) -> float:
        """Bytes of a stage with this many batches in flight; recomputing keeps what it takes, and one batch's rest."""
        taken, kept = self.takes(first), self.kept(first, last)
        flying = in_flight * taken + kept if recompute else in_flight * (taken + kept)
        return self.standing(first, last, versions) + flying

    @cached_property
    def _compute(self) -> Sequence[float]:
        return _sums(layer.forward + layer.backward for layer in self.layers)

    @cached_property
    def _weights(self) -> Sequence[int]:
        return _sums(layer.weights for layer in self.layers)

    @cached_property
    def _kept(self) -> Sequence[int]:
        return _sums(layer.kept for layer in self.layers)

    @cached_property
    def _fixed(self) -> Sequence[int]:
        return _sums(layer.fixed for layer in self.layers)


def _sums(numbers: Iterable[_N]) -> list[_N]:
    return list(accumulate(numbers, initial=0))
