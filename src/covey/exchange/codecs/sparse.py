"""Codecs that send few numbers, each with its place: the largest, those above a threshold, or any."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.errors import PlanError
from covey.exchange import kernels
from covey.exchange.codec import Codec, Coder, Memory, Seed, check, fusing, zeros
from covey.exchange.codec_traits import CodecTraits
from covey.exchange.codecs.coded_runs import Dividing, NumberRun, Scope, chance, divided
from covey.exchange.codecs.sparse_numbers import Chooser, Chosen, SparseNumbers, choose
from covey.model.flat import Form
from covey.vector import Vector

Weigh = Callable[[Tensor, Tensor, Tensor | None], float]
"""What the numbers that are sent count: of themselves, the run's numbers, and what is left in the residual."""

USUAL = 0.01  # the share of numbers that is expected to be above a threshold, when nobody can know


def sparse(
    name: str,
    chooser: Chooser,
    expected: Callable[[NumberRun], float],
    runs: Dividing,
    weigh: Weigh = lambda sent, x, kept: 1.0,
    steps: float = 1.0,
) -> Codec:
    """A codec that sends what the chooser takes of each run, times what it weighs; the rest waits."""

    def make(form: Form, seed: Seed, carries: bool) -> Coder:
        places = SparseNumbers(form, runs(form))

        def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
            check(vector)
            residual, count = memory
            found = []
            for number, run in enumerate(places.runs):
                kept, dtype = run.of(residual) if residual else None, form.like.parts[run.part].dtype
                where, sent = choose(chooser, run.of(vector), kept, run, chance(seed, count, number), dtype)
                found.append((where, sent * weigh(sent, run.of(vector), kept)))
            return places.wire(found, vector), (residual, count + 1)

        return Coder(lambda: (zeros(form) if carries else None, 0), encode, places.decode)

    def nbytes(form: Form) -> float:
        return SparseNumbers(form, runs(form)).nbytes(expected)

    return fusing(name, make, nbytes, CodecTraits(feedback="needed", steps=steps))


def of(density: float, count: int) -> int:
    """How many numbers a density leaves of this many: one at least."""
    return min(count, max(1, round(density * count)))


def largest(density: float, scope: Scope) -> Codec:
    """The largest numbers (Aji & Heafield 2017; Stich et al. 2018)."""
    return sparse(
        "topk",
        lambda x, residual, run, chance: kernels.topk(x, residual, of(density, run.count)),
        lambda run: of(density, run.count),
        divided(scope),
        steps=1.1 if density >= 0.1 else 1.5,
    )


def about_largest(density: float, rounds: int, scope: Scope) -> Codec:
    """As many of about the largest numbers, found by bisection (Shi et al. 2021)."""
    return sparse(
        "mstopk",
        lambda x, residual, run, chance: kernels.mstopk(x, residual, of(density, run.count), rounds, chance),
        lambda run: of(density, run.count),
        divided(scope),
    )


def above(value: float) -> Codec:
    """All numbers that reach a threshold, as they are."""
    return sparse(
        "threshold",
        lambda x, residual, run, chance: kernels.select(x, residual, value),
        lambda run: USUAL * run.count,
        divided("global"),
    )


def by_entropy(low: float, high: float, correction: bool) -> Codec:
    """More numbers of a layer, the more evenly their sizes are spread (after Kuang et al. 2019).

    The entropy of a histogram of 64 sizes says how many. `correction` makes what is sent smaller by the share of the
    layer's norm that it has, which is what a smaller learning rate would do; what waits is not touched by it.
    """
    bins = 64

    def chooser(x: Tensor, residual: Tensor | None, run: NumberRun, chance: int) -> Chosen:
        size = (x.float() if residual is None else residual + x).abs()
        counts = torch.histc(size, bins, 0, float(size.max()))
        share = counts[counts > 0] / run.count
        entropy = float(-(share * share.log()).sum()) if float(size.max()) else 0.0
        return kernels.topk(x, residual, of(low + (high - low) * entropy / math.log(bins), run.count))

    def weigh(sent: Tensor, x: Tensor, kept: Tensor | None) -> float:
        told, whole = float(sent.norm()), float(x.norm()) if kept is None else math.hypot(sent.norm(), kept.norm())
        return min(1.0, max(0.1, told / whole)) if correction and whole else 1.0

    return sparse("entropy", chooser, lambda run: of((low + high) / 2, run.count), divided("layer"), weigh)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopK:
    """The largest numbers of a layer, or of all, with their places; the rest waits (Aji & Heafield 2017)."""

    density: float = 0.01
    scope: Scope = "global"

    def codec(self) -> Codec:
        check_density("topk", self.density)
        return largest(self.density, self.scope)


@dataclass(frozen=True, kw_only=True, slots=True)
class MsTopK:
    """As many of about the largest numbers, found in fewer passes; the rest waits (Shi et al. 2021)."""

    density: float = 0.01
    rounds: int = 30
    scope: Scope = "global"

    def codec(self) -> Codec:
        check_density("mstopk", self.density)
        if self.rounds < 1:
            raise PlanError(f"mstopk(rounds={self.rounds}): 1 or more bisections")
        return about_largest(self.density, self.rounds, self.scope)


@dataclass(frozen=True, kw_only=True, slots=True)
class Threshold:
    """All numbers that reach a threshold, as they are, with their places; the rest waits."""

    value: float = 0.01

    def codec(self) -> Codec:
        if not self.value > 0:
            raise PlanError(f"threshold(value={self.value}): must be more than 0")
        return above(self.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entropy:
    """The largest numbers of each layer: more of them, the more evenly their sizes are spread (Kuang et al. 2019)."""

    low: float = 0.001
    high: float = 0.05
    correction: bool = True

    def codec(self) -> Codec:
        check_density("entropy", self.high, "high")
        check_density("entropy", self.low, "low")
        if self.low > self.high:
            raise PlanError(f"entropy(low={self.low:g}, high={self.high:g}): low must be no more than high")
        return by_entropy(self.low, self.high, self.correction)


def check_density(codec: str, density: float, setting: str = "density") -> None:
    if not 0 < density <= 1:
        raise PlanError(f"{codec}({setting}={density:g}): a share of all numbers, more than 0 and up to 1")
