"""A fused trial while it pauses: its weights and momenta, and the scores that they had."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from covey.decoding import WireFormat

CURVE = "curve"

Curve = list[tuple[int, float | None]]

_curves: WireFormat[Curve] = WireFormat("scores of a trial that pauses", Curve, "json")


def keep(place: Path, tensors: dict[str, Tensor], curve: Curve) -> None:
    """Write both as one file, whole or not at all: a search may be interrupted at any time."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(place.name + ".new")
    save_file(tensors, beside, {CURVE: msgspec.json.encode(curve).decode()})
    os.replace(beside, place)


def kept_curve(place: Path, usual: Curve) -> Curve:
    """The scores up to where this file was kept; the usual ones if it does not have them."""
    with safe_open(place, "pt") as file:
        text = (file.metadata() or {}).get(CURVE)
    return usual if text is None else _curves.read(text.encode(), str(place))
