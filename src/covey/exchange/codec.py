"""What a vector looks like on the wire. A codec is a value; for vectors of one form it makes a coder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from covey.errors import PlanError, WireError
from covey.exchange.codec_observer import told, watched
from covey.exchange.codec_traits import UNBIASED, CodecTraits
from covey.exchange.compression_error import measuring
from covey.model.flat import Form
from covey.program import Node
from covey.vector import Vector

T = TypeVar("T")

Memory = Any
"""What a coder carries from one time to the next: tensors, vectors, numbers, and tuples, lists and dicts of them.

A program keeps it with `node.remember`, so a resumed run goes on with it.
"""

Sum = Callable[[Vector], Awaitable[None]]
"""Adds a vector up over a group, in place."""

Total = Callable[[Vector, Memory, Sum], Awaitable[tuple[Vector, Memory]]]
"""The sum over a group of everybody's vector, by sums of what travels; and the memory for the next time."""


class Seed(int):
    """A number for what a coder leaves to chance, and what it is told of its place among others of its kind."""

    common: int  # the same number on all ranks
    rank: int
    workers: int
    measure: Callable[[str, float], None] | None  # hears of compression errors

    def __new__(cls, own: int, common: int | None = None, rank: int = 0, workers: int = 1, measure: Any = None) -> Self:
        made = super().__new__(cls, own)
        made.common, made.rank, made.workers, made.measure = own if common is None else common, rank, workers, measure
        return made

    @classmethod
    def of(cls, number: int) -> Seed:
        return number if isinstance(number, Seed) else Seed(number)


def seed(node: Node, *what: object) -> Seed:
    """For a coder of this role; a restart gives the same. Coders that work together differ in no `what`."""
    words = "/".join(map(str, what))
    own, common = (Random(f"{node.seed}/{who}{words}").getrandbits(63) for who in (f"{node.address}/", ""))
    return Seed(own, common, node.rank, node.workers, node.host.measure)


