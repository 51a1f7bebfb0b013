"""`pattern=auto` and `bucket=auto`: the first rank measures the link, decides, and informs the others."""

from __future__ import annotations

from typing import Literal

import msgspec
import torch

from covey.exchange.collectives.by_name import pattern
from covey.exchange.collectives.costs import DELAYS, LinkTimes, most_buckets, step_seconds
from covey.exchange.collectives.sums import Group
from covey.message import Message
from covey.program import Node
from covey.vector import Vector

SMALL, *LARGER = 8, 4 << 10, 64 << 10, 512 << 10  # bytes
LAPS = 3  # of a small message; the quickest counts
BURST = 8  # small messages right behind one another

Auto = Literal["auto"]


class PatternChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What a group decided on; kept over a restart."""

    pattern: str = ""  # not yet
    bucket: int = 0  # bytes
    latency: float = 0.0  # seconds
    byte: float = 0.0  # seconds, too
    native: bool = False  # the engine sums in its own way, and the pattern is only for groups where it does not


class LinkProbe(Message):
    """Bytes on their way around the group."""

    wire_name = "probe.probe"

    load: Vector

    counted = False


class Decided(Message):
    """What the first rank chose."""

    wire_name = "probe.decided"

    pattern: str
    bucket: int
    latency: float
    byte: float

    counted = False


class PatternRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: a pattern's name or `auto`, the bytes of a bucket or `auto`."""

    pattern: str
    bucket: int | Auto

    @property
    def open(self) -> bool:
        """Whether something has to be measured."""
        return self.pattern == "auto" or self.bucket == "auto"

    @property
    def first(self) -> str:
        """The pattern before that."""
        return "ring" if self.pattern == "auto" else self.pattern

    @property
    def granted(self) -> PatternChoice:
        """What is asked for, as far as it needs no measuring."""
        return PatternChoice(pattern=self.first, bucket=0 if self.bucket == "auto" else self.bucket)


class Trial:
    """The sum of a first step: was its pattern needed, or has the engine a way of its own?"""

    def __init__(self, name: str, local: int) -> None:
        self.name, self.pattern, self.needed = name, pattern("allreduce", name, local), False

    async def __call__(self, node: Node, vector: Vector, group: Group) -> None:
        self.needed = True
        await self.pattern(node, vector, group)

    async def choose(
        self, node: Node, group: Group, wish: PatternRequest, nbytes: int, compute: float
    ) -> PatternChoice:
        """What the steps after this one do."""
        if not self.needed:
            return PatternChoice(pattern=self.name, native=True)
        return await choose(node, group, wish, nbytes, compute)


async def choose(node: Node, group: Group, wish: PatternRequest, nbytes: int, compute: float) -> PatternChoice:
    """Agree on how to sum this many bytes; `compute` is how long a batch took the first rank."""
    first, *others = group
    if node.address != first:
        return await _follow(node, group)
    link = await measure(node, group)
    name, bucket = decide(link, len(group), wish, nbytes, compute)
    if wish.pattern == "auto" and 1 < len(node.machines(group)) < len(group):
        name = "hierarchical"  # in the memory of each machine, and once between them
    for peer in others:
        await node.send(peer, Decided(name, bucket, link.latency, link.byte))
    return PatternChoice(pattern=name, bucket=bucket, latency=link.latency, byte=link.byte)


async def _follow(node: Node, group: Group) -> PatternChoice:
    """Pass on what comes around, until the first rank has decided."""
    after = group[(group.index(node.address) + 1) % len(group)]
    while not isinstance(message := await node.receive_any(LinkProbe, Decided), Decided):
        assert isinstance(message, LinkProbe)
        await node.send(after, LinkProbe(message.load))
    return PatternChoice(pattern=message.pattern, bucket=message.bucket, latency=message.latency, byte=message.byte)


async def measure(node: Node, group: Group) -> LinkTimes:
    """(The first rank) Time messages on their way around: each number is a mean over the links of the ring."""
    size = len(group)
    if size == 1:
        return LinkTimes(0.0, 0.0, 0.0)
    quick = min([await _lap(node, group, SMALL) for _ in range(LAPS)])
    burst = await _lap(node, group, SMALL, BURST)
    for load in LARGER:
        took = await _lap(node, group, load)
        if took > 4 * quick:  # else it was hardly longer than a small one, and would tell of noise
            break
    byte = max(0.0, (took - quick) / (size * (load - SMALL)))
    latency, gap = quick / size - SMALL * byte, (burst - quick) / (BURST - 1) - SMALL * byte
    return LinkTimes(max(0.0, latency), max(0.0, gap), byte)


async def _lap(node: Node, group: Group, nbytes: int, count: int = 1) -> float:
    """Seconds until this many messages have come around."""
    load = Vector([torch.zeros(nbytes, dtype=torch.uint8)])
    begin = await node.now()
    for _ in range(count):
        await node.send(group[1], LinkProbe(load), loan=True)
    for _ in range(count):
        await node.receive(LinkProbe, sender=group[-1])
    return await node.now() - begin


def decide(link: LinkTimes, n: int, wish: PatternRequest, nbytes: int, compute: float) -> tuple[str, int]:
    """The pattern and the bytes of a bucket with which the formulas expect the shortest step; 0: no buckets."""
    names = list(DELAYS) if wish.pattern == "auto" else [wish.pattern]
    options = [(name, count) for name in names for count in _counts(name, n, wish, nbytes)]
    name, count = min(options, key=lambda option: step_seconds(option[0], link, n, nbytes, compute, option[1]))
    return name, -(-nbytes // count) if wish.bucket == "auto" and count > 1 else wish.granted.bucket


def _counts(name: str, n: int, wish: PatternRequest, nbytes: int) -> range:
    """The numbers of buckets among which to choose."""
    if wish.bucket == "auto":
        return range(1, most_buckets(name, n, nbytes) + 1)
    count = max(1, -(-nbytes // wish.bucket)) if wish.bucket else 1
    return range(count, count + 1)
