"""Sums by any pattern in virtual time, and their moves round by round."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from covey.exchange.collectives.by_name import PATTERNS
from covey.exchange.collectives.sums import Chunk, Group, Pattern
from covey.model.replica import Replica
from covey.program import Node
from covey.strategy import workers
from covey.vector import Vector
from tests.worlds import Program, Recorder, paced, perform


def reduce(name: str, vectors: Sequence[Vector], slow: Sequence[float] = (), root: int = 0) -> tuple[Recorder, float]:
    """Sum the vectors in place, one on each rank, and say how long that took after all had begun."""
    return reduce_by(PATTERNS[name], vectors, slow, root)


def reduce_by(
    pattern: Pattern, vectors: Sequence[Vector], slow: Sequence[float] = (), root: int = 0
) -> tuple[Recorder, float]:
    ranks = workers(len(vectors))
    group: Group = (*ranks[root:], *ranks[:root])
    ends: list[float] = []

    def program(vector: Vector) -> Program:
        async def run(node: Node, replica: Replica) -> None:
            await node.compute(lambda: None)
            await pattern(node, vector, group)
            ends.append(await node.now())

        return run

    return perform(*(program(vector) for vector in vectors), cluster=paced(slow)), max(ends) - 0.010


def kilobytes(ranks: int) -> list[Vector]:
    return [Vector([torch.full((250,), float(rank))]) for rank in range(ranks)]


def rounds(log: Recorder) -> list[str]:
    """The moves of every round, the way back of a tree (its steps are negative) last; `a<->b` where both send."""
    found: dict[int, set[tuple[int, int]]] = {}
    for sent in log.sends:
        assert isinstance(sent.message, Chunk)
        found.setdefault(sent.message.step, set()).add((sent.sender.rank, sent.to.rank))
    return [
        " ".join(sorted(_move(a, b, moves) for a, b in moves if a < b or (b, a) not in moves))
        for _, moves in sorted(found.items(), key=lambda item: (item[0] < 0, item[0]))
    ]


def _move(a: int, b: int, moves: set[tuple[int, int]]) -> str:
    return f"{a}<->{b}" if (b, a) in moves else f"{a}->{b}"
