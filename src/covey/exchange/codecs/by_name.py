"""The codecs by their names, and what may be put around one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.exchange.auto import Auto
from covey.exchange.codecs.bits import Bf16, Fixed16, Fp16, Int8, Natural, Truncated, TwoBit
from covey.exchange.codecs.dgc import Dgc
from covey.exchange.codecs.levels import DoReFa, OneBit, TernGrad
from covey.exchange.codecs.low_rank import PowerSgd
from covey.exchange.codecs.qsgd import Qsgd
from covey.exchange.codecs.random_k import RandomK
from covey.exchange.codecs.sbc import Sbc
from covey.exchange.codecs.sketch import Sketch
from covey.exchange.codecs.sparse import Entropy, MsTopK, Threshold, TopK
from covey.exchange.codecs.strom import Strom
from covey.exchange.codecs.wrappers import Clip, ErrorFeedback, MomentumCorrection, Warmup

CODECS: dict[str, type[Any]] = {
    "fp16": Fp16, "bf16": Bf16, "truncated": Truncated, "fixed16": Fixed16, "int8": Int8, "natural": Natural,
    "dorefa": DoReFa, "qsgd": Qsgd, "terngrad": TernGrad, "twobit": TwoBit, "onebit": OneBit, "strom": Strom,
    "topk": TopK, "mstopk": MsTopK, "randomk": RandomK, "threshold": Threshold, "entropy": Entropy, "dgc": Dgc,
    "sbc": Sbc, "sketch": Sketch, "powersgd": PowerSgd, "auto": Auto,
}  # fmt: skip

WRAPPERS: Mapping[str, type[Any]] = {
    "error_feedback": ErrorFeedback, "momentum_correction": MomentumCorrection, "warmup": Warmup, "clip": Clip,
}  # fmt: skip
