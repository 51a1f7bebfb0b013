"""Compile or load the kernels of codecs before the clock starts."""

from __future__ import annotations

import torch

from covey.exchange.codec import Codec, Coder, Seed
from covey.model.flat import Form
from covey.vector import Vector

SIDE = 320
"""Of a square of numbers: more than the fewest for which a codec goes the way of large vectors."""


def warm(codec: Codec, like: Vector) -> None:
    """Encode and decode some numbers of this kind, as gradients travel and as models do."""
    part = next((part for part in like.parts if part.is_floating_point()), None)
    if part is None or part.is_meta:
        return
    some = torch.linspace(-1, 1, SIDE * SIDE, device=part.device).to(part.dtype)
    form = Form.matrix(some, SIDE)
    for each in dict.fromkeys((codec, codec.carrying())):
        coder = each.make(form, Seed(0))
        for option in coder.options or (coder,):
            _try(option, form)


def _try(coder: Coder, form: Form) -> None:
    wire, memory = coder.encode(form.like.clone(), coder.memory)
    coder.decode(wire)
    if coder.total:
        next(coder.total(form.like.clone(), memory, _alone).__await__(), None)  # alone, nobody is waited for


async def _alone(vector: Vector) -> None:
    """The sum over a group of one."""
