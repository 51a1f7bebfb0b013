"""A codec of one's own, which docs/new_codec.md writes step by step: another stripe of the vector each time."""

from dataclasses import dataclass

import torch

from covey import Codec, CodecTraits, Coder, Vector, register


def coder(form, seed, *, every):
    def encode(vector, turn):
        pairs = zip(vector.parts, form.like.parts, strict=True)
        sent = [part[turn % every :: every].to(like.dtype, copy=True) for part, like in pairs]
        return Vector([torch.tensor([turn % every]), *sent]), turn + 1

    def decode(wire):
        start, *numbers = wire.parts
        found = form.like.map(torch.zeros_like)
        for part, came in zip(found.parts, numbers, strict=True):
            part[int(start) :: every] = came
        return found

    return Coder(lambda: 0, encode, decode)


@register("stripes")
@dataclass(frozen=True, kw_only=True)
class Stripes:
    """Every n-th number, beginning one place further each time; the others wait."""

    every: int = 4

    def codec(self):
        return Codec(
            name="stripes",
            make=lambda form, seed: coder(form, seed, every=self.every),
            nbytes=lambda form: 8 + form.like.nbytes / self.every,
            traits=CodecTraits(feedback="needed"),
        )
