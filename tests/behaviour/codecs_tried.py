"""Every codec with its settings at other values, and what is put around codecs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from covey.exchange.codecs.by_name import CODECS
from tests.behaviour.settings_tried import variants, written

BASE: Mapping[str, Mapping[str, Any]] = {
    "topk": {"density": 0.1}, "mstopk": {"density": 0.1}, "randomk": {"density": 0.2},
    "dgc": {"density": 0.05, "warmup": 1.0},
    "sketch": {"keep": 0.3},
    "sbc": {"density": 0.1}, "int8": {"block": 16}, "qsgd": {"bucket": 32}, "twobit": {"threshold": 0.1},
    "entropy": {"low": 0.05, "high": 0.2}, "threshold": {"value": 0.1},
    "strom": {"threshold": 0.1, "low": 0.05, "high": 0.2},
}  # fmt: skip

TRIED: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "fixed16": {"fraction": (3, 25)}, "int8": {"block": (0, 7)}, "dorefa": {"bits": (1, 3)},
    "qsgd": {"levels": (1, 100), "bucket": (0, 7)}, "terngrad": {"clip": (0.0, 1.0)},
    "twobit": {"threshold": (0.01, 1.0)},
    "strom": {"threshold": (0.01, 0.5), "low": (0.001, 0.15), "high": (0.06, 0.9)}, "topk": {"density": (0.01, 0.5)},
    "mstopk": {"density": (0.01, 0.5), "rounds": (1, 5)}, "randomk": {"density": (0.01, 0.5)},
    "threshold": {"value": (0.0, 0.5)}, "entropy": {"low": (0.001, 0.1), "high": (0.1, 0.5)},
    "dgc": {"density": (0.01, 0.5), "momentum": (0.0, 0.5), "clip": (0.3, 10.0), "warmup": (0.0, 0.5)},
    "sbc": {"density": (0.02, 0.5), "momentum": (0.5, 0.9)}, "sketch": {"bits": (1, 4), "keep": (0.05, 1.0)},
    "powersgd": {"rank": (1, 4), "saving": (0.0, 5.0), "dense": (1, 2)},
}  # fmt: skip

PAIRS: Mapping[str, tuple[str, ...]] = {
    "dgc": (
        "density=0.05, warmup=0.0, nesterov=true, clip=0.5", "density=0.1, warmup=0.0, momentum=0.5, nesterov=true",
    ),
    "randomk": ("density=0.3, unbiased=true",), "int8": ("block=7, rounding=nearest", "block=0, rounding=nearest"),
    "powersgd": ("rank=1, saving=0.0, alternating=true", "rank=2, saving=0.0, dense=1, alternating=true"),
    "qsgd": ("levels=3, bucket=16, norm=max, coding=packed", "levels=200, bucket=0, coding=packed"),
    "terngrad": ("scope=global, clip=1.0, dense_last=true", "clip=0.0, dense_last=true"),
    "sketch": ("bits=2, keep=1.0, rotate=false",),
    "strom": ("threshold=0.2, adaptive=false",), "entropy": ("low=0.05, high=0.3, correction=false",),
}  # fmt: skip

AROUND: Mapping[str, tuple[str, ...]] = {
    "error_feedback": ("error_feedback + int8(block=16)", "error_feedback + qsgd(levels=2, bucket=32)",
                       "error_feedback + terngrad", "error_feedback + fp16", "error_feedback + natural"),
    "momentum_correction": ("momentum_correction + topk(density=0.1)", "momentum_correction(momentum=0.3) + onebit",
                            "momentum_correction(momentum=0.5) + randomk(density=0.2)"),
    "warmup": ("warmup(steps=1) + topk(density=0.1)", "warmup(steps=2) + powersgd", "warmup(epochs=0.5) + onebit",
               "warmup(steps=2) + fp16"),
    "clip": ("clip + topk(density=0.1)", "clip(norm=0.2) + int8(block=16)", "clip(norm=0.2) + fp16",
             "momentum_correction + clip(norm=0.5) + topk(density=0.1)",
             "clip(norm=0.5) + momentum_correction + onebit",
             "warmup(steps=1) + clip(norm=0.3) + onebit"),
}  # fmt: skip


def names() -> list[str]:
    """Codecs, and what goes around them; `auto` chooses among others, by what it measures in a run."""
    return [*(name for name in CODECS if name != "auto"), *AROUND]


def specs(name: str) -> Iterator[str]:
    if name in AROUND:
        yield from AROUND[name]
        return
    base = dict(BASE.get(name, {}))
    found = [name, written(name, base)]
    found += [written(name, one) for one, _ in variants(CODECS[name], TRIED.get(name, {}), base)]
    found += [f"{name}({inside})" for inside in PAIRS.get(name, ())]
    yield from dict.fromkeys(found)
