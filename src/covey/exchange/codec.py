"""What a vector looks like on the wire. A codec is a value; for vectors of one form it makes a coder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

import torch

from covey.flat import Form
from covey.program import Node
from covey.vector import Vector

Memory = Any
"""What a coder carries from one time to the next: tensors, vectors, numbers, and tuples, lists and dicts of them.

A program keeps it with `node.remember`, so a resumed run goes on with it.
"""

Sum = Callable[[Vector], Awaitable[None]]
"""Adds a vector up over a group, in place."""

Total = Callable[[Vector, Memory, Sum], Awaitable[tuple[Vector, Memory]]]
"""The sum over a group of everybody's vector, by sums of what travels; and the memory for the next time."""


class Coder(NamedTuple):
    """A codec at work on vectors of one form.

    `encode` neither keeps nor changes the vector it is given, and gives what travels and the memory for the next time;
    `decode` gives a fresh vector of the form. A coder whose wires can be added up on their way has `total`.
    """

    memory: Memory
    encode: Callable[[Vector, Memory], tuple[Vector, Memory]]
    decode: Callable[[Vector], Vector]
    total: Total | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """How vectors travel, as a SPEC says it."""

    name: str  # as in a SPEC, with its settings
    made: Callable[[Form, int], Coder]  # for vectors of this form; the number seeds what it leaves to chance
    nbytes: Callable[[Form], float]  # what travels for one vector, where that is up to the numbers: expected
    adds: bool = False  # its coders have `total`
    feedback: bool = False  # it is biased: where gradients travel, what it drops has to be carried on
    whole: bool = False  # it looks at the shapes of parameters: servers are to hold whole ones

    @property
    def lossless(self) -> bool:
        return self.name == "dense"

    def carrying(self) -> Codec:
        """This codec as gradients use it: with error feedback where it needs it."""
        return error_feedback(self) if self.feedback else self


def seed(node: Node, *what: object) -> int:
    """For what a coder of this role leaves to chance; a restart gives the same."""
    words = "/".join(map(str, (node.seed, node.address, *what)))
    return Random(words).getrandbits(63)


def _plainly(form: Form, seed: int) -> Coder:
    async def total(vector: Vector, memory: Memory, add: Sum) -> tuple[Vector, Memory]:
        summed = vector.clone()
        await add(summed)
        return summed, memory

    return Coder(None, lambda vector, memory: (vector, None), lambda wire: wire, total)


dense = Codec(name="dense", made=_plainly, nbytes=lambda form: form.like.nbytes, adds=True)
"""Numbers as they are."""


def error_feedback(codec: Codec) -> Codec:
    """Carry what compression dropped into the next time: nothing is lost, it only comes later."""

    def made(form: Form, seed: int) -> Coder:
        inner = codec.made(form, seed)

        def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
            dropped, inside = memory
            wanted = vector.clone().add_(dropped)
            wire, inside = inner.encode(wanted, inside)
            return wire, (wanted.add_(inner.decode(wire), alpha=-1), inside)

        return Coder((form.like.map(torch.zeros_like), inner.memory), encode, inner.decode)

    return replace(codec, made=made, feedback=False, adds=False)
