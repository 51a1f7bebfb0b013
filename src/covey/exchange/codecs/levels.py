"""Codecs whose scale is their own: one bit for each number, three levels, or a few more."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.errors import PlanError
from covey.exchange import kernels
from covey.exchange.codec import Codec
from covey.exchange.codec_traits import CodecTraits
from covey.exchange.codecs import sign_sums
from covey.exchange.codecs.coded_runs import NumberRun, RunCoding, Scope, coded, divided, packed
from covey.model.flat import Form, ParameterRange


def one_bit() -> Codec:
    """A sign for each number, and two levels for every output unit of a matrix (Seide et al. 2014).

    A column of the paper's matrix is the fan-in of one unit; torch has it in a row, and its numbers lie side by side.
    """

    def units(form: Form) -> list[NumberRun]:
        return [
            NumberRun(index, layer.start, layer.stop, fan_in(layer), raw=fan_in(layer) < 2)
            for index, layers in enumerate(form.layers)
            for layer in layers
            if layer.stop > layer.start
        ]

    coding = RunCoding(
        encode=lambda x, residual, run, chance: kernels.onebit_encode(x, residual, run.block),
        decode=lambda streams, run, out: kernels.onebit_decode(streams[0], streams[1].view(-1, 2), run.block, out),
        streams=[(torch.uint8, packed(1)), (torch.float32, lambda run: 2 * run.scales)],
    )
    return coded("onebit", coding, units, CodecTraits(feedback="needed", shapes=True, steps=1.3))


def fan_in(layer: ParameterRange) -> int:
    """Numbers that come together in one output unit; 1 for biases, and for slices, which have no shape."""
    return math.prod(layer.shape[1:])


def ternary(clip: float, scope: Scope, dense_last: bool) -> Codec:
    """The sign of each number by chance, at one scale for each layer (Wen et al. 2017); unbiased once clipped."""

    def is_last(form: Form, layer: ParameterRange) -> bool:
        return dense_last and layer.name.rpartition(".")[0] == form.last

    def signs(x: Tensor, residual: Tensor | None, run: NumberRun, chance: int, scale: Tensor) -> Tensor:
        return kernels.terngrad_encode(x, residual, run.block, chance, clip, scale)[0]

    runs = divided(scope, raw=is_last)
    coding = RunCoding(
        encode=lambda x, residual, run, chance: kernels.terngrad_encode(x, residual, run.block, chance, clip),
        decode=lambda streams, run, out: kernels.terngrad_decode(streams[0], streams[1], run.block, out),
        streams=[(torch.uint8, packed(2)), (torch.float32, lambda run: run.scales)],
    )
    shared = sign_sums.largest(lambda x, residual, run: kernels.terngrad_scale(x, residual, run.block, clip))
    return coded(
        "terngrad",
        coding,
        runs,
        total=sign_sums.sum_of_signs(signs, shared),
        summed=sign_sums.nbytes(runs, scales=True),
    )


def few_levels(bits: int, scope: Scope) -> Codec:
    """2^bits levels from -max to max, zero not among them, rounded by chance (Zhou et al. 2016)."""
    return coded(
        "dorefa",
        RunCoding(
            encode=lambda x, residual, run, chance: kernels.dorefa_encode(x, residual, run.block, bits, chance),
            decode=lambda streams, run, out: kernels.dorefa_decode(streams[0], streams[1], run.block, bits, out),
            streams=[(torch.uint8, packed(bits)), (torch.float32, lambda run: run.scales)],
        ),
        divided(scope),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class OneBit:
    """A sign for each number and two levels for each output unit, with error feedback; biases as they are (Seide)."""

    def codec(self) -> Codec:
        return one_bit()


@dataclass(frozen=True, kw_only=True, slots=True)
class TernGrad:
    """-1, 0 or 1 by chance, times one scale a layer, clipped at this many standard deviations (Wen et al. 2017)."""

    clip: float = 2.5
    scope: Scope = "layer"
    dense_last: bool = False  # the last layer as it is

    def codec(self) -> Codec:
        if self.clip < 0:
            raise PlanError(f"terngrad(clip={self.clip}): more than 0 standard deviations, or 0 for no clipping")
        if self.dense_last and self.scope == "global":
            raise PlanError("terngrad(dense_last=true, scope=global): layers can differ with scope=layer only")
        return ternary(self.clip, self.scope, self.dense_last)


@dataclass(frozen=True, kw_only=True, slots=True)
class DoReFa:
    """Writes `bits` for each number, and one scale per layer (Zhou et al. 2016)."""

    bits: int = 6
    scope: Scope = "layer"

    def codec(self) -> Codec:
        if not 1 <= self.bits <= 8:
            raise PlanError(f"dorefa(bits={self.bits}): 1 to 8")
        return few_levels(self.bits, self.scope)