@dataclass(frozen=True, slots=True)
class Coder:
    """A codec at work on vectors of one form.

    Args:
        start: Gives the memory to begin with.
        encode: Gives what travels for a vector, and the memory for the next time.
        decode: Gives the vector for what came.
        total: Sums everybody's vector over a group, where wires can be added up.
        options: Of one that chooses among others, those.

    >>> coder = covey.Coder(lambda: None, lambda vector, memory: (vector, memory), lambda wire: wire)
    >>> coder.memory is None
    True

    `encode` neither keeps nor changes the vector it is given, and gives what travels and the memory for the next time,
    which may be the old one, written over. `decode` gives a vector of the form, and needs no memory. A coder whose
    wires can be added up on their way has `total`.
    """

    start: Callable[[], Memory]
    encode: Callable[[Vector, Memory], tuple[Vector, Memory]]
    decode: Callable[[Vector], Vector]
    total: Total | None = None
    options: tuple[Coder, ...] = ()  # of one that chooses among them, and remembers first which it is

    @property
    def memory(self) -> Memory:
        """What to begin with; another one each time it is asked for."""
        return self.start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """How vectors travel: what makes coders for them.

    Args:
        name: What SPECs call it.
        make: Makes a coder for vectors of a form, with a number that seeds what it leaves to chance.
        nbytes: The bytes that travel for a vector of a form.
        traits: What others have to know of it.
        summed: The bytes that are added up in a `total` over a number of workers, if not those.
        fused: The same with error feedback in one pass.
        inside: Of a wrapper, the same around what carries on what it drops.
        pull: Whether what servers give back is encoded too; `+ pull` sets it.
        aliases: Other names under which a cluster file may say how long it takes.

    >>> def make(form, seed):
    ...     return covey.Coder(lambda: None, lambda vector, memory: (vector, memory), lambda wire: wire)
    >>> covey.Codec(name="as_it_is", make=make, nbytes=lambda form: form.like.nbytes).traits.feedback
    'none'
    """

    name: str  # as in a SPEC, with its settings
    make: Callable[[Form, Seed], Coder]
    nbytes: Callable[[Form], float]  # what travels for one vector, where that is up to the numbers: expected
    traits: CodecTraits = UNBIASED
    summed: Callable[[Form, int], float] | None = None  # what is added up in a `total` over this many, if not that
    fused: Codec | None = None  # its own error feedback, in the same pass
    inside: Callable[[], Codec] | None = None  # of a wrapper: the same around what carries on what it drops
    pull: bool = False  # what servers give back travels encoded, too, as what has changed
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What a cluster file may call it; the most exact name comes first."""
        return self.name, *self.aliases

    def called(self, written: Sequence[str], names: Sequence[str]) -> Codec:
        """The same with the name that a SPEC gives it: its words with their settings, and without them."""
        return replace(self, name=" + ".join(written), aliases=(*written, *names))

    def sum_bytes(self, form: Form, workers: int) -> float:
        """The bytes that are added up for the sum over a group."""
        return self.summed(form, workers) if self.summed else self.nbytes(form)

    def made(self, form: Form, seed: int) -> Coder:
        """A coder for vectors of this form; the number seeds what it leaves to chance."""
        place, empty = Seed.of(seed), any(part.is_meta for part in form.like.parts)
        whole = self.traits.plain or self.traits.measured  # else, where there are no numbers, only sizes count
        coder = self.make(form, place) if whole or not empty else _timed(self, form, place)
        shown = coder if whole or not watched() else _telling(self.names, form.like.nbytes, coder)
        hear = None if empty or self.traits.plain else place.measure
        return replace(shown, encode=measuring(shown.encode, coder.decode, hear)) if hear else shown

    @property
    def adds_up(self) -> bool:
        """Whether gradients as it writes them can be added up on their way."""
        return self.carrying().traits.summable

    def for_weights(self) -> Codec | None:
        """What weights travel in that are sent whole; None where they travel as they are."""
        return self if self.traits.weights and not (self.traits.plain or self.pull) else None

    def either(self, plain: T, encoded: T) -> T:
        """What a strategy does where nothing is encoded, or else."""
        return plain if self.traits.plain else encoded

    def refuse(self, what: str, why: str) -> None:
        """Refuse this codec with `what`, unless nothing is encoded."""
        if not self.traits.plain:
            raise PlanError(f"{what} with {self.name}: {why}")

    def carrying(self) -> Codec:
        """This codec as gradients use it: with error feedback where it needs it."""
        if self.traits.feedback != "needed":
            return self
        found = self.inside() if self.inside else error_feedback(self)
        return replace(found, name=self.name, aliases=self.aliases, pull=self.pull)


Fusing = Callable[[Form, Seed, bool], Coder]
"""Makes a coder that also carries on what it drops, in the same pass, where the last argument says so."""


def fusing(
    name: str, make: Fusing, nbytes: Callable[[Form], float], traits: CodecTraits = UNBIASED,
    summed: Callable[[Form, int], float] | None = None,
) -> Codec:  # fmt: skip
    """A codec that has error feedback of its own, for where it is wanted."""
    own = Codec(
        name=name, make=lambda form, seed: make(form, seed, True), nbytes=nbytes, summed=summed,
        traits=replace(traits, feedback="own"),
    )  # fmt: skip
    return replace(own, make=lambda form, seed: make(form, seed, False), traits=traits, fused=own)


def _timed(codec: Codec, form: Form, place: Seed) -> Coder:
    """For runs that are only timed: nothing but the sizes."""

    def wire(size: float) -> Vector:
        return Vector([torch.empty(round(size), dtype=torch.uint8, device="meta")])

    def like() -> Vector:
        return form.like.map(torch.empty_like)

    async def total(vector: Vector, memory: Memory, add: Sum) -> tuple[Vector, Memory]:
        await add(wire(codec.sum_bytes(form, place.workers)))
        return like(), None

    size, adds = codec.nbytes(form), codec.traits.summable
    return Coder(lambda: None, lambda vector, memory: (wire(size), None), lambda wire: like(), total if adds else None)


def _telling(names: tuple[str, ...], size: int, coder: Coder) -> Coder:
    """A coder that tells whoever watches what it does."""

    def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
        with told(names, "encode", size):
            return coder.encode(vector, memory)

    def decode(wire: Vector) -> Vector:
        with told(names, "decode", size):
            return coder.decode(wire)

    async def total(vector: Vector, memory: Memory, add: Sum) -> tuple[Vector, Memory]:
        assert coder.total is not None
        with told(names, "encode", size):
            pass  # others run while what travels is added up
        found = await coder.total(vector, memory, add)
        with told(names, "decode", size):
            return found

    return replace(coder, encode=encode, decode=decode, total=total if coder.total else None)


def _plainly(form: Form, seed: Seed) -> Coder:
    async def total(vector: Vector, memory: Memory, add: Sum) -> tuple[Vector, Memory]:
        summed = vector.clone()
        await add(summed)
        return summed, memory

    return Coder(lambda: None, lambda vector, memory: (vector, None), lambda wire: wire, total)


dense = Codec(
    name="dense", make=_plainly, nbytes=lambda form: form.like.nbytes,
    traits=CodecTraits(plain=True, summable=True, weights=True),
)  # fmt: skip
"""Numbers as they are."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """What numbers of this type are reckoned in, where a sum of many has to stay exact."""
    return torch.promote_types(dtype, torch.float32)


def zeros(form: Form) -> Vector:
    """A residual to begin with."""
    return form.like.map(lambda part: torch.zeros_like(part, dtype=wide(part.dtype)))


def check(vector: Vector) -> None:
    """Refuse to code what is no number, before anything that is remembered has changed."""
    if not vector.finite():
        raise WireError(
            "the numbers to send are NaN or infinite: training has diverged; try a smaller learning rate, or clip_norm "
            "in the task"
        )


def expect(wire: Vector, *parts: tuple[int | None, torch.dtype]) -> tuple[Tensor, ...]:
    """The parts of a wire; refused where they are not this many numbers (None: any) of these types."""
    fits = len(wire.parts) == len(parts) and all(
        part.dim() == 1 and part.dtype == dtype and count in (None, part.numel())
        for part, (count, dtype) in zip(wire.parts, parts, strict=True)
    )
    if not fits:
        wanted = ", ".join(f"{'any' if n is None else n} x {dtype}".replace("torch.", "") for n, dtype in parts)
        raise refused(wire, f"{wire} where ({wanted}) belongs")
    return wire.parts


def refused(wire: Vector, what: str) -> WireError:
    """The error for what came over a wire and cannot be."""
    return WireError(f"{wire.origin or 'a peer'} sent {what}: it speaks another codec, or its message is broken")


def error_feedback(codec: Codec) -> Codec:
    """Carry what compression dropped into the next time: nothing is lost, it only comes later."""
    if codec.traits.feedback == "own":
        return codec
    if codec.fused:
        return codec.fused

    def make(form: Form, seed: Seed) -> Coder:
        inner = codec.make(form, seed)

        def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
            dropped, inside = memory
            wanted = Vector(kept + part for kept, part in zip(dropped.parts, vector.parts, strict=True))
            wire, inside = inner.encode(wanted, inside)
            # not in place: the wire of a codec from outside may be a view of what was wanted
            rest = [want - sent for want, sent in zip(wanted.parts, inner.decode(wire).parts, strict=True)]
            return wire, (Vector(rest), inside)

        return Coder(lambda: (zeros(form), inner.memory), encode, inner.decode)

    traits = replace(codec.traits, feedback="own", summable=False, weights=False)
    return replace(codec, make=make, traits=traits, inside=None)
