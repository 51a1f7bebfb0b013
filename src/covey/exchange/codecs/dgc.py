"""Deep gradient compression (Lin et al. 2018): top-k with momentum correction, clipping, masking and a warm-up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from covey.errors import PlanError
from covey.exchange import kernels
from covey.exchange.codec import Codec, Coder, Memory, Seed, check, zeros
from covey.exchange.codec_traits import CodecTraits
from covey.exchange.codecs.coded_runs import NumberRun, divided
from covey.exchange.codecs.momentum import check_momentum
from covey.exchange.codecs.sparse import check_density, of
from covey.exchange.codecs.sparse_numbers import Chosen, SparseNumbers, choose
from covey.model.flat import Form, ParameterRange
from covey.vector import Vector


@dataclass(frozen=True, kw_only=True, slots=True)
class Dgc:
    """Top-k of gathered momentum: corrected, clipped, masked, warmed up; biases go as they are (Lin et al. 2018)."""

    density: float = 0.001
    momentum: float = 0.9
    clip: float | None = None  # the most that the norm of the mean gradient may be; each worker's: less by sqrt(n)
    warmup: float = 4.0  # epochs in which the density falls to what it is to be
    nesterov: bool = False

    def codec(self) -> Codec:
        check_density("dgc", self.density)
        check_momentum("dgc", self.momentum)
        if self.clip is not None and not self.clip > 0:
            raise PlanError(f"dgc(clip={self.clip:g}): a norm, more than 0")
        if self.warmup < 0:
            raise PlanError(f"dgc(warmup={self.warmup:g}): 0 epochs or more")
        return Codec(
            name="dgc", make=self.coder, nbytes=lambda form: SparseNumbers(form, matrices(form)).nbytes(self.expected),
            traits=CodecTraits(feedback="own", momentum="own" if self.momentum else "none"),
        )  # fmt: skip

    def expected(self, run: NumberRun) -> int:
        return of(self.density, run.count)

    def density_at(self, step: int, epoch: int) -> float:
        """Falls by the same factor from epoch to epoch: 25 %, 6.3 %, 1.6 %, 0.4 %, and then 0.1 %."""
        passed = step // epoch if self.warmup else 0
        return self.density ** ((passed + 1) / (self.warmup + 1)) if passed < self.warmup else self.density

    def coder(self, form: Form, seed: Seed) -> Coder:
        if self.warmup and not form.epoch:
            raise PlanError(
                f"dgc(warmup={self.warmup:g}): the length of an epoch is unknown here; use warmup=0, or a Task"
            )
        places = SparseNumbers(form, matrices(form))

        def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
            check(vector)
            moving, waiting, step = memory  # u and v of the paper
            density = self.density_at(step, max(1, form.epoch))
            add = self.gathered(vector, moving, self.limit(vector, seed.workers))
            found = [self.send(run, run.of(add), run.of(moving), run.of(waiting), density, form) for run in places.runs]
            return places.wire(found, add), (moving, waiting, step + 1)

        return Coder(lambda: (zeros(form), zeros(form), 0), encode, places.decode)

    def limit(self, vector: Vector, workers: int) -> float:
        """The factor that clips a worker's own gradient."""
        norm = vector.norm() if self.clip is not None else 0.0
        return min(1.0, self.clip / math.sqrt(workers) / norm) if self.clip is not None and norm else 1.0

    def gathered(self, vector: Vector, moving: Vector, factor: float) -> Vector:
        """Momentum moves on by this gradient; what is to be added to what waits."""
        pairs = zip(moving.parts, vector.parts, strict=True)
        if not self.nesterov:
            for u, g in pairs:
                u.mul_(self.momentum).add_(g, alpha=factor)
            return moving
        for u, g in pairs:
            u.add_(g, alpha=factor).mul_(self.momentum)
        return Vector(u + factor * g for u, g in zip(moving.parts, vector.parts, strict=True))

    def send(self, run: NumberRun, add: Tensor, moving: Tensor, waiting: Tensor, density: float, form: Form) -> Chosen:
        """The largest of what waits leave it, and their momentum stops: it would only repeat what was sent.

        With density 1 all is sent at once, and momentum goes on as it does in SGD.
        """
        k = of(density, run.count)
        dtype = form.like.parts[run.part].dtype
        found, numbers = choose(lambda x, kept, run, chance: kernels.topk(x, kept, k), add, waiting, run, 0, dtype)
        if density < 1:
            moving[found.long()] = 0
        return found, numbers


def matrices(form: Form) -> list[NumberRun]:
    """Every layer; those without a shape of their own are raw: biases, and the parameters of norms."""

    def raw(form: Form, layer: ParameterRange) -> bool:
        return len(layer.shape) < 2

    return divided("layer", raw=raw)(form)
