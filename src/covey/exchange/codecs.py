"""The codecs by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.exchange.bits import Bf16, Fp16, Truncated, TwoBit

CODECS: Mapping[str, type[Any]] = {"fp16": Fp16, "bf16": Bf16, "truncated": Truncated, "twobit": TwoBit}
