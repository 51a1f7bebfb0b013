"""One more task at a time for whoever gains most from it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping

Counts = tuple[int, ...]  # of each kind of task, such as workers and servers
Cost = Callable[[Counts], float]


def greedy(
    costs: Mapping[str, Cost], counts: Mapping[str, Counts], most: Mapping[str, Counts], room: float,
    needs: tuple[float, ...] = (1.0,),
) -> dict[str, Counts]:  # fmt: skip
    """Add tasks while one lowers its job's cost and fits: each time the one that lowers it most for what it needs.

    `needs` has the slots of a task of each kind, and `room` is what is left beside `counts`.

    >>> greedy({"a": lambda n: 8 / n[0], "b": lambda n: 1 / n[0]}, {"a": (1,), "b": (1,)}, {"a": (9,), "b": (9,)}, 2)
    {'a': (3,), 'b': (1,)}
    """
    given = dict(counts)
    heap: list[tuple[float, str, int, float]] = []

    def offer(name: str, now: float) -> None:
        for kind, need in enumerate(needs):
            if given[name][kind] < most[name][kind]:
                then = costs[name](one_more(given[name], kind))
                if (gain := (now - then) / need) > 0:
                    heapq.heappush(heap, (-gain, name, kind, then))

    for name in given if room > 0 else ():
        if given[name] != most[name]:
            offer(name, costs[name](given[name]))
    while heap and room > 0:
        _, name, kind, cost = heapq.heappop(heap)
        if needs[kind] <= room:
            given[name] = one_more(given[name], kind)
            room -= needs[kind]
            if len(needs) > 1:  # what was offered of other kinds has another gain now
                heap = [offered for offered in heap if offered[1] != name]
                heapq.heapify(heap)
            offer(name, cost)
    return given


def one_more(counts: Counts, kind: int) -> Counts:
    """With one task more of this kind."""
    return (*counts[:kind], counts[kind] + 1, *counts[kind + 1 :])
