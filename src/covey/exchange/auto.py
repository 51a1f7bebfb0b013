"""`+ auto`: measures which codec pays on the links of this run, and reports the choice.

The first exchange is plain, so that it is known how long the rest of a step takes. Before the second one every option
is tried out on the vector that is there: encoded, sent, decoded, and thrown away, so that training loses nothing. Of
those with which the goal is hardly later than with the fastest, the one that loses least goes on: where the network is
no bottleneck, that is plain numbers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from covey.exchange.codec import Codec, Coder, Memory, Seed, dense, expect, refused
from covey.exchange.codec_costs import best
from covey.exchange.codec_traits import CodecTraits
from covey.exchange.codecs.bits import Fp16, Int8
from covey.exchange.codecs.levels import OneBit
from covey.exchange.codecs.low_rank import PowerSgd
from covey.exchange.codecs.sparse import TopK
from covey.exchange.collectives.compressed import Means, gather, totalled
from covey.exchange.collectives.sums import Group, Pattern
from covey.model.flat import Form
from covey.observe.choices import told
from covey.program import Node
from covey.vector import Vector

TURNS = 2  # of each option that count, after one in which it may have to get ready
RANK = 16  # of factors: with fewer columns more is lost than saved


@cache
def options() -> tuple[Codec, ...]:
    """What there is to choose from; those that lose least come first."""
    few, fewer = (TopK(density=share).codec().called([f"topk(density={share})"], ["topk"]) for share in (0.1, 0.01))
    factors = PowerSgd(rank=RANK).codec().called([f"powersgd(rank={RANK})"], ["powersgd"])
    return dense, Fp16().codec(), Int8().codec(), few, factors, OneBit().codec(), fewer


class Trying:
    """When to try the options out, and which one it is; a restart remembers that."""

    def __init__(self, node: Node, what: str = "") -> None:
        self.node, self.what = node, what
        self.choice = node.remember(f"choice of {what or 'codec'}", [-1]).value
        self.since: float | None = None  # when the exchange before ended

    @property
    def undecided(self) -> bool:
        return self.choice[0] < 0

    async def rest(self) -> float | None:
        """How long the step took besides its exchange; None where none came before, or nothing is to be decided."""
        return None if self.since is None or not self.undecided else await self.node.now() - self.since

    async def ended(self) -> None:
        """An exchange is over."""
        if self.undecided:
            self.since = await self.node.now()

    async def measured(self, act: Callable[[int], Awaitable[object]]) -> list[float]:
        """How long an exchange takes with each option."""
        times = []
        for number in range(len(options())):
            await act(number)  # who came late has come then
            begin = await self.node.now()
            for _ in range(TURNS):
                await act(number)
            times.append((await self.node.now() - begin) / TURNS)
        return times

    async def decide(self, rest: float, times: Sequence[float], tells: bool) -> int:
        """Choose. The result says how many chose what; and why, as one of them has seen it."""
        self.choice[0] = choice = best(rest, times, [option.traits.steps for option in options()])
        times_of = {option.name: time for option, time in zip(options(), times, strict=True)}
        for kind, value in told(options()[choice].name, times_of if tells else {}, rest, self.what).items():
            await self.node.note(kind, value)
        return choice


class TriedMeans(Means):
    """Means by the option that pays: the members of a group agree on the mean of what they have measured."""

    def __init__(self, node: Node, coder: Coder, what: str) -> None:
        super().__init__(node, coder, what)
        self.trying = Trying(node, what)

    async def total(self, vector: Vector, group: Group, pattern: Pattern) -> Vector:
        rest = await self.trying.rest()
        if rest is not None:
            await self._choose(rest, vector, group, pattern)
        choice, inside = self.memory.value
        option = self.coder.options[choice]
        inside = option.memory if inside is None else inside
        total, inside, self.told = await totalled(self.node, option, inside, vector, group, pattern)
        self.memory.value = [choice, inside]
        await self.trying.ended()
        return total

    async def _choose(self, rest: float, vector: Vector, group: Group, pattern: Pattern) -> None:
        async def act(number: int) -> None:
            option = self.coder.options[number]
            await totalled(self.node, option, option.memory, vector, group, pattern)

        times = await self.trying.measured(act)
        found = Vector([torch.tensor([rest, *times], dtype=torch.float64)])
        everybody = [one.parts[0].tolist() for one in await gather(self.node, found, group)]
        rest, *times = (sum(numbers) / len(group) for numbers in zip(*everybody, strict=True))
        choice = await self.trying.decide(rest, times, tells=self.node.address == group[0])
        self.memory.value = [choice, None]


def means(node: Node, coder: Coder, what: str = "") -> Means:
    """Means of what this coder codes; `what` tells several of a role apart."""
    return TriedMeans(node, coder, what) if coder.options else Means(node, coder, what)


def _make(form: Form, place: Seed) -> Coder:
    """Wires that say in a byte which option they are of. What is remembered: which one it is, and what that keeps."""
    made = tuple(option.carrying().made(form, place) for option in options())

    def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
        choice, inside = memory
        wire, inside = made[choice].encode(vector, made[choice].memory if inside is None else inside)
        return Vector([torch.tensor([choice], dtype=torch.uint8), *wire.parts]), [choice, inside]

    def decode(wire: Vector) -> Vector:
        (head,) = expect(Vector(wire.parts[:1], wire.origin), (1, torch.uint8))
        if int(head) >= len(made):
            raise refused(wire, f"option {int(head)} of {len(made)}")
        rest = Vector(wire.parts[1:], wire.origin)
        if not head:
            expect(rest, *((like.numel(), like.dtype) for like in form.like.parts))
        return made[int(head)].decode(rest)

    return Coder(lambda: [0, None], encode, decode, options=made)


@dataclass(frozen=True, kw_only=True, slots=True)
class Auto:
    """What is fastest on the links of the run as they are measured; plain numbers where nothing pays."""

    def codec(self) -> Codec:
        return Codec(
            name="auto", make=_make, nbytes=lambda form: 1 + dense.nbytes(form), traits=CodecTraits(measured=True)
        )
