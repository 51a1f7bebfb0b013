"""TicTac's TAC: the order of parameters by their transfer times and the computation that they unblock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple


class Op(NamedTuple):
    """A part of forward: without which parameters it cannot run, those of its inputs too, and how long it takes."""

    needs: frozenset[int]
    seconds: float


def tac(ops: Sequence[Op], transfer: Mapping[int, float]) -> list[int]:
    """The parameters in the order in which they should come; `transfer` says how long each takes to.

    One goes before another if more of it is hidden so: if `min(P, M of the other)` is larger, where M is a transfer
    and P what that parameter alone lets be computed. Of equals, the one whose op waits for the shortest transfers of
    all (M+); then the one that `transfer` names first. (Hashemi et al. 2019, section 4: UpdateProperties, Comparator)
    """
    left, found = dict(transfer), list[int]()
    missing = [set(op.needs & left.keys()) for op in ops]
    loads = [sum(left[slot] for slot in slots) for slots in missing]
    while left:
        alone, impending, unknown = dict.fromkeys(left, 0.0), dict.fromkeys(left, inf), set(left)
        for place in sorted(range(len(ops)), key=loads.__getitem__):
            if len(missing[place]) == 1:
                alone[next(iter(missing[place]))] += ops[place].seconds
            else:
                impending.update(dict.fromkeys(missing[place] & unknown, loads[place]))
                unknown -= missing[place]
        best = next(iter(left))
        for slot, seconds in left.items():
            mine, others = min(alone[slot], left[best]), min(alone[best], seconds)
            if mine > others or (mine == others and impending[slot] < impending[best]):
                best = slot
        found.append(best)
        gone = left.pop(best)
        for place, slots in enumerate(missing):
            if best in slots:
                slots.remove(best)
                loads[place] -= gone
    return found
