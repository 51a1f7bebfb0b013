"""A client's report as whole numbers that can be added up under masks, and what their sum says."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from covey.errors import WireError
from covey.federated.local_training import LocalResult
from covey.federated.messages import Configuration
from covey.federated.private.private_settings import weight_of
from covey.message import Message
from covey.privacy.clipped_noise import ROUNDED, ClippedNoise
from covey.privacy.randomness import Randomness
from covey.privacy.secagg import FixedPoint
from covey.vector import Vector

LOSS = 1024.0  # a loss that is larger counts as this


class ReportTerms(Message):
    """(To a client) How its report becomes whole numbers; the terms of the sum come with it."""

    wire_name = "federated.report_terms"
    counted = False

    most: float  # the largest number
    cap: float  # the samples that weigh 1; 0: any number does
    clip: float  # the largest norm of an update; 0: any
    loss: bool  # whether the loss is added up

    def check(self) -> None:
        """WireError for what no client can reckon with: they come from the server, of which nothing is believed."""
        if not (0 < self.most < math.inf and 0 <= self.cap < math.inf and 0 <= self.clip < math.inf):
            raise WireError(f"the server proposed numbers up to {self.most}, cap {self.cap} and clip {self.clip}")


@dataclass(frozen=True, slots=True)
class SummedReport:
    """What the sum of reports says."""

    update: Vector
    buffers: Vector
    samples: int
    loss: float

    def finite(self) -> bool:
        return self.update.finite() and self.buffers.finite()


class ReportNumbers:
    """Update, change of buffers, weight and loss of a client, one after another, each times its weight."""

    def __init__(self, terms: ReportTerms, levels: int, bits: int) -> None:
        terms.check()
        self.terms, self.fixed = terms, FixedPoint(terms.most, levels, bits)

    def of(self, done: LocalResult, buffers: Vector) -> Tensor:
        """The numbers of one client, who began with these buffers."""
        weight = weight_of(done.samples, self.terms.cap)
        # float64 before the product, so that what is rounded is rounded once
        update = done.update.map(lambda part: part.double())
        if self.terms.clip:
            # rounding to levels may lengthen the vector by half a level in each number
            most = self.terms.clip * (ROUNDED - math.sqrt(update.numel) / (2 * self.fixed.levels))
            norm = update.norm()
            update = update * min(1.0, most / norm if norm else 1.0)
        pairs = zip(done.buffers.parts, buffers.parts, strict=True)
        changed = Vector(now.double() - first.double() for now, first in pairs)
        loss = (min(max(done.loss, -LOSS), LOSS) if math.isfinite(done.loss) else LOSS) if self.terms.loss else 0.0
        tail = torch.tensor([1.0, loss / LOSS], dtype=torch.float64) * self.terms.most
        return self.fixed.quantise(Vector([*update.parts, *changed.parts, tail]) * weight)

    def mean(self, total: Tensor, params: Vector, buffers: Vector) -> SummedReport | None:
        """The mean by weights of a sum; None where the weights come to nothing."""
        update, changed, weight, loss = self._opened(total, params, buffers)
        if weight <= 0:
            return None
        return SummedReport(
            update=_like(update * (1 / weight), params), buffers=_moved(buffers, changed * (1 / weight)),
            samples=round(weight * self.terms.cap), loss=loss / weight if self.terms.loss else math.nan,
        )  # fmt: skip

    def noisy(
        self, total: Tensor, params: Vector, buffers: Vector, covered: ClippedNoise, randomness: Randomness,
        samples: int,
    ) -> SummedReport:  # fmt: skip
        """The noisy mean of a sum of clipped updates, with the fixed denominator; its clients have so many samples."""
        update, _, _, _ = self._opened(total, params, buffers)
        return SummedReport(_like(covered.mean(update, randomness), params), buffers, samples, math.nan)

    def _opened(self, total: Tensor, params: Vector, buffers: Vector) -> tuple[Vector, Vector, float, float]:
        parts = [torch.empty(part.numel(), dtype=torch.float64) for part in (*params.parts, *buffers.parts)]
        whole = self.fixed.restore(total, Vector([*parts, torch.empty(2, dtype=torch.float64)]))
        many = len(params.parts)
        weight, loss = (whole.parts[-1] / self.terms.most).tolist()
        return Vector(whole.parts[:many]), Vector(whole.parts[many:-1]), weight, loss * LOSS


def origin(given: Configuration, how: ReportTerms, context: bytes) -> bytes:
    """The hash of all that a client's numbers are computed from, but for its data.

    A server could give one client other weights than all others, or other terms, so that the sum of the others' numbers
    is 0 or known to it (Pasquini et al. 2022): clients of one sum must have been given the same.
    """
    tensors = [*given.params.parts, *given.buffers.parts]
    shapes = [(str(part.dtype), tuple(part.shape)) for part in tensors]
    terms = how.most, how.cap, how.clip, how.loss
    found = hashlib.sha256(msgspec.msgpack.encode((context, given.number, given.share, terms, shapes)))
    for part in tensors:
        found.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.digest()


def length(params: Vector, buffers: Vector) -> int:
    """How many numbers a client adds."""
    return params.numel + buffers.numel + 2


def _like(exact: Vector, wanted: Vector) -> Vector:
    return Vector(part.to(like) for part, like in zip(exact.parts, wanted.parts, strict=True))


def _moved(buffers: Vector, change: Vector) -> Vector:
    return Vector((part.double() + moved).to(part) for part, moved in zip(buffers.parts, change.parts, strict=True))
